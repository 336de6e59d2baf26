"""The result of probing a device, as one table: `Probe`, its rows and their answers.

The process that collects results shows and stores this table, and must import no torch for that. `engine/probe.py`
fills it, in a worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from conformance.declare.features import FEATURES

UNENDED = "the probe did not end"
"""First words of `Probe.unmade` if the time for the probe was over."""

UNTRIED_DTYPES = frozenset({"float4_e2m1fn_x2"})
"""Dtypes that the probe does not try and therefore never finds, since torch converts nothing to them."""


class TrialAnswer(StrEnum):
    """The answer of a trial."""

    YES = "yes"
    NO = "no"
    WRONG = "wrong"
    DIED = "died"


@dataclass(frozen=True)
class ProbedFeature:
    """One trial: its name, the answer, and a short detail."""

    name: str
    answer: TrialAnswer
    detail: str = ""


@dataclass(frozen=True)
class Probe:
    """The results of all trials."""

    rows: tuple[ProbedFeature, ...] = ()
    dtypes: tuple[str, ...] = ()
    """Names of the dtypes whose values survive a round trip to the device."""
    declared: frozenset[str] = frozenset()
    """Features that the target's class declares lacking."""
    seconds: float = 0.0
    """Duration of the trials in seconds, without the loading of the target."""
    unmade: str = ""
    """The reason if a target with a profile was not probed."""

    @property
    def late(self) -> bool:
        """Whether the probe ran out of time. A probe that the target makes needless is not late."""
        return self.unmade.startswith(UNENDED)

    @property
    def lacks(self) -> frozenset[str]:
        """The features that are missing or wrong."""
        return frozenset(row.name for row in self.rows if row.name in FEATURES and row.answer is not TrialAnswer.YES)

    def described(self) -> dict[str, str]:
        """Return the table in the form that a result stores among its environment."""
        if self.unmade:
            return {"device: probe": f"not made: {self.unmade}"}
        rows = {f"device: {row.name}": f"{row.answer}{': ' if row.detail else ''}{row.detail}" for row in self.rows}
        return rows | {"device: dtypes": ", ".join(self.dtypes)}

    def consequences(self, declared: Collection[str] | None = None) -> Iterator[str]:
        """Yield the consequences of the missing features, a sentence each. `declared` are the features that a profile
        declares lacking; without a profile, the probe's answers count."""
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
