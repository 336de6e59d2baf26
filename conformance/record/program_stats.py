"""The totals of drawing: the number of programs drawn and run, the coverage cells reached, and the exclusions.

Defines `ProgramStats`, one section of a `Run`. A table of the cells that were reached hides the others, so `families`,
`layouts` and `dtypes` may name each axis in full. No share of all cells is ever stated, since some cells cannot exist.
This module must not import torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, ClassVar

from conformance.record.measurements import UNMEASURED, Measurements, total

AXES = ("families", "layouts", "dtypes")

Cell = tuple[str, str, str]
"""A step family, and the layout class and dtype of a step's first tensor."""


@dataclass(frozen=True)
class ProgramStats:
    """The totals of one campaign, or of several joined campaigns.

    `cells` counts steps by family, layout class of the first tensor, and its dtype. `families`, `layouts` and `dtypes`
    name all existing values of an axis, reached or not; they are empty if unknown. `entries` counts calls of op_db's
    entries by entry, variant, layout class and dtype, joined by `|`. `hazards` counts hazards by write, relation, step
    between and use of the result, joined by `|`; `writes` and `relations` name all values of the first two.
    `arguments` counts calls with a changed argument by step, argument, variant and outcome, joined by `|`.
    `unsupported` counts programs that the target does not support, by reason. `avoided` counts drawn steps that did not
    run, by reason. `measured` are the target's counts for all programs, and `recorded` counts the programs whose counts
    a baseline has. `calls` counts judged calls of transformed functions. `corpus` names the saved programs that ran as
    well. `options` are the options of the command line that restrict drawing; empty if
    there are none.

    `failing` counts programs with a difference that is not declared, and `known` programs with declared differences
    only. Both are None in results without these counts. `masked` counts programs in which a declared difference hides
    later steps from the judge. `unwanted` counts findings that the run was not to shrink. `smaller` counts the smaller
    programs that shrinking judged, in `shrinking` seconds.
    """

    seeds: tuple[int, ...] = ()
    programs: int = 0
    steps: int = 0
    measured: Measurements = UNMEASURED
    recorded: int = 0
    arbitrated: int = 0
    tolerated: int = 0
    calls: int = 0
    failing: int | None = None
    known: int | None = None
    masked: int = 0
    unwanted: int = 0
    smaller: int = 0
    shrinking: float = 0.0
    options: str = ""
    corpus: tuple[str, ...] = ()
    unsupported: Mapping[str, int] = field(default_factory=dict)
    avoided: Mapping[str, int] = field(default_factory=dict)
    cells: Mapping[Cell, int] = field(default_factory=dict)
    entries: Mapping[str, int] = field(default_factory=dict)
    hazards: Mapping[str, int] = field(default_factory=dict)
    arguments: Mapping[str, int] = field(default_factory=dict)
    writes: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    WRITTEN: ClassVar = ("programs",)

    @property
    def called(self) -> int:
        """Number of op_db entries that were called."""
        return len({cell.partition("|")[0] for cell in self.entries})

    @property
    def changed(self) -> dict[tuple[str, str], int]:
        """Number of pairs of argument and variant that were drawn, by variant and outcome."""
        parts = [key.rsplit("|", 2) for key in self.arguments]
        return dict(sorted(Counter((variant, outcome) for _, variant, outcome in parts).items()))

    @property
    def compared(self) -> int:
        """Number of programs that ran, failing ones included."""
        return self.programs - sum(self.unsupported.values())


def join(drawn: Sequence[ProgramStats]) -> ProgramStats | None:
    """Join the totals of several campaigns: add counts and unite names. None for no campaigns."""

    def joined(values: list[Any]) -> Any:
        match values[0]:
            case int() | float() | None:
                return None if None in values else sum(values)
            case str():
                return "; ".join(dict.fromkeys(filter(None, values)))
            case Measurements():
                return total(values)
            case tuple():
                return tuple(dict.fromkeys(chain(*values)))
        return dict(sum(map(Counter, values), Counter()))

    if len(drawn) < 2:
        return drawn[0] if drawn else None
    return ProgramStats(
        **{item.name: joined([getattr(stats, item.name) for stats in drawn]) for item in fields(ProgramStats)}
    )
