"""Drawing of further calls: every change occurs, each call has a meaning, and the steps stay those of the program."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest

from conformance.engine.loading import describe_target
from conformance.program.calls import change_of, has_meaning
from conformance.program.model import Program
from conformance.program.unsupported import unsupported_reason, unsupported_steps
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.further_calls import CHANGED_EVERY, TOPICS, with_calls

TARGET = describe_target("compile:eager")
COUNT = 6 * len(TOPICS)


@pytest.fixture(scope="module")
def drawn() -> list[tuple[Program, Program]]:
    drawing = Drawing(without=unsupported_steps(TARGET))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        programs = [(number, drawing.numbered(0, number)) for number in range(COUNT)]
        return [
            (program, with_calls(program, 0, n, TARGET))
            for n, program in programs
            if not unsupported_reason(program, TARGET)
        ]


def test_a_program_has_at_most_three_further_calls_with_a_meaning(drawn: list[tuple[Program, Program]]) -> None:
    assert max(len(called.calls) for _, called in drawn) == 3
    assert all(has_meaning(called, TARGET) for _, called in drawn if called.calls)


def test_every_kind_of_change_occurs(drawn: list[tuple[Program, Program]]) -> None:
    more = [with_calls(one, seed, n, TARGET) for seed in (1, 2) for n, (one, _) in enumerate(drawn)]
    words = Counter(change_of(one, at + 1) for _, one in drawn for at in range(len(one.calls)))
    words += Counter(change_of(one, at + 1) for one in more for at in range(len(one.calls)))
    single = {word for name in words for word in name.split(" and ")}
    assert single >= {"shape", "stride", "dtype", "requires_grad", "aliasing", "arguments", "global state", "values"}
    assert words["offset"] > len(drawn) / 2


def test_most_calls_change_nothing_that_a_guard_checks(drawn: list[tuple[Program, Program]]) -> None:
    changed = [
        one for _, one in drawn if {change_of(one, at + 1) for at in range(len(one.calls))} - {"values", "offset"}
    ]
    assert COUNT / CHANGED_EVERY / 2 <= len(changed) <= COUNT / CHANGED_EVERY


def test_some_changed_calls_are_made_as_in_a_new_process(drawn: list[tuple[Program, Program]]) -> None:
    """Only on a target that saves graphs, where about half of the changed calls follow a restart."""
    saving = describe_target("compile:inductor")
    called = [(one, with_calls(before, 0, n, saving)) for n, (before, one) in enumerate(drawn)]
    assert not any(one.restarts for _, one in drawn)
    assert COUNT / CHANGED_EVERY / 4 <= sum(one.restarts for _, one in called) <= COUNT / CHANGED_EVERY * 3 / 4


def test_calls_keep_the_steps_of_the_program(drawn: list[tuple[Program, Program]]) -> None:
    for before, after in drawn:
        ops = [step.op for step in after.steps]
        assert ops[: len(before.steps)] == [step.op for step in before.steps]


def test_the_same_number_draws_the_same_calls(drawn: list[tuple[Program, Program]]) -> None:
    before, _ = drawn[5]
    assert with_calls(before, 0, 5, TARGET) == with_calls(before, 0, 5, TARGET)
    assert with_calls(before, 1, 5, TARGET) != with_calls(before, 0, 5, TARGET)
