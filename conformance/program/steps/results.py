"""Steps whose result is a new tensor: copies that must not alias, moves, arithmetic and reductions on odd layouts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.program.steps.draw import MOST_ELEMENTS, Situation
from conformance.program.steps.layouts import overlaps_itself
from conformance.program.steps.op import COMPUTE, DEFINED, FUNCTION, GETITEM, LOSSY, MOVE, VIEW, Json, Op, Step, tensor
from conformance.program.steps.views import Fits, Rest, always, draw_shape, has_dims, hide_one, on
from conformance.program.steps.writes import (
    draw_mask,
    filled,
    filled_numbers,
    floating,
    long_tensor,
    matrix,
    number_like,
    numeric,
    signed,
    small_floats,
)


def decided(op: str, rest: Rest, fits: Fits = always) -> Callable[[Situation], Step | None]:
    """A rule for ops whose answer would turn on a rounding error: only where nothing was rounded."""

    def rule(k: Situation) -> Step | None:
        name = k.pick(fits)
        if name is None or k.shadow.level(k[name]) > 1:
            return None
        drawn = rest(k, k[name])
        return None if drawn is None else Step(op, (tensor(name), *drawn))

    return rule


def _to(k: Situation, t: torch.Tensor) -> list[Json] | None:
    options = [name for name in k.dtypes if _casts(k, t, getattr(torch, name))]
    return [{"dtype": k.choice(options)}] if options else None


def _casts(k: Situation, t: torch.Tensor, dtype: torch.dtype) -> bool:
    if t.is_complex() and not dtype.is_complex:
        return False
    return not t.dtype.is_floating_point or dtype.is_floating_point or dtype.is_complex or k.shadow.converts(t, dtype)


def _dims(k: Situation, t: torch.Tensor) -> list[Json]:
    return [k.subset(t.dim()) or [-1], k.chance(1, 3)]


def _advanced(k: Situation, t: torch.Tensor) -> list[Json]:
    """A list or tensor of indices for one dimension, repeated and negative ones among them."""
    dim = k.integer(0, t.dim() - 1)
    at = [one - t.size(dim) if k.chance(1, 4) else one for one in k.indices(t.size(dim), k.integer(1, 3))]
    return [{"tuple": [{"slice": [None, None, None]}] * dim + [at if k.chance(1, 2) else long_tensor(at)]}]


def _scattered(k: Situation, t: torch.Tensor) -> list[Json]:
    """A source for one row of the first dimension, and that row."""
    return [k.constant(t.size()[1:], t.dtype), 0, k.integer(0, t.size(0) - 1)]


def _slice_scattered(k: Situation, t: torch.Tensor) -> list[Json]:
    start = k.integer(0, t.size(0) - 1)
    return [k.constant((t.size(0) - start, *t.size()[1:]), t.dtype), 0, start]


def _diagonal_scattered(k: Situation, t: torch.Tensor) -> list[Json]:
    return [k.constant(t.detach().diagonal().size(), t.dtype)]


def _pad(k: Situation, t: torch.Tensor) -> list[Json]:
    return [[k.integer(-1 if t.size(-1) > 2 else 0, 2), k.integer(0, 2)]]


def _reshape(k: Situation, t: torch.Tensor) -> list[Json]:
    return [hide_one(k, draw_shape(k, t.numel()))]


def _two(op: str, fits: Fits) -> Callable[[Situation], Step | None]:
    def rule(k: Situation) -> Step | None:
        name = k.pick(fits)
        if name is None:
            return None
        right: Json = k.number(k[name].dtype) if k.chance(1, 4) else k.operand(k[name].size(), k[name].dtype)
        return Step(op, (tensor(name), right))

    return rule


def _joined(op: str) -> Callable[[Situation], Step | None]:
    def rule(k: Situation) -> Step | None:
        name = k.pick(_joinable)
        if name is None:
            return None
        t = k[name]
        second = k.operand(t.size(), t.dtype, same=True)
        size = k[second["t"]].size() if "t" in second else torch.tensor(second["tensor"]).size()
        if size != t.size():
            second = tensor(name)
        return Step(op, ([tensor(name), second], k.dim(t)))

    return rule


def _host_view(k: Situation, t: torch.Tensor) -> list[Json]:
    return [k.choice((1, 0)), k.choice(("t", "step", "expand"))]


def _joinable(t: torch.Tensor) -> bool:
    return t.dim() > 0 and t.numel() <= MOST_ELEMENTS // 4


def _gather(k: Situation, t: torch.Tensor) -> list[Json]:
    dim = k.dim(t)
    size = [k.integer(1, n) for n in t.size()]
    index = torch.tensor(k.indices(t.size(dim), int(torch.Size(size).numel()))).reshape(size)
    return [dim, long_tensor(index.tolist())]


def _index_select(k: Situation, t: torch.Tensor) -> list[Json]:
    dim = k.dim(t)
    return [dim, long_tensor(k.indices(t.size(dim), k.integer(1, 3)))]


def _where(k: Situation) -> Step | None:
    name = k.pick()
    if name is None:
        return None
    t = k[name]
    return Step("where", (draw_mask(k, t), tensor(name), k.operand(t.size(), t.dtype, same=True)))


def _multipliable(t: torch.Tensor) -> bool:
    return numeric(t) and 1 <= t.dim() <= 3 and t.numel() > 0


def _matmul(k: Situation) -> Step | None:
    name = k.pick(_multipliable)
    if name is None:
        return None
    t = k[name]
    inner = t.size(-1)
    second = k.pick(lambda u: u.dtype == t.dtype and u.dim() in (1, 2) and u.size(0) == inner)
    return Step("matmul", (tensor(name), tensor(second) if second else k.constant((inner, 2), t.dtype)))


def _diag_embed(k: Situation, t: torch.Tensor) -> list[Json]:
    first, second = k.choice(((-2, -1), (0, 1), (0, -1), (-1, 0)))
    return [k.choice((0, 1, -1, 2)), first, second]


def _empty_filled(k: Situation) -> Step | None:
    size = [k.integer(1, 3) for _ in range(k.choice((2, 1, 3)))]
    stride, step = [0] * len(size), k.choice((1, 2))
    for j in k.permutation(len(size))[::-1]:
        stride[j] = step
        step = step * size[j] + k.choice((0, 1, 2))
    telling = [name for name in k.dtypes if name != "bool"] or k.dtypes  # bools would nearly all be True
    return Step("empty_filled", ([*size], stride, {"dtype": k.choice(telling)}, {"device": 0}, k.integer(1, 3)))


def _like(op: str, fits: Fits) -> Callable[[Situation], Step | None]:
    def rule(k: Situation) -> Step | None:
        name = k.pick(fits)
        return Step(op, (tensor(name), k.operand(k[name].size(), k[name].dtype))) if name else None

    return rule


def images(dims: int) -> Fits:
    """What a network's layer over so many dimensions takes: channels before them, and nothing but finite floats."""

    def fits(t: torch.Tensor) -> bool:
        return (
            t.dtype in (torch.float32, torch.float64)
            and t.dim() in (dims + 1, dims + 2)
            and t.numel() > 0
            and bool(t.detach().isfinite().all())
        )

    return fits


