"""Backward passes in the calling thread, where errors of Python tensor subclasses are raised as errors.

Defines `set_aside` and `install`. torch leaves the device's stream while the error is still Python's current one. There
it calls the device guard's `type_`, which is a Python method here. A call that returns with an error set is itself an
error, in a C++ function that may not throw. So the guard first stores and clears the error. The engine then fails
without one, and the wrapper raises the stored error.

tinygrad's scheduler is not thread-safe, so a backward pass uses no other thread.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..runtime import torch_compat
from .replacements import replace_on_first_use

# ctypes raises a pending error after a call of Python's own library, even if it was set before the call.
_raise_current = ctypes.pythonapi.PyErr_Occurred
_raise_current.restype = None
_kept: list[BaseException] = []


def set_aside() -> None:
    """Store Python's current error, if there is one, and clear it, so that the next call can succeed."""
    try:
        _raise_current()
    except BaseException as error:
        trace = error.__traceback__
        _kept[:] = [error.with_traceback(trace.tb_next if trace else None)]


class Engine(torch_compat.ImperativeEngine):  # type: ignore[misc]
    """torch's autograd engine, in the calling thread. It raises the stored error if the C engine fails without one."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """The C engine's method of this name."""
        _kept.clear()  # an error stored outside of a backward pass is not an error of this one
        before = torch_compat.multithreading()
        torch_compat.set_multithreading(False)
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:
            if not _kept:
                raise
        finally:
            torch_compat.set_multithreading(before)
        raise _kept.pop()


def install() -> None:
    """Run backward passes in this engine, once the device is used."""
    replace_on_first_use("torch.autograd.variable:Variable._execution_engine", lambda original: Engine())
