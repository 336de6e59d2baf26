"""Programs of sizes: their lengths, that torch CPU agrees with itself, faults found, and sizes that they shrink to."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage
from conformance.program.reduce import reduce_program
from conformance.program.steps.draw import Draw, Refused
from conformance.program.steps.op import Step, tensor
from conformance.program.steps.table import OPS
from conformance.program.steps.thresholds import CASES, LENGTHS, MOST, draw_length
from conformance.run.campaign.drawing_counts import Tally
from conformance.selftest.faults import FUNCTION
from conformance.selftest.mutants import Planted, PlantedAbove, hunt
from conformance.selftest.size_faults import SIZE_FAULTS
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.kinds import DTYPES, PERIOD, SIZES, cases_of


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class OfSizes(Drawing):
    """Only the programs of a seed with calls at sizes."""

    def numbered(self, seed, number, tally=None):
        return super().numbered(seed, PERIOD * number + SIZES.turns[0], tally)


class TestLengths:
    def test_each_threshold_and_what_lies_beside_it(self):
        drawn = {draw_length(Draw(random.Random(at).randint)) for at in range(2000)}
        for length in LENGTHS:
            assert {length - 1, length, length + 1, 2 * length, 3 * length} <= drawn

    def test_most(self):
        """A limit holds for the threshold, not for its multiples."""
        assert max(draw_length(Draw(random.Random(at).randint), 64) for at in range(300)) == 192


class TestCases:
    @pytest.mark.parametrize("name", CASES)
    def test_each_has_an_answer(self, name):
        """Its steps are in the table, at least one input is long, and the tensors are small enough to stay fast."""
        for at in range(12):
            wanted, steps = CASES[name](Draw(random.Random(at).randint), DTYPES)
            sizes = [torch.Size(one.size) for one in wanted]
            assert all(step.op in OPS or OPS[step.op] for step in steps)
            assert max(n for size in sizes for n in size) >= 15
            assert max(size.numel() for size in sizes) <= 3 * MOST

    @pytest.mark.parametrize("name", CASES)
    def test_without_its_dtypes_it_is_refused(self, name):
        with pytest.raises(Refused):
            CASES[name](Draw(random.Random(0).randint), ("float8_e5m2",))

    def test_they_take_turns(self):
        seen = [name for index in range(40) for name in cases_of(Drawing(), 3, index)]
        for at in range(0, len(seen) - len(CASES), len(CASES)):
            assert {*seen[at : at + len(CASES)]} == {*CASES}


class TestPrograms:
    def test_torch_agrees_with_itself(self):
        """Nearly every case becomes a step, and each program is the same again."""
        tally = Tally()
        for number in range(20):
            program = OfSizes().numbered(3, number, tally)
            assert judge_program(program, load_target("cpu")).passed
            assert OfSizes().numbered(3, number).to_json() == program.to_json()
        assert tally.steps > 20 * 4 and tally.avoided.total() < 10

    def test_dtypes_and_steps_can_be_chosen(self):
        for number in range(10):
            program = OfSizes((1, 3), dtypes=("int64",)).numbered(0, number)
            assert {storage.dtype for storage in program.storages} <= {"int64"}
            assert all(OPS[step.op].family != "view" for step in OfSizes(without=("view",)).numbered(0, number).steps)
            assert len(program.steps) <= 6


ATTENTION = torch.nn.functional.scaled_dot_product_attention


def rows(*size):
    return torch.arange(float(torch.Size(size).numel())).reshape(size)


# For each fault, a call with a changed result, and a smaller one without.
SEEN = {
    "attention of views is wrong at multiples of 64": (
        lambda: ATTENTION(*[rows(1, 64, 2, 4).transpose(1, 2)] * 3), lambda: ATTENTION(*[rows(1, 2, 64, 4)] * 3)
    ),
    "a broadcast is wrong from column 64": (lambda: rows(2, 65) + rows(65), lambda: rows(2, 64) + rows(64)),
    "nonzero is cut off at 1,024 elements": (lambda: rows(1025).nonzero(), lambda: rows(1024).nonzero()),
    "mask indexing is cut off at 1,024 elements": (
        lambda: rows(1025)[rows(1025) > 3], lambda: rows(1024)[rows(1024) > 3]
    ),
    "a sum of 33 or 65 elements loses the last": (lambda: rows(2, 33).sum(1), lambda: rows(2, 34).sum(1)),
    "softmax loses what is beyond 1,024": (lambda: rows(1025).softmax(0), lambda: rows(1024).softmax(0)),
    "a transposed copy repeats its first tile": (lambda: rows(33, 33).t().clone(), lambda: rows(33, 33).clone()),
    "cumsum carries nothing over 256": (lambda: rows(257).cumsum(0), lambda: rows(256).cumsum(0)),
    "matmul beyond 128 loses its remainder": (lambda: rows(2, 129) @ rows(129, 2), lambda: rows(2, 127) @ rows(127, 2)),
    "add beyond 4,096 elements is 0": (lambda: rows(4097) + 1, lambda: rows(4096) + 1),
    "an index is a byte": (
        lambda: rows(300).index_select(0, torch.tensor([299])), lambda: rows(256).index_select(0, torch.tensor([255]))
    ),
    "argmax counts within its block": (lambda: rows(2049).argmax(0), lambda: rows(2048).argmax(0)),
}  # fmt: skip


class TestFaults:
    @pytest.mark.parametrize("name", SIZE_FAULTS)
    def test_a_fault_has_the_effect_of_its_name(self, name):
        fault = SIZE_FAULTS[name]
        wrong, right = SEEN[name]
        expected = wrong(), right()
        with PlantedAbove(fault) if fault.level == FUNCTION else Planted(fault):
            changed, same = wrong(), right()
        assert changed.shape != expected[0].shape or not torch.equal(changed, expected[0])
        assert torch.equal(same, expected[1])

    @pytest.mark.parametrize(
        ("name", "lengths"),
        [
            ("a broadcast is wrong from column 64", {65}), ("cumsum carries nothing over 256", {257}),
            pytest.param("matmul beyond 128 loses its remainder", {129}, marks=pytest.mark.slow),
            ("attention of views is wrong at multiples of 64", {64}),
        ],
    )  # fmt: skip
    def test_it_shrinks_to_the_smallest_size_that_fails(self, name, lengths):
        """Regression test: no program had such a size. Without its own pass, the reducer cut lengths by one."""
        found = hunt(name, OfSizes(), 0, 120)
        assert found.small is not None
        assert {n for one in found.small.inputs for n in one.size if n > 8} == lengths

    @pytest.mark.parametrize("name", [name for name in SIZE_FAULTS if "1,024 elements" in name])
    def test_it_shrinks_to_the_fewest_elements_that_fail(self, name):
        """Formerly it stayed at 33 rows of 32 columns, since neither fewer rows nor fewer columns fail."""
        found = hunt(name, OfSizes(), 0, 120)
        assert found.small is not None
        assert max(torch.Size(one.size).numel() for one in found.small.inputs) == 1025


class TestShrinking:
    @pytest.mark.parametrize("least", [65, 64, 100, 129, 1000])
    def test_a_length_is_cut_in_all_inputs(self, least):
        """Two inputs that fit together stay so, and few candidates suffice at any least length."""
        start = Program(
            (Storage("float32", 3000), Storage("float32", 6000)),
            (Input("a", 0, "float32", (3000,), (1,)), Input("b", 1, "float32", (2, 3000), (3000, 1))),
            (Step("add", (tensor("b"), tensor("a")), out=("c",)),),
        )
        tried: list[Program] = []

        def fails(candidate: Program) -> bool:
            tried.append(candidate)
            by_name = {one.name: one.size for one in candidate.inputs}
            steps = [step for step in candidate.steps if step.op == "add"]
            return bool(steps) and len(by_name) == 2 and by_name["a"][-1:] == by_name["b"][-1:] >= (least,)

        small = reduce_program(start, fails, 200)
        assert {one.size[-1] for one in small.inputs} == {least}
        assert len(tried) < 200

    def test_a_limit_of_elements_is_reached_in_one_dimension(self):
        """Of 33 rows of 32 columns, neither fewer rows nor fewer columns have 1,025 elements."""
        start = Program(
            (Storage("float32", 1056),),
            (Input("a", 0, "float32", (33, 32), (32, 1)),),
            (Step("neg", (tensor("a"),), out=("b",)),),
        )
        small = reduce_program(start, lambda one: torch.Size(one.inputs[0].size).numel() > 1024, 100)
        assert small.inputs[0].size == (1025,)
