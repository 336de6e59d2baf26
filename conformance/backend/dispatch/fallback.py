"""The counted CPU fallback: any operator on copies of its arguments' storages, with all changes copied back.

A copy of the whole storage, viewed again on the CPU, keeps layout *and* aliasing, so the CPU kernel gets the original
call. Results that alias an argument become views of the tiny storage.

This module must not depend on the set of operators that have kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..lazy import access, layout
from ..lazy.storage import lazy_storage
from ..runtime import random_state, torch_compat
from ..runtime.stats import count_fallback
from . import sparse, transfer, widening
from .tensors import SET, Spec, check_written, is_tiny, new_tensor, tensor_on


class _Call:
    """One operator call moved to the CPU."""

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any], to_read: bool = False) -> None:
        self.moved: list[tuple[torch.Tensor, torch.Tensor]] = []  # (tiny, CPU)
        self.hosts: dict[int, torch.Tensor] = {}  # by storage
        self.index = 0
        self.sparse: list[tuple[torch.Tensor, torch.Tensor]] = []
        inputs = [x for x in _tensors([*args, *kwargs.values()]) if is_tiny(x)]
        # A tensor passed twice is one tensor on the CPU too; a second copy would overwrite the first in `write_back`.
        tiny = list({id(x): x for x in inputs}.values())
        apart = [sparse.parts(t) if sparse.is_sparse(t) else [t] for t in tiny]
        hosts = iter(transfer.to_host([piece for pieces in apart for piece in pieces], to_read))
        for t, pieces in zip(tiny, apart, strict=True):
            here = [next(hosts) for _ in pieces]
            self.index = t.device.index or 0
            if sparse.is_sparse(t):
                self.sparse.append((t, sparse.assembled(t, here)))
            else:
                self.moved.append((t, here[0]))
                self.hosts[id(lazy_storage(t))] = here[0]

    def to_cpu(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return next((host for t, host in [*self.moved, *self.sparse] if t is x), x)
        if type(x) in (list, tuple):
            return type(x)([self.to_cpu(y) for y in x])
        if isinstance(x, torch.device) and x.type == "tiny":
            self.index = x.index or 0
            return torch.device("cpu")
        return x

    def write_back(self, written: Sequence[torch.Tensor]) -> None:
        """Copy changed storages, and changed sizes, of the written arguments back."""
        for t, host in self.moved:
            if not any(w is t for w in written):
                continue
            lazy = lazy_storage(t)
            content = host.untyped_storage()
            if content.nbytes() != lazy.nbytes:
                access.resize(t.untyped_storage(), content.nbytes())
            transfer.load(lazy, torch.empty(0, dtype=torch.uint8, device="cpu").set_(content), t.dtype)  # type: ignore[call-overload]
            lazy.mark_dirty()
            if (t.size(), t.stride(), t.storage_offset()) != (host.size(), host.stride(), host.storage_offset()):
                SET(t, t.untyped_storage(), host.storage_offset(), host.size(), host.stride())
            if t.is_conj() != host.is_conj():  # linalg.lu_solve from the right leaves its out= conjugated
                torch_compat.set_conj(t, host.is_conj())
        for t, host in self.sparse:
            if any(w is t for w in written):
                sparse.refill(t, [upload(piece, self.index) for piece in sparse.parts(host)], host)

    def to_tiny(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if x.is_mkldnn:
                raise NotImplementedError(
                    "tiny: there are no tensors in the layout of oneDNN, which is the CPU's alone"
                )
            for t, host in [*self.moved, *self.sparse]:
                if host is x:
                    return t
            if x.is_nested:
                refuse_layout("NestedTensor")
            if sparse.is_sparse(x):
                return sparse.assembled(x, [upload(piece, self.index) for piece in sparse.parts(x)])
            for t, host in self.moved:
                if torch_compat.storage_id(host.untyped_storage()) == torch_compat.storage_id(x.untyped_storage()):
                    return tensor_on(t.untyped_storage(), x.dtype, x.size(), x.stride(), int(x.storage_offset()))
            return upload(x, self.index)
        if isinstance(x, (list, tuple)):
            items = [self.to_tiny(y) for y in x]
            return type(x)(items) if type(x) in (list, tuple) else tuple(items)
        return x


def upload(x: torch.Tensor, index: int) -> torch.Tensor:
    """A new tiny tensor with the elements, dtype, size and strides of a CPU tensor, at offset 0 of a new storage."""
    if x.is_quantized:
        refuse_layout("Quantized")
    if x.is_conj():
        return upload(x.detach().conj(), index).conj()
    x = x.detach().resolve_neg()
    result = new_tensor(Spec(x.dtype, tuple(x.size()), tuple(x.stride())), index)
    extent = layout.plan(tuple(x.size()), tuple(x.stride())).extent
    if extent:
        flat = x.as_strided((extent,), (1,), x.storage_offset())
        transfer.load(lazy_storage(result), flat.contiguous().view(torch.uint8), x.dtype)
    return result


def _tensors(xs: Any) -> list[torch.Tensor]:
    result: list[torch.Tensor] = []
    for x in xs:
        if isinstance(x, torch.Tensor):
            result.append(x)
        elif isinstance(x, (list, tuple)):
            result.extend(_tensors(x))
    return result


READS_HOST_MEMORY = (
    "_grid_sampler_2d_cpu_fallback", "_grid_sampler_2d_cpu_fallback.out", "_grid_sampler_2d_cpu_fallback_backward",
    "_rowwise_prune", "_sobol_engine_draw", "_sobol_engine_ff_", "_sobol_engine_initialize_state_",
    "_sobol_engine_scramble_", "choose_qparams_optimized", "kaiser_window", "kaiser_window.periodic",
    "kaiser_window.beta", "kaiser_window.out", "kaiser_window.periodic_out", "kaiser_window.beta_out",
)  # fmt: skip
"""Operators for which torch has one kernel for all devices, which treats every data pointer as host memory.

