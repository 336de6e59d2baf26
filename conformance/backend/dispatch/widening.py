"""Calls in 16 bits without a kernel in torch CPU: computed on the CPU in a wider dtype, and rounded.

Defines `run`. Accelerators compute 16-bit results in 32 bits and round, so this gives the same answer as a device with
such a kernel. The CPU refuses such a call with a message that contains the dtype, and only then it is repeated in the
wider dtype. The meta kernel gives the dtypes of the results.

This module must not depend on tensors of the device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..runtime import torch_compat

_NO_KERNEL = re.compile(r"not implemented for '(Half|BFloat16|ComplexHalf)'")
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_AUTOCAST = torch_compat.DispatchKeySet(torch_compat.parse_key("AutocastCPU"))


def run(
    call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], written: Sequence[torch.Tensor]
) -> Any:
    """Run `call` on CPU tensors, including the `written` ones; raises the error of the call in the original dtypes.

    `torch.autocast("cpu")` has no effect, since the user's tensors are not on the CPU.
    """
    with torch_compat.exclude_keys(_AUTOCAST):
        return _run(call, args, kwargs, written)


def _run(
    call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], written: Sequence[torch.Tensor]
) -> Any:
    try:
        return call(*args, **kwargs)
    except RuntimeError as error:  # includes NotImplementedError
        if not _NO_KERNEL.search(str(error)):
            raise
        refused = error
    wide: dict[int, torch.Tensor] = {}

    def widened(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return wide.setdefault(id(x), x.to(_WIDER[x.dtype])) if x.dtype in _WIDER else x
        return _WIDER.get(x, x) if isinstance(x, torch.dtype) else x

    try:
        kinds = _result_dtypes(call, args, kwargs)
        result = call(*_mapped(args, widened), **_mapped(kwargs, widened))
    except (RuntimeError, TypeError):  # the error of the original call is clearer
        raise refused from None
    for own in written:
        if id(own) in wide:
            own.resize_(wide[id(own)].size()).copy_(wide[id(own)])
    targets = {id(w): own for own in written if (w := wide.get(id(own))) is not None}
    dtypes = iter(kinds)
    narrow = {_WIDER[t.dtype]: t.dtype for t in _tensors([*args, *kwargs.values()]) if t.dtype in _WIDER}

    def rounded(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        dtype = next(dtypes, narrow.get(x.dtype, x.dtype))
        return targets[id(x)] if id(x) in targets else x.to(dtype)

    return _mapped(result, rounded)


def _result_dtypes(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.dtype]:
    try:
        return [t.dtype for t in _tensors(call(*_mapped(args, _meta), **_mapped(kwargs, _meta)))]
    except (RuntimeError, TypeError):
        return []


def _meta(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")
    return torch.device("meta") if isinstance(x, torch.device) else x


def _mapped(xs: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(xs, Mapping):
        return {k: _mapped(x, change) for k, x in xs.items()}
    if isinstance(xs, (list, tuple)):
        items = [_mapped(x, change) for x in xs]
        return items if isinstance(xs, list) else tuple(items)
    return change(xs)


def _tensors(xs: Any) -> list[torch.Tensor]:
    if isinstance(xs, (list, tuple)):
        return [t for x in xs for t in _tensors(x)]
    return [xs] if isinstance(xs, torch.Tensor) else []
