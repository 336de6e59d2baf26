"""Counts that a target offers beside its answers, such as kernels and CPU fallbacks.

A target offers `Measure`s and counts them. The executor collects `Measurements` around each run, a result stores their
sums, and reports and baselines treat every measure alike, by the fields of its `Measure`. This module must not import
torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Rise(StrEnum):
    """The meaning of a higher count than in the baseline, for the same samples."""

    REGRESSION = "regression"
    UNTIMED = "untimed"
    """The two runs did different work, so their times are not compared."""
    NEUTRAL = ""


@dataclass(frozen=True)
class Measure:
    """A count that a target offers. `unit` are the words behind a number: `kernels`. Measures of one `group`, the noun
    of the counted things, add up to a total that a reader compares them with."""

    name: str
    unit: str
    rise: Rise = Rise.NEUTRAL
    group: str = ""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Counts by the name of their measure.

    `most` holds the bounds of counts that torch CPU bounds. `parts` divides counts by operator. A measure without a
    count was not measured, which is not the same as zero."""

    counts: Mapping[str, int] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __add__(self, other: Measurements) -> Measurements:
        """The sums over both runs."""
        return total((self, other))

    def get(self, name: str) -> int | None:
        """The count of this measure; None if it was not measured."""
        return self.counts.get(name)


UNMEASURED = Measurements()
"""No measurement."""


def total(every: Iterable[Measurements]) -> Measurements:
    """The sums over runs."""
    counts: dict[str, int] = {}
    most: dict[str, int] = {}
    parts: dict[str, dict[str, int]] = {}
    for measured in every:
        of_parts = ((parts.setdefault(name, {}), part) for name, part in measured.parts.items())
        for sums, more in ((counts, measured.counts), (most, measured.most), *of_parts):
            for name, count in more.items():
                sums[name] = sums.get(name, 0) + count
    return Measurements(counts, most, parts)


def growth(before: Mapping[str, Any], after: Mapping[str, Any]) -> Measurements:
    """The measurements between two readings of a target's counters. A counter is a number, or numbers by operator."""
    parts = {
        name: dict(sorted((Counter(now) - Counter(before.get(name, {}))).items()))
        for name, now in after.items()
        if isinstance(now, Mapping)
    }
    totals = {name: now - before.get(name, 0) for name, now in after.items() if name not in parts}
    grown = {name: part for name, part in parts.items() if part}
    return Measurements(totals | {name: sum(part.values()) for name, part in parts.items()}, {}, grown)


KERNELS = Measure("kernels", "kernels", Rise.REGRESSION)
FALLBACK = Measure("fallback", "CPU fallbacks", Rise.REGRESSION, "calls")
CALLS = (
    Measure("native", "native", group="calls"),
    Measure("decomposed", "decomposed", group="calls"),
    FALLBACK,
    Measure("host", "on the CPU by design", group="calls"),
)
RECOMPILED = Measure("recompiled", "further calls that compiled a graph again")
"""In drawn programs: a function's calls after the first, if they compiled a graph."""
SCHEDULED = Measure("scheduled", "graphs scheduled anew", Rise.UNTIMED)
COMPILED, PARTLY, NOT_COMPILED = "compiled", "partly compiled", "not compiled"
EXTENTS = (
    Measure(COMPILED, COMPILED, group="samples"),
    Measure(PARTLY, PARTLY, group="samples"),
    Measure(NOT_COMPILED, "not compiled and so not compared", group="samples"),
)
"""The measures of a target that transforms functions: how much of a sample reached the compiler."""
