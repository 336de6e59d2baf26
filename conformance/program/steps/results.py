"""Steps that return a new tensor: copies that must not alias, arithmetic, reductions, matmul and network layers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from conformance.program.steps import predicates
from conformance.program.steps.draw import MOST_ELEMENTS, DrawContext, index_of, tensor_of
from conformance.program.steps.layouts import overlaps_itself
from conformance.program.steps.op import (
    COMPUTE,
    DEFINED,
    FUNCTION,
    GETITEM,
    LOSSY,
    MOVE,
    VIEW,
    Json,
    Op,
    Step,
    dtype_name,
    dtype_of,
    tensor,
)
from conformance.program.steps.predicates import Fits
from conformance.program.steps.rows import Given, Rest, a_dim, a_number, an_operand, decided, masked, near_diagonal, row
from conformance.program.steps.views import draw_shape, hide_one


def _to(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    options = [name for name in k.dtypes if _casts(k, t, getattr(torch, name))]
    return [{"dtype": k.choice(options)}] if options else None


def _casts(k: DrawContext, t: torch.Tensor, dtype: torch.dtype) -> bool:
    if t.is_complex() and not dtype.is_complex:
        return False
    return not t.dtype.is_floating_point or dtype.is_floating_point or dtype.is_complex or k.shadow.converts(t, dtype)


def _dims(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.subset(t.dim()) or [-1], k.chance(1, 3)]


def _advanced(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw a list or tensor of indices for one dimension. Indices may repeat and be negative."""
    dim = k.integer(0, t.dim() - 1)
    at = [index - t.size(dim) if k.chance(1, 4) else index for index in k.indices(t.size(dim), k.integer(1, 3))]
    return [index_of(dim, at if k.chance(1, 2) else tensor_of(at))]


