"""Steps whose result is a new tensor: copies that must not alias, moves, arithmetic and reductions on odd layouts."""
from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.steps.draw import MOST_ELEMENTS, Situation
from conformance.steps.op import COMPUTE, DEFINED, FUNCTION, LOSSY, MOVE, VIEW, Json, Op, Step, tensor
from conformance.steps.views import Fits, Rest, always, draw_shape, has_dims, hide_one, on
from conformance.steps.writes import draw_mask, floating, long_tensor, number_like


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
        name = k.pick(lambda t: t.dim() > 0 and t.numel() <= MOST_ELEMENTS // 4)
        if name is None:
            return None
        t = k[name]
        second = k.operand(t.size(), t.dtype, same=True)
        size = k[second["t"]].size() if "t" in second else torch.tensor(second["tensor"]).size()
        if size != t.size():
            second = tensor(name)
        return Step(op, ([tensor(name), second], k.dim(t)))
    return rule


def _gather(k: Situation, t: torch.Tensor) -> list[Json] | None:
    if not t.numel():
        return None
    dim = k.dim(t)
    size = [k.integer(1, n) for n in t.size()]
    index = torch.tensor(k.indices(t.size(dim), int(torch.Size(size).numel()))).reshape(size)
    return [dim, long_tensor(index.tolist())]


def _index_select(k: Situation, t: torch.Tensor) -> list[Json] | None:
    dim = k.dim(t)
    return [dim, long_tensor(k.indices(t.size(dim), k.integer(1, 3)))] if t.size(dim) else None


def _where(k: Situation) -> Step | None:
    name = k.pick()
    if name is None:
        return None
    t = k[name]
    return Step("where", (draw_mask(k, t), tensor(name), k.operand(t.size(), t.dtype, same=True)))


def _matmul(k: Situation) -> Step | None:
    name = k.pick(lambda t: number_like(t) and 1 <= t.dim() <= 3 and t.numel() > 0)
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
    return Step("empty_filled", ([*size], stride, {"dtype": k.choice([n for n in k.dtypes if n != "bool"])},
                                 {"device": 0}, k.integer(1, 3)))


def _small(t: torch.Tensor) -> bool:
    return t.numel() <= 32


def row(name: str, family: str, effect: str, rest: Rest = lambda k, t: [], fits: Fits = always,
        **options: object) -> Op:
    """A row that picks a tensor and returns a new one."""
    rule = decided if effect == DECIDED else on
    return Op(name, family, COMPUTE if effect == DECIDED else effect, rule(name, rest, fits), **options)  # type: ignore[arg-type]


DECIDED = "decided"
"""Computes, and a rounding error could change the answer."""

COPIES = [
    row("clone", "copies", MOVE, weight=3),
    row("contiguous", "copies", VIEW, weight=2),
    row("reshape", "copies", VIEW, _reshape, weight=4),
    row("flatten", "copies", VIEW),
    row("ravel", "copies", VIEW),
    row("to", "copies", MOVE, _to, weight=4),
    row("through_host", "copies", MOVE, fits=lambda t: not t.is_conj(), form=DEFINED),
    row("repeat", "copies", MOVE, lambda k, t: [*([k.integer(1, 2) for _ in range(t.dim() or 1)])], _small),
    row("flip", "copies", MOVE, lambda k, t: [k.subset(t.dim())]),
    row("roll", "copies", MOVE, lambda k, t: [k.integer(-2, 3), k.dim(t)], has_dims(1)),
    row("tril", "copies", MOVE, lambda k, t: [k.integer(-1, 1)], has_dims(2)),
    row("diag_embed", "copies", MOVE, _diag_embed, lambda t: t.dim() > 0 and _small(t), weight=3),
    row("diag", "copies", VIEW, lambda k, t: [k.integer(-1, 1)], lambda t: t.dim() == 1 and _small(t)),
    row("gather", "copies", MOVE, _gather, has_dims(1)),
    row("index_select", "copies", MOVE, _index_select, has_dims(1)),
    row("masked_fill", "copies", MOVE, lambda k, t: [draw_mask(k, t), k.number(t.dtype)]),
    Op("cat", "copies", MOVE, _joined("cat"), FUNCTION),
    Op("stack", "copies", MOVE, _joined("stack"), FUNCTION),
    Op("where", "copies", MOVE, _where, FUNCTION),
    Op("empty_filled", "empty_strided", MOVE, _empty_filled, DEFINED, weight=3),
]

COMPUTED = [
    Op("add", "out of place", COMPUTE, _two("add", number_like), FUNCTION, weight=3),
    Op("mul", "out of place", COMPUTE, _two("mul", number_like), FUNCTION, weight=2),
    row("sub", "out of place", COMPUTE, lambda k, t: [k.operand(t.size(), t.dtype)], number_like),
    row("neg", "out of place", COMPUTE, fits=lambda t: number_like(t) and t.dtype.is_signed),
    row("exp", "out of place", LOSSY, fits=lambda t: floating(t) and not bool((t.detach() > 8).any())),
    row("tanh", "out of place", LOSSY, fits=floating),
    row("eq", "out of place", DECIDED, lambda k, t: [k.number(t.dtype)], number_like),
    row("gt", "out of place", DECIDED, lambda k, t: [k.number(t.dtype)], number_like, weight=2),
    row("sum", "reduction", COMPUTE, fits=number_like, weight=2),
    row("sum.dim", "reduction", COMPUTE, lambda k, t: [k.dim(t), k.chance(1, 3)], number_like, call="sum", weight=2),
    row("mean", "reduction", LOSSY, lambda k, t: [k.dim(t)], lambda t: floating(t) and t.numel() > 0),
    row("amax", "reduction", COMPUTE, lambda k, t: [k.dim(t)], lambda t: number_like(t) and t.numel() > 0),
    row("argmax", "reduction", DECIDED, lambda k, t: [k.dim(t)], lambda t: floating(t) and distinct(t)),
    row("cumsum", "reduction", COMPUTE, lambda k, t: [k.dim(t)], number_like),
    row("softmax", "reduction", LOSSY, lambda k, t: [k.dim(t)], floating),
    row("sort", "reduction", DECIDED, lambda k, t: [k.dim(t)], lambda t: number_like(t) and distinct(t), results=2),
    Op("matmul", "matmul", COMPUTE, _matmul, FUNCTION, weight=2),
]


def distinct(t: torch.Tensor) -> bool:
    """Whether no two values are equal, so that an order is unique."""
    return 0 < t.numel() == t.detach().unique().numel() and not (t.is_floating_point() and bool(t.isnan().any()))


ROWS = [*COPIES, *COMPUTED]
