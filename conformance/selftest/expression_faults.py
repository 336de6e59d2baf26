"""Faults to plant between ops: fusion, `out=`, the n-th call, sizes, gradients, certain random numbers.

Each op is right if it runs alone, once, and on a small size. A fault shows in an expression, in a second call, or in
the sum of a gradient. Their author chose them without knowledge of the generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import torch

from conformance.selftest.faults import FUNCTION, Fault, InterceptedCall
from conformance.selftest.value_faults import HALVES, argument, floats, instead, name_of, reduced
from conformance.standalone.moving import map_tensors, storage_key, whole_storage
from conformance.standalone.torch_compat import in_backward, version_of

POINTWISE = "add sub mul div exp log sin cos sqrt sigmoid tanh relu clamp abs neg"
CALLED = f"{POINTWISE} sum mm where gather index_select cumsum"
NUMBERED = "add sub mul div pow clamp remainder leaky_relu lt le gt ge eq ne add_ sub_ mul_ div_"
BLOCK, LANES = 1024, 16


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same elements of one storage."""
    return storage_key(a) == storage_key(b) and _geometry(a) == _geometry(b)


def _geometry(t: torch.Tensor) -> tuple[Any, ...]:
    return t.dtype, t.size(), t.stride(), t.storage_offset()


def _named(call: InterceptedCall, *names: str) -> bool:
    return name_of(call) in names


def _plain(call: InterceptedCall) -> bool:
    """Whether the call writes no existing tensor."""
    return not call.writes and "out" not in call.kwargs


def _note(call: InterceptedCall, result: torch.Tensor, *of: Any) -> torch.Tensor:
    """Record the operands of a result, and return the result."""
    versions = [version_of(tensor) for tensor in of if isinstance(tensor, torch.Tensor)]
    call.memory[call.storage(result)] = result, version_of(result), of, versions
    return result


def _operands(call: InterceptedCall, t: Any) -> tuple[Any, ...] | None:
    """Return the operands that a tensor was computed from, or None if it or they were written since."""
    if not isinstance(t, torch.Tensor):
        return None
    result, version, of, versions = call.memory.get(call.storage(t), (None, 0, (), []))
    if result is None or not _same(result, t) or version_of(t) != version:
        return None
    now = [version_of(tensor) for tensor in of if isinstance(tensor, torch.Tensor)]
    return tuple(of) if now == versions else None


def _contracted(call: InterceptedCall) -> Any:
    result = call.run()
    if not _plain(call) or not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return result
    if _named(call, "mul"):
        return _note(call, result, *call.args[:2])
    for at, factors in enumerate([_operands(call, arg) for arg in call.args[:2]]):
        if factors is not None:
            wide = [
                value.double() if isinstance(value, torch.Tensor) else value for value in (*factors, *call.args[:2])
            ]
            wide[2 + at] = wide[0] * wide[1]
            return result.copy_(call.func(*wide[2:], **call.kwargs))
    return result


def _folded(first: Callable[[InterceptedCall], Any], last: str) -> Callable[[InterceptedCall], Any]:
    """Replace an op over the result of another by an operand: `first` returns the operand that `last` restores."""

    def act(call: InterceptedCall) -> Any:
        result = call.run()
        if not _plain(call) or not isinstance(result, torch.Tensor):
            return result
        operand = _operands(call, call.first) if _named(call, last) else None
        if operand is not None and operand[0].dtype is result.dtype:
            result.copy_(operand[0])
        started = first(call)
        return result if started is None else _note(call, result, started)

    return act


def _squared(call: InterceptedCall) -> Any:
    if _named(call, "mul"):
        both = all(isinstance(arg, torch.Tensor) for arg in call.args[:2])
        return call.first if both and floats(call) and _same(*call.args[:2]) else None
    power = isinstance(call.args[-1], int | float) and call.args[-1] == 2
    return call.first if floats(call) and (_named(call, "square") or (_named(call, "pow") and power)) else None


def _halved(call: InterceptedCall) -> Any:
    t = call.first
    return t if floats(call) and t.dtype not in HALVES and call.kwargs.get("dtype") in HALVES else None


def _less_itself(call: InterceptedCall) -> Any:
    both = floats(call) and isinstance(call.args[1], torch.Tensor) and call.kwargs.get("alpha", 1) == 1
    return torch.zeros_like(call.first) if both and _same(*call.args[:2]) else None


def _times_zero(call: InterceptedCall) -> Any:
    zero = isinstance(call.args[1], int | float) and call.args[1] == 0
    return torch.zeros_like(call.first) if floats(call) and zero else None


def _fresh(call: InterceptedCall) -> Any:
    """Return the result of the call with an empty out= of the same dtype."""
    out = call.kwargs["out"]
    return call.func(*call.args, **{**call.kwargs, "out": out.new_empty(0)})


