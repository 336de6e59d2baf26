"""Cache of operator calls by geometry: one look-up finds an equal call, which is queued instead of executed.

Defines `Deferred`, a kernel in front of another one, and `Prepared`, the cached description of a call.

The first call of an operator with some geometry of its arguments runs torch's meta kernel and the CPU's checks, and
selects the value function. The next call with the same geometry, under the same settings of torch, has only one
possible result geometry. Only the result tensor has to be allocated.

This module must not depend on specific operators: a row of the tables defines whether its value function may run later.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from tinygrad.dtype import DType
from tinygrad.uop.ops import UOp

from ..lazy import access, calls, flush
from ..lazy.calls import QueuedCall
from ..lazy.dtypes import COMPUTED
from ..lazy.storage import DIRTY, LazyStorage, storage_of
from ..runtime import memory
from ..runtime.counters import COUNTERS
from ..runtime.defer_sigint import DeferSigint
from ..runtime.garbage import FewerCollections
from ..runtime.stats import STATS
from .call_caches import remember
from .metadata import global_settings, number_class, tensors_in
from .registry import Context, OperatorRow, Rehearsal, is_data
from .tensors import Spec, cast, geometry, maker, place, read, store, tensor_on_content
from .windows import Windows

# Number of cached geometries of one overload; the cache is cleared when it is full.
MOST_PREPARED = 2048
MOST_VARIANTS = 16  # of one geometry, by the graphs that indices make

_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_PLAIN = frozenset({int, bool, type(None), str, torch.dtype, torch.memory_format, torch.layout})


class _NotPlain(Exception):
    """A call with an argument that is not a tensor of the device, a number or another hashable value."""


class TensorPlace:
    """Position of a tensor argument in a call's arguments, with its geometry."""

    __slots__ = ("dtype", "number", "offset", "size", "stride")

    def __init__(self, number: int, t: torch.Tensor) -> None:
        self.number, self.dtype = number, t.dtype
        self.size, self.stride, self.offset = tuple(t.size()), tuple(t.stride()), int(t.storage_offset())


