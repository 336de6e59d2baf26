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
            for _ in below:
                dispatch._pop_mode()

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
    return pushed, [dispatch._pop_mode() for _ in dispatch._get_current_dispatch_mode_stack()[dispatches:]][::-1]


def _push(pushed: Iterable[Any], below: Iterable[Any]) -> None:
    for mode in below:
        dispatch._push_mode(mode)
    for mode in pushed:
        overrides._push_mode(mode)
