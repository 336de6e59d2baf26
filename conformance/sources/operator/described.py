"""Whether a call is one that the user's description of the inputs allows, and smaller ones that it allows.

description = parse({"x": "float32[n, 2*n]", "sizes": {"n": "8..128 step 8"}})
described_sizes(description, {"x": torch.zeros(16, 32)}, near={})  # {"n": 16}
described_sizes(description, {"x": torch.zeros(1, 2)}, near={})    # None: a script must not show it
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from conformance.sources.operator.inputs import (
    Alternative,
    Description,
    Lengths,
    Number,
    Range,
    Tensor,
    Value,
    evaluated,
)

Sizes = dict[str, int]


def described_sizes(
    description: Description, values: Mapping[str, Any], near: Mapping[str, int], any_dtype: bool = False
) -> Sizes | None:
    """Return the sizes of inputs that the description allows; None for others. Sizes that no dimension tells are those
    in `near`. With `any_dtype`, tensors may have other dtypes."""
    if {*values} != {*description.arguments}:
        return None
    for chosen in itertools.product(*description.arguments.values()):
        forms = dict(zip(description.arguments, chosen))
        if all(has_form(forms[name], value, any_dtype) for name, value in values.items()):
            sizes = sizes_of_forms(description, forms, values, near)
            if sizes is not None and all(is_allowed(forms[name], value, sizes) for name, value in values.items()):
                return sizes
    return None


def has_form(form: Alternative, value: Any, any_dtype: bool) -> bool:
    """Whether a value is of the kind of an alternative: for a tensor, its dtype and number of dimensions."""
    if isinstance(form, Tensor):
        if not isinstance(value, torch.Tensor) or value.dim() != len(form.dims):
            return False
        return any_dtype or str(value.dtype).removeprefix("torch.") in form.dtypes
    if isinstance(form, Number):
        return type(value) is (int if form.kind == "int" else float)
    return repr(value) == repr(form.value) if isinstance(form, Value) else isinstance(value, list)


def sizes_of_forms(
    description: Description, forms: Mapping[str, Alternative], values: Mapping[str, Any], near: Mapping[str, int]
) -> Sizes | None:
    """Return the sizes that the dimensions have, if they lie in their ranges."""
    sizes = dict(near)
    for name, form in forms.items():
        if isinstance(form, (Tensor, Lengths)):
            lengths = values[name].shape if isinstance(form, Tensor) else values[name]
            if len(lengths) != len(form.dims):
                return None
            sizes |= {dim: length for dim, length in zip(form.dims, lengths) if dim in description.sizes}
    known: Sizes = {}
    for name, one in description.sizes.items():
        low, high = ends_of(one, known)
        if not low <= sizes[name] <= high or (sizes[name] - low) % one.step:
            return None
        known[name] = sizes[name]
    return known


def ends_of(one: Range, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the least and the largest value of a size."""
    low, high = (max(int(end), 0) for end in one.within(sizes))
    return low, max(high, low)


def is_allowed(form: Alternative, value: Any, sizes: Sizes) -> bool:
    """Whether a value of the right kind has the lengths, and lies in the range, that these sizes give."""
    if isinstance(form, (Tensor, Lengths)):
        lengths = value.shape if isinstance(form, Tensor) else value
        if [*lengths] != [int(evaluated(dim, sizes)) for dim in form.dims]:
            return False
    if isinstance(form, Number):
        low, high = form.range.within(sizes)
        return bool(low <= value <= high)
    if not isinstance(form, Tensor) or form.range is None or not value.numel():
        return True
    # The ends are rounded as the drawn values are.
    low, high = torch.tensor(form.range.within(sizes), dtype=torch.float64).to(value.dtype).tolist()
    flat = value.detach().flatten()
    if not bool(((flat >= low) & (flat <= high)).all()):
        return False
    if form.word == "unique":
        return flat.unique().numel() == flat.numel()
    return form.word != "sorted" or bool((flat[1:] >= flat[:-1]).all())


def smaller_inputs(description: Description, values: Mapping[str, Any], sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield the inputs with one size smaller: the first elements of each tensor, and values cut to their range."""
    known: Sizes = {}
    for name, one in description.sizes.items():
        low, _ = ends_of(one, known)
        now = known[name] = sizes[name]
        half = low + (now - low) // 2 // one.step * one.step
        for size in dict.fromkeys((low, half, now - one.step)):
            if low <= size < now:
                yield {key: fitted(description, key, value, {**sizes, name: size}) for key, value in values.items()}


def fitted(description: Description, name: str, value: Any, sizes: Sizes) -> Any:
    """Return an input as smaller sizes need it."""
    for form in description.arguments[name]:
        if isinstance(form, Lengths) and isinstance(value, list):
            return [int(evaluated(dim, sizes)) for dim in form.dims]
        if isinstance(form, Tensor) and isinstance(value, torch.Tensor) and value.dim() == len(form.dims):
            lengths = [max(int(evaluated(dim, sizes)), 0) for dim in form.dims]
            part = value.detach()[tuple(map(slice, lengths))]
            low, high = form.range.within(sizes) if form.range else (0, 0)
            if form.word == "unique":
                part = (part.argsort().argsort() + int(low)).to(part.dtype)
            elif form.range and part.numel() and low <= high:
                part = part.clamp(low, high)
            return part.clone() if value.is_contiguous() else part
    return value
