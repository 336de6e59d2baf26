"""Attribution by replacement: the operator inside a wrong step whose answer by torch CPU makes the program right.

Defines `culprit`. One lost `copy_` of a device is a wrong value in each operator that calls `copy_` internally, and no
difference tells so. The program runs again with one of the called operators computed by torch CPU. If the program is
right then, that operator is to blame. The mode sees the calls of torch's composite kernels, but not those inside a
kernel of the device. A device of Python modes over torch CPU is watched from above its modes: without them, an operator
is torch CPU's.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from conformance.engine.aten_ops import is_metadata_only, name_of
from conformance.engine.kernel_tables import key_of
from conformance.engine.layers import Layered
from conformance.engine.target import Target
from conformance.program.calls import judge_trial
from conformance.program.compiler_attribution import compiler_culprit
from conformance.program.trial import Trial
from conformance.program.verdict import Verdict
from conformance.standalone.modes import without_modes
from conformance.standalone.oracles import Mismatch
from conformance.standalone.torch_compat import TorchDispatchMode, has_kernel, run_kernel, tree_leaves, tree_map

ATTRIBUTED = ("value", "storage", "grad", "dtype", "error")
"""Oracles whose differences are attributed."""

MOST_TRIED = 20
"""Largest number of operators whose answer is replaced in one program."""

COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")

ALLOCATES = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided")
"""Operators that return memory without a value."""


def culprit(trial: Trial, first: Mismatch) -> str:
    """Return the operator to blame for a difference of the program, such as `copy_`, and for a compiler its layer and
    part. Return "" if no single operator mends the program, and for other targets that transform programs."""
    target = trial.target
    if target.facts.relations:
        return ""  # torch CPU's answer would not be right for both programs
    if isinstance(target, Layered):
        return compiler_culprit(trial, first)
    if target.facts.transforms_program or first.oracle not in ATTRIBUTED:
        return ""
    key = key_of(target)
    if key is None and not _is_mode(target):
        return ""
    watching = _Replacing(target, key)
    if not _wrong(watching.judged(trial), first):
        return ""  # the program is right, or raises, as soon as its calls are watched
    deepest = sorted(watching.depths, key=lambda name: -watching.depths[name])
    for operator in deepest[:MOST_TRIED]:
        if _mended(_Replacing(target, key, operator).judged(trial), first):
            return operator.removeprefix("aten::").partition(".")[0].lstrip("_")
    return ""


def _is_mode(target: Target) -> bool:
    """Whether the device is torch CPU under modes: its tensors are torch's own."""
    made = target.upload([torch.zeros(1)])[0]
    return type(made) is torch.Tensor and made.device.type == "cpu"


def _mended(verdict: Verdict, first: Mismatch) -> bool:
    return not (_wrong(verdict, first) or any(mismatch.oracle == "error" for mismatch in verdict.mismatches))


def _wrong(verdict: Verdict, first: Mismatch) -> bool:
    """Whether a verdict has a difference like the first one. Torch CPU's answer may have other strides."""
    return any(mismatch.oracle == first.oracle for mismatch in verdict.mismatches)


@contextlib.contextmanager
def _within(outer: Callable[[], AbstractContextManager[None]], inner: AbstractContextManager[Any]) -> Iterator[None]:
    """Context of a mode inside the target's own."""
    with outer(), inner:
        yield


class _Replacing(TorchDispatchMode):
    """Runs one operator of the device on torch CPU, and records the operators that compute on the device, each with its
    depth below the program's own calls. New memory is filled, since it may hold the right values by chance.

    `key` is the device's dispatch key; None for modes over torch CPU, which see a composite operator as one call."""

    def __init__(self, target: Target, key: str | None, operator: str = "") -> None:
        super().__init__()
        self.target, self.key, self.operator = target, key, operator
        self.depths: dict[str, int] = {}
        self._calling: list[str] = []

    def judged(self, trial: Trial) -> Verdict:
        """The verdict on a program whose steps run under this mode."""
        target = copy.copy(self.target)
        target.active = functools.partial(_within, self.target.active, self)  # type: ignore[method-assign]
        return judge_trial(trial.on(target), locate=False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        if func._schema.name in ALLOCATES:
            return self._filled(func(*args, **kwargs))
        if is_metadata_only(func) or not any(map(self._there, tree_leaves((args, kwargs)))):
            return func(*args, **kwargs)
        if name == self.operator:
            return self._on_cpu(func, args, kwargs)
        self.depths[name] = max(len(self._calling), self.depths.get(name, 0))
        if self.key is None or name in self._calling or not self._is_composite(name, self.key):
            return func(*args, **kwargs)
        self._calling.append(name)
        try:
            with self:
                return run_kernel(func, self.key, *args, **kwargs)
        finally:
            self._calling.pop()

    @staticmethod
    def _is_composite(name: str, key: str) -> bool:
        return not has_kernel(name, key) and any(has_kernel(name, other) for other in COMPOSITE)

    def _there(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == self.target.device.type

    def _filled(self, memory: torch.Tensor) -> torch.Tensor:
        """Fill memory of the device with values that differ from most results: nan, the largest integer, or True. If
        the device lacks `fill_`, the memory stays as it is."""
        if self._there(memory) and memory.layout is torch.strided and not memory.is_quantized:
            dtype = memory.dtype
            numeric = dtype.is_floating_point or dtype.is_complex
            with contextlib.suppress(NotImplementedError), self._undisturbed():
                memory.fill_(math.nan if numeric else dtype is torch.bool or torch.iinfo(dtype).max)
        return memory

    def _undisturbed(self) -> AbstractContextManager[None]:
        """Context without the modes that are the device."""
        return without_modes() if self.key is None else contextlib.nullcontext()

    def _on_cpu(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return torch CPU's answer, on the device; write it into the arguments that the operator writes."""
        if self.key is None:
            with self._undisturbed():
                return func(*args, **kwargs)
        hosts: dict[int, torch.Tensor] = {}

        def host(value: Any) -> Any:
            if isinstance(value, torch.device) and value.type == self.target.device.type:
                return torch.device("cpu")
            return hosts.setdefault(id(value), value.detach().cpu()) if self._there(value) else value

        on_cpu = tree_map(host, (args, kwargs))
        result = func(*on_cpu[0], **on_cpu[1])
        written = {}
        for at, argument in enumerate(func._schema.arguments):
            if argument.is_write:
                values = [all_args[at] if at < len(all_args) else named.get(argument.name)
                          for all_args, named in ((args, kwargs), on_cpu)]  # fmt: skip
                for there, here in zip(*map(tree_leaves, values), strict=True):
                    if self._there(there):
                        there.copy_(here)
                        written[id(here)] = there

        def back(value: Any) -> Any:
            if id(value) in written:
                return written[id(value)]
            return value.to(self.target.device) if isinstance(value, torch.Tensor) else value

        return tree_map(back, result)
