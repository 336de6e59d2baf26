"""Seeding of the generators that op_db's samplers draw from: random, numpy, torch, and a device's own.

If the seed is set before each sample, its values follow from the seed alone. Both sides, a script, and a replay of one
sample then draw the same values.
"""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch

from conformance.standalone.torch_compat import op_db

SEED: int = op_db().seed


def seed(device: torch.device | None = None) -> None:
    """Seed the generators that op_db's samplers draw from, and the generators of `device`.

    `torch.manual_seed` also queues a call, with a formatted traceback, for each kind of device that was never used.
    That costs more than a millisecond each time, without any use here.
    """
    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.default_generator.manual_seed(SEED)
    module: Any = getattr(torch, device.type, None) if device is not None else None
    if hasattr(module, "manual_seed_all"):
        module.manual_seed_all(SEED)