def conv(dims: int) -> Rest:
    """A kernel, of the program's own tensors where one has the size, and at times stride, padding or dilation."""

    def rest(k: Situation, t: torch.Tensor) -> list[Json]:
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
        made = k.constant((k.integer(1, 2), channels, *(k.integer(1, min(2, n)) for n in space)), t.dtype)
        return [tensor(name) if name else made, None, k.choice((1, 2)), k.choice((0, 1))]

    return rest


def pool(dims: int) -> Rest:
    """A kernel, a stride, and at times padding."""

    def rest(k: Situation, t: torch.Tensor) -> list[Json]:
        size = min(2, *t.size()[t.dim() - dims :])
        return [size, k.choice((1, 2)), k.choice((0, 1)) if size > 1 else 0]

    return rest


def four_dims(t: torch.Tensor) -> bool:
    """What can be laid out channels last."""
    return t.dim() == 4


def _channels_last(op: str) -> Callable[[Situation], Step | None]:
    def rule(k: Situation) -> Step | None:
        name = k.pick(four_dims)
        return (
            Step(f"{op}.channels_last", (tensor(name),), {"memory_format": {"memory_format": "channels_last"}})
            if name
            else None
        )

    return rule


def _small(t: torch.Tensor) -> bool:
    return t.numel() <= 32


def row(
    name: str, family: str, effect: str, rest: Rest = lambda k, t: [], fits: Fits = always, **options: object
) -> Op:
    """A row that picks a tensor and returns a new one."""
    rule = decided if effect == DECIDED else on
    return Op(name, family, COMPUTE if effect == DECIDED else effect, rule(name, rest, fits), fits=fits, **options)  # type: ignore[arg-type]


