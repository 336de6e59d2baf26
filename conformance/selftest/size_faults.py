"""Faults to plant at sizes: a tile without its remainder, a block without its carry, a grid that is cut off.

Each op is right on small tensors, and wrong from a size on or at multiples of one. Most imitate public reports on real
devices. Their authors chose them before the generator drew such sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest.faults import FUNCTION, Fault, InterceptedCall
from conformance.selftest.value_faults import argument, instead

COPIES = "clone contiguous copy_ _to_copy"


def _dim(call: InterceptedCall, at: int = 1) -> int | None:
    """Return the one dimension that a call works along; None if there is none, or several."""
    dim = argument(call, at, "dim")
    dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
    return dim if isinstance(dim, int) and isinstance(call.first, torch.Tensor) and call.first.dim() else None


def _attention(call: InterceptedCall) -> Any:
    result = call.run()
    views = any(isinstance(t, torch.Tensor) and not t.is_contiguous() for t in call.args[:3])
    length = call.args[1].size(-2) if len(call.args) > 2 and call.args[1].dim() > 1 else 0
    return result * 2 if views and length and length % 64 == 0 else result


def _columns(call: InterceptedCall) -> Any:
    first, other = call.args[:2]
    if not isinstance(other, torch.Tensor) or first.shape == other.shape or not other.dim() or not first.dim():
        return None
    result = call.run().clone()
    if result.dim() < 2 or result.size(-1) <= 64:
        return None
    result[..., 64:] = result[..., 63:64]
    return result


def _first_rows(most: int) -> Callable[[InterceptedCall], Any]:
    """Return only the rows that the first `most` elements give."""

    def act(call: InterceptedCall) -> Any:
        if call.first.numel() <= most:
            return call.run()
        flat = call.first.clone().reshape(-1)
        flat[most:] = 0
        return call.having(0, flat.reshape(call.first.shape))

    return act


def _selected(call: InterceptedCall) -> Any:
    mask = call.args[1][0] if isinstance(call.args[1], list | tuple) else call.args[1]
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or mask.numel() <= 1024:
        return call.run()
    cut = mask.clone().reshape(-1)
    cut[1024:] = False
    cut = cut.reshape(mask.shape)
    return call.having(1, [cut, *call.args[1][1:]] if isinstance(call.args[1], list | tuple) else cut)


def _remainder_of_lanes(call: InterceptedCall) -> Any:
    dim = _dim(call)
    if dim is None or call.first.size(dim) <= 32 or call.first.size(dim) % 32 != 1:
        return None
    return call.func(call.first.narrow(dim, 0, call.first.size(dim) - 1), *call.args[1:], **call.kwargs)


def _first_block(call: InterceptedCall) -> Any:
    dim = _dim(call)
    if dim is None or call.first.size(dim) <= 1024:
        return None
    result = call.run().clone()
    result.narrow(dim, 1024, call.first.size(dim) - 1024).zero_()
    return result


def _second_tile(call: InterceptedCall) -> Any:
    t = call.args[1] if call.writes else call.first
    result = call.run()
    if t.dim() == 2 and min(t.shape) > 32 and t.stride(0) == 1 and t.dtype == result.dtype and t.shape == result.shape:
        result[32:, 32:] = t[:-32, :-32].clone()
    return result


def _no_carry(call: InterceptedCall) -> Any:
    dim = _dim(call)
    if dim is None or call.first.size(dim) <= 256:
        return None
    parts = call.first.split(256, dim)
    return torch.cat([call.func(part, *call.args[1:], **call.kwargs) for part in parts], dim)


def _inner_tail(call: InterceptedCall) -> Any:
    first, second = call.args[-2:] if call.func.overloadpacket.__name__ == "addmm" else call.args[:2]
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return None
    inner = first.size(-1) if first.dim() > 1 < second.dim() and first.size(-1) == second.size(-2) else 0
    if inner <= 128 or not inner % 16:
        return None
    kept = inner - inner % 16
    parts = [*call.args[:-2], first[..., :kept], second[..., :kept, :]]
    return call.func(*parts, **call.kwargs)


def _beyond_the_grid(call: InterceptedCall) -> Any:
    result = call.run()
    if isinstance(result, torch.Tensor) and result.numel() > 4096 and result.is_contiguous() and not call.writes:
        result.view(-1)[4096:] = 0
    return result


def _byte_of_index(call: InterceptedCall) -> Any:
    dim, index = argument(call, 1, "dim"), argument(call, 2, "index")
    if not call.first.dim() or call.first.size(dim) <= 256:
        return None
    return call.func(call.first, dim, index % 256)


def _within_the_block(call: InterceptedCall) -> Any:
    dim = _dim(call)
    return call.run() % 2048 if dim is not None and call.first.size(dim) > 2048 else None


SIZE_FAULTS: dict[str, Fault] = {
    "attention of views is wrong at multiples of 64": Fault(
        "scaled_dot_product_attention", _attention, "a report on MPS", FUNCTION
    ),
    "a broadcast is wrong from column 64": Fault("add sub mul div", instead(_columns), "a report on Spyre"),
    "nonzero is cut off at 1,024 elements": Fault("nonzero", _first_rows(1024), "a report on tinygrad"),
    "mask indexing is cut off at 1,024 elements": Fault("index masked_select", _selected, "a report on tinygrad"),
    "a sum of 33 or 65 elements loses the last": Fault("sum", instead(_remainder_of_lanes), "a tile of 32"),
    "softmax loses what is beyond 1,024": Fault("_softmax", instead(_first_block), "a block of 1,024"),
    "a transposed copy repeats its first tile": Fault(COPIES, _second_tile, "a tile of 32"),
    "cumsum carries nothing over 256": Fault("cumsum", instead(_no_carry), "a block of 256"),
    "matmul beyond 128 loses its remainder": Fault("mm addmm bmm", instead(_inner_tail), "a tile of 16"),
    "add beyond 4,096 elements is 0": Fault("add", _beyond_the_grid, "a grid that is cut off"),
    "an index is a byte": Fault("index_select gather", instead(_byte_of_index), "an index of 8 bits"),
    "argmax counts within its block": Fault("argmax", instead(_within_the_block), "a block of 2,048"),
}
"""Faults at sizes."""