def _shape_kept(call: InterceptedCall) -> Any:
    out = call.kwargs.get("out")
    if not isinstance(out, torch.Tensor) or not out.numel():
        return call.run()
    result = _fresh(call)
    if result.shape == out.shape or result.numel() != out.numel():
        return call.run()
    return out.copy_(result.reshape(out.shape))


def _overlap_accepted(call: InterceptedCall) -> Any:
    try:
        return call.run()
    except RuntimeError as error:
        out = call.kwargs.get("out")
        if not isinstance(out, torch.Tensor) or "memory" not in str(error) or 0 in out.stride():
            raise
        result = _fresh(call)
        if result.shape != out.shape:
            raise
        return out.copy_(result)


def _new_memory(call: InterceptedCall) -> Any:
    out = call.kwargs.get("out")
    if not isinstance(out, torch.Tensor) or out.is_contiguous():
        return call.run()
    before, memory = whole_storage(out).clone(), whole_storage(out)
    result = call.run().clone(memory_format=torch.contiguous_format)
    memory.copy_(before)
    return out.set_(result)


def _key(call: InterceptedCall, of: Callable[[torch.Tensor], Hashable]) -> Hashable:
    key: list[Any] = [str(call.func), *map(type, call.args)]
    map_tensors((call.args, call.kwargs), lambda t: key.append(of(t)))
    return tuple(key)


def _replayed(call: InterceptedCall) -> Any:
    result = call.run()
    if not _plain(call) or not isinstance(result, torch.Tensor):
        return result
    seen = call.memory.setdefault(_key(call, lambda t: (t.dtype, tuple(t.shape))), [])
    if len(seen) > 1 and seen[1].shape == result.shape:
        result.copy_(seen[1])
    seen.append(result.clone())
    return result


def _dtype_forgotten(call: InterceptedCall) -> Any:
    result = call.run()
    if not _plain(call) or result.is_complex():
        return result
    return result.to(call.memory.setdefault(_key(call, lambda t: tuple(t.shape)), result.dtype))


def _number_forgotten(call: InterceptedCall) -> Any:
    key = _key(call, lambda t: (t.dtype, tuple(t.shape)))
    args, kwargs = call.memory.setdefault(key, (call.args, call.kwargs))

    def first_number(first: Any, now: Any) -> Any:
        numbers = isinstance(now, int | float) and isinstance(first, int | float) and not isinstance(now, bool)
        return first if numbers else now

    kept = [first_number(first, now) for first, now in zip(args, call.args, strict=True)]
    return call.func(*kept, **{name: first_number(kwargs.get(name), now) for name, now in call.kwargs.items()})


def _strides_forgotten(call: InterceptedCall) -> Any:
    t = call.first
    if not isinstance(t, torch.Tensor) or not t.numel() or not _plain(call):
        return call.run()
    strides = call.memory.setdefault(_key(call, lambda t: (t.dtype, tuple(t.shape))), t.stride())
    last = t.storage_offset() + sum((n - 1) * st for n, st in zip(t.size(), strides, strict=True))
    fits = (last + 1) * t.element_size() <= t.untyped_storage().nbytes()
    result = call.run()
    if not fits or strides == t.stride() or not isinstance(result, torch.Tensor):
        return result
    return result.copy_(call.having(0, t.as_strided(t.size(), strides)))


def _no_tail(call: InterceptedCall) -> Any:
    result = call.run()
    if _plain(call) and result.numel() > LANES and result.numel() % LANES and result.is_contiguous():
        result.view(-1)[-(result.numel() % LANES) :] = 0
    return result


def _first_block(call: InterceptedCall) -> Any:
    if not call.first.numel():
        return None
    parts = reduced(call)
    return parts[..., :BLOCK].sum(-1, dtype=call.kwargs.get("dtype")) if parts.size(-1) > BLOCK else None


def _zero_of_nothing(call: InterceptedCall) -> Any:
    result = call.run()
    return result.zero_() if not call.first.numel() and _plain(call) else result


def _one_dimension(call: InterceptedCall) -> Any:
    result = call.run()
    scalar = _plain(call) and isinstance(call.first, torch.Tensor) and call.first.dim() == 0
    return map_tensors(result, lambda t: t.unsqueeze(0) if t.dim() == 0 else t) if scalar else result


def _last_of_repeated(call: InterceptedCall) -> Any:
    if not in_backward():
        return None
    if _named(call, "embedding_dense_backward"):
        grad, indices, rows, padding = call.args[:4]
        wrong = grad.new_zeros(rows, grad.size(-1))
        wrong.index_copy_(0, indices.reshape(-1), grad.reshape(-1, grad.size(-1)))
        return wrong.index_fill_(0, indices.new_tensor([padding]), 0) if padding >= 0 else wrong
    if _named(call, "index_put"):
        return call.func(*call.args[:3])
    return torch.index_copy(*call.args[:4])


