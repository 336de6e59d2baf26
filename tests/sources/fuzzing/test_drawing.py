"""Drawing of programs: each runs on torch CPU, and depends only on its seed and number; coverage is broad."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from hypothesis import HealthCheck, find, given, settings

from conformance import programs
from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.model import Program, dump
from conformance.program.reduce import reduce_program, settle
from conformance.program.shadow import reference
from conformance.program.steps import edges, functions
from conformance.program.steps.layouts import LAYOUTS
from conformance.program.steps.table import FAMILIES, OPS
from conformance.program.unsupported import AVOIDED, TRAITS, unsupported_reason, unsupported_steps, unsupported_traits
from conformance.run.campaign.drawing_counts import Tally
from conformance.sources.fuzzing.drawing import Drawing, DrawingError, UnknownFamily
from conformance.sources.fuzzing.kinds import (
    DTYPES,
    EDGES,
    EXPRESSIONS,
    FUNCTIONS,
    FURTHER_ARGUMENTS,
    HAZARDS,
    KINDS,
    OP_DB,
    OPERATORS,
    ORDINARY,
    PERIOD,
    SIZES,
    STATES,
    kind_of,
)

QUIET = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


class TestStrategy:
    @QUIET
    @given(programs())
    def test_every_drawn_program_has_a_meaning(self, program):
        """A drawn program survives a round trip through JSON, and torch CPU agrees with itself on it, declared errors
        included."""
        assert Program.from_json(json.loads(dump(program))).to_json() == program.to_json()
        assert judge_program(program, load_target("cpu")).passed

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_it_shrinks(self):
        """Hypothesis and then the reducer shrink a program with a diagonal to at most two steps."""

        def interesting(program):
            return any(step.op == "diagonal" for step in program.steps)

        fixed = settings(max_examples=2000, deadline=None, derandomize=True, database=None)
        least = reduce_program(find(programs(only=["view"]), interesting, settings=fixed), interesting)
        assert len(least.steps) <= 2
        assert least.steps[-1].op == "diagonal"

    def test_an_unknown_family_is_one_sentence(self):
        """The error names the families that exist."""
        with pytest.raises(UnknownFamily, match="unknown step family 'nonsense': choose from view"):
            programs(only=["nonsense"])

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ({"dtypes": []}, "there is no dtype to draw: choose from float32, int64"),
            ({"dtypes": ["float32", "float99"]}, "unknown dtype 'float99': choose from float32, int64"),
            (
                {"only": ["autograd"], "dtypes": ["uint8"]},
                "family 'autograd' cannot be drawn: of 300 programs with the dtypes uint8",
            ),
            ({"only": ["autograd"], "dtypes": ["uint8"], "without": ["view"]}, "no step to draw"),
            ({"only": ["setitem", "view"], "without": ["view"]}, "family 'view' cannot be drawn"),
            ({"only": ["setitem"], "without": ["setitem", "view"]}, "no step to draw"),
        ],
    )
    def test_what_cannot_be_drawn_is_one_sentence(self, words, message):
        """Options that allow no program are rejected with one sentence before drawing. Regression test: an unknown
        dtype failed only while drawing. An empty choice of dtypes or families raised an internal error, and a family
        without a suitable dtype disappeared silently."""
        with pytest.raises(DrawingError, match=message) as caught:
            programs(**words)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("dtype", dict.fromkeys(DTYPES))
    def test_every_dtype_alone_can_be_drawn(self, dtype):
        """Each dtype works alone, with and without bias, and for a family that needs an argument of that dtype.
        Regression test: `empty_filled` raised IndexError when bool was the only dtype."""
        for drawing in (
            Drawing(dtypes=(dtype,)),
            Drawing(dtypes=(dtype,), biased=False),
            Drawing(only=("empty_strided",), dtypes=(dtype,)),
        ):
            drawn = [drawing.numbered(5, number) for number in range(20)]
            assert {storage.dtype for program in drawn for storage in program.storages} == {dtype}
            assert sum(len(program.steps) for program in drawn) > 30
            for program in drawn[:5]:
                reference(program)

    def test_a_family_that_needs_another_first_can_be_drawn(self):
        """Integers have no gradient, but the result of their division has one. Only a trial draw shows that the family
        is possible."""
        assert Drawing(only=("autograd", "out of place"), dtypes=("int64",)).cells


class TestKinds:
    """Which programs of a campaign are of which kind."""

    def kinds(self, count: int = PERIOD, **options) -> list:
        drawing = Drawing(**options)
        return [kind_of(drawing, number)[0] for number in range(count)]

    def test_the_turns(self):
        """Turn 1 is of no kind. A compiler without states has a second turn of functions. A device has the topics of
        operators in every other period."""
        turns = [OP_DB, ORDINARY, EDGES, HAZARDS, OP_DB, STATES, EXPRESSIONS]
        assert self.kinds() == [*turns, OPERATORS, FURTHER_ARGUMENTS, SIZES]
        assert self.kinds(2 * PERIOD)[PERIOD:] == [*turns, ORDINARY, FURTHER_ARGUMENTS, SIZES]
        assert self.kinds(compiled=True) == [*turns, FUNCTIONS, FURTHER_ARGUMENTS, SIZES]
        assert self.kinds(compiled=True, without=("state",))[5] is FUNCTIONS
        assert self.kinds(without=("edges",))[2] is EXPRESSIONS
        assert {*self.kinds(biased=False)} == {ORDINARY}

    def test_no_two_kinds_have_one_turn(self):
        """Regression test: the turns were pairs of constants in several places, and nothing kept them apart."""
        turns = [turn for kind in KINDS if kind is not OPERATORS for turn in kind.turns]  # it has those of FUNCTIONS
        assert len(turns) == len({*turns}) and {*turns} < {*range(PERIOD)}

    @pytest.mark.parametrize(
        ("only", "kind"),
        [
            (("state",), STATES), (("state", "copy"), STATES), (("edges", "fusion"), EDGES), (("hazards",), HAZARDS),
            (("op_db",), OP_DB), ((FUNCTIONS.families[0],), FUNCTIONS),
        ],
    )  # fmt: skip
    def test_every_program_is_of_the_family_that_only_names(self, only, kind):
        assert {*self.kinds(only=only)} == {kind}

    @pytest.mark.parametrize("only", [("hazards", "copy"), ("op_db", "copy"), ("fusion",)])
    def test_others_keep_their_turns(self, only):
        """Such a kind has every turn only if no other family is named, or never."""
        assert ORDINARY in self.kinds(only=only)

    @pytest.mark.parametrize("options", [{}, {"compiled": True}, {"compiled": True, "without": ("state",)}])
    def test_the_index_counts_the_programs_of_a_kind(self, options):
        """Otherwise a topic or a cell would be left out or drawn twice."""
        drawing, seen = Drawing(**options), {kind: [] for kind in KINDS}
        for number in range(4 * PERIOD):
            kind, index = kind_of(drawing, number)
            seen.setdefault(kind, []).append(index)
        assert all(sorted(indices) == [*range(len(indices))] for kind, indices in seen.items() if kind is not ORDINARY)


class TestNumbered:
    def test_a_seed_and_number_is_a_program(self):
        """A seed and a number determine the program, in any order of drawing; other pairs give other programs."""
        drawing = Drawing()
        forward = [dump(drawing.numbered(7, number)) for number in range(20)]
        backward = [dump(drawing.numbered(7, number)) for number in reversed(range(20))]
        assert forward == backward[::-1]
        assert len(set(forward)) == 20
        assert dump(drawing.numbered(8, 0)) != forward[0]
        assert dump(pickle.loads(pickle.dumps(drawing)).numbered(7, 3)) == forward[3]

    def test_traits_that_a_target_does_not_support(self):
        """Programs avoid them. Regression test: of the programs of op_db's entries, vmap ran one in twenty."""
        usual, drawing = Drawing(), Drawing(without=("backward", "out="), traits=AVOIDED)
        avoided = [drawing.numbered(7, number) for number in range(80)]
        for trait in AVOIDED:
            assert any(TRAITS[trait](usual.numbered(7, number)) for number in range(80)), trait
            assert not any(TRAITS[trait](program) for program in avoided), trait
        assert not any(step.op == "backward" for program in avoided for step in program.steps)

    @pytest.mark.parametrize("spec", ["export", "functionalize", "grad"])
    def test_most_programs_run(self, spec):
        """Regression test: two of five did not, most of them since inputs shared a storage or a step raised."""
        target = load_target(spec)
        drawing = Drawing(without=unsupported_steps(target.facts), traits=unsupported_traits(target.facts))
        runs = [not unsupported_reason(drawing.numbered(7, number), target.facts) for number in range(80)]
        assert sum(runs) > 0.8 * len(runs)

    def test_most_aims_meet_their_cell(self):
        """About two thirds of the aimed programs reach their cell. Regression test: two fifths did, because programs
        ended before their aim, and some aims were cells that no table row accepts."""
        drawing, met = Drawing(), []
        assert ("matmul", "0-d", "float32") not in drawing.cells
        for number in range(1, 401, 2):
            tally, aim = Tally(), drawing.aim(5, number)
            drawing.numbered(5, number, tally)
            met += [aim in tally.cells] if aim else []  # programs that change states have no aim
        assert sum(met) > 0.55 * len(met)

    def test_five_hundred_programs_reach_everything(self):
        """500 programs cover every family and layout class, differ from each other, and need few rejected draws. The
        topics of functions belong to programs for compilers."""
        tally = Tally()
        drawn = [Drawing().numbered(0, number, tally) for number in range(500)]
        assert {family for family, _, _ in tally.cells} == {*FAMILIES} - {*functions.NAMES}
        layouts = {layout for _, layout, _ in tally.cells}
        assert layouts >= {
            "0-d",
            "contiguous",
            "empty",
            "expanded",
            "gaps",
            "non-divisible",
            "overlapping",
            "permuted",
            "permuted gaps",
            "window",
        }
        assert len({tuple(step.op for step in program.steps) for program in drawn}) > 450
        turned_down = sum(count for reason, count in tally.avoided.items() if not reason.startswith("nothing fits"))
        assert turned_down < 0.05 * tally.steps
        assert any(reason == "write through overlapping memory" for reason in tally.avoided)
        assert any(step.raises for program in drawn for step in program.steps)

    @pytest.mark.slow
    def test_programs_for_compilers_reach_the_topics(self):
        """500 programs for a compiler also have every topic of functions."""
        tally = Tally()
        for number in range(500):
            Drawing(compiled=True).numbered(0, number, tally)
        assert {*tally.topics} == {*functions.NAMES}

    @pytest.mark.slow
    def test_every_op_is_drawn(self):
        """Every row of the op table occurs at least once."""
        drawn = {
            inner.op
            for number in range(6000)
            for step in Drawing(compiled=True).numbered(1, number).steps
            for inner in (step, *step.body)
        }
        assert not {*OPS} - drawn

    def test_families_and_dtypes_can_be_chosen(self):
        """`only`, `without`, `dtypes` and `steps` restrict the drawn programs."""
        drawing = Drawing(steps=(2, 3), only=("arithmetic",), dtypes=("int64",))
        for number in range(50):
            program = drawing.numbered(0, number)
            assert {OPS[step.op].family for step in program.steps} <= {"view", "arithmetic"}
            assert {storage.dtype for storage in program.storages} == {"int64"}
            assert len(program.steps) <= 3
        drawing = Drawing(without=("view",))
        kept = {OPS[step.op].family for number in range(50) for step in drawing.numbered(0, number).steps}
        assert kept
        assert "view" not in kept


