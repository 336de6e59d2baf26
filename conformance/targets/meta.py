"""torch's meta device: the shape, dtype, strides and offset that each kernel promises, without values to compare."""

from __future__ import annotations

from typing import Any

import torch

from conformance.engine.target import Target
from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE
from conformance.standalone.moving import map_tensors, storage_key

METADATA = frozenset(ORACLES) - {"kernels", "version", "value", "storage", "stride"} | {SIGNIFICANT_STRIDE}
"""Oracles that need no values. For gradients, they compare whether an input has one, its dtype and its shape."""

NEEDS_VALUES = frozenset(
    {
        "questions",
        "item.error",
        "index_select.range",
        "as_strided.range",
        "through_host",
        "from_host_view",
        "into_host_view",
        "nonzero",
        "masked_select",
        "masked_select.out",
        "a write that raises",
        "error_inputs",
        "forward_over_backward",
        "sparse",
        *("seeded", "generated", "warned", "pickled", "pickled_together", "deepcopied", "deepcopied_together"),
        "autocast",
        "op_db",
    }
)
"""Steps and features that need values or memory.

The answer, size or error of these steps depends on values, on the number of bytes, or on overlaps, and meta kernels
check no memory. Copies to the host and of storages, random numbers, and autocast, which does not support this device,
are excluded too. op_db runs separately (`conformance opinfo`), which skips calls whose metadata depends on values.
"""


class MetaTarget(Target):
    name = "meta"
    oracles = METADATA
    unsupported = NEEDS_VALUES
    device = torch.device("meta")

    def fetch(self, tree: Any) -> Any:
        """Return stand-ins filled with zeros on the CPU: same geometry, same aliasing."""
        return stand_ins(tree)

    def synchronize(self) -> None:
        """Do nothing: the meta device runs nothing."""


def stand_ins(tree: Any) -> Any:
    """Replace each tensor of the tree by zeros on the CPU with the same geometry and the same sharing of storages.

    Raises RuntimeError for a tensor that reaches past the end of its storage.
    """
    flats: dict[int, torch.Tensor] = {}

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        flat = flats.setdefault(storage_key(tensor), torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.uint8))
        made = torch.empty(0, dtype=tensor.dtype)
        return made.set_(flat.untyped_storage(), int(tensor.storage_offset()), tensor.size(), tensor.stride())

    with torch.no_grad():
        return map_tensors(tree, stand_in)
