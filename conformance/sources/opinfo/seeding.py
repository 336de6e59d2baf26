"""The seed of op_db's samplers and of its entries' calls.

If the seed is set before each sample, its values follow from the seed alone. Both sides, a script, and a replay of one
sample then draw the same values.
"""

from __future__ import annotations

import torch

from conformance.program.steps.entry import set_seed
from conformance.standalone.torch_compat import op_db

SEED: int = op_db().seed


def seed(device: torch.device | None = None) -> None:
    """Set the seed of the generators that op_db's samplers draw from, and of those of `device`."""
    set_seed(SEED, device)
