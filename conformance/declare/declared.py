"""The common part of the entries of an expectations file: reading, checking of names, and writing.

Defines `Entry`, `read`, `quoted` and `twice`. A misspelt key would silently declare too much. So every key must be a
field of the entry, and a mistake is one sentence with the file, the line and the nearest key. Nothing here runs an op.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_type_hints

from conformance.record import versions
from conformance.record.errors import ReportError
from conformance.record.names import nearest
from conformance.record.result import UNEXPLAINED, Result
from conformance.record.sentences import headline

ALL = ("*",)
FORMS = {
    str: "a string",
    int: "a whole number, 1 or more",
    int | None: "a whole number, 0 or more",
    tuple[str, ...]: "a name or a non-empty list of names",
}
"""The required form of a field's value, by the field's type."""


class Entry:
    """An entry of the file, a dataclass. `KIND` is the name of its tables. `KEYS` are the fields that the file holds,
    in the file's order, and `NEEDED` the keys that must not be blank."""

    KIND: ClassVar[str]
    KEYS: ClassVar[tuple[str, ...]]
    NEEDED: ClassVar[tuple[str, ...]]
    torch: str
    """The versions of torch that the entry applies to, a PEP 440 specifier; empty for all."""
    reason: str
    issue: str
    file: str
    line: int
    """The file and line of the entry; empty and 0 if it was not read from a file."""

    def passes(self, what: str) -> str:
        """Return the sentence on an entry whose case or finding does not fail: its place, and how to remove it."""
        return (
            f"{self.file}, line {self.line} declares it, and {what}: delete or narrow that [[{self.KIND}]] entry, or "
            f"let the same command with --update-expectations do so (its reason: {self.why})"
        )

    @property
    def holds(self) -> bool:
        """Whether the entry applies to the installed torch. If not, it stays in the file and declares nothing."""
        return versions.holds(self.torch)

    @property
    def why(self) -> str:
        """The reason, followed by the issue if there is one."""
        return f"{self.reason} {self.issue}".strip()

    def toml(self) -> str:
        """Return the entry as TOML, without fields that have their default value."""
        usual = {item.name: item.default for item in fields(self)}  # type: ignore[arg-type]  # subclasses are
        given = {key: value for key in self.KEYS if (value := getattr(self, key)) != usual[key]}
        return "\n".join([f"[[{self.KIND}]]", *(f"{key} = {_toml(value)}" for key, value in given.items())]) + "\n"


E = TypeVar("E", bound=Entry)


def _toml(value: str | int | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(quoted, value))}]"
    return quoted(value) if isinstance(value, str) else str(value)


def quoted(text: str) -> str:
    """Return a TOML basic string. JSON's escapes are TOML's, but DEL must be escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def reasons(entries: Iterable[Entry]) -> str:
    """Return the reasons of these entries, each once."""
    return "; ".join(dict.fromkeys(entry.why for entry in entries))


def unexplained(result: Result) -> str:
    """Return the reason that a command writes into a new entry for this result."""
    return f"{UNEXPLAINED}{headline(result) if result.failures else result.id}"[:200]


def refuse(problems: Sequence[str]) -> None:
    """Raise ReportError with the first of these sentences, if there is one."""
    if problems:
        more = f" And {len(problems) - 1} more such entries." if problems[1:] else ""
        raise ReportError(problems[0] + more)


def twice(keyed: Iterable[tuple[Entry, tuple[str, ...]]], path: Path) -> list[str]:
    """Return one sentence for each entry whose key occurred in an earlier entry."""
    seen, problems = set(), []
    for entry, key in keyed:
        if key in seen:
            problems.append(f"{path}, line {entry.line}: {' '.join(filter(None, key))} is declared twice.")
        seen.add(key)
    return problems


def read(path: Path | str, kinds: Sequence[type[Entry]]) -> list[list[Any]]:
    """Read the entries of a file, of each kind; none if there is no file. Raises ReportError with the file and the
    line."""
    path = Path(path)
    data, lines = parsed(path, {kind.KIND: f"[[{kind.KIND}]]" for kind in kinds})
    return [_entries(path, lines, data.get(kind.KIND, []), kind) for kind in kinds]


def parsed(path: Path, tables: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Parse a TOML file that may hold only these tables, given by name and by their form in the file. Returns the data
    and the lines, both empty if there is no file. Raises ReportError with the file and the line."""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except FileNotFoundError:
        return {}, []
    except tomllib.TOMLDecodeError as error:
        raise ReportError(f"{path} is not valid TOML: {error}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path} cannot be read ({error}).") from None
    lines = text.splitlines()
    for name in data.keys() - tables.keys():
        only = " and ".join(tables.values())
        line = line_of(lines, rf"\[+\s*{re.escape(name)}\b|{re.escape(name)}\s*=", 0)
        raise ReportError(f"{path}, line {line}: only {only} entries belong in this file, not {name!r}"
                          f"{nearest(name, tables)}")  # fmt: skip
    return data, lines


def known_keys(path: Path, lines: list[str], head: int, table: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Check that every key of the table, which begins on line `head`, is one of these. Raises ReportError."""
    for key in table.keys() - set(keys):
        line = line_of(lines, rf"[\"']?{re.escape(key)}[\"']?\s*=", head)
        hint = nearest(key, keys) or f"; use {', '.join(sorted(keys))}."
        raise ReportError(f"{path}, line {line}: unknown key {key!r}{hint}")


def _entries(path: Path, lines: list[str], tables: Any, kind: type[E]) -> list[E]:
    heads = [number for number, line in enumerate(lines, 1) if re.match(rf"\s*\[\[\s*{kind.KIND}\s*\]\]", line)]
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ReportError(f"{path}: {kind.KIND!r} must be written as [[{kind.KIND}]] entries.")
    heads = heads if len(heads) == len(tables) else [0] * len(tables)
    return [_entry(path, lines, head, table, kind) for table, head in zip(tables, heads, strict=True)]


def _entry(path: Path, lines: list[str], head: int, table: dict[str, Any], kind: type[E]) -> E:
    known_keys(path, lines, head, table, kind.KEYS)
    for name in kind.NEEDED:
        if not isinstance(table.get(name), str) or not table[name].strip():
            raise ReportError(f"{path}, line {head}: an entry needs a non-empty {name!r}.")
    hints, values = get_type_hints(kind), {}
    for name, value in table.items():
        form = hints[name]
        if form == tuple[str, ...]:
            value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else ()
            fits = bool(value) and all(isinstance(item, str) for item in value)
        else:
            fits = isinstance(value, str) if form is str else type(value) is int and value >= (form is int)
        if not fits:
            raise ReportError(f"{path}, line {head}: {name!r} must be {FORMS[form]}.")
        values[name] = value
    try:
        versions.specifier(values.get("torch", ">=0"))
    except ValueError as error:
        raise ReportError(f"{path}, line {head}: 'torch': {error}.") from None
    return kind(**values, file=str(path), line=head)  # type: ignore[call-arg]  # every subclass is a dataclass


def line_of(lines: list[str], pattern: str, after: int) -> int:
    """Return the number of the first line after `after` that starts with the pattern, or `after` itself."""
    found = (number for number, line in enumerate(lines, 1) if number > after and re.match(rf"\s*(?:{pattern})", line))
    return next(found, after)
