"""Work in a fork: its messages arrive, and its end has a reason."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from conformance.run.messages import Death, ExitReason
from conformance.run.starvation import waiting_time_of
from conformance.sources.operator import forks
from conformance.sources.operator.forks import Fork, ForkDied, forked, processor_time_of
from tests.patience import wait_until
from tests.run.process_tree import alive


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


@pytest.mark.usefixtures("sigint_heeded")
def test_ctrl_c_for_another_command():
    """Where SIGINT is ignored, as in a worker and under `nohup`, a fork ignores it too. Regression test: the fork
    restored the default, and Ctrl-C for another command of the terminal was reported as a crash of the call."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def work(send):
        os.kill(os.getpid(), signal.SIGINT)
        send("goes on")

    assert [*forked(work, 10)] == ["goes on"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_hang_ends_with_its_parent():
    """A call that ignores every signal ends when the worker that waits for it is killed."""
    reads, writes = os.pipe()
    worker = os.fork()
    if not worker:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        list(forked(lambda send: os.write(writes, b"%d" % os.getpid()) and time.sleep(1000), 1000))
        os._exit(1)
    call = int(os.read(reads, 20))
    assert alive(call)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    wait_until(lambda: not alive(call), "the call has ended")


def test_a_hang_ends():
    """A fork that sends nothing is killed; it would sleep for longer than a test may take."""
    assert [*forked(lambda send: time.sleep(1000), 0.2)] == [Death(ExitReason.TIMEOUT, "gave no answer in 0.2 s")]


class Clocks:
    """A pipe whose message comes after `needed` seconds of processor time, in a fork with a share of the processor, for
    which it waits in a part of the rest."""

    def __init__(self, monkeypatch, share, needed, waits):
        self.share, self.needed, self.now = share, needed, 0.0
        monkeypatch.setattr(forks, "processor_time_of", lambda process: self.share * self.now)
        monkeypatch.setattr(forks, "waiting_time_of", lambda process: waits * (1 - self.share) * self.now)

    def poll(self, seconds):
        self.now += seconds
        return self.share * self.now >= self.needed


@pytest.mark.parametrize(
    ("share", "needed", "waits", "answers", "clock"),
    [
        (1.0, 15.0, 0, True, 20.0),
        (1.0, math.inf, 0, False, 20.0),
        (0.2, 15.0, 0, True, 80.0),  # a machine that is busy with other work: formerly a hang after 20 s
        (0.2, math.inf, 0, False, 100.0),
        (0.04, 6.0, 1, True, 160.0),  # a very busy one: formerly taken for a lock
        (0.04, math.inf, 1, False, 180.0),
        (0.001, math.inf, 0.9, False, 180.0),  # a loop that sleeps, on a busy machine
        (0.0, math.inf, 0, False, 20.0),  # a lock
        (0.0, math.inf, 0.01, False, 20.0),
    ],
)
def test_other_processes_make_no_hang(monkeypatch, share, needed, waits, answers, clock):
    """The limit of a working call counts processor time, and the limit of a waiting call counts a clock's time."""
    pipe = Clocks(monkeypatch, share, needed, waits)
    assert (forks._answers(pipe, 0, 20.0), pipe.now) == (answers, clock)


def test_a_loop_ends():
    """A fork that works and sends nothing is killed, too."""

    def work(send):
        while True:
            pass

    assert [*forked(work, 0.2)] == [Death(ExitReason.TIMEOUT, "gave no answer in 0.2 s")]


def test_waiting_for_a_processor_is_told():
    """The system tells it in nanoseconds, for each thread; an unknown process has none."""
    before = int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9 if sys.platform == "linux" else 0
    assert before <= waiting_time_of(os.getpid()) and waiting_time_of(2**30) == 0


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_is_named(code):
    """An operator that ends the process is a death. Regression test: one with exit code 0 was none."""
    said = f"ended its process with exit code {code}"
    for end in (os._exit, sys.exit):  # regression test: `sys.exit(0)` was said to be exit code 1
        assert [*forked(lambda send, end=end: end(code), 10)] == [Death(ExitReason.CRASH, said)]


class TestFork:
    def test_questions_and_answers(self):
        """Messages go both ways; the fork ends when the connection does."""

        def work(pipe):
            while True:
                pipe.send(2 * pipe.recv())

        with Fork(work) as fork:
            fork.send(3)
            assert fork.receive(10) == 6
            assert processor_time_of(fork.process) < 10
        assert not alive(fork.process)

    @pytest.mark.parametrize(("work", "said"), [
        (lambda pipe: os._exit(0), "ended its process with exit code 0"),
        (lambda pipe: time.sleep(1000), "gave no answer in 0.2 s"),
    ])  # fmt: skip
    def test_the_end_of_a_fork(self, work, said):
        """A fork that ends instead of an answer, or gives none, has died."""
        with Fork(work) as fork, pytest.raises(ForkDied, match=said):
            fork.receive(0.2 if "0.2" in said else 60)


def test_a_fault_of_the_work():
    """An exception of the work itself is the last item."""
    (error,) = forked(lambda send: 1 / 0, 10)
    assert isinstance(error, RuntimeError) and "ZeroDivisionError" in str(error)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_reserved_addresses_are_no_memory():
    """CUDA reserves more of them than the limit. Regression test: they counted, so no CUDA device could start."""

    def work(send):
        with mmap.mmap(-1, 2**36, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0) as reserved:
            send(len(reserved))

    assert [*forked(work, 20)] == [2**36]


def test_memory_has_a_limit():
    """An allocation of more memory than the limit fails in the fork."""

    def work(send):
        try:
            torch.empty(2**34).fill_(1)
        except RuntimeError as error:
            send("can't allocate" in str(error))

    assert [*forked(work, 20)] == [True]
