"""Materialization points: nodes of a graph with a separate kernel and buffer, shared by all of their readers.

Defines:

- `materialize`: make one.
- `read_by_all`: share one among all readers of its value.
- `remaining`: points that are still read after a schedule.
- `computed_along`: the lazy values to compute so that points can be freed.

A materialization point occupies memory while anything reads it. Within a schedule the memory plan reuses that memory. A
lazy value outside the schedule keeps its operands alive. The gradients of a training step, small themselves, would in
this way keep all activations alive.

This module must not depend on storages or torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from .replay import Key

_REARRANGING = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.FLIP})
# A lazy value is computed along if the points that it reads have at least this many bytes, and this many times the
# bytes of the value itself.
KEPT_BYTES = 1 << 16
KEPT_SHARE = 4


def materialize(value: UOp) -> UOp:
    """An equal value that a schedule computes once into a separate buffer, for all of its readers.

    The point lies below transposes and other rearrangements, so that readers in different orders share it.
    """
    if value.op in _REARRANGING:
        return value.replace(src=(materialize(value.src[0]), *value.src[1:]))
    return value.contiguous()


def read_by_all(values: Sequence[UOp]) -> tuple[list[UOp], dict[UOp, UOp]]:
    """Equal values in which all readers of a materialized value read the point; and a map of the nodes replaced.

    An operator that ran before the creation of the point reads the value below it. It would compute the value again and
    keep its inputs alive.
    """
    nodes = UOp.sink(*values).toposort(enter_calls=False)
    points = {node.src[0]: node for node in nodes if node.op is Ops.CONTIGUOUS}
    new: dict[UOp, UOp] = {}
    if not points:
        return list(values), new
    read: dict[UOp, UOp] = {}  # the point of each materialized value
    for node in nodes:
        first = new if node.op is Ops.CONTIGUOUS else read
        sources = tuple([first.get(s, new.get(s, s)) for s in node.src])
        if sources != node.src:
            new[node] = node.replace(src=sources)
        if node in points:
            read[node] = points[node].replace(src=(new.get(node, node), *points[node].src[1:]))
    return [read.get(v, new.get(v, v)) for v in values], new


class Remaining(NamedTuple):
    """The materialization points of a graph after its schedule has run."""

    passing: set[UOp]  # read within the schedule only
    key: Key  # the places of the others; empty if the graph has no points


def remaining(nodes: Sequence[UOp], others: Sequence[UOp]) -> Remaining:
    """The materialization points among the `nodes` of a graph, separated by whether `others` read them."""
    places = {node: i for i, node in enumerate(nodes) if node.op is Ops.CONTIGUOUS}
    if not places:
        return Remaining(set(), ())
    above = UOp.sink(*others).toposort(gate=lambda u: u not in places, enter_calls=False) if others else {}
    read = {source for node in above for source in node.src if source in places}
    return Remaining(places.keys() - read, (("read", *[i for node, i in places.items() if node in read]),))


def computed_along(values: Iterable[UOp], others: Sequence[UOp]) -> list[int]:
    """The places of `others` that a schedule of `values` computes anyway and that would keep larger points alive."""
    nodes = UOp.sink(*values).toposort(enter_calls=False)
    bits = {point: 1 << i for i, point in enumerate(node for node in nodes if node.op is Ops.CONTIGUOUS)}
    candidates = [i for i, value in enumerate(others) if value in nodes and value not in bits] if bits else []
    if not candidates:
        return []
    reach: dict[UOp, int] = {}  # the points that a node reads, as bits
    for node in UOp.sink(*[others[i] for i in candidates]).toposort(gate=lambda u: u not in bits, enter_calls=False):
        reach[node] = 0
        for source in node.src:
            reach[node] |= bits.get(source) or reach.get(source, 0)
    sizes = [point.max_numel() * point.dtype.itemsize for point in bits]
    result = []
    for i in candidates:
        kept = sum(size for k, size in enumerate(sizes) if reach[others[i]] >> k & 1)
        if kept >= max(KEPT_BYTES, KEPT_SHARE * others[i].max_numel() * others[i].dtype.itemsize):
            result.append(i)
    return result
