"""The tables of an expectations file, each with its line, before anything is made of them.

Defines `Table`, `read` and `quoted`. The key insight: a misspelt key would silently declare more than was meant, so
every key must be known, and a mistake is one sentence with the file, the line and the nearest key.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.core.errors import ReportError
from conformance.core.names import nearest


@dataclass(frozen=True)
class Table:
    """One entry: its values, the file, and the line on which it begins (0 where that is not known)."""

    values: Mapping[str, Any]
    file: Path
    line: int

    @property
    def where(self) -> str:
        """The file and line, as a sentence begins."""
        return f"{self.file}, line {self.line}"

    def text(self, name: str, usual: str = "") -> str:
        """A string, `usual` where there is none. Raises ReportError."""
        value = self.values.get(name, usual)
        if not isinstance(value, str):
            raise ReportError(f"{self.where}: {name!r} must be a string.")
        return value

    def needed(self, name: str) -> str:
        """A string that must not be missing or blank. Raises ReportError."""
        value = self.values.get(name)
        if not isinstance(value, str) or not value.strip():
            raise ReportError(f"{self.where}: an entry needs a non-empty {name!r}.")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A name or a list of names, "*" where there is none. Raises ReportError."""
        value = self.values.get(name, ["*"])
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise ReportError(f"{self.where}: {name!r} must be a name or a non-empty list of names.")
        return tuple(value)

    def number(self, name: str, least: int = 0) -> int:
        """A whole number, 0 where there is none. Raises ReportError where one is given that is smaller than `least`."""
        value = self.values.get(name, 0)
        if type(value) is not int or (name in self.values and value < least):
            raise ReportError(f"{self.where}: {name!r} must be a whole number, {least} or more.")
        return value


def read(path: Path | str, kinds: Mapping[str, tuple[str, ...]]) -> dict[str, list[Table]]:
    """The tables of a file by the names in `kinds`, whose values give the keys that each may have; none when there is
    no file. Raises ReportError, which names the file and the line."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {kind: [] for kind in kinds}
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path} cannot be read ({error}).") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ReportError(f"{path} is not valid TOML: {error}.") from None
    lines = text.splitlines()
    for name in data.keys() - kinds.keys():
        only = " and ".join(f"[[{kind}]]" for kind in kinds)
        line = _line(lines, rf"\[+\s*{re.escape(name)}\b|{re.escape(name)}\s*=", 0)
        raise ReportError(f"{path}, line {line}: only {only} entries belong in this file, not {name!r}"
                          f"{nearest(name, kinds)}")  # fmt: skip
    return {kind: _tables(path, lines, kind, data.get(kind, []), keys) for kind, keys in kinds.items()}


def _tables(path: Path, lines: list[str], kind: str, entries: Any, keys: tuple[str, ...]) -> list[Table]:
    heads = [number for number, line in enumerate(lines, 1) if re.match(rf"\s*\[\[\s*{kind}\s*\]\]", line)]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ReportError(f"{path}: {kind!r} must be written as [[{kind}]] entries.")
    heads = heads if len(heads) == len(entries) else [0] * len(entries)
    for entry, head in zip(entries, heads, strict=True):
        for key in entry.keys() - set(keys):
            line = _line(lines, rf"[\"']?{re.escape(key)}[\"']?\s*=", head)
            hint = nearest(key, keys) or f"; use {', '.join(sorted(keys))}."
            raise ReportError(f"{path}, line {line}: unknown key {key!r}{hint}")
    return [Table(entry, path, head) for entry, head in zip(entries, heads, strict=True)]


def _line(lines: list[str], pattern: str, after: int) -> int:
    """The number of the first line behind `after` that begins so, or that number itself."""
    found = (number for number, line in enumerate(lines, 1) if number > after and re.match(rf"\s*(?:{pattern})", line))
    return next(found, after)


def quoted(text: str) -> str:
    """A TOML basic string: JSON's escapes are TOML's, but DEL must be escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
