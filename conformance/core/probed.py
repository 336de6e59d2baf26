"""What a probe showed of a device, as one table: `Probe`, its rows and their answers.

The key insight: the process that collects results shows the table and keeps it, and must import no torch for that; the
trials that fill it are `core/probe.py`, in a worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from conformance.core.features import FEATURES


class Answer(StrEnum):
    """What a trial showed."""

    YES = "yes"
    NO = "no"
    WRONG = "wrong"
    DIED = "died"


@dataclass(frozen=True)
class Row:
    """One trial: its name, the answer, and what was seen, in a few words."""

    name: str
    answer: Answer
    detail: str = ""


@dataclass(frozen=True)
class Probe:
    """What all trials showed."""

    rows: tuple[Row, ...] = ()
    dtypes: tuple[str, ...] = ()
    """Names of the dtypes whose values survive the way to the device and back."""
    declared: frozenset[str] = frozenset()
    """Features that the target's class says itself that it lacks."""
    seconds: float = 0.0
    """How long the trials took, with the target loaded."""
    unmade: str = ""
    """Why nothing was tried of a target that has a profile, if so."""

    @property
    def lacks(self) -> frozenset[str]:
        """The features that are not there, or not right."""
        return frozenset(row.name for row in self.rows if row.name in FEATURES and row.answer is not Answer.YES)

    def described(self) -> dict[str, str]:
        """The table as a result keeps it, among what is said of the environment."""
        if self.unmade:
            return {"device: probe": f"not made: {self.unmade}"}
        rows = {f"device: {row.name}": f"{row.answer}{': ' if row.detail else ''}{row.detail}" for row in self.rows}
        return rows | {"device: dtypes": ", ".join(self.dtypes)}

    def consequences(self, declared: Collection[str] | None = None) -> Iterator[str]:
        """What follows from what is lacking, a sentence each: from what a profile says of it, where there is one."""
        lacks = self.lacks if declared is None else {*declared} | self.declared
        ways = {"set_": not {"set_", "storages"} & lacks, "as_strided": not {"as_strided", "data"} & lacks}
        way = next((name for name, there in ways.items() if there), "chains of ordinary views, or copies")
        yield f"inputs are made by {way}"
        oracles = sorted({oracle for name in lacks for oracle in FEATURES[name].oracles})
        if "random" in lacks:
            oracles.append("values of operators that draw random numbers")
        if oracles:
            yield f"not judged: {', '.join(oracles)}"
        steps = sorted({step for name in lacks for step in FEATURES[name].steps})
        if steps:
            yield f"not drawn: {', '.join(steps)}"
