"""Steps that return views: they write nothing, and their results share the storage of the operand."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from conformance.program.steps import predicates
from conformance.program.steps.draw import MOST_ELEMENTS, DrawContext, broadcasts, category
from conformance.program.steps.op import ATTRIBUTE, FUNCTION, GETITEM, VIEW, Json, decode, tensor
from conformance.program.steps.rows import Given, Rest, a_dim, beside_no_grad, row, two_dims
from conformance.standalone.moving import whole_storage


def draw_index(k: DrawContext, t: torch.Tensor) -> Json:
    """Draw a basic index of the first or last dimensions: integers, slices, None and an ellipsis, also negative."""
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


def size_at(t: torch.Tensor, index: Json) -> torch.Size:
    """Return the size of the view that a basic index selects."""
    chosen: torch.Tensor = t.detach()[decode(index, {}, t.device)]
    return chosen.size()


def draw_slice(k: DrawContext, n: int) -> Json:
    """Draw a slice of a dimension of length n. The start may be negative, the stop beyond the end."""
    start, stop = k.integer(0, n), k.choice((n, n, max(n - 1, 0), n + 2))
    step = k.choice((None, None, 1, 2, 3))
    if start > 1 and k.chance(1, 3):
        start -= n + 1
    return {"slice": [k.choice((start, None)), k.choice((stop, None)), step]}


def _as_strided(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
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


def _view(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    for _ in range(3):
        size = draw_shape(k, t.numel())
        try:
            t.detach().view(size)
        except RuntimeError:
            continue
        return [hide_one(k, size)]
    return [list(t.size())]


def draw_shape(k: DrawContext, count: int) -> list[int]:
    """Draw a size with `count` elements."""
    if not count:
        return list(k.choice(((0,), (2, 0), (0, 3))))
    size, left = [], count
    for _ in range(k.choice((1, 2, 2, 3))):
        n = k.choice([n for n in range(1, left + 1) if left % n == 0])
        size.append(n)
        left //= n
    return [*size, left] if left > 1 or not size else size


def hide_one(k: DrawContext, size: list[int]) -> list[int]:
    """Return the size, sometimes with one length replaced by -1."""
    if size and 0 not in size and k.chance(1, 4):
        at = k.integer(0, len(size) - 1)
        return [*size[:at], -1, *size[at + 1 :]]
    return size


def _view_dtype(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    options = [name for name in k.dtypes if reinterprets(t, getattr(torch, name))]
    if not options or not bits_are_defined(k, t):
        return None
    return [{"dtype": k.choice(options)}]


def _reinterpretable(t: torch.Tensor) -> bool:
    return not t.requires_grad and not t.is_neg() and t.numel() > 0 and category(t.dtype) in (1, 2)


def reinterprets(t: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether `t.view(dtype)` is a view of another dtype that torch allows."""
    if dtype is torch.bool or t.dtype is torch.bool or t.is_complex() or dtype.is_complex or dtype == t.dtype:
        return False
    if dtype.itemsize == t.element_size():
        return True
    if t.dim() == 0 or t.stride(-1) != 1:
        return False
    ratio = dtype.itemsize // t.element_size()
    divided = (t.size(-1), t.storage_offset(), *t.stride()[:-1], t.untyped_storage().nbytes() // t.element_size())
    return ratio == 0 or all(n % ratio == 0 for n in divided)


def bits_are_defined(k: DrawContext, t: torch.Tensor) -> bool:
    """Return whether the bits of the whole storage are defined, so that another dtype may read them."""
    level = k.shadow.level(t)
    if level == 0 or not t.dtype.is_floating_point:
        return level < 2
    flat = whole_storage(t.detach())
    return level == 1 and not flat.isnan().any() and not ((flat == 0) & flat.signbit()).any()


def _expand(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    size = [k.choice((2, 3, 1)) if n == 1 else (-1 if k.chance(1, 4) else n) for n in t.size()]
    lead = [k.integer(1, 3) for _ in range(k.choice((0, 1, 1, 2)) if t.dim() < 3 else 0)]
    return [[*lead, *size]] if math.prod(lead) * t.numel() <= MOST_ELEMENTS else None


def _unfold(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    dim = k.dim(t)
    n = t.size(dim) if t.dim() else 1
    return [dim, k.integer(1, n), k.integer(1, 3)] if n else None


def _select(k: DrawContext, t: torch.Tensor) -> list[Json]:
    dim = k.dim(t)
    n = t.size(dim)
    return [dim, k.integer(0, n - 1) - (n if k.chance(1, 4) else 0)]


def _narrow(k: DrawContext, t: torch.Tensor) -> list[Json]:
    dim = k.dim(t)
    start = k.integer(0, t.size(dim))
    return [dim, start, k.integer(0 if k.chance(1, 6) else min(1, t.size(dim) - start), t.size(dim) - start)]


def _diagonal(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    first, second, *_ = k.permutation(t.dim())
    return [k.choice((0, 1, -1, 2)), first, second]


def _unflatten(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    dim = k.dim(t)
    n = t.size(dim)
    part = k.choice([part for part in range(1, n + 1) if n % part == 0]) if n else 1
    return [dim, [part, n // part]]


def _pieces(cut: Callable[[DrawContext, torch.Tensor, int], tuple[list[Json], int]]) -> Rest:
    """Return the rule of a call with several views as results. `cut` returns the arguments and the number of views."""

    def rest(k: DrawContext, t: torch.Tensor) -> Given | None:
        args, count = cut(k, t, k.dim(t))
        return Given(args, out=k.shadow.fresh(count)) if 0 < count <= 5 else None

    return rest


def _divisible(t: torch.Tensor) -> bool:
    return t.dim() > 0 and t.numel() > 0 and max(t.size()) <= 5


def _split(k: DrawContext, t: torch.Tensor, dim: int) -> tuple[list[Json], int]:
    size = k.integer(1, t.size(dim))
    return [size, dim], -(-t.size(dim) // size)


def _chunk(k: DrawContext, t: torch.Tensor, dim: int) -> tuple[list[Json], int]:
    chunks = k.integer(1, 4)
    return [chunks, dim], len(t.detach().chunk(chunks, dim))


def _tensor_split(k: DrawContext, t: torch.Tensor, dim: int) -> tuple[list[Json], int]:
    if k.chance(1, 2):
        cuts = sorted(k.integer(0, t.size(dim)) for _ in range(2))
        return [cuts, dim], 3
    return [n := k.integer(1, 4), dim], n


def _split_with_sizes(k: DrawContext, t: torch.Tensor, dim: int) -> tuple[list[Json], int]:
    first = k.integer(0, t.size(dim))
    return [[first, t.size(dim) - first], dim], 2


def _viewable(k: DrawContext, t: torch.Tensor) -> list[Json]:
    def fits(u: torch.Tensor) -> bool:
        try:
            return u.numel() == t.numel() and t.detach().view(u.size()) is not None
        except RuntimeError:
            return False

    return [tensor(k.pick(fits) or "")]


def _broadcast_tensors(k: DrawContext, t: torch.Tensor) -> list[Json] | None:
    other = k.pick(lambda u: broadcasts(u.size(), t.size()))
    return [tensor(other)] if other else None


def _has_one_dim(t: torch.Tensor) -> bool:
    return t.dim() == 1 and t.numel() > 0


def _meshgrid(k: DrawContext, t: torch.Tensor) -> Given | None:
    other = k.pick(lambda u: _has_one_dim(u) and u.dtype == t.dtype)
    return Given([tensor(other)], {"indexing": k.choice(("ij", "xy"))}) if other else None


def _pairs_of_floats(t: torch.Tensor) -> bool:
    pairs = t.dim() > 0 and t.size(-1) == 2 and t.stride(-1) == 1 and t.storage_offset() % 2 == 0
    return t.dtype is torch.float32 and pairs and all(n % 2 == 0 for n in t.stride()[:-1])


view = functools.partial(row, family="view", effect=VIEW)
pieces = functools.partial(view, fits=_divisible, pick=beside_no_grad, results=0)
pair = functools.partial(view, pick=beside_no_grad, form=FUNCTION, results=2)

ROWS = [
    view("getitem", lambda k, t: [draw_index(k, t)], None, form=GETITEM, weight=6),
    view("as_strided", _as_strided, lambda t: not t.is_conj() and not t.is_neg(), weight=5),
    view("t", fits=lambda t: t.dim() <= 2, weight=2),
    view("transpose", two_dims, weight=2),
    view("permute", lambda k, t: [k.permutation(t.dim())], predicates.has_dims(2), weight=2),
    *(view(name, two_dims, predicates.has_dims(1)) for name in ("movedim", "moveaxis", "swapaxes", "swapdims")),
    view("mT", fits=predicates.has_dims(2), form=ATTRIBUTE),
    view("adjoint", fits=predicates.has_dims(2)),
    view("conj", fits=torch.is_complex),
    view("resolve_conj", fits=torch.is_complex),
    view("select", _select, lambda t: t.dim() > 0 and t.numel() > 0, weight=2),
    view("narrow", _narrow, predicates.has_dims(1), weight=2),
    view("diagonal", _diagonal, predicates.has_dims(2), weight=3),
    view("unfold", _unfold, weight=3),
    view("expand", _expand, weight=2),
    view("broadcast_to", _expand),
    view("expand_as", lambda k, t: [tensor(k.pick(lambda u: broadcasts(t.size(), u.size())) or "")]),
    pair("broadcast_tensors", _broadcast_tensors, None),
    pair("meshgrid", _meshgrid, _has_one_dim),
    view("view", _view, weight=3),
    view("view_as", _viewable),
    view("reshape_as", lambda k, t: [tensor(k.pick(lambda u: u.numel() == t.numel()) or "")]),
    view("unflatten", _unflatten, predicates.has_dims(1)),
    view("unsqueeze", lambda k, t: [k.integer(0, t.dim())], lambda t: t.dim() < 5),
    view("squeeze"),
    view("squeeze.dim", a_dim, None, call="squeeze"),
    view("squeeze.dims", lambda k, t: [{"tuple": k.subset(t.dim())}], None, call="squeeze"),
    view("view.dtype", _view_dtype, _reinterpretable, call="view", weight=2),
    view("view_as_real", fits=lambda t: t.is_complex() and not t.is_conj(), form=FUNCTION, weight=3),
    view("view_as_complex", fits=_pairs_of_floats, form=FUNCTION, weight=3),
    view("real", form=ATTRIBUTE, fits=torch.is_complex),
    view("imag", form=ATTRIBUTE, fits=torch.is_complex),
    view("detach"),
    view("data", form=ATTRIBUTE),
    view("alias", fits=None, form=FUNCTION, call="ops.aten.alias"),
    pieces("split", _pieces(_split)),
    pieces("split_with_sizes", _pieces(_split_with_sizes)),
    pieces("chunk", _pieces(_chunk)),
    pieces("tensor_split", _pieces(_tensor_split)),
    pieces("unbind", _pieces(lambda k, t, dim: ([dim], t.size(dim))), weight=2),
]
