"""The recorder: a dispatch mode below autograd that notes the distinct calls of aten operators.

Defines `CallRecorder`. The mode sees the forward, the backward and the optimizer, since all of them reach the
dispatcher. It notes no data: the geometry of each tensor, the range of the values of each storage, and the other
arguments. `CallRecorder.checked` removes the calls that torch CPU does not repeat on random data.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from conformance.program.capture import Unwritable, encoded
from conformance.program.execute import Broken
from conformance.program.model import LARGEST_STORAGE, ProgramError, fresh_names
from conformance.program.recorded import IN_PLACE, NOTHING, OUT, SEVERAL, TENSOR, Calls, RecordedCall, program_of
from conformance.program.shadow import reference
from conformance.program.steps.op import Json, dtype_name, number, tensor
from conformance.standalone.moving import MARKER, map_leaves, storage_key, tensors
from conformance.standalone.oracles import compare
from conformance.standalone.torch_compat import TorchDispatchMode

IGNORED = -100
"""The label that torch's losses ignore."""

WIDEST = 2**31
"""Largest absolute value of a recorded range of integers."""

OF_CPU = ("_for_cpu", "mkldnn")
"""Parts of the names of operators that only torch CPU has."""

COLLECTED = 100
"""Number of calls between two collections of garbage."""

Range = dict[str, Json]


class CallRecorder(TorchDispatchMode):
    """Notes the distinct calls of aten operators inside a `with` block, for the model of `model`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Calls()
        self.known: dict[str, int] = {}

    @contextlib.contextmanager
    def model(self, name: str) -> Iterator[None]:
        """Record the calls of this block for the model of this name.

        Operators that only torch CPU has are replaced by those that compose them, as on any other device."""
        if name not in self.calls.models:
            self.calls.models.append(name)
            self.calls.made[name] = 0
        self.name, self.at = name, self.calls.models.index(name)
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False), self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "profiler":  # it marks a range of calls, and computes nothing
            return func(*args, **kwargs)
        call = None
        with self._excluded():
            call = noted(func, args, kwargs)
        result = func(*args, **kwargs)
        if call is not None:
            self.calls.made[self.name] += 1
            with self._excluded():
                self._add(replace(call, results=letters(func, kwargs, result), models=(self.at,)))
        return result

    @contextlib.contextmanager
    def _excluded(self) -> Iterator[None]:
        """Exclude a call that no program can hold, and count the reason."""
        try:
            yield
        except Unwritable as reason:
            self.calls.excluded[str(reason)] += 1

    def _add(self, call: RecordedCall) -> None:
        """Add a call if it is new; else note that the model makes it, too."""
        place = self.known.setdefault(call.key(), len(self.calls.calls))
        if place == len(self.calls.calls):
            self.calls.calls.append(call)
        elif self.at not in self.calls.calls[place].models:
            known = self.calls.calls[place]
            self.calls.calls[place] = replace(known, models=(*known.models, self.at))

    def checked(self) -> Calls:
        """Return the calls that torch CPU answers on random data, and repeats. The others are counted by reason."""
        kept, excluded = [], self.calls.excluded.copy()
        gc.collect()
        gc.freeze()  # else Python seldom looks for the cycles that hold the tensors of earlier calls
        for at, call in enumerate(self.calls.calls):
            if at % COLLECTED == 0:
                gc.collect()
            reason = fault_of(call)
            if reason:
                excluded[reason] += 1
            else:
                kept.append(call)
        return replace(self.calls, calls=kept, excluded=excluded)


def fault_of(call: RecordedCall) -> str:
    """Return why random data cannot test the call, or ""."""
    try:
        program = program_of(call, 0)
        one, two = reference(program).observation, reference(program).observation
    except (ProgramError, Broken) as error:
        said = str(error).partition(": ")[2] or str(error)
        return f"aten::{call.op}: {said.partition(chr(10))[0][:100]}"
    undefined = program.undefined
    wrong = [m for m in compare(one, two) if not (undefined and f"{m.oracle} of {m.where}".startswith(undefined))]
    return f"aten::{call.op}: torch CPU's answer changes from run to run" if wrong else ""


def noted(func: Any, args: Any, kwargs: Any) -> RecordedCall:
    """Return a call without its results. Raises Unwritable."""
    if func.namespace != "aten":
        raise Unwritable(f"an operator of {func.namespace}")
    if any(part in func.overloadpacket.__name__ for part in OF_CPU):
        raise Unwritable("an operator of torch CPU alone")
    names, inputs = fresh_names({}), list[tuple[int, str, tuple[int, ...], tuple[int, ...], int]]()
    known: dict[int, str] = {}
    groups: dict[int, list[torch.Tensor]] = {}

    def marker(value: torch.Tensor) -> Json:
        if id(value) not in known:
            known[id(value)] = next(names)
            _refuse(value)
            group = groups.setdefault(storage_key(value), [])
            group.append(value)
            geometry = tuple(value.size()), tuple(value.stride()), int(value.storage_offset())
            inputs.append(([*groups].index(storage_key(value)), dtype_name(value.dtype), *geometry))
        return tensor(known[id(value)])

    placed = map_leaves([list(args), kwargs], lambda leaf: MARKER if isinstance(leaf, torch.device) else leaf)
    arguments = tuple(encoded(value, marker) for value in placed[0])
    named = {key: encoded(value, marker) for key, value in placed[1].items()}
    storages = tuple(_storage(group) for group in groups.values())
    op = f"{func.overloadpacket.__name__}.{func._schema.overload_name or 'default'}"
    return RecordedCall(op, arguments, named, storages, tuple(inputs), "")


def _refuse(value: torch.Tensor) -> None:
    """Raise Unwritable for a tensor that has no geometry, or is too large for a test."""
    if value.layout is not torch.strided:
        raise Unwritable("a sparse tensor")
    if value.is_conj() or value.is_neg():
        raise Unwritable("a lazy conjugate or negative")
    if value.is_quantized or value.is_meta:
        raise Unwritable("a tensor without plain values")
    if _end(value) > LARGEST_STORAGE:
        raise Unwritable(f"a storage of more than {LARGEST_STORAGE:,} elements")


def _end(value: torch.Tensor) -> int:
    """Return the number of elements up to the tensor's last one."""
    if not value.numel():
        return 0
    reach = sum((size - 1) * stride for size, stride in zip(value.size(), value.stride(), strict=True))
    return int(value.storage_offset()) + reach + 1


