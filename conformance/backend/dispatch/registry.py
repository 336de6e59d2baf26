"""The tables of operators: the fields of a row, and the decorators that register value functions.

Defines `OperatorRow`, `ROWS`, the decorators `value`, `complex_value` and `decomposition`, the table form `pointwise`,
and `Context`, the description of a call for its value function.

A value function only computes elements from elements. Metadata, layouts, and in-place and out= forms belong to other
modules (`metadata`, `layout`, `schema_kernels`).

This module must not depend on specific operators: the tables in `ops` define them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import Ops, UOp

from ..lazy import calls, constant_writes
from ..lazy.dtypes import COMPUTED, TORCH, opmath
from ..lazy.loop_rerolling import note_number
from ..runtime import memory, recording
from ..runtime.torch_compat import OpOverload
from .tensors import Spec, cast, constant

ValueFunction = Callable[..., Any]


class Declined(Exception):
    """Raised by a value function, before it computes anything, for a call that would cost too much as a kernel."""


class Rehearsal:
    """The data of a graph that is built over placeholder buffers. The same placeholders serve all graphs of a call's
    geometry, so equal graphs are the same object of tinygrad."""

    def __init__(self, placeholders: dict[tuple[int, int, DType], UOp]) -> None:
        self.arrays: list[np.ndarray] = []
        self.placeholders = placeholders  # by the number of the array in the graph, its size and its dtype

    def stand_in(self, array: np.ndarray, dtype: DType, device: str) -> UOp:
        """Note an array; returns a placeholder of its shape."""
        place = (len(self.arrays), array.size, dtype)
        self.arrays.append(array)
        if place not in self.placeholders:
            self.placeholders[place] = UOp.new_buffer(device, array.size, dtype)
        return self.placeholders[place].reshape(array.shape)


class Context:
    """Description of a call for its value function."""

    __slots__ = ("_common", "args", "device", "index", "op", "outs", "rehearsal", "repeated")

    def __init__(self, op: OpOverload, outs: Sequence[Spec], index: int, args: Sequence[Any]) -> None:
        self.op, self.outs, self.index, self.args = op, outs, index, args
        self.device = memory.device_name(index)
        self._common: DType | None = None
        self.rehearsal: Rehearsal | None = None  # of a graph that is built only for comparison
        self.repeated = False  # whether the call has a known geometry, so that further calls are likely

    @property
    def out(self) -> Spec:
        """The first result."""
        return self.outs[0]

    def common_dtype(self) -> DType:
        """The promoted dtype of the tensor and number arguments, by torch's rules (torch.result_type)."""
        if self._common is not None:
            return self._common
        operands = [a for a in self.args if isinstance(a, (torch.Tensor, bool, int, float))]
        if len(operands) == 1:
            operands *= 2
        promoted = functools.reduce(torch.promote_types, _pairwise_result_types(operands))
        self._common = COMPUTED[promoted]
        return self._common

    def data(self, array: np.ndarray) -> UOp:
        """A host array as a realized value of the array's shape (dtype bool, int or float)."""
        array = np.ascontiguousarray(array)
        dtype = (
            COMPUTED[torch.from_numpy(array).dtype] if array.ndim else COMPUTED[torch.tensor(array, device="cpu").dtype]
        )
        if self.rehearsal is not None:
            return self.rehearsal.stand_in(array, dtype, self.device)
        flat = memory.from_host(array.reshape(-1), dtype, self.device)
        calls.note_data(flat)
        return flat.reshape(array.shape)


def _pairwise_result_types(operands: Sequence[Any]) -> Iterable[torch.dtype]:
    for other in operands[1:]:
        yield torch.result_type(operands[0], other)


@dataclass(frozen=True)
class OperatorRow:
    """One operator's entry in the table."""

    function: ValueFunction
    keep_floats: bool  # whether the value of a float argument can change the metadata
    complex: ValueFunction | None  # the same for complex tensors, which are values with a last dimension of 2
    elementwise: bool  # whether each element depends only on the operands' elements in the same place
    first_is_out: bool = False  # whether torch CPU accepts the first operand as the first out= tensor
    out_as_new: str = ""  # out= tensors with the strides of a new result, as LAPACK by columns: "empty" or "resized"
    deferrable: bool = False  # whether the function may run later: it raises no error and reads no element
    number_dtype: Callable[[Context], DType] | None = None  # the dtype of numbers that go through `operand`
    # For a deferrable function with an index: checks its elements; False if they are not available yet.
    index: Callable[[Context], bool] | None = None
    # For a deferrable function that computes its graph and its data from an index's elements, on the host: the place of
    # the index (a tensor, or a list of tensors) among the arguments. 0 for all other functions.
    reads_index: int = 0
    # Raises torch's error for a call, by its arguments, that torch CPU answers from memory which is not the call's.
    check: Callable[..., None] | None = None


