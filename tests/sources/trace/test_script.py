"""Scripts of wrong calls: the smallest call that is wrong in the same way, also if the device does not survive."""

from __future__ import annotations

import math
from typing import Any

import pytest

from conformance.engine.loading import load_target
from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Step, tensor
from conformance.program.verdict import Verdict
from conformance.record.errors import DeviceLost
from conformance.sources.trace import script
from conformance.standalone.oracles import Mismatch

NEG = Program(
    (Storage("float32", 6),), (Input("a", 0, "float32", (2, 3), (3, 1)),), (Step("neg", (tensor("a"),), out=("b",)),)
)


@pytest.mark.parametrize("survives", [0, 2])
def test_a_device_that_a_smaller_call_loses(survives: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script has the smallest call before that. The lost device formerly ended `conformance trace` without its
    report."""
    judged: list[Program] = []
    wrong = Verdict((Mismatch("value", "b", "-1", "1"),))

    def judge(program: Program, target: object, **options: Any) -> Verdict:
        judged.append(program)
        if len(judged) > survives:
            raise DeviceLost("RuntimeError: device-side assert triggered")
        return wrong

    monkeypatch.setattr(script, "judge_program", judge)
    text = script._smallest(NEG, wrong, load_target("cpu"), math.inf)
    assert "neg(" in text
    assert len(judged) > survives
