"""`tiny:REPLAYED` observes replayed steps: a fault of replay is a finding there, and not on `tiny`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import conformance.backend as backend
from conformance.backend.lazy import steps
from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Step, tensor

TWO_CALLS = Program(
    (Storage("float32", 6),),
    (Input("a", 0, "float32", (2, 3), (3, 1)),),
    (Step("add", (tensor("a"), 1), out=("b",)), Step("add_", (tensor("a"), tensor("b")))),
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    steps.reset_state()
    before = backend.queue_calls(True)
    yield
    backend.queue_calls(before)
    steps.reset_state()


def test_a_lie_of_replay_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is a replayed step that stores one number in all of its results."""
    replay = steps.replay

    def lying(step: steps.PendingQueue, why: str) -> bool:
        done = replay(step, why)
        for storage in step.storages if done else ():
            storage.hold_number(storage.dtype, 7)
        return done

    assert judge_program(TWO_CALLS, load_target("tiny:REPLAYED")).mismatches == ()
    monkeypatch.setattr(steps, "replay", lying)
    verdict = judge_program(TWO_CALLS, load_target("tiny:REPLAYED"))
    assert "value" in {mismatch.oracle for mismatch in verdict.mismatches}
    steps.reset_state()
    assert judge_program(TWO_CALLS, load_target("tiny")).mismatches == ()
