"""Work in a fork: its messages arrive, and its end has a reason."""

from __future__ import annotations

import ctypes
import os
import time

import torch

from conformance.run.messages import Death, ExitReason
from conformance.sources.operator.forks import forked


def test_messages_arrive_in_order():
    """A fork without a fault sends its messages, and nothing else follows."""

    def work(send):
        print("not seen")
        for number in range(3):
            send(number)

    assert [*forked(work, 10)] == [0, 1, 2]


def test_a_closure_runs():
    """The fork has the objects of this process."""
    tensor = torch.arange(3.0)
    assert [*forked(lambda send: send((tensor * 2).tolist()), 10)] == [[0, 2, 4]]


def test_a_crash_is_named():
    """Messages before a crash arrive, then its signal."""

    def work(send):
        send(1)
        ctypes.string_at(0)

    assert [*forked(work, 10)] == [1, Death(ExitReason.CRASH, "killed its process with SIGSEGV")]


def test_a_hang_ends():
    """A fork that sends nothing is killed."""
    began = time.monotonic()
    assert [*forked(lambda send: time.sleep(60), 0.2)] == [Death(ExitReason.TIMEOUT, "gave no answer in 0.2 s")]
    assert time.monotonic() - began < 5


def test_an_exit_is_named():
    """An operator that ends the process is a death."""
    assert [*forked(lambda send: os._exit(3), 10)] == [Death(ExitReason.CRASH, "ended its process with exit code 3")]


def test_a_fault_of_the_work():
    """An exception of the work itself is the last item."""
    (error,) = forked(lambda send: 1 / 0, 10)
    assert isinstance(error, RuntimeError) and "ZeroDivisionError" in str(error)


def test_memory_has_a_limit():
    """An allocation of more memory than the limit fails in the fork."""

    def work(send):
        try:
            torch.empty(2**34).fill_(1)
        except RuntimeError as error:
            send("can't allocate" in str(error))

    assert [*forked(work, 20)] == [True]