ROWS: dict[str, OperatorRow] = {}


def value(
    *names: str,
    keep_floats: bool = True,
    takes_complex: bool = False,
    elementwise: bool = False,
    first_is_out: bool = False,
    out_as_new: str = "",
    deferrable: bool = False,
    number_dtype: Callable[[Context], DType] | None = None,
    index: Callable[[Context], bool] | None = None,
    reads_index: int = 0,
    check: Callable[..., None] | None = None,
) -> Callable[[ValueFunction], ValueFunction]:
    """Register a value function for operators such as "cumsum.default" (the functional overload).

    The call is `f(ctx, *args, **kwargs)` in the schema's order, with each tensor replaced by a lazy value of its shape
    and dtype. The function returns a value (a tuple for several results) of the result's shape, of any real dtype: the
    caller casts it and applies the layout. An optional result that torch leaves undefined is None.
    """

    def register(function: ValueFunction) -> ValueFunction:
        for name in names:
            if full_name(name) in ROWS:
                raise RuntimeError(f"tiny: the tables give two value functions for aten::{name}")
            of_complex = function if takes_complex else None
            ROWS[full_name(name)] = OperatorRow(
                function, keep_floats, of_complex, elementwise, first_is_out, out_as_new, deferrable, number_dtype,
                index, reads_index, check,
            )  # fmt: skip
        return function

    return register


def full_name(name: str) -> str:
    """The full name of an overload: "cumsum" is "cumsum.default"."""
    return name if "." in name else f"{name}.default"


def complex_value(*names: str) -> Callable[[ValueFunction], ValueFunction]:
    """Register the function for calls with a complex tensor or number, of operators that have a value function.

    A complex tensor arrives as a value of its real dtype with a last dimension of 2. A complex result has the same
    form.
    """

    def register(function: ValueFunction) -> ValueFunction:
        for name in map(full_name, names):
            ROWS[name] = replace(ROWS[name], complex=function)
        return function

    return register


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {}

HELD_BY: dict[str, str] = {}
"""For overloads that only some versions of torch have: those versions, as a PEP 440 specifier."""


