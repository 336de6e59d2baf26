"""Functional, in-place and out= kernels of an operator, from one value function and the operator's schema.

Defines `FunctionalOverload` (one overload that a row serves), `overloads`, `own_decompositions`, and `or_cpu`, which
sends a call that a kernel declines or refuses to the CPU.

The key insight: an operator's metadata and its values are separate. `metadata` computes dtype, shape, strides and
errors, and a row's value function computes the values. The code that stores the elements is the same for every
operator.

This module must not depend on specific operators: the tables in `ops` define them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import torch
from tinygrad.uop.ops import UOp

from ..lazy.dtypes import COMPUTED, PAIRS
from ..runtime import recording, torch_compat
from ..runtime.garbage import FewerCollections
from ..runtime.stats import STATS, FallbackError, count_fallback
from ..runtime.torch_compat import OpOverload
from . import fallback, overlap
from .deferral import NOTED, Deferred, Prepared
from .metadata import MetaRejected, check_devices, device_index, is_tried, specs, tensors_in
from .registry import DECOMPOSITIONS, HELD_BY, ROWS, Context, Declined, OperatorRow, ValueFunction
from .tensors import Spec, assign, cast, check_writable, check_written, elements, make


class EmptyResult(Exception):
    """A call whose results have no elements: only the CPU's checks of its arguments are needed."""


