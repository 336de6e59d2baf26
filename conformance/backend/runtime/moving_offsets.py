"""One program for kernels that differ only in offsets, which become arguments of the program.

Defines `share_programs` (the calls of a schedule with offsets as arguments) and `numbers_of` (the offsets of a call).

The start of a row is a constant of the kernel that reads or writes it. So a loop over rows would compile a kernel for
each row. The *form* of a kernel is its graph with variables in place of the offsets. The first kernels of a form have
programs of their own, since most programs have no more. All others are calls of one program.

This module must not depend on storages or torch.
"""

from __future__ import annotations

from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from .moving_sizes import share_sizes

SEPARATE = 2  # kernels of one form with programs of their own
MOST_OFFSETS = 32  # in one kernel; each is an argument
LARGEST = 1 << 30  # an offset or size; drivers pass an argument in 32 bits
MOST_FORMS = 4096

_seen: dict[bytes, set[tuple[int, ...]]] = {}  # by form: the offsets of kernels with programs of their own


def share_programs(linear: UOp) -> UOp:
    """A schedule in which a kernel of a known form is a call with bound variables, its offsets."""
    calls = [share_sizes(_shared(call)) if call.src[0].op is Ops.SINK else call for call in linear.src]
    return linear.replace(src=tuple(calls))


def numbers_of(call: UOp) -> dict[str, int]:
    """The offsets of a call by the names of the program's variables."""
    return {s.src[0].expr: int(s.src[1].src[1].val) for s in call.src[1:] if s.is_bound_var}  # type: ignore[call-overload]


def _shared(call: UOp) -> UOp:
    form, offsets = _form(call.src[0])
    if not 0 < len(offsets) <= MOST_OFFSETS:
        return call
    if len(_seen) >= MOST_FORMS:
        _seen.clear()
    numbers, seen = tuple(offsets.values()), _seen.setdefault(form.key, set())
    if len(seen) < SEPARATE:
        seen.add(numbers)
    if numbers in seen:
        return call
    return call.replace(src=(form, *call.src[1:], *[variable.bind(n) for variable, n in offsets.items()]))


def _form(kernel: UOp) -> tuple[UOp, dict[UOp, int]]:
    """The form of a kernel, and its variables with the offsets that they stand for."""
    offsets: dict[UOp, int] = {}
    nodes = kernel.toposort()
    sizes = [u.src[0].val for u in nodes if u.op is Ops.PARAM]
    largest = max([abs(int(n)) for n in (*sizes, *[u.src[1].val for u in nodes if _has_offset(u)])])  # type: ignore[call-overload]
    if largest > LARGEST:
        return kernel, offsets
    bound = 1 << largest.bit_length()
    rewritten: dict[UOp, UOp] = {}
    for node in nodes:
        sources = [rewritten[s] for s in node.src]
        if _has_offset(node):
            offset = int(node.src[1].val)  # type: ignore[call-overload]
            variable = UOp.variable(f"offset{len(offsets)}", *((0, bound) if offset >= 0 else (-bound, -1)))
            offsets[variable] = offset
            sources[1] = variable.replace(op=Ops.PARAM)  # its form in kernels
        rewritten[node] = node if tuple(sources) == node.src else node.replace(src=tuple(sources))
    return rewritten[kernel], offsets


def _has_offset(node: UOp) -> bool:
    """Whether a node indexes a constant place of a buffer, adds a constant to a place, or compares a place with one."""
    if node.op is Ops.INDEX:
        return len(node.src) == 2 and node.src[1].op is Ops.CONST and _size(node.src[0]) > 1
    if node.op not in (Ops.ADD, Ops.CMPLT):
        return False
    place, constant = node.src
    return place.dtype is dtypes.weakint and place.op is not Ops.CONST and constant.op is Ops.CONST


def _size(buffer: UOp) -> int:
    """The number of elements of a kernel's argument; 0 for other nodes."""
    return int(buffer.src[0].val) if buffer.op is Ops.PARAM else 0  # type: ignore[call-overload]


__all__ = ["numbers_of", "share_programs"]
