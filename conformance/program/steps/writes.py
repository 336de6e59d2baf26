"""Steps that write in place: arithmetic, copies, setitem, masked and indexed writes, and loops of them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from conformance.program.steps import predicates
from conformance.program.steps.draw import DrawContext, category, index_of, tensor_of
from conformance.program.steps.op import AUGMENT, COMPUTE, DEFINED, LOSSY, MOVE, SETITEM, Json, Op, Step, tensor
from conformance.program.steps.rows import Given, Rest, a_dim, a_number, masked, near_diagonal, nothing, row
from conformance.program.steps.views import draw_index, size_at


def _whole(t: torch.Tensor) -> bool:
    return category(t.dtype) < 2


def _if_settled(rest: Rest) -> Rest:
    """Return the rule, restricted to tensors without rounding errors."""
    return lambda k, t: rest(k, t) if k.shadow.level(t) < 2 else None


def _other(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.number(t.dtype) if k.chance(1, 3) else k.operand(t.size(), t.dtype)]


def _other_scaled(k: DrawContext, t: torch.Tensor) -> Given:
    return Given(_other(k, t), {"alpha": k.integer(2, 3)} if k.chance(1, 5) and t.dtype is not torch.bool else {})


def _compared(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.number(t.dtype) if k.chance(1, 3) else k.operand(t.size(), t.dtype, settled=True)]


def _divisor(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.choice((3, 2)) if k.chance(1, 2) else k.divisor(k.subsize(t.size()), t.dtype)]


def _bounds(k: DrawContext, t: torch.Tensor) -> Given:
    low = k.integer(0 if not t.dtype.is_signed else -2, 2)
    return k.choice((Given([low, low + 3]), Given([low]), Given([], {"max": low})))


def _multiplied(k: DrawContext, t: torch.Tensor) -> Given:
    factors = [k.operand(t.size(), t.dtype, same=True) for _ in range(2)]
    return Given(factors, {"value": 2} if k.chance(1, 3) else {})


def _quotient(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.operand(t.size(), t.dtype, same=True), tensor_of([2.0], t.dtype)]


def _source(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw the source of a copy: of any dtype whose category fits, broadcast, sometimes on the host."""
    wide = t.dtype if category(t.dtype) > 1 else torch.float32 if k.chance(1, 3) else t.dtype
    return [k.operand(t.size(), wide, host=True)]


def _index_source(distinct: bool) -> Callable[[DrawContext, torch.Tensor], list[Json]]:
    """Return the rule for a dimension, indices and a source of matching size."""

    def rest(k: DrawContext, t: torch.Tensor) -> list[Json]:
        dim, at = k.along(t, distinct)
        size = list(t.size())
        size[dim] = len(at)
        return [dim, tensor_of(at), k.constant(size, t.dtype)]

    return rest


def _index_fill(k: DrawContext, t: torch.Tensor) -> list[Json]:
    dim, at = k.along(t)
    return [dim, tensor_of(at), k.number(t.dtype)]


def _scatter(add: bool) -> Callable[[DrawContext, torch.Tensor], list[Json]]:
    """Return the rule for a dimension, an index tensor and a source.

    The index tensor is at most as large as the written tensor. Without `add`, its indices are distinct along the
    dimension."""

    def rest(k: DrawContext, t: torch.Tensor) -> list[Json]:
        dim = k.dim(t)
        size = [k.integer(1, n) for n in t.size()]
        lines = torch.empty(size, dtype=torch.int64).movedim(dim, -1)
        rows = [k.indices(t.size(dim), lines.size(-1), not add) for _ in range(lines[..., 0].numel())]
        index = torch.tensor(rows, dtype=torch.int64).reshape(lines.shape).movedim(-1, dim)
        value: Json = k.number(t.dtype) if not add and k.chance(1, 3) else k.constant(size, t.dtype)
        return [dim, tensor_of(index.tolist()), value]

    return rest


def _scatter_reduced(k: DrawContext, t: torch.Tensor) -> Given:
    return Given(_scatter(True)(k, t), {"reduce": k.choice(("add", "multiply"))})


def _scatter_reduce(k: DrawContext, t: torch.Tensor) -> Given:
    args = [*_scatter(True)(k, t), k.choice(("sum", "prod", "amax", "amin"))]
    return Given(args, {"include_self": False} if k.chance(1, 3) else {})


def _index_put(k: DrawContext, t: torch.Tensor) -> Given:
    """Draw indices of the first dimension, distinct unless they accumulate, and values."""
    add = k.chance(1, 2) and predicates.number_like(t)
    at = _negative_at_times(k, k.indices(t.size(0), k.integer(1, 3), not add), t.size(0))
    values = k.constant((len(at), *t.size()[1:]), t.dtype)
    return Given([{"tuple": [tensor_of(at)]}, values], {"accumulate": True} if add else {})


