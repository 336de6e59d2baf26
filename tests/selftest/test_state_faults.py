"""Power of programs that change states: the fuzzer finds and shrinks state faults of a device."""

from __future__ import annotations

import warnings

import pytest

from conformance.selftest.mutants import EVERY, hunt
from conformance.selftest.state_faults import STATE_FAULTS
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.kinds import PERIOD, STATES

SOON = [
    "promotion remembers the default dtype",
    "new floats remember the default dtype",
    "no_grad is remembered",
    "inference mode is ignored",
    "empty memory is not filled",
    "a write under a function mode is lost",
    "a write in a transform is lost",
    "a deep copy shares memory",
    "random numbers are remembered",
]


class OfState(Drawing):
    """Only the programs of a seed that change states."""

    def numbered(self, seed, number, tally=None):
        return super().numbered(seed, PERIOD * number + STATES.turns[0], tally)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_most_are_found_within_five_hundred_programs():
    """One in eight of these programs changes states; each failure shrinks to at most three steps. A mean of some 30
    programs leaves one fault in ten unfound in the 62 of one seed, so one fault may need another seed."""
    hunts = {name: hunt(name, OfState(), 0, 500 // PERIOD) for name in SOON}
    missed = [name for name, one in hunts.items() if one.programs is None]
    assert len(missed) <= 1
    hunts |= {name: hunt(name, OfState(), 1, 500 // PERIOD) for name in missed}
    assert [name for name, one in hunts.items() if one.programs is None] == []
    assert all(len(one.small.steps) <= 3 for one in hunts.values())


@pytest.mark.slow
def test_every_one_is_found():
    """The fuzzer finds all faults within 2,000 programs."""
    hunts = {name: hunt(name, OfState(), 0, 2000 // PERIOD) for name in STATE_FAULTS}
    assert [name for name, one in hunts.items() if one.programs is None] == []
    assert all(len(one.small.steps) <= 4 for one in hunts.values())


def test_each_says_what_it_is_modelled_on():
    """Each fault names the bug that it imitates, and names are unique."""
    assert all(fault.like for fault in STATE_FAULTS.values())
    assert {*STATE_FAULTS} <= {*EVERY}
    assert len(STATE_FAULTS) == 20
