"""Training steps that nobody reads are computed one by one, so that each replays the one before.

    for x, y in batches:
        loss = step(x, y)               # ends with optimizer.step()
        losses.append(loss.detach())    # read after the last step

Without this, the graph of such a loop grows until it exceeds the size of one schedule. Where it is cut has nothing to
do with the steps, so that nothing repeats, and each offset of `data[i]` makes other calls (`dispatch.windows`).
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ..lazy import calls, flush
from ..lazy.storage import LAZY
from ..runtime import first_use, recording
from ..runtime.counters import COUNTERS

WAITING = 2  # steps of an optimizer without a read that stay lazy
LOGGED = 8  # bytes of the largest value that is computed with a step: a loss would keep the old parameters alive

_steps: weakref.WeakKeyDictionary[Optimizer, tuple[int, int]] = weakref.WeakKeyDictionary()  # unread ones, and reads


def compute_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Compute the parameters after a step, if the host has read nothing for some steps; called by torch after each."""
    if torch.compiler.is_compiling() or recording.is_open() or not (LAZY or calls.pending()):
        return
    if not any(p.device.type == "tiny" for group in optimizer.param_groups for p in group["params"]):
        return
    unread, reads = _steps.get(optimizer, (0, COUNTERS.copies_out))
    unread = unread + 1 if reads == COUNTERS.copies_out else 1
    _steps[optimizer] = unread, COUNTERS.copies_out
    if unread > WAITING:
        lazy = [s for s in list(LAZY.values()) if s.is_lazy()]
        lazy += [storage for call in calls.pending() for storage in call.written]
        logged = {s.serial: s for s in lazy if s.nbytes <= LOGGED and s.owner() is not None}
        flush.flush([logged[serial] for serial in sorted(logged)], why="unread step")


def install() -> None:
    """Let torch call `compute_step` after each step of any optimizer, once the device is used."""

    def add_hook() -> None:
        register_optimizer_step_post_hook(compute_step)

    first_use.on_first_use(add_hook)
