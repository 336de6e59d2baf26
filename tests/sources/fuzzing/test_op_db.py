"""op_db entries as steps: coverage of entries, torch CPU against itself, and detection of faults in their ops."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
import torch

from conformance.program.calls import judge_program
from conformance.program.model import Program, ProgramError
from conformance.program.script import script
from conformance.program.steps.draw import Draw
from conformance.selftest.faults import Fault, InterceptedCall
from conformance.selftest.mutants import MutantTarget, Planted
from conformance.sources.fuzzing import op_db, op_db_calls
from conformance.sources.fuzzing.drawing import Drawing, Tally
from conformance.sources.fuzzing.kinds import OP_DB, kind_of
from conformance.targets.cpu import CpuTarget

UNDRAWN = 75
"""Maximum number of op_db entries without a drawn call. These are random ops, entries without a value, a public name or
a small sample, and decompositions with free signs. `unmet` lists them."""


ORDERING = frozenset({"sort", "argsort", "msort", "topk", "kthvalue", "mode", "median"})


class OneFault(MutantTarget):
    """torch CPU with one planted fault."""

    def __init__(self, ops: str, act: Callable[[InterceptedCall], object]) -> None:
        super().__init__("zero_ clears the storage")
        self.mode = Planted(Fault(ops, act, "a test"))


def programs(seed: int, count: int, tally: Tally | None = None) -> list[Program]:
    drawing = Drawing()
    return [drawing.numbered(seed, number, tally) for number in numbers(count)]


def numbers(count: int) -> list[int]:
    """The numbers below `count` of programs of op_db's entries."""
    return [number for number in range(count) if kind_of(Drawing(), number)[0] is OP_DB]


@pytest.fixture(scope="module")
def drawn() -> tuple[list[Program], Tally]:
    tally = Tally()
    return programs(0, 500, tally), tally


def spoilt(*results: torch.Tensor) -> object:
    """Fill these results with 7, including any `out=` tensor."""
    for result in results:
        torch.ops.aten.fill_(result, 7)
    return results if len(results) > 1 else results[0]


def calling(drawn: tuple[list[Program], Tally], ops: str) -> list[Program]:
    """The programs that call one of these ops."""
    names = set(ops.split())
    called = [{step.op.rpartition(":")[2].rpartition(".")[2] for step in program.steps} for program in drawn[0]]
    return [program for program, held in zip(drawn[0], called, strict=True) if names & held]


