"""`holdfast completion bash | zsh | fish`: made from the same parsers that read the arguments."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from coordinator.cli.arguments import Commands, add_command, add_json, subcommands
from coordinator.cli.output import Shown

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
    case "$path ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
        *) case "$path" in
{cases}
            *) words="" ;;
        esac ;;
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
    case "$path $words[CURRENT-1]" in
{values}
    esac
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
    chosen = [(f'        "{path} {option}")', words) for path, each in known for option, words in _values(each)]
    if shell == "bash":
        cases = "\n".join(f'            "{path}") words="{" ".join(_words(parser))}" ;;' for path, parser in known)
        values = "\n".join(f'{case} words="{words}" ;;' for case, words in chosen)
        return _BASH.format(paths=names, cases=cases, values=values)
    cases = "\n".join(f'        "{path}") compadd -- {" ".join(_words(parser))} ;;' for path, parser in known)
    values = "\n".join(f"{case} compadd -- {words}; return ;;" for case, words in chosen)
    return _ZSH.format(paths=names, cases=cases, values=values)


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


def _values(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Every option that takes one of a few words, with those."""
    for action in parser._actions:
        if action.choices and action.help != argparse.SUPPRESS:
            for option in action.option_strings:
                yield option, " ".join(str(each) for each in action.choices)


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
                # -r: a value follows, and -f above keeps files from being offered for one of a few words.
                takes = "" if action.nargs == 0 else " -r"
                if action.choices:
                    takes = f" -x -a {shlex.quote(' '.join(str(each) for each in action.choices))}"
                lines += [f"complete -c holdfast -n {shlex.quote(seen)} -l {name}{takes} -d {about}" for name in longs]
    return "\n".join(lines) + "\n"


def add(commands: Commands) -> None:
    added = add_command(commands, "completion", "print a completion script for a shell", _print)
    added.add_argument("shell", choices=SHELLS)
    add_json(added)


def _print(options: argparse.Namespace) -> int:
    # Late: what it is made from has this command in it.
    from coordinator.cli.program import parser  # noqa: PLC0415

    made = script(options.shell, parser())
    return Shown({"shell": options.shell, "script": made}, made.rstrip("\n")).print(options)
