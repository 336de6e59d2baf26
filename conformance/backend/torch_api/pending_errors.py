"""Errors and interrupts in a backward pass, while torch leaves the device's stream.

Defines `guard_method` and `install`. There torch calls the device guard's `type_`, in a C++ function that may not
throw: an exception ends the process (`terminate called`). Two occur there.

- An error of a Python tensor subclass may still be Python's current one, and a call that returns with an error set is
  itself an error. So the method first moves the error to a slot. The engine then fails without one, and the wrapper
  raises the error from the slot.
- A KeyboardInterrupt is raised by the next line of Python, and by pybind11's search for the method, which looks for
  signals. So the method is composed of C functions, and in a backward pass a signal only requests an exception, which
  Python raises in the next line.

tinygrad's scheduler is not thread-safe, so a backward pass uses no other thread.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import signal
import threading
from collections.abc import Callable
from typing import Any

from ..runtime import torch_compat
from .replacements import replace_on_first_use

SLOTS = 64
"""Number of calls of the method after which a slot is used again: no backward pass ends with as many after an error."""

_Slot = ctypes.c_void_p * 3  # an error's type, value and traceback; three times NULL without an error
_slots = (_Slot * SLOTS)()
_content, _EMPTY = memoryview(_slots).cast("B"), bytes(ctypes.sizeof(_slots))
_restore: Any = ctypes.pythonapi.PyErr_Restore
_restore.argtypes, _restore.restype = [ctypes.c_void_p] * 3, None
_release: Any = ctypes.pythonapi.Py_DecRef
_release.argtypes, _release.restype = [ctypes.c_void_p], None
_request: Any = ctypes.pythonapi.PyThreadState_SetAsyncExc
# A handler gets a number and a frame, too, which C ignores. It has no line of Python, which would raise the exception.
_request.argtypes = [ctypes.c_ulong, ctypes.py_object, ctypes.c_int, ctypes.py_object]


def guard_method(result: Any) -> Callable[[], Any]:
    """A method that clears Python's current error, keeps it in a slot, and returns `result`."""
    fetch: Any = ctypes.pythonapi.PyErr_Fetch
    fetch.argtypes, fetch.restype = None, None
    size = ctypes.sizeof(ctypes.c_void_p)
    places = [[ctypes.byref(slot, place * size) for slot in _slots] for place in range(3)]
    calls = zip(map(fetch, *map(itertools.cycle, places)), itertools.repeat(result))
    method = functools.partial(next, map(operator.itemgetter(1), calls))
    for _ in range(SLOTS + 1):  # `cycle` must not come to the end of its list while an error is set
        method()
    return method


def _raise_kept() -> None:
    """Raise the error that a slot holds, if there is one; the slot is empty afterwards."""
    for slot in _slots if _content != _EMPTY else ():
        if slot[0] is not None:
            error, slot[:] = list(slot), [None] * 3
            _restore(*error)


def _drop_kept() -> None:
    """Empty all slots."""
    if _content != _EMPTY:
        for slot in _slots:
            for part in slot:
                _release(part)
        _content[:] = _EMPTY


class Engine(torch_compat.ImperativeEngine):  # type: ignore[misc]
    """torch's autograd engine, in the calling thread. If the C engine fails without an error, a slot has it."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """The C engine's method of this name."""
        _drop_kept()  # an error stored outside of a backward pass is not an error of this one
        before = torch_compat.multithreading()
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        waits = usual and threading.current_thread() is threading.main_thread()
        try:
            torch_compat.set_multithreading(False)
            if waits:
                later = functools.partial(_request, threading.get_ident(), KeyboardInterrupt)
                signal.signal(signal.SIGINT, later)
            return super().run_backward(*args, **kwargs)
        except SystemError:
            _raise_kept()
            raise
        finally:
            torch_compat.set_multithreading(before)
            if waits:
                signal.signal(signal.SIGINT, signal.default_int_handler)


def install() -> None:
    """Run backward passes in this engine, once the device is used."""
    replace_on_first_use("torch.autograd.variable:Variable._execution_engine", lambda original: Engine())
