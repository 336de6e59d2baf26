"""The pool: each death of a worker is reported, loses no other task, and is replaced while the next task runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pebble
import pytest
from pebble.pool.base_pool import PoolStatus

from conformance.record.errors import UserError
from conformance.run import pool as pool_module
from conformance.run import processes, signals
from conformance.run.campaign.workers import Workers
from conformance.run.messages import (
    COMPILING,
    KILLED,
    Death,
    Done,
    ExitReason,
    Limits,
    OutOfTime,
    Pool,
    Task,
    TaskProgress,
    WorkerDied,
)
from conformance.run.pool import LocalPool, PoolCosts
from tests.patience import stretched, wait_until
from tests.run.process_tree import PLANTED, alive, descendants, only_of_tracker, tasks, until_ready

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shared(importable: None) -> Iterator[LocalPool]:
    """One pool for the tests that leave it unchanged."""
    with LocalPool("cpu", Limits(unit=2, compiling=60, memory=2, grace=1), 1, ["tasks"]) as pool:
        yield pool


def outcome(pool: Pool, function: Any, *args: Any) -> Done | Death:
    pool.submit(Task("it", function, args))
    [(task, answer)] = pool.ended()
    assert task.args == args
    return answer


class TestDeaths:
    @pytest.mark.parametrize(
        ("function", "reason", "said", "steps"),
        [
            (tasks.segfaults, ExitReason.CRASH, "SIGSEGV", ("1", "2")),
            (tasks.exits_0, ExitReason.CRASH, "exit code 0", ()),
            (tasks.killed, ExitReason.CRASH, "SIGKILL (out of memory?)", ()),
            (tasks.sleeps, ExitReason.TIMEOUT, "no answer in 2 s", ("3",)),
            (tasks.hangs_outside_python, ExitReason.TIMEOUT, "no answer in 2 s", ("3",)),
            (tasks.loses_the_device, ExitReason.CRASH, "was lost (RuntimeError: assertion failed)", ("4",)),
        ],
    )
    def test_each_is_told(
        self, function: Any, reason: ExitReason, said: str, steps: tuple[str, ...], shared: LocalPool
    ) -> None:
        """The answer has the worker's end in words and the last steps of its note; the next task runs."""
        answer = outcome(shared, function)
        assert isinstance(answer, Death)
        assert (answer.reason, said in answer.said) == (reason, True), answer
        assert answer.note is not None
        assert answer.note.steps == steps
        assert outcome(shared, tasks.pid) != Done(os.getpid())

    @pytest.mark.parametrize(
        ("code", "said"),
        [
            (None, "ended its process with exit code 0"),
            (0, "ended its process with exit code 0"),
            (3, "ended its process with exit code 3"),
            (-1, "ended its process with exit code 255"),
            (processes.RETIRED, "ended its process with exit code 1"),
            ("no driver", "ended its process with exit code 1"),
        ],
    )
    def test_leaving_python(self, code: object, said: str, shared: LocalPool) -> None:
        """`sys.exit` in a task gives the exit code that a script has. Regression test: it was always 1, so no script of
        a device that calls `sys.exit()` showed its headline."""
        answer = outcome(shared, tasks.leaves, code)
        assert isinstance(answer, Death)
        assert (answer.reason, answer.said) == (ExitReason.CRASH, said)

    def test_interrupting_python(self, shared: LocalPool) -> None:
        """A KeyboardInterrupt of a device ends the process by SIGINT, as it ends a script."""
        answer = outcome(shared, tasks.interrupts)
        assert isinstance(answer, Death)
        assert answer.said == "killed its process with SIGINT"

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA limits memory on Linux only")
    def test_memory(self, shared: LocalPool) -> None:
        """A worker that exceeds its memory limit is distinguished from a crash."""
        answer = outcome(shared, tasks.eats_memory)
        assert isinstance(answer, Death)
        assert answer.reason is ExitReason.MEMORY

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is looked at on Linux only")
    def test_shared_memory(self, shared: LocalPool) -> None:
        """Shared mappings count as memory. Regression test: RLIMIT_DATA ignores them, and a device that keeps its
        tensors there used up the machine's memory."""
        answer = outcome(shared, tasks.eats_shared_memory)
        assert isinstance(answer, Death)
        assert answer.reason is ExitReason.MEMORY

    def test_an_exception_is_no_death(self, shared: LocalPool) -> None:
        """An exception is the task's answer, as text if it cannot be recreated here, and the worker continues."""
        before = shared.ask(tasks.pid)
        answer = outcome(shared, tasks.raises)
        assert isinstance(answer, Done)
        assert repr(answer.error) == "RuntimeError('Odd: 1')"
        with pytest.raises(RuntimeError, match="Odd: 1"):
            shared.ask(tasks.raises)
        os.kill(before, 0)  # it lives; the spare worker, ready after some seconds, may get the next task

    def test_a_value_that_cannot_be_sent(self, shared: LocalPool) -> None:
        """A value or argument that cannot be pickled is an error of its task. Regression test: it was reported as a
        crash."""
        before = shared.ask(tasks.pid)
        for function, args in ((tasks.unsendable, ()), (abs, (lambda: 0,))):
            answer = outcome(shared, function, *args)
            assert isinstance(answer, Done)
            assert "pickle" in str(answer.error)
        os.kill(before, 0)  # it lives; the spare worker, ready after some seconds, may get the next task

    def test_sets_have_one_order(self, shared: LocalPool) -> None:
        """Every worker has the same set order, whatever process started it. Regression test: two programs of 200
        varied, because op_db takes the samples of meshgrid from a set of words."""
        if "PYTHONHASHSEED" not in os.environ:
            randomized, _ = shared.ask(tasks.order_of_words)
            assert not randomized
            assert "PYTHONHASHSEED" not in os.environ

    def test_ask(self, shared: LocalPool) -> None:
        """A question that kills its worker raises an error that contains the death."""
        with pytest.raises(WorkerDied, match="SIGSEGV") as caught:
            shared.ask(tasks.segfaults)
        assert isinstance(caught.value, UserError)
        assert caught.value.death.reason is ExitReason.CRASH

    @pytest.mark.parametrize("target", ["class:tasks.Dies", "class:tasks.Leaves"])
    def test_a_target_that_ends_its_process(self, target: str) -> None:
        """The reason is NEVER_STARTED after a few attempts, even with exit code 0, which pebble interprets as a retired
        worker."""
        with LocalPool(target, Limits(), 1) as pool:
            answer = outcome(pool, tasks.pid)
        assert isinstance(answer, Death)
        assert answer.reason is ExitReason.NEVER_STARTED
        assert pool.counters.started <= 2 * pool_module.ATTEMPTS + 2

    @pytest.mark.parametrize("forks", [True, False])
    def test_a_kill_from_outside_is_not_the_targets_fault(
        self, forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A worker that is killed while it loads is replaced once, and the task runs. If its successor is killed too,
        the answer says that it was from outside. Regression test: the target was blamed at once, and a pool whose first
        worker had died before its first task waited until the limit of loading."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(processes, "can_fork", lambda: forks)
        with LocalPool("class:tasks.KilledOnce", Limits(), 1, ["tasks"]) as pool:
            assert isinstance(outcome(pool, tasks.pid), Done)
            assert pool.counters.restarted == 1
        with LocalPool("class:tasks.Killed", Limits(), 1, ["tasks"]) as pool:
            answer = outcome(pool, tasks.pid)
        assert answer == Death(ExitReason.NEVER_STARTED, f"{KILLED} (SIGKILL), and again")
        assert pool.counters.restarted == 2

    def test_a_task_that_the_broken_pool_never_took(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A worker may die after pebble has taken a task and before pebble has registered it. The task runs in the next
        pool. Regression test: nobody answered it, and the target "did not load in 180 s"."""

        def forget(broken: pebble.ProcessPool, *_: Any, **__: Any) -> Future[Any]:
            monkeypatch.undo()
            broken._context.status = PoolStatus.ERROR
            return Future()

        with LocalPool("cpu", Limits(), 1) as pool:
            pool.ask(os.getpid)
            monkeypatch.setattr(pebble.ProcessPool, "schedule", forget)
            assert isinstance(outcome(pool, os.getpid), Done)
            assert pool.counters.restarted == 1

    @pytest.mark.parametrize("forks", [True, False])
    def test_semaphores_of_a_worker_end_with_it(self, forks: bool) -> None:
        """A command whose target creates semaphores ends without a word of them. Regression test: a campaign
        ended with Python's warning of leaked semaphores, those that its workers had created."""
        script = textwrap.dedent(
            f"""
            from conformance.run import processes
            from conformance.run.messages import Limits
            from conformance.run.pool import LocalPool
            from tests.planted import tasks

            if __name__ == "__main__":
                processes.can_fork = lambda: {forks}
                with LocalPool("class:tests.planted.tasks.Locks", Limits(), 1) as pool:
                    print(pool.ask(tasks.pid) > 0)
            """
        )
        words = [sys.executable, "-c", script]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("True\n", "")


class TestSpare:
    def test_a_crash_costs_no_import(self) -> None:
        """After each of three crashes, a ready worker runs the next task; only the first task waits."""
        with LocalPool("cpu", Limits(), 1, ["tasks"]) as pool:
            pool.ask(tasks.pid)
            until_ready(pool, 1)
            assert replace(pool.counters, started=0) == PoolCosts(waited=1)
            for crash in range(1, 4):
                until_ready(pool, 2)
                assert isinstance(outcome(pool, tasks.segfaults), Death)
                assert isinstance(outcome(pool, tasks.pid), Done)
                assert pool.counters.started >= 1 + crash
                assert replace(pool.counters, started=0) == PoolCosts(waited=1)

    def test_pools_share_the_server(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Another pool reuses the imports, in any folder and for any source; another environment has its own server.
        Regression test: each failing campaign had two pools, and each imported torch. So did the probe of a device and
        its campaign."""
        with LocalPool("cpu", Limits(), 1) as first, LocalPool("meta", Limits(), 1) as second:
            server = first.ask(os.getppid)
            assert second.ask(os.getppid) == server
        with Workers("cpu", Limits()) as programs:
            assert programs.ask(os.getppid) == server
        monkeypatch.chdir(tmp_path)
        with LocalPool("cpu", Limits(), 1) as third:
            assert third.ask(os.getppid) == server
            assert third.ask(os.getcwd) == str(tmp_path)
        monkeypatch.setenv("CONFORMANCE_OTHER", "1")
        with LocalPool("cpu", Limits(), 1) as other:
            assert other.ask(os.getppid) != server
            assert other.ask(os.getenv, "CONFORMANCE_OTHER") == "1"

    def test_without_forks_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without forks, each worker imports torch, but no task waits for it."""
        monkeypatch.setattr(processes, "can_fork", lambda: False)
        with LocalPool("cpu", Limits(), 1, ["tasks"]) as pool:
            assert pool.ask(os.getppid) == os.getpid()
            until_ready(pool, 2)
            assert isinstance(outcome(pool, tasks.segfaults), Death)
            assert isinstance(outcome(pool, tasks.pid), Done)
            assert (pool.counters.waited, pool.counters.restarted) == (1, 0)

    def test_the_spare_is_no_second_job(self, tmp_path: Path, shared: LocalPool) -> None:
        """At most `jobs` tasks run at a time."""
        shared.ask(tasks.pid)
        until_ready(shared, 2)
        for number in range(4):
            shared.submit(Task(str(number), tasks.alone, (str(tmp_path),)))
        assert [answer for _, answer in shared.ended()] == [Done(True)] * 4

    def test_recycling(self) -> None:
        """A worker is replaced after this number of tasks, which is no death."""
        with LocalPool("cpu", Limits(recycle=1), 1, ["tasks"]) as pool:
            assert len({pool.ask(tasks.pid) for _ in range(3)}) == 3
            assert pool.counters.restarted == 0


class TestWorkers:
    def test_what_they_inherit(self, shared: LocalPool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Workers inherit the environment of their pool's start."""
        shared.ask(tasks.pid)
        monkeypatch.setenv("CONFORMANCE_OTHER", "1")  # as above, so that no other server has to import torch
        assert shared.ask(os.getenv, "CONFORMANCE_OTHER") is None
        with LocalPool("cpu", Limits(), 1) as pool:
            assert pool.ask(os.getenv, "CONFORMANCE_OTHER") == "1"

    def test_a_deadline(self, tmp_path: Path, shared: LocalPool) -> None:
        """A question without an answer at its deadline ends with its worker, and another worker answers the next
        question."""
        shared.ask(tasks.pid)
        with pytest.raises(OutOfTime):
            shared.ask(tasks.begun_then_sleeps, str(tmp_path / "mark"), until=time.time() + 1.5)
        given_up = int((tmp_path / "mark").read_text())
        assert shared.ask(tasks.pid) != given_up
        wait_until(lambda: not alive(given_up), "the worker has ended")
        with pytest.raises(OutOfTime):
            shared.ask(tasks.pid, until=time.time())

    def test_what_they_print(self, shared: LocalPool, capfd: pytest.CaptureFixture[str]) -> None:
        """Output of workers goes to stderr, because other programs read the command's stdout."""
        assert outcome(shared, tasks.prints) == Done(1)
        assert capfd.readouterr().out == ""

    def test_compiling_has_its_own_limit(self, shared: LocalPool) -> None:
        """The alarm of a unit is paused during compilation and rings when the compile limit is over."""
        assert outcome(shared, tasks.compiles, 3.0) == Done("ran")
        with LocalPool("cpu", Limits(unit=60, compiling=1, grace=1), 1, ["tasks"]) as pool:
            answer = outcome(pool, tasks.compiles, 1000.0)
        assert isinstance(answer, Death)
        assert (answer.reason, answer.said) == (ExitReason.TIMEOUT, "gave no answer in 1 s")

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
    def test_they_end_with_their_owner(self, tmp_path: Path) -> None:
        """Workers end with a killed owner, even in the middle of a task, and so does the spare worker, although the
        owner cannot notify them."""
        script = f"""
            from conformance.run.messages import Limits, Task
            from conformance.run.pool import LocalPool
            import tasks

            if __name__ == "__main__":
                with LocalPool("cpu", Limits(), 1, ["tasks"]) as pool:
                    pool._want_spare(True)
                    pool.submit(Task("it", tasks.begun_then_sleeps, ({str(tmp_path / "mark")!r},)))
                    list(pool.ended())
        """
        (tmp_path / "owner.py").write_text(textwrap.dedent(script))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PLANTED), *sys.path]), "TMPDIR": str(tmp_path)}
        command = [sys.executable, str(tmp_path / "owner.py")]
        owner = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        wait_until((tmp_path / "mark").exists, "the task has begun")
        left = descendants(owner.pid)
        assert len(left) >= 3, "a server, a worker and multiprocessing's tracker"
        owner.send_signal(signal.SIGKILL)
        said = owner.communicate()[1]
        wait_until(lambda: not any(map(alive, left)), "the workers have ended")
        assert only_of_tracker(said)

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
    @pytest.mark.parametrize(
        "after", [0.0, 0.8, *(pytest.param(after, marks=pytest.mark.slow) for after in (0.3, 1.5))]
    )
    def test_they_end_with_an_owner_that_is_killed_early(self, after: float, tmp_path: Path) -> None:
        """The owner is killed while the server imports torch, or a worker loads the target: no process remains, and no
        output appears."""
        (tmp_path / "owner.py").write_text(textwrap.dedent("""
            from conformance.run.messages import Limits, Task
            from conformance.run.pool import LocalPool
            import tasks

            if __name__ == "__main__":
                with LocalPool("cpu", Limits(), 1, ["tasks"]) as pool:
                    pool.submit(Task("it", tasks.sleeps))
                    print("submitted", flush=True)
                    list(pool.ended())
        """))  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PLANTED), *sys.path]), "TMPDIR": str(tmp_path)}
        command = [sys.executable, str(tmp_path / "owner.py")]
        owner = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert owner.stdout is not None
        owner.stdout.readline()
        time.sleep(after)
        left = descendants(owner.pid)
        owner.send_signal(signal.SIGKILL)
        said = owner.communicate(timeout=stretched(60))[1]  # returns after all processes with its stderr have ended
        assert not any(map(alive, left))
        assert only_of_tracker(said)


