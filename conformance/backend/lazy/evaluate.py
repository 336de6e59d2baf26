"""Computation of the contents of storages in one schedule.

Defines `evaluate`, and `computed_along`, the storages that should be computed together with a group.

All live storages are rewritten to read the buffers that a schedule computes, so no value is computed twice. A content
may be computed into its donor, the buffer of the content that it replaces, if no other storage reads that.

This module makes no decisions: `flush` selects the storages to compute, and applies their pending writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad.uop.ops import UOp

from ..runtime import materialization, scheduler
from ..runtime.defer_sigint import DeferSigint
from ..runtime.expressions import strip_reshapes
from . import buffer_donation
from .storage import LAZY, LazyStorage, living


def evaluate(group: Sequence[LazyStorage], device: str, why: str) -> None:
    """Compute the contents of storages on one device; other lazy storages read the results from then on.

    No storage may have pending writes of a loop. `why` is the reason that a trace reports.
    """
    inside = set(group)
    rest = [s for s in LAZY.values() if s not in inside]
    wanted, others = [s.base_flat() for s in group], [s.base_value() for s in rest]
    donors = _donors(group)
    placed, nodes, reading = buffer_donation.donate(wanted, donors, others) if donors else ({}, wanted, others)
    with DeferSigint(bool(placed)) as run:
        try:
            done, others = scheduler.realize(nodes, device, reading, why, run.begin)
        except BaseException as error:
            if placed and not run.begun and buffer_donation.is_swap(error):
                placed = {}
                done, others = scheduler.realize(wanted, device, others, why)
            else:
                for i in placed if run.begun else ():  # prevents a second computation from their own results
                    group[i].replace(donors[i], group[i].nbytes)
                raise
        for storage, value in zip([*group, *rest], [*done, *others], strict=True):
            if storage.base_value() is not value:
                storage.substitute_realized(value)
        for i in placed:
            group[i].mark_overwritten()


def computed_along(group: Sequence[LazyStorage], device: str) -> list[LazyStorage]:
    """Lazy storages to compute with a group, because they would otherwise keep far larger intermediate values alive."""
    inside = set(group)
    rest = [s for s in LAZY.values() if s not in inside and s.device == device]
    if not rest:
        return []
    places = materialization.computed_along(
        [s.base_flat() for s in group], [strip_reshapes(s.base_value()) for s in rest]
    )  # fmt: skip
    return [rest[i] for i in places]


def _donors(group: Sequence[LazyStorage]) -> dict[int, UOp]:
    """The buffers into which storages of a group may be computed, by place. Values outside it may still read them.

    Each storage gets a different one. A buffer that another storage holds as its content, as copies do, is excluded.
    """
    donors = {donor: i for i, storage in enumerate(group) if (donor := storage.donor_buffer()) is not None}
    if donors:
        for storage in living():
            held = storage.base_buffer()
            if held is not None:
                donors.pop(held, None)
    return {i: donor for donor, i in donors.items()}
