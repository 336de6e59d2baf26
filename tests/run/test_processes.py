"""The server that workers are forked from: what it has done, and what becomes of a pool without it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from conformance.run import pool as pool_module
from conformance.run import processes, stop
from conformance.run.messages import Done, Limits, Task
from conformance.run.pool import Counters, LocalPool
from tests.run.process_tree import alive, descendants, tasks, threads, trackers, until_ready


class TestForks:
    """Workers are forks of a process that has done nothing that a fork does not survive."""

    pytestmark = pytest.mark.skipif(not processes.can_fork(), reason="workers are no forks here")

    @pytest.mark.parametrize("preload", [pool_module.PRELOAD, ["conformance.fuzzing.worker", *pool_module.PRELOAD]])
    def test_what_the_server_has_done(self, preload: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """It has imported torch and no target, initialized no device, and has one thread, whatever the user's setting
        of OpenBLAS, which workers see."""
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
        with LocalPool("class:tasks.Looks", Limits(), 1, ["tasks"], preload) as pool:
            assert pool.ask(tasks.looked) == {"targets": [], "devices": [], "tinygrad": False}
            until_ready(pool, 1)
            assert replace(pool.counters, started=0) == Counters(waited=1)
            assert threads(pool.ask(os.getppid)) == 1
            assert pool.ask(gc.get_freeze_count) > 100_000  # which no collection in a worker looks at
            assert pool.ask(os.getenv, "OPENBLAS_NUM_THREADS") == "2"

    @pytest.mark.parametrize("drivers", [(), ("null",)])
    def test_op_db_is_inherited(self, drivers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        """Each worker imported it, most of what a crash cost. Not where it would find an accelerator, whose driver does
        not work in a fork: `null` stands for the file of one."""
        imported: list[str] = []
        monkeypatch.setattr(processes, "DRIVERS", drivers)
        monkeypatch.setattr(processes.importlib, "import_module", imported.append)
        processes._imported(pool_module.PRELOAD)
        assert imported == [*pool_module.PRELOAD][: 2 if drivers else 3]

    @pytest.mark.parametrize(
        ("module", "why"), [("threads_at_import", "started 1 threads"), ("no_such_module", "cannot be imported")]
    )
    def test_a_server_that_must_not_fork(self, module: str, why: str) -> None:
        """Modules that start threads, or that cannot be imported: the task runs in a process of its own."""
        with LocalPool("cpu", Limits(), 1, ["tasks"], ["torch", module]) as pool:
            assert pool.ask(os.getppid) == os.getpid()
            assert why in pool.counters.lost
            assert replace(pool.counters, lost="", started=0) == Counters(waited=1, restarted=1)

    def test_a_server_that_dies(self) -> None:
        """Its workers are ended, and the task runs again in one that needs no server."""
        with LocalPool("cpu", Limits(), 1, ["tasks"]) as pool:
            server = pool.ask(os.getppid)
            pool.submit(Task("it", tasks.slowly_pid))
            os.kill(server, signal.SIGKILL)
            [(_, answer)] = pool.ended()
            assert isinstance(answer, Done)
            assert pool.ask(os.getppid) == os.getpid()
            assert "has ended" in pool.counters.lost

    def test_a_backend_that_torch_loads_by_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may not survive a fork, so each worker is a process of its own, unless torch is told not to load it."""
        assert processes.can_fork()
        monkeypatch.setattr(processes.importlib.metadata, "entry_points", lambda group: [group])
        assert not processes.can_fork()
        monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        assert processes.can_fork()

    def test_a_pool_that_runs_nothing_starts_nothing(self) -> None:
        """No process is there before the first task, so a command that ends earlier has none to end."""
        before = set(descendants(os.getpid()))
        with LocalPool("cpu", Limits(), 1, ["tasks"]) as pool:
            assert pool.counters == Counters()
            assert set(descendants(os.getpid())) == before

    def test_stopped_while_it_imports(self) -> None:
        """A stop does not wait for the imports of the server, and leaves nobody behind."""
        before, left, began = set(descendants(os.getpid())), set[int](), time.monotonic()

        def interrupts() -> None:
            left.update(set(descendants(os.getpid())) - before)
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(1.0, interrupts)
        with stop.deferred(), LocalPool("cpu", Limits(), 1, ["tasks"], ["torch", "sleeps_at_import"]) as pool:
            timer.start()
            with pytest.raises(stop.Stopped):
                pool.submit(Task("it", tasks.pid))
        assert time.monotonic() - began < 10
        assert left
        assert not any(alive(pid) for pid in left - trackers())
