"""The totals of drawing: how many programs a campaign drew and ran, what they reached, and what was left out.

Defines `Drawn`, one section of a `Run`. The key insight: a table of the cells that were reached hides those that were
not, so the axes may be named in full; and no share of all cells is ever stated, since some of them cannot exist. This
module must not import torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any

AXES = ("families", "layouts", "dtypes")
SUMMED = ("programs", "steps", "kernels", "kernels_allowed", "kernels_compared", "arbitrated")
TALLIES = ("unsupported", "avoided", "cells")

Cell = tuple[str, str, str]


@dataclass(frozen=True)
class Drawn:
    """What one campaign drew, or several joined.

    `cells` counts steps by family, layout class of the first tensor, and its dtype; `families`, `layouts` and `dtypes`
    name all that exist, reached or not, and are empty where they are not known. `unsupported` counts programs that the
    target leaves out, by reason, `avoided` steps that were drawn and not run. `kernels_allowed` is 0 when the target
    does not count kernels. `corpus` names the saved programs that ran as well. `options` are the words of the command
    line that narrow the drawing; empty where programs were drawn as usual."""

    seeds: tuple[int, ...] = ()
    programs: int = 0
    steps: int = 0
    kernels: int = 0
    kernels_allowed: int = 0
    kernels_compared: int = 0
    arbitrated: int = 0
    options: str = ""
    corpus: tuple[str, ...] = ()
    unsupported: Mapping[str, int] = field(default_factory=dict)
    avoided: Mapping[str, int] = field(default_factory=dict)
    cells: Mapping[Cell, int] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def compared(self) -> int:
        """Programs that were run, the failing ones included."""
        return self.programs - sum(self.unsupported.values())

    def to_json(self) -> dict[str, Any]:
        """As plain data, cells by family, layout class and dtype; fields that hold their default are left out."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        cells: dict[str, dict[str, dict[str, int]]] = {}
        for (family, layout, dtype), count in sorted(self.cells.items()):
            cells.setdefault(family, {}).setdefault(layout, {})[dtype] = count
        data["cells"] = cells
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}
        return {name: value for name, value in plain.items() if value or name == "programs"}


def from_json(data: Any) -> Drawn:
    """The inverse of `to_json`. Raises KeyError, TypeError, ValueError or AttributeError on other data."""
    numbers: dict[str, Any] = {name: whole(data.get(name, 0)) for name in SUMMED}
    tallies: dict[str, Any] = {
        name: {str(key): whole(count) for key, count in data.get(name, {}).items()} for name in TALLIES[:2]
    }
    names: dict[str, Any] = {name: tuple(map(text, listed(data.get(name, [])))) for name in (*AXES, "corpus")}
    cells = {
        (family, layout, dtype): whole(count)
        for family, layouts in data.get("cells", {}).items()
        for layout, dtypes in layouts.items()
        for dtype, count in dtypes.items()
    }
    seeds = tuple(map(whole, listed(data.get("seeds", []))))
    return Drawn(seeds, **numbers, **tallies, **names, cells=cells, options=text(data.get("options", "")))


def text(value: Any) -> str:
    """The value. Raises TypeError when it is no text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def whole(value: Any) -> int:
    """The value. Raises TypeError when it is no whole number."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def listed(value: Any) -> Sequence[Any]:
    """The value. Raises TypeError when it is no list."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def join(drawn: Iterable[Drawn]) -> Drawn | None:
    """Several campaigns' totals as one, None for none: counts are added, names joined."""
    drawn = list(drawn)
    if len(drawn) < 2:
        return drawn[0] if drawn else None

    def every(name: str) -> list[Any]:
        return [getattr(each, name) for each in drawn]

    numbers: dict[str, Any] = {name: sum(every(name)) for name in SUMMED}
    tallies: dict[str, Any] = {name: dict(sum(map(Counter, every(name)), Counter())) for name in TALLIES}
    names: dict[str, Any] = {name: tuple(dict.fromkeys(chain(*every(name)))) for name in (*AXES, "corpus", "seeds")}
    return Drawn(**numbers, **tallies, **names, options="; ".join(dict.fromkeys(filter(None, every("options")))))
