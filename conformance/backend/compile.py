"""`torch.compile(model, backend="tiny")`: a captured graph, recorded as one schedule and run again on new buffers.

Defines `tiny`, the Dynamo backend.

The key insight: running the captured graph on tensors whose buffers are still empty records everything it computes
without computing it. What was recorded is scheduled once, and a call then costs its kernels.
A graph which needs a value while it is recorded (an operator on the CPU, a random number) runs eagerly instead, with a
warning that names the reason.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tinygrad.uop.ops import UOp

from . import engine, replay, storage
from .dtypes import element
from .tensors import geometry, is_tiny, tensor_on

Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]


@dataclass
class _Output:
    """Where a result of the recorded graph is found: a fresh value, a view of an input's storage, or no tensor."""

    kind: str  # "value", "input", "other"
    place: int  # index of the value, or of the input whose storage it lies in
    geometry: Geometry | None
    nbytes: int
    other: Any = None


@dataclass
class _Recording:
    """One graph for one set of input geometries."""

    run: replay.Replay
    constants: list[UOp]  # buffers that the graph itself brought along, by their place among all buffers
    order: list[int | None]  # for each buffer of the schedule: the input whose storage it is, None for a constant
    outputs: list[_Output]
    written: list[int]  # inputs whose storage the graph writes, in the order of the values behind the outputs
    checked: bool  # whether the last value says that all elements were as the graph's operators need them


