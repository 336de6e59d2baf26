"""A large repetitive graph is scheduled in pieces, and pieces of equal structure share one schedule.

    for x in inputs:                      # 5 steps in one batch, 28 in the next
        hidden = cell(x, hidden)          # each step computes the same pieces over other memory
    loss = hidden.square().mean()

A schedule of the whole graph depends on the number of steps: each new length would be scheduled, and its kernels
generated, from nothing. A piece is the work between two values that tinygrad stores anyway. It has a key of its own, so
the step of a new length finds the schedule of an earlier step. Only the merged list of kernels is new.

A value is *cut* if it

- is a materialization point or a store into a donor,
- contains a reduction and is read along a new dimension (the operand of a matrix product) or joined with others,
- is costly and read by several pieces,
- or is a part of a long sum: a gradient that adds a term for each step is cut every `TERMS` terms.

A contiguous part of a stored value (`x[t]`) is passed to a kernel as a pointer into it, so that neither the place nor
the size of the whole is part of the piece's key. Of a value of which other parts are read (`x[:, t]`, with
`batch_first=True`), the parts are first made contiguous in one copy.

This module must not depend on storages or torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tinygrad.device import Buffer
from tinygrad.dtype import dtypes
from tinygrad.runtime.support.memory import TLSFAllocator
from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, UOp

from ..tinygrad_patches.gpu_source import ALIGNMENT
from .expressions import constant_of
from .replay import ArgumentPlace, Graph, Kernel, Key, Replay, Spec

MIN_NODES = 1500  # smaller graphs are scheduled whole
MIN_PIECES = 60
MOST_DISTINCT = 0.4  # of the pieces: with more, the graph does not repeat itself
TERMS = 6  # reductions in one piece
PARTS = 4  # contiguous parts of a value for which it is computed once
READS = 16  # values that one piece reads
CHEAP_READS = 3  # a value without reductions that reads at most so many others is computed by each reader (tinygrad)
PARTS_JOINED = 8  # values that one kernel joins
_BLOCK = 256  # bytes, the alignment of intermediate values, as in tinygrad's memory plan
_HOSTS = ("CPU", "PYTHON")  # devices that load a vector from any element
_NO_PARTS = ("CL", "WEBGPU", "DISK", "TINYFS")  # devices whose buffers have no parts
_COMPUTED = GroupOp.Elementwise | {Ops.REDUCE, Ops.STACK}  # also the shapes that are written as a STACK of numbers
_LEAF = frozenset({Ops.CONST, Ops.BUFFER})
_KNOWN = GroupOp.Movement | _COMPUTED | _LEAF | {Ops.CONTIGUOUS, Ops.AFTER, Ops.STORE, Ops.STACK, Ops.SINK}


class Leaf(NamedTuple):
    """Memory that a piece reads: a contiguous part of a buffer or of another piece's value."""

    base: int  # the node
    offset: int  # elements
    size: int


@dataclass
class Piece:
    """The computation of one cut value from other cut values and buffers."""

    root: int  # the node that it computes
    key: Key
    leaves: list[Leaf]
    places: dict[int, int] = field(default_factory=dict)  # by node: the leaf that it is
    replay: Replay | None = None