class TestDrawing:
    def test_no_call_makes_a_tensor_on_the_cpu(self):
        """A later step would use it beside the device's tensors. Regression test: a sample of `new_ones` has
        `device="cpu"`, and a right device failed with it."""
        known = [next(op_db_calls.drawn_calls(Draw(random.Random(at).randint), ("new_ones", ""), "forward", "float32"))
                 for at in range(20)]  # fmt: skip
        assert known and not any("cpu" in call.step.kwargs.values() for call in known)

    def test_every_entry_is_met_in_the_first_500_programs(self, drawn):
        met = {cell.partition("|")[0] for cell in drawn[1].entries}
        known = {".".join(filter(None, key)) for key in op_db_calls.entries()}
        assert met <= known
        assert len(op_db_calls.excluded()) - len(met) <= UNDRAWN, sorted(known - met)

    def test_entries_with_free_results_are_left_out(self, drawn):
        """A program compares values, and a decomposition of another order or sign is right, too. Regression test: a
        device with the same eigenvalues in another order failed."""
        names = {step.op.partition(":")[2] for program in drawn[0] for step in program.steps}
        assert not names & {"linalg.eigvals", "linalg.eig", "linalg.eigh", "linalg.svd", "svd", "linalg.qr", "qr"}

    def test_variants_layouts_and_dtypes_are_mixed(self, drawn):
        cells = [cell.split("|") for cell in drawn[1].entries]
        for at, least in ((1, 3), (2, 8), (3, 10)):
            assert len({cell[at] for cell in cells}) >= least

    def test_equal_elements_are_not_ordered(self, drawn):
        """A device may order equal elements as it likes, and bools are equal. Regression test: program 140 sorted 250
        of them, and CUDA's order differs."""
        ordered = []
        for program in drawn[0]:
            inputs = {one.name: one for one in program.inputs}
            for step in program.steps:
                if step.op.rpartition(":")[2] in ORDERING and (one := inputs.get(step.names()[0])) is not None:
                    ordered.append((step.op, one.dtype, math.prod(one.size)))
        assert len(ordered) > 5
        assert not [row for row in ordered if row[1] == "bool" and row[2] > 2]

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint8"])
    def test_no_tie_in_a_narrow_dtype(self, dtype):
        """250 random numbers of float16 repeat: CUDA chose another of two equal ones. A sample that is too large for
        distinct numbers is not drawn."""
        count = 0
        for name, turn in itertools.product(("topk", "kthvalue", "median", "sort"), range(12)):
            for planned in op_db.OpDbCalls((dtype, "int64")).plan(
                Draw(random.Random(turn).randint), (name, ""), turn, 0, 0, Tally()
            ):
                (values,) = (storage.make() for storage in planned.storages[:1])
                if planned.inputs[0].dtype == dtype:
                    one = values.as_strided(planned.inputs[0].size, planned.inputs[0].stride, planned.inputs[0].offset)
                    assert one.unique().numel() == one.numel(), (name, turn)
                    count += 1
        assert count > 24

    def test_no_two_elements_with_one_index(self):
        """torch may keep either of the two. Formerly the index tensor could be an expanded row."""
        count = 0
        for turn in range(40):
            for planned in op_db.OpDbCalls(("float32", "int64")).plan(
                Draw(random.Random(turn).randint), ("scatter", ""), turn, 0, 0, Tally()
            ):
                count += sum(one.dtype == "int64" and 0 not in one.size for one in planned.inputs)
                for one in planned.inputs:
                    assert all(stride or size < 2 for size, stride in zip(one.size, one.stride, strict=True))
        assert count > 20

    def test_an_empty_input_lies_within_its_storage(self, drawn):
        """As `x[2:2]` does: no view reaches an offset behind the end of a storage, so a device without `as_strided`
        ran fewer programs."""
        empty = [
            (one, program.storages[one.storage]) for program in drawn[0] for one in program.inputs if 0 in one.size
        ]
        assert any(one.offset for one, _ in empty)
        assert not [(one, storage) for one, storage in empty if one.offset > storage.size]

    def test_a_program_is_the_same_again_and_as_json(self, drawn):
        for at, number in [*enumerate(numbers(100))][::7]:
            again = Drawing().numbered(0, number)
            assert again.to_json() == drawn[0][at].to_json()
            assert Program.from_json(again.to_json()).to_json() == again.to_json()

    def test_other_programs_can_be_left_out_and_these_too(self):
        only = Drawing(only=("op_db",))
        assert all(any(step.op.startswith("op_db") for step in only.numbered(3, n).steps) for n in range(6))
        without = Drawing(without=("op_db",))
        assert not any(step.op.startswith("op_db") for n in numbers(30) for step in without.numbered(3, n).steps)

    @pytest.mark.slow
    def test_what_a_profile_lacks_is_not_called(self):
        drawing = Drawing(only=("op_db",), lacking=("aten::add.Tensor", "aten::add.out", "aten::add_.Tensor"))
        tally = Tally()
        for number in range(90):
            drawing.numbered(0, number, tally)
        assert not any(cell.startswith("add|") for cell in tally.entries)

    def test_calls_of_the_harness_itself_are_no_need(self):
        """Ops that only the harness calls do not count as required. Regression test: the shadow builds inputs with
        `set_`, and a profile without it left 22 of 626 entries."""
        with_all, without = Tally(), Tally()
        for number in numbers(30):
            Drawing().numbered(1, number, with_all)
            Drawing(lacking=("aten::set_.source_Storage_storage_offset",)).numbered(1, number, without)
        assert without.entries == with_all.entries and not without.lacking

    def test_an_entry_that_needs_what_is_lacking_is_given_up_soon(self, monkeypatch):
        """Drawing stops early for an entry that needs an unsupported op, and the tally names the entry. Regression
        test: every call of the entry was tried in every dtype, which made a campaign three times as slow. The test
        counts calls, because times depend on the machine."""
        tried, operators_of = list[object](), op_db.operators_of
        monkeypatch.setattr(
            op_db, "operators_of", lambda *arguments: tried.append(arguments) or operators_of(*arguments)
        )
        key, lacking = ("exp", ""), ("aten::exp", "aten::exp.out", "aten::exp_")
        tally = Tally()
        plan = op_db.OpDbCalls(("float32", "float64"), frozenset(lacking)).plan(
            Draw(random.Random(0).randint), key, 0, 0, 0, tally
        )
        assert not plan and len(tried) == op_db.TRIED
        assert [name.partition("|")[2] for name in tally.lacking] == ["exp"]

    def test_out_tensors_are_of_other_sizes_and_dtypes_too(self, drawn):
        raised = [step for program in drawn[0] for step in program.steps if step.op.startswith("op_db.out")]
        assert any(step.raises for step in raised)
        assert any(not step.raises for step in raised)


