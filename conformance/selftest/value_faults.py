"""Faults to plant in the values of single ops: precision, ties, promotion, special values.

These faults are right on most finite numbers of middle size, so each measures how far the generator goes beyond them.
Their author chose them without knowledge of the generator. A fault changes only what its row names: a wrong value has
the layout and dtype of the right one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest.faults import FUNCTION, Fault, InterceptedCall
from conformance.standalone.moving import map_tensors

HALVES = (torch.float16, torch.bfloat16)
SLOW = 4096
"""Limit on elements that are added one after the other."""

COMPARED = "lt le gt ge eq ne"
IN_PLACE = "add_ sub_ mul_ div_ pow_ addcmul_ lerp_ clamp_ remainder_"


def argument(call: InterceptedCall, at: int, name: str, default: Any = None) -> Any:
    """Return an argument passed by position or by name."""
    return call.args[at] if len(call.args) > at else call.kwargs.get(name, default)


def name_of(call: InterceptedCall) -> str:
    """Return the name of the op without its overload."""
    return str(getattr(call.func, "overloadpacket", call.func).__name__)


def instead(values: Callable[[InterceptedCall], Any]) -> Callable[[InterceptedCall], Any]:
    """Return a fault that overwrites the right answer, or an in-place result, with `values`; None keeps the right
    answer.
    """

    def act(call: InterceptedCall) -> Any:
        before = call
        if not isinstance(call.first, torch.Tensor):
            return call.run()
        if call.writes or "out" in call.kwargs:
            named = {name: value for name, value in call.kwargs.items() if name != "out"}
            before = InterceptedCall(call.func, map_tensors(call.args, torch.clone), named, call.memory)
            if "out" in call.kwargs:
                before.func = call.func.overloadpacket
        result = call.run()
        wrong = values(before)
        if wrong is not None:
            pairs = zip(result, wrong, strict=True) if isinstance(result, tuple | list) else [(result, wrong)]
            for right, other in pairs:
                right.copy_(other.reshape(right.shape))
        return result

    return act


def floats(call: InterceptedCall) -> bool:
    """Whether the first argument is a tensor of real floating-point numbers."""
    return isinstance(call.first, torch.Tensor) and call.first.is_floating_point()


def integers(value: Any) -> bool:
    """Whether this is an integer, or a tensor of integers; a bool is not."""
    if isinstance(value, torch.Tensor):
        return not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)
    return isinstance(value, int) and not isinstance(value, bool)


def reduced(call: InterceptedCall) -> torch.Tensor:
    """Return the first argument with the reduced dimensions flattened into the last; no dimensions, or an empty list,
    mean all.
    """
    t, dims = call.first, argument(call, 1, "dim")
    if t.dim() == 0 or dims is None or dims == []:
        return t.reshape(-1)
    chosen = {dim % t.dim() for dim in ([dims] if isinstance(dims, int) else dims)}
    kept = [dim for dim in range(t.dim()) if dim not in chosen]
    return t.permute(*kept, *sorted(chosen)).reshape(*(t.size(dim) for dim in kept), -1)


def _added_in_half(call: InterceptedCall) -> Any:
    t = call.first
    if t.dtype not in HALVES or call.kwargs.get("dtype") not in (None, t.dtype) or not t.numel():
        return None
    parts = reduced(call)
    if parts.size(-1) > SLOW:
        return None
    total = torch.zeros_like(parts[..., 0])
    for part in parts.unbind(-1):
        total = total + part
    return total


def _mean_in_half(call: InterceptedCall) -> Any:
    t = call.first
    if t.dtype is not torch.float16 or call.kwargs.get("dtype") not in (None, t.dtype) or not t.numel():
        return None
    parts = reduced(call)
    return parts.sum(-1) / parts.size(-1)


def _unshifted_softmax(call: InterceptedCall) -> Any:
    powers = call.first.exp()
    shares = powers / powers.sum(call.args[1], keepdim=True)
    return shares.log() if "log" in name_of(call) else shares


def _by_squares(call: InterceptedCall) -> Any:
    if not floats(call) or not call.first.numel():
        return None
    parts = reduced(call)
    count, correction = parts.size(-1), call.kwargs.get("correction")
    freedom = count - (1 if correction is None else correction)
    if freedom <= 0:
        return None
    mean = parts.mean(-1)
    variance = ((parts * parts).mean(-1) - mean * mean) * (count / freedom)
    name = name_of(call)
    wrong = variance.sqrt() if name.startswith("std") else variance
    return (wrong, mean) if name.endswith("_mean") else wrong


def _narrowed(wide: torch.dtype, narrow: torch.dtype) -> Callable[[InterceptedCall], Any]:
    """Return values of a `wide` tensor computed in the `narrow` dtype."""

    def values(call: InterceptedCall) -> Any:
        if call.first.dtype is not wide:
            return None
        args = map_tensors(call.args, lambda t: t.to(narrow) if t.dtype is wide else t)
        return call.func(*args, **call.kwargs)

    return values


def _last_index(call: InterceptedCall) -> Any:
    t, dim = call.first, argument(call, 1, "dim")
    if t.dim() == 0 or not t.numel():
        return None
    flat, at = (t.flatten(), 0) if dim is None else (t, dim)
    return flat.size(at) - 1 - getattr(torch, name_of(call))(flat.flip(at), at)


def _last_of_dim(call: InterceptedCall) -> Any:
    t, dim = call.first, argument(call, 1, "dim")
    if not isinstance(dim, int) or t.dim() == 0 or not t.numel():
        return None
    values, indices = getattr(torch, name_of(call))(t.flip(dim), dim)
    return values, t.size(dim) - 1 - indices


def _not_stable(call: InterceptedCall) -> Any:
    t, dim = call.first, call.kwargs.get("dim", -1) if len(call.args) < 2 else call.args[1]
    if not call.kwargs.get("stable") or t.dim() == 0 or not t.numel():
        return None
    values, indices = call.having(0, t.flip(dim))
    return values, t.size(dim) - 1 - indices


def _left_always(call: InterceptedCall) -> Any:
    named = {name: value for name, value in call.kwargs.items() if name not in ("right", "side")}
    return call.func(*call.args, **named) if len(named) < len(call.kwargs) else None


def _opposite(t: torch.Tensor) -> torch.Tensor:
    """Return the elements in the opposite order; the function is its own inverse."""
    return -t if t.is_floating_point() else ~t


def _in_opposite_order(call: InterceptedCall) -> Any:
    t = call.first
    if t.is_complex() or not t.numel():
        return None
    result = call.having(0, _opposite(t))
    return (_opposite(result[0]), result[1]) if isinstance(result, tuple) else _opposite(result)


def _away_from_zero(call: InterceptedCall) -> Any:
    t = call.first
    if not floats(call) or len(call.args) > 1 or "decimals" in call.kwargs:
        return None
    return torch.where((t - t.trunc()).abs() == 0.5, t.trunc() + t.sign(), t.round())


def _whole_quotient(call: InterceptedCall) -> Any:
    rounded = call.kwargs.get("rounding_mode") is not None
    return None if rounded or not all(map(integers, call.args[:2])) else torch.div(*call.args[:2]).trunc()


def _zero_dims_promote(call: InterceptedCall) -> Any:
    result, (a, b) = call.run(), call.args[:2]
    if call.writes or "out" in call.kwargs or not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return result
    return result.to(torch.promote_types(a.dtype, b.dtype)) if (a.dim() == 0) != (b.dim() == 0) else result


def _dtype_of_first(call: InterceptedCall) -> Any:
    result = call.run()
    return result if "out" in call.kwargs or result.is_complex() else result.to(call.first[0].dtype)


def _number_as_float32(call: InterceptedCall) -> Any:
    shaped = [arg for arg in call.args if isinstance(arg, torch.Tensor) and arg.dim()]
    if not shaped:
        return call.run()
    return call.func(
        *(
            torch.full((1,), arg, dtype=torch.float32, device=shaped[0].device)
            if isinstance(arg, int | float) and not isinstance(arg, bool)
            else arg
            for arg in call.args
        ),
        **call.kwargs,
    )


def _cast_in_place(call: InterceptedCall) -> Any:
    try:
        return call.run()
    except RuntimeError as error:
        if "can't be cast" not in str(error):
            raise
        return call.first.copy_(getattr(torch.ops.aten, name_of(call)[:-1])(*call.args, **call.kwargs))


def _cast_out(call: InterceptedCall) -> Any:
    try:
        return call.run()
    except RuntimeError as error:
        out = call.kwargs.get("out")
        if not isinstance(out, torch.Tensor) or "can't be cast" not in str(error):
            raise
        named = {name: value for name, value in call.kwargs.items() if name != "out"}
        result = call.func.overloadpacket(*call.args, **named)
        return out.resize_(result.shape).copy_(result)


def _truncated_number(call: InterceptedCall) -> Any:
    if not integers(call.first):
        return None
    finite = [isinstance(arg, float) and math.isfinite(arg) for arg in call.args]
    cut = [int(arg) if is_float else arg for arg, is_float in zip(call.args, finite, strict=True)]
    return call.func(*cut, **call.kwargs) if any(finite) else None


def _nan_is_bound(call: InterceptedCall) -> Any:
    if not floats(call):
        return None
    bounds = [b for b in (argument(call, 1, "min"), argument(call, 2, "max"), call.kwargs.get("max")) if b is not None]
    return torch.where(call.first.isnan(), bounds[0], call.func(*call.args, **call.kwargs)) if bounds else None


def _fmax(call: InterceptedCall) -> Any:
    both = isinstance(call.args[1], torch.Tensor) and floats(call)
    name = {"maximum": "fmax", "minimum": "fmin"}[name_of(call)]
    return getattr(torch, name)(*call.args[:2]) if both else None


def _nan_skipped(call: InterceptedCall) -> Any:
    t = call.first
    if not floats(call) or (len(call.args) > 1 and isinstance(call.args[1], torch.Tensor)):
        return None
    least = -math.inf if "max" in name_of(call) else math.inf
    return call.having(0, t.masked_fill(t.isnan(), least))


def _zero_skipped(call: InterceptedCall) -> Any:
    a, b = call.args[:2]
    result = call.func(a, b)
    if not floats(call) or a.numel() * b.size(-1) > 2**20:
        return None
    a, b = a.unsqueeze(-1), b.unsqueeze(-3)
    terms = torch.where((a == 0) | (b == 0), 0.0, a * b)
    return torch.where(result.isnan(), terms.sum(-2), result)


def _floor_of_quotient(call: InterceptedCall) -> Any:
    floor = name_of(call).startswith("floor") or call.kwargs.get("rounding_mode") == "floor"
    quotient = torch.true_divide(*call.args[:2]).floor() if floor else None
    return None if all(map(integers, call.args[:2])) else quotient


def _truncated_quotient(call: InterceptedCall) -> Any:
    floor = name_of(call).startswith("floor") or call.kwargs.get("rounding_mode") == "floor"
    return torch.div(*call.args[:2], rounding_mode="trunc") if floor and all(map(integers, call.args[:2])) else None


def _sign_of_dividend(call: InterceptedCall) -> Any:
    return torch.fmod(*call.args[:2])


def _by_logarithm(call: InterceptedCall) -> Any:
    return torch.where(call.first < 0, math.nan, call.func(*call.args)) if floats(call) else None


def _nan_is_never_close(call: InterceptedCall) -> Any:
    return call.func(*call.args[:4], **{**call.kwargs, "equal_nan": False})


def _shifted_by_infinity(call: InterceptedCall) -> Any:
    if not floats(call) or not call.first.numel():
        return None
    parts = reduced(call)
    largest = parts.amax(-1, keepdim=True)
    return ((parts - largest).exp().sum(-1, keepdim=True).log() + largest).squeeze(-1)


def _nan_first(call: InterceptedCall) -> Any:
    t, dim = call.first, call.kwargs.get("dim", -1) if len(call.args) < 2 else call.args[1]
    if not floats(call):
        return None
    _, indices = call.having(0, t.masked_fill(t.isnan(), -math.inf))
    return t.gather(dim, indices), indices


VALUE_FAULTS: dict[str, Fault] = {
    "half sums accumulate in half": Fault("sum", instead(_added_in_half), "tinygrad#3005"),
    "softmax does not subtract the maximum": Fault(
        "_softmax _log_softmax", instead(_unshifted_softmax), "pytorch#94043"
    ),
    "variance is the mean of squares less the squared mean": Fault(
        "var std var_mean std_mean", instead(_by_squares), "pytorch#2470"
    ),
    "the mean of halves overflows in its sum": Fault("mean", instead(_mean_in_half), "burn#4769"),
    "float64 functions are computed in float32": Fault(
        "exp log sin cos tanh sqrt", instead(_narrowed(torch.float64, torch.float32)), "a device without float64"
    ),
    "int64 extrema go through int32": Fault(
        "max min amax amin maximum minimum", instead(_narrowed(torch.int64, torch.int32)), "pytorch#95091"
    ),
    "argmax takes the last of equal elements": Fault("argmax argmin", instead(_last_index), "pytorch#41998"),
    "max of a dimension takes the last of equal elements": Fault("max min", instead(_last_of_dim), "pytorch#12779"),
    "stable sort is not stable": Fault("sort", instead(_not_stable), "pytorch#181736"),
    "searchsorted ignores right": Fault("searchsorted bucketize", instead(_left_always), "one binary search for both"),
    "mode takes the largest of the most frequent": Fault("mode", instead(_in_opposite_order), "ties of mode"),
    "median takes the upper of the middle two": Fault(
        "median nanmedian", instead(_in_opposite_order), "median of an even number"
    ),
    "round goes away from zero at a half": Fault("round", instead(_away_from_zero), "the round of C"),
    "integers divide as integers": Fault("div", instead(_whole_quotient), "pytorch#78319"),
    "a 0-d tensor promotes like any other": Fault("add sub mul div", _zero_dims_promote, "pytorch#50121"),
    "cat takes the dtype of the first": Fault("cat", _dtype_of_first, "pytorch#35014"),
    "where takes a number for a float32 tensor": Fault("where", _number_as_float32, "numbers made tensors", FUNCTION),
    "in-place arithmetic casts what it may not": Fault(IN_PLACE, _cast_in_place, "a cast in place of an error"),
    "out= casts what it may not": Fault("", _cast_out, "a cast in place of an error"),
    "integers are compared with a truncated number": Fault(
        f"{COMPARED} clamp", instead(_truncated_number), "pytorch#130201"
    ),
    "clamp loses nan": Fault("clamp clamp_ clamp_min clamp_max", instead(_nan_is_bound), "pytorch#120899"),
    "maximum loses nan": Fault("maximum minimum", instead(_fmax), "pytorch#143976"),
    "amax loses nan": Fault("amax amin max min", instead(_nan_skipped), "comparisons with nan"),
    "neg loses the sign of zero": Fault(
        "neg neg_", instead(lambda call: 0 - call.first if floats(call) else None), "pytorch#185834"
    ),
    "mm skips products with zero": Fault("mm bmm", instead(_zero_skipped), "reference BLAS"),
    "floor division is the floor of the quotient": Fault(
        "div floor_divide", instead(_floor_of_quotient), "pytorch#189243"
    ),
    "floor division of integers truncates": Fault("div floor_divide", instead(_truncated_quotient), "pytorch#44858"),
    "remainder takes the sign of the dividend": Fault("remainder", instead(_sign_of_dividend), "fmod"),
    "pow of a negative base is nan": Fault("pow", instead(_by_logarithm), "tinygrad#1191"),
    "isclose ignores equal_nan": Fault("isclose allclose", _nan_is_never_close, "equal_nan", FUNCTION),
    "logsumexp of infinities is nan": Fault("logsumexp", instead(_shifted_by_infinity), "inf - inf"),
    "sort puts nan first": Fault("sort", instead(_nan_first), "comparisons with nan"),
}
"""Faults of values, ordered by kind."""
