"""How worker processes are started and ended: each by itself, or as forks of a server that has imported torch.

Defines `Processes`, the protocol, `Spawned`, `Forked`, and `serve`, which the fork server runs. The key insight: a fork
inherits what the server has done, so the server must have done nothing that a fork does not survive. It imports torch
and the harness, but no target; it opens no device; it computes nothing; and before it forks, it counts its threads.
Where there is more than the one, it says so instead, and workers are spawned.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from conformance.run import stop

Main = Callable[..., None]
"""What a worker runs: it is given its end of a pipe, and the arguments that all workers share."""

SPAWN = multiprocessing.get_context("spawn")

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""numpy's OpenBLAS starts so many threads, less one, as soon as it is loaded: the server loads it with 1, and workers
see the user's own setting."""

LONGEST_END = 5.0
"""Seconds that the server has to end its workers and itself."""


class Processes(Protocol):
    """Worker processes by number."""

    def start(self, number: int) -> Connection:
        """Begin to start one: this side's end of the pipe to it."""

    def kill(self, number: int) -> None:
        """End one at once, if it has not ended."""

    def waitable(self) -> Sequence[Any]:
        """What `multiprocessing.connection.wait` is to wait for besides the pipes."""

    def ended(self) -> Iterator[tuple[int, int]]:
        """Those that have ended since: number and exit code, negative for a signal. Raises ServerLost."""

    def close(self) -> None:
        """End all."""


class ServerLost(Exception):
    """The server cannot fork workers, or has ended; the text says why."""


class Spawned:
    """Each worker is a new process, which imports everything itself."""

    def __init__(self, main: Main, args: tuple[Any, ...]) -> None:
        self._main, self._args = main, args
        self._processes: dict[int, BaseProcess] = {}

    def start(self, number: int) -> Connection:
        """Start one; see `Processes.start`."""
        mine, theirs = multiprocessing.Pipe()
        process = SPAWN.Process(target=self._main, args=(theirs, *self._args), daemon=True)
        with stop.sigint_blocked():
            process.start()
        theirs.close()
        self._processes[number] = process
        return mine

    def kill(self, number: int) -> None:
        """End one at once."""
        if number in self._processes:
            self._processes[number].kill()

    def waitable(self) -> Sequence[Any]:
        """The processes' sentinels."""
        return [process.sentinel for process in self._processes.values()]

    def ended(self) -> Iterator[tuple[int, int]]:
        """See `Processes.ended`."""
        for number, process in list(self._processes.items()):
            if process.exitcode is not None:
                del self._processes[number]
                yield number, process.exitcode

    def close(self) -> None:
        """End all."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()
        self._processes.clear()


def can_fork() -> bool:
    """Whether workers may be forks: on Linux, where forks of a process that has loaded torch are safe, and where torch
    loads no package by itself that may start threads or open a device."""
    autoload = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"
    return sys.platform.startswith("linux") and not (
        autoload and importlib.metadata.entry_points(group="torch.backends")
    )


class Forked:
    """Workers are forks of a server process, which imports `preload` once for all of them."""

    def __init__(self, main: Main, args: tuple[Any, ...], preload: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = os.environ.get(BLAS_THREADS)
        self._server = SPAWN.Process(target=serve, args=(theirs, main, args, tuple(preload), before), daemon=True)
        os.environ[BLAS_THREADS] = "1"
        try:
            with stop.sigint_blocked():
                self._server.start()
        finally:
            _set_blas_threads(before)
        theirs.close()
        self.ready = False
        """Whether the server has said that its imports are done."""

    def start(self, number: int) -> Connection:
        """Ask for one; a server that has gone is told by `ended`."""
        mine, theirs = multiprocessing.Pipe()
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [json.dumps({"start": number}).encode()], [theirs.fileno()])
        theirs.close()
        return mine

    def kill(self, number: int) -> None:
        """Have one ended by its parent, which alone knows that its process id is still its own."""
        with contextlib.suppress(OSError):
            self._control.send(json.dumps({"kill": number}).encode())

    def waitable(self) -> Sequence[Any]:
        """The server's socket."""
        return [self._control]

    def ended(self) -> Iterator[tuple[int, int]]:
        """See `Processes.ended`."""
        while True:
            try:
                data = self._control.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            said: dict[str, Any] = json.loads(data) if data else {"unfit": "the process that forks workers has ended"}
            if "unfit" in said:
                raise ServerLost(said["unfit"])
            self.ready = self.ready or "ready" in said
            if "ended" in said:
                yield said["ended"], said["code"]

    def close(self) -> None:
        """End all, and the server: one that still imports has no workers, and is not waited for."""
        self._control.close()
        if self.ready:
            self._server.join(LONGEST_END)
        self._server.kill()
        self._server.join()