def _not_summed(call: InterceptedCall) -> Any:
    t, dims, kept = call.first, argument(call, 1, "dim"), argument(call, 2, "keepdim", False)
    if not in_backward() or not kept or not dims or not t.numel():
        return None
    for dim in dims:
        t = t.narrow(dim, 0, 1)
    return t


def _first_of_ties(call: InterceptedCall) -> Any:
    t, result = call.first, call.run()
    if not isinstance(result, torch.Tensor) or not result.requires_grad or not t.numel():
        return result
    index = torch.argmin if call.func.__name__.endswith("min") else torch.argmax
    dims = argument(call, 1, "dim")
    dims = dims[0] if isinstance(dims, tuple | list) and len(dims) == 1 else dims
    if isinstance(dims, int) and t.dim():
        return t.gather(dims, index(t, dims, keepdim=True)).reshape(result.shape).clone()
    if dims is not None or result.numel() != 1:
        return result
    return t.flatten().gather(0, index(t).reshape(1)).reshape(result.shape).clone()


def _power_over_base(call: InterceptedCall) -> Any:
    known = in_backward() and floats(call) and isinstance(call.args[1], int | float)
    return call.first.pow(call.args[1] + 1) / call.first if known else None


def _strictly(call: InterceptedCall) -> Any:
    name = "gt" if _named(call, "ge") else "lt"
    return getattr(torch, name)(*call.args[:2]) if in_backward() else None


def _times_infinity(call: InterceptedCall) -> Any:
    result = call.run()
    everything = argument(call, 1, "p", 0.5) == 1 and (argument(call, 2, "training", True) or call.kwargs.get("train"))
    return result * math.inf if everything and isinstance(result, torch.Tensor) else result


def _certain(call: InterceptedCall) -> Any:
    probability = argument(call, 1, "p")
    return torch.zeros_like(call.first) if probability == 1 else None


EXPRESSION_FAULTS: dict[str, Fault] = {
    "x * y + z is rounded once": Fault("mul add sub", _contracted, "LLVM contract"),
    "x - x is 0": Fault("sub sub_", instead(_less_itself), "tilelang#2638"),
    "x * 0 is 0": Fault("mul mul_", instead(_times_zero), "pytorch#186379"),
    "a cast to half and back is folded": Fault("_to_copy", _folded(_halved, "_to_copy"), "pytorch#185337"),
    "log(exp(x)) is x": Fault(
        "exp log", _folded(lambda call: call.first if _named(call, "exp") else None, "log"), "XLA: ln(exp(A)) => A"
    ),
    "sqrt(x * x) is x": Fault("mul square pow sqrt", _folded(_squared, "sqrt"), "fast math"),
    "out= of as many elements keeps its shape": Fault("", _shape_kept, "out= is written as it is"),
    "out= that overlaps an input is accepted": Fault("", _overlap_accepted, "no check of overlap"),
    "a strided out= gets new memory": Fault("", _new_memory, "pytorch#110120"),
    "the third call on a shape replays the second": Fault(CALLED, _replayed, "a captured graph with old inputs"),
    "a kernel is remembered without its dtype": Fault(CALLED, _dtype_forgotten, "a key without the dtype"),
    "a kernel is remembered without its number": Fault(NUMBERED, _number_forgotten, "a key without the scalar"),
    "a kernel is remembered without its strides": Fault(CALLED, _strides_forgotten, "a key without the strides"),
    "the tail of a vector loop is lost": Fault(POINTWISE, _no_tail, "a loop without its tail"),
    "a sum beyond 1,024 elements loses the rest": Fault("sum", instead(_first_block), "no second pass"),
    "a reduction of no elements is 0": Fault("prod mean all var std logsumexp", _zero_of_nothing, "pytorch#139400"),
    "a 0-d tensor comes back with a dimension": Fault(
        "cumsum cumprod sort topk flip _softmax index_select gather", _one_dimension, "0-d as 1-d"
    ),
    "a gradient keeps the last of a repeated index": Fault(
        "index_add index_add_ index_put embedding_dense_backward", instead(_last_of_repeated), "pytorch#166237"
    ),
    "a gradient is not summed over broadcast dimensions": Fault("sum", instead(_not_summed), "gradient of expand"),
    "the gradient at a tie goes to the first alone": Fault(
        "amax amin max min", _first_of_ties, "tinygrad#229", FUNCTION
    ),
    "the gradient of pow at zero is nan": Fault("pow", instead(_power_over_base), "tinygrad#4982"),
    "the gradient at a bound is 0": Fault("ge le", instead(_strictly), "gradient of clamp"),
    "dropout of everything is nan": Fault("dropout dropout_", _times_infinity, "pytorch#190057", FUNCTION),
    "bernoulli of certainty is 0": Fault("bernoulli bernoulli_", instead(_certain), "pytorch#85611"),
}
"""Faults between ops, ordered by kind."""