def _negative_at_times(k: DrawContext, at: list[int], n: int) -> list[int]:
    return [index - n for index in at] if k.chance(1, 4) else at


def _put(k: DrawContext, t: torch.Tensor) -> Given:
    """Draw flat indices of elements, distinct unless they accumulate, and values."""
    add = k.chance(1, 2) and predicates.number_like(t)
    at = k.indices(t.numel(), k.integer(1, 3), not add)
    return Given([tensor_of(at), k.constant((len(at),), t.dtype)], {"accumulate": True} if add else {})


def _product(k: DrawContext, t: torch.Tensor) -> Given:
    return Given(k.factors(t), k.choice(({}, {"beta": 2, "alpha": 3}, {"beta": 0})))


def _fill_diagonal(k: DrawContext, t: torch.Tensor) -> Given:
    return Given([k.number(t.dtype)], {"wrap": True} if k.chance(1, 2) else {})


def _set_basic(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw a basic index and a value: a number, a constant on the device or host, or a tensor that broadcasts."""
    index = draw_index(k, t)
    size = size_at(t, index)
    return [index, k.number(t.dtype) if k.chance(1, 3) else k.operand(size, t.dtype, host=True)]


def _set_masked(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw a mask over the first dimensions, and a number or one value per selected element."""
    dims = k.integer(1, t.dim())
    mask = k.mask(t.size()[:dims])
    count = int(torch.tensor(mask["tensor"], dtype=torch.bool).sum())
    return [mask, k.constant((count, *t.size()[dims:]), t.dtype) if k.chance(1, 3) else k.number(t.dtype)]


def _set_indexed(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw distinct indices of one dimension with full slices of the others, and values."""
    dim = k.integer(0, t.dim() - 1)
    at = _negative_at_times(k, k.indices(t.size(dim), k.integer(1, 3), True), t.size(dim))
    index = index_of(dim, at if k.chance(1, 2) else tensor_of(at))
    size = [len(at) if j == dim else n for j, n in enumerate(t.size())]
    return [index, k.number(t.dtype) if k.chance(1, 2) else k.constant(size, t.dtype)]


def _set_pairs(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw distinct pairs of indices of the first two dimensions, and a number or one value per pair."""
    rows, columns = t.size()[:2]
    at = k.indices(rows * columns, k.integer(1, 3), True)
    index: Json = {
        "tuple": [tensor_of([index // columns for index in at]), tensor_of([index % columns for index in at])]
    }
    return [index, k.number(t.dtype) if k.chance(1, 2) else k.constant((len(at), *t.size()[2:]), t.dtype)]


def _two_rows(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.integer(0, t.size(0) - 1), k.integer(0, t.size(0) - 1)]


def _loopable(t: torch.Tensor) -> bool:
    return predicates.filled_numbers(t) and not t.requires_grad


def _loop(k: DrawContext) -> Step | None:
    """Draw a loop of setitems over the first or second dimension. A turn may read the write of an earlier turn."""
    name = k.pick_writable(_loopable)
    if name is None:
        return None
    t, own = k[name], tensor(name)
    kind = k.choice(("number", "add", "previous", "column"))
    if kind == "previous" and t.size(0) > 1:
        body = (
            Step("getitem", (own, {"i": [1, 0]}), out=("before",)),
            Step("add", (tensor("before"), 1), out=("after",)),
            Step("setitem", (own, {"i": [1, 1]}, tensor("after"))),
        )
        return Step("loop", body=body, times=t.size(0) - 1)
    if kind == "column" and t.dim() > 1 and t.size(1):
        return Step("loop", body=(Step("setitem", (own, index_of(1, {"i": [1, 0]}), {"i": [2, 1]})),), times=t.size(1))
    op = "augment" if kind == "add" else "setitem"
    return Step("loop", body=(Step(op, (own, {"i": [1, 0]}, {"i": [1, 1]})),), times=t.size(0))


written = functools.partial(row, pick=DrawContext.pick_writable, writes=0, may_raise=True)
"""A row that writes its first argument. If torch CPU rejects the write, the error is the answer."""
arithmetic = functools.partial(written, family="arithmetic", effect=COMPUTE, pointwise=True)
lossy = functools.partial(arithmetic, effect=LOSSY)
copy = functools.partial(written, family="copy", effect=MOVE)
setitem = functools.partial(written, family="setitem", effect=MOVE, form=SETITEM)
moving = functools.partial(written, family="indexed write", effect=MOVE)
"""A row that writes at the places of a mask or of indices."""
reducing = functools.partial(written, fits=predicates.filled_numbers, family="indexed write", effect=COMPUTE)

ROWS = [
    arithmetic("add_", _other_scaled, predicates.numeric, weight=4),
    arithmetic("sub_", _other_scaled, predicates.numeric),
    arithmetic("mul_", _other, predicates.numeric, weight=2),
    lossy("div_", lambda k, t: [k.choice((2, 4, 1))], predicates.floating),
    arithmetic("neg_", fits=predicates.negatable),
    arithmetic("conj_physical_", fits=torch.is_complex),
    arithmetic("abs_", fits=predicates.signed),
    arithmetic("sign_", _if_settled(nothing), predicates.number_like),
    *(arithmetic(name, _if_settled(nothing), predicates.floating) for name in ("floor_", "trunc_", "round_")),
    arithmetic("pow_", lambda k, t: [2], predicates.number_like),
    lossy("sqrt_", fits=predicates.floating),
    lossy("reciprocal_", fits=predicates.floating),
    arithmetic("nan_to_num_", lambda k, t: [7.0, 5.0, -5.0], predicates.floating),
    arithmetic("square_", fits=predicates.number_like),
    arithmetic("relu_", fits=predicates.number_like),
    lossy("sigmoid_", fits=predicates.floating),
    lossy("exp_", fits=predicates.small_floats),
    arithmetic("clamp_", _bounds, predicates.number_like),
    arithmetic("addcmul_", _multiplied, predicates.number_like),
    lossy("addcdiv_", _quotient, predicates.floating),
    lossy("lerp_", lambda k, t: [k.operand(t.size(), t.dtype, same=True), 0.5], predicates.floating),
    *(
        arithmetic(name, _if_settled(_divisor), predicates.number_like)
        for name in ("remainder_", "fmod_", "floor_divide_")
    ),
    *(arithmetic(name, _other, _whole) for name in ("bitwise_and_", "bitwise_or_", "bitwise_xor_")),
    arithmetic("bitwise_not_", fits=_whole),
    arithmetic("logical_not_", _if_settled(nothing), predicates.always),
    *(
        arithmetic(f"{name}_", _if_settled(_compared), predicates.number_like)
        for name in "logical_and logical_xor eq ne lt ge".split()
    ),
    *(
        arithmetic(name, lambda k, t: [k.integer(0, 3)], predicates.number_like)
        for name in ("clamp_min_", "clamp_max_")
    ),
    copy("copy_", _source, pointwise=True, weight=5),
    copy("fill_", a_number, constant=True, weight=2),
    copy("zero_", constant=True, weight=2),
    setitem("setitem", _set_basic, pointwise=True, weight=8),
    setitem(
        "augment",
        lambda k, t: [draw_index(k, t), k.number(t.dtype)],
        predicates.number_like,
        effect=COMPUTE,
        form=AUGMENT,
        weight=3,
    ),
    setitem("setitem.mask", _set_masked, predicates.has_dims(1), weight=2),
    setitem("setitem.index", _set_indexed, predicates.filled, weight=2),
    setitem("setitem.pairs", _set_pairs, lambda t: t.dim() > 1 and t.numel() > 0),
    setitem("swap_rows_", _two_rows, predicates.filled, form=DEFINED),
    moving("masked_fill_", masked, weight=2),
    moving("masked_scatter_", lambda k, t: [k.mask_for(t), k.constant((t.numel(),), t.dtype)]),
    moving("index_fill_", _index_fill, predicates.filled),
    moving("index_copy_", _index_source(True), predicates.filled),
    reducing("index_add_", _index_source(False)),
    reducing("index_reduce_", lambda k, t: [*_index_source(False)(k, t), k.choice(("prod", "amax", "amin"))]),
    moving("scatter_", _scatter(False), predicates.filled_numbers),
    reducing("scatter_.reduce", _scatter_reduced, call="scatter_"),
    reducing("scatter_reduce_", _scatter_reduce),
    reducing("scatter_add_", _scatter(True)),
    moving("index_put_", _index_put, predicates.filled, weight=2),
    moving("put_", _put, predicates.filled),
    # Under a dispatch mode torch CPU (2.13) lets it write to an inference tensor, otherwise it rejects that.
    moving("fill_diagonal_", _fill_diagonal, lambda t: predicates.matrix(t) and not t.is_inference(), weight=3),
    moving("tril_", near_diagonal, predicates.has_dims(2)),
    moving("triu_", near_diagonal, predicates.has_dims(2)),
    reducing("cumsum_", a_dim),
    reducing("cumprod_", a_dim),
    reducing("addmm_", _product, fits=lambda t: predicates.matrix(t) and predicates.number_like(t)),
    Op("loop", "setitem loop", MOVE, _loop, weight=3, results=0, fits=_loopable),
]
