"""Gives torch a kernel for every operator: native, else decomposed, else the counted CPU fallback.

Defines `install`, called once. The tables in `ops` define the native operators. torch's own decomposition table defines
the decomposed ones, except references: those are written in prims, which call the operator itself again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .. import ops
from ..dispatch import fallback, schema_kernels, sparse, transfer, views
from ..runtime import torch_compat
from ..runtime.lock import locked

VIEW_KEYS: Any = torch_compat.DispatchKeySet(torch_compat.parse_key("ADInplaceOrView")).add(
    torch_compat.parse_key("AutogradPrivateUse1")
)
"""The keys whose kernels record that a result is a view."""


def max_pool1d(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """torch's composite kernel, whose result is a view of a tensor that the caller never sees. torch CPU has a kernel
    without gradients, and its result is no view."""
    recorded = torch_compat.forward_ad._current_level >= 0 or (self.requires_grad and torch.is_grad_enabled())
    with contextlib.nullcontext() if recorded else torch_compat.exclude_keys(VIEW_KEYS):
        composite = torch.ops.aten.max_pool1d.default._op_dk
        result: torch.Tensor = composite(torch_compat.DispatchKey.CompositeImplicitAutograd, self, *args, **kwargs)
    return result


# Kernels above the device's own. torch differentiates `native_dropout_backward` only once on devices with a separate
# dropout, and the operators in its place any number of times.
DIFFERENTIATED: dict[str, Callable[..., Any]] = {
    "native_dropout_backward": lambda grad_output, mask, scale: torch.mul(grad_output, mask) * scale,
    "max_pool1d": max_pool1d,
}
# torch's kernel for all devices reads host memory, and on the CPU writes to its argument, against its schema.
FUNCTIONAL: dict[str, Callable[..., Any]] = {
    "_saturate_weight_to_fp16": lambda weight: weight.clamp(-torch.finfo(torch.half).max, torch.finfo(torch.half).max)
}
# Transforms that torch's composite kernels refuse in float16 on all devices except CUDA's.
TRANSFORMS = tuple(
    f"fft_{direction}{kind}fft{dims}" for direction in ("", "i") for kind in ("", "r", "h") for dims in ("", "2", "n")
)
COMPOSITE = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
_libraries: list[torch.library.Library] = []  # kept, because the kernels of a collected library are removed


def install() -> None:
    """Register all kernels for the PrivateUse1 dispatch key."""
    aten = torch.library.Library("aten", "IMPL")
    everything = torch.library.Library("_", "IMPL")
    _libraries.extend((aten, everything))
    kernels: dict[Any, Callable[..., Any]] = {op: views.borrowed(op) for op in views.BORROWED}
    kernels |= {op: kernel for name, kernel in views.KERNELS.items() if (op := schema_kernels.listed(name)) is not None}
    kernels[torch.ops.aten.copy_.default] = transfer.copy_
    kernels[torch.ops.aten._local_scalar_dense.default] = transfer.item
    kernels[torch.ops.aten._to_copy.default] = transfer.to_copy
    for name, kernel in ops.KERNELS.items():
        if (op := schema_kernels.listed(name)) is not None:
            kernels[op] = schema_kernels.or_cpu(op, kernel)
    for overload in schema_kernels.overloads():
        kernels.setdefault(overload.op, overload.kernel)
    for op, kernel in schema_kernels.own_decompositions():
        kernels.setdefault(op, kernel)
    table = torch_compat.decomposition_table
    for listed, function in table.items():
        if isinstance(listed, torch_compat.OpOverload) and listed not in kernels and decomposes(listed, function):
            into_out = schema_kernels.into_out(listed, kernels, table)
            kernels[listed] = into_out or schema_kernels.checked_decomposition(listed, function)
    for op, kernel in kernels.items():
        if loses_gradients(op):
            raise RuntimeError(
                f"tiny: a kernel for {op} would cut autograd, which torch derives from its composite form"
            )
        kernel = kernel if op in views.BORROWED else locked(kernel)
        aten.impl(op, _noted(kernel) if op is torch.ops.aten.convolution.default else kernel, "PrivateUse1")
    for name, function in DIFFERENTIATED.items():
        aten.impl(name, function, "AutogradPrivateUse1")
    for name in TRANSFORMS:
        aten.impl(name, functools.partial(_transformed, schema_kernels.find(name)), "AutogradPrivateUse1")
    everything.fallback(_boxed, "PrivateUse1")
    _keep_off_host_memory(aten, everything)
    for key, (source, overloads) in sparse.BORROWED.items():
        for op in overloads:
            aten.impl(op, sparse.borrowed(op, source), key)
        for op in _computed_on(source.name, overloads):
            aten.impl(op, functools.partial(_boxed, op), key)
        everything.fallback(_boxed, key)


def _transformed(op: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A Fourier transform; 16-bit input is computed in 32 bits and rounded once."""
    if self.dtype not in (torch.float16, torch.complex32):
        result: torch.Tensor = op._op_dk(torch_compat.DispatchKey.CompositeImplicitAutograd, self, *args, **kwargs)
        return result
    result = op(self.to(torch.complex64 if self.dtype.is_complex else torch.float32), *args, **kwargs)
    return result.to(torch.complex32 if result.dtype.is_complex else torch.float16)


