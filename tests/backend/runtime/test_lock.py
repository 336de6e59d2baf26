"""Several threads on the device, and the device after a fork."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import threading
from types import FrameType

import pytest
import torch

from conformance.backend.lazy import calls
from conformance.backend.runtime import lock, memory


@pytest.fixture
def hurried():
    """Let Python switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class TestThreads:
    @pytest.mark.parametrize(
        ("count", "steps"), [pytest.param(2, 5, id="few"), pytest.param(4, 40, id="many", marks=pytest.mark.slow)]
    )
    def test_values_of_threads_at_once(self, hurried, count, steps):
        """Each thread builds, drops and reads graphs of the same nodes. Formerly terms of a sum were lost, or the
        program hung."""
        wrong = []

        def work(number: int) -> None:
            try:
                for step in range(steps):
                    x = torch.tensor([number, step, 2.0]).to("tiny")
                    first_sum = ((x * x + x).sum() + (x[:, None] * x).sum()).item()
                    x[1:] += x[0]
                    total = number + step + 2
                    wanted = number**2 + step**2 + 4 + total + total**2, total + 2 * number
                    if (first_sum, x.sum().item()) != wanted:
                        wrong.append((number, step, first_sum, wanted))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []

    def test_gradients_of_two_threads(self):
        """Each thread differentiates a separate graph."""
        gradients = {}

        def work(number: int) -> None:
            w = torch.ones(3, 3, device="tiny", requires_grad=True)
            for _ in range(3):
                (w @ w * number).sum().backward()
            gradients[number] = w.grad.sum().item()

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert gradients == {1: 162.0, 2: 324.0}


class TestClear:
    class Holder:
        def __init__(self) -> None:
            self.held = object()

    def test_is_at_once_in_the_thread_that_has_the_lock(self):
        """The thread that holds the lock clears immediately, and defers nothing."""
        lock.locked(lambda: None)()
        holder = self.Holder()
        with lock.LOCK:
            lock.clear(holder, ("held",))
        assert holder.held is None
        assert lock._dropped == []

    def test_never_waits(self):
        """A finalizer in a thread without the lock never waits. The next thread that takes the lock drops the
        objects."""
        lock.locked(lambda: None)()
        holder = self.Holder()
        with lock.LOCK:
            other = threading.Thread(target=lock.clear, args=(holder, ("held",)), daemon=True)
            other.start()
            other.join(10)
            assert not other.is_alive()
            assert holder.held is None
            assert len(lock._dropped) == 1
        lock.locked(lambda: None)()
        assert lock._dropped == []

    def test_a_storage_that_dies_elsewhere_is_cleared(self):
        """The nodes of a tensor dropped by another thread are freed in the thread that holds the lock, or later."""
        held = [torch.ones(3, device="tiny") + 1]
        calls.settle()  # a queued call would keep it
        lock.locked(lambda: None)()
        with lock.LOCK:
            other = threading.Thread(target=held.clear, daemon=True)
            other.start()
            other.join(10)
            assert held == []
            assert lock._dropped

    @pytest.mark.parametrize("call", range(6))
    def test_an_interrupt_leaves_the_lock_free(self, call):
        """A KeyboardInterrupt may strike after any call in a finalizer, and Python ignores it there. Formerly the lock
        stayed taken if it came after the call that takes it, and every other thread waited for ever."""
        lock.locked(lambda: None)()
        ends = 0

        def interrupt(frame: FrameType, event: str, of: object) -> None:
            nonlocal ends
            if frame.f_code is lock.clear.__code__ and event == "c_return":
                ends += 1
                if ends > call:
                    raise KeyboardInterrupt

        sys.setprofile(interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            lock.clear(self.Holder(), ("held",))
        sys.setprofile(None)
        taken = lock.LOCK._is_owned()
        if taken:
            lock.LOCK.release()
        assert not taken


class TestFork:
    def test_a_gpu_that_was_open_is_refused(self, monkeypatch):
        """A fork is refused if a GPU was open, because no GPU driver works in a fork. The error names a start method
        that works."""
        monkeypatch.setattr(memory, "_opened", {"CPU", "CUDA", "CUDA:1"})
        assert _in_child(memory.check_fork).startswith("RuntimeError: tiny: CUDA, CUDA:1 was opened before")
        assert not memory.LOST

    def test_the_cpu_works(self, monkeypatch):
        """CPU memory belongs to the child after the fork, and the device works."""
        memory.open_device("CPU")
        monkeypatch.setattr(memory, "_opened", {"CPU"})
        assert _in_child(lambda: str((torch.arange(3.0, device="tiny") + 1).tolist())) == "[1.0, 2.0, 3.0]"

    def test_a_child_is_made_while_another_thread_computes(self):
        """A fork works while another thread holds the lock. Formerly the lock stayed taken in the child, by a thread
        that does not exist there."""
        computing, done = threading.Event(), threading.Event()

        def compute() -> None:
            with lock.LOCK:
                computing.set()
                done.wait(0.2)

        thread = threading.Thread(target=compute, daemon=True)
        thread.start()
        computing.wait(10)
        assert _in_child(lambda: str((torch.ones(2, device="tiny") * 2).tolist())) == "[2.0, 2.0]"
        done.set()
        thread.join(10)


def _in_child(call, seconds: float = 60.0) -> str:
    """Return the result of a call in a forked child, or its exception, as text."""
    context = multiprocessing.get_context("fork")
    reads, writes = context.Pipe(duplex=False)

    def run() -> None:
        try:
            writes.send(str(call()))
        except BaseException as error:
            writes.send(f"{type(error).__name__}: {error}")

    child = context.Process(target=run, daemon=True)
    child.start()
    said = reads.recv() if reads.poll(seconds) else "nothing"
    child.join(1)
    child.kill()
    return said
