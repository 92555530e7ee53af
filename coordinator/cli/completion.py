"""`holdfast completion bash | zsh | fish`: made from the same parsers that read the arguments."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from coordinator.cli.arguments import Commands, add_command, subcommands

SHELLS = ("bash", "zsh", "fish")

_BASH = """\
# bash completion of holdfast. To use it: eval "$(holdfast completion bash)"
_holdfast() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} path="" word words
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        if [[ $word == -- ]]; then
            COMPREPLY=($(compgen -c -f -- "$current"))
            return
        fi
        case "$path $word" in
            {paths}) path="$path $word" ;;
        esac
    done
    case "$path" in
{cases}
        *) words="" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _holdfast holdfast
"""

_ZSH = """\
#compdef holdfast
# zsh completion of holdfast. To use it: eval "$(holdfast completion zsh)"
_holdfast() {{
    local path="" word
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        if [[ $word == -- ]]; then
            _normal
            return
        fi
        case "$path $word" in
            {paths}) path="$path $word" ;;
        esac
    done
    case "$path" in
{cases}
    esac
    _files
}}
compdef _holdfast holdfast
"""


def script(shell: str, top: argparse.ArgumentParser) -> str:
    if shell == "fish":
        return _fish(top)
    known = list(_walk(top, ""))
    names = "|".join(f'"{path}"' for path, _ in known if path)
    if shell == "bash":
        cases = "\n".join(f'        "{path}") words="{" ".join(_words(parser))}" ;;' for path, parser in known)
        return _BASH.format(paths=names, cases=cases)
    cases = "\n".join(f'        "{path}") compadd -- {" ".join(_words(parser))} ;;' for path, parser in known)
    return _ZSH.format(paths=names, cases=cases)


def _walk(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield path, parser
    for name, below in subcommands(parser).items():
        yield from _walk(below, f"{path} {name}")


def _words(parser: argparse.ArgumentParser) -> list[str]:
    options = [name for action in parser._actions for name in action.option_strings if action.help != argparse.SUPPRESS]
    choices = [
        str(each)
        for action in parser._actions
        if action.choices and not action.option_strings and not isinstance(action, argparse._SubParsersAction)
        for each in action.choices
    ]
    return [*subcommands(parser), *choices, *(name for name in options if name.startswith("--"))]


def _fish(top: argparse.ArgumentParser) -> str:
    lines = ["# fish completion of holdfast. To use it: holdfast completion fish | source", "complete -c holdfast -f"]
    for path, parser in _walk(top, ""):
        names = path.split()
        seen = "; and ".join(f"__fish_seen_subcommand_from {name}" for name in names) or "__fish_use_subcommand"
        below = list(subcommands(parser))
        if below and names:
            seen += f"; and not __fish_seen_subcommand_from {' '.join(below)}"
        lines += [f"complete -c holdfast -n {shlex.quote(seen)} -a {name}" for name in below]
        for action in parser._actions:
            longs = [name[2:] for name in action.option_strings if name.startswith("--")]
            if names and longs and action.help != argparse.SUPPRESS:
                about = shlex.quote((action.help or "").replace("%%", "%"))
                lines += [f"complete -c holdfast -n {shlex.quote(seen)} -l {name} -d {about}" for name in longs]
    return "\n".join(lines) + "\n"


def add(commands: Commands) -> None:
    added = add_command(commands, "completion", "print a completion script for a shell", _print)
    added.add_argument("shell", choices=SHELLS)


def _print(options: argparse.Namespace) -> int:
    # Late: what it is made from has this command in it.
    from coordinator.cli.program import parser  # noqa: PLC0415

    print(script(options.shell, parser()), end="")
    return 0
