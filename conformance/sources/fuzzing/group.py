"""The group of failing programs with one cause, as data.

Defines `Group`. This module runs no program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conformance.program.steps.op import Json
from conformance.record.result import NOT_RUN
from conformance.run.failing_program import FailingProgram

MOST_OTHERS = 8
"""Largest number of programs with one error in a group whose cause is not known yet."""


@dataclass(eq=False)
class Group:
    """One distinct finding: the smallest known program, the numbers of all programs that showed it, and their
    signatures. `shrunk`: the cause is known, and the finding failed again in a fresh worker or is flaky."""

    finding: FailingProgram
    numbers: set[int]
    found_as: set[str]
    shrunk: bool = False
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Outcome of the program on each target related to the target under test."""
    masked: set[int] = field(default_factory=set)
    """Numbers of programs with later steps that are not judged because of this difference."""
    alone: str = NOT_RUN
    """Whether the script shows its headline in a fresh process (`result.Result.alone`)."""
    others: list[FailingProgram] = field(default_factory=list)
    """Other programs with the same error, the lowest numbers first. Their causes are open until one is shrunk."""

    needed: frozenset[str] = frozenset()
    """Operators of the program that its shrunk form still has. A program with the same error that lacks one of them
    fails for another reason."""

    @property
    def title(self) -> str:
        """The cause, or the signature if the cause is unknown."""
        return self.finding.cause() or self.finding.group

    def joined(self, other: Group) -> Group:
        """One group from two groups of one cause. It keeps a shrunk program if there is one, then the one with fewer
        steps."""
        least = min(self, other, key=lambda group: (not group.shrunk, len(group.finding.program.steps)))
        return Group(
            least.finding,
            self.numbers | other.numbers,
            self.found_as | other.found_as,
            self.shrunk or other.shrunk,
            least.elsewhere,
            self.masked | other.masked,
        )

    def to_json(self, campaign: Mapping[str, Json]) -> dict[str, Json]:
        """The group as JSON, which `--replay` reads as a program: its finding, and facts about its `campaign`."""
        return {
            **self.finding.to_json(),
            **campaign,
            "shrunk": self.shrunk,
            "elsewhere": self.elsewhere,
            "alone": self.alone,
            "count": len(self.numbers),
            "numbers": sorted(self.numbers),
            "found_as": sorted(self.found_as),
            "masked": sorted(self.masked),
            "needed": sorted(self.needed),
            "others": [other.to_json() for other in self.others],
        }

    @classmethod
    def from_json(cls, data: Json) -> Group:
        """The group that `to_json` wrote. `alone` is not read: the script runs again. Raises KeyError, TypeError,
        ValueError and ProgramError."""
        finding = FailingProgram.from_json(data)
        return cls(
            finding,
            set(data["numbers"]),
            {finding.group, *data["found_as"]},
            data["shrunk"],
            data["elsewhere"],
            set(data["masked"]),
            needed=frozenset(data["needed"]),
            others=[FailingProgram.from_json(other) for other in data["others"]],
        )

    def explains(self, finding: FailingProgram) -> bool:
        """Whether the finding may have the group's cause."""
        return not finding.an_error or self.needed <= finding.operators

    def keep(self, finding: FailingProgram) -> None:
        """Keep a program whose cause may turn out to be another one."""
        if finding.an_error and not self.shrunk:
            self.others = sorted([*self.others, finding], key=lambda other: other.number)[:MOST_OTHERS]
