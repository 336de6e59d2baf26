"""Counts of drawing: programs, steps, coverage cells, and rejected steps.

Defines `Tally`. The key insight: counts of shards add up, so the workers of a campaign count separately and share
nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from conformance.program.steps.op import Json
from conformance.record.program_stats import Cell


@dataclass
class Tally:
    """Counts of drawing: programs, steps, rejected steps by reason, and coverage cells."""

    programs: int = 0
    steps: int = 0
    avoided: Counter[str] = field(default_factory=Counter)
    cells: Counter[Cell] = field(default_factory=Counter)
    """Steps drawn, by family, layout class of the first tensor, and dtype of this tensor."""
    entries: Counter[str] = field(default_factory=Counter)
    """Calls of op_db's entries, by entry, variant, layout class and dtype, joined by `|`."""
    hazards: Counter[str] = field(default_factory=Counter)
    """Hazards drawn, by write, relation, step between and use of the result, joined by `|`."""
    topics: Counter[str] = field(default_factory=Counter)
    """Topics of functions drawn, by name."""
    arguments: Counter[str] = field(default_factory=Counter)
    """Changed arguments, by step, place, variant and outcome, joined by `|`. The outcome is `accepted`, or torch CPU's
    error."""
    lacking: Counter[str] = field(default_factory=Counter)
    """Entries of op_db given up for an operator declared lacking: `OPERATOR|ENTRY`."""

    def removed(self) -> dict[str, set[str]]:
        """The entries of op_db given up, by the operator declared lacking."""
        entries: dict[str, set[str]] = {}
        for operator, entry in (key.split("|") for key in self.lacking):
            entries.setdefault(operator, set()).add(entry)
        return entries

    def add(self, other: Self) -> None:
        """Add another shard's counts."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            setattr(self, name, mine | value if type(value) is dict else mine + value)

    def to_json(self) -> dict[str, Json]:
        """The counts as JSON."""
        return {**vars(self), "cells": [[*cell, count] for cell, count in self.cells.items()]}

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """The counts that `to_json` wrote."""
        cells = {(family, layout, dtype): count for family, layout, dtype, count in data["cells"]}
        result = cls()
        for name, empty in vars(cls()).items():
            setattr(result, name, type(empty)({**data, "cells": cells}[name]))
        return result
