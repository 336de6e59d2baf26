"""Operators without a kernel: the outcome of one trial, and the rows of a run's table.

Each operator declared lacking is counted once, with the parts of the run that it excludes. Its row also states how
often real programs call it, which shows how urgent it is. This module must not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

DECLARED = "lacking"
"""The variant of a result for a part of the target that is not as its profile says: declared lacking and there, or the
reverse. It is no op_db case."""


class AttemptOutcome(StrEnum):
    """The outcome of one trial of an OpInfo or a step."""

    WORKS = "works"
    LACKING = "lacking"
    """It raised a not-implemented error for an operator without a kernel of the device in the dispatcher."""
    FAILS = "fails"
    """It raised another error, or a not-implemented error for an operator that has a kernel: a finding."""
    DIED = "died"
    """It ended or hung its process: a finding."""
    UNTRIED = "not tried"


@dataclass(frozen=True)
class Attempt:
    """One trial of the OpInfo or step `name`: the outcome, the missing operator, the error's text, and the time."""

    name: str
    outcome: AttemptOutcome
    operator: str = ""
    said: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class MissingOperator:
    """One operator without a kernel, and the parts of a run that it excludes. These are the op_db cases, the steps, the
    `entries` of op_db by name, and the `families` of the steps. A campaign counts the entries that it would have drawn.
    `programs` of the `measured` real programs call the operator, and `share` is its share of all their calls."""

    operator: str
    cases: int = 0
    steps: tuple[str, ...] = ()
    programs: int = 0
    measured: int = 0
    share: float = 0.0
    entries: tuple[str, ...] = ()
    families: tuple[str, ...] = ()

    @property
    def used(self) -> str:
        """Usage of the operator by real programs, in words."""
        if not self.programs:
            return f"none of {self.measured} programs"
        return f"{self.programs} of {self.measured} programs, {self.share:.1%} of calls"


def joined(parts: list[tuple[MissingOperator, ...]]) -> tuple[MissingOperator, ...]:
    """Join the rows of several shards: add the cases, and unite the names."""
    rows: dict[str, MissingOperator] = {}
    for row in (row for part in parts for row in part):
        other = rows.get(row.operator, MissingOperator(row.operator))
        rows[row.operator] = replace(
            row,
            cases=row.cases + other.cases,
            steps=_united(row.steps, other.steps),
            entries=_united(row.entries, other.entries),
            families=_united(row.families, other.families),
        )
    return ranked(rows.values())


def ranked(rows: Iterable[MissingOperator]) -> tuple[MissingOperator, ...]:
    """Sort rows by urgency: by the programs that use the operator, by its share of calls, by the number of things that
    it excludes."""

    def key(row: MissingOperator) -> tuple[float, float, int, str]:
        return -row.programs, -row.share, -row.cases - len(row.entries) - len(row.steps), row.operator

    return tuple(sorted(rows, key=key))


def removed(rows: Sequence[MissingOperator]) -> str:
    """Return everything that these rows remove from a run, in words: `3 op_db entries, 7 op_db cases, 2 steps of 1
    family`."""
    entries = {name for row in rows for name in row.entries}
    cases, steps = sum(row.cases for row in rows), {name for row in rows for name in row.steps}
    families = {name for row in rows for name in row.families}
    parts = [f"{len(entries):,} op_db {'entry' if len(entries) == 1 else 'entries'}" if entries else ""]
    parts += [f"{cases:,} op_db case{'s' * (cases != 1)}" if cases else ""]
    of = f" of {len(families)} famil{'y' if len(families) == 1 else 'ies'}" if families else ""
    parts += [f"{len(steps):,} step{'s' * (len(steps) != 1)}{of}" if steps else ""]
    return ", ".join(filter(None, parts)) or "nothing"


def _united(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*first, *second}))
