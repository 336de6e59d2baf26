"""The totals of drawing: how many programs a campaign drew and ran, what they reached, and what was left out.

Defines `Drawn`, one section of a `Run`. The key insight: a table of the cells that were reached hides those that were
not, so the axes may be named in full; and no share of all cells is ever stated, since some of them cannot exist. This
module must not import torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, ClassVar

AXES = ("families", "layouts", "dtypes")

Cell = tuple[str, str, str]


@dataclass(frozen=True)
class Drawn:
    """What one campaign drew, or several joined.

    `cells` counts steps by family, layout class of the first tensor, and its dtype; `families`, `layouts` and `dtypes`
    name all that exist, reached or not, and are empty where they are not known. `entries` counts calls of op_db's
    entries by entry, variant, layout class and dtype, joined by `|`. `unsupported` counts programs that the
    target leaves out, by reason, `avoided` steps that were drawn and not run. `kernels_allowed` is 0 when the target
    does not count kernels. `corpus` names the saved programs that ran as well. `options` are the words of the command
    line that narrow the drawing; empty where programs were drawn as usual.

    `failing` counts programs with a difference that is not declared, `known` those with declared ones only, and
    `masked` programs with steps that could not be judged behind a declared difference. `failing` and `known` are None
    in results that do not say."""

    seeds: tuple[int, ...] = ()
    programs: int = 0
    steps: int = 0
    kernels: int = 0
    kernels_allowed: int = 0
    kernels_compared: int = 0
    arbitrated: int = 0
    failing: int | None = None
    known: int | None = None
    masked: int = 0
    options: str = ""
    corpus: tuple[str, ...] = ()
    unsupported: Mapping[str, int] = field(default_factory=dict)
    avoided: Mapping[str, int] = field(default_factory=dict)
    cells: Mapping[Cell, int] = field(default_factory=dict)
    entries: Mapping[str, int] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    WRITTEN: ClassVar = ("programs",)

    @property
    def called(self) -> int:
        """How many of op_db's entries were called."""
        return len({cell.partition("|")[0] for cell in self.entries})

    @property
    def compared(self) -> int:
        """Programs that were run, the failing ones included."""
        return self.programs - sum(self.unsupported.values())


def join(drawn: Sequence[Drawn]) -> Drawn | None:
    """Several campaigns' totals as one, None for none: counts are added, names joined."""

    def joined(values: list[Any]) -> Any:
        match values[0]:
            case int() | None:
                return None if None in values else sum(values)
            case str():
                return "; ".join(dict.fromkeys(filter(None, values)))
            case tuple():
                return tuple(dict.fromkeys(chain(*values)))
        return dict(sum(map(Counter, values), Counter()))

    if len(drawn) < 2:
        return drawn[0] if drawn else None
    return Drawn(**{item.name: joined([getattr(each, item.name) for each in drawn]) for item in fields(Drawn)})