def _scattered(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw a source for one row of the first dimension, and the index of that row."""
    return [k.constant(t.size()[1:], t.dtype), 0, k.integer(0, t.size(0) - 1)]


def _slice_scattered(k: DrawContext, t: torch.Tensor) -> list[Json]:
    start = k.integer(0, t.size(0) - 1)
    return [k.constant((t.size(0) - start, *t.size()[1:]), t.dtype), 0, start]


def _diagonal_scattered(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.constant(t.detach().diagonal().size(), t.dtype)]


def _pad(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [[k.integer(-1 if t.size(-1) > 2 else 0, 2), k.integer(0, 2)]]


def _right(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.number(t.dtype) if k.chance(1, 4) else k.operand(t.size(), t.dtype)]


def _right_scaled(k: DrawContext, t: torch.Tensor) -> Given:
    """Draw an operand, and sometimes its factor."""
    return Given(_right(k, t), {"alpha": k.integer(2, 3)} if k.chance(1, 5) else {})


def _mean(k: DrawContext, t: torch.Tensor) -> Given:
    """Draw a dimension, and sometimes a dtype that rounds no more than the tensor's."""
    floats = [dtype_of(name) for name in k.dtypes if dtype_of(name).is_floating_point]
    wider = [dtype_name(one) for one in floats if torch.finfo(one).eps <= torch.finfo(t.dtype).eps]
    return Given([k.dim(t)], {"dtype": {"dtype": k.choice(wider)}} if wider and k.chance(1, 4) else {})


def _joined(op: str) -> Callable[[DrawContext], Step | None]:
    def rule(k: DrawContext) -> Step | None:
        name = k.pick(_joinable)
        if name is None:
            return None
        t = k[name]
        second = k.operand(t.size(), t.dtype, same=True)
        size = k[second["t"]].size() if "t" in second else torch.tensor(second["tensor"]).size()
        if size != t.size():
            second = tensor(name)
        more = [k.constant(t.size(), t.dtype) for _ in range(k.choice((0, 0, 1, 2)))]
        return Step(op, ([tensor(name), second, *more], k.dim(t)))

    return rule


def _host_view(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.choice((1, 0)), k.choice(("t", "step", "expand"))]


def _joinable(t: torch.Tensor) -> bool:
    return t.dim() > 0 and t.numel() <= MOST_ELEMENTS // 4


def _gather(k: DrawContext, t: torch.Tensor) -> list[Json]:
    dim = k.dim(t)
    size = [k.integer(1, n) for n in t.size()]
    index = torch.tensor(k.indices(t.size(dim), int(torch.Size(size).numel()))).reshape(size)
    return [dim, tensor_of(index.tolist())]


def _index_select(k: DrawContext, t: torch.Tensor) -> list[Json]:
    dim, at = k.along(t)
    return [dim, tensor_of(at)]


def _where(k: DrawContext) -> Step | None:
    name = k.pick()
    if name is None:
        return None
    t = k[name]
    return Step("where", (k.mask_for(t), tensor(name), k.operand(t.size(), t.dtype, same=True)))


def _multipliable(t: torch.Tensor) -> bool:
    return predicates.numeric(t) and 1 <= t.dim() <= 3 and t.numel() > 0


def _second_factor(k: DrawContext, t: torch.Tensor) -> list[Json]:
    inner = t.size(-1)
    second = k.pick(lambda u: u.dtype == t.dtype and u.dim() in (1, 2) and u.size(0) == inner)
    return [tensor(second) if second else k.constant((inner, 2), t.dtype)]


def _diag_embed(k: DrawContext, t: torch.Tensor) -> list[Json]:
    first, second = k.choice(((-2, -1), (0, 1), (0, -1), (-1, 0)))
    return [k.choice((0, 1, -1, 2)), first, second]


def _empty_filled(k: DrawContext) -> Step | None:
    size = [k.integer(1, 3) for _ in range(k.choice((2, 1, 3)))]
    stride, step = [0] * len(size), k.choice((1, 2))
    for j in k.permutation(len(size))[::-1]:
        stride[j] = step
        step = step * size[j] + k.choice((0, 1, 2))
    telling = [name for name in k.dtypes if name != "bool"] or k.dtypes  # bools would nearly all be True
    return Step("empty_filled", ([*size], stride, {"dtype": k.choice(telling)}, {"device": 0}, k.integer(1, 3)))


def _images(dims: int) -> Fits:
    """Return the predicate on inputs of a network layer: finite floats, with channels and `dims` more dimensions."""

    def fits(t: torch.Tensor) -> bool:
        return (
            t.dtype in (torch.float32, torch.float64)
            and t.dim() in (dims + 1, dims + 2)
            and t.numel() > 0
            and bool(t.detach().isfinite().all())
        )

    return fits


def _conv(dims: int) -> Rest:
    """Return the rule for a convolution's weight, no bias, stride and padding.

    The weight is a tensor of the program if one has a suitable size, else a constant."""

    def rest(k: DrawContext, t: torch.Tensor) -> list[Json]:
        channels, space = t.size(t.dim() - dims - 1), t.size()[t.dim() - dims :]

        def fits(w: torch.Tensor) -> bool:
            return (
                w.dtype == t.dtype
                and w.dim() == dims + 2
                and w.size(1) == channels
                and 0 < w.numel() <= 64
                and all(a <= b for a, b in zip(w.size()[2:], space))
            )

        name = k.pick(fits)
        weight = k.constant((k.integer(1, 2), channels, *(k.integer(1, min(2, n)) for n in space)), t.dtype)
        return [tensor(name) if name else weight, None, k.choice((1, 2)), k.choice((0, 1))]

    return rest


def _pool(dims: int) -> Rest:
    """Return the rule for a pooling layer's kernel size, stride and padding."""

    def rest(k: DrawContext, t: torch.Tensor) -> list[Json]:
        size = min(2, *t.size()[t.dim() - dims :])
        return [size, k.choice((1, 2)), k.choice((0, 1)) if size > 1 else 0]

    return rest


def _channels_last(k: DrawContext, t: torch.Tensor) -> Given:
    return Given([], {"memory_format": {"memory_format": "channels_last"}})


def _small(t: torch.Tensor) -> bool:
    return t.numel() <= 32


def _plain(t: torch.Tensor) -> bool:
    """Return whether the tensor is filled and neither a conjugate nor a negative view."""
    return predicates.filled(t) and not t.is_conj() and not t.is_neg()


def _distinct(t: torch.Tensor) -> bool:
    """Return whether the values are distinct and without nan, so that their order is unique."""
    return 0 < t.numel() == t.detach().unique().numel() and not (t.is_floating_point() and bool(t.isnan().any()))


copied = functools.partial(row, family="copies", effect=MOVE)
viewed = functools.partial(copied, effect=VIEW)
"""A row that returns a view if the layout allows one, otherwise a copy."""
channels_last = functools.partial(copied, rest=_channels_last, fits=lambda t: t.dim() == 4)
computed = functools.partial(row, family="out of place", effect=COMPUTE)
reduced = functools.partial(row, family="reduction", effect=COMPUTE)
layer = functools.partial(row, family="layers", effect=LOSSY, form=FUNCTION)

COPIES = [
    copied("clone", weight=3),
    viewed("contiguous", weight=2),
    channels_last("contiguous.channels_last", effect=VIEW, call="contiguous"),
    channels_last("clone.channels_last", call="clone"),
    viewed("reshape", lambda k, t: [hide_one(k, draw_shape(k, t.numel()))], weight=4),
    viewed("flatten"),
    viewed("ravel"),
    copied("to", _to, weight=4),
    copied("through_host", fits=lambda t: not t.is_conj(), form=DEFINED),
    copied("from_host_view", _host_view, _plain, form=DEFINED, weight=2),
    copied("into_host_view", _host_view, _plain, form=DEFINED),
    copied("repeat", lambda k, t: [*([k.integer(1, 2) for _ in range(t.dim() or 1)])], _small),
    copied("flip", lambda k, t: [k.subset(t.dim())]),
    copied("roll", lambda k, t: [k.integer(-2, 3), k.dim(t)], predicates.has_dims(1)),
    copied("rot90", lambda k, t: [k.integer(0, 3)], predicates.has_dims(2)),
    copied("tile", lambda k, t: [{"tuple": [k.integer(1, 2), k.integer(1, 2)]}], _small),
    copied("tril", near_diagonal, predicates.has_dims(2)),
    copied("triu", near_diagonal, predicates.has_dims(2)),
    copied("nn.functional.pad", _pad, lambda t: predicates.filled(t) and _small(t), form=FUNCTION),
    copied("getitem.index", _advanced, predicates.filled, form=GETITEM),
    copied("masked_select", lambda k, t: [k.mask_for(t)]),
    copied("nonzero", effect=COMPUTE, pick=decided),
    copied("zeros_like", form=FUNCTION),
    copied("select_scatter", _scattered, lambda t: predicates.filled(t) and not overlaps_itself(t)),
    copied("slice_scatter", _slice_scattered, lambda t: predicates.filled(t) and not overlaps_itself(t)),
    copied("diagonal_scatter", _diagonal_scattered, lambda t: predicates.matrix(t) and not overlaps_itself(t)),
    copied("diag_embed", _diag_embed, lambda t: t.dim() > 0 and _small(t), weight=3),
    viewed("diag", near_diagonal, lambda t: t.dim() == 1 and _small(t)),
    copied("gather", _gather, predicates.filled),
    copied("index_select", _index_select, predicates.filled),
    copied("masked_fill", masked),
    Op("cat", "copies", MOVE, _joined("cat"), FUNCTION, fits=_joinable),
    Op("stack", "copies", MOVE, _joined("stack"), FUNCTION, fits=_joinable),
    Op("where", "copies", MOVE, _where, FUNCTION),
    Op("empty_filled", "empty_strided", MOVE, _empty_filled, DEFINED, weight=3),
]

COMPUTED = [
    computed("add", _right_scaled, predicates.numeric, form=FUNCTION, weight=3),
    computed("mul", _right, predicates.numeric, form=FUNCTION, weight=2),
    computed("maximum", an_operand, predicates.number_like, form=FUNCTION),
    computed("minimum", an_operand, predicates.number_like, form=FUNCTION),
    computed("sub", _right_scaled, predicates.numeric),
    computed("div", lambda k, t: [k.choice((2, 4))], predicates.numeric, effect=LOSSY),
    computed("floor_divide", lambda k, t: [k.choice((2, 3))], predicates.number_like, pick=decided),
    computed("pow", lambda k, t: [2], predicates.number_like),
    computed("clamp", lambda k, t: [0, 3], predicates.number_like),
    computed("abs", fits=predicates.signed),
    computed("neg", fits=predicates.negatable),
    computed("exp", fits=predicates.small_floats, effect=LOSSY),
    computed("tanh", fits=predicates.floating, effect=LOSSY),
    computed("eq", a_number, predicates.numeric, pick=decided),
    computed("gt", a_number, predicates.number_like, pick=decided, weight=2),
    computed("logical_not", pick=decided),
    reduced("sum", fits=predicates.numeric, weight=2),
    reduced("sum.dims", _dims, lambda t: predicates.number_like(t) and t.dim() > 0, call="sum"),
    reduced("prod", a_dim, predicates.filled_numbers),
    reduced("any", a_dim, predicates.has_dims(1), pick=decided),
    reduced("all", pick=decided),
    reduced("sum.dim", lambda k, t: [k.dim(t), k.chance(1, 3)], predicates.number_like, call="sum", weight=2),
    reduced("mean", _mean, lambda t: predicates.floating(t) and t.numel() > 0, effect=LOSSY),
    reduced("amax", a_dim, lambda t: predicates.number_like(t) and t.numel() > 0),
    reduced("amin", a_dim, lambda t: predicates.number_like(t) and t.numel() > 0),
    reduced("argmax", a_dim, lambda t: predicates.floating(t) and _distinct(t), pick=decided),
    reduced(
        "max.dim", a_dim, lambda t: predicates.number_like(t) and _distinct(t), pick=decided, call="max", results=2
    ),
    reduced("cumsum", a_dim, predicates.number_like),
    reduced("cumprod", a_dim, predicates.number_like),
    reduced("logsumexp", a_dim, lambda t: predicates.floating(t) and t.numel() > 0, effect=LOSSY),
    reduced("softmax", a_dim, predicates.floating, effect=LOSSY),
    reduced("sort", a_dim, lambda t: predicates.number_like(t) and _distinct(t), pick=decided, results=2),
    reduced("topk", lambda k, t: [1], lambda t: predicates.filled_numbers(t) and _distinct(t), pick=decided, results=2),
    row("matmul", _second_factor, _multipliable, family="matmul", effect=COMPUTE, form=FUNCTION, weight=2),
]

LAYERS = [
    layer("nn.functional.conv1d", _conv(1), _images(1), weight=2),
    layer("nn.functional.conv2d", _conv(2), _images(2), weight=3),
    layer("nn.functional.max_pool1d", _pool(1), _images(1), effect=COMPUTE),
    layer("nn.functional.max_pool2d", _pool(2), _images(2), effect=COMPUTE, weight=2),
    layer("nn.functional.avg_pool2d", _pool(2), _images(2)),
    layer("nn.functional.layer_norm", lambda k, t: [[t.size(-1)]], _images(0)),
    layer("nn.functional.linear", lambda k, t: [k.constant((2, t.size(-1)), t.dtype)], _images(0)),
]

ROWS = [*COPIES, *COMPUTED, *LAYERS]
