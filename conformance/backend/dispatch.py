"""From one value function to the functional, the in-place and the out= kernels of an operator, by its schema.

Defines `value` and `pointwise` (register a value function), `Context`, `Spec`, and `install`, which gives torch a
kernel for every overload that a value function or a decomposition serves.

The key insight: an operator's metadata and its values are two questions. torch's meta kernel answers the first (dtype,
shape, strides, errors), so a value function only computes elements; where they go is the same code for every operator.
Must not know which operators there are: the tables in `ops` say that.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import UOp

from . import engine, fallback, layout, overlap, storage
from .dtypes import COMPUTED, PAIRS, opmath
from .stats import STATS, FallbackError, count_fallback
from .tensors import Spec, assign, cast, check_writable, constant, elements, geometry, make

OpOverload = torch._ops.OpOverload
ValueFunction = Callable[..., Any]


class Declined(Exception):
    """Raised by a value function, before it computes anything, for a call that would cost too much as a kernel."""


class Refused(Exception):
    """A call that the meta kernel refuses, or that torch's checks of memory overlap may refuse: the CPU decides."""


class Nothing(Exception):
    """A call whose results have no elements: what is left of it are the CPU's checks of its arguments."""


class Context:
    """What a value function may ask about its call."""

    __slots__ = ("args", "device", "index", "op", "outs")

    def __init__(self, op: OpOverload, outs: Sequence[Spec], index: int, args: Sequence[Any]) -> None:
        self.op, self.outs, self.index, self.args = op, outs, index, args
        self.device = engine.device_name(index)

    @property
    def out(self) -> Spec:
        """The first result."""
        return self.outs[0]

    def common_dtype(self) -> DType:
        """What the tensor and number arguments promote to, in torch's rules (torch.result_type)."""
        operands = [a for a in self.args if isinstance(a, (torch.Tensor, bool, int, float))]
        if len(operands) == 1:
            operands *= 2
        promoted = functools.reduce(torch.promote_types, _pairwise_result_types(operands))
        return COMPUTED[promoted]

    def data(self, array: np.ndarray) -> UOp:
        """A host array as a realized value of the array's shape (dtype bool, int or float)."""
        array = np.ascontiguousarray(array)
        dtype = COMPUTED[torch.from_numpy(array).dtype] if array.ndim else COMPUTED[torch.tensor(array).dtype]
        flat = engine.from_host(array.reshape(-1), dtype, self.device)
        return flat.reshape(array.shape)


def _pairwise_result_types(operands: Sequence[Any]) -> Iterable[torch.dtype]:
    for other in operands[1:]:
        yield torch.result_type(operands[0], other)


@dataclass(frozen=True)
class Row:
    """One operator's entry in the table."""

    function: ValueFunction
    keep_floats: bool  # whether the value of a float argument can change the metadata
    complex: ValueFunction | None  # the same of complex tensors, which are values with a last dimension of 2
    elementwise: bool  # whether each element depends on the operands' elements in its own place only


ROWS: dict[str, Row] = {}


def value(
    *names: str, keep_floats: bool = True, takes_complex: bool = False, elementwise: bool = False
) -> Callable[[ValueFunction], ValueFunction]:
    """Register a value function for operators such as "cumsum.default" (the functional overload).

    The function is called as `f(ctx, *args, **kwargs)` in the schema's order, each tensor replaced by a lazy value of
    its shape and dtype. It returns a value (a tuple for several results) of the result's shape, of any real dtype:
    the caller casts and lays it out. An optional result that torch leaves undefined is None.
    """

    def register(function: ValueFunction) -> ValueFunction:
        for name in names:
            if full_name(name) in ROWS:
                raise RuntimeError(f"tiny: the tables give two value functions for aten::{name}")
            ROWS[full_name(name)] = Row(function, keep_floats, function if takes_complex else None, elementwise)
        return function

    return register


def full_name(name: str) -> str:
    """The name of an overload: "cumsum" is "cumsum.default"."""
    return name if "." in name else f"{name}.default"


