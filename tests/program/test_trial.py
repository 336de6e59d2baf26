"""A trial carries torch CPU's answer along, so that torch CPU runs a program once."""

from __future__ import annotations

import pytest

from conformance.engine.loading import load_target
from conformance.program import trial as trials
from conformance.program.calls import judge_trial
from conformance.program.model import Call, Input, Program, Storage
from conformance.program.steps.op import Step, tensor
from conformance.program.trial import CpuAnswer, Trial
from conformance.selftest.mutants import MutantTarget

PROGRAM = Program(
    (Storage("float32", 6),),
    (Input("a", 0, "float32", (2,), (1,), 3),),
    (
        Step("neg", (tensor("a"),), out=("b",)),
        Step("fill_", (tensor("a"), 7)),
        Step("add", (tensor("a"), tensor("b")), out=("c",)),
    ),
)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs that torch CPU runs to answer them."""
    seen: list[Program] = []
    original = trials.reference
    monkeypatch.setattr(trials, "reference", lambda program: seen.append(program) or original(program))
    return seen


def test_torch_cpu_runs_a_program_once(runs: list[Program]) -> None:
    """A failing program is judged on the target, located, judged again, and judged on another target."""
    trial = Trial.of(PROGRAM, MutantTarget("fill_ ignores the offset"))
    assert judge_trial(trial).bad_step == 2
    assert judge_trial(trial, locate=False).mismatches
    assert judge_trial(trial.on(load_target("cpu"))).passed
    assert [program.steps for program in runs if program.steps] == [PROGRAM.steps]


def test_each_call_is_answered_once(runs: list[Program]) -> None:
    """The calls of a program are judged in turn, and a second time on another compiler."""
    larger = Call({"a": {"size": [3], "stride": [1]}})
    trial = Trial.of(
        Program(PROGRAM.storages, PROGRAM.inputs, PROGRAM.steps, calls=(larger,)), load_target("functionalize")
    )
    assert judge_trial(trial).calls == 2
    assert judge_trial(trial.on(load_target("aot_eager"))).calls == 2
    assert [program.inputs[0].size for program in runs] == [(2,), (3,)]


def test_the_answer_of_a_beginning_is_that_of_the_shorter_program() -> None:
    """The answers after each step, from one run, are those of separate runs."""
    trial = Trial.of(PROGRAM, load_target("cpu"))
    for count in range(1, len(PROGRAM.steps) + 1):
        known, anew = trial.beginning(count).cpu.end, CpuAnswer(PROGRAM.with_steps(PROGRAM.steps[:count])).end
        assert known.exact == anew.exact and known.moves == anew.moves
        assert not trial.on(load_target("cpu")).beginning(count).judge(anew.observation).mismatches