class TestNames:
    @pytest.mark.parametrize("name", ["op_db:load", "op_db:os.system", "op_db:nn.functional.warnings", "op_db.odd:add",
                                      "op_db.method:nothing", "op_db:ops.aten.nothing"])  # fmt: skip
    def test_a_program_from_a_file_names_operators_only(self, name):
        """`torch.load` is a function of torch, but a program file may call operators only."""
        data = {"schema": 1, "storages": [], "inputs": [], "steps": [{"op": name, "args": ["x"]}]}
        with pytest.raises(ProgramError, match="unknown op"):
            Program.from_json(data)


class TestJudging:
    def test_the_cpu_agrees_with_itself(self, drawn):
        assert not [v for program in drawn[0][:60] for v in judge_program(program, CpuTarget()).mismatches]

    @pytest.mark.parametrize(
        ("ops", "act"),
        [
            ("trace", lambda call: spoilt(call.run())),
            ("special_i1e i1e", lambda call: spoilt(call.run())),
            ("kthvalue", lambda call: spoilt(*call.run())),
            ("index_reduce_", lambda call: call.first.zero_()),
            ("native_batch_norm", lambda call: spoilt(*call.run())),
            ("logaddexp2", lambda call: spoilt(call.run())),
        ],
    )
    def test_a_lie_of_an_op_that_no_other_step_calls_is_caught(self, drawn, ops, act):
        assert any(
            judge_program(program, OneFault(ops, act), locate=False).mismatches for program in calling(drawn, ops)
        )

    def test_an_out_tensor_of_as_many_elements_in_another_size(self, drawn):
        """A write that ignores the strides of `out=` is a mismatch. Regression test: on `tiny`, `torch.linspace(0, 3,
        4, out=x.narrow(1, 1, 2))` wrote outside the view."""

        def flat(call: InterceptedCall) -> object:
            out = call.kwargs.get("out")
            if out is None or out.is_contiguous() or not out.numel():
                return call.run()
            result = call.func(*call.args, **{**call.kwargs, "out": torch.empty(0, dtype=out.dtype)})
            if result.nbytes == out.untyped_storage().nbytes():
                out.untyped_storage().copy_(result.untyped_storage())
            return out

        ops = "add mul sub div atan2 maximum hypot logaddexp fmod remainder"
        assert any(
            judge_program(program, OneFault(ops, flat), locate=False).mismatches for program in calling(drawn, ops)
        )

    def test_its_script_needs_torch_only(self, drawn):
        for program in drawn[0][:8]:
            text = script(program, CpuTarget())
            assert "conformance" not in text.partition("# ")[0]
            compile(text, "script.py", "exec")