@pytest.mark.parametrize("name", ["select_scatter", "slice_scatter", "diagonal_scatter"])
def test_no_copy_of_overlapping_memory_is_written(name):
    """These ops copy the layout and then write to the copy. If elements share memory, PyTorch does not define which
    write wins."""
    assert OPS[name].fits(torch.ones(3, 3))
    assert not OPS[name].fits(torch.arange(9.0).as_strided((3, 3), (2, 2)))


class TestLayouts:
    def test_the_catalogue_is_drawn_by_name(self):
        """The layout catalogue has a dozen classes."""
        assert len(LAYOUTS) == 12


class TestReduce:
    def test_a_smaller_program_still_has_a_meaning(self):
        """Every candidate that the reducer accepts runs on the CPU, with newly declared errors."""
        for number in range(30):
            program = Drawing().numbered(3, number)
            small = reduce_program(program, lambda candidate: len(candidate.steps) >= 2, 60)
            assert len(small.steps) <= max(2, len(program.steps))
            reference(small)

    def test_to_nothing(self):
        """If every candidate fails, the reducer removes all steps."""
        program = Drawing().numbered(3, 1)
        assert not reduce_program(program, lambda candidate: True).steps

    def test_settle_refuses_what_has_no_meaning(self):
        """A program with a step that uses an undefined name is rejected."""
        program = Drawing(steps=(3, 3)).numbered(3, 1)
        broken = Program(program.storages, (), program.steps)
        assert settle(broken) is None


