"""Errors of Python tensor subclasses in a backward pass, raised as errors instead of ending the process.

Defines `set_aside` and `install`. torch leaves the device's stream while the error is still Python's current one. There
it calls the device guard's `type_`, which is a Python method here. A call that returns with an error set is itself an
error, in a C++ function that may not throw. So the guard first stores and clears the error. The engine then fails
without one, and the wrapper raises the stored error.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..runtime import torch_compat

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
    """torch's autograd engine, which raises the stored error if the C engine fails without one."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """The C engine's method of this name."""
        _kept.clear()  # an error stored outside of a backward pass is not an error of this one
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:
            if not _kept:
                raise
        raise _kept.pop()


def install() -> None:
    """Run backward passes in this engine."""
    torch_compat.replace_engine(Engine())
