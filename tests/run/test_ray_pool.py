"""The pool on Ray: one answer per task and all kept files, despite killed, stopped, full or late nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[client]>=2.50', as `nox -s slow` does")

import ray

from conformance.record.errors import UsageError
from conformance.run import ray_pool
from conformance.run.execution_place import ExecutionPlace
from conformance.run.messages import Death, Done, ExitReason, Limits, OutOfTime, Task, WorkerDied
from conformance.run.ray_pool import RayPool
from tests.run.clusters import PLANTED, SMALL, started

sys.path.insert(0, str(PLANTED))
try:
    import tasks
finally:
    sys.path.remove(str(PLANTED))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
LIMITS = Limits(unit=2, compiling=60, memory=2, grace=1)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The nodes' workers import the tasks as an installed module; each test closes its connection."""
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    monkeypatch.syspath_prepend(str(PLANTED))
    yield
    ray.shutdown()


@pytest.fixture
def two() -> Iterator[Any]:
    """A head without workers, and two nodes of one worker each."""
    with started(2) as cluster:
        yield cluster


@contextlib.contextmanager
def pool_on(cluster: Any, jobs: int = 2) -> Iterator[RayPool]:
    with RayPool(ExecutionPlace(cluster.address), "cpu", LIMITS, jobs, ["tasks"]) as pool:
        yield pool


def run_through(
    pool: RayPool,
    folder: Path,
    disturb: Callable[[], object],
    tasks_in_all: int = 24,
    at: int = 6,
    seconds: float = 0.4,
) -> dict[str, float]:
    """Run numbered tasks and call `disturb` after some have ended: each task has one answer and one file. The figures
    are seconds: until the pool noticed a loss, until the lost task had its answer, and the longest transfer of a kept
    file here."""
    late: dict[str, float] = {}

    def watch() -> None:
        while threading.current_thread() in watching:
            for path in folder.glob("*.found"):
                with contextlib.suppress(ValueError):
                    late.setdefault(path.name, time.time() - float(path.read_text()))
            time.sleep(0.05)

    thread = threading.Thread(target=watch, daemon=True)
    watching = [thread]
    for number in range(tasks_in_all):
        pool.submit(Task(str(number), tasks.numbered, (number, seconds, str(folder))))
    thread.start()
    answered: list[int] = []
    began, seen, made_up = 0.0, 0.0, 0.0
    while_lost = pool._failed
    for _, answer in pool.ended():
        assert isinstance(answer, Done), answer
        assert answer.error is None
        assert (folder / f"{answer.value}.found").exists(), "a task's files are here before its answer is"
        answered.append(answer.value)
        if len(answered) == at:
            disturb()
            began = time.monotonic()
        seen = seen or (time.monotonic() - began if pool.lost else 0.0)
        made_up = made_up or (time.monotonic() - began if seen and not while_lost else 0.0)
    watching.clear()
    thread.join()
    assert sorted(answered) == list(range(tasks_in_all))
    assert {path.name for path in folder.glob("*.found")} == {f"{number}.found" for number in range(tasks_in_all)}
    return {"seen": round(seen, 2), "made up for": round(made_up, 2), "to this disk": round(max(late.values()), 2)}


def print_figures(request: pytest.FixtureRequest, figures: dict[str, float]) -> None:
    print(f"{request.node.name}: {figures}")


