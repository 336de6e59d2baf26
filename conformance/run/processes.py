"""Worker processes for pebble, spawned or forked from a server that has imported torch.

Defines `Spawning` and `Forking`, the multiprocessing contexts of pebble's pool, and `serve`, the main function of the
fork server. A fork inherits the state of the server, so that state must be safe to fork. The server imports torch and
the harness but no target, opens no device and computes nothing. It counts its threads before it forks. If it has more
than one, it reports that, and workers are spawned instead.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.metadata
import io
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess, set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from conformance.engine.gc_freeze import gc_freeze
from conformance.run import signals

RETIRED, EXIT_0 = 117, 256
"""Exit code of a worker that ends in good order, and the code given to pebble for an exit with 0. pebble takes 0 for
good order, so it would wait forever for the answer of a device that calls exit(0).
"""

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""Variable for the thread count of numpy's OpenBLAS, which starts that many threads, less one, when it is loaded. The
server loads it with 1; workers see the user's own setting.
"""

LOOK, LONGEST_END = 0.2, 5.0
"""Interval in seconds between checks for a stop while the server imports, and time in seconds that the server has to
end its workers and itself.
"""

LONGEST_REQUEST, MOST_DESCRIPTORS = 2**20, 64
"""Largest size in bytes of a fork request, and the largest number of descriptors that come with it."""

Main = Callable[..., None]


def can_fork() -> bool:
    """Whether workers may be forks. A process that has loaded torch can fork safely only on Linux, and only if torch
    autoloads no package that may start threads or open a device.
    """
    autoload = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"
    return sys.platform.startswith("linux") and not (
        autoload and importlib.metadata.entry_points(group="torch.backends")
    )


_environment = threading.RLock()


@contextlib.contextmanager
def _hashes_fixed() -> Iterator[None]:
    """Fix the order of sets in processes started in the block. op_db takes the samples of some entries from sets of
    strings, and a worker on another machine has to draw the same programs.
    """
    name = "PYTHONHASHSEED"
    with _environment:  # threads start processes too
        value = os.environ.get(name)
        os.environ.setdefault(name, "0")
        try:
            yield
        finally:
            if value is None:
                del os.environ[name]


def _exit_code(code: int | None) -> int | None:
    return {RETIRED: 0, 0: EXIT_0, None: None}.get(code, code)


class _Spawned(SpawnProcess):
    """A worker process that imports all modules itself."""

    def start(self) -> None:
        with signals.sigint_blocked(), _hashes_fixed():
            super().start()

    def run(self) -> None:
        super().run()
        os._exit(RETIRED)  # destroying torch takes long

    @property
    def exitcode(self) -> int | None:
        return _exit_code(super().exitcode)


class Spawning(SpawnContext):
    """Context that starts each worker as a new process."""

    lost = ""

    def __init__(self) -> None:
        self._workers: list[_Spawned] = []

    def Process(self, **arguments: Any) -> _Spawned:  # type: ignore[override]
        """Return a worker that is not started yet."""
        self._workers.append(_Spawned(**arguments))
        return self._workers[-1]

    def exit_code_of(self, pid: int) -> int | None:
        """Return the exit code of a worker that has ended, as `Process` has it."""
        return next((worker.exitcode for worker in self._workers if worker.pid == pid), None)

    def close(self) -> None:
        """Do nothing: the pool has already ended the workers."""


