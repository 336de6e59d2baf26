"""The key of replayed steps: two steps that differ in one property are told apart, and planted faults are found.

`replay_programs` draws the programs, `replay_faults` lists the faults.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator

import pytest

import conformance.backend as backend
from conformance.backend.dispatch.deferral import Deferred
from conformance.backend.lazy import calls, steps
from conformance.backend.lazy.storage import DIRTY, LARGE_PENDING, LOOPING
from conformance.backend.runtime.counters import COUNTERS
from tests.backend.lazy.replay_faults import FAULTS, Fault, is_plantable, planted
from tests.backend.lazy.replay_programs import DIFFERENCES, Program

SEEDS = 2
NOT_REPLAYED = ("which pending write",)  # a step that meets pending writes cannot be compared
TRIED = 12  # programs that may run until a fault is found

pytestmark = pytest.mark.usefixtures("queue")


def kernels() -> int:
    """Return the number of kernels that ran so far."""
    return int(backend.stats()["kernels"])


@functools.cache
def expected(difference: str, seed: int) -> tuple[list[str], list[int]]:
    """Return the values that torch CPU reads, and tiny's kernels before each read without replay."""
    program = Program(difference, seed)
    enabled, steps.ENABLED = steps.ENABLED, False
    try:
        program.run("tiny")  # describes its calls, which from then on wait in the queue
        backend.reset_state()
        _, counts = program.run("tiny", kernels)
    finally:
        steps.ENABLED = enabled
    return program.run("cpu")[0], counts


def observed(difference: str, seed: int) -> tuple[list[str], list[int]]:
    """Return the values that tiny reads, and its kernels before each read."""
    steps.reset_state()
    backend.reset_state()
    return Program(difference, seed).run("tiny", kernels)


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_steps_that_differ(difference: str) -> None:
    """With replay, every value equals torch CPU's, and every read runs as many kernels as without replay."""
    for seed in range(SEEDS):
        wanted, before = expected(difference, seed), COUNTERS.replayed
        assert observed(difference, seed) == wanted, f"seed {seed}"
        assert (COUNTERS.replayed > before) == (difference not in NOT_REPLAYED)


def forget(fault: Fault) -> None:
    """Forget the descriptions of calls, if the fault is in them."""
    if fault.function.__module__.endswith("deferral"):
        for one in gc.get_objects():
            if type(one) is Deferred:
                one.known.clear()


def differs(fault: Fault, seed: int) -> bool:
    """Return whether a program with the fault raises an error, reads another value or runs other kernels. Descriptions
    that are forgotten change the kernels as well, so they do not count for such a fault."""
    values, counts = expected(fault.difference, seed)
    forget(fault)
    try:
        with planted(fault):
            actual = observed(fault.difference, seed)
    except Exception:  # a wrong graph fails in many ways
        return True
    finally:
        forget(fault)
    return actual[0] != values or (actual[1] != counts and not fault.function.__module__.endswith("deferral"))


@pytest.fixture
def clean() -> Iterator[None]:
    """Empty the queue and the lists of written storages, which an error of a planted fault may leave in any state."""
    yield
    calls._running = False
    for left in (calls._queue, DIRTY, LOOPING, LARGE_PENDING):
        left.clear()


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    """Programs with the difference of a planted fault find it. A fault that is not in the code any more would raise an
    error, which counts as found."""
    assert is_plantable(FAULTS[name])
    assert any(differs(FAULTS[name], seed) for seed in range(TRIED))


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 40
