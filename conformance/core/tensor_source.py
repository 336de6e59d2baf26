"""Tensors as short Python: `torch.arange(6.0).view(2, 3)`, `s[:, 1:].t()`; `as_strided` only where nothing else does.

The key insight: a short form is true if it makes the same tensor, so each candidate is evaluated and the shortest of
those whose dtype, values, size, strides and offset are the wanted ones is taken. Nothing is derived and then trusted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch


class NoSource(Exception):
    """A value that has no short Python form."""


def storage_source(flat: torch.Tensor) -> str:
    """An expression for a CPU tensor of one dimension or none that is a whole storage. Raises NoSource."""
    try:
        wanted = repr(flat.tolist())
    except RuntimeError as error:
        raise NoSource(str(error)) from error
    for candidate in _storages(flat):
        try:
            made = eval(candidate, {"torch": torch})  # noqa: S307 - the text is made of numbers here
        except (RuntimeError, TypeError, ValueError, OverflowError):
            continue
        # By text, since nan is nan whatever its payload, and -0.0 is not 0.0.
        if made.dtype is flat.dtype and made.shape == flat.shape and repr(made.tolist()) == wanted:
            return f"({candidate})" if " % " in candidate else str(candidate)
    raise NoSource(f"a storage of {flat.dtype}")


def _storages(flat: torch.Tensor) -> Iterator[str]:
    count, dtype = flat.numel(), f", dtype={flat.dtype}"
    if flat.dim() == 0:
        first = literal(
            (_shortest(flat[None], flat[None].tolist()) if flat.dtype.is_floating_point else [flat.item()])[0]
        )
        yield from (f"torch.tensor({first})", f"torch.tensor({first}{dtype})")
        return
    if count > 1 and flat.dtype is not torch.bool:
        yield from (f"torch.arange({count})", f"torch.arange({count}.0)", f"torch.arange({count}{dtype})")
        yield f"torch.arange({count}.0).to({flat.dtype})"
        yield from (f"torch.arange({count}{extra}) % 100" for extra in ("", ".0", dtype))
    if count > 3:
        first = literal(flat[0].item())
        yield from (f"torch.full(({count},), {first})", f"torch.full(({count},), {first}{dtype})")
    if not count:
        yield from ("torch.empty(0)", f"torch.empty(0{dtype})")
    values = flat.tolist()
    if flat.dtype.is_floating_point:
        values = _shortest(flat, values)
    yield from (f"torch.tensor({literal(values)}{extra})" for extra in ("", dtype))
    yield f"torch.tensor({literal(flat.tolist())}{dtype})"
    yield f"torch.tensor({literal(flat.tolist())}).to({flat.dtype})"


def _shortest(flat: torch.Tensor, values: list[float]) -> list[float]:
    """The numbers with as few digits as the dtype needs."""
    for digits in (6, 7, 8, 9):
        rounded = [float(f"{value:.{digits}g}") for value in values]
        again = torch.tensor(rounded, dtype=flat.dtype)
        values = [
            short if same else value
            for short, value, same in zip(rounded, values, (again == flat).tolist(), strict=True)
        ]
    return values


def view_source(flat: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> str:
    """What to append to a 1-d tensor to get this view of it: nothing, `.view(2, 3)`, `[1:].view(2, 2).t()`, ..."""
    wanted = (tuple(size), tuple(stride), offset)
    best = f".as_strided({wanted[0]}, {wanted[1]}, {offset})"
    for candidate in _views(flat.numel(), *wanted):
        if len(candidate) >= len(best):
            continue
        try:
            made = eval(f"s{candidate}", {"s": flat})  # noqa: S307 - the text is made of numbers here
        except (RuntimeError, IndexError, ValueError):
            continue
        if (tuple(made.size()), made.stride(), made.storage_offset()) == wanted:
            best = candidate
    return best


def _views(count: int, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Iterator[str]:
    """Ways to write it that may be right: a dense block or a row of slices, then permuted, then expanded."""
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
        return
    if 0 in size or 0 in stride:
        return
    # A base whose rows are as long as the strides say, of which each dimension is a slice.
    units = [*stride[:-1], 1]
    for start in (0, offset):
        rest, slices, base = offset - start, [], []
        for dim, (n, unit) in enumerate(zip(size, units, strict=True)):
            whole = (count - start) // unit if dim == 0 else units[dim - 1] // unit
            step = stride[-1] if dim == len(size) - 1 else 1
            first, rest = divmod(rest, unit)
            last = first + (n - 1) * step + 1
            base.append(whole)
            slices.append(_slice(first, last, step, whole))
        used = math.prod(base)
        cut = _slice(start, start + used, 1, count)
        root = ("" if cut == ":" else f"[{cut}]") + (f".view({_plain(base)})" if len(base) > 1 else "")
        while slices and slices[-1] == ":":
            slices.pop()
        yield root + (f"[{', '.join(slices)}]" if slices else "")


def _slice(first: int, last: int, step: int, whole: int) -> str:
    end = "" if last + step > whole else str(last)
    return f"{first or ''}:{end}" + (f":{step}" if step > 1 else "")


def _permuted(dims: tuple[int, ...], count: int) -> Iterator[str]:
    """From dimensions in this order back to the usual one; of those left out, each comes back with size 1."""
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
    flats: Sequence[torch.Tensor] = (),
    *,
    stays: Collection[str] = (),
    own: bool = False,
    exposes: bool = True,
    longest: int | None = None,
) -> list[str]:
    """The lines that make these CPU tensors on the device `device`, each storage once; those in `stays` stay on the
    CPU. `flats` are storages whose dtype is known. With `own`, or where several share a storage, each is a tensor of
    its own as those are that the harness makes, and no view to autograd. `exposes` says that the device's tensors show
    storages. Raises NoSource, also where storages have more than `longest` elements."""
    whole = {flat.untyped_storage()._cdata: flat for flat in flats}
    groups: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in named:
        groups.setdefault(tensor.untyped_storage()._cdata, []).append((name, tensor))
    lines = []
    for number, (key, group) in enumerate(groups.items()):
        flat = whole[key] if key in whole else _flat(group)
        longest = None if longest is None else longest - flat.numel()
        if longest is not None and longest < 0:
            raise NoSource("too many elements")
        only = group[0][1]
        if len(group) == 1 and (flat.numel(), only.dim(), only.dtype) == (1, 0, flat.dtype):
            flat = flat[0]
        root = storage_source(flat) + ("" if group[0][0] in stays else ".to(device)")
        if len(group) > 1:
            lines.append(f"s{number} = {root}")
            root = f"s{number}"
        for name, tensor in group:
            text = _on(flat, tensor, root, (own or len(group) > 1) and exposes, exposes)
            lines.append(f"{name} = {text}{'.requires_grad_()' if tensor.requires_grad else ''}")
    return lines


def _flat(group: Sequence[tuple[str, torch.Tensor]]) -> torch.Tensor:
    if any(tensor.is_conj() or tensor.is_neg() for _, tensor in group):
        raise NoSource("a lazy conjugate")
    tensor = max((tensor for _, tensor in group), key=torch.Tensor.element_size)
    storage = tensor.untyped_storage()
    cells, rest = divmod(storage.nbytes(), tensor.element_size())
    if rest:
        raise NoSource("a storage of half an element")
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (cells,), (1,))


def _on(flat: torch.Tensor, tensor: torch.Tensor, root: str, own: bool, exposes: bool) -> str:
    place = (tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()))
    if flat.dim() == 0:
        return root
    try:
        seen = flat.view(tensor.dtype)
    except RuntimeError as error:  # the storage is no whole number of such elements
        if not exposes:
            raise NoSource(str(error)) from error
        size, stride, offset = place
        made = f"torch.empty(0, dtype={tensor.dtype}, device=device)"
        return f"{made}.set_({root}.untyped_storage(), {offset}, {size}, {stride})"
    root += "" if tensor.dtype is flat.dtype else f".view({tensor.dtype})"
    text = root + view_source(seen, *place)
    return text + (".data" if own and not (text.endswith(".to(device)")) else "")


def literal(value: Any) -> str:
    """A Python expression for a plain value, such that nan and inf survive. Raises NoSource when there is none."""
    if value is None or value is Ellipsis or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"{'-' if value < 0 else ''}torch.{abs(value)!s}"
    if isinstance(value, complex):
        finite = math.isfinite(value.real) and math.isfinite(value.imag)
        return repr(value) if finite else f"complex({literal(value.real)}, {literal(value.imag)})"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, torch.device):
        return repr(str(value))
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if type(value) in (tuple, torch.Size):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, slice):
        return f"slice({literal(value.start)}, {literal(value.stop)}, {literal(value.step)})"
    raise NoSource(f"a {type(value).__name__}")
