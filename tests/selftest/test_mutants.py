"""The fuzzer's power: it finds planted faults within few programs, and shrinks them to a step or two."""

from __future__ import annotations

import statistics
import warnings

import pytest
import torch

from conformance.engine.loading import load_target
from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Step, tensor
from conformance.program.trial import Trial
from conformance.selftest.faults import FAULTS
from conformance.selftest.mutants import NOTHING, find_differences, hunt
from conformance.sources.fuzzing.drawing import Drawing

QUICK = [
    "slice drops the offset",
    "transpose is stale",
    "copy_ clobbers the gap",
    "clone of a transpose aliases",
    "out= ignores strides",
    "mask is off by one",
    "empty_strided is contiguous",
    "every third write is lost",
]


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class TestPower:
    def test_common_faults_are_found_within_a_hundred_programs(self):
        """The fuzzer finds each fault and shrinks it to at most three steps on one input; op_db entries, which may need
        more, are excluded."""
        hunts = {name: hunt(name, Drawing(without=("op_db",)), 2, 100) for name in QUICK}
        assert [name for name, one in hunts.items() if one.programs is None] == []
        assert all(len(one.small.steps) <= 3 and len(one.small.inputs) == 1 for one in hunts.values())

    @pytest.mark.timeout(300)  # compiles some hundred kernels with an empty cache
    def test_faults_are_found_in_the_tiny_device(self):
        """Faults are planted in the dispatcher of the tiny device. A program that tiny itself gets wrong does not
        count. The programs are short, because each smaller program has kernels of its own to compile."""
        drawing = Drawing((1, 4), without=("op_db",))
        hunts = {name: hunt(name, drawing, 0, 30, beneath="tiny") for name in QUICK[:4]}
        assert [name for name, one in hunts.items() if one.programs is None] == []

    @pytest.mark.slow
    def test_every_fault_is_found(self):
        """The fuzzer finds all faults within 2,000 programs; the median is below 100 programs and at most 4 steps."""
        hunts = {name: hunt(name, Drawing(), 0, 2000) for name in FAULTS}
        assert [name for name, one in hunts.items() if one.programs is None] == []
        assert statistics.median(one.programs for one in hunts.values()) < 100
        assert statistics.median(len(one.small.steps) for one in hunts.values()) <= 4

    @pytest.mark.parametrize(("size", "stride"), [((1, 3), (0, 1)), ((3, 1), (1, 2)), ((2, 2), (1, 3))])
    def test_a_conversion_that_rounds_keeps_its_strides(self, size, stride):
        """Only values are wrong. Regression test: the fault rounded into a new layout and showed in its strides at
        program 105, while its values first differ at program 1,028."""
        program = Program(
            (Storage("float32", 6, [0.75, 1.75, 2.75, 3.75, 4.75, 5.75]),),
            (Input("a", 0, "float32", size, stride),),
            (Step("to", (tensor("a"), {"dtype": "int64"}), out=("b",)),),
        )
        found = find_differences(Trial.of(program, load_target("mutant:float to int rounds")))
        assert {mismatch.oracle for mismatch in found} == {"value"}

    def test_a_fault_knows_a_storage_from_a_later_one_at_its_address(self):
        """Regression test: "every third write is lost" counted by address, so a write to a third short-lived tensor
        could be lost, and which programs failed depended on where the allocator placed them."""
        target = load_target("mutant:every third write is lost")
        target.prepare()
        target.send([])
        with target.active():
            written = [torch.zeros(3).add_(1).tolist() for _ in range(6)]
        assert written == [[1.0] * 3] * 6

    def test_a_lost_write_to_new_memory_shows_the_same_value_in_every_run(self):
        """Regression test: the bytes that the allocator left there were sometimes the right ones, so to which program a
        fault was shrunk depended on them."""
        program = Program(
            (Storage("int64", 0, []),),
            (Input("a", 0, "int64", (0,), (1,)),),
            (Step("add_", (tensor("a"), 0)), Step("add_", (tensor("a"), 0)), Step("resize_filled_", (tensor("a"), []))),
        )
        found = find_differences(Trial.of(program, load_target("mutant:every third write is lost")))
        assert {mismatch.actual for mismatch in found if mismatch.oracle == "value"} == {str(0x4141414141414141)}

    def test_there_are_forty_faults(self):
        """Each fault names the real bug that it imitates."""
        assert len(FAULTS) >= 40
        assert all(fault.like for fault in FAULTS.values())


class TestTheModeAlone:
    """The planting mode changes the strides of some results on torch CPU, even without a fault."""

    PROGRAM = Program(
        (Storage("float32", 1, [0]),),
        (Input("b", 0, "float32", (), ()),),
        (
            Step("empty_filled", ([1, 2, 1], [3, 1, 3], {"dtype": "float32"}, {"device": 0}, 0), out=("c",)),
            Step("nn.functional.max_pool1d", (tensor("c"), 1, 1, 0), out=("e",)),
        ),
    )

    def test_a_program_that_the_mode_changes_is_found_no_fault(self) -> None:
        """A difference that the planting mode causes is no detection. Regression test: a squeezed result of max pooling
        has other strides under any dispatch mode, which counted as a detected fault."""
        assert not find_differences(Trial.of(self.PROGRAM, load_target("cpu")))
        assert find_differences(Trial.of(self.PROGRAM, load_target(f"mutant:{NOTHING}")))

        class Only(Drawing):
            def numbered(self, seed, number, tally=None):
                return TestTheModeAlone.PROGRAM

        result = hunt("flip forgets the last dim", Only(), 0, 1)
        assert (result.tried, result.programs) == (1, None)
