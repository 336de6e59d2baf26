"""Operators that are made to pass a judge are found."""

from __future__ import annotations

import pytest
import torch

from conformance.sources.operator.calls import DrawnCall
from conformance.sources.operator.checks import renewed
from conformance.sources.operator.examine import CheckRequest, examination, verdicts
from conformance.sources.operator.finding import minimized
from conformance.sources.operator.script import script
from tests.planted.cheats import CHEATS
from tests.sources.operator.judged import print_in_new_process


def requested(name: str) -> CheckRequest:
    """A request to judge a cheat by the check that must find it."""
    described, check = CHEATS[name]
    return CheckRequest(**described, near="tests.planted.cheats", checks=[check])


FAST = 3
"""One of this many cheats is judged in the fast tests, the others in the slow ones."""


BACKWARD = "calls_torch_in_its_backward_pass"

OTHERS = [name for name in CHEATS if name != BACKWARD]


def found(name: str) -> bool:
    """Whether the check that must find a cheat does, alone."""
    request = requested(name)
    return CHEATS[name][1] in {verdict.check for verdict in verdicts(examination(request), request) if verdict.finding}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if at % FAST else []) for at, name in enumerate(OTHERS)]
)
def test_a_cheat_is_found(name):
    assert found(name)


def test_a_cheat_in_a_backward_pass_is_found():
    code = "import sys; from tests.sources.operator.test_cheats import found; print(found(sys.argv[1]))"
    assert print_in_new_process(code, [BACKWARD]) == "True"


@pytest.mark.parametrize("name", ["returns_first_results", "returns_the_same_memory", "seeds_torch"])
def test_the_script_of_a_cheat_shows_it(name, standalone):
    """The script carries the check, and the new values of a replay."""
    request = requested(name)
    trial = examination(request)
    (difference,) = (verdict.finding for verdict in verdicts(trial, request) if verdict.finding)
    ended = standalone(script(trial, minimized(trial, difference)))
    assert ended.returncode == 1 and f"{CHEATS[name][1]} of " in ended.stdout, ended.stderr


class TestRenewed:
    """Other values for the inputs of a replay."""

    def test_a_second_draw(self):
        """Every other element stays, so that no few elements tell both apart."""
        request = requested("remembers_shapes")
        call = max(examination(request).plan.of("values"), key=lambda call: call.values["x"].numel())
        old, new = call.values["x"], renewed(call)["x"]
        assert old.shape == new.shape and torch.equal(old.view(-1)[::2], new.view(-1)[::2])
        assert not (old.view(-1)[1::2] == new.view(-1)[1::2]).any()

    def test_a_smaller_call(self):
        """Its values are a part of the second draw; a tensor of other dimensions has halves of its own."""
        call = DrawnCall(
            "values", {"x": torch.ones(2, 2), "n": 3}, 2, again={"x": torch.arange(9.0).view(3, 3), "n": 4}
        )
        assert renewed(call)["x"].tolist() == [[0, 1], [3, 4]] and renewed(call)["n"] == 3
        assert renewed(call.on({"x": torch.ones(2)}))["x"].tolist() == [0.5, 0.5]
        assert renewed(DrawnCall("values", {"i": torch.ones(2, dtype=torch.int64)}, 1)) is None
