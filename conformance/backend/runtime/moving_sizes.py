"""One program for short kernels that differ only in sizes, which become arguments of the program.

    for sentence in sentences:                  # of 9, 11, 13, ... words
        loss = layer(sentence).square().mean()  # the same 35 kernels each time, with loops of other lengths

A kernel's *form* is its graph without its numbers: lengths of loops, strides, bounds, and factors such as 1 / count.
The first kernels of a form have programs of their own, since most programs have no more. Then one program serves all of
them: the numbers that differed so far are its arguments. Numbers that were equal in each kernel are one argument.

The values are those of the separate programs, bit for bit. A short kernel (`program_cache.is_short`) is generated
without unrolling, so its sums are added in the order of its loops. All that may change these loops has happened before
its form is taken: tinygrad joins, splits and shortens loops, and replaces sums by loads, while the numbers are known.

This module must not depend on storages or torch.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tinygrad import codegen
from tinygrad.codegen.opt.postrange import apply_opts
from tinygrad.device import Device
from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.helpers import Context
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp, graph_rewrite

from .program_cache import PROGRAMS, SIMPLIFIED, is_short

SEPARATE = 2  # kernels of one form with programs of their own
MOST_SIZES = 16  # in one kernel; each is an argument
LARGEST = 1 << 30  # a number; drivers pass an argument in 32 bits
MOST_FORMS = 4096
_PLACES = frozenset({Ops.ADD, Ops.MUL, Ops.CMPLT, Ops.CMPNE, Ops.FLOORDIV, Ops.FLOORMOD, Ops.RANGE})
_FACTORS = frozenset({Ops.ADD, Ops.MUL, Ops.FDIV})

Numbers = tuple[int, ...]


@dataclass
class Family:
    """The kernels of one form so far."""

    separate: list[Numbers] = field(default_factory=list)  # with programs of their own
    seen: list[Numbers] = field(default_factory=list)  # the kernels by which the arguments were chosen
    arguments: list[list[int]] = field(default_factory=list)  # for each, the numbers that it replaces, by place
    fixed: dict[int, int] = field(default_factory=dict)  # all other numbers, by place

    def admit_numbers(self, numbers: Numbers) -> None:
        """Choose the arguments such that the program serves these numbers, too."""
        fits = all(numbers[i] == n for i, n in self.fixed.items())
        if self.seen and fits and all(len({numbers[i] for i in places}) == 1 for places in self.arguments):
            return
        self.seen = [*(self.seen or self.separate), numbers]
        together: dict[Numbers, list[int]] = {}
        for i, values in enumerate(zip(*self.seen, strict=True)):
            together.setdefault(values, []).append(i)
        self.arguments = [places for values, places in together.items() if len(set(values)) > 1]
        self.fixed = {i: numbers[i] for values, places in together.items() if len(set(values)) == 1 for i in places}


_families: dict[tuple[Any, ...], Family] = {}


def share_sizes(call: UOp) -> UOp:
    """A call of a kernel, or of the program of its form, with its numbers as bound variables."""
    kernel, device = call.src[0], call.src[1].device
    if not isinstance(device, str) or not is_short(kernel, renderer := Device[device].renderer) or _is_ordered(kernel):
        return call
    if codegen.to_program_key(kernel, renderer) in PROGRAMS:
        return call
    if (simple := SIMPLIFIED.get(kernel)) is None:
        simple = SIMPLIFIED[kernel] = _simplified(kernel, renderer)
    form, places, numbers = _form(simple)
    if not numbers:
        return call
    if len(_families) >= MOST_FORMS:
        _families.clear()
    family = _families.setdefault(form, Family())
    if numbers not in family.separate and len(family.separate) < SEPARATE:
        family.separate.append(numbers)
    if numbers in family.separate:
        return call
    family.admit_numbers(numbers)
    if len(family.arguments) > MOST_SIZES:
        return call
    chosen: dict[tuple[UOp, int], UOp] = {}
    bound: list[UOp] = []
    for argument, same in enumerate(family.arguments):
        kinds = {_is_float(*places[i]) for i in same}
        if len(kinds) > 1:  # the bits of a float that equal a size
            return call
        variable = _make_variable(argument, [n[same[0]] for n in family.seen], numbers[same[0]], kinds == {True})
        if variable is None:
            return call
        bound.append(variable.bind(numbers[same[0]]))
        parameter = variable.replace(op=Ops.PARAM)  # its form in kernels
        value = parameter.bitcast(dtypes.float32) if kinds == {True} else parameter
        chosen.update({places[i]: value for i in same})
    del SIMPLIFIED[kernel]
    return call.replace(src=(_with_arguments(simple, chosen), *call.src[1:], *bound))


def _simplified(kernel: UOp, renderer: Any) -> UOp:
    """A kernel after the part of tinygrad's code generation that decides about its loops, without an optimizer."""
    simple = graph_rewrite(kernel, codegen.pm_mops, name="early movement ops", bottom_up=True)
    simple = graph_rewrite(simple, codegen.pm_load_collapse, name="load collapse")
    for rules in (
        codegen.pm_split_ranges + codegen.pm_flatten_range,
        codegen.sym + codegen.pm_flatten_range,
        codegen.pm_flatten_range + codegen.pm_simplify_ranges,
    ):
        simple = graph_rewrite(simple, rules, ctx={}, name="simplify")
    with Context(NOOPT=1):
        return apply_opts(simple, renderer)


