"""Recorded calls: their file, and the programs that they become."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest
import torch

from conformance.program.execute import make_inputs
from conformance.program.float64 import truth_of
from conformance.program.model import Program, ProgramError, Storage
from conformance.program.recorded import Calls, CallsError, RecordedCall, program_of
from conformance.program.script import script
from conformance.program.shadow import reference
from conformance.targets.cpu import CpuTarget

FLOATS = {"low": -2.0, "high": 2.0}


def a(name: str = "a") -> dict:
    return {"t": name}


ADD = RecordedCall("add.Tensor", (a(), a("b")), {"alpha": 2}, (("float32", 12, FLOATS), ("float32", 3, FLOATS)),
           ((0, "float32", (2, 3), (6, 1), 2), (1, "float32", (3,), (1,), 0)), "t", (0,))  # fmt: skip
PICK = RecordedCall("index_select.default", (a(), 0, a("b")), {},
            (("float32", 8, FLOATS), ("int64", 5, {"low": 1, "high": 3})),
            ((0, "float32", (4, 2), (2, 1), 0), (1, "int64", (5,), (1,), 0)), "t", (0, 1))  # fmt: skip


def calls(*recorded: RecordedCall) -> Calls:
    return Calls(["one", "two"], list(recorded), {"one": 7, "two": 3}, torch="2.13.0")


class TestRandomValues:
    """The generator "random" of a storage."""

    @pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int64", "uint8", "bool", "complex64"])
    def test_the_same_number_gives_the_same_cells(self, dtype):
        """Cells depend on the number only, and on no other random state."""
        storage = Storage(dtype, 50, {"random": 3, "low": 0, "high": 1})
        first = storage.make()
        torch.manual_seed(0)
        assert first.dtype is getattr(torch, dtype)
        assert torch.equal(first, storage.make())
        assert first.tolist() == storage.literal()
        assert len({str(Storage(dtype, 50, {"random": n, "low": 0, "high": 1}).literal()) for n in range(3)}) == 3

    @pytest.mark.parametrize("size", [2, 500, 9000])
    def test_floats_are_distinct_and_in_range(self, size):
        """So an operator that sorts has one answer."""
        tensor = Storage("float32", size, {"random": 1, "low": 0.1, "high": 1.0}).make()
        assert tensor.unique().numel() == size
        assert float(tensor.min()) >= 0.1 - 1e-6
        assert float(tensor.max()) <= 1.0 + 1e-6

    def test_integers_keep_their_range_order_and_difference(self):
        """An index stays in its dimension; a permutation stays one; ascending ends reach the last row."""
        assert {*Storage("int64", 300, {"random": 1, "low": 2, "high": 4}).literal()} == {2, 3, 4}
        ends = Storage("int32", 4, {"random": 1, "low": 0, "high": 9, "sorted": True}).literal()
        assert ends == sorted(ends)
        assert ends[-1] == 9
        assert sorted(Storage("int64", 6, {"random": 1, "low": 0, "high": 5, "distinct": True}).literal()) == [
            *range(6)
        ]

    def test_a_further_number_replaces_some(self):
        """Labels hold the ignored one as well as others."""
        numbers = Storage("int64", 60, {"random": 1, "low": 0, "high": 3, "beside": -100}).literal()
        assert {*numbers} == {-100, 0, 1, 2, 3}
        low = Storage("float32", 60, {"random": 1, **FLOATS, "beside": {"number": "-inf"}}).make()
        assert 0 < int(low.isinf().sum()) < 60

    @pytest.mark.parametrize("values", [{"random": 1}, {"random": 1, "low": 0, "high": 1, "high_": 2}])
    def test_an_incomplete_description_is_refused(self, values):
        with pytest.raises(ProgramError, match="has the values"):
            Program((Storage("float32", 2, values),), ()).check()


class TestProgramOf:
    def test_geometry_arguments_and_result(self):
        """The inputs have the recorded sizes, strides and offset, and the call has its arguments."""
        program = program_of(ADD, 0)
        inputs = make_inputs(program)
        assert (inputs["a"].stride(), inputs["a"].storage_offset(), inputs["a"].shape) == ((6, 1), 2, (2, 3))
        seen = reference(program).observation.tensors["result"].value
        torch.testing.assert_close(seen, inputs["a"] + 2 * inputs["b"])

    def test_the_seed_decides_the_data(self):
        """Other seeds give other data, and the program is plain JSON."""
        one, two = program_of(PICK, 0), program_of(PICK, 1)
        assert one == Program.from_json(json.loads(json.dumps(one.to_json())))
        assert not torch.equal(make_inputs(one)["a"], make_inputs(two)["a"])

    def test_a_shared_storage_stays_shared(self):
        """An in-place call on a view of its operand writes the operand."""
        call = replace(ADD, op="mul_.Tensor", kwargs={}, results="i", storages=(("float32", 6, FLOATS),),
                       inputs=((0, "float32", (3,), (1,), 0), (0, "float32", (3,), (1,), 3)))  # fmt: skip
        observation = reference(program_of(call, 0)).observation
        assert observation.tensors["a"].alias == observation.tensors["b"].alias
        assert not observation.others

    def test_results_that_are_none(self):
        """A backward that does not compute one of its gradients returns the others."""
        call = RecordedCall("convolution_backward.default",
                    (a(), a("b"), a("c"), [0], [1], [0], [1], False, [0], 1, [True, False, True]), {},
                    (("float32", 8, FLOATS), ("float32", 8, FLOATS), ("float32", 4, FLOATS)),
                    ((0, "float32", (1, 2, 4), (8, 4, 1), 0), (1, "float32", (1, 2, 4), (8, 4, 1), 0),
                     (2, "float32", (2, 2, 1), (2, 1, 1), 0)), "(t-t")  # fmt: skip
        program = program_of(call, 0)
        seen = reference(program).observation.tensors
        assert {"result_0", "result_2"} <= {*seen}
        assert "_result_1" not in seen
        assert "result_0, _result_1, result_2, = torch.ops.aten.convolution_backward" in script(program, CpuTarget())
        for sway in (None, "up"):  # the float64 judge moves results that round; None does not round
            narrow, wide = truth_of(program, sway)
            assert {*narrow.tensors} == {*wide.tensors} == {*seen}

    def test_the_backward_of_a_pool_gets_the_indices_of_its_forward(self):
        """Random indices would lie outside the windows."""
        call = RecordedCall("max_pool2d_with_indices_backward.default",
                    (a(), a("b"), [2, 2], [2, 2], [0, 0], [1, 1], False, a("c")), {},
                    (("float32", 4, FLOATS), ("float32", 16, FLOATS), ("int64", 4, {"low": 0, "high": 15})),
                    ((0, "float32", (1, 2, 2), (4, 2, 1), 0), (1, "float32", (1, 4, 4), (16, 4, 1), 0),
                     (2, "int64", (1, 2, 2), (4, 2, 1), 0)), "t")  # fmt: skip
        program = program_of(call, 0)
        assert [step.op for step in program.steps] == [
            "aten.many:max_pool2d_with_indices.default", "aten:max_pool2d_with_indices_backward.default"
        ]  # fmt: skip
        assert int((reference(program).observation.tensors["result"].value != 0).sum()) == 4

    @pytest.mark.parametrize(("op", "free"), [("bernoulli.default", True), ("empty_like.default", True),
                                              ("neg.default", False)])  # fmt: skip
    def test_values_without_a_meaning_are_not_compared(self, op, free):
        """Random numbers and unwritten memory: only the metadata is compared."""
        call = RecordedCall(
            op, (a(),), {}, (("float32", 3, {"low": 0.0, "high": 1.0}),), ((0, "float32", (3,), (1,), 0),), "t"
        )
        assert (program_of(call, 0).undefined == ("value of result", "storage of result")) is free

    def test_an_operator_that_this_torch_lacks(self):
        with pytest.raises(ProgramError, match=r"no operator aten::sinus\.default"):
            program_of(replace(ADD, op="sinus.default"), 0)


class TestFile:
    @pytest.mark.parametrize("name", ["calls.json", "calls.json.gz"])
    def test_it_is_read_as_written(self, tmp_path, name):
        """Twice the same calls give the same bytes."""
        path = tmp_path / name
        calls(ADD, PICK).save(path)
        first = path.read_bytes()
        assert Calls.load(path) == calls(ADD, PICK)
        calls(ADD, PICK).save(path)
        assert path.read_bytes() == first
        assert [*tmp_path.iterdir()] == [path]

    @pytest.mark.parametrize("damage", [
        lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"[]",
        lambda data: data.replace(b'"schema": 1', b'"schema": 9'), lambda data: data.replace(b'"op"', b'"po"'),
        lambda data: data.replace(b'"models":[0]', b'"models":[5]'),
    ])  # fmt: skip
    @pytest.mark.parametrize("name", ["calls.json", "calls.json.gz"])
    def test_a_damaged_file_is_told_in_one_sentence(self, tmp_path, damage, name):
        path = tmp_path / name
        calls(ADD).save(tmp_path / "calls.json")
        data = damage((tmp_path / "calls.json").read_bytes())
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        with pytest.raises(CallsError, match=r"^\S*calls\.json(\.gz)? is no file of recorded calls \([^\n]*\): record"):
            Calls.load(path)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(CallsError, match="does not exist"):
            Calls.load(tmp_path / "calls.json")

    def test_the_models_of_a_choice(self):
        """A call that several models make stays with the chosen one; the others are gone."""
        two = calls(ADD, PICK).of(["two"])
        assert (two.models, two.made, two.calls) == (["two"], {"two": 3}, [replace(PICK, models=(0,))])
        assert calls(ADD, PICK).of([]) == calls(ADD, PICK)

    def test_an_unknown_model(self):
        """The nearest name is offered."""
        with pytest.raises(CallsError, match=r"no recorded model 'tow'.*two"):
            calls(ADD).of(["tow"])

    def test_the_order_covers_every_operator_first(self):
        """So the beginning of a run covers all operators."""
        varied = [replace(call, kwargs={"alpha": n}) for n in range(9) for call in (ADD, PICK)]
        ordered = calls(*varied).ordered()
        assert sorted(map(RecordedCall.key, ordered)) == sorted(map(RecordedCall.key, varied))
        assert {call.op for call in ordered[:2]} == {ADD.op, PICK.op}
        assert [call.kwargs["alpha"] for call in ordered if call.op == ADD.op] != [*range(9)]
