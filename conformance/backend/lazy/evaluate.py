"""Computing the contents of storages in one schedule.

Defines `evaluate`, and `computed_along`, the storages that had better be computed together with others.

The key insight: whatever one schedule computes, every other lazy value may read: all live storages are rewritten to
read the new buffers, and nothing is computed twice. A content may be computed into the buffer of the content that it
replaces, its donor, when no other storage reads that.
Decides nothing: the storages to compute, with their pending writes applied, come from `flush`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad.uop.ops import UOp

from ..runtime import materialization, scheduler
from ..runtime.defer_sigint import DeferSigint
from ..runtime.expressions import strip_reshapes
from . import buffer_donation
from .storage import BY_ADDRESS, LAZY, LazyStorage


def evaluate(group: Sequence[LazyStorage], device: str, why: str) -> None:
    """Compute the contents of storages on one device; other lazy storages read them from now on.

    No storage may have the writes of a loop pending. `why` is the reason that a trace reports.
    """
    inside = set(group)
    rest = [s for s in LAZY.values() if s not in inside]
    wanted, others = [s.base_flat() for s in group], [s.base_value() for s in rest]
    donors = _donors(group)
    placed, made, reading = buffer_donation.donate(wanted, donors, others) if donors else ({}, wanted, others)
    with DeferSigint(bool(placed)) as run:
        try:
            done, others = scheduler.realize(made, device, reading, why, run.begin)
        except BaseException as error:
            if placed and not run.begun and buffer_donation.is_swap(error):
                placed = {}
                done, others = scheduler.realize(wanted, device, others, why)
            else:
                for i in placed if run.begun else ():  # they must not be computed from themselves once more
                    group[i].replace(donors[i], group[i].nbytes)
                raise
        for storage, value in zip([*group, *rest], [*done, *others], strict=True):
            if storage.base_value() is not value:
                storage.substitute_realized(value)
        for i in placed:
            group[i].mark_overwritten()


def computed_along(group: Sequence[LazyStorage], device: str) -> list[LazyStorage]:
    """Lazy storages to compute with a group: left lazy they would keep far larger intermediate values alive."""
    inside = set(group)
    rest = [s for s in LAZY.values() if s not in inside and s.device == device]
    if not rest:
        return []
    places = materialization.computed_along(
        [s.base_flat() for s in group], [strip_reshapes(s.base_value()) for s in rest]
    )  # fmt: skip
    return [rest[i] for i in places]


def _donors(group: Sequence[LazyStorage]) -> dict[int, UOp]:
    """The buffers into which storages of a group may be computed, by place; values outside it may still read them.

    No two storages get the same, and none gets one that another storage holds as its content, as copies do.
    """
    donors = {donor: i for i, storage in enumerate(group) if (donor := storage.donor_buffer()) is not None}
    if donors:
        for storage in BY_ADDRESS.values():
            held = storage.base_buffer()
            if held is not None:
                donors.pop(held, None)
    return {i: donor for donor, i in donors.items()}