class Division:
    """The pieces of a graph."""

    def __init__(self, values: Sequence[UOp], kept: Container[UOp] = ()) -> None:
        """`kept` are materialization points that are read after the schedule."""
        self.nodes = list(UOp.sink(*values).toposort(enter_calls=False))[:-1]
        self.index = {node: i for i, node in enumerate(self.nodes)}
        index = self.index
        self.sources = [
            ()
            if n.op in _LEAF
            else (index[n.src[0]],)
            if n.op in GroupOp.Movement
            else tuple([index[s] for s in n.src])
            for n in self.nodes
        ]
        self.sizes = [_size(node) for node in self.nodes]
        self.base = list(range(len(self.nodes)))  # without the movements around a value
        for i, node in enumerate(self.nodes):
            if node.op in GroupOp.Movement:
                self.base[i] = self.base[self.sources[i][0]]
        self.values = [self.base[index[v]] for v in values]
        self.cut = [False] * len(self.nodes)
        self.kept = {*self.values, *[i for i, node in enumerate(self.nodes) if node in kept]}
        self.inside: dict[
            int, tuple[int, int]
        ] = {}  # by node: the joined value that contains it, and its first element
        self.count: dict[int, int] = {}  # by joined value: its parts
        self.joined: set[int] = set()  # values that consist of others

    def find_cuts(self) -> None:
        """Mark the cut nodes."""
        nodes, cut = self.nodes, self.cut
        for i, node in enumerate(nodes):
            cut[i] = (node.op is Ops.CONTIGUOUS and node.device is not None) or node.op is Ops.AFTER
        for i in self.values:
            cut[i] = nodes[i].op is not Ops.BUFFER
        long = self._long_joins()
        for i in (*self._taken_apart(), *long):
            cut[i] = True
        certain = {i for i, is_cut in enumerate(cut) if is_cut}
        reads, reduces = self._contents(broadcast=self._under_broadcasts())
        self._cut_shared(reads, reduces)
        # Below a later cut, an earlier one may have become cheap. tinygrad then computes the value in each reader.
        self._contents(doubtful={i for i, is_cut in enumerate(cut) if is_cut and i not in certain})
        for i in reversed(long):
            self._join(i)
        for i, node in enumerate(nodes):
            if node.op is Ops.CONTIGUOUS and cut[i]:
                self._join_below(i)

    def _long_joins(self) -> list[int]:
        """The values that join more than `PARTS_JOINED` others one after the other in memory."""
        for i in range(len(self.nodes)):
            two = self._two_parts(i)
            if two is not None:
                self.count[i] = sum(self.count.get(self.base[part], 1) for part in two)
        return [i for i, parts in self.count.items() if parts > PARTS_JOINED]

    def _two_parts(self, i: int) -> tuple[int, int] | None:
        """The two values that a node joins one after the other in memory; None if it is no such node."""
        node = self.nodes[i]
        if node.op is not Ops.WHERE or any(s.op is not Ops.PAD for s in node.src) or node.device is None:
            return None
        inside, low, high = [s.marg for s in node.src]
        if constant_of(node.src[0].src[0]) is not True or inside != low:
            return None
        padded = [d for d, (before, size) in enumerate(high) if before]
        if len(padded) != 1:
            return None
        dim, shape = padded[0], node.shape
        first = node.src[1].src[0].shape
        ends = high[dim] == (first[dim], shape[dim]) and node.src[2].src[0].shape[dim] == shape[dim] - first[dim]
        rest = all(s == first[d] for d, s in enumerate(shape) if d != dim) and low[dim][0] == 0
        if not ends or not rest or math.prod(shape[:dim]) != 1:  # type: ignore[arg-type]
            return None
        return self.sources[self.sources[i][1]][0], self.sources[self.sources[i][2]][0]

    def _joined_parts(self, i: int) -> list[tuple[int, int, int]] | None:
        """(part, the value that joins it, its first element there) for all parts of a joined value.

        None if one of them is no stored value that can be computed into the memory of the whole. One kernel then joins
        the parts, if they are not many.
        """
        parts: list[tuple[int, int, int]] = []
        start = 0
        for part in self._two_parts(i) or ():
            base = part
            while self.nodes[base].op is Ops.RESHAPE:
                base = self.sources[base][0]
            if base in self.kept or base in self.inside or not self._is_computed(base):
                return None
            if base in self.count:
                inner = self._joined_parts(base)
                if inner is None and self.count[i] <= PARTS_JOINED:
                    return None
                parts += inner or ()
            elif not self.cut[base]:
                return None
            parts.append((base, i, start))
            start += self.sizes[part]
        return parts

    def _is_computed(self, i: int) -> bool:
        """Whether the piece of a node writes a value, and does not only give another name to one."""
        node = self.nodes[i]
        if node.op is Ops.CONTIGUOUS:
            below = self.base[self.sources[i][0]]
            return self.nodes[below].op in _COMPUTED and not self.cut[below]
        return node.op in _COMPUTED and node.device is not None

    def _join(self, i: int) -> None:
        """Compute the parts of a joined value directly into its memory."""
        parts = self._joined_parts(i) if i not in self.joined else None
        for part, whole, start in parts or ():
            self.cut[part] = True
            self.inside[part] = whole, start
            self.joined.add(whole)

    def _join_below(self, i: int) -> None:
        """Let a point that only stores a joined value be the memory of that value."""
        below = self.sources[i][0]
        while self.nodes[below].op is Ops.RESHAPE:
            below = self.sources[below][0]
        if below in self.joined and below not in self.kept and below not in self.inside:
            self.inside[below] = i, 0
            self.joined.add(i)

    def _taken_apart(self) -> list[int]:
        """The computed nodes of which many contiguous parts are read, such as the gradient of all steps' outputs."""
        parts = Counter[int]()
        offsets: dict[int, int] = {i: 0 for i, node in enumerate(self.nodes) if node.op in _COMPUTED}
        for i, node in enumerate(self.nodes):
            below = offsets.get(self.sources[i][0]) if node.op in (Ops.RESHAPE, Ops.SHRINK) else None
            if below is not None:
                inner = 0 if node.op is Ops.RESHAPE else _offset(node)
                if inner is not None:
                    offsets[i] = below + inner
                    parts[self.base[i]] += node.op is Ops.SHRINK
        return [i for i, count in parts.items() if count >= PARTS and self.nodes[i].device is not None]

    def _under_broadcasts(self) -> set[int]:
        """The nodes whose value is read along a new dimension or joined with others."""
        found: set[int] = set()
        for i, node in enumerate(self.nodes):
            if node.op is Ops.WHERE:
                found.update([self.base[part] for part in self._two_parts(i) or ()])
            if node.op in GroupOp.Broadcastable or node.op is Ops.EXPAND:
                for s in self.sources[i]:
                    if self.sizes[s] < self.sizes[i]:
                        base = self.base[s]
                        found.add(base)
                        # An elementwise node right below a broadcast is computed by its readers, its operands are not.
                        if base == s and self.nodes[s].op in GroupOp.Elementwise:
                            found.update([self.base[below] for below in self.sources[s]])
        return found

    def _contents(
        self, broadcast: Container[int] = (), doubtful: Container[int] | None = None
    ) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
        """What each node reads and which reductions it contains, both since the last cuts.

        The nodes of `broadcast` that contain reductions are cut. With `doubtful`, those of these cuts are removed that
        turn out to be cheap, and large nodes are cut.
        """
        nodes, cut, base = self.nodes, self.cut, self.base
        none: frozenset[int] = frozenset()
        reads: list[frozenset[int]] = []
        reduces: list[frozenset[int]] = []

        def join(below: Sequence[int]) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
            return [frozenset((b,)) if cut[b] else reads[b] for b in below], [
                none if cut[b] else reduces[b] for b in below
            ]

        for i, node in enumerate(nodes):
            op = node.op
            if op is Ops.CONST or op in GroupOp.Movement:
                reads.append(none)
                reduces.append(none)
                continue
            if op is Ops.BUFFER:
                reads.append(frozenset((i,)))
                reduces.append(none)
                continue
            below = [base[s] for s in self.sources[i]]
            inner = join(below)
            read, reduced = _joined(inner[0]), _joined(inner[1])
            while doubtful is not None and len(below) > 1 and (len(reduced) > TERMS or len(read) > READS):
                which = inner[1] if len(reduced) > TERMS else inner[0]
                largest = below[max(range(len(below)), key=lambda j: len(which[j]))]
                if cut[largest] or nodes[largest].op not in _COMPUTED or nodes[largest].device is None:
                    break
                cut[largest] = True
                inner = join(below)
                read, reduced = _joined(inner[0]), _joined(inner[1])
            if op is Ops.REDUCE:
                reduced = reduced | {i}
            reads.append(read)
            reduces.append(reduced)
            if i in broadcast and reduced and op in _COMPUTED and node.device is not None:
                cut[i] = True
            elif doubtful and i in doubtful and not reduced and len(read) <= CHEAP_READS:
                cut[i] = False
        return reads, reduces

    def _cut_shared(self, reads: Sequence[frozenset[int]], reduces: Sequence[frozenset[int]]) -> None:
        """Cut the costly nodes that several pieces read."""
        nodes, cut = self.nodes, self.cut
        user = [-1] * len(nodes)  # the piece that reads a node; -2 for several
        for i in range(len(nodes) - 1, -1, -1):
            costly = reduces[i] or len(reads[i]) > CHEAP_READS
            if costly and not cut[i] and user[i] == -2 and nodes[i].op in _COMPUTED and nodes[i].device is not None:
                cut[i] = True
            mine = i if cut[i] else user[i]
            for s in self.sources[i]:
                user[s] = mine if user[s] in (-1, mine) else -2

    def pieces(self) -> list[Piece]:
        """The pieces in an order in which each runs after those that it reads."""
        parts = self._parts()
        return [self._piece(i, parts) for i in range(len(self.nodes)) if self.cut[i] and i not in self.joined]

    def _parts(self) -> dict[int, int]:
        """The movements that are proper contiguous parts of a stored value, with their offsets in elements."""
        offsets: dict[int, int] = {}
        for i, node in enumerate(self.nodes):
            if node.op is Ops.BUFFER or self.cut[i]:
                offsets[i] = 0
            elif node.op is Ops.RESHAPE or node.op is Ops.SHRINK:
                below = offsets.get(self.sources[i][0])
                if below is not None:
                    inner = 0 if node.op is Ops.RESHAPE else _offset(node)
                    if inner is not None:
                        offsets[i] = below + inner
        return {
            i: offset
            for i, offset in offsets.items()
            if self.base[i] != i and self.sizes[i] < self.sizes[self.base[i]] and _may_begin(self.nodes[i], offset)
        }

    def _piece(self, root: int, parts: dict[int, int]) -> Piece:
        """The piece that computes a node, with its key."""
        donor = self.index[self.nodes[root].src[0]] if self.nodes[root].op is Ops.AFTER else -1
        nodes, cut, base, sizes = self.nodes, self.cut, self.base, self.sizes
        numbers: dict[Leaf, int] = {}
        places: dict[int, int] = {}
        order: dict[int, int] = {}
        key: list[Any] = []
        stack = [root]
        while stack:
            i = stack[-1]
            if i in order:
                stack.pop()
                continue
            node = nodes[i]
            b = base[i]
            if i != root and (cut[i] or node.op is Ops.BUFFER or (i in parts and b != donor and sizes[i])):
                leaf = Leaf(b, parts.get(i, 0), sizes[i])
                number = places[i] = numbers.setdefault(leaf, len(numbers))
                stack.pop()
                order[i] = len(order)
                key.append(("leaf", number, node.dtype, node.device, node.shape))
                continue
            missing = [j for s in node.src if (j := self.index[s]) not in order]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            key.append((node.op, node.dtype, node.arg, *[order[self.index[s]] for s in node.src]))
            order[i] = len(order)
        return Piece(root, ("piece", *key), list(numbers), places)

    def graph_of(self, piece: Piece) -> tuple[UOp, list[UOp]]:
        """The value of a piece over new buffers in place of its leaves, and these buffers."""
        nodes = self.nodes
        buffers = [UOp.new_buffer(nodes[leaf.base].device, leaf.size, nodes[leaf.base].dtype) for leaf in piece.leaves]
        new: dict[UOp, UOp] = {}
        for i, number in piece.places.items():
            shape = nodes[i].shape
            new[nodes[i]] = buffers[number] if nodes[i].op is Ops.BUFFER else buffers[number].reshape(shape)
        leaves = new.keys() - {nodes[piece.root]}
        for node in nodes[piece.root].toposort(gate=lambda n: n not in leaves, enter_calls=False):
            if node not in new:
                sources = tuple([new[s] for s in node.src])
                new[node] = node if sources == node.src else node.replace(src=sources)
        return new[nodes[piece.root]], buffers

    def ordered(self, pieces: list[Piece]) -> list[Piece] | None:
        """The pieces in an order in which each store into a buffer follows the readers of the old content.

        None if there is no such order, as for two buffers that swap their contents.
        """
        donors = {self.index[self.nodes[p.root].src[0]]: k for k, p in enumerate(pieces) if self._stores(p)}
        number = {piece.root: k for k, piece in enumerate(pieces)}
        after: list[set[int]] = [set() for _ in pieces]
        parts: dict[int, list[int]] = {}
        for part, (whole, _) in self.inside.items():
            parts.setdefault(whole, []).append(part)
        for k, piece in enumerate(pieces):
            bases = [leaf.base for leaf in piece.leaves]
            for base in bases:
                if base in self.joined:
                    bases += parts[base]
                elif base in number:
                    after[number[base]].add(k)
                elif donors.get(base, k) != k:
                    after[k].add(donors[base])
        waiting = [0] * len(pieces)
        for followers in after:
            for k in followers:
                waiting[k] += 1
        # The piece that leaves the fewest bytes in use runs next: a gradient is used up as soon as it is known. In the
        # order of the nodes, parameters would be updated last, and all gradients kept until then.
        read = [{leaf.base for leaf in p.leaves if leaf.base in number and leaf.base not in self.kept} for p in pieces]
        readers = Counter(i for one in read for i in one)
        nbytes = [size * node.dtype.itemsize for size, node in zip(self.sizes, self.nodes, strict=True)]
        made = [0 if piece.root in self.kept else nbytes[piece.root] for piece in pieces]

        def growth(k: int) -> int:
            return made[k] - sum([nbytes[i] for i in read[k] if readers[i] == 1])

        ready = {k: None for k, count in enumerate(waiting) if not count}
        result = []
        while ready:
            k = min(ready, key=growth)
            del ready[k]
            result.append(pieces[k])
            readers.subtract(read[k])
            for follower in sorted(after[k]):
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready[follower] = None
        return result if len(result) == len(pieces) else None

    def _stores(self, piece: Piece) -> bool:
        return self.nodes[piece.root].op is Ops.AFTER