def complex_value(*names: str) -> Callable[[ValueFunction], ValueFunction]:
    """Register what operators that have a value function compute where a tensor or number in the call is complex.

    A complex tensor arrives as a value of its real dtype with a last dimension of 2, and so does a complex result
    leave.
    """

    def register(function: ValueFunction) -> ValueFunction:
        for name in map(full_name, names):
            ROWS[name] = replace(ROWS[name], complex=function)
        return function

    return register


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {}


def decomposition(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register our own decomposition of functional overloads: a function of torch tensors in terms of other operators.

    Use it where torch has none, or where torch's is a reference that recurses. In-place and out= forms follow.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            DECOMPOSITIONS[name if "." in name else f"{name}.default"] = function
        return function

    return register


PROMOTE: dict[str, Callable[[Context], DType]] = {
    "result": lambda ctx: opmath(ctx.out.computed),  # compute in what the result is
    "common": lambda ctx: opmath(ctx.common_dtype()),  # comparisons: in what the operands promote to
}


def pointwise(table: dict[str, Callable[..., UOp]], promote: str = "result") -> None:
    """Register elementwise functions: tensors and numbers arrive as values in one dtype, already promoted."""
    for name, function in table.items():
        value(name, keep_floats=False, elementwise=True)(_pointwise(function, PROMOTE[promote]))


def _pointwise(function: Callable[..., UOp], dtype_of: Callable[[Context], DType]) -> ValueFunction:
    def compute(ctx: Context, *args: Any, **kwargs: Any) -> UOp:
        dtype = dtype_of(ctx)
        ready = [operand(ctx, i, a, dtype) for i, a in enumerate(args)]
        named = {k: operand(ctx, k, a, dtype) for k, a in kwargs.items()}
        return function(*ready, **named)

    return compute


_SEEN_NUMBERS: OrderedDict[tuple[Any, ...], set[float]] = OrderedDict()
_CHANGING = 3  # distinct values after which a number counts as changing


def operand(ctx: Context, place: int | str, argument: Any, dtype: DType) -> Any:
    """A tensor or number argument as a value in `dtype`; anything else unchanged.

    A float that has been seen to change from call to call arrives as data instead of a constant: a constant would
    be compiled into a fresh kernel each time.
    """
    if isinstance(argument, UOp):
        return cast(argument, dtype)
    if isinstance(argument, float) and dtypes.is_float(dtype):
        seen = _SEEN_NUMBERS.setdefault((ctx.op, place, dtype), set())
        if len(seen) < _CHANGING:
            seen.add(argument)
            return constant(argument, dtype)
        if argument in seen:
            return constant(argument, dtype)
        return ctx.data(np.array([argument], dtype=np.float64 if dtype is dtypes.float64 else np.float32)).reshape(())
    if isinstance(argument, (bool, int, float)):
        return constant(argument, dtype)
    return argument


_specs: OrderedDict[tuple[Any, ...], tuple[Any, tuple[Spec, ...]]] = OrderedDict()
_SPECS_KEPT = 16384
_INT8, _FLOAT16 = torch.empty(1, dtype=torch.int8), torch.empty(1, dtype=torch.float16)


def specs(
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], floats: bool = True
) -> tuple[Any, tuple[Spec, ...]]:
    """The metadata of an operator's results as (structure, specs); raises Refused where the meta kernel raises.

    Structure is None for one tensor, else the container type. Remembered by the geometry of the arguments; the values
    of floats are part of that only where `floats` is true.
    """
    aliases: dict[int, int] = {}
    key = (op, _key(args, aliases, floats), _key(tuple(kwargs.items()), aliases, floats))
    known = _specs.get(key)
    if known is None:
        metas: dict[int, torch.Tensor] = {}
        call = fallback.callable_with_numbers(op, args)
        try:
            result = call(*_meta(args, metas), **{k: _meta(v, metas, k) for k, v in kwargs.items()})
        except Exception as error:
            raise Refused(str(error)) from error
        _check_dtypes(op, args, kwargs)
        known = _describe(result)
        if known[1] and not any(a.alias_info is not None for a in op._schema.arguments):
            known = _strides_of_cpu(op, args, kwargs, known)
        _specs[key] = known
        if len(_specs) > _SPECS_KEPT:
            _specs.popitem(last=False)
    return known