def actors() -> list[int]:
    """Process ids of the supervisors on this machine."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(b"ray::_Actor"):
                pids.append(int(path.parent.name))
    return pids


class TestAnswers:
    def test_on_a_ray_of_its_own(self) -> None:
        """Deaths, errors and values equal those of the local pool, and no subject kills an actor."""
        with RayPool(ExecutionPlace("ray"), "cpu", LIMITS, 1, ["tasks"]) as pool:
            before = actors()
            cases = [
                (tasks.segfaults, ExitReason.CRASH, "SIGSEGV", ("1", "2")),
                (tasks.exits_0, ExitReason.CRASH, "exit code 0", ()),
                (tasks.killed, ExitReason.CRASH, "SIGKILL (out of memory?)", ()),
                (tasks.sleeps, ExitReason.TIMEOUT, "no answer in 2 s", ("3",)),
                (tasks.hangs_outside_python, ExitReason.TIMEOUT, "no answer in 2 s", ("3",)),
                (tasks.eats_memory, ExitReason.MEMORY, "out of memory", ()),
            ]
            for function, reason, said, steps in cases:
                pool.submit(Task("it", function))
                [(_, answer)] = pool.ended()
                assert isinstance(answer, Death)
                assert (answer.reason, said in answer.said, answer.note and answer.note.steps) == (reason, True, steps)
            before = before or actors()
            with pytest.raises(RuntimeError, match="Odd: 1"):
                pool.ask(tasks.raises)
            with pytest.raises(WorkerDied, match="SIGSEGV"):
                pool.ask(tasks.segfaults)
            for function, args in ((tasks.unsendable, ()), (abs, (lambda: 0,))):
                pool.submit(Task("it", function, args))
                [(_, answer)] = pool.ended()
                assert isinstance(answer, Done)
                assert "pickle" in str(answer.error)
            assert pool.ask(tasks.order_of_words)[0] is False
            assert actors() == before
            assert pool.lost == []
            with pytest.raises(OutOfTime):
                pool.ask(tasks.numbered, 0, 1.5, "/nowhere", until=time.time() + 0.2)
            with pytest.raises(Exception, match="cannot be written"):
                pool.ask(tasks.numbered, 0, 0.0, "/proc/nowhere")

    def test_a_target_that_ends_its_process(self) -> None:
        """The report equals that of the local pool."""
        with (
            RayPool(ExecutionPlace("ray"), "class:tasks.Dies", LIMITS, 1, ["tasks"]) as pool,
            pytest.raises(WorkerDied, match="ends the process that loads it"),
        ):
            pool.ask(tasks.pid)


class TestRefusals:
    """One sentence each, as an error with exit code 2."""

    def test_nobody_listens(self) -> None:
        for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
            with pytest.raises(UsageError, match=f"no Ray cluster answers at --pool {address}"):
                RayPool(ExecutionPlace(address), "cpu", LIMITS)

    def test_no_such_resource(self) -> None:
        place = ExecutionPlace("ray", (("CPU", 1.0), ("odd_device", 1.0)))
        with pytest.raises(UsageError, match="no node at --pool ray has CPU=1,odd_device=1 for a worker: there is CPU"):
            RayPool(place, "cpu", LIMITS)


class TestLosses:
    def test_a_worker_process(self, two: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        """A worker killed from outside, as by the operating system: the task's death is its answer, and other tasks
        continue."""
        with pool_on(two) as pool:
            marks = [tmp_path / "0", tmp_path / "1"]
            for mark in marks:
                pool.submit(Task("it", tasks.begun_then_sleeps, (str(mark),)))
            ended = pool.ended(60)
            killer = threading.Thread(target=_kill_when_there, args=(marks[0],))
            killer.start()
            _, answer = next(ended)
            killer.join()
            assert isinstance(answer, Death)
            assert "SIGKILL" in answer.said
            began = time.monotonic()
            assert pool.ask(tasks.pid) > 0
            print_figures(request, {"until the next answer": round(time.monotonic() - began, 2)})
            assert pool.lost == []

    def test_a_supervisor(self, two: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        """After kill -9 of the Ray worker, another starts and runs its task again."""
        with pool_on(two) as pool:
            figures = run_through(pool, tmp_path, lambda: os.kill(actors()[0], signal.SIGKILL))
            assert len(pool.lost) == 1
            print_figures(request, figures)

    def test_a_raylet(self, two: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        """After kill -9 of a raylet, its node is lost, and other nodes run its task."""
        node = next(iter(two.worker_nodes))
        with pool_on(two) as pool:
            figures = run_through(pool, tmp_path, node.kill_raylet)
            assert len(pool.lost) == 1
            print_figures(request, figures)

    def test_a_node_out_of_reach(
        self, two: Any, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All processes of a node stop, as behind a broken network, and continue later. Another node runs its task, and
        the pool ignores its late answer."""
        monkeypatch.setattr(ray_pool, "SILENT", 6.0)
        stopped: list[int] = []

        def cut() -> None:
            victim = actors()[0]
            parent = int(Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[1])
            stopped.extend([parent, victim])
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            threading.Timer(12.0, proceed).start()

        def proceed() -> None:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        with pool_on(two) as pool:
            print_figures(request, run_through(pool, tmp_path, cut, tasks_in_all=60))
            assert any("no sign of life in 6 s" in said for said in pool.lost)

    def test_a_raylet_that_stands_still(self, two: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        """The actor continues, so no task is lost; only new processes on that node have to wait."""
        node = next(iter(two.worker_nodes))
        raylet = node.all_processes["raylet"][0].process.pid

        def pause() -> None:
            os.kill(raylet, signal.SIGSTOP)
            threading.Timer(4.0, lambda: os.kill(raylet, signal.SIGCONT)).start()

        with pool_on(two) as pool:
            print_figures(request, run_through(pool, tmp_path, pause, tasks_in_all=40))

    def test_a_node_that_joins_late(self, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        """A late node gets tasks as soon as it joins."""
        with started(1) as cluster, pool_on(cluster) as pool:
            assert pool.ask(tasks.pid)
            assert len(pool.workers) == 1
            cluster.add_node(num_cpus=1, object_store_memory=SMALL)
            began, number = time.monotonic(), 0
            pool.submit(Task("0", tasks.numbered, (0, 0.4, str(tmp_path))))
            pool.submit(Task("1", tasks.numbered, (1, 0.4, str(tmp_path))))
            for _ in pool.ended(120):
                if len(pool.workers) == 1:
                    number += 1
                    pool.submit(Task(str(number), tasks.numbered, (number + 2, 0.4, str(tmp_path))))
            assert len(pool.workers) == 2
            print_figures(request, {"until it works": round(time.monotonic() - began, 2)})

    def test_a_full_disk(self, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        """A node with a full disk is excluded in one sentence, and its task runs elsewhere."""
        small = tmp_path / "small"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], check=False)
        if mounted.returncode:
            pytest.skip("no file system can be mounted here")
        try:
            with started(1) as cluster:
                cluster.add_node(num_cpus=1, object_store_memory=SMALL, env_vars={"TMPDIR": str(small)})

                def fill() -> None:
                    threading.Thread(target=keep_full, daemon=True).start()

                def keep_full() -> None:
                    """Fill the disk, also the space of files that the worker deletes."""
                    with open(small / "filler", "wb", buffering=0) as file:
                        while not pool.lost:
                            with contextlib.suppress(OSError):
                                file.write(bytes(2**12))

                folder = tmp_path / "found"
                folder.mkdir()
                with pool_on(cluster) as pool:
                    while len(pool.workers) < 2:  # otherwise the other node may answer all tasks
                        pool.submit(Task("it", tasks.slowly_pid))
                        pool.submit(Task("it", tasks.slowly_pid))
                        assert len(list(pool.ended())) == 2
                    print_figures(request, run_through(pool, folder, fill))
                    assert [said.partition(":")[0].split()[2:] for said in pool.lost] == [["is", "left", "out"]]
        finally:
            subprocess.run(["umount", "-l", str(small)], check=True)


def _kill_when_there(mark: Path) -> None:
    while not (mark.exists() and mark.read_text()):
        time.sleep(0.05)
    os.kill(int(mark.read_text()), signal.SIGKILL)