class _Forked:
    """A worker forked by the server, with the part of multiprocessing's `Process` that pebble uses. Its connection to
    the server carries its process id, and later its exit code.
    """

    daemon = False

    def __init__(self, server: Forking, target: Main, args: tuple[Any, ...]) -> None:
        self._server, self._target, self._args = server, target, args
        self.pid: int | None = None
        self.exitcode: int | None = None

    def start(self) -> None:
        """Start the worker. Raises OSError if the server cannot fork, and Stopped during its imports."""
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
                self.exitcode = _exit_code(self._line.recv())
                self._server.note_end(self.pid, self.exitcode)
            except (EOFError, OSError):  # the server is gone, so this process must kill the worker
                self._server.gone()
                self.exitcode = -signal.SIGKILL
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        if self.pid is not None and self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Forking(SpawnContext):
    """Context that forks workers from a server process, which imports `preload` once for all of them.

    The server starts with the first worker. Other pools of this process with the same imports and environment share it.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        self._preload = tuple(preload)
        self._server: _Server | None = None
        self._workers: list[_Forked] = []
        self._exit_codes: dict[int, int | None] = {}
        self.lost = ""
        """The reason, if the server can no longer fork."""

    def Process(self, *, target: Main, args: tuple[Any, ...], **_: Any) -> _Forked:  # type: ignore[override]
        """Return a worker that is not started yet."""
        self._workers = [worker for worker in self._workers if worker.exitcode is None]
        self._workers.append(_Forked(self, target, args))
        return self._workers[-1]

    def fork(self, target: Main, args: tuple[Any, ...]) -> Connection:
        """Return the connection to a new worker. Raises OSError and Stopped."""
        if self.lost:
            raise OSError(self.lost)
        mine, theirs = multiprocessing.Pipe()
        try:
            with theirs:
                if self._server is None:
                    self._server = _server(self._preload)
                self._server.fork(theirs, target, args)
        except OSError as error:
            raise self.gone(str(error) if self._server is None else "") from None
        return mine

    def note_end(self, pid: int, code: int | None) -> None:
        """Note the exit code of a worker, which is then forgotten."""
        self._exit_codes[pid] = code

    def exit_code_of(self, pid: int) -> int | None:
        """Return the exit code of a worker that has ended, as `Process` has it."""
        return self._exit_codes.get(pid)

    def gone(self, why: str = "") -> OSError:
        """Return the error for a lost server; pebble turns it into BrokenProcessPool."""
        self.lost = self.lost or why or "the process that forks workers has ended"
        if self._server is not None:
            self._server.end(0.0)  # its forks may live; `_Forked.join` kills each
        return OSError(self.lost)

    def close(self) -> None:
        """End the workers. The server stays ready for the next pool."""
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.join(LONGEST_END)
        server, self._server = self._server, None
        if server is not None:
            server.users -= 1


class _Sent:
    """Placeholder for a file descriptor in a pickle for the server; the descriptor itself travels as ancillary data."""

    arrived: Sequence[int] = ()
    """In a fork, the descriptors that came with its request."""

    def __init__(self, index: int) -> None:
        self.index = index

    def detach(self) -> int:
        """Return the descriptor as numbered in this process."""
        return self.arrived[self.index]


class _Parcel:
    """Object that multiprocessing calls to duplicate descriptors while it pickles a worker's arguments."""

    DupFd = _Sent

    def __init__(self, *fds: int) -> None:
        self.fds = list(fds)

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.append(fd)
        return len(self.fds) - 1

    def pickled(self, obj: Any) -> bytes:
        """Return the pickled object; its descriptors are in `fds`."""
        buffer = io.BytesIO()
        set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(obj)
        finally:
            set_spawning_popen(None)
        return buffer.getvalue()


class _Server:
    """Fork server process. The constructor raises OSError if the server cannot fork, and Stopped during its imports."""

    def __init__(self, preload: Sequence[str]) -> None:
        self.users, self.ended, self._owner = 0, False, os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = SpawnProcess(target=serve, args=(theirs, preload), daemon=True)
        with theirs, signals.sigint_blocked(), _hashes_fixed():
            self._process.start()
        answer = ""
        try:
            while not wait([self._control], LOOK):
                signals.check()
            answer = self._control.recv(4096).decode()
        finally:
            if answer != "ready":
                self.end(0.0)
        if self.ended:
            raise OSError(answer)

    def fork(self, line: Connection, target: Main, args: tuple[Any, ...]) -> None:
        """Request a worker. Raises OSError."""
        parcel = _Parcel(line.fileno())
        message = parcel.pickled((os.getcwd(), sys.path, target, args))
        socket.send_fds(self._control, [message], parcel.fds)

    def end(self, seconds: float = LONGEST_END) -> None:
        """End the server and its workers. A server that still imports has no workers and gets 0 seconds."""
        if self.ended or os.getpid() != self._owner:
            return
        self.ended = True
        self._control.close()
        self._process.join(seconds)
        self._process.kill()
        self._process.join()


_standing: dict[tuple[Any, tuple[str, ...]], _Server] = {}
"""Fork servers of this process, by inherited environment and imports. The last used one is the last."""
_starting = threading.Lock()

ASKS_FOR_ACCELERATORS = {"torch.testing._internal.common_methods_invocations"}
"""Modules that look for accelerators at import; the drivers fail in forks after that."""
DRIVERS = ("nvidiactl", "kfd", "dri", "dxg", "accel")
"""Names below /dev of the drivers of NVIDIA, AMD and Intel, and of WSL."""

UNREAD = {"PYTEST_CURRENT_TEST"}
"""Environment variables that may change while a server stands ready, because no code reads them."""