NETWORK = "layers"
DECIDED = "decided"
"""Computes, and a rounding error could change the answer."""

COPIES = [
    row("clone", "copies", MOVE, weight=3),
    row("contiguous", "copies", VIEW, weight=2),
    Op("contiguous.channels_last", "copies", VIEW, _channels_last("contiguous"), call="contiguous", fits=four_dims),
    Op("clone.channels_last", "copies", MOVE, _channels_last("clone"), call="clone", fits=four_dims),
    row("reshape", "copies", VIEW, _reshape, weight=4),
    row("flatten", "copies", VIEW),
    row("ravel", "copies", VIEW),
    row("to", "copies", MOVE, _to, weight=4),
    row("through_host", "copies", MOVE, fits=lambda t: not t.is_conj(), form=DEFINED),
    row(
        "from_host_view",
        "copies",
        MOVE,
        _host_view,
        lambda t: filled(t) and not t.is_conj() and not t.is_neg(),
        form=DEFINED,
        weight=2,
    ),
    row(
        "into_host_view",
        "copies",
        MOVE,
        _host_view,
        lambda t: filled(t) and not t.is_conj() and not t.is_neg(),
        form=DEFINED,
    ),
    row("repeat", "copies", MOVE, lambda k, t: [*([k.integer(1, 2) for _ in range(t.dim() or 1)])], _small),
    row("flip", "copies", MOVE, lambda k, t: [k.subset(t.dim())]),
    row("roll", "copies", MOVE, lambda k, t: [k.integer(-2, 3), k.dim(t)], has_dims(1)),
    row("rot90", "copies", MOVE, lambda k, t: [k.integer(0, 3)], has_dims(2)),
    row("tile", "copies", MOVE, lambda k, t: [{"tuple": [k.integer(1, 2), k.integer(1, 2)]}], _small),
    row("tril", "copies", MOVE, lambda k, t: [k.integer(-1, 1)], has_dims(2)),
    row("triu", "copies", MOVE, lambda k, t: [k.integer(-1, 1)], has_dims(2)),
    row("nn.functional.pad", "copies", MOVE, _pad, lambda t: filled(t) and _small(t), form=FUNCTION),
    row("getitem.index", "copies", MOVE, _advanced, filled, form=GETITEM),
    row("masked_select", "copies", MOVE, lambda k, t: [draw_mask(k, t)]),
    row("nonzero", "copies", DECIDED),
    row("zeros_like", "copies", MOVE, form=FUNCTION),
    row("select_scatter", "copies", MOVE, _scattered, lambda t: filled(t) and not overlaps_itself(t)),
    row("slice_scatter", "copies", MOVE, _slice_scattered, lambda t: filled(t) and not overlaps_itself(t)),
    row("diagonal_scatter", "copies", MOVE, _diagonal_scattered, lambda t: matrix(t) and not overlaps_itself(t)),
    row("diag_embed", "copies", MOVE, _diag_embed, lambda t: t.dim() > 0 and _small(t), weight=3),
    row("diag", "copies", VIEW, lambda k, t: [k.integer(-1, 1)], lambda t: t.dim() == 1 and _small(t)),
    row("gather", "copies", MOVE, _gather, filled),
    row("index_select", "copies", MOVE, _index_select, filled),
    row("masked_fill", "copies", MOVE, lambda k, t: [draw_mask(k, t), k.number(t.dtype)]),
    Op("cat", "copies", MOVE, _joined("cat"), FUNCTION, fits=_joinable),
    Op("stack", "copies", MOVE, _joined("stack"), FUNCTION, fits=_joinable),
    Op("where", "copies", MOVE, _where, FUNCTION),
    Op("empty_filled", "empty_strided", MOVE, _empty_filled, DEFINED, weight=3),
]

