"""Faults to plant in arguments that a call rarely states: keywords, third operands, strides of one dimension.

Each op is right as its users call it most. `sub(a, b)` is right, and `sub(a, b, alpha=2)` forgets its factor; `cat` of
two tensors is right, and of three is wrong. Their authors chose them before the generator drew such calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest.faults import FUNCTION, Fault, InterceptedCall
from conformance.selftest.value_faults import argument, instead, integers
from conformance.standalone.moving import map_tensors


def _without(name: str, at: int = 99) -> Callable[[InterceptedCall], Any]:
    """Ignore the argument of this name, which may be the positional one at `at`, if the call states it."""

    def values(call: InterceptedCall) -> Any:
        if name in call.kwargs:
            return call.func(*call.args, **{key: value for key, value in call.kwargs.items() if key != name})
        return call.func(*call.args[:at], **call.kwargs) if len(call.args) > at else None

    return instead(values)


def _not_divided(call: InterceptedCall) -> Any:
    dims, keep = argument(call, 1, "dim"), argument(call, 2, "keepdim", False)
    if call.kwargs.get("dtype") is None or not call.first.numel():
        return None
    return call.first.sum(dims, keep, dtype=call.kwargs["dtype"])


def _parts(call: InterceptedCall) -> list[Any]:
    """Return the tensors of the list that is the first argument; none if it is no list of three or more."""
    parts = call.args[0] if call.args and isinstance(call.args[0], list | tuple) else ()
    return [*parts] if len(parts) > 2 else []


def _third_is_second(call: InterceptedCall) -> Any:
    parts = _parts(call)
    if not parts or parts[1].shape != parts[2].shape:
        return call.run()
    return call.having(0, [*parts[:2], parts[1], *parts[3:]])


def _third_forgotten(call: InterceptedCall) -> Any:
    parts = _parts(call)
    return call.having(0, parts[:2]) if parts else call.run()


def _step(t: Any) -> int:
    """Return the stride of a 1-d tensor of several elements; 0 for others."""
    return t.stride(0) if isinstance(t, torch.Tensor) and t.dim() == 1 and t.numel() > 1 else 0


def _lost(step: int) -> Callable[[InterceptedCall], Any]:
    """Lose a write to a 1-d tensor of this stride."""
    return lambda call: call.first if _step(call.first) == step else call.run()


def _read_densely(call: InterceptedCall) -> Any:
    t = call.first
    return call.func(t.as_strided(t.size(), (1,)), *call.args[1:], **call.kwargs) if _step(t) == 3 else None


def _second_read_densely(call: InterceptedCall) -> Any:
    other: Any = call.args[1] if len(call.args) > 1 else None
    if _step(other) < 2 or not call.first.is_contiguous():
        return None
    return call.func(call.first, other.as_strided(other.size(), (1,)), *call.args[2:], **call.kwargs)


def _rounded_down(call: InterceptedCall) -> Any:
    mode = call.kwargs.get("rounding_mode")
    return call.func(*call.args, rounding_mode="floor") if mode == "trunc" else None


def _not_reversed(call: InterceptedCall) -> Any:
    if not argument(call, 2, "descending", False) or "stable" not in call.kwargs:
        return call.run()
    return call.func(*call.args[:1], **{**call.kwargs, "descending": False})


def _into_another_dtype(call: InterceptedCall) -> Any:
    if call.kwargs.get("dtype") is None or not integers(call.first) or not call.first.numel():
        return call.run()
    return map_tensors(call.run(), lambda t: t + 1)


ARGUMENT_FAULTS: dict[str, Fault] = {
    "sub ignores alpha": Fault("sub", _without("alpha"), "a keyword that no kernel reads"),
    "mean with dtype= does not divide": Fault("mean", instead(_not_divided), "an overload of its own"),
    "cat of three repeats the second": Fault("cat", _third_is_second, "two pointers in one kernel"),
    "mul_ of stride 2 is lost": Fault("mul_", _lost(2), "a 1-d fast path"),
    "addmm ignores beta": Fault("addmm", _without("beta"), "a keyword that no kernel reads"),
    "addcmul ignores value": Fault("addcmul", _without("value"), "a keyword that no kernel reads"),
    "var ignores correction": Fault("var", _without("correction"), "a keyword that no kernel reads"),
    "searchsorted ignores right": Fault("searchsorted", _without("right"), "a keyword that no kernel reads"),
    "nan_to_num ignores posinf": Fault("nan_to_num", _without("posinf", 2), "a keyword that no kernel reads"),
    "softplus ignores threshold": Fault("softplus", _without("threshold", 2), "a default in the kernel"),
    "div with trunc rounds down": Fault("div", instead(_rounded_down), "one rounding mode for both"),
    "prod of integers with dtype= is off by one": Fault("prod", _into_another_dtype, "an overload of its own"),
    "hstack of three forgets the third": Fault("hstack", _third_forgotten, "two operands in one call", FUNCTION),
    "block_diag of three forgets the third": Fault("block_diag", _third_forgotten, "two operands in one call"),
    "exp of stride 3 reads densely": Fault("exp", instead(_read_densely), "a 1-d fast path"),
    "atan2 reads a strided second operand densely": Fault("atan2", instead(_second_read_densely), "a 1-d fast path"),
    "clamp_ of stride 3 is lost": Fault("clamp_", _lost(3), "a 1-d fast path"),
}
"""Faults of rarely stated arguments, of third operands and of strides in one dimension."""
