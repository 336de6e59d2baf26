"""An error that a Python tensor subclass raises in a backward pass stays an error: it ended the process.

Defines `set_aside` and `install`. The key insight: torch leaves the device's stream while the error is still Python's
current one, and asks the device guard for its type then, which is a Python method here. A call that returns with an
error set is itself an error, in a C++ function that may not throw. So the guard takes the error away first, and the
engine, which then fails without one, raises it.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..runtime import torch_compat

# ctypes raises the error that is set after a call of Python's own library, also if it was set before.
_raise_current = ctypes.pythonapi.PyErr_Occurred
_raise_current.restype = None
_kept: list[BaseException] = []


def set_aside() -> None:
    """Take Python's current error, if there is one, out of the way of what is called next."""
    try:
        _raise_current()
    except BaseException as error:
        trace = error.__traceback__
        _kept[:] = [error.with_traceback(trace.tb_next if trace else None)]


class Engine(torch_compat.ImperativeEngine):  # type: ignore[misc]
    """torch's autograd engine, which raises the error that was set aside in place of none."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """The C engine's method of this name."""
        _kept.clear()  # what was set aside outside of a backward pass is not this one's error
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:
            if not _kept:
                raise
        raise _kept.pop()


def install() -> None:
    """Let backward passes run in this engine."""
    torch_compat.replace_engine(Engine())