_TRIED = 1 << 14  # elements up to which the CPU is asked about strides
# Operators whose meta kernels order dimensions differently for contiguous arguments too.
_MISSTATED = frozenset({"aten._fft_r2c.default"})


_accepted: dict[tuple[Any, ...], bool] = {}


def _check_dtypes(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise Refused for dtypes that the meta kernel lets pass and the CPU's own kernel does not.

    Whether an out= tensor is written in another dtype, or a source is added in one, only the kernel knows. So where
    dtypes differ, or one is written out, the call is tried once on ones, if it is a small one.
    """
    tensors = list(_tensors([*args, *kwargs.values()]))
    kinds = tuple(t.dtype for t in tensors)
    writes_out = any(a.is_out for a in op._schema.arguments)
    if (len(set(kinds)) < 2 and not writes_out) or torch.Tag.nondeterministic_seeded in op.tags:
        return
    key = (op, *kinds)
    if key not in _accepted:
        if sum(layout.plan(*geometry(t)[:2]).extent for t in tensors) > _TRIED:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _accepted[key] = _takes_ones(op, args, kwargs)
    if not _accepted[key]:
        raise Refused("the CPU's kernel takes no such dtypes together")


_OF_DTYPES = ("dtype", "scalar type", "scalar_type", "same type", "for result,", "be cast", "implemented for")


def _takes_ones(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    try:
        fallback.callable_with_numbers(op, args)(*_ones(tuple(args)), **{k: _ones(v) for k, v in kwargs.items()})
    except Exception as error:  # made-up elements need not suit the operator, so only what is said of dtypes counts
        return not any(word in str(error) for word in _OF_DTYPES)
    return True


def _strides_of_cpu(
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], known: tuple[Any, tuple[Spec, ...]]
) -> tuple[Any, tuple[Spec, ...]]:
    """The CPU's own strides where its kernels and the meta kernels order dimensions differently.

    They disagree where an argument is not contiguous, or gives dimensions of size 1 or 0 strides that a contiguous
    tensor would not have (docs/notes/meta-and-cpu.md has cases). The call runs on ones then, if it is a small one.
    """
    tensors = list(_tensors([*args, *kwargs.values()]))
    usual = all(geometry(t)[1] == layout.contiguous_strides(geometry(t)[0]) for t in tensors)
    if (usual and str(op) not in _MISSTATED) or sum(layout.plan(*geometry(t)[:2]).extent for t in tensors) > _TRIED:
        return known
    try:
        call = fallback.callable_with_numbers(op, args)
        structure, specs_ = _describe(call(*_ones(tuple(args)), **{k: _ones(v) for k, v in kwargs.items()}))
    except (RuntimeError, IndexError, ValueError):  # made-up elements need not suit the operator
        return known
    same = structure == known[0] and len(specs_) == len(known[1])
    if same and all(a is not None and b is not None and a[:2] == b[:2] for a, b in zip(specs_, known[1], strict=True)):
        return structure, specs_
    return known


def _ones(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.device.type == "tiny":
        size, stride, _ = geometry(x)
        return torch.ones(layout.plan(size, stride).extent, dtype=x.dtype).as_strided(size, stride)
    if type(x) in (list, tuple):
        return type(x)([_ones(y) for y in x])
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _describe(result: Any) -> tuple[Any, tuple[Spec, ...]]:
    if isinstance(result, torch.Tensor):
        return None, (Spec(result.dtype, tuple(result.size()), tuple(result.stride())),)
    return type(result), tuple(
        Spec(r.dtype, tuple(r.size()), tuple(r.stride())) if isinstance(r, torch.Tensor) else None  # type: ignore[misc]
        for r in result
    )


def _key(x: Any, aliases: dict[int, int], floats: bool) -> Any:
    if isinstance(x, torch.Tensor):
        if x.device.type != "tiny":
            # A wrapped number and a 0-dim CPU tensor promote differently and look alike: ask what they promote to.
            return ("host", x.dtype, x.dim(), torch.result_type(_INT8, x), torch.result_type(_FLOAT16, x))
        cell = id(storage.cell_of(x))
        return (x.dtype, x.size(), x.stride(), x.storage_offset(), aliases.setdefault(cell, len(aliases)))
    if isinstance(x, (list, tuple)):
        return tuple([_key(y, aliases, floats) for y in x])
    if isinstance(x, float) and not floats:
        return float
    return (x.__class__, x)


def _meta(x: Any, metas: dict[int, torch.Tensor], name: str = "") -> Any:
    if isinstance(x, torch.Tensor):
        if x.device.type != "tiny":
            return x
        cell = storage.cell_of(x)
        base = metas.get(id(cell))
        if base is None:
            base = metas[id(cell)] = torch.empty(cell.nbytes, dtype=torch.uint8, device="meta")
        made = torch.empty(0, dtype=x.dtype, device="meta")
        return made.set_(base.untyped_storage(), x.storage_offset(), x.size(), x.stride())  # type: ignore[call-overload]
    if isinstance(x, (list, tuple)):
        return type(x)([_meta(y, metas) for y in x]) if type(x) in (list, tuple) else x
    if name == "device" or (isinstance(x, torch.device) and x.type == "tiny"):
        return torch.device("meta")
    return x


def device_index(args: Iterable[Any], kwargs: dict[str, Any]) -> int:
    """The index of the tiny device on which a call works; raises when its tensors live on several."""
    found: int | None = None
    for x in _tensors([*args, *kwargs.values()]):
        if x.device.type == "tiny":
            index = x.device.index or 0
            if found is not None and found != index:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two devices, "
                    f"tiny:{found} and tiny:{index}!"
                )
            found = index
    if found is None and isinstance(kwargs.get("device"), torch.device):
        found = kwargs["device"].index
    return found or 0


def _check_devices(args: Iterable[Any]) -> None:
    """Raise torch's error for a tensor elsewhere, other than a 0-dim CPU one."""
    for x in _tensors(args):
        if x.device.type != "tiny" and x.dim():
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, tiny and {x.device}!"
            )


