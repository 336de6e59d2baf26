"""Ends of the arguments of a whole call: the ends of integers, dimensions without elements, strides without a meaning.

A fault often needs the same end in several tensors at once: the least integer divided by -1, or a query, a key and a
value without rows. So these functions change all tensors of a call together. Scripts carry the source of this module.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from conformance.standalone.moving import map_leaves


class Unchanged(ValueError):
    """A call that a change does not concern."""


def with_ends(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a call whose integer tensors hold the ends of their dtype, -1 and 1.

    Each pair of them meets in two tensors with enough elements. Raises Unchanged without such a tensor."""
    numbers = itertools.count()

    def filled(leaf: torch.Tensor) -> torch.Tensor:
        if leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.dtype == torch.bool or not leaf.numel():
            return leaf
        info = torch.iinfo(leaf.dtype)
        ends = torch.tensor([info.min, -1 if info.min else 0, 1, info.max, info.min + 1], dtype=leaf.dtype)
        repeats = len(ends) ** next(numbers)
        return ends[torch.arange(leaf.numel()) // repeats % len(ends)].view(leaf.shape)

    return of_all(tree, filled)


def emptied(tree: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a call in which each dimension of one size has no elements: the size at this place among the sizes of the
    call. Raises Unchanged if there is none."""
    size = sizes(tree)[number]
    return of_all(tree, lambda leaf: _narrowed(leaf, size, 0))


def single(tree: dict[str, Any], number: int, stride: int) -> dict[str, Any]:
    """Return a call in which each dimension of one size has one element and this stride. Torch does not define the
    stride of such a dimension. Raises Unchanged if there is no such size."""
    size = sizes(tree)[number]

    def one(leaf: torch.Tensor) -> torch.Tensor:
        part = _narrowed(leaf, size, 1)
        if part is leaf:
            return leaf
        part = part.contiguous()
        strides = [stride if n == 1 else step for n, step in zip(part.shape, part.stride(), strict=True)]
        return part.as_strided(part.shape, strides)

    return of_all(tree, one)


def sizes(tree: dict[str, Any]) -> list[int]:
    """Return the distinct sizes above 1 of the dimensions of a call's tensors, in order. Raises Unchanged if there is
    none."""
    distinct: dict[int, None] = {}

    def visit(leaf: torch.Tensor) -> torch.Tensor:
        distinct.update(dict.fromkeys(size for size in leaf.shape if size > 1))
        return leaf

    _each(tree, visit)
    if not distinct:
        raise Unchanged("no tensor has a dimension of several elements")
    return list(distinct)


def of_all(tree: dict[str, Any], change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """Return a call with its strided tensors changed; a tensor that occurs twice remains one object.

    Raises Unchanged if none changes."""
    replaced: dict[int, tuple[Any, torch.Tensor]] = {}

    def changed(leaf: torch.Tensor) -> torch.Tensor:
        if id(leaf) not in replaced:
            plain = leaf.detach()
            with torch.no_grad():
                new = change(plain)
            replaced[id(leaf)] = leaf if new is plain else new.requires_grad_(leaf.requires_grad), leaf
        return replaced[id(leaf)][0]

    whole = _each(tree, changed)
    if all(new is old for new, old in replaced.values()):
        raise Unchanged("no tensor changes")
    return whole


def _each(tree: dict[str, Any], change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    def leaf(value: Any) -> Any:
        strided = isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta
        return change(value) if strided else value

    return {name: map_leaves(part, leaf) for name, part in tree.items()}


def _narrowed(leaf: torch.Tensor, size: int, count: int) -> torch.Tensor:
    part = leaf
    for dim, n in enumerate(leaf.shape):
        part = part.narrow(dim, 0, count) if n == size else part
    return part if part is leaf else part.clone(memory_format=torch.contiguous_format)