def _values(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return elements(x)
    if type(x) in (list, tuple):
        return type(x)([_values(y) for y in x])
    return x


def choose(row: OperatorRow, args: Iterable[Any], outs: Iterable[Spec | None]) -> ValueFunction | None:
    """The row's function for the dtypes in the call; None if it has none."""
    held = [t.dtype for t in tensors_in(args)] + [s.dtype for s in outs if s is not None]
    if all(d in COMPUTED for d in held) and not any(isinstance(x, complex) for x in args):
        return row.function
    return row.complex if all(d in COMPUTED or d in PAIRS for d in held) else None


class FunctionalOverload:
    """An operator with the functional overload that computes its values, by schema."""

    def __init__(self, op: OpOverload, functional: OpOverload, row: OperatorRow) -> None:
        self.op, self.functional, self.row = op, functional, row
        arguments = op._schema.arguments
        self.writes = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        self.out_names = [arguments[i].name for i in self.writes]
        self.is_out = bool(self.writes) and arguments[self.writes[0]].is_out
        self.returns = len(op._schema.returns)
        self.name = str(op)
        # Two groups of operators give a resized out tensor the strides of a new result: structured operators, and
        # elementwise ones whose out= form is not generated. Most others give it contiguous strides.
        structured = all(
            torch_compat.has_kernel(functional.name(), key) for key in ("CPU", "CompositeExplicitAutogradNonFunctional")
        )
        iterates = row.elementwise and torch.Tag.generated not in op.tags
        self.out_as_new = "resized" if structured or iterates else row.out_as_new

    def functional_kernel(self, *args: Any, **kwargs: Any) -> Any:
        """Compute, and put each result into a new tensor."""
        index = device_index(args, kwargs)
        structure, outs = specs(self.op, args, kwargs, self.row.keep_floats)
        function = choose(self.row, [*args, *kwargs.values()], outs)
        if function is None:
            return fallback.on_cpu(self.op, args, kwargs)
        results = self._compute(function, outs, index, args, kwargs)
        tensors = [
            None if s is None or r is None else make(s, r, index) for s, r in zip(outs, results, strict=True)
        ]  # fmt: skip
        self._note(function, outs, index, args, kwargs, [t is not None for t in tensors], structure)
        return tensors[0] if structure is None else structure(tensors)

    def inplace_kernel(self, *args: Any, **kwargs: Any) -> Any:
        """Run the checks of the in-place overload, compute, and write through the target's geometry."""
        target = args[0]
        check_written([target])
        _, checked = specs(self.op, args, kwargs, self.row.keep_floats)
        self._check_overlap([target], [*args[1:], *kwargs.values()])
        index = device_index(args, kwargs)
        _, outs = specs(self.functional, args, kwargs, self.row.keep_floats, warns=False)
        if outs[0].size != tuple(target.shape):
            raise MetaRejected("the result would be larger than what it is written to")
        function = choose(self.row, [*args, *kwargs.values()], [*checked, *outs])
        if function is None:
            return fallback.on_cpu(self.op, args, kwargs)
        assign(target, _as_pair(target, outs[0], self._compute(function, outs, index, args, kwargs)[0]))
        self._note(function, outs, index, args, kwargs, [True], None, [target])
        return target

    def out_kernel(self, *args: Any, **kwargs: Any) -> Any:
        """Check and size the out tensors with the meta kernel, compute, and write through their geometry."""
        targets = [kwargs[n] for n in self.out_names]
        if not all(isinstance(t, torch.Tensor) for t in targets):
            raise MetaRejected("a number is not written")
        check_written(targets)
        _, sized = specs(self.op, args, kwargs, self.row.keep_floats)
        inputs = {k: v for k, v in kwargs.items() if k not in self.out_names}
        shared = self.row.first_is_out and overlap.same(targets[0], args[0])
        self._check_overlap(targets, [*args[shared:], *inputs.values()])
        read = {id(t) for t in tensors_in([*args, *inputs.values()])}
        if any(id(t) in read and tuple(t.shape) != s.size for t, s in zip(targets, sized, strict=False)):
            raise MetaRejected("an input would be resized")
        index = device_index(args, kwargs)
        _, outs = specs(self.functional, args, inputs, self.row.keep_floats, warns=False)
        unlike = any(s is not None and t.dtype != s.dtype for t, s in zip(targets, outs, strict=False))
        if unlike and not self.row.elementwise:
            raise MetaRejected("only the CPU's kernel knows in which of the dtypes it computes")
        function = choose(self.row, [*args, *inputs.values()], outs)
        if function is None:
            return fallback.on_cpu(self.op, args, kwargs)
        results = self._compute(function, outs, index, args, inputs)
        if not unlike and all(tuple(t.shape) == s.size for t, s in zip(targets, sized, strict=False)):
            self._note(function, outs, index, args, inputs, [True] * len(targets), None, targets)
        for target, spec, own, result in zip(targets, sized, outs, results, strict=False):
            if tuple(target.shape) != spec.size:
                as_new = self.out_as_new == "resized" or (self.out_as_new == "empty" and not target.numel())
                torch.ops.aten.resize_.default(target, spec.size)
                if as_new:
                    target.as_strided_(own.size, own.stride)
            if unlike and own.dtype in COMPUTED:  # the call computes in its own result dtype
                result = cast(result, own.computed)
            assign(target, _as_pair(target, own, result))
        return targets[0] if self.returns == 1 else tuple(targets)

    def _note(
        self, function: ValueFunction, outs: Sequence[Spec], index: int, args: Sequence[Any], kwargs: dict[str, Any],
        present: Sequence[bool], structure: Any, targets: Sequence[torch.Tensor] = (),
    ) -> None:  # fmt: skip
        """Record the description of this call, if an equal call may be queued."""
        tensors = [*tensors_in([*args, *kwargs.values()]), *targets]
        if NOTED.wanted != self.name:
            return  # no `Deferred` waits for it, and the record would keep the arguments alive
        plain = self.row.deferrable and all(t.dtype in COMPUTED and t.device.type == "tiny" for t in tensors)
        if not plain or any(s is not None and s.dtype not in COMPUTED for s in outs):
            return
        context = Context(self.functional, outs, index, args)
        NOTED.prepared = lambda: Prepared(
            self.name, self.row, function, context, args, kwargs, present, structure, targets
        )  # fmt: skip

    def _check_overlap(self, targets: Sequence[torch.Tensor], others: Iterable[Any]) -> None:
        if overlap.undecided(targets, tensors_in(others), self.row.elementwise):
            raise MetaRejected("the written tensor overlaps itself or an input")

    def _compute(
        self, function: ValueFunction, outs: Sequence[Spec], index: int, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Sequence[Any]:
        if all(s is None or 0 in s.size for s in outs):
            raise EmptyResult
        context = Context(self.functional, outs, index, args)
        result = function(context, *_values(tuple(args)), **{k: _values(v) for k, v in kwargs.items()})
        STATS.native[self.name] += 1
        return result if isinstance(result, (tuple, list)) else (result,)

    @property
    def kernel(self) -> Callable[..., Any]:
        """The kernel for this overload's kind."""
        kernel = self.functional_kernel if not self.writes else self.out_kernel if self.is_out else self.inplace_kernel
        served = _after(self.row.check, or_cpu(self.op, kernel))
        if not self.row.deferrable:
            return served
        return Deferred(served, self.name, self.row, self.out_names if self.is_out else self.writes).call


def _after(check: Callable[..., None] | None, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that first checks its positional arguments."""
    if check is None:
        return kernel

    def call(*args: Any, **kwargs: Any) -> Any:
        check(*args)
        return kernel(*args, **kwargs)

    return call


def _as_pair(target: torch.Tensor, spec: Spec, result: UOp) -> UOp:
    """The result in the form that is written: a real one for a complex tensor gets an imaginary part of zero."""
    if target.dtype not in PAIRS or spec.dtype in PAIRS:
        return result
    real = cast(result, PAIRS[target.dtype]).expand(spec.size).unsqueeze(-1)
    return real.pad(((0, 0),) * len(spec.size) + ((0, 1),))


# An AttributeError is always a fault of a value function, and reaches the caller.
_OF_A_GRAPH = AssertionError, IndexError, KeyError, TypeError, ValueError


def _is_of_a_graph(error: Exception) -> bool:
    """Whether tinygrad or a value function raised the error, and not an operator of torch.

    A call that is too large to be tried on torch CPU may fail when its graph is built; torch CPU then decides.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not trace.tb_frame.f_globals["__name__"].startswith("torch.")


def or_cpu(op: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that sends calls which are declined or refused to the CPU, and counts them.

    A refused call gets the CPU's error (the meta kernel's error differs in places). It counts as a fallback only if the
    CPU accepts it.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with FewerCollections():
                return kernel(*args, **kwargs)
        except Declined:
            return fallback.on_cpu(op, args, kwargs)
        except EmptyResult:
            STATS.native[str(op)] += 1
            return fallback.run_on_cpu(op, args, kwargs)
        except MetaRejected:
            check_devices([*args, *kwargs.values()])
        except _OF_A_GRAPH as error:
            if not _is_of_a_graph(error):
                raise
        result = fallback.run_on_cpu(op, args, kwargs)
        count_fallback(str(op))
        return result

    return call


def _signature(op: OpOverload) -> tuple[str, ...]:
    return tuple(str(a.type) for a in op._schema.arguments if not a.is_out)


def variants(functional: OpOverload) -> Iterable[OpOverload]:
    """The overload and its in-place and out= forms: equal argument types, except for the written arguments."""
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
    """The aten overload of a name such as "add.Tensor"; None if this torch has none."""
    packet, _, overload = name.partition(".")
    try:
        return getattr(getattr(torch.ops.aten, packet), overload or "default")
    except AttributeError:
        return None


def listed(name: str) -> Any:
    """The aten overload of an entry of the op tables; None if the entry does not apply to the running torch.

    Raises RuntimeError if the entry applies and torch has no such overload. For a torch newer than the tables, it warns
    instead.
    """
    if not torch_compat.holds(HELD_BY.get(name, "")):
        return None
    op = find(name)
    if op is None:
        said = f"tiny: the table names aten::{name}, which torch {torch_compat.TORCH} does not have"
        if not torch_compat.is_untested():
            raise RuntimeError(said)
        warnings.warn(said, stacklevel=2)
    return op


def overloads() -> Iterable[FunctionalOverload]:
    """Every overload that a registered value function serves."""
    for name, row in ROWS.items():
        functional = listed(name)
        for op in () if functional is None else variants(functional):
            yield FunctionalOverload(op, functional, row)


def decomposed(op: OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel which runs a decomposition and counts it."""
    name = str(op)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        STATS.decomposed[name] += 1
        return function(*args, **kwargs)

    return kernel


def _checked(op: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that raises MetaRejected for a call that the meta kernel or torch CPU refuses."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_tried(op, args):
            return kernel(*args, **kwargs)
        _, outs = specs(op, args, kwargs, floats=False)
        result = kernel(*args, **kwargs)
        if isinstance(result, torch.Tensor) and not op._schema.is_mutable and outs[0].dtype != result.dtype:
            return result.to(outs[0].dtype)  # the meta kernel and the decomposition promote, and torch CPU does not
        return result

    return call


def checked_decomposition(op: OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel which runs a decomposition of torch's. A call that it refuses goes to the CPU, whose errors differ."""
    run = _checked(op, decomposed(op, function))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except (FallbackError, recording.NeedsValue):
            raise
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            raise MetaRejected(str(error)) from error

    return or_cpu(op, kernel)


def into_out(op: OpOverload, native: Container[Any], table: Mapping[Any, Callable[..., Any]]
             ) -> Callable[..., Any] | None:  # fmt: skip
    """A kernel for an out= overload, from its functional form, which is `native` or in torch's `table`; else None.

    torch's own decompositions of such overloads are not used: those of losses and paddings write a 16-bit result into a
    copy of the out tensor.
    """
    names = [a.name for a in op._schema.arguments if a.is_out]
    packet = op.overloadpacket
    for functional in (getattr(packet, name) for name in packet.overloads() if names):
        function = functional if functional in native else table.get(functional)
        if function is not None and not functional._schema.is_mutable and _signature(functional) == _signature(op):
            return or_cpu(op, decomposed(op, _into_out(op, function, names)))
    return None


def own_decompositions() -> Iterable[tuple[OpOverload, Callable[..., Any]]]:
    """Kernels for every overload that our own decompositions serve: functional, in-place, out=."""
    for name, function in DECOMPOSITIONS.items():
        functional = listed(name)
        for op in () if functional is None else variants(functional):
            written = [a for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
            if not written:
                yield op, or_cpu(op, _checked(op, decomposed(op, function)))
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
            raise MetaRejected("only the CPU's kernel knows in which of the dtypes it computes")
        for target, spec, result in zip(targets, sized, results, strict=True):
            if tuple(target.shape) != spec.size:
                torch.ops.aten.resize_.default(target, spec.size)
            target.copy_(result)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return out
