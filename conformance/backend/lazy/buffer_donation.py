"""Donation of buffers: a new content is computed into the buffer of the old one, if no other value reads the old one.

Defines `donate`, which turns lazy values into stores, and `is_swap`, which recognizes the error for which a donation
has to be undone.

Without donation, a value is computed into a new buffer, and the old buffer is mostly freed after it. For the parameters
and moments of a training step that doubles the memory. tinygrad orders the kernels of one schedule, so that kernels
that read the old content run before the store. The caller must ensure that nothing outside the schedule reads the old
content.

This module must not depend on storages or torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, UOp

from ..runtime.expressions import constant_of, is_realized, strip_reshapes


def donate(
    values: Sequence[UOp], donors: Mapping[int, UOp], others: Sequence[UOp] = ()
) -> tuple[dict[int, UOp], list[UOp], list[UOp]]:
    """Store each value whose place is in `donors` in that buffer, which has the value's shape and dtype.

    Returns the stores by place, all `values`, and `others` (which are not computed). The last two read a stored value
    from its buffer. A donor is not used if `others` still read its old content, if tinygrad would make a copy, or if a
    value is a part of it.
    """
    parts = _with_parts([*values, *others])
    donors = {i: donor for i, donor in donors.items() if donor not in parts}
    while True:
        stores, new = _rewritten([*values, *others], {i: (values[i], donor) for i, donor in donors.items()})
        rest = [new.get(v, v) for v in others]
        inside = UOp.sink(*rest).toposort(gate=lambda u: u.op is not Ops.AFTER, enter_calls=False) if rest else {}
        read = {i for i in stores if donors[i] in inside}
        if not read:
            return stores, [stores.get(i, new.get(v, v)) for i, v in enumerate(values)], rest
        donors = {i: donor for i, donor in donors.items() if i not in read}


def is_swap(error: BaseException) -> bool:
    """Whether tinygrad found no order for the stores, as for two buffers that swap their contents."""
    return isinstance(error, RuntimeError) and "cycle" in str(error)


def _rewritten(roots: Sequence[UOp], donors: Mapping[int, tuple[UOp, UOp]]) -> tuple[dict[int, UOp], dict[UOp, UOp]]:
    """The stores by place, and the replacements of the nodes under `roots` that now read stored values from buffers."""
    new: dict[UOp, UOp] = {}
    stores: dict[int, UOp] = {}
    computed = {
        strip_reshapes(value): i
        for i, (value, _) in reversed(list(donors.items()))
        if _is_computed(strip_reshapes(value))
    }
    graph = UOp.sink(*roots).toposort(enter_calls=False)
    readers: Counter[UOp] = Counter()
    for node in reversed(graph):  # a node with one operand is part of its readers' kernels
        operands = [s for s in node.src if constant_of(s) is None]
        count = readers[node] if len(operands) == 1 and node.op is not Ops.SINK else 1
        for operand in operands:
            readers[operand] += count
    bits = {donor: 1 << k for k, (_, donor) in enumerate(donors.values())}
    under: dict[UOp, int] = {}  # the donors that a node's value depends on, as bits
    for node in graph:
        rewritten, reached = node, bits.get(node, 0)
        for source in node.src:
            reached |= under.get(source, 0)
        under[node] = reached
        if not new.keys().isdisjoint(node.src):
            rewritten = new[node] = node.replace(src=tuple([new.get(s, s) for s in node.src]))
            readers[rewritten] = readers[node]
        i = computed.get(node)
        if i is not None and (not reached & bits[donors[i][1]] or _at_its_place(donors[i][1], rewritten, readers)):
            stores[i] = _store(donors[i][1], rewritten)
            new[node] = stores[i].reshape(node.shape)
    for i, (value, donor) in donors.items():
        if computed.get(strip_reshapes(value)) != i:
            stores[i] = _store(donor, new.get(value, value))  # a number, or a value that another buffer also holds
    return stores, new


def _with_parts(roots: Sequence[UOp]) -> set[UOp]:
    """The buffers of which a node under `roots` is a contiguous part. tinygrad may read such a part through a view of
    the buffer's memory, and then does not order its readers before a store to the buffer."""
    result = set()
    for node in UOp.sink(*roots).toposort(enter_calls=False) if roots else ():
        if node.op is Ops.CONTIGUOUS:
            part = node.src[0]
            while part.op in GroupOp.Movement:
                part = part.src[0]
            result.add(part)
    return result


def _is_computed(value: UOp) -> bool:
    return constant_of(value) is None and not is_realized(value)


def _store(donor: UOp, content: UOp) -> UOp:
    return donor.after(donor.store(content.reshape(donor.shape)))


def _at_its_place(donor: UOp, content: UOp, readers: Mapping[UOp, int]) -> bool:
    """Whether the kernel that computes `content` from `donor` may write directly into `donor`.

    This is safe if each element needs only the element that it replaces. tinygrad misses some unsafe cases and
    overwrites elements that are still to be read (`fix_store_hazard`: a part that is read elsewhere). It computes into
    a new buffer and then copies if the kernel reads more than two others or has its own sum (`remove_bufferize`).
    """
    read: set[UOp] = set()
    reaches: dict[UOp, bool] = {}
    for node in UOp.sink(content).toposort(gate=lambda u: u.op not in _LEAVES):
        read.update(s for s in node.src if s.op in _LEAVES)
        reaches[node] = any(s is donor or reaches.get(s, False) for s in node.src)
        if reaches[node] and node.op in GroupOp.Movement and node.op is not Ops.RESHAPE:
            return False
    return len(read) <= 3 and not any(s.op is Ops.REDUCE and readers[s] == 1 for s in read)


_LEAVES = frozenset({Ops.BUFFER, Ops.AFTER, Ops.REDUCE})  # operands of a kernel; a sum with several readers has its own


__all__ = ["donate", "is_swap"]
