"""Evidence of a program: its operators, and how its accesses to one storage lie to each other."""

from __future__ import annotations

import pytest

from conformance.program.accesses import evidence_of
from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Step, tensor

A = Input("a", 0, "float32", (4, 4), (4, 1))
FILL = Step("fill_", (tensor("b"), 1))
CASES = {
    "same": [Step("add_", (tensor("a"), tensor("a")))],
    "shifted": [
        Step("narrow", (tensor("a"), 0, 0, 3), out=("c",)),
        Step("clone", (tensor("c"),), out=("d",)),
        Step("narrow", (tensor("a"), 0, 1, 3), out=("b",)),
        Step("copy_", (tensor("b"), tensor("d"))),
    ],
    "transposed": [Step("t", (tensor("a"),), out=("b",)), FILL, Step("clone", (tensor("a"),), out=("c",))],
    "broadcast": [
        Step("narrow", (tensor("a"), 0, 0, 1), out=("c",)), Step("expand", (tensor("c"), [3, 4]), out=("b",)), FILL,
    ],
    "dtype view": [
        Step("view.dtype", (tensor("a"), {"dtype": "int32"}), out=("b",)), FILL,
        Step("clone", (tensor("a"),), out=("c",)),
    ],
}  # fmt: skip


def program(*steps: Step, inputs: tuple[Input, ...] = (A,)) -> Program:
    return Program((Storage("float32", 24),), inputs, steps)


class TestRelations:
    @pytest.mark.parametrize("relation", CASES)
    def test_two_accesses(self, relation: str) -> None:
        assert relation in evidence_of(program(*CASES[relation]), "value", "Inductor").relations

    def test_nothing_written(self) -> None:
        """Two reads have no relation: their order does not matter."""
        assert not evidence_of(program(Step("add", (tensor("a"), tensor("a")), out=("b",))), "value", "").relations

    def test_inputs(self) -> None:
        """Two inputs on one storage, and an access beyond its only input."""
        part = Input("b", 0, "float32", (2,), (1,), 16)
        assert "inputs" in evidence_of(program(FILL, inputs=(A, part)), "value", "").relations
        filled = Step("fill_", (tensor("a"), 0))
        beyond = Step("as_strided", (tensor("a"), [2], [1], 20), out=("b",))
        assert {*evidence_of(program(beyond, FILL), "error", "").relations} >= {"outside"}
        assert {*evidence_of(program(filled, beyond), "error", "").relations} >= {"outside"}  # only the caller reads it
        within = Step("as_strided", (tensor("a"), [2], [1], 1), out=("b",))
        assert "outside" not in evidence_of(program(filled, within), "error", "").relations


class TestOperators:
    def test_inside_composites(self) -> None:
        """A composite step counts as the operators that it calls."""
        evidence = evidence_of(program(Step("square", (tensor("a"),), out=("b",))), "value", "")
        assert {"square", "pow"} <= {*evidence.operators}
        assert evidence.dtypes == {"float32"}

    def test_not_run(self) -> None:
        """A program that ends its process is known by its steps."""
        evidence = evidence_of(program(FILL), "crash", "torch CPU", runs=False)
        assert evidence.operators == {"fill"} and not evidence.relations
