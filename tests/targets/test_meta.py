"""The meta device holds no values."""

from __future__ import annotations

from conformance.engine.loading import load_target
from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Json, Step, tensor
from conformance.program.unsupported import unsupported_reason


def test_a_number_in_a_tensor() -> None:
    """The target leaves out a call that reads a number out of a tensor. Regression test: `as_strided` with a tensor as
    its size was a finding of `meta`."""
    number: Json = {"tensor": 2, "dtype": "int64"}
    for size, reason in ((number, "an answer that depends on values"), (2, "")):
        step = Step("as_strided", (tensor("a"), [size], [1], 0), out=("b",))
        program = Program((Storage("float32", 4),), (Input("a", 0, "float32", (4,), (1,)),), (step,))
        assert unsupported_reason(program, load_target("meta").facts) == reason
