"""The target `inductor`: which saved graphs a program loads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.model import Call, Input, Program, Storage, call_of
from conformance.program.steps.op import Step, tensor

CELLS = Program(
    (Storage("float32", 9),),
    (Input("a", 0, "float32", (3,), (1,), 3),),
    (Step("as_strided", (tensor("a"), [2], [1], 4), out=("b",)), Step("add", (tensor("b"), 1), out=("c",))),
)
"""Reads cells 4 and 5 of the storage. Inductor's code counts them from the input's first cell."""

MOVED = Call({"a": {"offset": 1}}, restarted=True)


@pytest.mark.slow
class TestSavedGraphs:
    def test_a_program_loads_no_graph_of_an_earlier_one(self) -> None:
        """The key of a saved graph lacks the input's offset. Regression test: the second program had the answer of the
        first one's code, and was right by itself."""
        target, moved = load_target("inductor"), call_of(replace(CELLS, calls=(MOVED,)), 1)
        for program in (CELLS, moved, CELLS):
            assert judge_program(program, target).passed

    def test_a_call_as_in_a_new_process_loads_the_graph_of_the_call_before(self) -> None:
        """There the missing offset shows."""
        verdict = judge_program(replace(CELLS, calls=(MOVED,)), load_target("inductor"))
        assert (verdict.call, verdict.change) == (1, "offset and process")
