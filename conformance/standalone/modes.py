"""Modes on torch's stacks: removal of the modes that a device pushes when it is loaded, and calls without any mode.

A mode acts on every call, also on calls of the CPU tensors that serve as reference. So modes pushed by a device may be
active only while the device is used. `torch_compat` lists the private symbols of torch used here, and probes that they
exist.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import overrides
from torch.utils import _python_dispatch as dispatch


def take_modes(function: Callable[[], None]) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Call the function, and remove the modes that it pushed onto torch's stacks. Such modes would act on every later
    call, also of CPU tensors. Return a function that makes a context; inside it, these modes are active."""
    functions = len(overrides._get_current_function_mode_stack())
    dispatches = len(dispatch._get_current_dispatch_mode_stack())
    function()
    pushed, below = _popped(functions, dispatches)

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        _push(pushed, below)
        try:
            yield
        finally:
            for _ in pushed:
                overrides._pop_mode()
            for mode in reversed(below):
                _leave(mode)

    return entered


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Deactivate all modes inside the block, and restore them afterwards."""
    modes = _popped(0, 0)
    try:
        yield
    finally:
        _push(*modes)


def move_to_top(mode: Any) -> None:
    """Move an active dispatch mode above the modes that were pushed after it, so that it can be left. The other modes
    stay active."""
    functions, modes = _popped(0, 0)
    _push(functions, [*(other for other in modes if other is not mode), mode])


def _popped(functions: int, dispatches: int) -> tuple[list[Any], list[Any]]:
    pushed = [overrides._pop_mode() for _ in overrides._get_current_function_mode_stack()[functions:]][::-1]
    below = dispatch._get_current_dispatch_mode_stack()[dispatches:]
    for mode in reversed(below):
        _leave(mode)
    return pushed, below


def _push(pushed: Iterable[Any], below: Iterable[Any]) -> None:
    for mode in below:
        _enter(mode)
    for mode in pushed:
        overrides._push_mode(mode)


def _leave(mode: Any) -> None:
    """Pop the innermost dispatch mode, and set back torch's flags that a mode is active: while they are set, torch runs
    no compiled function."""
    if getattr(mode, "old_dispatch_mode_flags", None):
        dispatch.TorchDispatchMode.__exit__(mode, None, None, None)
    else:  # pushed without being entered
        dispatch._pop_mode()


def _enter(mode: Any) -> None:
    """Push a dispatch mode, with torch's flags that a mode is active."""
    if isinstance(mode, dispatch.TorchDispatchMode):
        dispatch.TorchDispatchMode.__enter__(mode)
    else:
        dispatch._push_mode(mode)