def _joined(sets: Sequence[frozenset[int]]) -> frozenset[int]:
    largest = max(sets, key=len, default=frozenset[int]())
    for one in sets:
        if not one <= largest:
            largest = largest | one
    return largest


def _size(node: UOp) -> int:
    shape = node._shape
    return math.prod(shape) if shape is not None else 0  # type: ignore[arg-type]


def _may_begin(node: UOp, offset: int) -> bool:
    """Whether a kernel may read or write memory from this element on: a GPU refuses a vector that is not aligned."""
    on_host = isinstance(node.device, str) and node.device.partition(":")[0] in _HOSTS
    return on_host or offset * node.dtype.itemsize % ALIGNMENT == 0


def _is_store(node: UOp) -> bool:
    """Whether an AFTER is the store of a value into a whole buffer."""
    target, *rest = node.src
    return target.op is Ops.BUFFER and len(rest) == 1 and rest[0].op is Ops.STORE and rest[0].src[0] is target


def _offset(node: UOp) -> int | None:
    """The offset in elements of a contiguous part of a value; None if the part is not contiguous."""
    offset, stride, whole = 0, 1, True  # whole: all dimensions so far are complete
    lengths: Any = node.src[0].shape
    for full, (start, size) in zip(reversed(lengths), reversed(node.marg), strict=True):
        if size != 1 and not whole:
            return None
        whole = whole and size == full
        offset, stride = offset + start * stride, stride * full
    return offset


