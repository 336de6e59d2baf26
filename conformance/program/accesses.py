"""The operators of a program, and how its accesses to one storage lie to each other.

Defines `evidence_of`. Bugs of compilers depend on two accesses to one storage, one of them a write, more than on the
operators. The program runs on torch CPU under a dispatch mode, so composite steps count as the operators that they
call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from conformance.program.execute import RunningProgram
from conformance.program.model import LOOP, Program
from conformance.program.steps.op import DEFINED, Json, dtype_name
from conformance.program.steps.table import OPS
from conformance.record.patterns import base_operator
from conformance.record.upstream import Evidence
from conformance.standalone.torch_compat import TorchDispatchMode, tree_leaves


class Access(NamedTuple):
    """One access of an operator to the elements of a tensor. `first` and `last` are bytes of the storage."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    first: int
    last: int
    writes: bool


class Accesses(TorchDispatchMode):
    """Records the operators by name, and their accesses to the storages of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()
        self.dtypes: set[torch.dtype] = set()
        self.accesses: list[Access] = []
        self._storages: list[Any] = []  # alive, so that no other storage gets the address of one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.operators.add(base_operator(func._schema.name.partition("::")[2]))
        for at, argument in enumerate(func._schema.arguments):
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tree_leaves(value):
                if isinstance(tensor, torch.Tensor):
                    self._add(tensor, written)
        result = func(*args, **kwargs)
        self.dtypes |= {leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        return result

    def _add(self, tensor: torch.Tensor, writes: bool) -> None:
        self.dtypes.add(tensor.dtype)
        if tensor.layout is torch.strided and tensor.numel():
            self._storages.append(tensor.untyped_storage())
            self.accesses.append(access(tensor, writes))


def access(tensor: torch.Tensor, writes: bool) -> Access:
    """Return an access to all elements of a strided tensor."""
    size, stride = tuple(tensor.size()), tuple(tensor.stride())
    first = int(tensor.storage_offset())
    last = first + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    width = tensor.element_size()
    key = tensor.untyped_storage().data_ptr()
    return Access(key, tensor.dtype, size, stride, first * width, (last + 1) * width, writes)


def evidence_of(program: Program, property: str, layer: str, part: str = "", *, runs: bool = True) -> Evidence:
    """Return the evidence of a finding. With `runs=False` the program, which may end its process, is not run, and only
    the operators that its steps name are known."""
    operators = named_operators(program)
    if not runs:
        return Evidence(property, layer, part, operators, (), {input_.dtype for input_ in program.inputs})
    seen, running = Accesses(), RunningProgram(program)
    inputs = [access(tensor, False) for tensor in running.env.values() if tensor.numel()]
    with seen:
        running.run(program.steps)
    results = [access(tensor, False) for tensor in running.env.values() if tensor.numel()]
    relations = {*_relations(seen.accesses), *_to_inputs(inputs, [*seen.accesses, *results])}
    dtypes = {*map(dtype_name, seen.dtypes)}
    return Evidence(property, layer, part, operators | seen.operators, relations, dtypes)


def named_operators(program: Program) -> set[str]:
    """Return the base names of the operators that the program's steps name. A function of `snippets` also counts as
    the operators that its arguments name."""
    steps = [step for step in program.every_step if step.op != LOOP]
    operators = {base_operator(OPS[step.op].call or step.op) for step in steps} | {base_operator(s.op) for s in steps}
    return operators | {word for step in steps if OPS[step.op].form is DEFINED for word in _words(step.args)}


def _words(args: Iterable[Json]) -> Iterator[str]:
    """Yield the words in the arguments of a function of `snippets`, which name the Python code that it runs."""
    for arg in args:
        yield from arg.split() if isinstance(arg, str) else _words(arg) if isinstance(arg, list) else ()


def _to_inputs(inputs: list[Access], accesses: list[Access]) -> Iterator[str]:
    """Yield `inputs` if two inputs share a storage, and `outside` for an access to a storage, or a result on it,
    beyond its inputs."""
    storages = [tensor.storage for tensor in inputs]
    if len({*storages}) < len(storages):
        yield "inputs"
    for storage in {*storages}:
        own = [tensor for tensor in inputs if tensor.storage == storage]
        first, last = min(tensor.first for tensor in own), max(tensor.last for tensor in own)
        if any(access.storage == storage and (access.first < first or access.last > last) for access in accesses):
            yield "outside"


def _relations(accesses: list[Access]) -> Iterator[str]:
    """Yield the relation of each pair of accesses to one storage, one of them a write. A write to several elements at
    one place is `broadcast` by itself."""
    for single in accesses:
        if single.writes and _repeats(single):
            yield "broadcast"
    for left, right in itertools.combinations(accesses, 2):
        if left.storage == right.storage and (left.writes or right.writes):
            yield _relation(left, right)


def _relation(left: Access, right: Access) -> str:
    if left.last <= right.first or right.last <= left.first:
        return "apart"
    if left.dtype != right.dtype:
        return "dtype view"
    if _repeats(left) or _repeats(right):
        return "broadcast"
    places = [sorted(zip(side.size, side.stride, strict=True)) for side in (left, right)]
    if places[0] == places[1]:
        same = (left.size, left.stride) == (right.size, right.stride)
        return "transposed" if not same else "same" if left.first == right.first else "shifted"
    return "partial overlap"


def _repeats(access: Access) -> bool:
    return any(n > 1 and step == 0 for n, step in zip(access.size, access.stride, strict=True))