class FloatPosition:
    """Position of a float in a call's arguments."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Results:
    """Maker of the results of a call: new tensors, None for an undefined one."""

    def __init__(self, outs: Sequence[Spec | None], present: Sequence[bool], structure: Any, index: int) -> None:
        """`present` marks the results that are defined; `structure` is their container type, None for one tensor."""
        device = memory.device_name(index)
        self.makers = [
            maker(spec, index, device) if there and spec is not None else None
            for spec, there in zip(outs, present, strict=True)
        ]  # fmt: skip
        self.structure = structure

    def make(self) -> tuple[Any, list[LazyStorage]]:
        """New results, and the contents of their storages."""
        if self.structure is None:
            assert self.makers[0] is not None
            t, lazy = self.makers[0].make()
            return t, [lazy]
        pairs = [(None, None) if maker is None else maker.make() for maker in self.makers]
        return self.structure([t for t, _ in pairs]), [lazy for _, lazy in pairs if lazy is not None]


class Prepared:
    """Cached description of a call of one overload with one geometry of its arguments: a `Kind` of queued calls."""

    def __init__(
        self, name: str, row: OperatorRow, function: Any, context: Context, args: Any, kwargs: Any,
        present: Sequence[bool], structure: Any, targets: Sequence[torch.Tensor],
    ) -> None:  # fmt: skip
        """`present` marks the context's results that are defined; `targets` are the tensors that receive them, if not
        new.
        """
        self.name, self.row, self.function = name, row, function
        self.outs, self.present = tuple(context.outs), tuple(present)
        self.index = context.index
        self.fresh = not targets
        self.results = Results(self.outs, present, structure, self.index) if self.fresh else None
        collector = _Collector()
        self.args, self.kwargs = (
            collector.template(tuple(args)),
            {k: collector.template(v, k) for k, v in kwargs.items()},
        )
        self.targets = [TensorPlace(i, t) for i, t in enumerate(targets)]
        self.context = Context(context.op, self.outs, context.index, _stand_ins(tuple(args)))
        if row.number_dtype is not None:
            self.context.common_dtype()  # early, because the default dtype may change before the call runs
        self.number_dtype = row.number_dtype(self.context) if row.number_dtype is not None else None
        self.number_places = collector.number_places
        # For a value function that reads an index: the variants by their graphs, and the placeholders of these.
        self.variants: dict[tuple[UOp, ...], Prepared] = {}
        self.placeholders: dict[tuple[int, int, DType], UOp] = {}
        self.standing: tuple[Any, ...] | None = None
        self.last: Rehearsed | None = None

    def execute(self, call: QueuedCall) -> None:
        """Read the operands, compute, and hold or write the results."""
        if call.results is None:
            context = self.context
            args = _filled(self.args, call)
            if self.row.index is not None or self.row.reads_index:  # an index is read again, from its tensor
                context = Context(context.op, self.outs, self.index, _with_tensors(self.args, call))
                context.repeated = True
            results = self.function(context, *args, **{k: _filled(v, call) for k, v in self.kwargs.items()})
            call.results = results if isinstance(results, (tuple, list)) else (results,)
        if self.fresh:
            storages = iter(call.written)
            for spec, result, present in zip(self.outs, call.results, self.present, strict=True):
                if present:
                    place(next(storages), spec, result)
        else:
            for target, storage, result in zip(self.targets, call.written, call.results, strict=False):
                store(storage, target.dtype, target.size, target.stride, target.offset, result)

    def writes_element_of(self, storage: LazyStorage) -> bool:
        """Whether its only target is one element of a storage that has more."""
        return len(self.targets) == 1 and not self.targets[0].size and storage.nbytes > self.targets[0].dtype.itemsize

    def numbers(self, call: QueuedCall, data: list[Any]) -> tuple[Any, ...]:
        """The floats of a call as a key; floats that the value function treats as data are appended to `data`."""
        data.extend(call.arrays)
        dtype, op = self.number_dtype, self.context.op
        key: list[Any] = []
        for at, number in zip(self.number_places, call.operands, strict=True):
            if dtype is not None and is_data(op, at, dtype, number):
                key.append(dtype)
                data.append((number, dtype))
            else:
                key.append(number if number and number == number else str(number))
        return tuple(key)

    @functools.cached_property
    def bounds(self) -> tuple[int, int] | None:
        """Bounds of the elements of the only result, an integer one, whatever the operands have; None if unknown."""
        row, (result, *others) = self.row, self.outs
        if others or not self.fresh or self.number_places or not _is_index(result.dtype):
            return None
        if row.index is not None or row.reads_index:
            return None
        args, kwargs = (_stand_in_values(x, self.context.device) for x in (self.args, tuple(self.kwargs.values())))
        value = self.function(self.context, *args, **dict(zip(self.kwargs, kwargs, strict=True)))
        value = cast(value[0] if isinstance(value, (tuple, list)) else value, result.computed)
        return int(value.vmin), int(value.vmax)

    def rehearsed(
        self, numbers: Sequence[float], args: Any, index: Sequence[torch.Tensor]
    ) -> tuple[Prepared, list[Any]]:
        """The variant for a call whose value function reads an `index` on the host, and the data made from the index.

        The graph over placeholder buffers selects the variant, because it may differ from index to index. An index of
        the same memory as in the last call, as the edges of a graph network, needs no second look.
        """
        same = (tuple(numbers), memory.generation())
        if self.last is not None and self.last.same == same and all(
            buffer is not None and buffer is known()
            for buffer, known in zip(_buffers(index), self.last.buffers, strict=True)
        ):  # fmt: skip
            return self.last.variant, self.last.arrays
        context = Context(self.context.op, self.outs, self.index, args)
        context.rehearsal, context.repeated = Rehearsal(self.placeholders), True
        with FewerCollections():
            if self.standing is None:
                everything = self.args, tuple(self.kwargs.values())
                self.standing = tuple([_stand_in_values(x, context.device) for x in everything])
            values, named = (_with_numbers(x, numbers) for x in self.standing)
            results = self.function(context, *values, **dict(zip(self.kwargs, named, strict=True)))
        key = tuple(results) if isinstance(results, (tuple, list)) else (results,)
        variant = self.variants.get(key)
        if variant is None:
            if len(self.variants) >= MOST_VARIANTS:
                self.variants.clear()
                self.placeholders.clear()
            variant = self.variants[key] = copy.copy(self)
        buffers = [buffer for buffer in _buffers(index) if buffer is not None]  # computed by now
        if len(buffers) == len(index):
            self.last = Rehearsed(same, [weakref.ref(buffer) for buffer in buffers], variant, context.rehearsal.arrays)
        return variant, context.rehearsal.arrays


def _buffers(index: Sequence[torch.Tensor]) -> list[UOp | None]:
    """The memory of each tensor's storage; None for one that is not computed yet, or has pending writes."""
    return [storage_of(t).realized_buffer(COMPUTED[t.dtype]) for t in index]


