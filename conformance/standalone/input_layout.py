"""Construction of a tensor's layout on a device, with the features of `declare/features.py` that the device has.

The construction of inputs must not affect the findings. So a geometry is built in the best way that the device
supports: `set_`, else `as_strided`, else the shortest chain of ordinary views, else nested windows, else a plain copy.
Each way has the same outcome: a leaf that is no view to autograd and shares memory exactly where the original does. If
none works, the subject counts as not run, with the layout that could not be made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

import torch

from conformance.standalone.tensor_source import view_source
from conformance.standalone.torch_compat import neg_view


class LayoutUnavailable(Exception):
    """The device has no way to make an input of this geometry; the text states the geometry."""


def lay_out(flat: torch.Tensor, like: torch.Tensor, lacks: Collection[str] = (), alone: bool = False) -> torch.Tensor:
    """Return a tensor on the memory of `flat`, a dense 1-d device tensor, with the geometry, dtype and lazy bits of the
    CPU tensor `like`. `alone`: no other tensor shares that memory, so a copy is allowed. Raises LayoutUnavailable."""
    size, stride, offset = like.size(), like.stride(), int(like.storage_offset())
    if "storages" not in lacks and "set_" not in lacks:
        tensor = torch.empty(0, dtype=like.dtype, device=flat.device)
        # set_ counts as a write; the tensor that `.data` returns has version 0.
        tensor = tensor.set_(flat.untyped_storage(), offset, size, stride).data
    elif not ({"data", "as_strided"} & {*lacks}) and (typed := _typed(flat, like.dtype, lacks)) is not None:
        tensor = typed.as_strided(size, stride, offset).data
    else:
        tensor = _by_views(flat, like, lacks, alone)
    if like.is_conj():
        tensor = tensor.conj()
    return neg_view(tensor) if like.is_neg() else tensor


def _typed(flat: torch.Tensor, dtype: torch.dtype, lacks: Collection[str]) -> torch.Tensor | None:
    if flat.dtype is dtype:
        return flat
    bytes_divide = flat.numel() * flat.element_size() % torch.empty(0, dtype=dtype).element_size() == 0
    return flat.view(dtype) if bytes_divide and "view_dtype" not in lacks else None


def _by_views(flat: torch.Tensor, like: torch.Tensor, lacks: Collection[str], alone: bool) -> torch.Tensor:
    size, stride, offset = tuple(like.size()), tuple(like.stride()), int(like.storage_offset())
    typed = _typed(flat, like.dtype, lacks)
    if typed is not None and (alone or not {"data", "views"} & {*lacks}):
        host = torch.empty(typed.numel(), dtype=like.dtype)
        tensor: torch.Tensor | None = None
        # A device may refuse one kind of view and support the others. If a step uses the refused view, that is a
        # finding.
        with contextlib.suppress(Exception):
            chain = view_source(host, size, stride, offset, {*lacks, "as_strided"})
            tensor = eval(f"s{chain}", {"s": typed})  # noqa: S307 - the text is made of numbers here
        with contextlib.suppress(Exception):
            if tensor is None and "unfold" not in lacks:
                tensor = unfolded(typed, size, stride, offset)
        if tensor is not None:
            return tensor.detach() if "data" in lacks else tensor.data
    # A copy is equivalent only if no cell lies outside the view and no two elements share a cell.
    if alone and flat.numel() * flat.element_size() == like.numel() * like.element_size():
        plain = like.detach().resolve_conj().resolve_neg()
        plain = (plain.contiguous() if "strides_kept" in lacks else plain).to(flat.device, copy=True)
        geometry = (tuple(plain.size()), tuple(plain.stride()), plain.storage_offset())
        if like.is_contiguous() if "strides" in lacks else geometry == (size, stride, offset):
            return plain
    shared = "" if alone else " that shares memory with another input"
    raise LayoutUnavailable(f"a tensor of size {size}, strides {stride} and offset {offset}{shared}")


def unfolded(flat: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor | None:
    """Return a view of a 1-d tensor of any geometry, made by `unfold`, `narrow`, `expand` and `permute`: nested
    windows, the longest stride first. Return None for an empty view."""
    if 0 in size:
        return None
    dims = sorted((dim for dim in range(len(size)) if stride[dim]), key=lambda dim: -stride[dim])
    view = flat[offset:]
    for done, dim in enumerate(dims):
        window = 1 + sum((size[rest] - 1) * stride[rest] for rest in dims[done + 1 :])
        view = view.unfold(done, window, stride[dim]).narrow(done, 0, size[dim])
    view = view.select(-1, 0)
    for dim in (dim for dim in range(len(size)) if not stride[dim]):
        view = view.unsqueeze(-1).expand(*view.shape, max(size[dim], 2)).narrow(-1, 0, size[dim])
        dims.append(dim)
    return view.permute([dims.index(dim) for dim in range(len(size))])
