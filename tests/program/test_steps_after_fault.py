"""Remainders: the steps after a wrong step, as a separate program with the same meaning."""

from __future__ import annotations

import json

import torch

from conformance.program.model import Input, Program, Storage
from conformance.program.shadow import reference
from conformance.program.steps.op import Step, tensor
from conformance.program.steps_after_fault import remainder
from conformance.sources.fuzzing.drawing import Drawing

SIX = Storage("float32", 6)
A = Input("a", 0, "float32", (2, 3), (3, 1))


def program(*steps: Step, inputs: tuple[Input, ...] = (A,), storage: Storage = SIX) -> Program:
    return Program((storage,), inputs, steps)


def values(whole: Program, name: str) -> list:
    return reference(whole).observation.tensors[name].value.tolist()


class TestState:
    """The remainder starts with torch CPU's tensors after the wrong step."""

    WHOLE = program(
        Step("t", (tensor("a"),), out=("b",)),
        Step("add_", (tensor("b"), 1)),
        Step("select", (tensor("b"), 0, 1), out=("c",)),
        Step("fill_", (tensor("c"), 9)),
    )

    def test_a_view_and_its_base_share_a_storage(self):
        rest = remainder(self.WHOLE, 1)
        assert rest is not None and rest.dropped == 0
        assert [one.name for one in rest.program.inputs] == ["a", "b"]
        assert {one.storage for one in rest.program.inputs} == {0}
        assert rest.program.inputs[1].stride == (1, 3)

    def test_every_later_answer_is_that_of_the_whole_program(self):
        for step in (1, 2, 3):
            rest = remainder(self.WHOLE, step)
            assert rest is not None
            assert values(rest.program, "a") == values(self.WHOLE, "a")

    def test_drawn_programs_mean_the_same_from_every_state(self):
        """A remainder keeps all results, and survives a round trip through JSON like any other program."""
        compared = 0
        for number in range(60):
            whole = Drawing(without=("op_db", "autograd", "state")).numbered(5, number)
            expected = reference(whole).observation.tensors
            for step in range(1, len(whole.steps)):
                rest = remainder(whole, step)
                if rest is None or rest.dropped or len(rest.program.steps) != len(whole.steps) - step:
                    continue
                again = Program.from_json(json.loads(json.dumps(rest.program.to_json())))
                tensors = reference(again).observation.tensors
                for name in tensors.keys() & expected.keys():
                    one, two = tensors[name], expected[name]
                    for fact in ("shape", "stride", "storage_offset"):
                        assert one.metadata[fact] == two.metadata[fact]
                    assert one.value.untyped_storage().tolist() == two.value.untyped_storage().tolist(), (number, step)
                    compared += 1
        assert compared > 200

    def test_bits_that_no_number_has_are_kept(self):
        """A nan with a payload is stored as bytes."""
        payload = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32).item()
        storage = Storage("int32", 1, [0x7FC00001])
        one = Input("a", 0, "float32", (1,), (1,))
        whole = program(
            Step("t", (tensor("a"),), out=("b",)), Step("neg_", (tensor("b"),)), inputs=(one,), storage=storage
        )
        rest = remainder(whole, 1)
        assert rest is not None and payload != payload
        assert rest.program.storages[0].make().view(torch.uint8).tolist() == [1, 0, 192, 127]


class TestWithoutTheStep:
    """A tensor of an autograd graph cannot be an input, so the whole program runs again without the wrong step."""

    LEAF = Input("a", 0, "float32", (2, 3), (3, 1), requires_grad=True)

    def test_the_graph_is_built_again(self):
        whole = program(
            Step("mul", (tensor("a"), 2), out=("b",)),
            Step("neg", (tensor("a"),), out=("c",)),
            Step("backward", (tensor("b"),)),
            inputs=(self.LEAF,),
        )
        rest = remainder(whole, 2)
        assert rest is not None and [step.op for step in rest.program.steps] == ["mul", "backward"]
        assert rest.dropped == 0

    def test_steps_that_use_its_result_are_dropped_and_counted(self):
        whole = program(
            Step("mul", (tensor("a"), 2), out=("b",)),
            Step("neg", (tensor("b"),), out=("c",)),
            Step("neg", (tensor("a"),), out=("d",)),
            inputs=(self.LEAF,),
        )
        rest = remainder(whole, 1)
        assert rest is not None and [step.op for step in rest.program.steps] == ["neg"]
        assert rest.dropped == 1

    def test_nothing_is_left(self):
        assert remainder(program(Step("t", (tensor("a"),), out=("b",))), 1) is None
        assert remainder(program(Step("t", (tensor("a"),), out=("b",))), 0) is None
