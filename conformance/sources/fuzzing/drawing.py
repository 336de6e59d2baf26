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

import contextlib
import functools
import itertools
import random
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st

from conformance.program.execute import Broken
from conformance.program.model import Input, Program, Storage
from conformance.program.shadow import ROUNDED, Shadow
from conformance.program.steps import edges, factories, functions, fusion, hazards, op_db, stateful, states
from conformance.program.steps.draw import Draw, DrawContext, Refused, Source
from conformance.program.steps.hazards import OUTSIDE
from conformance.program.steps.layouts import LAYOUTS, Layout, layout_class
from conformance.program.steps.op import COMPUTE, LOSSY, Op, Step, dtype_name, dtype_of
from conformance.program.steps.stateful import NAME as STATE
from conformance.program.steps.table import FAMILIES, OPS
from conformance.program.unsupported import KNOWN, SHARED, WANTS_GRAD
from conformance.record.errors import UserError
from conformance.sources.fuzzing.inputs import Cell, draw_hazard_inputs, draw_inputs, draw_wanted, joined, separated
from conformance.sources.fuzzing.tally import Tally

DTYPES = (
    "float32",
    "int64",
    "float32",
    "float32",
    "int32",
    "bool",
    "float64",
    "complex64",
    "uint8",
    "float16",
    "bfloat16",
    "int8",
    "int16",
)
"""Dtypes to draw from. Frequent ones come first and are listed several times."""

FAMILY_WEIGHT = {
    "view": 10,
    "setitem": 6,
    "arithmetic": 5,
    "copy": 4,
    "copies": 4,
    "indexed write": 3,
    "out=": 3,
    "metadata in place": 2,
    "setitem loop": 1,
    "autograd": 4,
    "layers": 3,
}
"""Weight of each family in drawing; 1 for families not listed. Views and writes have the largest weights, since their
interaction is the subject."""

WRITES = ("setitem", "arithmetic", "copy", "indexed write", "out=")
READS = ("copies", "out of place", "reduction", "questions")
FOLLOWS = {
    "view": (*WRITES, *WRITES),
    **dict.fromkeys(WRITES, ("view", "view", *READS)),
    **dict.fromkeys(READS, ("view", *WRITES)),
}
"""Families that may follow the family of the preceding step. They apply to half of the steps, and favor interactions: a
write after a view after a write, or a read of a tensor that was viewed before."""

FUSED = {"fusion": 12, "reduction": 2, factories.NAME: 1, "view": 1}
"""Weight of each family in a program of expressions. Such a program stays lazy from its inputs to its last result."""

FUSED_STEPS, FUSED_DTYPES = (2, 6), ("float32", "float32", "float64")
EVERY = 4
"""Period of two kinds of programs: one program in `EVERY` is of expressions over special values, and one of op_db's
entries."""

EDGED = {edges.NAME: 12, "autograd": 3, fusion.NAME: 3, factories.NAME: 1, "view": 1}
"""Weight of each family in a program of edge-case calls."""

ERRORS = "errors"
"""Family of calls that torch refuses. Without it, no program ends with changed arguments (`arguments.py`)."""

EDGED_STEPS = 6, 14
"""Least and most number of steps of such a program. They are many, since the steps depend little on each other."""

EDGES_EVERY, EDGES_AT = 8, 2
"""Period and offset of programs of edge-case calls. If `only` names the family, every program is one."""

STATE_EVERY, STATE_AT = 8, 5
"""Period and offset of programs that change global states. If `only` names the family, every program is one."""

HAZARDS_EVERY, HAZARDS_AT = 8, 3
"""Period and offset of programs of hazards. If `only` names this family alone, every program is one."""

FUNCTIONS_EVERY, FUNCTIONS_AT = 8, (7, STATE_AT)
"""Period and offsets of programs of topics of functions. The second offset is free on targets without states, such as
most compilers. If `only` names such families alone, every program is one."""

HAZARD_TRIALS, TOPIC_TRIALS = 8, 16
"""Number of times to draw a hazard and a topic before it is given up."""

OPENINGS = (
    *((OPS[name], edges.UNDONE) for name in (*edges.INVERSE, "to.edge")),
    (edges.HALVED, edges.SELECTION, edges.UNDONE),
)
"""A program of edges opens with a step of a row and its inverse, each in turn. The last opening has a selection of
elements in between: a compiler that cancels both conversions loses the rounding of the first."""

