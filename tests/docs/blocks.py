"""What the documents tell a reader to type: fenced blocks, and the commands in them."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from coordinator.cli import program

REPOSITORY = Path(__file__).resolve().parents[2]
ANY = "COMMAND"
"""Stands for each of them."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PROGRAMS = (
    r"holdfast|make|python|pip|pip-audit|curl|openssl|docker|docker-compose|docker/[\w-]+|systemctl|kubectl"
    r"|\. \.venv|\.venv/bin/\w+|eval|sha256sum|cat|mv|date"
)
_INLINE = re.compile(rf"(?<!`)`((?:{_PROGRAMS})[ /][^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    document: str
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """`script` is what bash is given. `printed` is what the document shows below it, if it shows anything."""

    script: str
    printed: str = ""


def documents() -> list[str]:
    return ["README.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md"))]


def text_of(document: str) -> str:
    return (REPOSITORY / document).read_text()


def blocks(document: str) -> list[Block]:
    return [Block(document, language, text) for language, text in _FENCE.findall(text_of(document))]


def commands(document: str) -> list[Command]:
    """A block of `sh` is one script; in one of `console` each line after a prompt is one, the rest is its output."""
    found: list[Command] = []
    for block in blocks(document):
        if block.language == "sh":
            found.append(Command(block.text))
        elif block.language == "console":
            for typed in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                script, _, printed = typed.partition("\n")
                found.append(Command(re.sub(r"\s+# .*$", "", script), printed))
    return found


def inline(document: str) -> list[str]:
    """Commands in running text."""
    return _INLINE.findall(_FENCE.sub("", text_of(document)))


# --- is it a command? -------------------------------------------------------------------------------------------------


def mistake(command: str) -> str | None:
    """Why nobody can type this; None if it can be. Only what can be told without running it."""
    words = shlex.split(command.replace("…", ""), comments=True)
    if words[0] == "make":
        makefile = (REPOSITORY / "Makefile").read_text()
        known = re.search(rf"^{re.escape(words[1])}:", makefile, re.MULTILINE)
        return None if known else f"there is no target {words[1]}"
    if words[:2] == ["python", "-m"]:
        return _mistake_in_module(words[2], words[3:])
    if words[0] == "holdfast":
        return _mistake_in_words(words[1:])
    return None


def _mistake_in_module(module: str, words: list[str]) -> str | None:
    if module in sys.stdlib_module_names:
        return None
    path = REPOSITORY / f"{module.replace('.', '/')}.py"
    path = path if path.exists() else path.with_suffix("") / "__main__.py"
    if not path.exists():
        return f"there is no module {module}"
    known = "".join(each.read_text() for each in path.parent.glob("*.py"))
    missing = [word for word in words if word.startswith("--") and f'"{word}"' not in known]
    return f"{module} does not know {missing}" if missing else None


def _mistake_in_words(words: list[str]) -> str | None:
    parser: argparse.ArgumentParser = program.parser()
    while words and not words[0].startswith("-") and (choices := subcommands(parser)):
        names = words.pop(0).split("|")
        if names == [ANY]:
            names = [next(iter(choices))]
        if set(names) - set(choices):
            return f"there is no {' or '.join(names)} among {', '.join(choices)}"
        parser = choices[names[0]]
    known = {option for action in parser._actions for option in action.option_strings}
    for word in words:
        if word == "--":
            break
        if word.startswith("-") and word.partition("=")[0] not in known:
            return f"{parser.prog} does not know {word}"
    return None


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(next(found, {}))
