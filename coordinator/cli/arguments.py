"""What all commands share on the command line, and a parser that says what was probably meant."""

from __future__ import annotations

import argparse
import difflib
import os
import ssl
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from coordinator.addresses import AddressError, split_address
from coordinator.cli.output import complain
from coordinator.credentials import read_private
from coordinator.endpoint import Endpoint
from coordinator.machine.limits import DAY_MS, MAX_TTL_MS
from coordinator.trust import client_context

DEFAULT_ENDPOINTS = "127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103"
ENDPOINTS_VARIABLE = "HOLDFAST_ENDPOINTS"
TOKEN_VARIABLE = "HOLDFAST_ACCESS_TOKEN"  # noqa: S105 - where one is, not one itself
DEFAULT_TIMEOUT_S = 5.0
_TLS_FILES = {
    "ca": "the authority that issued the nodes' certificates; with it, HOST:PORT means https",
    "cert": "the certificate to show to nodes that ask for one",
    "cert-key": "its private key",
}

Commands = Any
"""argparse's own type for this has no public name."""
Run = Callable[[argparse.Namespace], int]


class _Misused(Exception):
    """`usage` is shown to a person above the message."""

    def __init__(self, usage: str, message: str) -> None:
        super().__init__(message)
        self.usage = usage


class Parser(argparse.ArgumentParser):
    """Names the nearest command or option when one is misspelt."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            raise argparse.ArgumentError(
                action, f"there is no {value!r}{nearest(str(value), known)} (known: {', '.join(known)})"
            )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        try:
            return self._parsed(given, namespace)
        except _Misused as mistake:
            as_json = argparse.Namespace(json="--json" in given)
            if not as_json.json:
                print(mistake.usage, end="", file=sys.stderr)
            self.exit(complain(as_json, str(mistake), 2, code="usage"))

    def _parsed(self, given: Sequence[str], namespace: Any) -> Any:
        options, unknown = self.parse_known_args(given, namespace)
        if not hasattr(options, "command"):
            noun = leaf_of(self, given)
            message = f"{noun.prog} needs one of its commands; {noun.prog} COMMAND --help explains one"
            raise _Misused(f"{noun.format_usage()}\n{listing(noun)}\n\n", message)
        if unknown:
            leaf = leaf_of(self, given)
            guess = nearest(unknown[0].partition("=")[0], leaf._option_string_actions)
            leaf.error(f"{leaf.prog} does not know {' '.join(unknown)}{guess}")
        return options

    def error(self, message: str) -> NoReturn:
        raise _Misused(self.format_usage(), message)


def nearest(word: str, known: Any) -> str:
    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def listing(parser: argparse.ArgumentParser) -> str:
    """The commands of a noun, or of the program, with a line about each."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    known = {str(each.metavar): each.help or "" for action in actions for each in action._choices_actions}
    width = max(map(len, known), default=0)
    return "\n".join(f"  {name.ljust(width)}  {about}" for name, about in known.items())


def leaf_of(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command that `words` name."""
    for word in words:
        parser = subcommands(parser).get(word, parser)
    return parser


# --- building ---------------------------------------------------------------------------------------------------------


def add_noun(commands: Commands, name: str, about: str) -> Commands:
    """A command that only has commands of its own."""
    noun = commands.add_parser(name, help=about, description=about)
    return noun.add_subparsers(metavar="ACTION", parser_class=Parser)


def add_command(commands: Commands, name: str, about: str, run: Run, **settings: Any) -> Any:
    added = commands.add_parser(name, help=about, **{"description": about, **settings})
    added.set_defaults(command=run, json=False)
    return added


def add_remote(commands: Commands, name: str, about: str, run: Run, **settings: Any) -> Any:
    """A command that talks to a cluster."""
    added = add_command(commands, name, about, run, **settings)
    where = os.environ.get(ENDPOINTS_VARIABLE) or DEFAULT_ENDPOINTS
    group = added.add_argument_group("the cluster")
    group.add_argument(
        "--endpoints", "--endpoint", default=where, metavar="HOST:PORT,…",
        help=f"any of its nodes (default: ${ENDPOINTS_VARIABLE}, else {DEFAULT_ENDPOINTS})",
    )  # fmt: skip
    group.add_argument("--namespace", default="default", metavar="NAME", help="default: default")
    group.add_argument(
        "--timeout", type=positive, default=DEFAULT_TIMEOUT_S, metavar="S",
        help=f"how long to try before giving up (default: {DEFAULT_TIMEOUT_S:g})",
    )  # fmt: skip
    for file, use in _TLS_FILES.items():
        variable = f"HOLDFAST_{file.upper().replace('-', '_')}"
        said = os.environ.get(variable) or None
        group.add_argument(f"--{file}", default=said, metavar="FILE", help=f"{use} (default: ${variable})")
    group.add_argument(
        "--token-file", type=Path, default=os.environ.get("HOLDFAST_TOKEN_FILE") or None, metavar="FILE",
        help=f"the access token is in it (default: $HOLDFAST_TOKEN_FILE, else the token itself is ${TOKEN_VARIABLE})",
    )  # fmt: skip
    add_json(added)
    return added


def add_json(added: Any) -> None:
    added.add_argument("--json", action="store_true", help="print the answer as JSON, for programs")


def endpoints(options: argparse.Namespace) -> list[str]:
    """With an authority to believe, those without a scheme are https."""
    given = [each.strip() for each in options.endpoints.split(",") if each.strip()]
    return [each if "://" in each else f"{'https' if options.ca else 'http'}://{each}" for each in given]


def targets(options: argparse.Namespace) -> list[Endpoint]:
    """The same for a command that asks one node after the other."""
    tls, token = tls_context(options), access_token(options)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return [Endpoint(each, tls, headers) for each in endpoints(options)]


def access_token(options: argparse.Namespace) -> str | None:
    """Not an argument: other users of the machine see those."""
    if options.token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    return read_private("the token file", Path(options.token_file)).decode(errors="replace")


def tls_context(options: argparse.Namespace) -> ssl.SSLContext | None:
    """None where nothing is said of it: the system's authorities are then believed."""
    if not (options.ca or options.cert or options.cert_key):
        return None
    return client_context(options.ca, options.cert, options.cert_key)


# --- kinds of values --------------------------------------------------------------------------------------------------


def positive(text: str) -> float:
    value = not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("it must be more than 0")
    return value


def not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} s is not from 0 to a billion")
    return value


def lease_time(shortest_s: float) -> Callable[[str], float]:
    """A kind of value: from what is worth it here to the longest that the cluster takes."""

    def read(text: str) -> float:
        value = not_negative(text)
        if not shortest_s <= value <= MAX_TTL_MS / 1000:
            days = MAX_TTL_MS / DAY_MS
            raise argparse.ArgumentTypeError(f"a lease time is from {shortest_s:g} s to {days:g} days, not {text} s")
        return value

    return read


def address(text: str) -> str:
    try:
        split_address("the address", text)
    except AddressError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def exit_code(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 255:
        raise argparse.ArgumentTypeError(f"{text!r} is no exit code from 0 to 255")
    return int(text)
