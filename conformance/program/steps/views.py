"""Steps that make views: nothing is written, and what they return shares the storage that it looks at."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from conformance.core.moving import whole_storage
from conformance.program.steps.draw import MOST_ELEMENTS, Situation, broadcasts, category
from conformance.program.steps.op import ATTRIBUTE, FUNCTION, GETITEM, VIEW, Json, Op, Step, tensor

Fits = Callable[[torch.Tensor], bool]
Rest = Callable[[Situation, torch.Tensor], "list[Json] | None"]


def always(t: torch.Tensor) -> bool:
    """Any tensor fits."""
    return True


def has_dims(least: int) -> Fits:
    """Tensors of at least so many dimensions."""
    return lambda t: t.dim() >= least


def on(op: str, rest: Rest = lambda k, t: [], fits: Fits = always) -> Callable[[Situation], Step | None]:
    """A rule: pick a tensor that fits, then draw the rest of the arguments from it (None: nothing to be drawn)."""

    def rule(k: Situation) -> Step | None:
        name = k.pick(fits)
        if name is None:
            return None
        drawn = rest(k, k[name])
        return None if drawn is None else Step(op, (tensor(name), *drawn))

    return rule


def draw_index(k: Situation, t: torch.Tensor) -> Json:
    """A basic index of the first or the last dims: ints, slices with steps, None and an ellipsis, also negative."""
    count = k.integer(min(1, t.dim()), t.dim())
    from_the_end = count < t.dim() and k.chance(1, 4)
    parts: list[Json] = []
    for n in t.size()[t.dim() - count :] if from_the_end else t.size()[:count]:
        if k.chance(1, 10):
            parts.append(None)
        if n and k.chance(1, 3):
            parts.append(k.integer(0, n - 1) - (n if k.chance(1, 3) else 0))
        else:
            parts.append(draw_slice(k, n))
    if from_the_end:
        parts.insert(0, {"ellipsis": 0})
    elif not parts or k.chance(1, 10):
        parts.append({"ellipsis": 0})
    return {"tuple": parts} if len(parts) != 1 or k.chance(1, 8) else parts[0]


def draw_slice(k: Situation, n: int) -> Json:
    """A slice of a dimension of length n: start, stop and step, now and then negative or beyond the end."""
    start, stop = k.integer(0, n), k.choice((n, n, max(n - 1, 0), n + 2))
    step = k.choice((None, None, 1, 2, 3))
    if start > 1 and k.chance(1, 3):
        start -= n + 1
    return {"slice": [k.choice((start, None)), k.choice((stop, None)), step]}


def _as_strided(k: Situation, t: torch.Tensor) -> list[Json] | None:
    cells = t.untyped_storage().nbytes() // t.element_size()
    if not cells:
        return [[0], [1], 0]
    size, stride, offset = [], [], k.integer(0, min(cells - 1, 4))
    room = cells - 1 - offset
    for _ in range(k.choice((1, 2, 2, 3))):
        step = k.choice((1, 2, 0, 3, 1, max(1, room // 2), max(1, room)))
        most = 4 if step == 0 else min(4, 1 + room // step)
        n = k.integer(1, most)
        room -= (n - 1) * step
        size.append(n)
        stride.append(step)
    order = k.permutation(len(size))
    return [[size[j] for j in order], [stride[j] for j in order], *([offset] if offset or k.chance(1, 2) else [])]


def _view(k: Situation, t: torch.Tensor) -> list[Json] | None:
    for _ in range(3):
        size = draw_shape(k, t.numel())
        try:
            t.detach().view(size)
        except RuntimeError:
            continue
        return [hide_one(k, size)]
    return [list(t.size())]


def draw_shape(k: Situation, count: int) -> list[int]:
    """A size with so many elements."""
    if not count:
        return list(k.choice(((0,), (2, 0), (0, 3))))
    size, left = [], count
    for _ in range(k.choice((1, 2, 2, 3))):
        n = k.choice([n for n in range(1, left + 1) if left % n == 0])
        size.append(n)
        left //= n
    return [*size, left] if left > 1 or not size else size


def hide_one(k: Situation, size: list[int]) -> list[int]:
    """The size, at times with one length left to torch as -1."""
    if size and 0 not in size and k.chance(1, 4):
        at = k.integer(0, len(size) - 1)
        return [*size[:at], -1, *size[at + 1 :]]
    return size


def _view_dtype(k: Situation, t: torch.Tensor) -> list[Json] | None:
    options = [name for name in k.dtypes if _reinterprets(t, getattr(torch, name))]
    if not options or not bits_are_defined(k, t):
        return None
    return [{"dtype": k.choice(options)}]


def _reinterprets(t: torch.Tensor, dtype: torch.dtype) -> bool:
    if dtype is torch.bool or t.dtype is torch.bool or t.is_complex() or dtype.is_complex or dtype == t.dtype:
        return False
    if dtype.itemsize == t.element_size():
        return True
    if dtype.itemsize < t.element_size():
        return t.dim() > 0 and t.stride(-1) == 1
    ratio = dtype.itemsize // t.element_size()
    divides = all(st * t.element_size() % dtype.itemsize == 0 for st in t.stride()[:-1])
    return (
        t.dim() > 0
        and t.stride(-1) == 1
        and t.size(-1) % ratio == 0
        and divides
        and t.storage_offset() % ratio == 0
        and t.untyped_storage().nbytes() % dtype.itemsize == 0
    )


def bits_are_defined(k: Situation, t: torch.Tensor) -> bool:
    """Whether the bits of the whole storage are known, so that they may be read as another dtype."""
    level = k.shadow.level(t)
    if level == 0 or not t.dtype.is_floating_point:
        return level < 2
    flat = whole_storage(t.detach())
    return level == 1 and not flat.isnan().any() and not ((flat == 0) & flat.signbit()).any()


def _expand(k: Situation, t: torch.Tensor) -> list[Json] | None:
    size = [k.choice((2, 3, 1)) if n == 1 else (-1 if k.chance(1, 4) else n) for n in t.size()]
    lead = [k.integer(1, 3) for _ in range(k.choice((0, 1, 1, 2)) if t.dim() < 3 else 0)]
    return (
        [[*lead, *(t.size(j) if lead and n == -1 and j < 0 else n for j, n in enumerate(size))]]
        if math.prod(lead) * t.numel() <= MOST_ELEMENTS
        else None
    )


def _unfold(k: Situation, t: torch.Tensor) -> list[Json] | None:
    dim = k.dim(t)
    n = t.size(dim) if t.dim() else 1
    return [dim, k.integer(1, n), k.integer(1, 3)] if n else None


def _select(k: Situation, t: torch.Tensor) -> list[Json]:
    dim = k.dim(t)
    n = t.size(dim)
    return [dim, k.integer(0, n - 1) - (n if k.chance(1, 4) else 0)]


def _narrow(k: Situation, t: torch.Tensor) -> list[Json]:
    dim = k.dim(t)
    start = k.integer(0, t.size(dim))
    return [dim, start, k.integer(0 if k.chance(1, 6) else min(1, t.size(dim) - start), t.size(dim) - start)]


def _diagonal(k: Situation, t: torch.Tensor) -> list[Json] | None:
    one, two, *_ = k.permutation(t.dim())
    return [k.choice((0, 1, -1, 2)), one, two]


def _unflatten(k: Situation, t: torch.Tensor) -> list[Json] | None:
    dim = k.dim(t)
    n = t.size(dim)
    part = k.choice([part for part in range(1, n + 1) if n % part == 0]) if n else 1
    return [dim, [part, n // part]]


def _pieces(
    op: str, most: Callable[[Situation, torch.Tensor, int], tuple[list[Json], int]]
) -> Callable[[Situation], Step | None]:
    """A rule for several views at once. Not beside autograd: once their base is written, torch refuses even to say
    whether such a view requires grad, so that it cannot be observed."""

    def rule(k: Situation) -> Step | None:
        if k.holds(lambda t: t.requires_grad):
            return None
        name = k.pick(divisible)
        if name is None:
            return None
        dim = k.dim(k[name])
        drawn, count = most(k, k[name], dim)
        return Step(op, (tensor(name), *drawn), out=k.shadow.fresh(count)) if 0 < count <= 5 else None

    return rule


def divisible(t: torch.Tensor) -> bool:
    """Tensors that can be cut into a few pieces."""
    return t.dim() > 0 and t.numel() > 0 and max(t.size()) <= 5


def _split(k: Situation, t: torch.Tensor, dim: int) -> tuple[list[Json], int]:
    size = k.integer(1, t.size(dim))
    return [size, dim], -(-t.size(dim) // size)


def _chunk(k: Situation, t: torch.Tensor, dim: int) -> tuple[list[Json], int]:
    chunks = k.integer(1, 4)
    return [chunks, dim], len(t.detach().chunk(chunks, dim))


def _tensor_split(k: Situation, t: torch.Tensor, dim: int) -> tuple[list[Json], int]:
    if k.chance(1, 2):
        cuts = sorted(k.integer(0, t.size(dim)) for _ in range(2))
        return [cuts, dim], 3
    return [n := k.integer(1, 4), dim], n


def _split_with_sizes(k: Situation, t: torch.Tensor, dim: int) -> tuple[list[Json], int]:
    first = k.integer(0, t.size(dim))
    return [[first, t.size(dim) - first], dim], 2


def _view_as(k: Situation, t: torch.Tensor) -> list[Json]:
    def viewable(u: torch.Tensor) -> bool:
        try:
            return u.numel() == t.numel() and t.detach().view(u.size()) is not None
        except RuntimeError:
            return False

    return [tensor(k.pick(viewable) or "")]


def _broadcast_tensors(k: Situation) -> Step | None:
    one = None if k.holds(lambda t: t.requires_grad) else k.pick()
    two = one and k.pick(lambda t: broadcasts(t.size(), k[one].size()))
    return Step("broadcast_tensors", (tensor(one), tensor(two))) if one and two else None


def has_one_dim(t: torch.Tensor) -> bool:
    """1-d tensors that are not empty."""
    return t.dim() == 1 and t.numel() > 0


def _meshgrid(k: Situation) -> Step | None:
    one = None if k.holds(lambda t: t.requires_grad) else k.pick(has_one_dim)
    two = one and k.pick(lambda t: has_one_dim(t) and t.dtype == k[one].dtype)
    return Step("meshgrid", (tensor(one), tensor(two)), {"indexing": k.choice(("ij", "xy"))}) if one and two else None


def row(name: str, rule: Callable[[Situation], Step | None], **options: object) -> Op:
    """A row of this family."""
    return Op(name, "view", VIEW, rule, **options)  # type: ignore[arg-type]


def simple(name: str, rest: Rest = lambda k, t: [], fits: Fits = always, **options: object) -> Op:
    """A row whose rule is `on`."""
    return row(name, on(name, rest, fits), fits=fits, **options)


ROWS = [
    row("getitem", on("getitem", lambda k, t: [draw_index(k, t)]), form=GETITEM, weight=6),
    simple("as_strided", _as_strided, lambda t: not t.is_conj() and not t.is_neg(), weight=5),
    simple("t", fits=lambda t: t.dim() <= 2, weight=2),
    simple("transpose", lambda k, t: [k.dim(t), k.dim(t)], weight=2),
    simple("permute", lambda k, t: [k.permutation(t.dim())], has_dims(2), weight=2),
    simple("movedim", lambda k, t: [k.dim(t), k.dim(t)], has_dims(1)),
    simple("moveaxis", lambda k, t: [k.dim(t), k.dim(t)], has_dims(1)),
    simple("swapaxes", lambda k, t: [k.dim(t), k.dim(t)], has_dims(1)),
    simple("swapdims", lambda k, t: [k.dim(t), k.dim(t)], has_dims(1)),
    simple("mT", fits=has_dims(2), form=ATTRIBUTE),
    simple("adjoint", fits=has_dims(2)),
    simple("conj", fits=torch.is_complex),
    simple("resolve_conj", fits=torch.is_complex),
    simple("select", _select, lambda t: t.dim() > 0 and t.numel() > 0, weight=2),
    simple("narrow", _narrow, has_dims(1), weight=2),
    simple("diagonal", _diagonal, has_dims(2), weight=3),
    simple("unfold", _unfold, weight=3),
    simple("expand", _expand, weight=2),
    simple("broadcast_to", _expand),
    simple("expand_as", lambda k, t: [tensor(k.pick(lambda u: broadcasts(t.size(), u.size())) or "")]),
    row("broadcast_tensors", _broadcast_tensors, form=FUNCTION, results=2),
    row("meshgrid", _meshgrid, form=FUNCTION, results=2, fits=has_one_dim),
    simple("view", _view, weight=3),
    simple("view_as", _view_as),
    simple("reshape_as", lambda k, t: [tensor(k.pick(lambda u: u.numel() == t.numel()) or "")]),
    simple("unflatten", _unflatten, has_dims(1)),
    simple("unsqueeze", lambda k, t: [k.integer(0, t.dim())], lambda t: t.dim() < 5),
    simple("squeeze"),
    row("squeeze.dim", on("squeeze.dim", lambda k, t: [k.dim(t)]), call="squeeze"),
    row("squeeze.dims", on("squeeze.dims", lambda k, t: [{"tuple": k.subset(t.dim())}]), call="squeeze"),
    simple(
        "view.dtype",
        _view_dtype,
        lambda t: not t.requires_grad and not t.is_neg() and t.numel() > 0 and category(t.dtype) in (1, 2),
        call="view",
        weight=2,
    ),
    simple("view_as_real", fits=lambda t: t.is_complex() and not t.is_conj(), form=FUNCTION, weight=3),
    simple(
        "view_as_complex",
        fits=lambda t: (
            t.dtype is torch.float32
            and t.dim() > 0
            and t.size(-1) == 2
            and t.stride(-1) == 1
            and t.storage_offset() % 2 == 0
            and all(n % 2 == 0 for n in t.stride()[:-1])
        ),
        form=FUNCTION,
        weight=3,
    ),
    simple("real", form=ATTRIBUTE, fits=torch.is_complex),
    simple("imag", form=ATTRIBUTE, fits=torch.is_complex),
    simple("detach"),
    simple("data", form=ATTRIBUTE),
    row("alias", on("alias"), form=FUNCTION, call="ops.aten.alias"),
    row("split", _pieces("split", _split), results=0, fits=divisible),
    row("split_with_sizes", _pieces("split_with_sizes", _split_with_sizes), results=0, fits=divisible),
    row("chunk", _pieces("chunk", _chunk), results=0, fits=divisible),
    row("tensor_split", _pieces("tensor_split", _tensor_split), results=0, fits=divisible),
    row("unbind", _pieces("unbind", lambda k, t, dim: ([dim], t.size(dim))), weight=2, results=0, fits=divisible),
]
