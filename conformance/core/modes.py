"""Modes on torch's stacks: those that loading a device pushes for good, and a way to be without any.

The key insight: a mode acts on every call, also on those of the CPU tensors that a device is compared with, so what a
device has pushed may be active only while the device is used. That torch has these private symbols is probed by
`torch_compat`, where their names are listed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import overrides
from torch.utils import _python_dispatch as dispatch


def take_modes(function: Callable[[], None]) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Call the function, and take off torch's stacks what it has pushed there: modes through which every call goes from
    then on, of CPU tensors, too. Returns a context that pushes them again for as long as it lasts."""
    functions = len(overrides._get_current_function_mode_stack())
    dispatches = len(dispatch._get_current_dispatch_mode_stack())
    function()
    pushed, below = _taken(functions, dispatches)

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
    """Within, no mode is active, whoever has pushed one."""
    modes = _taken(0, 0)
    try:
        yield
    finally:
        _push(*modes)


def _taken(functions: int, dispatches: int) -> tuple[list[Any], list[Any]]:
    pushed = [overrides._pop_mode() for _ in overrides._get_current_function_mode_stack()[functions:]][::-1]
    return pushed, [dispatch._pop_mode() for _ in dispatch._get_current_dispatch_mode_stack()[dispatches:]][::-1]


def _push(pushed: Iterable[Any], below: Iterable[Any]) -> None:
    for mode in below:
        dispatch._push_mode(mode)
    for mode in pushed:
        overrides._push_mode(mode)