CACHE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""Variable that torch._dynamo sets at its import, in this process as in a server."""


def _variables() -> frozenset[tuple[str, str]]:
    """Return the environment variables that decide what a server imports. The usual value of `CACHE_FOLDER` counts as
    none, so that a process which imports torch late keeps its server."""
    folders = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    usual = (CACHE_FOLDER, folders.default_cache_dir()) if folders is not None else ()
    with _environment:
        return frozenset(item for item in os.environ.items() if item[0] not in UNREAD and item != usual)


def _server(preload: Sequence[str]) -> _Server:
    """Return a server that has imported these modules in the current environment: an existing one, or else a new one.
    Before a new one starts, the idle servers of other environments end, except the last used one: an environment often
    changes for a while only.
    """
    with _starting:
        environment = (os.getpid(), _variables())
        key = (environment, tuple(preload))
        result = _standing.pop(key, None)
        if result is None or result.ended:
            others = [other for other, server in _standing.items() if not server.users and other[0] != environment]
            for other in others[:-1]:
                _standing.pop(other).end()
            result = _Server(preload)
        _standing[key] = result
        result.users += 1
        return result


@atexit.register
def _end_all() -> None:
    for server in _standing.values():
        server.end()


def serve(control: socket.socket, preload: Sequence[str]) -> None:
    """Import the modules to be inherited, then fork a worker for each request, which runs the requested function.

    The server ends its workers and itself when the other side of `control` closes, also by SIGKILL.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it was blocked until here
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    before = os.environ.get(BLAS_THREADS)
    os.environ[BLAS_THREADS] = "1"
    unfit = _imported(preload)
    del os.environ[BLAS_THREADS]
    os.environ.update({} if before is None else {BLAS_THREADS: before})
    with contextlib.suppress(OSError):  # the owner is gone; the next `recv` detects it too
        control.send((unfit or "ready").encode())
    request = None if unfit else _request(control)
    if request is None:
        os._exit(0)  # the owner waits, and destroying torch takes long
    control.close()
    multiprocessing.current_process().daemon = False  # the server is a daemon; a device may start processes
    message, _Sent.arrived = request
    try:
        folder, sys.path[:], target, args = pickle.loads(message)
    except FileNotFoundError:  # of a lock: the pool that requested this worker has ended
        os._exit(1)
    os.chdir(folder)
    target(*args)
    os._exit(RETIRED)


def _has_accelerator() -> bool:
    return any(Path("/dev", name).exists() for name in DRIVERS)


def _imported(preload: Sequence[str]) -> str:
    """Import the modules and call the functions. Return the reason why this process must not fork, or ""."""
    try:
        with gc_freeze(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # workers that import the module show the warning themselves
            for name in preload:
                if name not in ASKS_FOR_ACCELERATORS or not _has_accelerator():
                    module, _, function = name.partition(":")
                    imported = importlib.import_module(module)
                    if function:
                        getattr(imported, function)()
    except Exception as error:  # a worker will raise it too, and report it to the user
        return f"{name} cannot be imported: {type(error).__name__}"
    threads = len(list(Path("/proc/self/task").iterdir()))
    return f"importing torch started {threads - 1} threads, which are not in a fork" if threads > 1 else ""


def _request(control: socket.socket) -> tuple[bytes, list[int]] | None:
    """Fork for each request. Return the request and its descriptors in each worker, and None in the server when the
    owner is gone or done.
    """
    lines: dict[int, Connection] = {}
    wake, wakes = socket.socketpair()
    wake.setblocking(False)
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # so that `wait` wakes up
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
            data, descriptors, _, _ = socket.recv_fds(control, LONGEST_REQUEST, MOST_DESCRIPTORS)
            known, tells = os.pipe()
            pid = os.fork() if data else -1
        except OSError:  # the owner was killed, or no further process can be created
            pid = -1
        if pid < 0:
            break
        line = Connection(descriptors[0])
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            wake.close()
            wakes.close()
            for connection in (line, *lines.values()):
                connection.close()
            os.close(tells)
            if not os.read(known, 1):  # the server ended before its owner knew of this process
                os._exit(1)
            os.close(known)
            return data, descriptors
        for fd in descriptors[1:]:
            os.close(fd)
        lines[pid] = line
        with contextlib.suppress(OSError):
            line.send(pid)
            os.write(tells, b"1")
        os.close(known)
        os.close(tells)
    for pid in lines:
        os.kill(pid, signal.SIGKILL)
    for pid in lines:
        os.waitpid(pid, 0)
    return None
