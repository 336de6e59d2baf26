"""What a device has no kernel for: the answer of one trial, and the row of the table that a run shows.

The key insight: an operator that is declared lacking is counted once, with what it keeps from being compared, and with
how often real programs call it, which says how soon it will be missed. This module must not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DECLARED = "lacking"
"""The variant of an op_db run's result that is no case, but what the profile declares lacking in error."""


class Outcome(StrEnum):
    """What became of one trial of an OpInfo or a step."""

    WORKS = "works"
    LACKING = "lacking"
    """It raised a not-implemented error for an operator of which the dispatcher has no kernel of the device."""
    FAILS = "fails"
    """It raised anything else, or for an operator that has a kernel: a finding."""
    DIED = "died"
    """It ended or hung its process: a finding."""
    UNTRIED = "not tried"


@dataclass(frozen=True)
class Trial:
    """One trial: of the OpInfo or the step of this name, the operator that is lacking, and what was said."""

    name: str
    outcome: Outcome
    operator: str = ""
    said: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Lacking:
    """One operator without a kernel: the op_db cases and the steps that a run leaves out for it, and of the `measured`
    real programs those that call it, with its share of all their calls."""

    operator: str
    cases: int = 0
    steps: tuple[str, ...] = ()
    programs: int = 0
    measured: int = 0
    share: float = 0.0

    @property
    def used(self) -> str:
        """How often real programs use it, in words."""
        if not self.programs:
            return f"none of {self.measured} programs"
        return f"{self.programs} of {self.measured} programs, {self.share:.1%} of calls"


def joined(parts: list[tuple[Lacking, ...]]) -> tuple[Lacking, ...]:
    """The rows of several shards: cases add up."""
    rows: dict[str, Lacking] = {}
    for row in (row for part in parts for row in part):
        cases = rows[row.operator].cases if row.operator in rows else 0
        rows[row.operator] = Lacking(**{**vars(row), "cases": row.cases + cases})
    return ranked(rows.values())


def ranked(rows: object) -> tuple[Lacking, ...]:
    """Most missed first: by the programs that use it, by its calls, by what it leaves out."""
    key = lambda row: (-row.programs, -row.share, -row.cases - len(row.steps), row.operator)  # noqa: E731
    return tuple(sorted(rows, key=key))  # type: ignore[call-overload]
