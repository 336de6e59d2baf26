"""Tensors as short Python: `torch.arange(6.0).view(2, 3)`, `s[:, 1:].t()`; `as_strided` only as a last resort.

A short form is correct if it makes the same tensor. So each candidate is evaluated; the shortest one with the right
dtype, values, size, strides and offset wins. No form is trusted without evaluation. Forms for a device use none of the
features in `declare/features.py` that it lacks.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from conformance.standalone.torch_compat import storage_id

ORDINARY = 16
"""Extra characters that ordinary views may need and still be preferred to `as_strided`, which not every device has."""


class NoSource(Exception):
    """The value has no short Python form."""


def storage_source(flat: torch.Tensor) -> str:
    """Return an expression for a CPU tensor of at most one dimension that is a whole storage. Raises NoSource."""
    try:
        wanted = repr(flat.tolist())
    except RuntimeError as error:
        raise NoSource(str(error)) from error
    for candidate in _storages(flat):
        try:
            tensor = eval(candidate, {"torch": torch})  # noqa: S307 - the text is made of numbers here
        except (RuntimeError, TypeError, ValueError, OverflowError):
            continue
        # Compare by text: nan equals nan whatever its payload, and -0.0 differs from 0.0.
        if tensor.dtype is flat.dtype and tensor.shape == flat.shape and repr(tensor.tolist()) == wanted:
            return f"({candidate})" if " % " in candidate else str(candidate)
    raise NoSource(f"a storage of {flat.dtype}")


def _storages(flat: torch.Tensor) -> Iterator[str]:
    count, dtype = flat.numel(), f", dtype={flat.dtype}"
    row = _shortest(flat.view(-1), flat.view(-1).tolist()) if flat.dtype.is_floating_point else flat.view(-1).tolist()
    values = row if flat.dim() else row[0]
    if flat.dim() and count:
        numbers = [f"torch.zeros({count}", f"torch.ones({count}"]
        numbers += [f"torch.arange({count}", f"torch.arange({count}."] * (count > 1 and flat.dtype is not torch.bool)
        numbers += [f"torch.full(({count},), {literal(row[0])}"] * (count > 3)
        yield from (f"{number}{extra})" for extra in ("", dtype) for number in numbers)
        yield f"torch.arange({count}.).to({flat.dtype})"
        yield from (f"torch.arange({count}{extra}) % 100" for extra in ("", ".", dtype))
        yield f"(torch.arange({count}) % 100).to({flat.dtype})"
    elif flat.dim():
        yield from ("torch.empty(0)", f"torch.empty(0{dtype})")
    yield from (f"torch.tensor({literal(values)}{extra})" for extra in ("", dtype))
    yield f"torch.tensor({literal(flat.tolist())}{dtype})"
    yield f"torch.tensor({literal(flat.tolist())}).to({flat.dtype})"


def _shortest(flat: torch.Tensor, values: list[float]) -> list[float]:
    """Round the numbers to as few digits as the dtype needs."""
    for digits in (6, 7, 8, 9):
        rounded = [float(f"{value:.{digits}g}") for value in values]
        again = torch.tensor(rounded, dtype=flat.dtype)
        values = [
            short if same else value
            for short, value, same in zip(rounded, values, (again == flat).tolist(), strict=True)
        ]
    return values


def view_source(
    flat: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int, lacks: Collection[str] = ()
) -> str:
    """Return the suffix that turns a 1-d tensor into this view of it: nothing, `.view(2, 3)`, `[1:].view(2, 2).t()`,
    ... Raises NoSource if the device lacks the views that this takes."""
    without = frozenset({"as_strided", "unfold"} & {*lacks})
    return _shortest_view(without, flat.numel(), tuple(size), tuple(stride), offset)


@functools.lru_cache(10_000)
def _shortest_view(without: frozenset[str], count: int, *wanted: Any) -> str:
    general, flat = ".as_strided({}, {}, {})".format(*wanted), torch.empty(count)
    candidates = {*_views(count, *wanted)}
    if "as_strided" in without and 0 not in wanted[0]:
        candidates.add(_of_any_stride(count, *wanted))
    for candidate in sorted(candidates, key=lambda text: (len(text), text)):
        if len(candidate) >= len(general) + ORDINARY and "as_strided" not in without:
            break
        if ".unfold(" in candidate and "unfold" in without:
            continue
        try:
            view = eval(f"s{candidate}", {"s": flat})  # noqa: S307 - the text is made of numbers here
        except (RuntimeError, IndexError, ValueError):
            continue
        if (tuple(view.size()), view.stride(), view.storage_offset()) == wanted:
            return candidate
    if "as_strided" in without:
        raise NoSource(general)
    return general


def _views(count: int, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Iterator[str]:
    """Yield candidates for the view: a dense block or a row of slices, then permuted, then expanded."""
    core = [n if st or n == 1 else 1 for n, st in zip(size, stride, strict=True)]
    expand = f".expand({_plain(size)})" if tuple(core) != size else ""
    order = sorted(range(len(size)), key=lambda dim: -stride[dim])
    keep = [dim for dim in order if core[dim] != 1] if expand else order
    for dims in {tuple(keep), tuple(order), tuple(range(len(size)))}:
        for block in _blocks(count, [core[dim] for dim in dims], [stride[dim] for dim in dims], offset):
            for back in _permuted(dims, len(size)):
                yield block + back + expand


def _blocks(count: int, size: list[int], stride: list[int], offset: int) -> Iterator[str]:
    length = math.prod(size)
    for cut in ("", f"[{offset}:]", f"[:{length}]", f"[{offset}:{offset + length}]"):
        yield from (cut, f"{cut}.view({_plain(size) or '()'})", f"{cut}.view({_plain([*size[:-1], -1])})")
    if not size:
        yield f"[{offset}]"
    elif 0 not in size and 0 not in stride:
        yield from (_slices(count, size, stride, offset, start) for start in {*range(min(offset, 8) + 1), offset})
        yield _windows(count, size, stride, offset)


def _slices(count: int, size: list[int], stride: list[int], offset: int, start: int) -> str:
    """Return a base from cell `start` on, with rows as long as the strides require, and a slice of it in each
    dimension."""
    units, rest, slices, base = [*stride[:-1], 1], offset - start, list[str](), list[int]()
    for dim, (n, unit) in enumerate(zip(size, units, strict=True)):
        step = stride[-1] if dim == len(size) - 1 else 1
        first, rest = divmod(rest, unit)
        last = first + (n - 1) * step + 1
        base.append(units[dim - 1] // unit if dim else max(last, (count - start) // unit * (start in (0, offset))))
        slices.append(_slice(first, last, step, base[-1]))
    cut = _slice(start, start + math.prod(base), 1, count)
    while slices and slices[-1] == ":":
        slices.pop()
    root = ("" if cut == ":" else f"[{cut}]") + (f".view({_plain(base)})" if len(base) > 1 else "")
    return root + (f"[{', '.join(slices)}]" if slices else "")


def _windows(count: int, size: list[int], stride: list[int], offset: int) -> str:
    """Return nested windows, which may overlap and need not fill the last row. They express any positive strides."""
    lengths = [1 + sum((n - 1) * st for n, st in zip(size[dim:], stride[dim:])) for dim in range(len(size))]
    cut = _slice(offset, offset + lengths[0], 1, count)
    unfolded = "".join(f".unfold({dim}, {lengths[dim + 1]}, {stride[dim]})" for dim in range(len(size) - 1))
    step = f"[{'..., ' * (len(size) > 1)}::{stride[-1]}]" if stride[-1] > 1 else ""
    return ("" if cut == ":" else f"[{cut}]") + unfolded + step


def _of_any_stride(count: int, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> str:
    """Return the windows of the dimensions with a nonzero stride, with the other dimensions inserted. They express any
    geometry, also a stride of 0 at size 1."""
    moving = [dim for dim in range(len(size)) if stride[dim]]
    steps = [stride[dim] for dim in moving]
    windows = _windows(count, [size[dim] for dim in moving], steps, offset) if moving else f"[{offset}]"
    still = [dim for dim in range(len(size)) if dim not in moving]
    if not still:
        return windows
    wide = [max(n, 2) if dim in still else n for dim, n in enumerate(size)]
    cut = ["" if n == wide[dim] else ":1" for dim, n in enumerate(size)]
    while cut and not cut[-1]:
        cut.pop()
    added = "".join(f".unsqueeze({dim})" for dim in still) + f".expand({_plain(wide)})"
    return windows + added + (f"[{', '.join(part or ':' for part in cut)}]" if cut else "")


def _slice(first: int, last: int, step: int, whole: int) -> str:
    end = "" if last + step > whole else str(last)
    return f"{first or ''}:{end}" + (f":{step}" if step > 1 else "")


def _permuted(dims: tuple[int, ...], count: int) -> Iterator[str]:
    """Yield suffixes that bring dimensions from this order back to the usual one. Missing dimensions come back with
    size 1."""
    present = sorted(dims)
    back = [dims.index(dim) for dim in present]
    added = "".join(f".unsqueeze({dim})" for dim in range(count) if dim not in dims)
    moves = [""] if back == sorted(back) else [".t()"] if len(back) == 2 else [f".permute({_plain(back)})"]
    moves += [f".transpose({a}, {b})" for a, b in itertools.combinations(range(len(back)), 2)] if len(back) > 2 else []
    for move in moves:
        yield from {move, move + added}


def _plain(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def input_lines(
    named: Sequence[tuple[str, torch.Tensor]],
    flats: Mapping[int, torch.Tensor] | None = None,
    *,
    stays: Collection[str] = (),
    lacks: Collection[str] = (),
    longest: int | None = None,
) -> list[str]:
    """Return the lines that make these CPU tensors on the device `device`, each storage once. Tensors in `stays` stay
    on the CPU. `flats` maps a storage's identity to its 1-d tensor, if the dtype is known. None of the tensors is a
    view, as in the harness: autograd, and a compiler, treat a view of a base differently. `lacks` are the features that
    the device lacks. Raises NoSource, also if storages have more than `longest` elements."""
    groups: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in named:
        groups.setdefault(storage_id(tensor.untyped_storage()), []).append((name, tensor))
    lines = []
    for number, (key, group) in enumerate(groups.items()):
        flat = flats[key] if flats else _flat(group)
        longest = None if longest is None else longest - flat.numel()
        if longest is not None and longest < 0:
            raise NoSource("too many elements")
        only = group[0][1]
        if len(group) == 1 and (flat.numel(), only.dim(), only.dtype) == (1, 0, flat.dtype):
            flat = flat[0]
        root, stay = storage_source(flat), group[0][0] in stays
        if "view_dtype" in lacks and {tensor.dtype for _, tensor in group} != {flat.dtype} and not stay:
            flat, root = _seen_on_host(flat, root, only.dtype)
        move, missing = ("", frozenset[str]()) if stay else (".to(device)", frozenset(lacks))
        if len(group) > 1:
            lines.append(f"s{number} = {root}{move}")
            root, move = f"s{number}", ""
        for name, tensor in group:
            text = _on(flat, tensor, root, move, missing)
            lines.append(f"{name} = {text}{'.requires_grad_()' if tensor.requires_grad else ''}")
    return lines


def _seen_on_host(flat: torch.Tensor, root: str, dtype: torch.dtype) -> tuple[torch.Tensor, str]:
    """Return the storage viewed as this dtype, before it is moved. If it is no whole number of such elements, return it
    unchanged."""
    try:
        return flat.view(dtype), f"{root}.view({dtype})"
    except RuntimeError:
        return flat, root


def _flat(group: Sequence[tuple[str, torch.Tensor]]) -> torch.Tensor:
    if any(tensor.is_conj() or tensor.is_neg() for _, tensor in group):
        raise NoSource("a lazy conjugate")
    tensor = max((tensor for _, tensor in group), key=torch.Tensor.element_size)
    storage = tensor.untyped_storage()
    cells, rest = divmod(storage.nbytes(), tensor.element_size())
    if rest:
        raise NoSource("a storage of half an element")
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (cells,), (1,))


def _on(flat: torch.Tensor, tensor: torch.Tensor, root: str, move: str, lacks: Collection[str]) -> str:
    size, stride, offset = tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset())
    if flat.dim() == 0:
        return root + move
    base, apart = f"torch.empty(0, dtype={tensor.dtype}, device=device)", ".detach()" if "data" in lacks else ".data"
    laid_over = f"{base}.set_({root}{move}.untyped_storage(), {offset}, {size}, {stride}){apart}"
    if {"storages", "set_"} & {*lacks}:
        laid_over = ""
    try:
        if tensor.dtype is not flat.dtype and "view_dtype" in lacks:
            raise NoSource("a view of another dtype")
        seen = flat.view(tensor.dtype)
        view = view_source(seen, size, stride, offset, lacks)
    except (RuntimeError, NoSource) as error:  # the storage is no whole number of such elements, or the device lacks it
        if laid_over:
            return laid_over
        if move and isinstance(error, NoSource) and 0 in size:  # an empty tensor shares no memory
            return _on(flat, tensor, root, "", ()) + move
        raise NoSource(str(error)) from error
    root += move + ("" if tensor.dtype is flat.dtype else f".view({tensor.dtype})")
    if root.startswith(("torch.zeros(", "torch.ones(")) and view == f".view({_plain(size)})":
        return root.replace(f"({flat.numel()}", f"({_plain(size)}", 1)
    is_new = root.startswith(("torch.", "(")) and not view and tensor.dtype is flat.dtype
    return root + view + ("" if is_new else apart)


def _is_itself(value: complex) -> bool:
    """Whether the text that Python prints for a number evaluates to that number. Python parses `(1-0j)` as a
    subtraction, which loses the sign of the zero."""
    return math.isfinite(abs(value)) and repr(eval(repr(value))) == repr(value)  # noqa: S307 - the text is a number


def literal(value: Any) -> str:
    """Return a Python expression for a plain value that preserves nan and inf. Raises NoSource if there is none."""
    if isinstance(value, complex) and not _is_itself(value):
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{'-' if value < 0 else ''}torch.{abs(value)!s}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if type(value) in (tuple, torch.Size):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, torch.device):
        return repr(str(value))
    known = (type(None), type(Ellipsis), int, str, float, complex, slice)
    if isinstance(value, (*known, torch.dtype, torch.layout, torch.memory_format)):
        return repr(value)
    raise NoSource(f"a {type(value).__name__}")
