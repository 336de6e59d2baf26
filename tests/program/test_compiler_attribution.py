"""Attribution for compilers: faults that are planted in a layer or in a part of it are found there."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
import torch
import torch._inductor.fx_passes.post_grad

from conformance.engine.loading import load_target
from conformance.program.attribution import culprit
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Step, tensor
from conformance.program.trial import Trial

CELLS = Storage("float32", 6, [-1.0, 2.0, -3.0, 4.0, -5.0, 6.0])
GIVEN = Input("a", 0, "float32", (2, 3), (3, 1))
EXPANDED = (Step("expand", (tensor("a"), [4, 2, 3]), out=("b",)), Step("fill_", (tensor("b"), 2)))
"""A write that AOTAutograd adds up in torch 2.13 (pytorch#197448)."""


def blamed(spec: str, *steps: Step, storage: Storage = CELLS, operand: Input = GIVEN) -> str:
    """The culprit of a program that must be wrong."""
    program, target = Program((storage,), (operand,), steps), load_target(spec)
    (wrong, *_) = judge_program(program, target).mismatches
    return culprit(Trial.of(program, target), wrong)


@pytest.fixture
def wrong_decomposition() -> Iterator[None]:
    """A decomposition of tril that ignores the diagonal."""
    from torch._inductor.decomposition import select_decomp_table

    def wrong(x: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
        return x.clone()

    with mock.patch.dict(select_decomp_table(), {torch.ops.aten.tril.default: wrong}):
        yield


def drop_neg(graph: torch.fx.Graph) -> None:
    """A pass that removes every negation."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.neg.default):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


NEG = Step("neg", (tensor("a"),), out=("b",))
LOWER = Step("tril", (tensor("a"), 0), out=("b",))


class TestLayer:
    @pytest.mark.parametrize("spec", ["aot_eager", "compile:aot_eager_decomp_partition"])
    def test_first_wrong_layer(self, spec: str) -> None:
        """A fault of AOTAutograd is not blamed on the layers behind it."""
        assert blamed(spec, *EXPANDED) == "AOTAutograd"

    @pytest.mark.usefixtures("wrong_decomposition")
    def test_decomposition(self) -> None:
        """Of the decompositions that are applied, the wrong one is named."""
        said = blamed("compile:aot_eager_decomp_partition", LOWER, Step("flip", (tensor("a"), [0]), out=("c",)))
        assert said == "decompositions: decomposition aten.tril.default"


@pytest.mark.slow
class TestInductor:
    def test_pass(self) -> None:
        """The pass with the planted fault is found among twenty."""
        with mock.patch.object(torch._inductor.fx_passes.post_grad, "remove_noop_ops", drop_neg):
            assert blamed("inductor", NEG) == "Inductor: pass remove_noop_ops"

    def test_setting(self) -> None:
        """The vectorized conversion of a float outside int8 saturates (pytorch#196794)."""
        many = Storage("float32", 40, [300.0, -300.0] * 20)
        step = Step("to", (tensor("a"), {"dtype": "int8"}), out=("b",))
        assert blamed("inductor", step, storage=many, operand=Input("a", 0, "float32", (40,), (1,))) == (
            "Inductor: without vectorization"
        )

    def test_lowering(self) -> None:
        """A fault in the lowering of one operator is found behind all passes and settings."""
        from torch._inductor.lowering import lowerings

        relu = lowerings[torch.ops.aten.relu.default]
        with mock.patch.dict(lowerings, {torch.ops.aten.neg.default: relu}):
            assert blamed("inductor", NEG, Step("exp", (tensor("b"),), out=("c",))) == (
                "Inductor: lowering aten.neg.default"
            )
