"""The kinds of drawn programs, as a table: which programs of a campaign are of which kind, and from what each is drawn.

Of ten programs in a row, two call op_db's entries, one calls them with further arguments, one makes calls at the edge
of their domain, one has hazards of memory, one changes global states, one is an expression over special values, one
makes calls at sizes where devices change their ways, one has topics of functions if it is for a compiler, and the
others are ordinary: views, writes and reads of any family. For a device, one of twenty has the topics that devices get
wrong, too. To add a kind, add a row to `KINDS`.
"""

from __future__ import annotations

import contextlib
import functools
import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from conformance.program.execute import Broken
from conformance.program.model import Input, Program, Storage
from conformance.program.reduce import tidy
from conformance.program.shadow import Shadow
from conformance.program.steps import edges, factories, functions, fusion, hazards, op_db, stateful, thresholds
from conformance.program.steps.draw import Draw, DrawContext, Refused, Source
from conformance.program.steps.hazards import OUTSIDE
from conformance.program.steps.layouts import LAYOUTS, Layout
from conformance.program.steps.op import Op, Step, is_local
from conformance.program.steps.table import OPS
from conformance.program.unsupported import SHARED, WANTS_GRAD, WITH_OUT
from conformance.record.program_stats import Cell
from conformance.run.campaign.drawing_counts import Tally
from conformance.sources.fuzzing.choosing import FAMILY_WEIGHT, cell_of, choose, draw_aimed, draw_step, offer
from conformance.sources.fuzzing.inputs import draw_hazard_inputs, draw_inputs, draw_wanted, joined, separated

if TYPE_CHECKING:
    from conformance.sources.fuzzing.drawing import Drawing

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

STEPS = (1, 8)
"""Least and most number of steps of an ordinary program."""

PERIOD = 10
"""Number of programs after which the turns of the kinds repeat."""

APART = (stateful.NAME, edges.NAME, hazards.NAME, *functions.NAMES)
"""Families that ordinary programs do not draw from."""

SIZED_CALLS = 5
"""Number of calls of a program of sizes."""

HAZARD_TRIALS, TOPIC_TRIALS = 8, 16
"""Number of times to draw a hazard and a topic before it is given up."""

PRECISE = ("float32", "float32", "float64")
"""Dtypes of expressions over special values."""

NAMED, ALONE, NEVER = "named", "alone", "never"
"""When every program is of one kind: if `only` names a family of it, if it names no other family, or never."""


@dataclass(frozen=True)
class Turn:
    """One program to draw. `index` is the number of earlier programs of its kind, `aim` the cell at which one of its
    steps is aimed, `source` makes every choice, and `tally` counts."""

    seed: int
    index: int
    source: Source
    tally: Tally
    aim: Cell | None = None


@dataclass(frozen=True, eq=False)
class ProgramKind:
    """A kind of drawn programs.

    - `turns`: the programs of each `PERIOD` that are of this kind; with `every_other`, of every other one.
    - `draw`: draws the program of a turn.
    - `occurs`: whether a drawing has the families and dtypes for it.
    - `spare`: further turns, if no kind before this one in the table has them.
    - `every`: when it has all turns: NAMED, ALONE or NEVER.
    - `families`: its step families.
    - `dtypes`, `weights`: the dtypes of its inputs, and the weight of each family in drawing its steps. Only families
      with a weight are drawn, unless all are ordinary.
    - `steps`: least and most number of steps, if the drawing states none. `fixed`: also if it does.
    - `openings`: the first steps of a program, each in turn.
    - `aimed`: whether a step of a program may be aimed at a cell.
    """

    name: str
    turns: tuple[int, ...]
    draw: Callable[[Drawing, ProgramKind, Turn], Program]
    occurs: Callable[[Drawing], bool]
    spare: tuple[int, ...] = ()
    every_other: bool = False
    every: str = NEVER
    families: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    weights: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[int, int] = STEPS
    fixed: bool = False
    openings: tuple[tuple[Op, ...], ...] = ((),)
    aimed: bool = True

    def has_turn(self, drawing: Drawing, number: int) -> bool:
        """Whether program `number` of a drawing is of this kind, unless a kind before it in the table has the turn."""
        if not (drawing.biased and self.occurs(drawing)):
            return False
        period, at = divmod(number, PERIOD)
        return self.has_every(drawing) or (at in self.turns and not (self.every_other and period % 2))

    def has_every(self, drawing: Drawing) -> bool:
        """Whether every program of a drawing is of this kind."""
        named = {*drawing.only} & {*self.families}
        return bool(named) and (self.every == NAMED or (self.every == ALONE and named == {*drawing.only}))

    def length(self, drawing: Drawing) -> tuple[int, int]:
        """Return the least and most number of steps in a drawing."""
        return self.steps if self.fixed or drawing.steps == STEPS else drawing.steps