KINDS = {fusion.NAME: (FUSED_DTYPES, FUSED), edges.NAME: (edges.DTYPES, EDGED)}
"""The dtypes and family weights of each kind of programs."""

APART = (STATE, edges.NAME, hazards.NAME, *functions.NAMES)
"""Families that get separate programs."""

STEPS = (1, 8)

CLASSES = tuple(name for name in LAYOUTS if name not in ("channels last", "size one"))
"""The layout classes of `layout_class`. A channels-last input is in "permuted"; an input of size 1 is in several."""

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
        return drawing.program(lambda low, high: draw(_integers(low, high)), counts, aim)

    return draw_program()


@functools.cache
def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


@dataclass(frozen=True)
class Drawing:
    """The arguments of `programs` as a picklable value, which workers receive. If `biased` is False, every family and
    operand has the same probability; this serves as a baseline for comparison. op_db's entries do not call operators in
    `lacking`, which holds dispatcher names. With `compiled`, some programs are of topics of functions, which compilers
    get wrong; without it, only those that `only` asks for. Programs avoid the `traits`, which
    `unsupported_traits` returns.

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
        """Program `number` of this seed. It is the same on every machine, for one version of this package."""
        tally = Tally() if tally is None else tally
        source = random.Random(f"{seed}:{number}").randint
        if self.calls_op_db:
            turn, rest = divmod(number, EVERY) if self.only != (op_db.FAMILY,) else (number, 0)
            if not rest:
                return self.of_op_db(seed, turn, source, tally)
        aim = self.aim(seed, number)
        if wanted := self.hazard_cells(seed, number):
            return self.of_hazards(wanted, source, tally, aim)
        if topics := self.topics(seed, number):
            return self.of_functions(topics, source, seed, tally, aim)
        state, turn = self.state(seed, number)
        kind, turn = ("", turn) if state else self.kind(number)
        return self.program(source, tally, aim, kind, state, turn)

    def kind(self, number: int) -> tuple[str, int]:
        """The main family of a program with a special kind, and its number of earlier turns: expressions, or edge-case
        calls. ("", 0) for other programs."""
        every = 1 if edges.NAME in self.only else EDGES_EVERY
        if self.biased and edges.NAME in self.families and number % every == EDGES_AT % every:
            return edges.NAME, number // every
        return fusion.NAME if self.biased and number % EVERY == EVERY - 2 and self.can_fuse else "", 0

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell that a step can be aimed at: family, layout class of its first tensor, and dtype. At least one row
        of the family takes such a tensor."""
        return _cells(self)

    def aim(self, seed: int, number: int) -> Cell | None:
        """The cell that a program of this seed is aimed at, or None. Every second program has a target cell. Each cell
        is used once before any repeats, in an order that depends on the seed. So every unvisited coverage cell is
        eventually drawn, and a program's seed and number suffice to draw it again."""
        if not self.biased or number % 2 == 0 or self.state(seed, number)[0]:
            return None
        turn, at = divmod(number // 2, len(self.cells))
        return self.cells[random.Random(f"{seed}:{turn}").sample(range(len(self.cells)), len(self.cells))[at]]

    def state(self, seed: int, number: int) -> tuple[str, int]:
        """The topic of a program of this seed that changes states, and its number of earlier turns; ("", 0) for other
        programs. Each topic occurs once before any repeats."""
        every = 1 if STATE in self.only else STATE_EVERY
        if not self.biased or number % every != STATE_AT % every or STATE not in self.families:
            return "", 0
        turn, at = divmod(number // every, len(stateful.TOPICS))
        return random.Random(f"{seed}:state:{turn}").sample(list(stateful.TOPICS), len(stateful.TOPICS))[at], turn

    def hazard_cells(self, seed: int, number: int) -> tuple[hazards.Hazard, ...]:
        """The cells of a program of hazards of this seed; none for other programs. Each cell is wanted once before any
        repeats."""
        every = 1 if self.only == (hazards.NAME,) else HAZARDS_EVERY
        drawn = hazards.NAME in self.families and any(name in self.dtypes for name in hazards.DTYPES)
        if not self.biased or not drawn or number % every != HAZARDS_AT % every:
            return ()
        count = hazards.PER_FUNCTION if self.compiled else hazards.PER_PROGRAM
        cells, first = _hazards(self.without), number // every * count
        turns = (divmod(at, len(cells)) for at in range(first, first + count))
        return tuple(_shuffled(cells, f"{seed}:hazards:{turn}")[at] for turn, at in turns)

    def topics(self, seed: int, number: int) -> tuple[tuple[str, int], ...]:
        """The topics of a program of functions of this seed, each with its number of earlier turns; none for other
        programs. Each topic has its turn before any has another."""
        wanted = self.only or (functions.NAMES if self.compiled else ())
        known = [name for name in functions.NAMES if name in wanted and name not in self.without]
        if op_db.FAMILY in self.without:
            known = [name for name in known if name not in functions.MOST_CONVERTED]
        places = FUNCTIONS_AT[: 1 if STATE in self.families else 2]
        period, at = divmod(number, FUNCTIONS_EVERY)
        if not self.biased or not known:
            return ()
        if self.only and {*self.only} <= {*functions.NAMES}:
            drawn = number
        elif at in places:
            drawn = period * len(places) + places.index(at)
        else:
            return ()
        first, count = drawn * functions.PER_PROGRAM, min(functions.PER_PROGRAM, len(known))
        turns = (divmod(at, len(known)) for at in range(first, first + count))
        return tuple(
            (random.Random(f"{seed}:functions:{turn}").sample(known, len(known))[at], turn) for turn, at in turns
        )

    @property
    def once(self) -> frozenset[str]:
        """Ops that a program may contain only once: a compiler has no second backward of one function."""
        return frozenset({"backward"} if self.compiled else ())

    @property
    def can_fuse(self) -> bool:
        """Whether the families and dtypes allow programs of expressions."""
        return fusion.NAME in self.families and any(name in self.dtypes for name in FUSED_DTYPES)

    @property
    def changes_arguments(self) -> bool:
        """Whether some programs end with steps of changed arguments, which torch may refuse."""
        return self.biased and ERRORS in self.families

    @property
    def calls_op_db(self) -> bool:
        """Whether some programs call op_db's entries."""
        wanted = not self.only or op_db.FAMILY in self.only
        return self.biased and wanted and op_db.FAMILY not in self.without

    def of_op_db(self, seed: int, turn: int, source: Source, tally: Tally) -> Program:
        """The program of op_db's entries for this turn. Each call has its own inputs. Later steps may use these inputs
        and the results of the call."""
        from conformance.sources.fuzzing.op_db import EACH, Operators, inputs_of  # op_db takes seconds to import

        entries = min(EACH, self.steps[1])
        room = 2 * EACH if self.steps == STEPS else self.steps[1]
        families = {name: ops for name, ops in self.families.items() if name not in APART}
        with warnings.catch_warnings(), contextlib.suppress(Broken):
            warnings.simplefilter("ignore")  # torch warns each time when it resizes an out= tensor
            planned = Operators(self.dtypes, frozenset(self.lacking), entries, frozenset(self.traits)).calls(
                source, seed, turn, tally
            )
            program = self._apart(inputs_of(planned))
            shadow = Shadow(program, self.traits)
            k = DrawContext(source, shadow, tuple(dict.fromkeys(self.dtypes)))
            k.hidden, k.once = {*shadow.env}, self.once
            for at, call in enumerate(planned, 1):
                k.hidden -= {input_.name for input_ in call.inputs}
                offered = shadow.offer(replace(call.step, out=shadow.fresh(call.results)))
                if offered is not None and not offered.raises:
                    tally.entries["|".join(call.cell)] += 1
                    if call.inputs:
                        tally.cells[op_db.FAMILY, call.cell[2], call.cell[3]] += 1
                if len(shadow.steps) + len(planned) - at < room and k.chance(1, 2):
                    draw_step(k, families, tally, computes=False)
        return self._drawn(program, shadow, tally)

    def of_hazards(self, wanted: Sequence[hazards.Hazard], source: Source, tally: Tally, aim: Cell | None) -> Program:
        """The program with these hazards. The caller's calls of all hazards come last.

        If `aim` is a cell, the last input and at most one step beside the hazards are aimed at it."""
        known, d = [name for name in hazards.DTYPES if name in self.dtypes], Draw(source)
        program, drawn = Program((), ()), list[tuple[hazards.Hazard, list[str], str, bool]]()
        for group in [[cell] for cell in wanted] if self.compiled else [wanted]:
            plain, wider = self.compiled and d.chance(1, 2), any(OUTSIDE in cell for cell in group)
            aimed = None if drawn else aim
            own = self._apart(draw_hazard_inputs(d, known, aimed, wider=wider, plain=plain, first=len(program.inputs)))
            same, free = [input_.name for input_ in own.inputs if input_.storage == 0], own.inputs[1].name
            program, _ = joined(program, own)
            drawn += [(cell, same, free, plain) for cell in group]
        shadow = Shadow(program, self.traits)
        k = DrawContext(source, shadow, tuple(dict.fromkeys(known)))
        longest = hazards.FUNCTION_STEPS if self.compiled else hazards.STEPS
        most = longest if self.steps == STEPS else self.steps[1]
        cells, calls = list[Cell](), list[Step]()

        def offer(step: Step) -> Step | None:
            op = OPS[step.op]
            if {op.name, op.family} & {*self.without} or len(shadow.steps) + len(calls) >= most:
                return None
            cells.append(_cell(op, k[step.names()[0]]))
            return shadow.offer(step)

        for hazard, same, free, plain in drawn:
            if aim and len(shadow.steps) + len(calls) < most and draw_aimed(k, self.families[aim[0]], aim, tally):
                aim = None
            for _ in range(HAZARD_TRIALS):
                steps, counted = len(shadow.steps), len(cells)
                more = hazards.draw(k, hazard, offer, same, free, plain)
                if more is not None and len(shadow.steps) + len(calls) + len(more) <= most:
                    calls += more
                    tally.hazards["|".join(hazard)] += 1
                    break
                del cells[counted:]
                shadow.undo(steps)
        for step in calls:
            cells.append(_cell(OPS[step.op], k[step.names()[0]]))
            shadow.offer(step)
        tally.cells.update(cells)
        return self._drawn(program, shadow, tally)

    def of_functions(
        self, wanted: Sequence[tuple[str, int]], source: Source, seed: int, tally: Tally, aim: Cell | None
    ) -> Program:
        """The program with these topics, each with the number of its turn. Each topic has its own inputs. The caller's
        calls of all topics come last.

        If `aim` is a cell, the first input and at most one step beside the topics are aimed at it."""
        d, most = Draw(source), functions.STEPS if self.steps == STEPS else self.steps[1]
        layout = LAYOUTS[aim[1]](d) if aim else Layout((2, 3), (3, 1))
        dtype = aim[2] if aim else self.dtypes[0]
        start = Input("a", 0, dtype, layout.size, layout.stride, layout.offset)
        program = Program((Storage(dtype, layout.cells),), (start,))
        drawn: list[tuple[str, list[str], list[Step]]] = []
        for topic, turn in wanted:
            with contextlib.suppress(Refused):
                own, steps = self._inputs_of(d, topic, turn, seed, len(program.inputs))
                program, names = joined(program, own)
                drawn.append((topic, names, steps))
        shadow, calls = Shadow(program, self.traits), list[Step]()
        k = DrawContext(source, shadow, tuple(dict.fromkeys(self.dtypes)))

        def offer(step: Step, *, aimed: bool = False, unimplemented: bool = False) -> Step:
            if {step.op, OPS[step.op].family} & {*self.without} or len(shadow.steps) + len(calls) >= most:
                raise Refused
            offered = shadow.offer(step, aimed, unimplemented)
            if offered is None:
                raise Refused
            return offered

        for topic, names, steps in drawn:
            if aim and len(shadow.steps) + len(calls) < most and draw_aimed(k, self.families[aim[0]], aim, tally):
                aim = None
            for _ in range(TOPIC_TRIALS):
                before = len(shadow.steps)
                try:
                    if topic in functions.TOPICS:
                        calls += functions.TOPICS[topic].draw(k, names, offer)
                    for step in steps:
                        offer(replace(step, out=shadow.fresh(len(step.out))), aimed=True, unimplemented=True)
                    tally.topics[topic] += 1
                    break
                except Refused:
                    shadow.undo(before)
            else:
                # The aimed step may use some of them.
                needless = {*names} - {name for step in shadow.steps for name in step.names()}
                program = replace(
                    program, inputs=tuple(input_ for input_ in program.inputs if input_.name not in needless)
                )
        for step in calls:
            shadow.offer(step)
        return self._drawn(program, shadow, tally)

    def _inputs_of(self, d: Draw, topic: str, turn: int, seed: int, first: int) -> tuple[Program, list[Step]]:
        """The inputs of a topic, and the steps that are planned with them. Raises Refused."""
        if topic in functions.TOPICS:
            return draw_wanted(d, functions.TOPICS[topic].inputs(d, self.dtypes), first), []
        from conformance.sources.fuzzing.op_db import converted, inputs_of  # op_db takes seconds to import

        most = functions.MOST_CONVERTED[topic]
        planned = list(converted(d, topic, self.dtypes, seed, turn, first, most))
        return self._apart(inputs_of(planned)), [replace(call.step, out=("",) * call.results) for call in planned]

    def _apart(self, inputs: Program) -> Program:
        """Inputs with separate storages, if programs avoid shared ones."""
        return separated(inputs) if SHARED in self.traits else inputs

    def _following(self, k: DrawContext, kind: str) -> list[Op]:
        """Rows that can invert the last step of a program of edges, select from it, or be its gradient."""
        drawn = ((op, op.draw(k)) for op in edges.FOLLOWERS if kind == edges.NAME)
        return [op for op, step in drawn if step and not {step.op, OPS[step.op].family} & {*self.without}]

    @staticmethod
    def _drawn(program: Program, shadow: Shadow, tally: Tally) -> Program:
        tally.programs += 1
        tally.steps += len(shadow.steps)
        tally.avoided += shadow.avoided
        return program.with_steps(tuple(shadow.steps))

    def program(
        self, source: Source, tally: Tally, aim: Cell | None = None, kind: str = "", state: str = "", turn: int = 0
    ) -> Program:
        """Draw a program. Every choice comes from the source.

        If `aim` is a cell, the first input and at most one step are aimed at it. A program of kind "fusion" is of
        expressions over special values, one of kind "edges" of edge-case calls. A program with a `state`, a topic of
        `stateful.TOPICS`, makes calls under states and repeats them outside of these states. `turn` chooses how such a
        program, or one of edge-case calls, opens."""
        d, fused = Draw(source), kind == fusion.NAME
        dtypes, weights = KINDS.get(kind, (DTYPES, FAMILY_WEIGHT))
        opening = OPENINGS[turn % len(OPENINGS)] if kind == edges.NAME else ()
        if edges.HALVED in opening:
            dtypes = (*edges.PRECISE, *edges.HALVES)
        known = [name for name in dtypes if name in self.dtypes] or list(self.dtypes)
        grad = "autograd" in self.families and not fused and WANTS_GRAD not in self.traits
        start = stateful.place(d, state, known) if state else aim
        program = self._apart(draw_inputs(d, known, grad, start, kind))
        if state and start and grad and stateful.RECORDED in stateful.TOPICS[state]:
            first, *others = program.inputs
            program = replace(program, inputs=(replace(first, requires_grad=True), *others))
        shadow = Shadow(program, self.traits)
        k = DrawContext(source, shadow, tuple(dict.fromkeys(known)), self.biased)
        k.once = self.once
        aimed = d.integer(1, self.steps[1]) if aim else 0
        least, most = FUSED_STEPS if fused else self.steps
        if kind == edges.NAME and self.steps == STEPS:
            least, most = EDGED_STEPS
        apart = {edges.NAME, hazards.NAME, *(() if state else (STATE,))} if self.biased else set()
        drawn_from = {*weights} if kind else {*self.families} - apart
        families = {name: ops for name, ops in self.families.items() if name in drawn_from}
        if state:
            most, least = max(least, most - 1), max(least, (most - 1) // 2)
        with contextlib.suppress(Broken):
            if state:
                stateful.open_with(k, families, state, turn, most, lambda op, under: offer(k, op, tally, under=under))
            for op in opening:
                if len(shadow.steps) < most and (op.fits is None or k.holds(op.fits)):
                    offer(k, op, tally)
            for _ in range(4 * most):
                drawn = len(shadow.steps)
                ends = drawn >= least and d.integer(0, most) == 0
                if drawn >= most or (ends and aim is None):
                    break
                if aim and (ends or drawn + 1 >= aimed) and draw_aimed(k, self.families[aim[0]], aim, tally):
                    aim = None
                elif ends:
                    break
                elif state:
                    own = functools.partial(choose, k, families), lambda op, under: offer(k, op, tally, under=under)
                    stateful.draw(k, families, state, most, *own)
                elif (following := self._following(k, kind)) and d.chance(1, 3):
                    offer(k, k.choice(following), tally)
                else:
                    draw_step(k, families, tally, weights, follows=not kind)
        if state and shadow.done == len(shadow.steps) < self.steps[1]:
            shadow.offer(stateful.LAST)
        return self._drawn(program, shadow, tally)


def families_of(family: str) -> dict[str, list[Op]]:
    """The rows of this family and of views, each once."""
    return {fromkey: [op for op in OPS.values() if op.family == fromkey] for fromkey in dict.fromkeys((family, "view"))}


def draw_aimed(k: DrawContext, ops: Sequence[Op], aim: Cell, tally: Tally) -> bool:
    """Draw a step of `ops`, the rows of the cell's family, whose first tensor is in the cell. Return False if no row
    fits a tensor of the cell now."""
    k.only = lambda t: dtype_name(t.dtype) == aim[2] and layout_class(t) == aim[1]
    fitting = list(dict.fromkeys(op for op in ops if op.fits is not None and k.holds(op.fits)))
    if fitting:
        offer(k, k.choice(fitting), tally)
    k.only = None
    return bool(fitting)


def draw_step(
    k: DrawContext,
    by_family: dict[str, list[Op]],
    tally: Tally,
    weights: Mapping[str, int] = FAMILY_WEIGHT,
    follows: bool = True,
    computes: bool = True,
) -> None:
    """Draw one step and offer it to the shadow. If no step fits, the caller draws another one. `follows` means that the
    family of the preceding step affects the choice, `computes` that the step may compute with rounded values."""
    before = k.shadow.steps[-1:] if k.biased and follows else []
    following = FOLLOWS.get(OPS[before[0].op].family, ()) if before else ()
    families = [family for family in following if family in by_family]
    if not families or not k.chance(1, 2):
        families = [family for family in by_family for _ in range(weights.get(family, 1) if k.biased else 1)]
    op = choose(k, by_family, families)
    again = [OPS[step.op] for step in k.shadow.steps if not step.body and OPS[step.op].family in by_family]
    if k.biased and follows and again and k.chance(1, 12):
        second = k.choice(again)  # some bugs need a second call of one kind, such as a second gradient
        op = second if second.fits is None or k.holds(second.fits) else op
    offer(k, op, tally, computes)


def offer(k: DrawContext, op: Op, tally: Tally, computes: bool = True, under: tuple[str, ...] = ()) -> Step | None:
    """Draw a step of this row, offer it to the shadow under these states, and return it as recorded; None if it is
    rejected. Without `computes`, a step that would compute with rounded values is rejected. Rounded values of a network
    layer may cancel, so that a correct result consists of rounding errors only."""
    step = op.draw(k)
    if step is None:
        k.shadow.avoided["nothing fits: " + op.family] += 1
        return None
    if step.op in k.once and any(earlier.op == step.op for earlier in k.shadow.steps):
        k.shadow.avoided[f"a second {step.op}"] += 1
        return None
    if (
        not computes
        and op.effect in (COMPUTE, LOSSY)
        and any(k.shadow.level(k[name]) == ROUNDED for name in step.names())
    ):
        k.shadow.avoided["computed with rounded values"] += 1
        return None
    if under:
        step = replace(step, under=states.ordered((*step.under, *stateful.promising(step, under))))
    names = [name for name in step.names() if name in k.shadow.env]
    cell = _cell(op, k[names[0]]) if names else None
    offered = k.shadow.offer(step)
    if offered is not None and (cell or offered.out):
        tally.cells[cell or _cell(op, k[offered.out[0]])] += 1
    return offered


def choose(k: DrawContext, by_family: dict[str, list[Op]], families: list[str]) -> Op:
    """A row that fits some tensor of the program: draw a family, then one of its rows, until one fits. If no row fits,
    `clone`."""
    while families:
        family = k.choice(families)
        ops = by_family[family]
        while ops:
            op = k.choice(ops)
            if op.fits is None or k.holds(op.fits):
                return op
            ops = [other for other in ops if other is not op]
        families = [other for other in families if other != family]
    return OPS["clone"]


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


@functools.cache
def _hazards(without: tuple[str, ...]) -> tuple[hazards.Hazard, ...]:
    """The cells of hazards whose steps and families are all allowed."""
    return tuple(cell for cell in hazards.CELLS if not {hazards.NEEDS.get(name) for name in cell} & {*without})


@functools.lru_cache(4)
def _shuffled(cells: tuple[hazards.Hazard, ...], seed: str) -> list[hazards.Hazard]:
    return random.Random(seed).sample(cells, len(cells))


def _laid_out(layout: Layout, dtype: str) -> torch.Tensor:
    return torch.zeros(layout.cells, dtype=dtype_of(dtype)).as_strided(layout.size, layout.stride, layout.offset)


def _cell(op: Op, first: torch.Tensor) -> Cell:
    return op.family, layout_class(first), dtype_name(first.dtype)
