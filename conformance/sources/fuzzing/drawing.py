"""Drawing programs of view and in-place steps: a Hypothesis strategy, and a numbered stream for campaigns.

The key insight: bugs of views and in-place writes are interactions, such as a write after a view after a write. So a
CPU shadow runs the program while it grows. Operands are existing tensors; later tensors and tensors on freshly written
storages are preferred. A step without a defined meaning is rejected before it runs, and counted. No program is filtered
out afterwards.

    @given(programs(steps=(1, 6)))
    def test_my_backend(program): ...

Tests draw with Hypothesis, which shrinks its draws. A campaign draws by the same rules from a seeded stream, for two
reasons. Hypothesis' engine varies earlier examples: of 1,000 programs that it drew, 317 were distinct sequences of ops,
and a campaign needs 1,000. And program 17 of seed 3 must be the same for any number of programs, shards and workers.

This module depends on programs and the step table, not on targets, oracles or reports.
"""

from __future__ import annotations

import functools
import itertools
import random
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from conformance.program.model import Program
from conformance.program.steps.draw import Draw
from conformance.program.steps.layouts import CLASSES, LAYOUTS, Layout
from conformance.program.steps.op import Op, dtype_of
from conformance.program.steps.table import FAMILIES, OPS
from conformance.program.unsupported import KNOWN
from conformance.record.errors import UserError
from conformance.record.program_stats import Cell
from conformance.run.campaign.drawing_counts import Tally
from conformance.sources.fuzzing.kinds import APART, DTYPES, ORDINARY, STEPS, Turn, kind_of

VERSION = 6
"""Version of the drawing: with another one, a seed and a number may be another program. A report states it, and a
campaign of another version is not resumed. Increase it with each change of what is drawn."""

ERRORS = "errors"
"""Family of calls that torch refuses. Without it, no program ends with changed arguments (`arguments.py`)."""

TRIED = 20
"""Number of layouts of a class to try per cell, to see whether a row takes one. Two were enough for every cell."""

PROBED = 300
"""Number of programs that test whether a family occurs. Each family that can occur was among the first 20."""


class DrawingError(UserError, ValueError):
    """No program exists for these arguments. The message is one sentence: the fault, and the valid choices."""


class UnknownFamily(DrawingError):
    """A step family that is not in the table. The message is one sentence and names the valid families."""


def programs(
    *,
    steps: tuple[int, int] = STEPS,
    only: Collection[str] = (),
    without: Collection[str] = (),
    dtypes: Collection[str] = DTYPES,
    tally: Tally | None = None,
) -> st.SearchStrategy[Program]:
    """A strategy of programs that have a defined meaning on torch CPU.

    steps: the least and most number of steps. only, without: step families (see `FAMILIES`; views are always included).
    dtypes: names of the dtypes of inputs and of conversions. tally: counts the draws, if given. Raises DrawingError for
    a family or dtype that does not exist, and if no program has a step of a family of `only`."""
    drawing, counts = Drawing(steps, tuple(only), tuple(without), tuple(dtypes)), Tally() if tally is None else tally

    @st.composite
    def draw_program(draw: Callable[[st.SearchStrategy[int]], int]) -> Program:
        at = draw(_integers(0, len(drawing.cells)))
        aim = drawing.cells[at - 1] if at else None
        return ORDINARY.draw(drawing, ORDINARY, Turn(0, 0, lambda low, high: draw(_integers(low, high)), counts, aim))

    return draw_program()


@functools.cache
def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


