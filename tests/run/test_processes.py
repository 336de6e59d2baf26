"""The fork server of workers: its state, and a pool after its loss."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace

import pytest
from torch._inductor.runtime import cache_dir_utils

from conformance.run import pool as pool_module
from conformance.run import processes, signals
from conformance.run.execution_place import LOCAL, preloaded
from conformance.run.messages import Done, Limits, Task
from conformance.run.pool import LocalPool, PoolCosts
from tests.patience import wait_until
from tests.run.process_tree import alive, descendants, tasks, threads, trackers, until_ready


class TestForks:
    """Workers are forks of a process without threads or initialized devices."""

    pytestmark = pytest.mark.skipif(not processes.can_fork(), reason="workers are no forks here")

    def test_what_the_server_has_done(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The server has imported torch but no target, initialized no device, and has one thread. The user's setting of
        OpenBLAS reaches the workers only."""
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
        with LocalPool("class:tasks.Looks", Limits(), 1, ["tasks"]) as pool:
            assert pool.ask(tasks.looked) == {"targets": [], "devices": [], "tinygrad": False}
            until_ready(pool, 1)
            assert replace(pool.counters, started=0) == PoolCosts(waited=1)
            assert threads(pool.ask(os.getppid)) == 1
            assert pool.ask(gc.get_freeze_count) > 100_000  # collections in a worker do not scan these
            assert pool.ask(os.getenv, "OPENBLAS_NUM_THREADS") == "2"

    @pytest.mark.parametrize("drivers", [(), ("null",)])
    def test_op_db_is_inherited(self, drivers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        """Workers inherit op_db from the server. Regression test: each worker imported it, which dominated the cost of
        a crash. It is not inherited if an accelerator may exist, because its driver does not work in a fork: `null`
        stands for its device file."""
        imported: list[str] = []
        monkeypatch.setattr(processes, "DRIVERS", drivers)
        monkeypatch.setattr(processes.importlib, "import_module", imported.append)
        processes._imported(pool_module.PRELOAD)
        assert imported == [*pool_module.PRELOAD][: -1 if drivers else None]
        assert {*pool_module.PRELOAD[-1:]} == processes.ASKS_FOR_ACCELERATORS

    @pytest.mark.parametrize(
        ("module", "why"), [("threads_at_import", "started 1 threads"), ("no_such_module", "cannot be imported")]
    )
    def test_a_server_that_must_not_fork(self, module: str, why: str) -> None:
        """If a module starts threads or cannot be imported, the task runs in a new process."""
        with LocalPool("cpu", Limits(), 1, ["tasks"], preload=["torch", module]) as pool:
            assert pool.ask(os.getppid) == os.getpid()
            assert why in pool.counters.lost
            assert replace(pool.counters, lost="", started=0) == PoolCosts(waited=1, restarted=1)

    def test_what_a_target_loads_once_for_all_workers(self) -> None:
        """A fork of the server has imported Inductor and knows the vector instructions of the CPU. Each worker took
        four processor seconds for that, half of them in ten Python processes."""
        own = preloaded("inductor")
        assert own and preloaded("cpu") == preloaded("aot_eager") == preloaded("no such target") == ()
        with LOCAL.pool("inductor", Limits()) as unused:
            assert isinstance(unused, LocalPool) and unused._preload == (*pool_module.PRELOAD, *own)
        with LocalPool("cpu", Limits(), 1, ["tasks"], preload=[*pool_module.PRELOAD, *own]) as pool:
            assert pool.ask(tasks.knows_inductor) == (True, True)
            assert pool.counters.lost == ""  # the server started no thread

    def test_a_process_without_torch_does_not_import_it_to_start_workers(self) -> None:
        """Describing a target imports torch, which `conformance opinfo` leaves to its workers."""
        code = "import sys; from conformance.run.execution_place import preloaded; preloaded('inductor')"
        subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], check=True)

    def test_a_server_that_dies(self) -> None:
        """The pool ends the server's workers, and the task runs again in a worker without a server."""
        with LocalPool("cpu", Limits(), 1, ["tasks"]) as pool:
            server = pool.ask(os.getppid)
            pool.submit(Task("it", tasks.slowly_pid))
            os.kill(server, signal.SIGKILL)
            [(_, answer)] = pool.ended()
            assert isinstance(answer, Done)
            assert pool.ask(os.getppid) == os.getpid()
            assert "has ended" in pool.counters.lost

    def test_the_environment_changes_and_changes_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last idle server of another environment stays ready, and an older one ends."""
        monkeypatch.setattr(processes, "_standing", standing := {})

        def used(setting: str) -> processes._Server:
            monkeypatch.setenv("CONFORMANCE_OTHER", setting)
            server = processes._server(["json"])
            server.users -= 1
            return server

        try:
            first, second = used("1"), used("2")
            assert used("1") is first is not second
            third = used("3")
            assert (first.ended, second.ended, third.ended) == (False, True, False)
        finally:
            for server in standing.values():
                server.end()

    def test_a_server_ends_before_it_tells_of_a_worker(self) -> None:
        """A worker does nothing before its owner knows of it. Regression test: a script that ended its server at once
        ran a second time, as a new process, and the first one lived on."""
        script = textwrap.dedent("""
            import multiprocessing, os, socket
            from conformance.run import processes

            control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            mine, line = multiprocessing.Pipe()
            socket.send_fds(control, [b"request"], [line.fileno()])
            processes.Connection.send = lambda line, pid: os._exit(3)
            processes._request(theirs)
            print("the worker runs", flush=True)
        """)
        done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (3, "", "")

    def test_torch_is_imported_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """torch._dynamo sets its cache folder in the environment; its usual folder starts no other server. Regression
        test: a run that imports torch to minimize failures waited for a second server."""
        monkeypatch.setattr(processes, "_standing", standing := {})
        try:
            monkeypatch.delenv(processes.CACHE_FOLDER, raising=False)
            before = processes._server(["json"])
            monkeypatch.setenv(processes.CACHE_FOLDER, cache_dir_utils.default_cache_dir())
            assert processes._server(["json"]) is before
            monkeypatch.setenv(processes.CACHE_FOLDER, "another")
            assert processes._server(["json"]) is not before
        finally:
            for server in standing.values():
                server.end()

    def test_a_backend_that_torch_loads_by_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A backend that torch loads automatically may not survive a fork. Each worker is then a new process, unless
        the environment disables automatic loading."""
        assert processes.can_fork()
        monkeypatch.setattr(processes.importlib.metadata, "entry_points", lambda group: [group])
        assert not processes.can_fork()
        monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        assert processes.can_fork()

    def test_a_pool_that_runs_nothing_starts_nothing(self) -> None:
        """No process exists before the first task, so a command that ends earlier has none to end."""
        before = set(descendants(os.getpid()))
        with LocalPool("cpu", Limits(), 1, ["tasks"]) as pool:
            assert pool.counters == PoolCosts()
            assert set(descendants(os.getpid())) == before

    @pytest.mark.usefixtures("sigint_heeded")
    def test_stopped_while_it_imports(self) -> None:
        """A stop does not wait for the server's imports, and no process remains."""
        before, left = set(descendants(os.getpid())), set[int]()

        def server() -> set[int]:
            return set(descendants(os.getpid())) - before - trackers()

        def interrupts() -> None:
            wait_until(server, "the server has started")
            left.update(server())
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = threading.Thread(target=interrupts)
        imports = ["torch", "sleeps_at_import"]
        with signals.deferred(), LocalPool("cpu", Limits(), 1, ["tasks"], preload=imports) as pool:
            interrupting.start()
            with pytest.raises(signals.Stopped):
                pool.submit(Task("it", tasks.pid))
        assert left
        assert not any(map(alive, left))
