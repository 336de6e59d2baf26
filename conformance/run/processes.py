"""How worker processes are started and ended: each by itself, or as forks of a server that has imported torch.

Defines `Spawning` and `Forking`, the contexts that pebble's pool is made with, and `serve`, which the fork server runs.
The key insight: a fork inherits what the server has done, so the server must have done nothing that a fork does not
survive. It imports torch and the harness, but no target; it opens no device; it computes nothing; and before it forks,
it counts its threads. Where there is more than the one, it says so instead, and workers are spawned.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

from conformance.run import stop

RETIRED, EXIT_0 = 117, 256
"""The exit code of a worker that ends in good order, and what pebble is told where one exits with 0 instead: pebble
takes 0 for good order, and would wait for ever for the answer of a device that calls exit(0)."""

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""numpy's OpenBLAS starts so many threads, less one, as soon as it is loaded: the server loads it with 1, and workers
see the user's own setting."""

LOOK, LONGEST_END = 0.2, 5.0
"""Seconds between two looks for a stop while the server imports, and that it has to end its workers and itself."""

Main = Callable[..., None]


def can_fork() -> bool:
    """Whether workers may be forks: on Linux, where forks of a process that has loaded torch are safe, and where torch
    loads no package by itself that may start threads or open a device."""
    autoload = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"
    return sys.platform.startswith("linux") and not (
        autoload and importlib.metadata.entry_points(group="torch.backends")
    )


@contextlib.contextmanager
def _hashes_fixed() -> Iterator[None]:
    """What is started in the block orders its sets as any other worker does: op_db takes the samples of some entries
    from sets of words, and a worker on another machine has to draw the same programs."""
    name = "PYTHONHASHSEED"
    given = os.environ.get(name)
    os.environ.setdefault(name, "0")
    try:
        yield
    finally:
        if given is None:
            del os.environ[name]


def _told(code: int | None) -> int | None:
    return {RETIRED: 0, 0: EXIT_0, None: None}.get(code, code)


class _Spawned(SpawnProcess):
    """A worker that imports everything itself."""

    def start(self) -> None:
        with stop.sigint_blocked(), _hashes_fixed():
            super().start()

    def run(self) -> None:
        super().run()
        os._exit(RETIRED)  # taking torch down takes long

    @property
    def exitcode(self) -> int | None:
        return _told(super().exitcode)


class Spawning(SpawnContext):
    """Each worker is a new process."""

    Process = _Spawned
    lost = ""

    def close(self) -> None:
        """The pool has ended all."""


