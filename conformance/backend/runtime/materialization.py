"""The parts of a graph that kernels compute on their own, as operators ask for what is costly and read often.

Defines `once` (make such a part), `read_by_all` (whoever reads a part's value reads the part), `remaining` (which parts
are read afterwards) and `keeping` (which lazy values had better be computed along than keep parts alive).

The key insight: a part costs memory for as long as somebody reads it. Within a schedule the memory plan gives that of
one to the next; what a lazy value outside goes on reading stays, as the gradients of a step, small themselves, would
keep all of its activations.
Must not know storages or torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from .replay import Key

_REARRANGING = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.FLIP})
# A lazy value is computed along where the parts that it reads have at least so many bytes, and so many times its own.
KEPT_BYTES = 1 << 16
KEPT_SHARE = 4


def once(value: UOp) -> UOp:
    """An equal value that a schedule computes on its own, for all of its readers.

    What is computed is the value below transposes and the like: those who read it in different order share it.
    """
    if value.op in _REARRANGING:
        return value.replace(src=(once(value.src[0]), *value.src[1:]))
    return value.contiguous()


def read_by_all(values: Sequence[UOp]) -> tuple[list[UOp], dict[UOp, UOp]]:
    """Equal values in which all who read what a part computes read the part; (these, what changed nodes have become).

    An operator that ran before the one which asked for the part has its value as it was, and would compute it again
    from what the part is computed from, which then lives as long.
    """
    nodes = UOp.sink(*values).toposort(enter_calls=False)
    parts = {node.src[0]: node for node in nodes if node.op is Ops.CONTIGUOUS}
    new: dict[UOp, UOp] = {}
    if not parts:
        return list(values), new
    read: dict[UOp, UOp] = {}  # what to read instead of the value of a part
    for node in nodes:
        first = new if node.op is Ops.CONTIGUOUS else read
        sources = tuple([first.get(s, new.get(s, s)) for s in node.src])
        if sources != node.src:
            new[node] = node.replace(src=sources)
        if node in parts:
            read[node] = parts[node].replace(src=(new.get(node, node), *parts[node].src[1:]))
    return [read.get(v, new.get(v, v)) for v in values], new


class Remaining(NamedTuple):
    """What becomes of the parts of a graph."""

    passing: set[UOp]  # nobody reads these afterwards
    key: Key  # the places of the others; empty where the graph has no parts


def remaining(nodes: Sequence[UOp], others: Sequence[UOp]) -> Remaining:
    """The parts among the `nodes` of a graph, told apart by whether `others` read them."""
    found = {node: i for i, node in enumerate(nodes) if node.op is Ops.CONTIGUOUS}
    if not found:
        return Remaining(set(), ())
    above = UOp.sink(*others).toposort(gate=lambda u: u not in found, enter_calls=False) if others else {}
    read = {source for node in above for source in node.src if source in found}
    return Remaining(found.keys() - read, (("read", *[i for node, i in found.items() if node in read]),))


def keeping(values: Iterable[UOp], others: Sequence[UOp]) -> list[int]:
    """The places of `others` that a schedule of `values` computes anyhow and that would keep far larger parts alive."""
    nodes = UOp.sink(*values).toposort(enter_calls=False)
    bits = {part: 1 << i for i, part in enumerate(node for node in nodes if node.op is Ops.CONTIGUOUS)}
    candidates = [i for i, value in enumerate(others) if value in nodes and value not in bits] if bits else []
    if not candidates:
        return []
    reach: dict[UOp, int] = {}  # the parts that a node reads, as bits
    for node in UOp.sink(*[others[i] for i in candidates]).toposort(gate=lambda u: u not in bits, enter_calls=False):
        reach[node] = 0
        for source in node.src:
            reach[node] |= bits.get(source) or reach.get(source, 0)
    sizes = [part.max_numel() * part.dtype.itemsize for part in bits]
    found = []
    for i in candidates:
        kept = sum(size for k, size in enumerate(sizes) if reach[others[i]] >> k & 1)
        if kept >= max(KEPT_BYTES, KEPT_SHARE * others[i].max_numel() * others[i].dtype.itemsize):
            found.append(i)
    return found