def _set_blas_threads(value: str | None) -> None:
    if value is None:
        os.environ.pop(BLAS_THREADS, None)
    else:
        os.environ[BLAS_THREADS] = value


def serve(
    control: socket.socket, main: Main, args: tuple[Any, ...], preload: Sequence[str], blas_threads: str | None
) -> None:
    """Import what is to be inherited, then fork a worker at each request, and tell of each that ends. Ends with its
    workers when the other side of `control` is closed, also by SIGKILL. In a worker, this returns when `main` does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it was blocked so far
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    unfit = _preloaded(preload)
    _set_blas_threads(blas_threads)
    with contextlib.suppress(OSError):  # nobody listens any more: the next `recv` says so too
        control.send(json.dumps({"unfit": unfit} if unfit else {"ready": os.getpid()}).encode())
        while unfit and control.recv(4096):  # what is not read would take back what was said
            pass
    link = None if unfit else _Server(control).link_of_worker()
    if link is None:
        os._exit(0)  # the owner waits, and taking torch down takes long
    control.close()
    main(Connection(link), *args)


def _preloaded(preload: Sequence[str]) -> str:
    """Import the modules; why this process must not fork, or the empty string."""
    try:
        for name in preload:
            importlib.import_module(name)
    except Exception as error:  # a worker will meet it too, and say it to the user
        return f"{name} cannot be imported: {type(error).__name__}"
    threads = len(list(Path("/proc/self/task").iterdir()))
    return f"importing torch started {threads - 1} threads, which are not in a fork" if threads > 1 else ""


class _Server:
    """The server's side of `Forked`. Workers by process id, and back by number."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.numbers: dict[int, int] = {}
        self.wake, wakes = socket.socketpair()
        for each in (self.wake, wakes):
            each.setblocking(False)
        self.wakes = wakes
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that `select` hears of it
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)

    def link_of_worker(self) -> int | None:
        """In each worker its end of its pipe; in the server None, at the end of all."""
        try:
            while True:
                ready, _, _ = select.select([self.control, self.wake], [], [])
                self._reap()
                link = self._obey() if self.control in ready else None
                if link is not None:
                    return link
        except OSError:  # the owner is gone
            pass
        except EOFError:  # the owner is done
            pass
        for pid in self.numbers:
            os.kill(pid, signal.SIGKILL)
        for pid in self.numbers:
            os.waitpid(pid, 0)
        return None

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)
        for pid in list(self.numbers):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                number, code = self.numbers.pop(pid), os.waitstatus_to_exitcode(status)
                self.control.send(json.dumps({"ended": number, "code": code}).encode())

    def _obey(self) -> int | None:
        """Do what was asked; in a new worker, its end of its pipe. Raises EOFError when nobody asks any more."""
        data, links, _, _ = socket.recv_fds(self.control, 4096, 1)
        if not data:
            raise EOFError
        asked = json.loads(data)
        for pid, number in self.numbers.items():
            if number == asked.get("kill"):
                os.kill(pid, signal.SIGKILL)
        if "start" not in asked:
            return None
        (link,) = links
        owner = multiprocessing.parent_process()
        if owner is not None and not owner.is_alive():
            raise EOFError
        pid = os.fork()
        if pid:
            os.close(link)
            self.numbers[pid] = asked["start"]
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.wake.close()
        self.wakes.close()
        os.set_inheritable(link, False)
        return link
