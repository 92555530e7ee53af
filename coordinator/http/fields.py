"""What a request may contain: fields with types and bounds, written once for validation and for OpenAPI.

A value that does not fit ends the request with 400 and the field's name; a field that does not exist, with the nearest
name that does.
"""

from __future__ import annotations

import difflib
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.http.errors import bad_request
from coordinator.machine.limits import MAX_ID, MAX_NAME_CHARACTERS

ID_DIGITS = 16
NAMES_SHOWN = 12
SHOWN_CHARACTERS = 64
EXACT_FLOATS = 1 << 53
_BREAKING = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
_BREAKS = re.compile(f"[{_BREAKING}]")
"""Control characters and line breaks: a name that has one cannot be shown, logged or typed as what it is."""


def hex_id(number: int) -> str:
    """A lease's, session's or waiter's number as clients see it."""
    return f"{number:016x}"


def hex_ids(packed: bytes) -> list[str]:
    """Packed little-endian u64 as texts."""
    return [f"{number:016x}" for number in memoryview(packed).cast("Q")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One named value. `required` has no default; a default of None may also be said as null."""

    about: str = ""
    required: bool = False
    default: Any = None

    def wanted(self) -> str:
        raise NotImplementedError

    def read(self, name: str, value: Any) -> Any:
        """The value as the service takes it; ApiError when it does not fit."""
        raise NotImplementedError

    def from_text(self, name: str, text: str) -> Any:
        """The same for a value out of a URL or a header."""
        return self.read(name, text)

    def schema(self) -> dict[str, Any]:
        raise NotImplementedError

    def refuse(self, name: str, value: Any) -> Exception:
        shown = repr(value[:SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)[: SHOWN_CHARACTERS + 2]
        return bad_request(f"{name} must be {self.wanted()}, not {shown}", field=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Field):
    least: int = 1
    most: int = MAX_NAME_CHARACTERS
    pattern: str = ""
    example: str = ""
    lines: bool = False
    """May have line breaks and the like: said to people, never a name."""

    def wanted(self) -> str:
        shape = f" like {self.pattern}" if self.pattern else ""
        return f"a text of {self.least} to {self.most} characters{shape}"

    def read(self, name: str, value: Any) -> str:
        if type(value) is not str or not self.least <= len(value) <= self.most:
            raise self.refuse(name, value)
        if not self.lines and (found := _BREAKS.search(value)) is not None:
            character = f"U+{ord(found[0]):04X} at place {found.start()}"
            raise bad_request(f"{name} must not have control characters or line breaks: {character}", field=name)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise bad_request(f"{name} is not valid Unicode: it has half of a surrogate pair", field=name) from None
        if self.pattern and not re.fullmatch(self.pattern, value):
            raise self.refuse(name, value)
        return value

    def schema(self) -> dict[str, Any]:
        # Half a surrogate pair is not a character, though JSON can spell it.
        shown: dict[str, Any] = {"type": "string", "minLength": self.least, "maxLength": self.most}
        if not self.lines:
            shown |= {"pattern": self.pattern or f"^[^{_BREAKING}]*$"}
        return {**shown, "examples": [self.example]} if self.example else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Integer(Field):
    low: int = 0
    high: int = MAX_ID
    example: int | None = None

    def wanted(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def read(self, name: str, value: Any) -> int:
        if type(value) is float and abs(value) < EXACT_FLOATS and value.is_integer():
            # To JSON, 1.0 is a whole number, and languages without integers write it so.
            value = int(value)
        if type(value) is not int or not self.low <= value <= self.high:
            raise self.refuse(name, value)
        return value

    def from_text(self, name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > len(str(MAX_ID)):
            raise self.refuse(name, text)
        return self.read(name, int(text))

    def schema(self) -> dict[str, Any]:
        shown = {"type": "integer", "minimum": self.low, "maximum": self.high}
        return shown if self.example is None else {**shown, "examples": [self.example]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity(Field):
    """A lease's or session's id: 16 hexadecimal digits outside, a number inside."""

    def wanted(self) -> str:
        return f"an id of {ID_DIGITS} hexadecimal digits, as the answer that made it has it"

    def read(self, name: str, value: Any) -> int:
        if type(value) is not str or len(value) != ID_DIGITS or not _is_hex(value):
            raise self.refuse(name, value)
        number = int(value, 16)
        if not number:
            raise self.refuse(name, value)
        return number

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^(?!0{16}$)[0-9a-fA-F]{16}$", "examples": ["0000000100000000"]}


def _is_hex(text: str) -> bool:
    return text.isascii() and text.isalnum() and all(c in "0123456789abcdefABCDEF" for c in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Field):
    options: tuple[str, ...]

    def wanted(self) -> str:
        return " or ".join(self.options)

    def read(self, name: str, value: Any) -> str:
        if type(value) is not str or value not in self.options:
            raise self.refuse(name, value)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.options)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Field):
    def wanted(self) -> str:
        return "true or false"

    def read(self, name: str, value: Any) -> bool:
        if type(value) is not bool:
            raise self.refuse(name, value)
        return value

    def from_text(self, name: str, text: str) -> bool:
        return self.read(name, {"true": True, "false": False}.get(text, text))

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Many(Field):
    """A list. In a URL: values between commas."""

    item: Field
    most: int
    least: int = 1
    distinct: bool = False

    def wanted(self) -> str:
        return f"a list of {self.least} to {self.most}{' different' if self.distinct else ''} values"

    def read(self, name: str, value: Any) -> tuple[Any, ...]:
        if type(value) not in (list, tuple) or not self.least <= len(value) <= self.most:
            count = f"a list of {len(value)}" if isinstance(value, list | tuple) else value
            raise self.refuse(name, count)
        read = tuple(self.item.read(f"{name}[{place}]", item) for place, item in enumerate(value))
        if self.distinct and len(set(read)) != len(read):
            raise bad_request(f"{name} has a value twice; name each once", field=name)
        return read

    def from_text(self, name: str, text: str) -> tuple[Any, ...]:
        return self.read(name, text.split(",", self.most + 1))

    def schema(self) -> dict[str, Any]:
        shown = {"type": "array", "items": self.item.schema(), "minItems": self.least, "maxItems": self.most}
        return {**shown, "uniqueItems": True} if self.distinct else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedIds(Field):
    """A list of ids, read into packed little-endian u64 without a Python step for each."""

    most: int

    def wanted(self) -> str:
        return f"a list of 1 to {self.most} ids of {ID_DIGITS} hexadecimal digits"

    def read(self, name: str, value: Any) -> bytes:
        if type(value) not in (list, tuple) or not 0 < len(value) <= self.most:
            raise self.refuse(name, f"a list of {len(value)}" if isinstance(value, list | tuple) else value)
        try:
            # fromhex skips white space, so a text of the wrong length or with a space in it shows in the total.
            packed = array("Q", bytes.fromhex("".join(value)))
        except (TypeError, ValueError):
            packed = array("Q")
        if len(packed) != len(value) or 0 in packed or any(len(text) != ID_DIGITS for text in value):
            item = Identity()
            for place, text in enumerate(value):
                item.read(f"{name}[{place}]", text)
        packed.byteswap()
        return packed.tobytes()

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": Identity().schema(), "minItems": 1, "maxItems": self.most}


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of a body, of a query string, or of a path."""

    fields: Mapping[str, Field] = field(default_factory=dict)

    def read(self, given: Mapping[Any, Any], inside: str = "") -> dict[str, Any]:
        """Every field by name, defaults filled in. `inside`: what the names in a refusal begin with."""
        self._refuse_unknown(given, inside)
        read: dict[str, Any] = {}
        for name, known in self.fields.items():
            if name not in given:
                read[name] = self._absent(inside + name, known)
            elif given[name] is None and known.default is None and not known.required:
                read[name] = None
            else:
                read[name] = known.read(inside + name, given[name])
        return read

    def read_texts(self, given: Mapping[str, str]) -> dict[str, Any]:
        self._refuse_unknown(given)
        return {
            name: known.from_text(name, given[name]) if name in given else self._absent(name, known)
            for name, known in self.fields.items()
        }

    def _absent(self, name: str, known: Field) -> Any:
        if known.required:
            raise bad_request(f"{name} is missing; it must be {known.wanted()}", field=name)
        return known.default

    def _refuse_unknown(self, given: Mapping[Any, Any], inside: str = "") -> None:
        for name in given:
            if name in self.fields:
                continue
            text = str(name)[:SHOWN_CHARACTERS]
            near = difflib.get_close_matches(text, self.fields, n=1)
            known: Sequence[str] = list(self.fields)[:NAMES_SHOWN]
            hint = f"did you mean {near[0]}?" if near else f"known fields: {', '.join(known) or 'none'}"
            raise bad_request(f"{text!r} is not a field here; {hint}", field=inside + text)

    def schema(self) -> dict[str, Any]:
        properties = {}
        for name, known in self.fields.items():
            shown = known.schema()
            if known.default is not None:
                shown["default"] = known.default
            elif not known.required and isinstance(shown.get("type"), str):
                shown["type"] = [shown["type"], "null"]
            if known.about:
                shown["description"] = known.about
            properties[name] = shown
        required = [name for name, known in self.fields.items() if known.required]
        return {"type": "object", "properties": properties, "additionalProperties": False} | (
            {"required": required} if required else {}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Field):
    """An object inside of a body."""

    shape: Shape

    def wanted(self) -> str:
        return f"an object of {', '.join(self.shape.fields)}"

    def read(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.refuse(name, value)
        return self.shape.read(value, f"{name}.")

    def schema(self) -> dict[str, Any]:
        return self.shape.schema()
