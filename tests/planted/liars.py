"""Targets with one lie each, for every kind of target that the executor supports. Every command must catch each lie."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.registry import list_backends, register_backend
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.engine.target import Target, TargetFacts
from conformance.program.steps.layouts import geometry
from conformance.selftest.faults import WRITES, Fault, InterceptedCall
from conformance.selftest.mutants import MutantTarget, Planted
from conformance.standalone.moving import map_tensors
from conformance.targets.meta import MetaTarget


def off_by_one(tensor: torch.Tensor) -> torch.Tensor:
    """Return other values; booleans are inverted."""
    return ~tensor if tensor.dtype is torch.bool else tensor + 1


def by_columns(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values with other strides."""
    return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor


class _Raising(TorchDispatchMode):
    """Raises an error at some operators, by their names."""

    def __init__(self, error: Exception, *operators: str) -> None:
        super().__init__()
        self.error, self.operators = error, operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in self.operators:
            raise type(self.error)(*self.error.args)
        return func(*args, **(kwargs or {}))


class _Mode(TorchDispatchMode):
    def __init__(self, lie: Any) -> None:
        super().__init__()
        self.lie = lie

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return self.lie(result) if func.overloadpacket.__name__ in ("neg", "mul") else result


class _Device(Target):
    """A device whose `neg` and `mul` lie."""

    name = "lying device"
    lie: Any

    @contextlib.contextmanager
    def active(self) -> Any:
        with self.mode():
            yield

    @classmethod
    def mode(cls) -> Any:
        return _Mode(cls.lie)

    def script(self) -> str:
        name = type(self).__name__
        return f"from tests.planted.liars import {name}\nDEVICE, MODE = {str(self.device)!r}, {name}.mode()"


class ValueDevice(_Device):
    lie = staticmethod(off_by_one)


class StrideDevice(_Device):
    lie = staticmethod(by_columns)


class Meta(_Device, MetaTarget):
    """An interpreter of metadata that returns wrong strides."""

    lie = staticmethod(by_columns)


def writes_wrong_cell(call: InterceptedCall) -> Any:
    """Read a view by `as_strided` correctly, but write one element further, or nearer at the end of the storage."""
    if call.func.overloadpacket.__name__ == "as_strided":
        view = call.run()
        call.memory[geometry(view)] = True
        return view
    t = call.first
    if geometry(t) in call.memory:
        cells = t.untyped_storage().nbytes() // t.element_size()
        last = t.storage_offset() + sum((n - 1) * stride for n, stride in zip(t.size(), t.stride(), strict=True))
        offset = t.storage_offset() + (1 if last + 1 < cells else -1)
        if t.numel() and offset >= 0:
            call.having(0, t.as_strided(t.size(), t.stride(), offset))
            return t
    return call.run()


class WrongCell(MutantTarget):
    """torch CPU with `writes_wrong_cell`."""

    def __init__(self, argument: str = "") -> None:
        super().__init__("zero_ clears the storage")
        self.spec = "class:tests.planted.liars.WrongCell"
        self.mode = Planted(Fault(f"as_strided {WRITES}", writes_wrong_cell, "an emulated as_strided"))


def _copied(call: InterceptedCall) -> Any:
    """Return a copy in place of the view. New memory is zeroed, so that elements without a write are equal in every
    run."""
    result = call.run()
    return result.clone() if "as_strided" in str(call.func) else result.zero_()


class Copying(MutantTarget):
    """torch CPU whose `as_strided` copies."""

    def __init__(self, argument: str = "") -> None:
        super().__init__("zero_ clears the storage")
        self.spec = "class:tests.planted.liars.Copying"
        self.mode = Planted(Fault("as_strided empty_strided", _copied, "an as_strided that is no view"))


class Unreachable(Target):
    """A device whose transfers from the CPU always raise."""

    name = "unreachable"

    def send(self, tree: Any) -> Any:
        raise RuntimeError("no kernel image for this device")