def _noted(convolution: Callable[..., Any]) -> Callable[..., Any]:
    """A convolution that torch.jit.trace records; the tracer records `_convolution`, which composite kernels call."""

    def kernel(*args: Any) -> Any:
        if torch_compat.tracing_state() is None:
            return convolution(*args)
        return torch.ops.aten._convolution.default(*args, False, False, True, True)

    return kernel


def _keep_off_host_memory(aten: torch.library.Library, everything: torch.library.Library) -> None:
    """Run on copies, or refuse, operators that would read a data pointer of tiny as host memory and crash the
    process.
    """
    for names, serve in (
        (fallback.READS_HOST_MEMORY, _boxed),
        (fallback.PACKS_HOST_MEMORY, fallback.refuse_packing),
        (fallback.NESTED_CONSTRUCTORS, lambda op, *args, **kwargs: fallback.refuse_layout("NestedTensor")),
    ):
        for name in names:
            if (op := schema_kernels.listed(name)) is not None:
                aten.impl(op, functools.partial(serve, op), "PrivateUse1")
    for name, function in FUNCTIONAL.items():
        aten.impl(name, function, "PrivateUse1")
    aten.impl("_nested_tensor_from_tensor_list", fallback.nested_tensor_from_list, "CPU")
    for layout in fallback.MISSING_LAYOUTS:
        everything.fallback(functools.partial(fallback.refuse_layout, layout), f"{layout}PrivateUse1")


def _computed_on(key: str, borrowed: Sequence[Any]) -> Iterator[Any]:
    """The aten overloads that torch computes under a key of sparse CPU tensors.

    A fallback alone would have lower priority than torch's composite kernels, whose results have other layouts.
    """
    has = torch_compat.has_kernel
    for name in torch_compat.all_op_names():
        if name.startswith("aten::") and has(name, key) and not has(name, "CompositeImplicitAutograd"):
            op = schema_kernels.find(name.removeprefix("aten::"))
            if op is not None and op not in borrowed:
                yield op


def loses_gradients(op: Any) -> bool:
    """Whether a device kernel would hide the composite form, which is torch's only way to differentiate the
    operator.
    """
    has = torch_compat.has_kernel
    return has(op.name(), "CompositeImplicitAutograd") and not has(op.name(), "Autograd")


def decomposes(op: Any, function: Callable[..., Any]) -> bool:
    """Whether to use torch's decomposition of an operator; not if torch has a kernel for every device already."""
    if any(torch_compat.has_kernel(op.name(), key) for key in COMPOSITE):
        return False
    if op.namespace != "aten" or op._schema.name.split("::")[1] in ops.NOT_DECOMPOSED:
        return False
    inner = getattr(function, "__wrapped__", function)
    return inner.__module__ == "torch._decomp.decompositions" or op._schema.name.split("::")[1] in ops.REFERENCES


@locked
def _boxed(op: Any, *args: Any, **kwargs: Any) -> Any:
    return fallback.on_cpu(op, args, kwargs)