class TestOverdue:
    """Time limits, judged with a simulated clock."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [1.0]
        monkeypatch.setattr(pool_module.time, "monotonic", lambda: now[0])
        return now

    @staticmethod
    def running(tmp_path: Path) -> Any:
        return pool_module._Running(Task("it", tasks.pid), processes.Spawning(), tmp_path / "note")

    def test_slow_units_are_no_hang(self, tmp_path: Path, clock: list[float]) -> None:
        """Any number of units within the limit is fine; one that exceeds the limit plus the grace is a timeout."""
        running, limits = self.running(tmp_path), Limits(unit=5)
        for number in range(50):
            clock[0] += 4
            assert running.overdue(limits, TaskProgress(number, "a program")) is None
        clock[0] += limits.unit + limits.grace - 1
        assert running.overdue(limits, TaskProgress(49, "a program", ("1",))) is None
        clock[0] += 2
        assert running.overdue(limits, TaskProgress(49, "a program", ("1", "2"))).reason is ExitReason.TIMEOUT

    def test_waiting_for_a_processor_is_added(self, tmp_path: Path, clock: list[float]) -> None:
        """A unit may be as late as its worker has added to the limit."""
        running, limits = self.running(tmp_path), Limits(unit=5)
        assert running.overdue(limits, TaskProgress(1, "a program")) is None
        clock[0] += limits.unit + limits.grace + 6
        assert running.overdue(limits, TaskProgress(1, "a program", waited=7.0)) is None
        assert running.overdue(limits, TaskProgress(1, "a program", waited=5.0)).reason is ExitReason.TIMEOUT

    def test_what_is_no_unit_has_no_limit(self, tmp_path: Path, clock: list[float]) -> None:
        """A task that has not started a unit has no limit."""
        running = self.running(tmp_path)
        assert running.overdue(Limits(), TaskProgress(1)) is None
        clock[0] += 10_000
        assert running.overdue(Limits(), TaskProgress(1)) is None
        assert running.overdue(Limits(), None) is None

    def test_compiling(self, tmp_path: Path, clock: list[float]) -> None:
        """The compile limit counts from the start of compilation."""
        running, limits = self.running(tmp_path), Limits(unit=5, compiling=100)
        compiling = TaskProgress(1, "a program", ("1",), COMPILING)
        assert running.overdue(limits, compiling) is None
        clock[0] += 100
        assert running.overdue(limits, compiling) is None
        clock[0] += 100
        assert running.overdue(limits, compiling).reason is ExitReason.TIMEOUT


class TestNote:
    def test_whole_lines_count(self) -> None:
        """Only complete lines count, since a worker may be writing its note."""
        text = '[3, "a program"]\n{"step": "1", "phase": ""}\n{"step": "2", "phase": "compiling"}\n{"reason": "MEM'
        assert TaskProgress.parse(text) == TaskProgress(3, "a program", ("1", "2"), COMPILING)
        assert TaskProgress.parse(text + 'ORY"}\n').reason is ExitReason.MEMORY  # type: ignore[union-attr]
        waits = '[3, "a program"]\n{"waited": 2.5}\n{"step": "1", "phase": ""}\n{"waited": 4.0}\n'
        assert TaskProgress.parse(waits) == TaskProgress(3, "a program", ("1",), waited=4.0)
        assert TaskProgress.parse("[3") is None


@pytest.mark.usefixtures("sigint_heeded")
class TestStop:
    @pytest.mark.parametrize(("first", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_the_first_signal_counts(self, first: signal.Signals, code: int) -> None:
        """A signal is pending until `check`, and later signals change nothing; afterwards the handlers are restored."""
        before = signal.getsignal(first)
        with signals.deferred():
            signals.check()
            for number in (first, signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
            with pytest.raises(signals.Stopped):
                signals.check()
            assert 128 + signals.signal_number() == code
        assert signal.getsignal(first) is before

    def test_a_pool_answers_it(self, shared: LocalPool) -> None:
        """A pool reacts to a signal while it waits for a task that does not end."""
        with LocalPool("cpu", Limits(), 1, ["tasks"]) as pool, signals.deferred():
            pool.submit(Task("it", tasks.sleeps))
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                list(pool.ended())