COMPUTED = [
    Op("add", "out of place", COMPUTE, _two("add", numeric), FUNCTION, weight=3, fits=numeric),
    Op("mul", "out of place", COMPUTE, _two("mul", numeric), FUNCTION, weight=2, fits=numeric),
    Op("maximum", "out of place", COMPUTE, _like("maximum", number_like), FUNCTION, fits=number_like),
    Op("minimum", "out of place", COMPUTE, _like("minimum", number_like), FUNCTION, fits=number_like),
    row("sub", "out of place", COMPUTE, lambda k, t: [k.operand(t.size(), t.dtype)], numeric),
    row("div", "out of place", LOSSY, lambda k, t: [k.choice((2, 4))], numeric),
    row("floor_divide", "out of place", DECIDED, lambda k, t: [k.choice((2, 3))], number_like),
    row("pow", "out of place", COMPUTE, lambda k, t: [2], number_like),
    row("clamp", "out of place", COMPUTE, lambda k, t: [0, 3], number_like),
    row("abs", "out of place", COMPUTE, fits=signed),
    row("neg", "out of place", COMPUTE, fits=lambda t: t.is_complex() or signed(t)),
    row("exp", "out of place", LOSSY, fits=small_floats),
    row("tanh", "out of place", LOSSY, fits=floating),
    row("eq", "out of place", DECIDED, lambda k, t: [k.number(t.dtype)], numeric),
    row("gt", "out of place", DECIDED, lambda k, t: [k.number(t.dtype)], number_like, weight=2),
    row("logical_not", "out of place", DECIDED),
    row("sum", "reduction", COMPUTE, fits=numeric, weight=2),
    row("sum.dims", "reduction", COMPUTE, _dims, lambda t: number_like(t) and t.dim() > 0, call="sum"),
    row("prod", "reduction", COMPUTE, lambda k, t: [k.dim(t)], filled_numbers),
    row("any", "reduction", DECIDED, lambda k, t: [k.dim(t)], has_dims(1)),
    row("all", "reduction", DECIDED),
    row("sum.dim", "reduction", COMPUTE, lambda k, t: [k.dim(t), k.chance(1, 3)], number_like, call="sum", weight=2),
    row("mean", "reduction", LOSSY, lambda k, t: [k.dim(t)], lambda t: floating(t) and t.numel() > 0),
    row("amax", "reduction", COMPUTE, lambda k, t: [k.dim(t)], lambda t: number_like(t) and t.numel() > 0),
    row("amin", "reduction", COMPUTE, lambda k, t: [k.dim(t)], lambda t: number_like(t) and t.numel() > 0),
    row("argmax", "reduction", DECIDED, lambda k, t: [k.dim(t)], lambda t: floating(t) and distinct(t)),
    row(
        "max.dim",
        "reduction",
        DECIDED,
        lambda k, t: [k.dim(t)],
        lambda t: number_like(t) and distinct(t),
        call="max",
        results=2,
    ),
    row("cumsum", "reduction", COMPUTE, lambda k, t: [k.dim(t)], number_like),
    row("cumprod", "reduction", COMPUTE, lambda k, t: [k.dim(t)], number_like),
    row("logsumexp", "reduction", LOSSY, lambda k, t: [k.dim(t)], lambda t: floating(t) and t.numel() > 0),
    row("softmax", "reduction", LOSSY, lambda k, t: [k.dim(t)], floating),
    row("sort", "reduction", DECIDED, lambda k, t: [k.dim(t)], lambda t: number_like(t) and distinct(t), results=2),
    row("topk", "reduction", DECIDED, lambda k, t: [1], lambda t: filled_numbers(t) and distinct(t), results=2),
    Op("matmul", "matmul", COMPUTE, _matmul, FUNCTION, weight=2, fits=_multipliable),
]

NETWORKS = [
    row("nn.functional.conv1d", NETWORK, LOSSY, conv(1), images(1), form=FUNCTION, weight=2),
    row("nn.functional.conv2d", NETWORK, LOSSY, conv(2), images(2), form=FUNCTION, weight=3),
    row("nn.functional.max_pool1d", NETWORK, COMPUTE, pool(1), images(1), form=FUNCTION),
    row("nn.functional.max_pool2d", NETWORK, COMPUTE, pool(2), images(2), form=FUNCTION, weight=2),
    row("nn.functional.avg_pool2d", NETWORK, LOSSY, pool(2), images(2), form=FUNCTION),
    row("nn.functional.layer_norm", NETWORK, LOSSY, lambda k, t: [[t.size(-1)]], images(0), form=FUNCTION),
    row(
        "nn.functional.linear",
        NETWORK,
        LOSSY,
        lambda k, t: [k.constant((2, t.size(-1)), t.dtype)],
        images(0),
        form=FUNCTION,
    ),
]


def distinct(t: torch.Tensor) -> bool:
    """Whether no two values are equal, so that an order is unique."""
    return 0 < t.numel() == t.detach().unique().numel() and not (t.is_floating_point() and bool(t.isnan().any()))


ROWS = [*COPIES, *COMPUTED, *NETWORKS]