def _is_known(node: UOp) -> bool:
    """Whether this module knows a node of this kind. The kernel of a call, for example, is no part of the graph."""
    if node.op not in _KNOWN or (node.op is Ops.AFTER and not _is_store(node)):
        return False
    return node.op is not Ops.BUFFER or (isinstance(node.arg.device, str) and not node.arg.device.startswith(_NO_PARTS))


def divided(values: Sequence[UOp], kept: Container[UOp]) -> tuple[Division, list[Piece]] | None:
    """The pieces of a graph in the order in which they run; None if it is to be scheduled whole."""
    nodes = UOp.sink(*values).toposort(enter_calls=False)
    if len(nodes) < MIN_NODES or not all(map(_is_known, nodes)):
        return None
    division = Division(values, kept)
    division.find_cuts()
    if sum(division.cut) < MIN_PIECES:
        return None
    if not all(_may_begin(division.nodes[part], start) for part, (_, start) in division.inside.items()):
        return None
    pieces = division.pieces()
    if len({piece.key for piece in pieces}) > MOST_DISTINCT * len(pieces):
        return None
    ordered = division.ordered(pieces)
    return None if ordered is None else (division, ordered)


def with_contiguous_parts(values: Sequence[UOp]) -> tuple[list[UOp], dict[UOp, UOp]]:
    """Equal values that read strided parts of one value (`x[:, t]`) from a copy of it, and a map of the nodes replaced.

    In the copy the parts lie one after the other. A strided part depends on the size of the whole: each kernel that
    reads one would be another kernel for each number of time steps.
    """
    nodes = UOp.sink(*values).toposort(enter_calls=False)
    parts: dict[tuple[UOp, int, int], list[UOp]] = {}  # by whole, dimension and size
    for node in nodes:
        if (
            node.op is Ops.SHRINK
            and _offset(node) is None
            and node.device is not None
            and node.base.op is not Ops.STACK
        ):
            cut = [d for d, (start, size) in enumerate(node.marg) if size != node.src[0].shape[d]]
            start, size = node.marg[cut[0]]
            if len(cut) == 1 and size and start % size == 0 and node.src[0].shape[cut[0]] % size == 0:
                parts.setdefault((node.src[0], cut[0], size), []).append(node)
    chosen: dict[UOp, tuple[int, int]] = {}
    for (_, d, size), shrinks in parts.items():
        if len(shrinks) >= PARTS:
            chosen.update(dict.fromkeys(shrinks, (d, size)))
    new: dict[UOp, UOp] = {}
    copies: dict[tuple[UOp, int, int], UOp] = {}
    for node in nodes if chosen else ():
        sources = tuple([new.get(s, s) for s in node.src])
        if node in chosen:
            d, size = chosen[node]
            shape = node.src[0].shape
            if (of := (node.src[0], d, size)) not in copies:
                apart = sources[0].reshape((*shape[:d], shape[d] // size, size, *shape[d + 1 :]))
                order = (d, *[i for i in range(len(shape) + 1) if i != d])
                copies[of] = apart.permute(order).contiguous()
            place = node.marg[d][0] // size
            part = copies[of].shrink(((place, place + 1), *[None] * len(shape)))
            new[node] = part.reshape(node.shape)
        elif sources != node.src:
            new[node] = UOp(node.op, node.dtype, sources, node.arg)
    return [new.get(v, v) for v in values], new


class _MergedPlace(NamedTuple):
    """Memory of the merged schedule."""

    slot: int  # -1 - n for the n-th intermediate value
    offset: int  # bytes


def merged(division: Division, pieces: Sequence[Piece], graph: Graph, original: Callable[[UOp], UOp]) -> Replay | None:
    """One schedule of all kernels of the pieces, which have schedules.

    Values that are kept get buffers of their own, all others share the memory of one. `original` gives the node of
    `graph` for a node of the division. None if there is no such schedule.
    """
    nodes, kept = division.nodes, {i for i in division.kept if division.cut[i]}
    slots = {division.index[b]: i for i, b in enumerate(graph.buffers) if b in division.index}
    places: dict[int, _MergedPlace] = {i: _MergedPlace(slot, 0) for i, slot in slots.items()}
    fresh: list[Spec] = []
    sizes: list[int] = []  # of intermediate values, in bytes
    device = ""
    steps: list[tuple[Kernel, list[tuple[_MergedPlace, int]]]] = []

    def intermediate(nbytes: int) -> _MergedPlace:
        sizes.append(nbytes)
        return _MergedPlace(-len(sizes), 0)

    def memory_of(i: int, spec: Spec) -> tuple[_MergedPlace, int]:
        """Memory for the value of a node, and its size in bytes; 0 for a whole buffer."""
        nbytes = spec[1] * spec[2].itemsize
        if i in division.inside:
            whole, start = division.inside[i]
            if whole not in places:
                node = nodes[whole]
                places[whole], _ = memory_of(whole, (spec[0], division.sizes[whole], node.dtype))
            at = places[whole]
            return _MergedPlace(at.slot, at.offset + start * spec[2].itemsize), nbytes
        if i in kept:
            fresh.append(spec)
            return _MergedPlace(len(graph.buffers) + len(fresh) - 1, 0), 0
        return intermediate(nbytes), nbytes

    for piece in pieces:
        replay = piece.replay
        assert replay is not None
        root = piece.root
        memory: list[_MergedPlace] = []
        whole: list[int] = []  # bytes of each; 0 for a whole slot
        for leaf in piece.leaves:
            at, itemsize = places[leaf.base], nodes[leaf.base].dtype.itemsize
            memory.append(_MergedPlace(at.slot, at.offset + leaf.offset * itemsize))
            whole.append(0 if at.slot >= 0 and leaf.size == division.sizes[leaf.base] else leaf.size * itemsize)
        for spec in replay.fresh:
            device = spec[0]
            at, nbytes = memory_of(root, spec)
            memory.append(at)
            whole.append(nbytes)
        for buffer in replay.scratch:
            memory.append(intermediate(buffer.nbytes))
            whole.append(buffer.nbytes)
        places[root] = memory[replay.results[0]]
        if root in kept and (places[root].slot < 0 or whole[replay.results[0]]):
            return None  # a value that another one contains
        if root in division.inside and not replay.fresh:
            return None
        for kernel in replay.kernels:
            if not isinstance(kernel, Kernel):
                return None
            arguments = [
                (_MergedPlace(memory[p.whole].slot, memory[p.whole].offset + p.offset), p.nbytes or whole[p.whole])
                for p in kernel.places
            ]
            steps.append((kernel, arguments))
    first, last = [0] * len(sizes), [-1] * len(sizes)  # the kernels that write and last read intermediate values
    for time, (_, arguments) in enumerate(steps):
        for n in [-1 - place.slot for place, _ in arguments if place.slot < 0]:
            if last[n] < 0:
                first[n] = time
            last[n] = time
    offsets, total = _plan(sizes, first, [max(time, 0) for time in last])
    count = len(graph.buffers) + len(fresh)
    kernels: list[Any] = []
    for kernel, arguments in steps:
        found = [
            ArgumentPlace(p.slot, p.offset, nbytes)
            if p.slot >= 0
            else ArgumentPlace(count, offsets[-1 - p.slot] + p.offset, nbytes)
            for p, nbytes in arguments
        ]
        kernels.append(kernel._replace(places=tuple(found)))
    number = {node: i for i, node in enumerate(graph.nodes)}
    becomes = [(number[original(nodes[i])], places[i].slot) for i in sorted(kept) if original(nodes[i]) in number]
    scratch = [Buffer(device, total, dtypes.int8)] if total else []
    return Replay(kernels, fresh, [places[i].slot for i in division.values], becomes, scratch)


def _plan(sizes: Sequence[int], first: Sequence[int], last: Sequence[int]) -> tuple[list[int], int]:
    """The offsets of intermediate values in one buffer, and its size; `first` and `last` are the times of their use."""
    rounded = [-(-size // _BLOCK) * _BLOCK for size in sizes]
    events = sorted([(first[i], 1, i) for i in range(len(sizes))] + [(last[i] + 1, 0, i) for i in range(len(sizes))])
    allocator = TLSFAllocator(2 * sum(rounded) or _BLOCK, block_size=_BLOCK, lv2_cnt=32)
    offsets, total = [0] * len(sizes), 0
    for _, opens, i in events:
        if opens:
            offsets[i] = allocator.alloc(rounded[i])
            total = max(total, offsets[i] + rounded[i])
        else:
            allocator.free(offsets[i])
    return offsets, total


__all__ = ["Division", "Piece", "divided", "merged"]