class TestEdges:
    """Programs of calls at the edge of their domain have their own numbers."""

    def test_one_in_a_period_is_of_edges_and_no_other_has_such_a_step(self):
        """Programs of edge calls have numbers 2 modulo 10; all other programs of a seed are independent of them."""
        drawn = {number: {OPS[step.op].family for step in Drawing().numbered(3, number).steps} for number in range(26)}
        assert all("edges" in drawn[number] for number in (2, 12, 22))
        assert not any("edges" in families for number, families in drawn.items() if number % PERIOD != 2)

    def test_a_storage_that_a_second_input_makes_longer_has_a_value_everywhere(self):
        """Every element of a storage has a value in the program. Regression test: when a second input extended a
        storage, its list of values stayed short, and the added elements were uninitialized memory."""
        for number in range(2, 400, PERIOD):
            program = Drawing().numbered(0, number)
            assert all(len(storage.make()) == storage.size for storage in program.storages)

    def test_a_selection_lies_between_a_conversion_to_a_half_and_its_inverse(self):
        """One opening converts a float to a half, selects elements and converts back, all under one name, so a
        device need not compute the half. Regression test: tiny did not round a half that `where` selected, and no
        program had one."""
        (place,) = [at for at, opening in enumerate(EDGES.openings) if edges.HALVED in opening]
        every = range(2 + PERIOD * place, 200 * PERIOD, PERIOD * len(EDGES.openings))
        openings = [Drawing().numbered(0, number).steps[:3] for number in every]
        rounding = [
            (half, selection, whole)
            for half, selection, whole in openings
            if half.op == whole.op == "to.edge" and half.out == selection.out == whole.out
        ]
        assert {selection.op for _, selection, _ in rounding} == {*edges.SELECTIONS}
        assert {half.args[1]["dtype"] for half, _, _ in rounding} == {*edges.HALVES}
        assert all(whole.args[1]["dtype"] in edges.PRECISE for _, _, whole in rounding)

    def test_a_gradient_where_numbers_are_equal(self):
        """Regression test: with seeds 1 and 3, no program of 4,000 found that the gradient at a bound of clamp is 0."""
        (place,) = [at for at, opening in enumerate(EDGES.openings) if OPS["clamp.number"] in opening]
        every = range(2 + PERIOD * place, 200 * PERIOD, PERIOD * len(EDGES.openings))
        openings = [[step.op for step in Drawing().numbered(0, number).steps[:3]] for number in every]
        assert sum("clamp.number" in names and names[-1] == "backward" for names in openings) > len(every) // 4

    def test_zeros_of_both_signs_are_not_compared(self):
        """PyTorch does not define the order of 0.0 and -0.0."""
        assert not edges._one_zero(torch.tensor([0.0, -0.0]))
        assert edges._one_zero(torch.tensor([0.0, 1.0]))
