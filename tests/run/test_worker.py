"""The time limit of a unit, in this process."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from conformance.run import worker
from conformance.run.worker import UnitTimeout, at_most


class Slow:
    """An object whose destructor takes longer than the limit."""

    def __del__(self) -> None:
        time.sleep(1000)


def spin() -> None:
    while True:
        pass


def destroy_slowly() -> None:
    Slow()
    time.sleep(1000)


class TestAtMost:
    def test_a_loop_ends(self) -> None:
        with pytest.raises(UnitTimeout, match=r"ran longer than 0\.1 s"), at_most(0.1):
            spin()

    def test_a_destructor_does_not_swallow_it(self) -> None:
        """Regression test: Python ignored the exception of a destructor, and the unit went on without a limit and with
        a half-released tensor. Both would sleep for longer than a test may take."""
        with pytest.raises(UnitTimeout), at_most(0.1):
            destroy_slowly()

    def test_other_errors_of_destructors_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The block reports them as before, and leaves the hook of the process as it was."""

        class Fails:
            def __del__(self) -> None:
                raise ValueError("of the destructor")

        told: list[str] = []
        monkeypatch.setattr(sys, "unraisablehook", hook := lambda ignored: told.append(str(ignored.exc_value)))
        with at_most(100):
            Fails()
        assert (told, sys.unraisablehook) == (["of the destructor"], hook)

    def test_waiting_for_a_processor_is_no_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An alarm after which the process has waited for a processor is set again, to at most four times the limit.
        Regression test: beside other work, programs that took a second of a processor were timeouts."""
        waited = 0.0
        monkeypatch.setattr(worker, "waiting_time_of", lambda process: waited)
        with at_most(100):
            waited = 250.0
            signal.raise_signal(signal.SIGALRM)
            assert 200 < signal.getitimer(signal.ITIMER_REAL)[0] <= 250
            waited = 1000.0
            signal.raise_signal(signal.SIGALRM)
            assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50
            waited = 2000.0
            with pytest.raises(UnitTimeout, match="ran longer than 100 s"):
                signal.raise_signal(signal.SIGALRM)