def _tensors(xs: Iterable[Any]) -> Iterable[torch.Tensor]:
    for x in xs:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _tensors(x)


def _values(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return elements(x)
    if type(x) in (list, tuple):
        return type(x)([_values(y) for y in x])
    return x


def choose(row: Row, args: Iterable[Any], outs: Iterable[Spec | None]) -> ValueFunction | None:
    """The row's function for the dtypes in the call; None where it has none."""
    held = [t.dtype for t in _tensors(args)] + [s.dtype for s in outs if s is not None]
    if all(d in COMPUTED for d in held) and not any(isinstance(x, complex) for x in args):
        return row.function
    return row.complex if all(d in COMPUTED or d in PAIRS for d in held) else None


class Overload:
    """An operator with the functional overload that computes its values, by schema."""

    def __init__(self, op: OpOverload, functional: OpOverload, row: Row) -> None:
        self.op, self.functional, self.row = op, functional, row
        arguments = op._schema.arguments
        self.writes = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        self.out_names = [arguments[i].name for i in self.writes]
        self.is_out = bool(self.writes) and arguments[self.writes[0]].is_out
        self.returns = len(op._schema.returns)
        self.name = str(op)
        # Structured operators give a resized out the strides that a new result would have, others contiguous ones.
        self.structured = all(
            torch._C._dispatch_has_kernel_for_dispatch_key(functional.name(), key)
            for key in ("CPU", "CompositeExplicitAutogradNonFunctional")
        )

    def functional_kernel(self, *args: Any, **kwargs: Any) -> Any:
        """Compute, and put each result into a new tensor."""
        index = device_index(args, kwargs)
        structure, outs = specs(self.op, args, kwargs, self.row.keep_floats)
        function = choose(self.row, [*args, *kwargs.values()], outs)
        if function is None:
            return fallback.on_cpu(self.op, args, kwargs)
        results = self._compute(function, outs, index, args, kwargs)
        made = [
            None if s is None or r is None else make(s, r, index) for s, r in zip(outs, results, strict=True)
        ]  # fmt: skip
        return made[0] if structure is None else structure(made)

    def inplace_kernel(self, *args: Any, **kwargs: Any) -> Any:
        """Check what the in-place overload checks, compute, and write through the target's geometry."""
        target = args[0]
        _, checked = specs(self.op, args, kwargs, self.row.keep_floats)
        self._check_overlap([target], [*args[1:], *kwargs.values()])
        index = device_index(args, kwargs)
        _, outs = specs(self.functional, args, kwargs, self.row.keep_floats)
        if outs[0].size != tuple(target.shape):
            raise Refused("the result would be larger than what it is written to")
        function = choose(self.row, [*args, *kwargs.values()], [*checked, *outs])
        if function is None:
            return fallback.on_cpu(self.op, args, kwargs)
        assign(target, _as_pair(target, outs[0], self._compute(function, outs, index, args, kwargs)[0]))
        return target

    def out_kernel(self, *args: Any, **kwargs: Any) -> Any:
        """Let the meta kernel check and size the out tensors, compute, and write through their geometry."""
        targets = [kwargs[n] for n in self.out_names]
        _, sized = specs(self.op, args, kwargs, self.row.keep_floats)
        inputs = {k: v for k, v in kwargs.items() if k not in self.out_names}
        self._check_overlap(targets, [*args, *inputs.values()])
        read = {id(t) for t in _tensors([*args, *inputs.values()])}
        if any(id(t) in read and tuple(t.shape) != s.size for t, s in zip(targets, sized, strict=False)):
            raise Refused("an input would be resized")
        index = device_index(args, kwargs)
        _, outs = specs(self.functional, args, inputs, self.row.keep_floats)
        unlike = any(s is not None and t.dtype != s.dtype for t, s in zip(targets, outs, strict=False))
        if unlike and not self.row.elementwise:
            raise Refused("only the CPU's kernel knows in which of the dtypes it computes")
        function = choose(self.row, [*args, *inputs.values()], outs)
        if function is None:
            return fallback.on_cpu(self.op, args, kwargs)
        results = self._compute(function, outs, index, args, inputs)
        for target, spec, own, result in zip(targets, sized, outs, results, strict=False):
            if tuple(target.shape) != spec.size:
                torch.ops.aten.resize_.default(target, spec.size)
                if self.structured:
                    target.as_strided_(own.size, own.stride)
            assign(target, _as_pair(target, own, result))
        return targets[0] if self.returns == 1 else tuple(targets)

    def _check_overlap(self, targets: Sequence[torch.Tensor], others: Iterable[Any]) -> None:
        if overlap.undecided(targets, _tensors(others), self.row.elementwise):
            raise Refused("the written tensor overlaps itself or an input")

    def _compute(
        self, function: ValueFunction, outs: Sequence[Spec], index: int, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Sequence[Any]:
        if all(s is None or 0 in s.size for s in outs):
            raise Nothing
        context = Context(self.functional, outs, index, args)
        result = function(context, *_values(tuple(args)), **{k: _values(v) for k, v in kwargs.items()})
        STATS.native[self.name] += 1
        return result if isinstance(result, (tuple, list)) else (result,)

    @property
    def kernel(self) -> Callable[..., Any]:
        """The kernel for this overload's kind."""
        kernel = self.functional_kernel if not self.writes else self.out_kernel if self.is_out else self.inplace_kernel
        return or_cpu(self.op, kernel)


def _as_pair(target: torch.Tensor, spec: Spec, result: UOp) -> UOp:
    """A result as it is written: a real one into a complex tensor with an imaginary part of zero."""
    if target.dtype not in PAIRS or spec.dtype in PAIRS:
        return result
    real = cast(result, PAIRS[target.dtype]).expand(spec.size).unsqueeze(-1)
    return real.pad(((0, 0),) * len(spec.size) + ((0, 1),))


def or_cpu(op: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel which gives a call that it declines to the CPU, counted, and a call that is refused too.

    A refused call gets the CPU's own error (the meta kernel's differs in places), and counts as a fallback only if the
    CPU accepts it.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except Declined:
            return fallback.on_cpu(op, args, kwargs)
        except Nothing:
            STATS.native[str(op)] += 1
            return fallback.run_on_cpu(op, args, kwargs)
        except Refused:
            _check_devices([*args, *kwargs.values()])
        result = fallback.run_on_cpu(op, args, kwargs)
        count_fallback(str(op))
        return result

    return call


def _signature(op: OpOverload) -> tuple[str, ...]:
    return tuple(str(a.type) for a in op._schema.arguments if not a.is_out)


def variants(functional: OpOverload) -> Iterable[OpOverload]:
    """The overload itself and its in-place and out= relatives: same argument types, the written ones left aside."""
    yield functional
    namespace, name = torch.ops.aten, functional._schema.name.split("::")[1]
    wanted = _signature(functional)
    packets = [getattr(namespace, name)]
    inplace = getattr(namespace, name + "_", None)
    if inplace is not None:
        packets.append(inplace)
    for packet in packets:
        for overload in packet.overloads():
            op = getattr(packet, overload)
            written = any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments)
            if op is not functional and written and _signature(op) == wanted:
                yield op


def find(name: str) -> Any:
    """The aten overload of a name such as "add.Tensor", None where this torch has none."""
    packet, _, overload = name.partition(".")
    try:
        return getattr(getattr(torch.ops.aten, packet), overload or "default")
    except AttributeError:
        return None


def overloads() -> Iterable[Overload]:
    """Every overload that a registered value function serves."""
    for name, row in ROWS.items():
        functional = find(name)
        if functional is None:
            raise RuntimeError(f"tiny: the table names aten::{name}, which this torch does not have")
        for op in variants(functional):
            yield Overload(op, functional, row)


def decomposed(op: OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel which runs a decomposition and counts it."""
    name = str(op)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        STATS.decomposed[name] += 1
        return function(*args, **kwargs)

    return kernel


def checked_decomposition(op: OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same of one that torch wrote, whose own checks word errors differently: what it refuses the CPU decides."""
    run = decomposed(op, function)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except (FallbackError, storage.Observed):
            raise
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            raise Refused(str(error)) from error

    return or_cpu(op, kernel)


def own_decompositions() -> Iterable[tuple[OpOverload, Callable[..., Any]]]:
    """Kernels for every overload that our own decompositions serve: the functional one, in-place, out=."""
    for name, function in DECOMPOSITIONS.items():
        functional = find(name)
        if functional is None:
            raise RuntimeError(f"tiny: the table names aten::{name}, which this torch does not have")
        for op in variants(functional):
            written = [a for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
            if not written:
                yield op, or_cpu(op, decomposed(op, function))
            elif written[0].is_out:
                yield op, or_cpu(op, decomposed(op, _into_out(op, function, [a.name for a in written])))
            else:
                yield op, or_cpu(op, decomposed(op, _into_self(op, function)))


def _into_self(op: OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    def inplace(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        specs(op, (self, *args), kwargs)
        check_writable(self)
        return self.copy_(function(self, *args, **kwargs))

    return inplace


def _into_out(op: OpOverload, function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    def out(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs[n] for n in names]
        _, sized = specs(op, args, kwargs)
        results = function(*args, **{k: v for k, v in kwargs.items() if k not in names})
        results = results if isinstance(results, tuple) else (results,)
        if any(target.dtype != result.dtype for target, result in zip(targets, results, strict=True)):
            raise Refused("only the CPU's kernel knows in which of the dtypes it computes")
        for target, spec, result in zip(targets, sized, results, strict=True):
            if tuple(target.shape) != spec.size:
                torch.ops.aten.resize_.default(target, spec.size)
            target.copy_(result)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return out


def accepts_context(function: ValueFunction) -> bool:
    """Whether a value function's first parameter is its Context (all registered ones; for tests)."""
    return next(iter(inspect.signature(function).parameters), "") == "ctx"
