"""torch's meta device: the shape, dtype, strides and offset that each kernel promises, without values to compare."""

from __future__ import annotations

from typing import Any

import torch

from conformance.declare.declaration import unsupported
from conformance.engine.target import Target, TargetFacts
from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE
from conformance.standalone.conditions import stand_ins

NEEDS_NO_VALUES = frozenset(ORACLES) - {"version", "value", "storage", "stride"} | {SIGNIFICANT_STRIDE}
"""Oracles that need no values. For gradients, they compare whether an input has one, its dtype and its shape."""

NEEDS_VALUES = (
    unsupported(
        "its answer, size or error depends on values",
        step=(
            "questions",
            "item.error",
            "index_select.range",
            "nonzero",
            "masked_select",
            "masked_select.out",
            "unique.counted",
            "recorded by values",
        ),
        trait="an answer that depends on values",
    ),
    unsupported(
        "meta kernels check no memory: its error depends on the number of bytes or on overlaps",
        step="as_strided.range",
        trait=("a write that raises", "a refused call"),
        variant=("error_inputs", "refused_index", "refused_device"),
    ),
    unsupported(
        "copies to the host and of storages need values",
        step=(
            *("through_host", "from_host_view", "into_host_view"),
            *("pickled", "pickled_together", "deepcopied", "deepcopied_together"),
            "shares_memory",
        ),
    ),
    unsupported("random numbers and warnings need values", step=("seeded", "generated", "warned")),
    unsupported("torch has no meta kernel for it", step="_fused_sgd_"),
    unsupported("autocast does not support this device", state="autocast"),
    unsupported("`conformance opinfo` runs op_db, and skips calls whose metadata depends on values", step="op_db"),
    unsupported("its derivatives need values", variant="forward_over_backward"),
    unsupported("meta tensors are strided", trait="sparse"),
)
"""Parts that need values or memory."""


class MetaTarget(Target):
    name = "meta"
    device = torch.device("meta")
    facts = TargetFacts(oracles=NEEDS_NO_VALUES, declarations=NEEDS_VALUES, of_pytorch="meta and fake tensors")

    def fetch(self, tree: Any) -> Any:
        """Return stand-ins filled with zeros on the CPU: same geometry, same aliasing."""
        return stand_ins(tree)

    def synchronize(self) -> None:
        """Do nothing: the meta device runs nothing."""
