"""Special values in a sample: zeros of both signs, ties, subnormals, the extremes of the dtype, inf, nan.

Defines `placed`. A clean sample has shapes and arguments that the op accepts, so these remain and only elements change.
The places follow from the tensor's position and size, so they are the same on every machine and in a script. A complex
number takes special values in its real part, in its imaginary part, or in both.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch

from conformance.standalone.moving import map_leaves, storage_key

SHARE = 3
"""One of this many elements becomes special, and at least one."""

FLOAT_TIERS: dict[str, Callable[[torch.finfo], Sequence[float]]] = {
    "specials_zeros": lambda info: (0.0, -0.0),
    "specials_ties": lambda info: (-1.0, 0.0, 1.0),
    "specials_negative": lambda info: (-0.5, -1.0, -2.5),
    "specials_subnormal": lambda info: (info.smallest_normal / 2, -info.smallest_normal / 4, info.smallest_normal),
    "specials_extremes": lambda info: (info.max, info.min, info.eps),
    "specials_large": lambda info: (100.5, -1000.25, info.max**0.25),
    "specials_inf": lambda info: (torch.inf, -torch.inf),
    "specials_nan": lambda info: (torch.nan,),
}
INTEGER_TIERS: dict[str, Callable[[torch.iinfo], Sequence[int]]] = {
    "specials_zeros": lambda info: (0,),
    "specials_ties": lambda info: (0, 1, 2),
    "specials_negative": lambda info: (-1, -2, -7) if info.min else (),
    "specials_extremes": lambda info: (info.max, info.min, info.max - 1, info.min + 1),
}
"""Values of a tier as a function of a dtype's limits; integers do not change in tiers that are missing here."""


PARTS = ((0,), (1,), (0, 1))
"""Parts of a complex number that become special: the real, the imaginary, or both; a real number has only the first."""


def placed(
    tree: dict[str, Any],
    tier: str,
    dtype: torch.dtype,
    kept: Container[int] = (),
    names: Container[str] = (),
    positive: bool = False,
) -> dict[str, Any]:
    """Return a call's inputs with values of `tier` placed in the tensors of `dtype`.

    Only inputs in `names` change, or all if it is empty; storages in `kept` never do. With `positive`, the extremes of
    a floating dtype are placed among numbers of one sign. A tensor that occurs twice remains one object.
    """
    copies: dict[int, Any] = {}

    def replaced(leaf: Any) -> Any:
        if id(leaf) not in copies:
            copies[id(leaf)] = _placed(leaf, tier, len(copies), dtype, kept, positive), leaf  # alive: unique id
        return copies[id(leaf)][0]

    return {name: map_leaves(part, replaced) if not names or name in names else part for name, part in tree.items()}


def _placed(leaf: Any, tier: str, position: int, dtype: torch.dtype, kept: Container[int], positive: bool) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.dtype != dtype:
        return leaf
    values = special_values(dtype, tier)
    if leaf.is_meta or not leaf.numel() or storage_key(leaf) in kept or not values:
        return leaf
    drawn = random.Random(f"{tier} {position} {tuple(leaf.shape)}")
    with torch.no_grad():
        flat = leaf.detach().resolve_conj().reshape(-1).clone()
        if tier == "specials_equal":
            flat[:] = flat[0].item()
        else:
            share = 1 if tier == "specials_ties" else SHARE
            places = [at for at in range(len(flat)) if drawn.randrange(share) == 0] or [drawn.randrange(len(flat))]
            parts = torch.view_as_real(flat).unbind(-1) if dtype.is_complex else (flat,)
            # Complex numbers are equal only if both parts are.
            which = PARTS if tier != "specials_ties" else PARTS[2:]
            chosen = [drawn.choice(which) if dtype.is_complex else PARTS[0] for _ in places]
            for part, numbers in enumerate(parts):
                taken = [at for at, among in zip(places, chosen, strict=True) if part in among]
                numbers[taken] = torch.tensor([drawn.choice(values) for _ in taken], dtype=numbers.dtype)
        if tier == "specials_extremes" and positive and dtype.is_floating_point:
            flat = flat.abs()
        tensor = torch.empty_like(leaf.detach()).copy_(flat.view(leaf.shape))
    return tensor.requires_grad_(leaf.requires_grad)


def special_values(dtype: torch.dtype, tier: str) -> Sequence[float]:
    """Return the values of a tier in a dtype, or in one part of a complex dtype. `specials_equal` returns one arbitrary
    value; a dtype without the tier, such as bool, returns none.
    """
    if tier == "specials_equal":
        return (1,)
    if dtype.is_floating_point or dtype.is_complex:
        return FLOAT_TIERS[tier](torch.finfo(dtype))
    if dtype is torch.bool or tier not in INTEGER_TIERS:
        return ()
    return INTEGER_TIERS[tier](torch.iinfo(dtype))
