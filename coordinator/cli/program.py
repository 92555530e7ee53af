"""The commands put together, and what becomes of their mistakes: one line, and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from coordinator import __version__
from coordinator.cli import (
    backup,
    bench,
    certs,
    cluster,
    completion,
    configuration,
    doctor,
    edges,
    explain,
    gossip,
    leases,
    lock,
    locks,
    namespaces,
    nodes,
    queues,
    reclaims,
    resources,
    sessions,
    tokens,
    tombstones,
    watch,
)
from coordinator.cli.arguments import Commands, Parser, add_command, add_json
from coordinator.cli.asking import HINTS
from coordinator.cli.output import Shown, complain
from coordinator.config import ConfigError
from coordinator.devcluster import DevClusterError
from coordinator.endpoint import EndpointError, NoAnswer
from coordinator.trust import TrustError

FAILED = 1
TRY_AGAIN = 75
INTERRUPTED = 130

NOUNS = (
    nodes, cluster, lock, locks, leases, sessions, resources, explain, edges, reclaims, tombstones, queues, watch,
    namespaces, tokens, configuration, doctor, certs, backup, gossip, bench, completion,
)  # fmt: skip

_CODES = """\
exit codes:
  0    done
  1    refused, not found, or wrong: the message says why, and nothing changed
  2    the command line is wrong
  75   no node took it, or nobody can say what became of it: try again
  130  interrupted
  `holdfast lock` has more: see holdfast lock --help

The cluster is found by --endpoints, else $HOLDFAST_ENDPOINTS, else 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code. Mistakes are one line on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    given, to_run = lock.split(given)
    options = parser().parse_args(given)
    options.to_run = to_run
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except NoAnswer as error:
        return complain(options, str(error), TRY_AGAIN, code="unavailable", outcome=error.outcome)
    except EndpointError as error:
        code = FAILED if error.outcome == "denied" else TRY_AGAIN
        return complain(
            options, str(error), code, code=error.code, outcome=error.outcome, hint=HINTS.get(error.code, "")
        )
    except (ConfigError, DevClusterError, TrustError) as error:
        return complain(options, str(error), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        return complain(options, f"{where}{error.strerror or error}", FAILED)


def parser() -> Parser:
    top = Parser(
        prog="holdfast", description="A replicated coordinator.", epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands: Commands = top.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for noun in NOUNS:
        noun.add(commands)
    add_json(add_command(commands, "version", "print the version", _version))
    return top


def _version(options: argparse.Namespace) -> int:
    return Shown({"version": __version__}, f"holdfast {__version__}").print(options)