@dataclass(frozen=True)
class Drawing:
    """The arguments of `programs` as a picklable value, which workers receive. If `biased` is False, every family and
    operand has the same probability; this serves as a baseline for comparison. op_db's entries do not call operators in
    `lacking`, which holds dispatcher names. `compiled=True` also draws whole functions that compilers tend to
    miscompile, for example views returned next to their base; otherwise only `only` draws them. Programs avoid the
    `traits`, which `unsupported_traits` returns.

    Raises DrawingError for a family or dtype that does not exist, and if no program has a step of a family of
    `only`."""

    steps: tuple[int, int] = STEPS
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    biased: bool = True
    lacking: tuple[str, ...] = ()
    compiled: bool = False
    traits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = ({*self.only} - {*FAMILIES}) | ({*self.without} - KNOWN["step"])
        if unknown:
            raise UnknownFamily(f"unknown step family {min(unknown)!r}: choose from {', '.join(FAMILIES)}")
        strange = [name for name in self.dtypes if name not in DTYPES]
        if strange or not self.dtypes:
            fault = f"unknown dtype {strange[0]!r}" if strange else "there is no dtype to draw"
            raise DrawingError(f"{fault}: choose from {', '.join(dict.fromkeys(DTYPES))}")
        if not self.cells:
            raise DrawingError("there is no step to draw: too many families are left out for these dtypes")
        for family in self._never_drawn():
            raise DrawingError(
                f"the family {family!r} cannot be drawn: of {PROBED} programs with the dtypes "
                f"{', '.join(dict.fromkeys(self.dtypes))} and without what is left out none has a step "
                "of it"
            )

    def _never_drawn(self) -> list[str]:
        """The families of `only` that do not occur in the first `PROBED` programs. Drawing is the only way to find out
        whether a step fits: integers have no gradient, but their quotients have one."""
        missing = list(self.only)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in range(PROBED):
                if not missing:
                    break
                drawn = {OPS[step.op].family for step in self.numbered(0, number).steps}
                missing = [family for family in missing if family not in drawn]
        return missing

    @property
    def families(self) -> dict[str, list[Op]]:
        """The rows to draw from, by family. A row of weight n occurs n times."""
        return _families(self)

    def numbered(self, seed: int, number: int, tally: Tally | None = None) -> Program:
        """Program `number` of this seed. It is the same on every machine, for one `VERSION` of the drawing."""
        kind, index = kind_of(self, number)
        source, counts = random.Random(f"{seed}:{number}").randint, Tally() if tally is None else tally
        return kind.draw(self, kind, Turn(seed, index, source, counts, self.aim(seed, number)))

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell that a step can be aimed at: family, layout class of its first tensor, and dtype. At least one row
        of the family takes such a tensor."""
        return _cells(self)

    def aim(self, seed: int, number: int) -> Cell | None:
        """The cell that a program of this seed is aimed at, or None. Every second program has a target cell. Each cell
        is used once before any repeats, in an order that depends on the seed. So every unvisited coverage cell is
        eventually drawn, and a program's seed and number suffice to draw it again."""
        if not self.biased or number % 2 == 0 or not kind_of(self, number)[0].aimed:
            return None
        turn, at = divmod(number // 2, len(self.cells))
        return self.cells[random.Random(f"{seed}:{turn}").sample(range(len(self.cells)), len(self.cells))[at]]

    @property
    def once(self) -> frozenset[str]:
        """Ops that a program may contain only once: a compiler has no second backward of one function."""
        return frozenset({"backward"} if self.compiled else ())

    @property
    def changes_arguments(self) -> bool:
        """Whether some programs end with steps of changed arguments, which torch may refuse."""
        return self.biased and ERRORS in self.families


def families_of(family: str) -> dict[str, list[Op]]:
    """The rows of this family and of views, each once."""
    return {fromkey: [op for op in OPS.values() if op.family == fromkey] for fromkey in dict.fromkeys((family, "view"))}


@functools.cache
def _families(drawing: Drawing) -> dict[str, list[Op]]:
    families: dict[str, list[Op]] = {}
    for op in OPS.values():
        wanted = not drawing.only or op.family in (*drawing.only, "view")
        if wanted and not {op.family, op.name} & {*drawing.without}:
            families.setdefault(op.family, []).extend([op] * (op.weight if drawing.biased else 1))
    return families


@functools.cache
def _cells(drawing: Drawing) -> tuple[Cell, ...]:
    d = Draw(random.Random(0).randint)
    places = itertools.product(CLASSES, dict.fromkeys(drawing.dtypes))
    tried = {(name, dtype): [_laid_out(LAYOUTS[name](d), dtype) for _ in range(TRIED)] for name, dtype in places}
    return tuple(
        (family, *place)
        for family, ops in drawing.families.items()
        if family not in APART
        for place, tensors in tried.items()
        if any(op.fits is not None and op.fits(t) for op in dict.fromkeys(ops) for t in tensors)
    )


def _laid_out(layout: Layout, dtype: str) -> torch.Tensor:
    return torch.zeros(layout.cells, dtype=dtype_of(dtype)).as_strided(layout.size, layout.stride, layout.offset)
