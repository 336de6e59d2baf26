"""Time limits of tests count seconds of a quiet machine."""

from __future__ import annotations

import threading
import time

import pytest

from tests import patience


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The slowness that the next measurements find; at the start the machine is quiet."""
    found = [1.0]
    monkeypatch.setattr(patience, "_measured", [1.0])

    def measure() -> float:
        patience._measured.append(found[-1])
        return patience.slowness()

    monkeypatch.setattr(patience, "measured_slowness", measure)
    return found


def test_a_hang_reaches_its_limit(slow: list[float]) -> None:
    """On a quiet machine the function is called, once."""
    called = threading.Event()
    cancel = patience.call_at_limit(0.01, called.set)
    assert called.wait(patience.stretched(60.0))
    cancel()


def test_load_that_begins_later_stretches_the_limit(slow: list[float]) -> None:
    """Regression test: the machine was measured only before the first test. Other work began later, and a test that
    waited for five processes ended its pytest worker."""
    slow.append(1e9)
    called = threading.Event()
    cancel = patience.call_at_limit(0.01, called.set)
    while len(patience._measured) == 1:
        time.sleep(0.001)
    cancel()
    assert not called.is_set() and patience.slowness() == 1e9


def test_a_cancelled_limit_calls_nothing(slow: list[float]) -> None:
    """A test that ends in time is not ended later."""
    called = threading.Event()
    patience.call_at_limit(3600.0, called.set)()
    assert not called.is_set() and not any(thread.name == "limit of 3600 s" for thread in threading.enumerate())


def test_what_never_comes_is_named(slow: list[float]) -> None:
    """The message of a wait that ends in vain."""
    with pytest.raises(AssertionError, match=r"waited 0 s until the moon is here"):
        patience.wait_until(lambda: False, "the moon is here", 0.01)
