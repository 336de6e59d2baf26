"""Functions that the pool's tests run in workers. They return, raise, crash or hang in different ways."""

from __future__ import annotations

import ctypes
import errno
import mmap
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from conformance.engine.kernel_tables import needing
from conformance.engine.target import Target
from conformance.record.errors import DeviceLost
from conformance.run.messages import COMPILING
from conformance.run.worker import keep, loaded, step, unit


class Odd(Exception):
    """An exception whose constructor cannot be called with its `args`."""

    def __init__(self, one: int, *, two: int) -> None:
        super().__init__(one)


def pid() -> int:
    return os.getpid()


def order_of_words() -> tuple[bool, list[str]]:
    return bool(sys.flags.hash_randomization), list({"xy", "ij", "zz"})


def slowly_pid() -> int:
    time.sleep(1)
    return os.getpid()


def numbered(number: int, seconds: float, folder: str) -> int:
    """Keep a file immediately, then sleep."""
    keep(Path(folder) / f"{number}.found", str(time.time()))
    time.sleep(seconds)
    return number


def fails_to_keep_where(mark: str, folder: str) -> str:
    """Simulate a machine whose disk is full."""
    if Path(mark).exists() and os.path.samefile(os.environ.get("TMPDIR", "/tmp"), mark):
        raise OSError(errno.ENOSPC, "No space left on device")
    return folder


def loses_the_device() -> None:
    with unit("a program"):
        step("4")
        raise DeviceLost("RuntimeError: assertion failed")


def segfaults() -> None:
    with unit("a program"):
        step("1")
        step("2")
        ctypes.string_at(0)


def exits_0() -> None:
    with unit("a program"):
        os._exit(0)


def leaves(code: object) -> None:
    sys.exit(code)  # type: ignore[arg-type]


def interrupts() -> None:
    raise KeyboardInterrupt


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleeps() -> None:
    with unit("a program"):
        step("3")
        time.sleep(1000)


def hangs_outside_python() -> None:
    with unit("a program"):
        step("3")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(1000)


def eats_memory() -> int:
    return len(bytearray(3 << 30))


def eats_shared_memory() -> None:
    with mmap.mmap(-1, 3 << 30, mmap.MAP_ANON | mmap.MAP_SHARED) as shared:
        for start in range(0, len(shared), 1 << 24):
            shared[start : start + (1 << 24)] = bytes(1 << 24)
            time.sleep(0.005)


def compiles(seconds: float) -> str:
    """Compile for a number of seconds, then run."""
    with unit("a program"):
        step("1")
        step("1", COMPILING)
        time.sleep(seconds)
        step("2")
    return "ran"


def raises() -> None:
    raise Odd(1, two=2)


def unsendable() -> object:
    return lambda: 0


def prints_and_dies() -> None:
    print("its Python's last words")
    ctypes.CDLL(None).printf(b"its C's last words\n")
    os.kill(os.getpid(), signal.SIGABRT)


def prints_much() -> None:
    with unit("the first"):
        for _ in range(70):
            os.write(1, bytes(2**20))
    with unit("the second"):
        print("its last words")


def prints() -> int:
    for _ in range(10_000):
        print("what a device prints")
        os.write(1, b"and what its C++ prints\n")
    return 1


def alone(folder: str) -> bool:
    """Return whether no other task of the pool runs meanwhile."""
    mark = Path(folder) / "busy"
    free = not mark.exists()
    mark.touch()
    time.sleep(0.2)
    mark.unlink()
    return free


def begun_then_sleeps(mark: str) -> None:
    with unit("a program"):
        Path(mark).write_text(str(os.getpid()))
        time.sleep(1000)


class Looks(Target):
    """A target that records the state of its process at load time."""

    name = "looks"
    seen: dict[str, object]

    def prepare(self) -> None:
        import torch

        self.seen = {
            "targets": [name for name in sys.modules if name.startswith("conformance.targets.")],
            "devices": [name for name in ("cuda", "xpu", "mtia") if getattr(torch, name).is_initialized()],
            "tinygrad": "tinygrad" in sys.modules,
        }


def needing_of(spec: str) -> set[str]:
    """Return the operators that need an operator which is declared missing."""
    return {*needing(loaded(spec))}


def looked() -> dict[str, object]:
    """Return what `Looks` recorded."""
    target = loaded("class:tasks.Looks")
    assert isinstance(target, Looks)
    return target.seen


class Dies(Target):
    """A target whose loading ends the process."""

    name = "dies"

    def prepare(self) -> None:
        os._exit(7)


class Killed(Target):
    """A target whose loading is killed, as the system does if memory runs out."""

    name = "killed"

    def prepare(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class KilledOnce(Target):
    """A target whose first loading is killed. It leaves a mark in the current folder."""

    name = "killed once"

    def prepare(self) -> None:
        mark = Path("loaded once")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Locks(Target):
    """A target that creates a semaphore and never removes it."""

    name = "locks"

    def prepare(self) -> None:
        self.lock = multiprocessing.RLock()


class Leaves(Target):
    """A target whose loading ends the process with exit code 0."""

    name = "leaves"

    def prepare(self) -> None:
        os._exit(0)


def knows_inductor() -> tuple[bool, bool]:
    """Return whether this process has imported Inductor, and whether it knows the CPU's vector instructions."""
    known = sys.modules.get("torch._inductor.cpu_vec_isa")
    return "torch._inductor.compile_fx" in sys.modules, bool(known and known.valid_vec_isa_list.cache_info().currsize)
