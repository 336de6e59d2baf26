"""torch's meta device: the shape, dtype, strides and offset that each kernel promises, with no values to compare."""

from __future__ import annotations

from typing import Any

import torch

from conformance.core.moving import map_tensors, storage_key
from conformance.core.names import ORACLES, SIGNIFICANT_STRIDE
from conformance.core.target import Target

METADATA = frozenset(ORACLES) - {"kernels", "version", "value", "storage", "stride"} | {SIGNIFICANT_STRIDE}
"""What can be judged without values; of gradients, whether an input has one, its dtype and its shape."""

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
"""Steps whose answer, size or error depends on values, on how many bytes there are or on which of them overlap: meta
kernels check no memory. And the way to the host, copies of storages, random numbers, and autocast, which knows no such
device. op_db runs on them by itself (`conformance opinfo`), where metadata that follow from values are told."""


class MetaTarget(Target):
    name = "meta"
    oracles = METADATA
    unsupported = NEEDS_VALUES
    device = torch.device("meta")

    def fetch(self, tree: Any) -> Any:
        """Stand-ins full of zeros on the CPU: same geometry, same aliasing."""
        return stand_ins(tree)

    def synchronize(self) -> None:
        """Nothing ever runs."""


def stand_ins(tree: Any) -> Any:
    """The tree with each tensor replaced by zeros on the CPU of the same geometry, one storage for each of its own.

    A tensor that reaches past the end of its storage raises RuntimeError, as such a tensor would."""
    flats: dict[int, torch.Tensor] = {}

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        flat = flats.setdefault(storage_key(tensor), torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.uint8))
        made = torch.empty(0, dtype=tensor.dtype)
        return made.set_(flat.untyped_storage(), int(tensor.storage_offset()), tensor.size(), tensor.stride())

    with torch.no_grad():
        return map_tensors(tree, stand_in)
