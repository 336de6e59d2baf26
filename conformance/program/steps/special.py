"""Steps with out=, in-place changes of metadata, autograd, queries, and calls that must raise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from conformance.program.steps import predicates
from conformance.program.steps.draw import DrawContext, tensor_of
from conformance.program.steps.op import (
    COMPUTE,
    DEFINED,
    FUNCTION,
    LOSSY,
    METADATA,
    MOVE,
    QUERY,
    SET_DATA,
    SETITEM,
    Json,
    Op,
    Step,
    tensor,
)
from conformance.program.steps.predicates import Fits
from conformance.program.steps.rows import Rest, a_dim, another, nothing, row, two_dims, without_grad
from conformance.standalone.torch_compat import is_view


def _same_size(k: DrawContext, t: torch.Tensor) -> Json:
    name = k.pick(lambda u: u.dtype == t.dtype and u.size() == t.size() and not u.requires_grad)
    return tensor(name) if name and k.chance(2, 3) else k.constant(t.size(), t.dtype)


def _constant(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.constant(t.size(), t.dtype)]


def _one(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [_same_size(k, t)]


def _two(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [_same_size(k, t), k.number(t.dtype) if k.chance(1, 3) else _same_size(k, t)]


def _cat(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [[k.constant((1, *t.size()[1:]), t.dtype), k.constant((t.size(0) - 1, *t.size()[1:]), t.dtype)], 0]


def _sum(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.constant((2, *t.size()), t.dtype), 0]


def _stack(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [[k.constant(t.size()[1:], t.dtype) for _ in range(t.size(0))], 0]


def _index_select(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [*_constant(k, t), 0, tensor_of(k.permutation(t.size(0)))]


def _masked_select(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [*_constant(k, t), tensor_of([True] * t.size(0), torch.bool)]


def _gather(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [*_constant(k, t), 0, tensor_of(torch.zeros(t.size(), dtype=torch.int64).tolist())]


def _number_matrix(t: torch.Tensor) -> bool:
    return predicates.number_like(t) and predicates.matrix(t)


def out(
    name: str,
    rest: Callable[[DrawContext, torch.Tensor], list[Json]],
    fits: Fits = predicates.number_like,
    effect: str = MOVE,
    **options: Any,
) -> Op:
    """Return a row that picks the out= tensor, of any layout, and draws inputs whose result has its size and dtype."""

    def writable(t: torch.Tensor) -> bool:
        return fits(t) and not t.requires_grad

    def rule(k: DrawContext) -> Step | None:
        written = k.pick_writable(writable)
        return Step(f"{name}.out", tuple(rest(k, k[written])), {"out": tensor(written)}) if written else None

    usual: dict[str, Any] = {"call": name, "writes": "out", "may_raise": True, "fits": writable}
    return Op(f"{name}.out", "out=", effect, rule, FUNCTION, **usual, **options)


computed = functools.partial(out, effect=COMPUTE)

OUT = [
    computed("add", _two, pointwise=True, weight=3),
    computed("mul", _two, pointwise=True),
    computed("neg", _one, predicates.signed, pointwise=True),
    out("exp", _constant, lambda t: predicates.floating(t) and t.numel() < 5, LOSSY),
    computed("sub", _two, pointwise=True),
    computed("maximum", lambda k, t: [_same_size(k, t), _same_size(k, t)], pointwise=True),
    computed("floor_divide", lambda k, t: [*_constant(k, t), k.divisor(t.size(), t.dtype)]),
    computed("clamp", lambda k, t: [_same_size(k, t), 0, 3], pointwise=True),
    out("cat", _cat, lambda t: t.dim() > 0 and t.size(0) > 1),
    out("stack", _stack, predicates.filled),
    out("index_select", _index_select, predicates.filled),
    out("masked_select", _masked_select, lambda t: t.dim() == 1 and t.numel() > 0),
    computed("matmul", lambda k, t: k.factors(t), _number_matrix),
    computed("mm", lambda k, t: k.factors(t), _number_matrix),
    computed("sum", _sum, lambda t: t.dtype in (torch.float32, torch.int64)),
    computed("cumsum", lambda k, t: [*_constant(k, t), k.dim(t)]),
    out("gather", _gather, predicates.filled),
    # torch CPU (2.13) uses one stride for all batch dims of the `out` of tril, and writes outside a 4-d view.
    out("tril", _one, lambda t: predicates.number_like(t) and t.dim() in (2, 3)),
]


def _geometry(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    cells = t.untyped_storage().nbytes() // t.element_size()
    if cells < 2:
        return None
    n = k.integer(1, min(4, cells))
    step = k.choice((1, 2)) if 2 * (n - 1) < cells else 1
    return [[n], [step], k.integer(0, cells - 1 - (n - 1) * step)]


def _set_view(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    source = k.pick(lambda u: u.dtype == t.dtype and not u.requires_grad)
    geometry = _geometry(k, k[source]) if source else None
    return [tensor(source), geometry[2], geometry[0], geometry[1]] if source and geometry else None


def _resize(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [[k.integer(1, 4) for _ in range(k.choice((1, 2)))]]


def _set_data(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    # Both tensors must agree in being conjugate views, negative views and inference tensors. torch compares their
    # dispatch keys except for backends that it lists as dense. So other devices reject pairs that the CPU accepts.
    def kind(u: torch.Tensor) -> tuple[object, ...]:
        return u.dtype, u.is_conj(), u.is_neg(), u.is_inference()

    source = k.pick(lambda u: kind(u) == kind(t) and not u.requires_grad and u is not t)
    return [tensor(source)] if source else None


laid_out = functools.partial(row, family="metadata in place", effect=METADATA, may_raise=True)


def metadata(name: str, rest: Rest = nothing, fits: Fits = predicates.always, **options: Any) -> Op:
    """Return a row that changes the metadata of a tensor that does not require grad."""
    return laid_out(name, rest, lambda t: fits(t) and not t.requires_grad, **options)


IN_PLACE = [
    metadata("t_", fits=lambda t: t.dim() <= 2, weight=2),
    *(metadata(name, two_dims, predicates.has_dims(1)) for name in ("transpose_", "swapdims_", "swapaxes_")),
    metadata("squeeze_"),
    metadata("squeeze_.dim", a_dim, call="squeeze_"),
    metadata("unsqueeze_", lambda k, t: [k.integer(0, t.dim())], lambda t: t.dim() < 4),
    metadata("as_strided_", _geometry, lambda t: t.untyped_storage().nbytes() > t.element_size(), weight=2),
    metadata("detach_", fits=lambda t: not is_view(t)),
    metadata("resize_filled_", _resize, form=DEFINED),
    laid_out("set_view_", _set_view, None, pick=without_grad, form=DEFINED),
    laid_out("set_data", _set_data, None, pick=without_grad, form=SET_DATA, call="data"),
]


def _could_want_grad(t: torch.Tensor) -> bool:
    return predicates.floating(t) and t.is_leaf and not t.requires_grad


def _multiplied(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.operand(t.size(), t.dtype, same=True)]


def _embedded(k: DrawContext) -> Step | None:
    """Draw rows of a matrix that requires grad; the gradient of the padding row is zero."""
    name = k.pick(_table)
    if name is None:
        return None
    count = k[name].size(0)
    at, padding = k.indices(count, k.integer(2, 4)), k.integer(0, count - 1)
    index = tensor_of([*at, padding] if k.chance(2, 3) else at)
    return Step("nn.functional.embedding", (index, tensor(name)), {"padding_idx": padding} if k.chance(2, 3) else {})


def _table(t: torch.Tensor) -> bool:
    return predicates.wants_grad(t) and predicates.floating(t) and predicates.matrix(t)


graph = functools.partial(row, family="autograd", effect=METADATA, may_raise=True)
recorded = functools.partial(row, fits=predicates.wants_grad, family="autograd")

AUTOGRAD = [
    graph("backward", _constant, predicates.has_graph, weight=6),
    recorded("mul.grad", _multiplied, effect=COMPUTE, form=FUNCTION, call="mul", weight=4),
    Op("nn.functional.embedding", "autograd", MOVE, _embedded, FUNCTION, fits=_table, weight=3),
    recorded("clone.grad", effect=MOVE, call="clone", weight=3),
    graph("requires_grad_", fits=_could_want_grad, pick=lambda k, fits: None if k.shadow.has_pieces else k.pick(fits)),
]


def _settled(k: DrawContext, fits: Fits) -> str | None:
    return k.pick(lambda t: fits(t) and k.shadow.level(t) < 2)


question = functools.partial(row, family="questions", effect=QUERY)

QUERIES = [
    question("item", fits=lambda t: t.numel() == 1 and not t.is_complex(), pick=_settled, weight=4),
    question("tolist", fits=lambda t: t.numel() < 30 and not t.is_complex(), pick=_settled, weight=2),
    question("same_base", another, None, form=DEFINED),
    question("is_contiguous", fits=None),
]


def _too_large(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [[t.untyped_storage().nbytes() // t.element_size() + 1, 2], [1, 1], k.integer(0, 2)]


def _unviewable(t: torch.Tensor) -> bool:
    try:
        t.detach().view(-1)
    except RuntimeError:
        return True
    return False


def _of_another_size(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.constant([n + 1 for n in t.size()], t.dtype)]


def _odd_floats(t: torch.Tensor) -> bool:
    return t.dtype is torch.float32 and t.dim() > 0 and t.size(-1) % 2 == 1


def error(name: str, rest: Rest, fits: Fits = predicates.always, **options: Any) -> Op:
    """Return a row of a call that torch must reject without changing any tensor."""
    options = {"call": name.partition(".")[0], "family": "errors", "effect": METADATA, "may_raise": True, **options}
    return row(name, rest, lambda t: fits(t) and t.numel() > 0, **options)


ERRORS = [
    error("view.error", lambda k, t: [[-1]], _unviewable, weight=3),
    error("view.count", lambda k, t: [[t.numel() + 1]]),
    error("select.range", lambda k, t: [k.dim(t), max(t.size()) + 1], predicates.has_dims(1)),
    error("transpose.range", lambda k, t: [t.dim(), 0], predicates.has_dims(1)),
    error("as_strided.range", _too_large),
    error("expand.error", lambda k, t: [[n + 1 for n in t.size()]], lambda t: any(n > 1 for n in t.size())),
    error("view.dtype.error", lambda k, t: [{"dtype": "float64"}], _odd_floats),
    error("setitem.range", lambda k, t: [t.size(0), 1], predicates.has_dims(1), form=SETITEM, call=""),
    error("add_.size", _of_another_size, lambda t: predicates.number_like(t) and t.dim() > 0, writes=0),
    error(
        "add_.dtype",
        lambda k, t: [k.constant((), torch.float32)],
        lambda t: t.dtype in (torch.int64, torch.uint8),
        writes=0,
    ),
    error("copy_.size", _of_another_size, predicates.has_dims(1), writes=0),
    error("index_select.range", lambda k, t: [0, tensor_of([t.size(0)])], predicates.has_dims(1)),
    error("item.error", nothing, lambda t: t.numel() > 1),
    error("unfold.range", lambda k, t: [0, t.size(0) + 1, 1], predicates.has_dims(1)),
]

ROWS = [*OUT, *IN_PLACE, *AUTOGRAD, *QUERIES, *ERRORS]
