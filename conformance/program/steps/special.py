"""Steps that are neither a view nor a plain write: out=, metadata in place, autograd, questions, and calls that must
raise."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.program.steps.draw import Situation
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
from conformance.program.steps.views import Rest, always, has_dims, on
from conformance.program.steps.writes import Fits, floating, number_like


def _out(
    op: str, fits: Fits, rest: Callable[[Situation, torch.Tensor], list[Json] | None]
) -> Callable[[Situation], Step | None]:
    """Pick what is written, a view of any layout, then inputs whose result has exactly its size and dtype."""

    def rule(k: Situation) -> Step | None:
        name = k.pick_writable(lambda t: fits(t) and not t.requires_grad)
        if name is None:
            return None
        drawn = rest(k, k[name])
        return None if drawn is None else Step(op, tuple(drawn), {"out": tensor(name)})

    return rule


def _same_size(k: Situation, t: torch.Tensor) -> Json:
    name = k.pick(lambda u: u.dtype == t.dtype and u.size() == t.size() and not u.requires_grad)
    return tensor(name) if name and k.chance(2, 3) else k.constant(t.size(), t.dtype)


def _one(k: Situation, t: torch.Tensor) -> list[Json]:
    return [_same_size(k, t)]


def _two(k: Situation, t: torch.Tensor) -> list[Json]:
    return [_same_size(k, t), k.number(t.dtype) if k.chance(1, 3) else _same_size(k, t)]


def _cat(k: Situation, t: torch.Tensor) -> list[Json]:
    return [[k.constant((1, *t.size()[1:]), t.dtype), k.constant((t.size(0) - 1, *t.size()[1:]), t.dtype)], 0]


def _mm(k: Situation, t: torch.Tensor) -> list[Json]:
    return [k.constant((t.size(0), 2), t.dtype), k.constant((2, t.size(1)), t.dtype)]


def _sum(k: Situation, t: torch.Tensor) -> list[Json]:
    return [k.constant((2, *t.size()), t.dtype), 0]


def out_row(
    name: str,
    effect: str,
    rest: Callable[[Situation, torch.Tensor], list[Json] | None],
    fits: Fits = number_like,
    **options: object,
) -> Op:
    """A function that writes into `out=`."""
    return Op(
        name + ".out",
        "out=",
        effect,
        _out(name + ".out", fits, rest),
        FUNCTION,
        call=name,
        writes="out",
        may_raise=True,
        fits=lambda t: fits(t) and not t.requires_grad,
        **options,  # type: ignore[arg-type]
    )


OUT = [
    out_row("add", COMPUTE, _two, pointwise=True, weight=3),
    out_row("mul", COMPUTE, _two, pointwise=True),
    out_row("neg", COMPUTE, _one, lambda t: number_like(t) and t.dtype.is_signed, pointwise=True),
    out_row("exp", LOSSY, lambda k, t: [k.constant(t.size(), t.dtype)], lambda t: floating(t) and t.numel() < 5),
    out_row("sub", COMPUTE, _two, pointwise=True),
    out_row("maximum", COMPUTE, lambda k, t: [_same_size(k, t), _same_size(k, t)], pointwise=True),
    out_row("floor_divide", COMPUTE, lambda k, t: [k.constant(t.size(), t.dtype), k.divisor(t.size(), t.dtype)]),
    out_row("clamp", COMPUTE, lambda k, t: [_same_size(k, t), 0, 3], pointwise=True),
    out_row("cat", MOVE, _cat, lambda t: t.dim() > 0 and t.size(0) > 1),
    out_row(
        "stack",
        MOVE,
        lambda k, t: [[k.constant(t.size()[1:], t.dtype) for _ in range(t.size(0))], 0],
        lambda t: t.dim() > 0 and t.numel() > 0,
    ),
    out_row(
        "index_select",
        MOVE,
        lambda k, t: [k.constant(t.size(), t.dtype), 0, {"tensor": k.permutation(t.size(0)), "dtype": "int64"}],
        lambda t: t.dim() > 0 and t.numel() > 0,
    ),
    out_row(
        "masked_select",
        MOVE,
        lambda k, t: [k.constant(t.size(), t.dtype), {"tensor": [True] * t.size(0), "dtype": "bool"}],
        lambda t: t.dim() == 1 and t.numel() > 0,
    ),
    out_row("matmul", COMPUTE, _mm, lambda t: number_like(t) and t.dim() == 2 and t.numel() > 0),
    out_row("mm", COMPUTE, _mm, lambda t: number_like(t) and t.dim() == 2 and t.numel() > 0),
    out_row("sum", COMPUTE, _sum, lambda t: t.dtype in (torch.float32, torch.int64)),
    out_row("cumsum", COMPUTE, lambda k, t: [k.constant(t.size(), t.dtype), k.dim(t)]),
    out_row(
        "gather",
        MOVE,
        lambda k, t: [
            k.constant(t.size(), t.dtype),
            0,
            {"tensor": torch.zeros(t.size(), dtype=torch.int64).tolist(), "dtype": "int64"},
        ],
        lambda t: t.dim() > 0 and t.numel() > 0,
    ),
    # torch CPU (2.13) takes one stride for all batch dims of a tril's out, and writes outside a 4-d view.
    out_row("tril", MOVE, _one, lambda t: number_like(t) and t.dim() in (2, 3)),
]


def _metadata(name: str, rest: Rest = lambda k, t: [], fits: Fits = always, **options: object) -> Op:
    def fit(t: torch.Tensor) -> bool:
        return fits(t) and not t.requires_grad

    return Op(name, "metadata in place", METADATA, on(name, rest, fit), may_raise=True, fits=fit, **options)  # type: ignore[arg-type]


def _geometry(k: Situation, t: torch.Tensor) -> list[Json] | None:
    cells = t.untyped_storage().nbytes() // t.element_size()
    if cells < 2:
        return None
    n = k.integer(1, min(4, cells))
    step = k.choice((1, 2)) if 2 * (n - 1) < cells else 1
    return [[n], [step], k.integer(0, cells - 1 - (n - 1) * step)]


def _set_view(k: Situation) -> Step | None:
    name = k.pick(lambda t: not t.requires_grad)
    if name is None:
        return None
    t = k[name]
    source = k.pick(lambda u: u.dtype == t.dtype and not u.requires_grad)
    geometry = _geometry(k, k[source]) if source else None
    return (
        Step("set_view_", (tensor(name), tensor(source), geometry[2], geometry[0], geometry[1]))
        if geometry and source
        else None
    )


def _resize(k: Situation, t: torch.Tensor) -> list[Json]:
    return [[k.integer(1, 4) for _ in range(k.choice((1, 2)))]]


def _set_data(k: Situation) -> Step | None:
    name = k.pick(lambda t: not t.requires_grad)
    if name is None:
        return None
    target = k[name]

    # Both conjugate or negative views, or neither: torch compares their dispatch keys, save where it lists the backend
    # as dense, so that every other device refuses what the CPU takes.
    def fits(u: torch.Tensor) -> bool:
        alike = (u.dtype, u.is_conj(), u.is_neg()) == (target.dtype, target.is_conj(), target.is_neg())
        return alike and not u.requires_grad and u is not target

    source = k.pick(fits)
    return Step("set_data", (tensor(name), tensor(source))) if source else None


IN_PLACE = [
    _metadata("t_", fits=lambda t: t.dim() <= 2, weight=2),
    _metadata("transpose_", lambda k, t: [k.dim(t), k.dim(t)], has_dims(1)),
    _metadata("swapdims_", lambda k, t: [k.dim(t), k.dim(t)], has_dims(1)),
    _metadata("swapaxes_", lambda k, t: [k.dim(t), k.dim(t)], has_dims(1)),
    _metadata("squeeze_"),
    _metadata("squeeze_.dim", lambda k, t: [k.dim(t)], call="squeeze_"),
    _metadata("unsqueeze_", lambda k, t: [k.integer(0, t.dim())], lambda t: t.dim() < 4),
    _metadata("as_strided_", _geometry, lambda t: t.untyped_storage().nbytes() > t.element_size(), weight=2),
    _metadata("detach_", fits=lambda t: not t._is_view()),
    _metadata("resize_filled_", _resize, form=DEFINED),
    Op("set_view_", "metadata in place", METADATA, _set_view, DEFINED, may_raise=True),
    Op("set_data", "metadata in place", METADATA, _set_data, SET_DATA, may_raise=True),
]


def has_graph(t: torch.Tensor) -> bool:
    """Results that a gradient can be asked of."""
    return t.requires_grad and t.grad_fn is not None


def wants_grad(t: torch.Tensor) -> bool:
    """Tensors that require grad."""
    return t.requires_grad


def _backward(k: Situation) -> Step | None:
    name = k.pick(has_graph)
    return name and Step("backward", (tensor(name), k.constant(k[name].size(), k[name].dtype)))  # type: ignore[return-value]


def _leaf_use(k: Situation) -> Step | None:
    name = k.pick(wants_grad)
    return name and Step("mul.grad", (tensor(name), k.operand(k[name].size(), k[name].dtype, same=True)))  # type: ignore[return-value]


def could_want_grad(t: torch.Tensor) -> bool:
    """Leaves that do not require grad yet."""
    return floating(t) and t.is_leaf and not t.requires_grad


def _requires_grad(k: Situation) -> Step | None:
    name = k.pick(could_want_grad) if not k.shadow.has_pieces else None
    return Step("requires_grad_", (tensor(name),)) if name else None


AUTOGRAD = [
    Op("backward", "autograd", METADATA, _backward, may_raise=True, weight=6, fits=has_graph),
    Op("mul.grad", "autograd", COMPUTE, _leaf_use, FUNCTION, call="mul", weight=4, fits=wants_grad),
    Op("clone.grad", "autograd", MOVE, on("clone.grad", fits=wants_grad), call="clone", weight=3, fits=wants_grad),
    Op("requires_grad_", "autograd", METADATA, _requires_grad, may_raise=True, fits=could_want_grad),
]


def _relation(k: Situation) -> Step | None:
    one, two = k.pick(), k.pick()
    return Step("same_base", (tensor(one), tensor(two))) if one and two else None


def is_one(t: torch.Tensor) -> bool:
    """One element that is not complex."""
    return t.numel() == 1 and not t.is_complex()


def is_short(t: torch.Tensor) -> bool:
    """Few elements that are not complex."""
    return t.numel() < 30 and not t.is_complex()


def _settled(name: str, fits: Fits = always) -> Callable[[Situation], Step | None]:
    def rule(k: Situation) -> Step | None:
        found = k.pick(lambda t: fits(t) and k.shadow.level(t) < 2)
        return Step(name, (tensor(found),)) if found else None

    return rule


QUERIES = [
    Op("item", "questions", QUERY, _settled("item", is_one), weight=4, fits=is_one),
    Op("tolist", "questions", QUERY, _settled("tolist", is_short), weight=2, fits=is_short),
    Op("same_base", "questions", QUERY, _relation, DEFINED),
    Op("is_contiguous", "questions", QUERY, on("is_contiguous")),
]


def _bad(op: str, rest: Rest, fits: Fits = always) -> Callable[[Situation], Step | None]:
    return on(op, rest, lambda t: fits(t) and t.numel() > 0)


def _too_large(k: Situation, t: torch.Tensor) -> list[Json]:
    return [[t.untyped_storage().nbytes() // t.element_size() + 1, 2], [1, 1], k.integer(0, 2)]


def _unviewable(t: torch.Tensor) -> bool:
    try:
        t.detach().view(-1)
    except RuntimeError:
        return True
    return False


def error_row(name: str, rest: Rest, fits: Fits = always, **options: object) -> Op:
    """A call that torch must reject, and leave everything as it was."""
    return Op(
        name,
        "errors",
        METADATA,
        _bad(name, rest, fits),
        may_raise=True,
        fits=lambda t: fits(t) and t.numel() > 0,
        **options,  # type: ignore[arg-type]
    )


ERRORS = [
    error_row("view.error", lambda k, t: [[-1]], _unviewable, call="view", weight=3),
    error_row("view.count", lambda k, t: [[t.numel() + 1]], call="view"),
    error_row("select.range", lambda k, t: [k.dim(t), max(t.size()) + 1], has_dims(1), call="select"),
    error_row("transpose.range", lambda k, t: [t.dim(), 0], has_dims(1), call="transpose"),
    error_row("as_strided.range", _too_large, call="as_strided"),
    error_row(
        "expand.error", lambda k, t: [[n + 1 for n in t.size()]], lambda t: any(n > 1 for n in t.size()), call="expand"
    ),
    error_row(
        "view.dtype.error",
        lambda k, t: [{"dtype": "float64"}],
        lambda t: t.dtype is torch.float32 and t.dim() > 0 and t.size(-1) % 2 == 1,
        call="view",
    ),
    error_row("setitem.range", lambda k, t: [t.size(0), 1], has_dims(1), form=SETITEM),
    error_row(
        "add_.size",
        lambda k, t: [k.constant([n + 1 for n in t.size()], t.dtype)],
        lambda t: number_like(t) and t.dim() > 0,
        call="add_",
        writes=0,
    ),
    error_row(
        "add_.dtype",
        lambda k, t: [k.constant((), torch.float32)],
        lambda t: t.dtype in (torch.int64, torch.uint8),
        call="add_",
        writes=0,
    ),
    error_row(
        "copy_.size", lambda k, t: [k.constant([n + 1 for n in t.size()], t.dtype)], has_dims(1), call="copy_", writes=0
    ),
    error_row(
        "index_select.range",
        lambda k, t: [0, {"tensor": [t.size(0)], "dtype": "int64"}],
        has_dims(1),
        call="index_select",
    ),
    error_row("item.error", lambda k, t: [], lambda t: t.numel() > 1, call="item"),
    error_row("unfold.range", lambda k, t: [0, t.size(0) + 1, 1], has_dims(1), call="unfold"),
]

ROWS = [*OUT, *IN_PLACE, *AUTOGRAD, *QUERIES, *ERRORS]
