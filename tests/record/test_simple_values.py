"""Dataclasses as plain data: a round trip is exact; a value that does not fit its annotation is an error with its
name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import pytest

from conformance.record.simple_values import dump, load


class Word(StrEnum):
    GOOD = "good"


@dataclass(frozen=True)
class Inner:
    name: str
    rows: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True)
class Outer:
    word: Word
    count: int = 1
    seconds: float = 0.0
    first: int | None = None
    inner: tuple[Inner, ...] = ()
    cells: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    WRITTEN: ClassVar = ("count",)


FULL = Outer(Word.GOOD, 2, 1.5, 0, (Inner("a", (("b", True),)),), {("x", "y", "z"): 1, ("x", "y", "w"): 2}, ["n"])


@dataclass(frozen=True)
class Larger(Inner):
    size: int = 0
    RECORD: ClassVar = Inner


class TestRoundTrip:
    @pytest.mark.parametrize("value", [FULL, Outer(Word.GOOD)])
    def test_through_json(self, value: Outer) -> None:
        """The round trip covers tuples, enums, optional numbers, and mappings with tuple keys."""
        assert load(Outer, json.loads(json.dumps(dump(value)))) == value

    def test_a_class_may_be_written_as_its_base(self) -> None:
        assert dump({"one": Larger("a", (("b", True),), 3)}) == {"one": dump(Inner("a", (("b", True),)))}

    def test_defaults_are_left_out(self) -> None:
        """Defaults are omitted, unless the class requests them. A mapping with tuple keys becomes nested sorted
        mappings."""
        assert dump(Outer(Word.GOOD)) == {"word": "good", "count": 1}
        assert dump(FULL)["cells"] == {"x": {"y": {"w": 2, "z": 1}}}


class TestDamage:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"count": "2"}, "'count' is no int"), ({"count": True}, "'count' is no int"),
            ({"first": 1.5}, "'first' is no int"), ({"word": "bad"}, "bad"), ({"notes": "n"}, "'notes' is no list"),
            ({"inner": [{"name": 3}]}, "'name' is no str"), ({"inner": [{}]}, "name"),
            ({"cells": {"x": {"y": 3}}}, "'cells' is no dict"), ({"unheard of": 1}, "unheard of"),
            ({"inner": [{"name": "a", "rows": [["b"]]}]}, "argument"),
        ],
    )  # fmt: skip
    def test_is_refused(self, change: dict[str, Any], message: str) -> None:
        """The error names the field or the value."""
        with pytest.raises((KeyError, TypeError, ValueError), match=message):
            load(Outer, {"word": "good", **change})