def decomposition(*names: str, torch_versions: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register our own decomposition of functional overloads: a function of torch tensors in terms of other operators.

    Use it if torch has none, or if torch's is a reference that recurses. In-place and out= forms follow.
    `torch_versions`, such as "<2.14", are the versions that have the overloads; the default is all supported versions.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in map(full_name, names):
            DECOMPOSITIONS[name] = function
            if torch_versions:
                HELD_BY[name] = torch_versions
        return function

    return register


PROMOTE: dict[str, Callable[[Context], DType]] = {
    "result": lambda ctx: ctx.out.computed,  # compute in the result's dtype
    "common": lambda ctx: ctx.common_dtype(),  # comparisons: in the promoted dtype of the operands
}

NUMBER_SECOND = frozenset({"mul.Tensor", "div.Tensor", "div.Tensor_mode", "floor_divide"})
"""Operators with a second operand that torch CPU's 16-bit kernels read as a number if it is a single element.

They do not round it to their dtype (`original_scalar_value` in ATen's BinaryOpsKernel.cpp).
"""


ROUNDS_NUMBERS = frozenset({
    *("add.Tensor", "sub.Tensor", "rsub.Tensor", "rsub.Scalar", "hardshrink", "remainder.Tensor", "fmod.Tensor"),
    *("remainder.Scalar_Tensor", "pow.Tensor_Tensor", "pow.Scalar", "xlogy.Tensor", "xlogy.Scalar_Self"),
    *("xlogy.Scalar_Other", "special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar"),
    *(f"{name}.{kind}" for name in ("eq", "ne", "lt", "gt", "le", "ge") for kind in ("Tensor", "Scalar")),
})  # fmt: skip
"""Operators whose Python numbers torch CPU rounds to the dtype of the operands: in float16, 0.1 equals the rounded 0.1.
The other operators compute with the number itself."""


def pointwise(table: dict[str, Callable[..., UOp]], promote: str = "result") -> None:
    """Register elementwise functions: tensors and numbers arrive as values in one dtype, already promoted."""
    for name, function in table.items():
        register = value(
            name, keep_floats=False, elementwise=True, deferrable=True,
            number_dtype=lambda ctx: opmath(PROMOTE[promote](ctx)),
        )  # fmt: skip
        number_at = 1 if name in NUMBER_SECOND else None
        register(
            _pointwise(function, PROMOTE[promote], number_at, rounded_operand if name in ROUNDS_NUMBERS else operand)
        )


def rounded_operand(ctx: Context, place: int | str, argument: Any, dtype: DType) -> Any:
    """The same as `operand`, with a number rounded to the promoted dtype of the operands."""
    ready, promoted = operand(ctx, place, argument, dtype), ctx.common_dtype()
    if not isinstance(argument, (int, float)) or isinstance(argument, bool) or opmath(promoted) is promoted:
        return ready
    if ready.op is Ops.CONST:
        return constant(round_number(argument, promoted), dtype)
    return cast(cast(ready, promoted), dtype)


def round_number(number: float, dtype: DType) -> float:
    """A number rounded to a float dtype; beyond its range, an infinity."""
    return torch.tensor(number, dtype=TORCH[dtype], device="cpu").item()


def _pointwise(
    function: Callable[..., UOp], dtype_of: Callable[[Context], DType], number_at: int | None,
    operand: Callable[[Context, int | str, Any, DType], Any],
) -> ValueFunction:  # fmt: skip
    def compute(ctx: Context, *args: Any, **kwargs: Any) -> UOp:
        promoted = dtype_of(ctx)
        dtype = opmath(promoted)
        if dtype is not promoted:
            args = tuple(a if i == number_at and _is_number(a) else _rounded(a, promoted) for i, a in enumerate(args))
            kwargs = {k: _rounded(a, promoted) for k, a in kwargs.items()}
        ready = [operand(ctx, i, a, dtype) for i, a in enumerate(args)]
        named = {k: operand(ctx, k, a, dtype) for k, a in kwargs.items()}
        return function(*ready, **named)

    return compute


def _is_number(argument: Any) -> bool:
    return isinstance(argument, UOp) and all(size == 1 for size in argument.shape)


def _rounded(argument: Any, narrow: DType) -> Any:
    """An operand rounded as by torch's promotion to 16 bits: in float16, 2049 becomes 2048, and 70000 becomes inf."""
    if not isinstance(argument, UOp) or argument.dtype is narrow or argument.dtype.itemsize == 1:
        return argument
    return cast(cast(argument, dtypes.float32), narrow)


_SEEN_NUMBERS: dict[tuple[Any, ...], set[float]] = {}
_CHANGING = 3  # number of distinct values at which a number counts as changing


def reset_state() -> None:
    """Treat every float argument and written number as a constant until it changes again, as in a new
    process.
    """
    _SEEN_NUMBERS.clear()
    constant_writes.reset_state()


def is_data(op: OpOverload, place: int | str, dtype: DType, number: float) -> bool:
    """Whether `operand` treats a float argument of a call as data."""
    seen = _SEEN_NUMBERS.get((op, place, dtype), ())
    return len(seen) >= _CHANGING and number not in seen and dtypes.is_float(dtype)


def operand(ctx: Context, place: int | str, argument: Any, dtype: DType) -> Any:
    """A tensor or number argument as a value in `dtype`; anything else unchanged.

    A float that has changed between calls becomes data instead of a constant, because each new constant needs a new
    compiled kernel. In a recorded graph, numbers stay constants.
    """
    if isinstance(argument, UOp):
        return cast(argument, dtype)
    if isinstance(argument, float) and dtypes.is_float(dtype) and not recording.is_open():
        seen = _SEEN_NUMBERS.setdefault((ctx.op, place, dtype), set())
        if len(seen) < _CHANGING:
            seen.add(argument)
            return constant(argument, dtype)
        if argument in seen:
            return constant(argument, dtype)
        number = np.array([argument], dtype=np.float64 if dtype is dtypes.float64 else np.float32)
        value = ctx.data(number).reshape(())
        return value if ctx.rehearsal is not None else note_number(value, number.item())
    if isinstance(argument, (bool, int, float)):
        return constant(argument, dtype)
    return argument