def _storage(group: list[torch.Tensor]) -> tuple[str, int, Range]:
    """Return the dtype, the cells and the range of the values of a storage. Cells behind all tensors are not needed.
    Raises Unwritable."""
    if len({tensor.dtype for tensor in group}) > 1:
        raise Unwritable("tensors of two dtypes on one storage")
    cells, values = max(map(_end, group)), values_of(group)
    if "distinct" in values and not cells <= values["high"] - values["low"] + 1 <= LARGEST_STORAGE:
        del values["distinct"]  # there are gaps between the tensors, or random numbers are distinct anyway
    return dtype_name(group[0].dtype), cells, values


def values_of(group: list[torch.Tensor]) -> Range:
    """Return the range of the values to draw for an input.

    Integers keep their least and largest value, apart from an ignored label, and whether they are distinct or
    ascending. Floats lie in [-2, 2]; those without a negative value in [0, 1], and positive ones in [0.1, 1]. Numbers
    with an infinity below get one as well."""
    flat = torch.cat([_cells(tensor.detach()).reshape(-1).cpu() for tensor in group])
    if flat.dtype is torch.bool or flat.is_complex():
        return {"low": -2.0, "high": 2.0} if flat.is_complex() else {"low": 0, "high": 1}
    if flat.is_floating_point():
        flat = flat.double()
        below = {"beside": number(-torch.inf)} if bool((flat == -torch.inf).any()) else {}
        low = float(flat.min()) if flat.numel() else -1.0
        if low > 0:
            return {"low": 0.1, "high": 1.0}
        return {"low": 0.0, "high": 1.0} if low == 0 else {"low": -2.0, "high": 2.0, **below}
    kept = flat[flat != IGNORED]
    if not kept.numel():
        return {"low": 0, "high": 0}
    low, high = (min(max(int(end), -WIDEST), WIDEST) for end in kept.aminmax())
    result: Range = {"low": low, "high": high}
    if kept.numel() < flat.numel():
        return {**result, "beside": IGNORED}
    if flat.numel() > 1:
        different = kept.unique().numel() == kept.numel()
        result |= {"distinct": True} if different else {}
        result |= {"sorted": True} if bool((kept[1:] >= kept[:-1]).all()) else {}
    return result


def _cells(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without its expanded dimensions, so that each cell occurs once."""
    for dim in reversed(range(tensor.dim())):
        if not tensor.stride(dim) and tensor.size(dim) > 1:
            tensor = tensor.select(dim, 0)
    return tensor


def letters(func: Any, kwargs: Any, result: Any) -> str:
    """Return the letters of a call's results. Raises Unwritable."""
    if "out" in kwargs:
        return OUT
    first = func._schema.arguments[0] if func._schema.arguments else None
    if first is not None and first.alias_info is not None and first.alias_info.is_write:
        return IN_PLACE
    parts = list(result) if isinstance(result, (tuple, list)) else [result]
    if any(isinstance(part, (tuple, list)) and tensors(part) for part in parts):
        raise Unwritable("a list within the results")
    if any(isinstance(part, torch.Tensor) and part.layout is not torch.strided for part in parts):
        raise Unwritable("a sparse result")
    word = "".join(TENSOR if isinstance(part, torch.Tensor) else NOTHING for part in parts)
    return f"{SEVERAL}{word}" if isinstance(result, (tuple, list)) else word