class Rehearsed(NamedTuple):
    """The last rehearsal of a call."""

    same: tuple[tuple[float, ...], int]  # the call's numbers, and the generation of the memory
    buffers: list[Any]  # weak references to those of the index
    variant: Prepared
    arrays: list[Any]


class _Collector:
    """Templates of arguments, with tensors and floats numbered in the order of the key."""

    def __init__(self) -> None:
        self.tensors = 0
        self.number_places: list[Any] = []

    def template(self, x: Any, at: Any = None) -> Any:
        """An argument with places instead of tensors and floats."""
        if isinstance(x, torch.Tensor):
            self.tensors += 1
            return TensorPlace(self.tensors - 1, x)
        if type(x) is float:
            self.number_places.append(at)
            return FloatPosition(len(self.number_places) - 1)
        if type(x) in (list, tuple):
            return type(x)([self.template(y, i if at is None else at) for i, y in enumerate(x)])
        return x


def _filled(x: Any, call: QueuedCall) -> Any:
    """A template with the values and the numbers of a call."""
    kind = type(x)
    if kind is TensorPlace:
        return access.read(call.read[x.number], x.dtype, x.size, x.stride, x.offset)
    if kind is FloatPosition:
        return call.operands[x.number]
    if kind is tuple or kind is list:
        return kind([_filled(y, call) for y in x])
    return x


def _stand_in_values(x: Any, device: str) -> Any:
    """A template with buffers without content as its values; the numbers are left out."""
    kind = type(x)
    if kind is TensorPlace:
        size, dtype = x.size, COMPUTED[x.dtype]
        if 0 in size:  # a buffer has at least one element
            return UOp.const(0, dtype).expand(size)
        return UOp.new_buffer(device, math.prod(size), dtype).reshape(size)
    if kind is tuple or kind is list:
        return kind([_stand_in_values(y, device) for y in x])
    return x


def _with_numbers(x: Any, numbers: Sequence[float]) -> Any:
    """Values with the numbers of a call."""
    kind = type(x)
    if kind is FloatPosition:
        return numbers[x.number]
    if kind is tuple or kind is list:
        return kind([_with_numbers(y, numbers) for y in x])
    return x


def _with_tensors(x: Any, call: QueuedCall) -> Any:
    """A template with tensors on the storages of a call."""
    kind = type(x)
    if kind is TensorPlace:
        return tensor_on_content(call.read[x.number], x.dtype, x.size, x.stride, x.offset)
    if kind is FloatPosition:
        return call.operands[x.number]
    if kind is tuple or kind is list:
        return kind([_with_tensors(y, call) for y in x])
    return x


def _stand_ins(x: Any) -> Any:
    """Arguments with meta tensors of the same geometry."""
    if isinstance(x, torch.Tensor):
        return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")
    if type(x) in (list, tuple):
        return type(x)([_stand_ins(y) for y in x])
    return x


class Noted(threading.local):
    """Description recorded by an overload's kernel for the `Deferred` call in front of it."""

    wanted: str = ""
    """The overload whose call is recorded, so that a call of another overload inside it is ignored."""
    prepared: Callable[[], Prepared] | None = None

    def take(self) -> Callable[[], Prepared] | None:
        """Return the recorded description, and clear it."""
        result, self.prepared = self.prepared, None
        return result


NOTED = Noted()


def _is_index(dtype: torch.dtype) -> bool:
    return dtype in COMPUTED and not dtype.is_floating_point and dtype is not torch.bool


