"""Targets that mishandle the arguments of a call: a kind of argument, a refused call, and an argument that aborts."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy
import torch
from torch.overrides import TorchFunctionMode

from conformance.standalone.moving import leaves, map_leaves
from conformance.targets.cpu import CpuTarget


def is_operand(leaf: Any) -> bool:
    """Whether an argument is a 0-d tensor."""
    return isinstance(leaf, torch.Tensor) and leaf.dim() == 0


class Careless(CpuTarget):
    """Torch CPU, whose calls go through `lie(function, args, kwargs)`."""

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        self.name, self.spec = "careless", f"class:careless.{type(self).__name__}"

    def active(self) -> Any:
        target = self

        class Mode(TorchFunctionMode):
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                with torch._C.DisableTorchFunction():
                    return target.lie(function, args, kwargs or {})

        return Mode()

    def lie(self, function: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError


class Changes(Careless):
    """Target that changes each argument of a kind before the call."""

    def changed(self, leaf: Any) -> Any:
        raise NotImplementedError

    def lie(self, function: Any, args: Any, kwargs: Any) -> Any:
        return function(*map_leaves(args, self.changed), **map_leaves(kwargs, self.changed))


class Bools(Changes):
    """Target that reads True as 0."""

    def changed(self, leaf: Any) -> Any:
        return 0 if leaf is True else leaf


class NumPy(Changes):
    """Target that reads a NumPy scalar as its integral part."""

    def changed(self, leaf: Any) -> Any:
        return int(leaf) if isinstance(leaf, numpy.generic) else leaf


class Operands(Changes):
    """Target that takes a 0-d tensor for one of one dimension, which decides the dtype of a result."""

    def changed(self, leaf: Any) -> Any:
        return leaf.reshape(1) if is_operand(leaf) else leaf


class Accepts(Careless):
    """Target that returns its first argument if torch refuses the call."""

    def lie(self, function: Any, args: Any, kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            return function(*args, **kwargs)
        return args[0]


class Internal(Careless):
    """Target that raises an error of its own code if torch refuses the call."""

    def lie(self, function: Any, args: Any, kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise AttributeError("'int' object has no attribute 'dtype'") from error


class Aborts(Careless):
    """Target whose kernel aborts for a negative index."""

    def lie(self, function: Any, args: Any, kwargs: Any) -> Any:
        for leaf in leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.int64 and bool((leaf < 0).any()):
                os.abort()
        return function(*args, **kwargs)