def tiny(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The Dynamo backend: forward and backward each become one recorded schedule; inputs on tiny or on the CPU."""
    from torch._dynamo.backends.common import aot_autograd

    # Writes to inputs (an optimizer's) stay in the graph: each would be a copy of its own after it.
    backend = aot_autograd(fw_compiler=_compiler, bw_compiler=_compiler, keep_inference_input_mutations=True)
    return backend(graph, example_inputs)


def _compiler(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import make_boxed_func

    return make_boxed_func(_Compiled(graph))


class _Compiled:
    """A captured graph and its recordings, one for each set of input geometries."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.graph = graph
        self.recordings: dict[Any, _Recording | None] = {}
        outputs: Any = graph.graph.output_node().args[0]
        self.returns_host = [_is_host(getattr(node, "meta", {}).get("val")) for node in outputs]

    def __call__(self, *inputs: Any) -> Any:
        hosts = [i for i, x in enumerate(inputs) if _is_host(x)]
        moved = list(inputs)
        for i in hosts:
            moved[i] = inputs[i].detach().to("tiny")
        key = tuple(_key(moved))
        if key not in self.recordings:
            self.recordings[key] = self._record(moved)
        recording = self.recordings[key]
        if recording is None:
            versions = [moved[i]._version for i in hosts]
            results = self.graph(*moved)
            written = [i for i, version in zip(hosts, versions, strict=True) if moved[i]._version != version]
        else:
            found = _run(recording, moved)
            if found is None:  # an element is out of range: its operator raises the CPU's error, here on copies
                self.graph(*[x.clone() if is_tiny(x) else x for x in moved])
                raise AssertionError("tiny: an operator accepted elements that the recording of its graph refused")
            results, written = found, recording.written
        for i in hosts:
            if i in written:
                inputs[i].copy_(moved[i])
        return [r.cpu() if on_host and is_tiny(r) else r for r, on_host in zip(results, self.returns_host, strict=True)]

    def _record(self, inputs: Sequence[Any]) -> _Recording | None:
        try:
            with storage.recording() as conditions:
                return _record(self.graph, inputs, conditions)
        except storage.Observed as reason:
            warnings.warn(f"tiny: a compiled graph runs eagerly, since {reason}", stacklevel=2)
            return None


def _is_host(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == "cpu"


def _key(inputs: Sequence[Any]) -> list[Any]:
    cells: dict[int, int] = {}
    key: list[Any] = []
    for x in inputs:
        if isinstance(x, torch.Tensor):
            cell = storage.cell_of(x)
            key.append((x.dtype, *geometry(x), cell.nbytes, cells.setdefault(id(cell), len(cells))))
        else:
            key.append(x)
    return key


def _record(graph: torch.fx.GraphModule, inputs: Sequence[Any], conditions: list[UOp]) -> _Recording | None:
    stand_ins: dict[int, tuple[torch.UntypedStorage, UOp, int]] = {}  # by the cell they stand for
    arguments = []
    for i, x in enumerate(inputs):
        if not isinstance(x, torch.Tensor):
            arguments.append(x)
            continue
        cell = storage.cell_of(x)
        if id(cell) not in stand_ins:
            real, _ = element(x.dtype)
            store = storage.allocate(cell.nbytes, x.device.index or 0, real)
            buffer = UOp.new_buffer(cell.device, -(-cell.nbytes // real.itemsize), real)
            store._cell.replace(buffer, cell.nbytes)  # type: ignore[attr-defined]
            stand_ins[id(cell)] = (store, buffer, i)
        arguments.append(tensor_on(stand_ins[id(cell)][0], x.dtype, *geometry(x)))
    results = graph(*arguments)
    by_store = {id(store._cell): i for store, _, i in stand_ins.values()}  # type: ignore[attr-defined]
    values: list[UOp] = []
    outputs: list[_Output] = []
    places: dict[int, int] = {}
    for r in results:
        if not isinstance(r, torch.Tensor) or not is_tiny(r):
            outputs.append(_Output("other", 0, None, 0, r))
            continue
        cell = storage.cell_of(r)
        if id(cell) in by_store:
            outputs.append(_Output("input", by_store[id(cell)], (r.dtype, *geometry(r)), 0))
            continue
        if id(cell) not in places:
            places[id(cell)] = len(values)
            values.append(cell.flat())
        outputs.append(_Output("value", places[id(cell)], (r.dtype, *geometry(r)), cell.nbytes))
    written = []
    for store, buffer, i in stand_ins.values():
        flat = store._cell.flat()  # type: ignore[attr-defined]
        if flat is not buffer:
            written.append(i)
            values.append(flat)
    if not values:
        return None
    if conditions:
        values.append(functools.reduce(lambda a, b: a * b, conditions).reshape((1,)))
    run, buffers = engine.compiled(values, storage.cell_of(next(a for a in arguments if is_tiny(a))).device)
    standing = {buffer: i for _, buffer, i in stand_ins.values()}
    return _Recording(run, buffers, [standing.get(b) for b in buffers], outputs, written, bool(conditions))


def _run(recording: _Recording, inputs: Sequence[Any]) -> list[Any] | None:
    """The results, written inputs written; None, and nothing written, where an element is out of range."""
    cells = {i: storage.cell_of(inputs[i]) for i in recording.order if i is not None}
    storage.observe(cells.values(), dirty=False, why="compiled")
    buffers = []
    for place, constant in zip(recording.order, recording.constants, strict=True):
        buffers.append(constant if place is None else _buffer(cells[place], inputs[place].dtype))
    flats = engine.replayed(recording.run, buffers)
    if recording.checked and not any(engine.to_host(flats.pop())):
        return None
    stores: dict[int, torch.UntypedStorage] = {}
    results: list[Any] = []
    for out in recording.outputs:
        if out.geometry is None:
            results.append(out.other)
            continue
        dtype, size, stride, offset = out.geometry
        if out.kind == "input":
            results.append(tensor_on(inputs[out.place].untyped_storage(), dtype, size, stride, offset))
            continue
        if out.place not in stores:
            index = next((x.device.index or 0 for x in inputs if is_tiny(x)), 0)
            stores[out.place] = storage.allocate(out.nbytes, index, flats[out.place].dtype)
            stores[out.place]._cell.replace(flats[out.place], out.nbytes)  # type: ignore[attr-defined]
        results.append(tensor_on(stores[out.place], dtype, size, stride, offset))
    for i, flat in zip(recording.written, flats[len(flats) - len(recording.written) :], strict=True):
        cell = storage.cell_of(inputs[i])
        cell.replace(flat, cell.nbytes)
    return results


def _buffer(cell: storage.Cell, dtype: torch.dtype) -> UOp:
    """The realized buffer of a cell, in the dtype it was recorded in."""
    real, _ = element(dtype)
    flat = cell.flat_as(real)
    if not engine.is_realized(flat):
        (flat,), _ = engine.realize([flat], cell.device, why="compiled")
        cell.replace(flat, cell.nbytes)
    return flat.base


__all__ = ["tiny"]