def _form(kernel: UOp) -> tuple[tuple[Any, ...], list[tuple[UOp, int]], Numbers]:
    """The form of a kernel, the places of its numbers (a node, and which of its sources), and the numbers."""
    order: dict[UOp, int] = {}
    form: list[Any] = []
    places: list[tuple[UOp, int]] = []
    numbers: list[int] = []
    for node in kernel.toposort():
        if node.op is Ops.CONST:
            continue
        order[node] = len(order)
        sources: list[Any] = []
        for i, source in enumerate(node.src):
            if source.op is not Ops.CONST:
                sources.append(order[source])
            elif _is_memory(node):
                sources.append(None)  # its size does not matter
            elif _is_float(node, i) or _is_size(node):
                places.append((node, i))
                numbers.append(_bits(source.val) if _is_float(node, i) else int(source.val))  # type: ignore[arg-type]
                sources.append(source.dtype)
            else:
                sources.append((source.dtype, repr(source.val)))
        argument = node.arg if node.op is not Ops.SINK else node.arg.name[0]  # the rest of the name are sizes
        form.append((node.op, node.dtype, argument, *sources))
    return tuple(form), places, tuple(numbers)


def _is_memory(node: UOp) -> bool:
    return node.op is Ops.PARAM and node.arg.addrspace is not AddrSpace.ALU


def _is_size(node: UOp) -> bool:
    """Whether the numbers of a node are sizes: it computes or compares places, or is a loop."""
    return node.op in _PLACES and all(source.dtype is dtypes.weakint for source in node.src)


def _is_float(node: UOp, source: int) -> bool:
    """Whether a source of a node is a number in float32 that may be an argument."""
    return (
        node.op in _FACTORS
        and node.dtype is dtypes.float32
        and node.src[source].op is Ops.CONST
        and (node.op is not Ops.FDIV or source == 1)
    )


def _bits(number: float) -> int:
    return int.from_bytes(ctypes.c_float(number), sys.byteorder, signed=True)  # infinity beyond float32


def _is_ordered(kernel: UOp) -> bool:
    """Whether the stores of a kernel have an order, as those of a loop kernel; tinygrad drops loops of one turn."""
    return any(node.op is Ops.AFTER for node in kernel.toposort())


def _make_variable(argument: int, seen: Sequence[int], number: int, is_float: bool) -> UOp | None:
    """The variable of an argument; None if a number is too large for one."""
    if is_float:
        return UOp.variable(f"size{argument}", -(1 << 31), (1 << 31) - 1, dtype=dtypes.int32)
    if max(map(abs, (*seen, number))) > LARGEST:
        return None
    return UOp.variable(f"size{argument}", 1 if min(*seen, number) > 0 else -LARGEST, LARGEST)


def _with_arguments(kernel: UOp, chosen: dict[tuple[UOp, int], UOp]) -> UOp:
    """A kernel with values in place of some sources of nodes, for memory of any size."""
    new: dict[UOp, UOp] = {}
    for node in kernel.toposort():
        if _is_memory(node) and node.src and node.src[0].op is Ops.CONST:
            new[node] = node.replace(src=(UOp.const(LARGEST, dtypes.weakint), *node.src[1:]))
        else:
            sources = tuple([chosen.get((node, i), new[s]) for i, s in enumerate(node.src)])
            new[node] = node if sources == node.src else node.replace(src=sources)
    return new[kernel].replace(arg=replace(kernel.arg, name=f"{kernel.arg.name[0]}_sizes"))


__all__ = ["share_sizes"]