def kind_of(drawing: Drawing, number: int) -> tuple[ProgramKind, int]:
    """Return the kind of program `number`, and the number of earlier programs of this kind."""
    kind = _owner(drawing, number)
    if kind is ORDINARY or kind.has_every(drawing):
        return kind, number
    period, at = divmod(number, PERIOD)
    turns = [turn for turn in (*kind.turns, *kind.spare) if _owner(drawing, turn) is kind]
    return kind, (period // 2 if kind.every_other else period) * len(turns) + turns.index(at)


def _owner(drawing: Drawing, number: int) -> ProgramKind:
    for kind in KINDS:
        if kind.has_turn(drawing, number):
            return kind
    spare = (kind for kind in KINDS if number % PERIOD in kind.spare and drawing.biased and kind.occurs(drawing))
    return next(spare, ORDINARY)


def draw_steps(drawing: Drawing, kind: ProgramKind, turn: Turn) -> Program:
    """Draw a program of single steps.

    If the turn is aimed at a cell, the first input and at most one step are. A program that changes states makes calls
    under them and repeats the calls outside. The turn's index chooses how such a program, or one of edge-case calls,
    opens."""
    d, tally, aim = Draw(turn.source), turn.tally, turn.aim
    state, opened = state_of(turn.seed, turn.index) if kind is STATES else ("", turn.index)
    opening, dtypes = kind.openings[opened % len(kind.openings)], kind.dtypes
    if edges.HALVED in opening:
        dtypes = (*edges.PRECISE, *edges.HALVES)
    known = [name for name in dtypes if name in drawing.dtypes] or list(drawing.dtypes)
    grad = "autograd" in drawing.families and kind is not EXPRESSIONS and WANTS_GRAD not in drawing.traits
    start = stateful.place(d, state, known) if state else aim
    special = kind.families[0] if kind.weights else ""
    program = _apart(drawing, draw_inputs(d, known, grad, start, special))
    if state and start and grad and stateful.RECORDED in stateful.TOPICS[state]:
        first, *others = program.inputs
        program = replace(program, inputs=(replace(first, requires_grad=True), *others))
    shadow = Shadow(program, drawing.traits)
    k = DrawContext(turn.source, shadow, tuple(dict.fromkeys(known)), drawing.biased)
    k.once = drawing.once
    aimed = d.integer(1, drawing.steps[1]) if aim else 0
    least, most = kind.length(drawing)
    apart = {edges.NAME, hazards.NAME, *(() if state else (stateful.NAME,))} if drawing.biased else set()
    drawn_from = {*kind.weights} or {*drawing.families} - apart
    families = {name: ops for name, ops in drawing.families.items() if name in drawn_from}
    weights = kind.weights or FAMILY_WEIGHT
    if state:
        most, least = max(least, most - 1), max(least, (most - 1) // 2)
    with contextlib.suppress(Broken):
        if state:
            stateful.open_with(k, families, state, opened, most, lambda op, under: offer(k, op, tally, under=under))
        for op in opening:
            if len(shadow.steps) < most and (op.fits is None or k.holds(op.fits)):
                offer(k, op, tally)
        for _ in range(4 * most):
            drawn = len(shadow.steps)
            ends = drawn >= least and d.integer(0, most) == 0
            if drawn >= most or (ends and aim is None):
                break
            if aim and (ends or drawn + 1 >= aimed) and draw_aimed(k, drawing.families[aim[0]], aim, tally):
                aim = None
            elif ends:
                break
            elif state:
                own = functools.partial(choose, k, families), lambda op, under: offer(k, op, tally, under=under)
                stateful.draw(k, families, state, most, *own)
            elif kind is EDGES and (following := _following(drawing, k)) and d.chance(1, 3):
                offer(k, k.choice(following), tally)
            else:
                draw_step(k, families, tally, weights, follows=not kind.weights)
    if state and shadow.done == len(shadow.steps) < drawing.steps[1]:
        shadow.offer(stateful.LAST)
    return _drawn(program, shadow, tally)


def _following(drawing: Drawing, k: DrawContext) -> list[Op]:
    """Rows that can invert the last step of a program of edges, select from it, or be its gradient."""
    drawn = ((op, op.draw(k)) for op in edges.FOLLOWERS)
    return [op for op, step in drawn if step and not {step.op, OPS[step.op].family} & {*drawing.without}]


def state_of(seed: int, index: int) -> tuple[str, int]:
    """Return the topic of a program that changes states, and its number of earlier turns. Each topic occurs once before
    any repeats."""
    turn, at = divmod(index, len(stateful.TOPICS))
    return random.Random(f"{seed}:state:{turn}").sample(list(stateful.TOPICS), len(stateful.TOPICS))[at], turn


def draw_op_db(drawing: Drawing, kind: ProgramKind, turn: Turn) -> Program:
    """Draw calls of op_db's entries, or of these with further arguments. Each call has its own inputs. Later steps may
    use these inputs and the results of the call."""
    from conformance.sources.fuzzing.further_arguments import FurtherArguments  # op_db takes seconds to import
    from conformance.sources.fuzzing.op_db import ENTRIES, OpDbCalls, inputs_of

    tally, entries = turn.tally, min(ENTRIES, drawing.steps[1])
    room = kind.length(drawing)[1]
    families = {name: ops for name, ops in drawing.families.items() if name not in APART}
    with warnings.catch_warnings(), contextlib.suppress(Broken):
        warnings.simplefilter("ignore")  # torch warns each time when it resizes an out= tensor
        operators = OpDbCalls(drawing.dtypes, frozenset(drawing.lacking), entries, frozenset(drawing.traits))
        source = FurtherArguments(operators) if kind is FURTHER_ARGUMENTS else operators
        planned = source.calls(turn.source, turn.seed, turn.index, tally)[:room]
        program = _apart(drawing, inputs_of(planned))
        shadow = Shadow(program, drawing.traits)
        k = DrawContext(turn.source, shadow, tuple(dict.fromkeys(drawing.dtypes)))
        k.hidden, k.once = {*shadow.env}, drawing.once
        for at, call in enumerate(planned, 1):
            k.hidden -= {input_.name for input_ in call.inputs}
            offered = shadow.offer(replace(call.step, out=shadow.fresh(call.results)))
            if offered is not None and not offered.raises:
                tally.entries["|".join(call.cell)] += 1
                if call.inputs:
                    tally.cells[op_db.FAMILY, call.cell[2], call.cell[3]] += 1
            if len(shadow.steps) + len(planned) - at < min(room, 2 * ENTRIES) and k.chance(1, 2):
                draw_step(k, families, tally, computes=False)
    return _drawn(program, shadow, tally)


def hazards_of(drawing: Drawing, seed: int, index: int) -> tuple[hazards.Hazard, ...]:
    """Return the cells of a program of hazards. Each cell is wanted once before any repeats."""
    count = hazards.PER_FUNCTION if drawing.compiled else hazards.PER_PROGRAM
    cells = _hazards(drawing.without)
    turns = (divmod(at, len(cells)) for at in range(index * count, (index + 1) * count))
    return tuple(_shuffled(cells, f"{seed}:hazards:{turn}")[at] for turn, at in turns)


@functools.cache
def _hazards(without: tuple[str, ...]) -> tuple[hazards.Hazard, ...]:
    """The cells of hazards whose steps and families are all allowed."""
    return tuple(cell for cell in hazards.CELLS if not {hazards.NEEDS.get(name) for name in cell} & {*without})


@functools.lru_cache(4)
def _shuffled(cells: tuple[hazards.Hazard, ...], seed: str) -> list[hazards.Hazard]:
    return random.Random(seed).sample(cells, len(cells))


def draw_hazards(drawing: Drawing, kind: ProgramKind, turn: Turn) -> Program:
    """Draw a program with hazards of memory. The caller's calls of all hazards come last.

    If the turn is aimed at a cell, the last input and at most one step beside the hazards are."""
    wanted, tally, aim = hazards_of(drawing, turn.seed, turn.index), turn.tally, turn.aim
    known, d = [name for name in kind.dtypes if name in drawing.dtypes], Draw(turn.source)
    program, drawn = Program((), ()), list[tuple[hazards.Hazard, list[str], str, bool]]()
    for group in [[cell] for cell in wanted] if drawing.compiled else [wanted]:
        plain, wider = drawing.compiled and d.chance(1, 2), any(OUTSIDE in cell for cell in group)
        aimed = None if drawn else aim
        inputs = draw_hazard_inputs(d, known, aimed, wider=wider, plain=plain, first=len(program.inputs))
        own = _apart(drawing, inputs)
        same, free = [input_.name for input_ in own.inputs if input_.storage == 0], own.inputs[1].name
        program, _ = joined(program, own)
        drawn += [(cell, same, free, plain) for cell in group]
    shadow = Shadow(program, drawing.traits)
    k = DrawContext(turn.source, shadow, tuple(dict.fromkeys(known)))
    longest = hazards.FUNCTION_STEPS if drawing.compiled else hazards.STEPS
    most = longest if drawing.steps == STEPS else drawing.steps[1]
    cells, calls = list[Cell](), list[Step]()

    def offer_step(step: Step) -> Step | None:
        op = OPS[step.op]
        if {op.name, op.family} & {*drawing.without} or len(shadow.steps) + len(calls) >= most:
            return None
        cells.append(cell_of(op, k[step.names()[0]]))
        return shadow.offer(step)

    for hazard, same, free, plain in drawn:
        if aim and len(shadow.steps) + len(calls) < most and draw_aimed(k, drawing.families[aim[0]], aim, tally):
            aim = None
        for _ in range(HAZARD_TRIALS):
            steps, counted = len(shadow.steps), len(cells)
            more = hazards.draw(k, hazard, offer_step, same, free, plain)
            if more is not None and len(shadow.steps) + len(calls) + len(more) <= most:
                calls += more
                tally.hazards["|".join(hazard)] += 1
                break
            del cells[counted:]
            shadow.undo(steps)
    for step in calls:
        cells.append(cell_of(OPS[step.op], k[step.names()[0]]))
        shadow.offer(step)
    tally.cells.update(cells)
    return _drawn(program, shadow, tally)


def cases_of(drawing: Drawing, seed: int, index: int) -> list[str]:
    """Return the cases of a program of sizes. Each case has its turn before any has another."""
    known, count = list(thresholds.CASES), min(SIZED_CALLS, drawing.steps[1])
    turns = (divmod(at, len(known)) for at in range(index * count, (index + 1) * count))
    return [random.Random(f"{seed}:sizes:{turn}").sample(known, len(known))[at] for turn, at in turns]


def draw_sizes(drawing: Drawing, kind: ProgramKind, turn: Turn) -> Program:
    """Draw a program of calls at sizes, each on its own inputs."""
    d, program, drawn = Draw(turn.source), Program((), ()), list[list[Step]]()
    for name in cases_of(drawing, turn.seed, turn.index):
        with contextlib.suppress(Refused):
            wanted, steps = thresholds.CASES[name](d, drawing.dtypes)
            if {part for step in steps for part in (step.op, OPS[step.op].family)} & {*drawing.without}:
                continue
            program, names = joined(program, draw_wanted(d, wanted, len(program.inputs)))
            named = {f"#{at}": name for at, name in enumerate(names)}
            drawn.append([step.renamed(named) for step in steps])
    shadow = Shadow(program, drawing.traits)
    for steps in drawn:
        before, made = len(shadow.steps), dict[str, str]()
        for step in steps:
            step = step.renamed(made)
            fresh = zip(step.out, shadow.fresh(len(step.out)), strict=True)
            out = tuple(f"_{name}" if is_local(like) else name for like, name in fresh)
            offered = shadow.offer(replace(step, out=out))
            if offered is None:
                shadow.undo(before)
                break
            made |= dict(zip(step.out, offered.out, strict=False))
            turn.tally.cells[cell_of(OPS[offered.op], shadow.env[offered.names()[0]])] += 1
    used = {name for step in shadow.steps for name in step.names()}
    inputs = tuple(one for one in program.inputs if one.name in used)
    return _drawn(tidy(replace(program, inputs=inputs or program.inputs)), shadow, turn.tally)


def known_topics(drawing: Drawing) -> list[str]:
    """Return the topics of functions that a drawing has: those that `only` names, else for a compiler all, and for a
    device those that devices get wrong, too."""
    wanted = drawing.only or (functions.NAMES if drawing.compiled else functions.EVERYWHERE)
    known = [name for name in functions.NAMES if name in wanted and name not in drawing.without]
    if op_db.FAMILY in drawing.without:
        known = [name for name in known if name not in functions.MOST_CONVERTED]
    return known


def topics_of(drawing: Drawing, seed: int, index: int) -> tuple[tuple[str, int], ...]:
    """Return the topics of a program of functions, each with its number of earlier turns. Each topic has its turn
    before any has another."""
    known = known_topics(drawing)
    first, count = index * functions.PER_PROGRAM, min(functions.PER_PROGRAM, len(known))
    turns = (divmod(at, len(known)) for at in range(first, first + count))
    return tuple((random.Random(f"{seed}:functions:{turn}").sample(known, len(known))[at], turn) for turn, at in turns)


def draw_functions(drawing: Drawing, kind: ProgramKind, turn: Turn) -> Program:
    """Draw a program with topics of functions. Each topic has its own inputs. The caller's calls of all topics come
    last.

    If the turn is aimed at a cell, the first input and at most one step beside the topics are."""
    tally, aim = turn.tally, turn.aim
    d, most = Draw(turn.source), functions.STEPS if drawing.steps == STEPS else drawing.steps[1]
    layout = LAYOUTS[aim[1]](d) if aim else Layout((2, 3), (3, 1))
    dtype = aim[2] if aim else drawing.dtypes[0]
    start = Input("a", 0, dtype, layout.size, layout.stride, layout.offset)
    program = Program((Storage(dtype, layout.cells),), (start,))
    drawn: list[tuple[str, list[str], list[Step]]] = []
    for topic, earlier in topics_of(drawing, turn.seed, turn.index):
        with contextlib.suppress(Refused):
            own, steps = _inputs_of(drawing, d, topic, earlier, turn.seed, len(program.inputs))
            program, names = joined(program, own)
            drawn.append((topic, names, steps))
    shadow, calls = Shadow(program, drawing.traits), list[Step]()
    k = DrawContext(turn.source, shadow, tuple(dict.fromkeys(drawing.dtypes)))
    k.compiled = drawing.compiled

    def offer_step(step: Step, *, aimed: bool = False, unimplemented: bool = False) -> Step:
        if {step.op, OPS[step.op].family} & {*drawing.without} or len(shadow.steps) + len(calls) >= most:
            raise Refused
        if OPS[step.op].writes == "out" and WITH_OUT in drawing.traits:
            raise Refused
        result = shadow.offer(step, aimed, unimplemented)
        if result is None:
            raise Refused
        return result

    for topic, names, steps in drawn:
        if aim and len(shadow.steps) + len(calls) < most and draw_aimed(k, drawing.families[aim[0]], aim, tally):
            aim = None
        for _ in range(TOPIC_TRIALS):
            before = len(shadow.steps)
            try:
                if topic in functions.TOPICS:
                    calls += functions.TOPICS[topic].draw(k, names, offer_step)
                for step in steps:
                    offer_step(replace(step, out=shadow.fresh(len(step.out))), aimed=True, unimplemented=True)
                tally.topics[topic] += 1
                break
            except Refused:
                shadow.undo(before)
        else:
            # The aimed step may use some of them.
            needless = {*names} - {name for step in shadow.steps for name in step.names()}
            program = replace(program, inputs=tuple(one for one in program.inputs if one.name not in needless))
    for step in calls:
        shadow.offer(step)
    return _drawn(program, shadow, tally)


def _inputs_of(drawing: Drawing, d: Draw, topic: str, turn: int, seed: int, first: int) -> tuple[Program, list[Step]]:
    """The inputs of a topic, and the steps that are planned with them. Raises Refused."""
    if topic in functions.TOPICS:
        wanted = functions.TOPICS[topic].inputs(d, drawing.dtypes)
        if WANTS_GRAD in drawing.traits and any(one.requires_grad for one in wanted):
            raise Refused
        return draw_wanted(d, wanted, first), []
    from conformance.sources.fuzzing.op_db import converted, inputs_of  # op_db takes seconds to import

    most = functions.MOST_CONVERTED[topic]
    planned = list(converted(d, topic, drawing.dtypes, seed, turn, first, most))
    return _apart(drawing, inputs_of(planned)), [replace(call.step, out=("",) * call.results) for call in planned]


def _apart(drawing: Drawing, inputs: Program) -> Program:
    """Inputs with separate storages, if programs avoid shared ones."""
    return separated(inputs) if SHARED in drawing.traits else inputs


def _drawn(program: Program, shadow: Shadow, tally: Tally) -> Program:
    tally.programs += 1
    tally.steps += len(shadow.steps)
    tally.avoided += shadow.avoided
    return program.with_steps(tuple(shadow.steps))


OP_DB = ProgramKind(
    "calls of op_db's entries",
    (0, 4),
    draw_op_db,
    lambda drawing: (not drawing.only or op_db.FAMILY in drawing.only) and op_db.FAMILY not in drawing.without,
    every=ALONE,
    families=(op_db.FAMILY,),
    steps=(1, 14),
)

FURTHER_ARGUMENTS = replace(OP_DB, name="calls with further arguments", turns=(8,), every=NEVER, steps=(1, 60))

HAZARDS = ProgramKind(
    "hazards of memory",
    (3,),
    draw_hazards,
    lambda drawing: hazards.NAME in drawing.families and any(name in drawing.dtypes for name in hazards.DTYPES),
    every=ALONE,
    families=(hazards.NAME,),
    dtypes=tuple(hazards.DTYPES),
)

FUNCTIONS = ProgramKind(
    "topics of functions",
    (7,),
    draw_functions,
    lambda drawing: bool((drawing.compiled or drawing.only) and known_topics(drawing)),
    spare=(5,),  # most compilers have no states
    every=ALONE,
    families=functions.NAMES,
)

OPERATORS = ProgramKind(
    "topics of operators",
    (7,),
    draw_functions,
    lambda drawing: not (drawing.compiled or drawing.only) and bool(known_topics(drawing)),
    every_other=True,
)

STATES = ProgramKind(
    "changes of global states",
    (5,),
    draw_steps,
    lambda drawing: stateful.NAME in drawing.families,
    every=NAMED,
    families=(stateful.NAME,),
    aimed=False,
)

EDGES = ProgramKind(
    "edge-case calls",
    (2,),
    draw_steps,
    lambda drawing: edges.NAME in drawing.families,
    every=NAMED,
    families=(edges.NAME,),
    dtypes=edges.DTYPES,
    weights={edges.NAME: 12, "autograd": 3, fusion.NAME: 3, factories.NAME: 1, "view": 1},
    steps=(6, 14),  # many, since the steps depend little on each other
    # A step of a row and its inverse. The last opening has a selection of elements in between: a compiler that cancels
    # both conversions loses the rounding of the first.
    openings=(
        *((OPS[name], edges.UNDONE) for name in (*edges.INVERSE, "to.edge")),
        (edges.HALVED, edges.SELECTION, edges.UNDONE),
        # A gradient where two numbers are equal.
        *((OPS["requires_grad_"], OPS[name], edges.GRADIENT) for name in edges.KINKED),
    ),
)

EXPRESSIONS = ProgramKind(
    "expressions over special values",  # such a program stays lazy from its inputs to its last result
    (6,),
    draw_steps,
    lambda drawing: fusion.NAME in drawing.families and any(name in drawing.dtypes for name in PRECISE),
    spare=(2,),
    families=(fusion.NAME,),
    dtypes=PRECISE,
    weights={fusion.NAME: 12, "reduction": 2, factories.NAME: 1, "view": 1},
    steps=(2, 6),
    fixed=True,
)

SIZES = ProgramKind(
    thresholds.NAME,
    (9,),
    draw_sizes,
    lambda drawing: not drawing.only and op_db.FAMILY not in drawing.without,
    aimed=False,
)

ORDINARY = ProgramKind("views, writes and reads", (), draw_steps, lambda drawing: True)

KINDS = (OP_DB, FURTHER_ARGUMENTS, HAZARDS, FUNCTIONS, OPERATORS, STATES, EDGES, EXPRESSIONS, SIZES)
"""The kinds besides ordinary programs. Where two have one turn, it belongs to the first that occurs."""
