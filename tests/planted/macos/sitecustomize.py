"""Simulation of macOS on Linux, in every Python process that has this folder first in PYTHONPATH.

Defines the differences that the harness can observe: `sys.platform`, no fork, no /proc, no limit of memory by rlimit, a
peak of resident memory in bytes, and functions that only Linux has. `platform.system()` stays as it is, because torch
chooses the file names of its libraries by it. Code in C is not affected, so the start of a process works.
"""

import ctypes
import os
import resource
import select
import signal
import socket
import sys
import types
from typing import Any

sys.platform = "darwin"
# The standard library imports two modules that depend on the platform: its build configuration, and proxies.
os.environ.setdefault("_PYTHON_SYSCONFIGDATA_NAME", f"_sysconfigdata__linux_{sys.implementation._multiarch}")
sys.modules["_scproxy"] = types.ModuleType("_scproxy")
vars(sys.modules["_scproxy"]).update(_get_proxies=dict, _get_proxy_settings=dict)

LINUX_ONLY = {
    os: (
        "fork forkpty sched_getaffinity sched_setaffinity memfd_create eventfd pidfd_open pipe2 waitid getrandom "
        "splice copy_file_range posix_fallocate posix_fadvise unshare setns"
    ),
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGPOLL",
    resource: "prlimit RLIMIT_OFILE",
    socket: "SOCK_CLOEXEC SOCK_NONBLOCK",
    select: "epoll",
}
"""Names to remove, by module. A process that has loaded torch must not fork on macOS, so `fork` is among them."""

for module, names in LINUX_ONLY.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)


def _no_proc(event: str, args: tuple[Any, ...]) -> None:
    """Raise FileNotFoundError for a file below /proc."""
    if event in ("open", "os.listdir", "os.scandir") and args and _below_proc(args[0]):
        raise FileNotFoundError(2, "No such file or directory", args[0])


def _below_proc(path: Any) -> bool:
    return isinstance(path, (str, bytes, os.PathLike)) and (os.fsdecode(path) + "/").startswith("/proc/")


def _without_proc(function: Any) -> Any:
    def call(path: Any, *args: Any, **options: Any) -> Any:
        if _below_proc(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *args, **options)

    return call


sys.addaudithook(_no_proc)
os.stat, os.lstat, os.access = (_without_proc(each) for each in (os.stat, os.lstat, os.access))

UNLIMITED = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_RSS)
_setrlimit, _getrusage, _socketpair = resource.setrlimit, resource.getrusage, socket.socketpair


def setrlimit(which: int, limits: tuple[int, int]) -> None:
    """Set a limit, but raise ValueError for one of memory."""
    if which in UNLIMITED:
        raise ValueError("current limit exceeds maximum limit")
    _setrlimit(which, limits)


def getrusage(who: int) -> Any:
    """Return the usage, with the peak of resident memory in bytes."""
    usage = list(_getrusage(who))
    usage[2] <<= 10
    return resource.struct_rusage(usage)


def socketpair(family: int = socket.AF_UNIX, kind: int = socket.SOCK_STREAM, proto: int = 0) -> Any:
    """Return two sockets, but raise OSError for the kind that macOS lacks."""
    if kind == socket.SOCK_SEQPACKET:
        raise OSError(43, "Protocol not supported")
    return _socketpair(family, kind, proto)


resource.setrlimit, resource.getrusage, socket.socketpair = setrlimit, getrusage, socketpair


class CDLL(ctypes.CDLL):
    """C library without the functions and symbols of glibc."""

    def __getattr__(self, name: str) -> Any:
        if name in ("malloc_trim", "prctl", "stdout"):
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)


ctypes.CDLL = CDLL