class _Forked:
    """A worker that the server has forked: as much of multiprocessing's `Process` as pebble uses. Its line to the
    server brings its process id, and its exit code at its end."""

    daemon = False

    def __init__(self, server: Forking, target: Main, args: tuple[Any, ...]) -> None:
        self._server, self._target, self._args = server, target, args
        self.pid: int | None = None
        self.exitcode: int | None = None

    def start(self) -> None:
        """Raises OSError where the server cannot fork, and Stopped while it imports."""
        self._line = self._server.fork(self._target, self._args)
        try:
            self.pid = self._line.recv()
        except (EOFError, OSError):
            raise self._server.gone() from None

    def is_alive(self) -> bool:
        self.join(0.0)
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        if self.exitcode is None and self.pid is not None and self._line.poll(timeout):
            try:
                self.exitcode = _told(self._line.recv())
            except (EOFError, OSError):  # nobody else ends it
                self._server.gone()
                self.exitcode = -signal.SIGKILL
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        if self.pid is not None and self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Forking(SpawnContext):
    """Workers are forks of a server process, which imports `preload` once for all of them. It starts with the first
    worker, whose function and arguments are those of all."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._preload, self._ready = tuple(preload), False
        self._server: SpawnProcess | None = None
        self.lost = ""
        """Why it forks no more, if so."""

    def Process(self, *, target: Main, args: tuple[Any, ...], **_: Any) -> _Forked:  # type: ignore[override]
        """A worker to be started."""
        return _Forked(self, target, args)

    def fork(self, target: Main, args: tuple[Any, ...]) -> Connection:
        """The line to a new worker. Raises OSError, and Stopped."""
        mine, theirs = multiprocessing.Pipe()
        try:
            with theirs:
                if self._server is None:
                    self._start(target, args)
                socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
        except OSError:
            raise self.gone() from None
        return mine

    def _start(self, target: Main, args: tuple[Any, ...]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server = SpawnProcess(target=serve, args=(theirs, self._preload, target, args), daemon=True)
        with theirs, stop.sigint_blocked(), _hashes_fixed():
            self._server.start()
        while not wait([self._control], LOOK):
            stop.check()
        said = self._control.recv(4096).decode()
        self._ready = said == "ready"
        if not self._ready:
            self.lost = said
            raise self.gone()

    def gone(self) -> OSError:
        """The error of a server that forks no more; pebble answers it with BrokenProcessPool."""
        self.lost = self.lost or "the process that forks workers has ended"
        return OSError(self.lost)

    def close(self) -> None:
        """End the server, and its workers: one that still imports has none, and is not waited for."""
        if self._server is not None:
            self._control.close()
            self._server.join(LONGEST_END if self._ready else 0.0)
            self._server.kill()
            self._server.join()


def serve(control: socket.socket, preload: Sequence[str], target: Main, args: tuple[Any, ...]) -> None:
    """Import what is to be inherited, then fork a worker at each request, which runs the function. Ends with its
    workers when the other side of `control` is closed, also by SIGKILL."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it was blocked so far
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    before = os.environ.get(BLAS_THREADS)
    os.environ[BLAS_THREADS] = "1"
    unfit = _imported(preload)
    del os.environ[BLAS_THREADS]
    os.environ.update({} if before is None else {BLAS_THREADS: before})
    with contextlib.suppress(OSError):  # nobody listens any more, as the next `recv` says too
        control.send((unfit or "ready").encode())
    if unfit or not _forks(control):
        os._exit(0)  # the owner waits, and taking torch down takes long
    control.close()
    multiprocessing.current_process().daemon = False  # as the server is; a device may start processes
    target(*args)
    os._exit(RETIRED)


def _imported(preload: Sequence[str]) -> str:
    """Import the modules; why this process must not fork, or the empty string."""
    try:
        for name in preload:
            importlib.import_module(name)
    except Exception as error:  # a worker will meet it too, and say it to the user
        return f"{name} cannot be imported: {type(error).__name__}"
    threads = len(list(Path("/proc/self/task").iterdir()))
    return f"importing torch started {threads - 1} threads, which are not in a fork" if threads > 1 else ""


def _forks(control: socket.socket) -> bool:
    """Fork at each request: True in each worker, and False in the server when the owner is gone or done."""
    lines: dict[int, Connection] = {}
    wake, wakes = socket.socketpair()
    wake.setblocking(False)
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # so that `wait` hears of it
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    while True:
        ready = wait([control, wake])
        with contextlib.suppress(BlockingIOError):
            wake.recv(4096)
        for pid in list(lines):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                with contextlib.suppress(OSError), lines.pop(pid) as line:
                    line.send(os.waitstatus_to_exitcode(status))
        if control not in ready:
            continue
        try:
            data, given, _, _ = socket.recv_fds(control, 64, 1)
            pid = os.fork() if data else -1
        except OSError:  # the owner was killed, or there is no room for one more process
            pid = -1
        if pid < 0:
            break
        line = Connection(given[0])
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            wake.close()
            wakes.close()
            for each in (line, *lines.values()):
                each.close()
            return True
        lines[pid] = line
        with contextlib.suppress(OSError):
            line.send(pid)
    for pid in lines:
        os.kill(pid, signal.SIGKILL)
    for pid in lines:
        os.waitpid(pid, 0)
    return False