The last entries call a kernel per device, which only torch's own devices can have.
"""

PACKS_HOST_MEMORY = (
    "fbgemm_linear_quantize_weight", "fbgemm_pack_gemm_matrix_fp16", "fbgemm_pack_quantized_matrix",
    "fbgemm_pack_quantized_matrix.KN",
)  # fmt: skip
"""Operators of the same kind, with results that only CPU kernels can read."""

MISSING_LAYOUTS = {
    "Quantized": "quantized tensors: quantize on the CPU, or keep scales and integers in tensors of their own",
    "NestedTensor": "nested tensors in the strided layout: `layout=torch.jagged` has them, and padding does",
}
"""Layouts that the device does not support, by the first part of a dispatch key, with an alternative for each."""

NESTED_CONSTRUCTORS = ("_nested_tensor_from_tensor_list", "_nested_view_from_buffer", "_nested_from_padded")


def refuse_layout(layout: str, /, *args: Any, **kwargs: Any) -> Any:
    """Raise NotImplementedError for a layout that the device does not support."""
    raise NotImplementedError(f"tiny: there are no {MISSING_LAYOUTS[layout]}")


def nested_tensor_from_list(
    list: Sequence[torch.Tensor], dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    """aten::_nested_tensor_from_tensor_list of CPU tensors, which may request another device."""
    if device is not None and device.type == "tiny":
        refuse_layout("NestedTensor")
    op = torch.ops.aten._nested_tensor_from_tensor_list.default
    result: torch.Tensor = op._op_dk(
        torch_compat.DispatchKey.CompositeExplicitAutograd, list, dtype, layout, device, pin_memory
    )
    return result


def refuse_packing(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Raise NotImplementedError for an operator whose result only the CPU can use."""
    raise NotImplementedError(f"tiny: {op} packs weights for kernels of the CPU: move its argument there with .cpu()")


def callable_with_numbers(op: Any, args: Sequence[Any]) -> Any:
    """The overload itself, or its packet if a tensor argument is a number.

    torch passes a wrapped number (the 2 in `x % 2`) to Python kernels as the number, and most overloads do not accept
    that. The packet finds the scalar overload, which promotes the same way.
    """
    schema = op._schema.arguments
    number = any(
        isinstance(x, (bool, int, float, complex)) and "Tensor" in str(a.type)
        for a, x in zip(schema, args, strict=False)
    )
    return op.overloadpacket if number else op


# The CPU kernel omits results that only the gradient needs, unless an argument requires one; copies do not.
_ASKS_FOR_GRADIENTS = frozenset({torch.ops.aten._sparse_mm_reduce_impl.default})


_ATEN = torch.ops.aten
ONLY_READ = frozenset({
    _ATEN.sort.default, _ATEN.sort.stable, _ATEN.topk.default, _ATEN.kthvalue.default, _ATEN.median.default,
    _ATEN.median.dim, _ATEN._unique2.default, _ATEN._unique.default, _ATEN.unique_consecutive.default,
    _ATEN.unique_dim.default, _ATEN.nonzero.default, _ATEN.bincount.default,
})  # fmt: skip
"""Operators that read large tensors on the CPU by design. They get the device's own memory in place of a copy.

Not every operator may: `native_batch_norm` writes its running statistics, and its schema does not say so.
"""


def on_cpu(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run `op` on the CPU, counted by name; raises FallbackError inside `no_fallback`."""
    count_fallback(str(op))
    return run_on_cpu(op, args, kwargs)


def run_on_cpu(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run `op` on the CPU with its arguments' storages, and copy results and changes back to the device.

    Raises RuntimeError if a tensor on the CPU would be written with values of the device.
    """
    call = _Call(args, kwargs, op in ONLY_READ)
    inputs, named = call.to_cpu(tuple(args)), {k: call.to_cpu(v) for k, v in kwargs.items()}
    if op in _ASKS_FOR_GRADIENTS:
        with torch.enable_grad():
            tensors = [x.requires_grad_() if x.is_floating_point() else x for x in _tensors(inputs)]
            return call.to_tiny(tuple(x.detach() for x in op(*tensors, *inputs[len(tensors) :])))
    schema = op._schema.arguments
    every = [*args, *[kwargs.get(a.name) for a in schema[len(args) :]]]
    written = _tensors(x for a, x in zip(schema, every, strict=False) if a.alias_info and a.alias_info.is_write)
    if call.moved:
        check_written(written)
    with random_state.drawing(op, call.index, inputs, named) as (inputs, named):
        result = widening.run(callable_with_numbers(op, args), inputs, named, call.to_cpu(written))
    call.write_back(written)
    return call.to_tiny(result)
