"""Guard bytes around operands: detects calls for which torch CPU reads or writes out of bounds.

Defines `faults`. For example, with a changed index, a kernel that checks no bounds reads what lies behind its operand.
So the call runs on torch CPU once more, with each operand in the middle of a larger storage. If the answer differs, or
an element beside an operand has changed, torch CPU has no answer for the call.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from conformance.program.model import GivenInput
from conformance.program.trial import CpuAnswer
from conformance.sources.opinfo import catalog
from conformance.sources.opinfo.variants import SampleTrial
from conformance.standalone.layouts import contiguous_stride
from conformance.standalone.moving import map_leaves, storage_key, tensors, whole_storage
from conformance.standalone.oracles import Mismatch, compare

BEYOND = ("as_strided", "resize_", "_reshape_alias")
"""Beginnings of the names of operators that read or grow the whole storage of an operand."""

MARGIN = 64
"""Number of elements before and behind each operand."""
FILL = 1
"""Value of these elements. As an index it is mostly in range, so a wrong read shows and does not end the process."""


def faults(trial: SampleTrial) -> list[Mismatch]:
    """Return the differences between torch CPU's answer and its answer for operands within larger storages, and the
    writes beside operands. An operator without a defined value has no difference in values.
    """
    op = catalog.find(trial.case)
    if op.name.removeprefix("ops.aten.").startswith(BEYOND):
        return []
    copies: dict[int, Any] = {}

    def inner(given: GivenInput) -> GivenInput:
        tree = map_leaves(given.value, lambda leaf: copies.setdefault(id(leaf), _surrounded(leaf, given.kept)))
        return replace(given, value=tree)

    again = CpuAnswer(replace(trial.program, given=tuple(map(inner, trial.program.given)))).run
    mismatches = []
    for number, tensor in enumerate(tensors(again.inputs)):
        if _is_surrounded(tensor):
            flat = whole_storage(tensor.detach())
            beside = torch.cat([flat[:MARGIN], flat[-MARGIN:]])
            if not bool((beside == FILL).all()):
                mismatches.append(Mismatch("storage", f"tensor {number} of the call", "unchanged", "a write beside it"))
    oracles = {"error", "structure", "dtype", "shape", *(("value",) if catalog.has_value(op) else ())}
    return [*mismatches, *compare(trial.cpu.run.last, again.last, oracles=oracles, tolerance=trial.program.tolerance)]


def _surrounded(leaf: Any, kept: Collection[int]) -> Any:
    """Return a contiguous tensor within a larger storage; other leaves are returned unchanged."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.is_meta:
        return leaf
    if storage_key(leaf) in kept or not leaf.is_contiguous() or leaf.is_conj() or leaf.is_neg():
        return leaf
    with torch.no_grad():
        base = torch.full((leaf.numel() + 2 * MARGIN,), FILL, dtype=torch.uint8).to(leaf.dtype)
        view = base.as_strided(leaf.shape, contiguous_stride(leaf.shape), MARGIN)
        view.copy_(leaf.detach())
    return view.requires_grad_(leaf.requires_grad)


def _is_surrounded(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.storage_offset() != MARGIN:
        return False
    return tensor.untyped_storage().nbytes() == (tensor.numel() + 2 * MARGIN) * tensor.element_size()