def bounds_in_queue(t: torch.Tensor) -> tuple[int, int] | None:
    """Bounds of a tensor that a queued call makes, if they follow from the kind of that call; otherwise None."""
    lazy = storage_of(t)
    if lazy.queued != calls.WRITTEN:
        return None
    last = next(call for call in reversed(calls.pending()) if lazy in call.written)
    kind = last.kind
    return kind.bounds if type(kind) is Prepared and kind.fresh and kind.outs[0].dtype is t.dtype else None


def compute_index(storages: Sequence[LazyStorage]) -> None:
    """Ensure that no queued call writes these storages, so that the host can read their elements.

    The calls that compute an index are a separate step, which may equal an earlier one. The other calls stay in the
    queue. Storages written in place earlier are not computed in this step, because together with the other calls they
    need fewer kernels.
    """
    written = [lazy for lazy in storages if lazy.queued == calls.WRITTEN]
    if written:
        with calls.apart(written) as possible:
            if possible:
                flush.flush(written, dirty=not DIRTY)
                return
        calls.settle()


class Deferred:
    """A kernel that answers a call from the description of an earlier equal call."""

    def __init__(self, kernel: Callable[..., Any], name: str, row: OperatorRow, targets: Sequence[int | str]) -> None:
        """`targets` are the written arguments, by place or name; empty if results are new tensors."""
        self.kernel, self.name, self.row = kernel, name, row
        self.targets = targets
        self.known: dict[Any, Prepared] = {}
        self.windows = Windows()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The kernel that torch calls."""
        if calls.is_closed():
            return self.kernel(*args, **kwargs)
        key: list[Any] = [*global_settings()]
        storages: list[LazyStorage] = []
        numbers: list[float] = []
        try:
            for x in args:
                if type(x) in _TENSORS:
                    _describe_tensor(x, key, storages)
                else:
                    _describe(x, key, storages, numbers)
            for name, x in kwargs.items():
                key.append(name)
                _describe(x, key, storages, numbers)
        except (_NotPlain, AttributeError, NotImplementedError):
            return self.kernel(*args, **kwargs)
        if not storages:
            return self.kernel(*args, **kwargs)
        if numbers and self.row.keep_floats:
            key.extend(numbers)
        signature = tuple(key)
        prepared = self.known.get(signature)
        if prepared is None:
            settled = (
                None if self.targets else self.windows.settled(args, (*global_settings(), *kwargs, *kwargs.values()))
            )
            return self.call(*settled, **kwargs) if settled else self._learnt(signature, args, kwargs)
        if self.row.index is not None and not self._takes_index(prepared, args):
            return self.kernel(*args, **kwargs)
        arrays: Sequence[Any] = ()
        if self.row.reads_index:
            index = list(tensors_in([args[self.row.reads_index]]))
            compute_index([storage_of(t) for t in index])
            prepared, arrays = prepared.rehearsed(numbers, args, index)
        STATS.native[self.name] += 1
        return _queued(prepared, storages, numbers, args, kwargs, self.targets, arrays)

    def _takes_index(self, prepared: Prepared, args: Any) -> bool:
        """Check the current elements of an index; False if it is not an index on the device."""
        assert self.row.index is not None
        return self.row.index(Context(prepared.context.op, prepared.outs, prepared.index, args))

    def _learnt(self, key: Any, args: Any, kwargs: Any) -> Any:
        """Run the kernel, and cache the description that it recorded."""
        before, NOTED.wanted, NOTED.prepared = NOTED.wanted, self.name, None
        warned = COUNTERS.warned
        try:
            result = self.kernel(*args, **kwargs)
        finally:
            NOTED.wanted = before
        COUNTERS.prepared += 1
        noted = NOTED.take()
        if noted is not None and COUNTERS.warned == warned:
            remember(self.known, key, noted(), MOST_PREPARED)
        return result


def _queued(
    prepared: Prepared, storages: list[LazyStorage], numbers: list[float], args: Any, kwargs: Any,
    targets: Sequence[int | str], arrays: Sequence[Any],
) -> Any:  # fmt: skip
    if prepared.results is not None:
        result, written = prepared.results.make()
        call = QueuedCall(prepared, storages, written, numbers)
        call.arrays = arrays
        calls.defer(call)
        return result
    tensors = [args[t] if isinstance(t, int) else kwargs[t] for t in targets]
    call = QueuedCall(prepared, storages, [storage_of(t) for t in tensors], numbers)
    call.arrays = arrays
    calls.defer(call)
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _describe_tensor(x: torch.Tensor, key: list[Any], storages: list[LazyStorage]) -> None:
    lazy = x.untyped_storage()._lazy  # type: ignore[attr-defined]
    if x.is_neg():
        raise _NotPlain
    key.append(x.dtype)
    key.append(x.shape)
    key.append(x.stride())
    key.append(x.storage_offset())
    if storages:  # index of an earlier tensor with the same storage
        key.append(storages.index(lazy) if lazy in storages else -1)
    key.append(lazy.place)
    storages.append(lazy)


def _describe(x: Any, key: list[Any], storages: list[LazyStorage], numbers: list[float]) -> None:
    kind = type(x)
    if kind in _PLAIN:
        key.append(kind)
        key.append(x)
    elif kind is float:
        key.append(float if 0.0 < x <= 65504.0 else number_class(x))
        numbers.append(x)
    elif kind in _TENSORS:
        _describe_tensor(x, key, storages)
    elif kind is list or kind is tuple:
        key.append(kind)
        key.append(len(x))
        for y in x:
            _describe(y, key, storages, numbers)
    else:
        raise _NotPlain


class Whole:
    """A call of a kernel that runs unchanged, on stand-ins of its tensors, when the queue is emptied."""

    fresh = True  # other written storages are operands

    def __init__(self, name: str, kernel: Callable[..., Any], args: Any, results: Any, writes: Sequence[int]) -> None:
        """`writes` are the places of the tensor arguments that it changes."""
        collector = _Collector()
        self.name, self.kernel, self.args, self.writes = name, kernel, collector.template(tuple(args)), writes
        present = [t is not None for t in results]
        outs = [None if t is None else Spec(t.dtype, tuple(t.size()), tuple(t.stride())) for t in results]
        self.outs = [spec for spec in outs if spec is not None]
        index = next(t for t in results if t is not None).device.index or 0
        self.results = Results(outs, present, type(results), index)

    def execute(self, call: QueuedCall) -> None:
        """Run the kernel, and let the storages of the promised results hold its results."""
        with DeferSigint(True) as run:  # it cannot run again after it has changed something
            run.begin()
            results = self.kernel(*_with_tensors(self.args, call))
            defined = [result for result in results if result is not None]
            for result, spec, storage in zip(defined, self.outs, call.written, strict=False):
                if geometry(result)[:2] == spec[1:]:
                    storage.adopt(storage_of(result))
                else:  # torch's settings have changed since the call
                    place(storage, spec, read(result))
        STATS.native[self.name] -= 1  # counted at the call

    def writes_element_of(self, storage: LazyStorage) -> bool:
        """It may write all elements."""
        return False

    def numbers(self, call: QueuedCall, data: list[Any]) -> tuple[Any, ...]:
        """The floats of a call."""
        return tuple([number if number and number == number else str(number) for number in call.operands])


def whole(
    kernel: Callable[..., Any], name: str, writes: Callable[[Sequence[Any]], Sequence[int]]
) -> Callable[..., Any]:
    """A deferred form of a kernel that makes new tensors, and changes the arguments at the places from `writes`.

    The kernel must read no element, and its errors must depend only on the geometry of the arguments.
    """
    known: dict[Any, Whole] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs or calls.is_closed():
            return kernel(*args, **kwargs)
        key: list[Any] = [*global_settings()]
        storages: list[LazyStorage] = []
        numbers: list[float] = []
        try:
            for x in args:
                _describe(x, key, storages, numbers)
        except (_NotPlain, AttributeError, NotImplementedError):
            return kernel(*args)
        signature = (*key, *numbers)
        prepared = known.get(signature)
        if prepared is None:
            before = STATS.native[name]
            results = kernel(*args)
            COUNTERS.prepared += 1
            if STATS.native[name] == before + 1 and all(t is None or t.dtype in COMPUTED for t in results):
                changed = [i for i in writes(args) if args[i] is not None]
                remember(known, signature, Whole(name, kernel, args, results, changed), MOST_PREPARED)
            return results
        STATS.native[name] += 1
        result, written = prepared.results.make()
        written += [storage_of(args[i]) for i in prepared.writes]
        calls.defer(QueuedCall(prepared, storages, written, numbers))
        return result

    return call