class Poisoned(MutantTarget):
    """torch CPU where every `neg_` raises once `unfold` was called in the process."""

    def __init__(self, argument: str = "") -> None:
        super().__init__("zero_ clears the storage")
        self.spec, self.spoilt = "class:tests.planted.liars.Poisoned", False
        self.mode = Planted(Fault("unfold neg_", self.act, "a semaphore that is signaled already"))

    def act(self, call: InterceptedCall) -> Any:
        if self.spoilt and call.writes:
            raise RuntimeError("semaphore already signaled")
        self.spoilt = self.spoilt or not call.writes
        return call.run()


class _Transform(Target):
    name = "lying transform"
    facts = TargetFacts(transforms_program=True)

    def script(self) -> str:
        name = type(self).__name__
        return f"from tests.planted.liars import {name}\nDEVICE, transform = 'lying', {name}().transform"


class ValueTransform(_Transform):
    """A transform whose results are all off by one."""

    def transform(self, function: Any) -> Any:
        return lambda *inputs: map_tensors(function(*inputs), off_by_one)


class StrideTransform(_Transform):
    """A transform whose 2-d results are laid out by columns."""

    def transform(self, function: Any) -> Any:
        return lambda *inputs: map_tensors(function(*inputs), by_columns)


class RaisingTransform(_Transform):
    """A transform that returns a function which raises."""

    def transform(self, function: Any) -> Any:
        def refuse(*inputs: Any) -> Any:
            raise RuntimeError("no kernel image")

        return refuse


class LeavingTransform(_Transform):
    """A transform that leaves a level of forward-mode AD entered, as a failed compilation of `jvp` does."""

    def transform(self, function: Any) -> Any:
        def run(*inputs: Any) -> Any:
            torch._C._enter_dual_level()
            return function(*inputs)

        return run


class LeavingAndRaisingTransform(_Transform):
    """A transform that leaves a level of forward-mode AD entered, and raises."""

    def transform(self, function: Any) -> Any:
        def refuse(*inputs: Any) -> Any:
            torch._C._enter_dual_level()
            raise RuntimeError("no kernel image")

        return refuse


class SameErrorTransform(_Transform):
    """A transform without kernels for `sin` and `cumsum`, whose errors have the same text."""

    def transform(self, function: Any) -> Any:
        def run(*inputs: Any) -> Any:
            with _Raising(RuntimeError("no kernel image"), "sin", "cumsum"):
                return function(*inputs)

        return run


class IdentityTransform(_Transform):
    """A transform that returns its argument, so that CPU is compared with CPU."""

    def transform(self, function: Any) -> Any:
        return function


class IdleTransform(_Transform):
    """A transform whose result never calls the function under test."""

    def transform(self, function: Any) -> Any:
        return lambda *inputs: {}


class UncapturedTransform(_Transform):
    """A compiler that falls back to plain Python, and reports that it captured nothing."""

    def transform(self, function: Any) -> Any:
        def call(*inputs):
            return function(*inputs)

        return call

    @contextlib.contextmanager
    def capture(self) -> Any:
        from conformance.engine.target import Capture

        yield Capture()


def _register(name: str, lie: Any) -> None:
    def compiler(graph: Any, examples: Any) -> Any:
        return lambda *inputs: lie(graph.forward(*inputs))

    if name not in list_backends():  # another test of this process may have imported this module before
        register_backend(compiler, name)


_register("off_by_one", lambda result: map_tensors(result, off_by_one))
_register("by_columns", lambda result: map_tensors(result, by_columns))


def refuses(graph: Any, examples: Any) -> Any:
    raise RuntimeError("this backend compiles nothing")


if "refuses" not in list_backends():
    register_backend(refuses)


class WithoutTanh(_Device):
    """A device that has no `tanh`."""

    mode = partial(_Raising, NotImplementedError("tanh is not implemented for this device"), "tanh")


class OneError(_Device):
    """A device whose `neg` and `tanh` raise the same error."""

    mode = partial(_Raising, RuntimeError("no kernel image"), "neg", "tanh")
