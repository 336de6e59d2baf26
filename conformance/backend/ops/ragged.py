"""Conversions between ragged batches (consecutive rows with the offsets of each sequence) and padded ones.

The position of each row depends only on the offsets. They are few, and are read on the host, where the CPU checks them
too. They become one index, and the rows stay on the device.
torch's jagged layout calls these two operators with the parts of a nested tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..dispatch import fallback
from ..dispatch.metadata import MetaRejected
from ..dispatch.registry import decomposition
from ..dispatch.tensors import is_tiny
from .bounds import read_on_host


def _bounds(offsets: Sequence[torch.Tensor], rows: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """First row and end row of each sequence, on the host; raises MetaRejected for offsets that the CPU refuses."""
    if len(offsets) != 1 or not is_tiny(offsets[0]) or offsets[0].dim() != 1 or len(offsets[0]) < 2:
        raise MetaRejected("one vector of offsets, on the device")
    read = read_on_host(offsets[0]).long()
    first, last = read[:-1], read[1:]
    total = int(read[-1])
    if read[0] or (last < first).any() or (rows is not None and total != rows):
        raise MetaRejected("offsets start at 0, ascend, and end at the number of rows")
    return first, last


@decomposition("_jagged_to_padded_dense_forward")
def jagged_to_padded(
    values: torch.Tensor, offsets: Sequence[torch.Tensor], max_lengths: Sequence[int], padding_value: float = 0.0
) -> torch.Tensor:
    """(rows, D) and the offsets of B sequences to (B, max_lengths[0], D): longer ones are cut, shorter ones padded."""
    if values.dim() != 2 or len(max_lengths) != 1:
        raise MetaRejected("values of two dimensions")
    first, last = _bounds(offsets, None)
    if int(last[-1]) > values.size(0):
        raise MetaRejected("offsets end within the values")
    place = first.unsqueeze(1) + torch.arange(max_lengths[0], device="cpu")
    there = place < last.unsqueeze(1)
    shape = (*place.shape, values.size(1))
    if not there.any():
        return values.new_full(shape, padding_value)
    index = values.device.index or 0
    chosen = values.index_select(0, fallback.upload(place.where(there, 0).flatten(), index)).view(shape)
    if there.all():
        return chosen
    missing = fallback.upload(there.logical_not(), index).unsqueeze(-1)
    return chosen.masked_fill(missing, padding_value)


@decomposition("_padded_dense_to_jagged_forward")
def padded_to_jagged(dense: torch.Tensor, offsets: Sequence[torch.Tensor], total_L: int | None = None) -> torch.Tensor:
    """(B, longest, D) and the offsets of B sequences to (rows, D), without the padding."""
    first, last = _bounds(offsets, total_L)
    if dense.dim() != 3 or len(first) != dense.size(0) or int((last - first).max()) > dense.size(1):
        raise MetaRejected("a padded batch that is as long as the longest sequence")
    longest = torch.arange(dense.size(1), device="cpu")
    there = longest < (last - first).unsqueeze(1)
    place = (longest + dense.size(1) * torch.arange(len(first), device="cpu").unsqueeze(1))[there]
    return dense.flatten(0, 1).index_select(0, fallback.upload(place, dense.device.index or 0))
