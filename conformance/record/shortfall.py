"""What a run judged less than planned because a limit was reached, as data and as one sentence.

    Not judged: 165 of 200 programs (--minutes), 28 of 40 inputs of values (budget=30).

A green run on a busy machine may have compared less than the same command on an idle one. Each place where a limit ends
work early adds a `Shortfall` to its run, and `--strict` makes such a run fail. What the user or a profile leaves out
(`--every 10`, an excluded check, an unsupported operator) is declared, so it is no shortfall.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MINUTES = "--minutes"
"""The usual limit of a shortfall."""

PROGRAMS, CALLS, CASES, FINDINGS, SCRIPTS, RERUNS, ON_LAYER = (
    "programs", "recorded calls", "cases of {}", "findings in their smallest form", "scripts of findings",
    "failures that --rerun-failures repeats", "findings on {}",
)  # fmt: skip

MOST_NAMED = 6
"""Number of shortfalls that the sentence names; `conformance.check` can have one for each of 30 checks."""


@dataclass(frozen=True)
class Shortfall:
    """`missing` of `planned` things were not judged, since `limit` was reached. `planned` is 0 if nobody planned a
    number, as in `--minutes 10` without `--programs`, and nothing at all was judged."""

    what: str
    missing: int = 0
    planned: int = 0
    limit: str = MINUTES

    def __str__(self) -> str:
        number = f"{self.missing:,} of {self.planned:,}" if self.planned else "all"
        return f"{number} {self.what} ({self.limit})"


def add_up(rows: Iterable[Shortfall]) -> list[Shortfall]:
    """Return the shortfalls of several runs, with the numbers of the same thing and limit added."""
    known: dict[tuple[str, str], Shortfall] = {}
    for row in rows:
        before = known.get((row.what, row.limit), Shortfall(row.what))
        known[row.what, row.limit] = Shortfall(
            row.what, before.missing + row.missing, before.planned + row.planned, row.limit
        )
    return [*known.values()]


def describe(rows: Sequence[Shortfall], strict: bool = False) -> str:
    """Return the sentence about all shortfalls; "" without one. `strict` says that they fail the run."""
    if not rows:
        return ""
    named, more = ", ".join(map(str, rows[:MOST_NAMED])), len(rows) - MOST_NAMED
    text = f"Not judged: {named}" + (f", and {more} more" if more > 0 else "")
    return f"{text}; --strict makes this a failure." if strict else f"{text}."
