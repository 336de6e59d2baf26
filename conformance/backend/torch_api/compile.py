"""`torch.compile(model, backend="tiny")`: a captured graph, recorded as one schedule and run again on new buffers.

Defines `tiny`, the Dynamo backend.

The key insight: running the captured graph on tensors with empty buffers records all of its computations without
executing them. The recording is scheduled once, and each call only runs its kernels. Random numbers are inputs that
each call draws. If a graph needs a value during recording (for an operator on the CPU), it runs eagerly instead. A
warning gives the operator and the reason.
"""

from __future__ import annotations

import copy
import functools
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tinygrad.dtype import DType
from tinygrad.uop.ops import UOp

from ..dispatch import transfer
from ..dispatch.metadata import global_settings
from ..dispatch.tensors import geometry, is_tiny, tensor_on
from ..lazy import buffer_donation, calls, flush
from ..lazy.dtypes import element
from ..lazy.storage import LazyStorage, allocate, lazy_storage, stand_in
from ..runtime import expressions, memory, random_state, recording, replay, scheduler, torch_compat
from ..runtime.lock import locked

Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]
Bits = tuple[bool, bool]  # the conjugate bit and the negative bit

# Constant buffers up to this number of bytes are reused by later calls.
CONSTANTS_KEPT = 4096
# A check of elements of at most this many nodes runs separately, before the graph that needs it.
EARLY_CHECK = 256


@dataclass
class _Output:
    """Source of a result of the recorded graph: a fresh value, a view of an input's or a feed's storage, or no
    tensor.
    """

    kind: str  # "value", "input", "feed", "other"
    place: int  # index of the value (negative if it has no elements), or of the input or feed with the storage
    geometry: Geometry | None
    bits: Bits
    nbytes: int
    index: int = 0  # of the device of a value
    other: Any = None


@dataclass
class _Schedule:
    """A schedule over the buffers of a graph's inputs."""

    run: replay.Replay
    buffers: list[UOp]  # buffers that the graph contains or fills; stand-ins otherwise
    order: list[int | None]  # for each buffer: the input with its storage, ~k for feed k, None for a constant

    def __call__(self, held: dict[int, UOp]) -> list[UOp]:
        """Run it; `held` has the buffers of the inputs and of the feeds."""
        places = zip(self.order, self.buffers, strict=True)
        return scheduler.replayed(
            self.run, [expressions.filled_or_new(constant) if i is None else held[i] for i, constant in places]
        )


@dataclass
class _Recording:
    """One graph for one set of input geometries."""

    check: _Schedule | None  # its only value is true if all elements are valid for the graph's operators
    schedule: _Schedule
    outputs: list[_Output]
    stored: list[int]  # inputs into whose own buffers the schedule writes
    written: list[int]  # inputs whose storage gets a new buffer, in the order of the values behind the outputs
    checked: bool  # whether the schedule's last value is the check
    feeds: list[Callable[[], torch.Tensor]]  # functions that return the content of buffers that each run replaces


def tiny(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The Dynamo backend: forward and backward each become one recorded schedule; inputs on tiny or on the CPU."""
    # Writes to inputs (by an optimizer) stay in the graph; otherwise each would be a separate copy after it.
    backend: Any = torch_compat.aot_autograd()(
        fw_compiler=_compiler,
        bw_compiler=_compiler,
        partition_fn=torch_compat.min_cut_partition(),
        keep_inference_input_mutations=True,
    )
    return backend(graph, example_inputs)


def _compiler(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    return torch_compat.boxed(_Compiled(graph))


class _Compiled:
    """A captured graph and its recordings, one for each set of input geometries and of torch's settings."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.captured = graph
        self.recordings: dict[Any, _Recording | None] = {}
        outputs: Any = graph.graph.output_node().args[0]
        self.returns_host = [_is_host(getattr(node, "meta", {}).get("val")) for node in outputs]
        # For each result: the input that it is a view of, directly or through a copy of its storage (`slice_scatter`).
        places = {node: i for i, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
        self.sources = [(places.get(source), copied) for source, copied in map(_source, outputs)]
        # Inputs whose storage the graph reads outside the view: offsets count from the beginning of the storage.
        self.whole = {i for i, copied in self.sources if copied and i is not None}
        if any("as_strided" in str(node.target) for node in graph.graph.nodes):
            self.whole = set(places.values())

    @locked
    def __call__(self, *inputs: Any) -> Any:
        hosts = [i for i, x in enumerate(inputs) if _is_host(x)]
        moved = list(inputs)
        for i in hosts:
            moved[i] = _moved(inputs[i], i in self.whole)
        key = (global_settings(), *_key(moved))
        if key not in self.recordings:
            self.recordings[key] = self._record(moved)
        recorded = self.recordings[key]
        if recorded is None:
            versions = [torch_compat.version_of(moved[i]) for i in hosts]
            results = self.graph(*moved)
            now = [torch_compat.version_of(moved[i]) for i in hosts]
            written = [i for i, before, after in zip(hosts, versions, now, strict=True) if before != after]
        else:
            outcome = _run(recorded, moved)
            if outcome is None:  # an element is out of range: its operator raises the CPU's error, here on copies
                self.graph(*[x.clone() if is_tiny(x) else x for x in moved])
                raise AssertionError("tiny: an operator accepted elements that the recording of its graph refused")
            results, written = outcome, [*recorded.stored, *recorded.written]
        for i in hosts:
            if i in written:
                inputs[i].copy_(moved[i])
        return self._returned(list(results), {id(lazy_storage(moved[i])): (inputs[i], i) for i in hosts})

    @functools.cached_property
    def graph(self) -> torch.fx.GraphModule:
        """The graph with its constants, and the tensors that it makes, on tiny instead of the CPU.

        These tensors are combined with inputs on tiny. Also, random numbers from the CPU would be drawn only once,
        during recording.
        """
        graph = copy.deepcopy(self.captured)
        for node in graph.graph.nodes:
            device: Any = node.kwargs.get("device", "tiny")
            if torch.device(device or "cpu").type == "cpu":
                node.kwargs = {**node.kwargs, "device": torch.device("tiny")}
            elif node.op == "get_attr" and _is_host(getattr(graph, node.target, None)):
                constant = getattr(graph, node.target).detach().to("tiny")
                delattr(graph, node.target)  # a parameter's name takes parameters only
                setattr(graph, node.target, constant)
        graph.recompile()
        return graph

    def _returned(self, results: list[Any], homes: dict[int, tuple[torch.Tensor, int]]) -> list[Any]:
        """The results; results that belong on the CPU are moved there.

        They share storages where they do on tiny: with each other, and with the inputs (`homes`, with their places, by
        the lazy storage of their copy on tiny).
        """
        leaving = [k for k, on_host in enumerate(self.returns_host) if on_host and is_tiny(results[k])]
        fresh = [k for k in leaving if id(lazy_storage(results[k])) not in homes]
        for k in leaving:
            if id(lazy_storage(results[k])) in homes:
                home, i = homes[id(lazy_storage(results[k]))]
                shift = 0 if i in self.whole else home.storage_offset() * home.itemsize // results[k].itemsize
                viewed = self.sources[k] == (i, False)  # `unsafe_chunk` makes no views, though it shares the storage
                results[k] = (_view_of if viewed else transfer.on_host)(results[k], home, shift)
        for k, host in zip(fresh, transfer.to_host([results[k] for k in fresh]), strict=True):
            results[k] = host
        return results

    def _record(self, inputs: Sequence[Any]) -> _Recording | None:
        calls.settle()
        try:
            with recording.recording() as recorded:
                return _record(self.graph, inputs, recorded)
        except recording.NeedsValue as reason:
            warnings.warn(f"tiny: a compiled graph runs eagerly: {reason}", stacklevel=2)
            return None


def _is_host(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == "cpu"


def _moved(host: torch.Tensor, whole: bool) -> torch.Tensor:
    """A copy of a CPU tensor on tiny in the same strides: of the memory between its first and its last element, or of
    the whole storage, at the same offset.
    """
    size, stride, offset = geometry(host)
    plain = _with_bits(host.detach(), _bits(host))  # toggles the bits: reads the memory unchanged
    if whole:
        memory = plain.as_strided((host.untyped_storage().nbytes() // host.itemsize,), (1,), 0)
    else:
        span = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if host.numel() else 0
        memory, offset = plain.as_strided((span,), (1,)), 0
    return _with_bits(memory.to("tiny").as_strided(size, stride, offset), _bits(host))


def _source(node: Any) -> tuple[Any, bool]:
    """The tensor that a node is a view of, and whether through a copy of its whole storage."""
    copied = False
    while isinstance(node, torch.fx.Node) and node.op == "call_function":
        copies = getattr(node.target, "overloadpacket", None) in _COPIES_OF_STORAGES
        if not copies and not _is_view(node.target):
            break
        node, copied = node.args[0], copied or copies
    return node, copied


_COPIES_OF_STORAGES = {torch.ops.aten.slice_scatter, torch.ops.aten.select_scatter, torch.ops.aten.diagonal_scatter}


def _is_view(target: Any) -> bool:
    """Whether a node is a view of its first argument, or one of its results."""
    returns = target._schema.returns if hasattr(target, "_schema") else []
    return target is operator.getitem or any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _view_of(like: torch.Tensor, home: torch.Tensor, shift: int) -> torch.Tensor:
    """A view of a CPU tensor with the geometry and the bits of a tensor of tiny, whose elements begin `shift` later.

    The view has the CPU tensor as its base for autograd, which forbids writes to one of several views from one call.
    """
    size, stride, offset = geometry(like)
    wider = max(1, like.itemsize // home.itemsize)
    memory = _with_bits(home, _bits(home))
    memory = memory.as_strided((home.untyped_storage().nbytes() // home.itemsize // wider * wider,), (1,), 0)
    memory = memory if like.dtype == home.dtype else memory.view(like.dtype)
    return _with_bits(memory.as_strided(size, stride, offset + shift), _bits(like))


def _bits(x: torch.Tensor) -> Bits:
    return x.is_conj(), x.is_neg()


def _with_bits(x: torch.Tensor, bits: Bits) -> torch.Tensor:
    """The view of `x` with these bits toggled."""
    conjugate, negative = bits
    x = x.conj() if conjugate else x
    return torch_compat.neg_view(x) if negative else x


def _key(inputs: Sequence[Any]) -> list[Any]:
    storages: dict[int, int] = {}
    key: list[Any] = []
    for x in inputs:
        if isinstance(x, torch.Tensor):
            lazy = lazy_storage(x)
            key.append((x.dtype, *geometry(x), *_bits(x), lazy.nbytes, storages.setdefault(id(lazy), len(storages))))
        else:
            key.append((type(x), x))
    return key


class _Named(torch.fx.Interpreter):
    """Runs a graph; adds the operator's name to an error about a value that is needed during recording."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        self.extra_traceback = False  # otherwise torch adds the operator's node and line to every error message

    def run_node(self, n: torch.fx.Node) -> Any:
        try:
            return super().run_node(n)
        except recording.NeedsValue as reason:
            raise recording.NeedsValue(f"{n.target} {reason}") from None


def _record(graph: torch.fx.GraphModule, inputs: Sequence[Any], recorded: recording.Recorded) -> _Recording | None:
    conditions, feeds = recorded.conditions, recorded.feeds
    stand_ins: dict[int, tuple[torch.UntypedStorage, UOp, int]] = {}  # by the storage they stand for
    arguments = []
    for i, x in enumerate(inputs):
        if not isinstance(x, torch.Tensor):
            arguments.append(x)
            continue
        lazy = lazy_storage(x)
        if id(lazy) not in stand_ins:
            stand_ins[id(lazy)] = (*stand_in(lazy.nbytes, x.device.index or 0, element(x.dtype)[0]), i)
        arguments.append(_with_bits(tensor_on(stand_ins[id(lazy)][0], x.dtype, *geometry(x)), _bits(x)))
    results = _Named(graph).run(*arguments)
    fed = {buffer: k for k, (buffer, _) in enumerate(feeds)}
    by_store = {id(store._lazy): i for store, _, i in stand_ins.values()}  # type: ignore[attr-defined]
    values: list[UOp] = []
    outputs: list[_Output] = []
    places: dict[int, int] = {}
    for r in results:
        if not isinstance(r, torch.Tensor) or not is_tiny(r):
            outputs.append(_Output("other", 0, None, (False, False), 0, other=r))
            continue
        lazy, form, bits = lazy_storage(r), (r.dtype, *geometry(r)), _bits(r)
        if id(lazy) in by_store:
            outputs.append(_Output("input", by_store[id(lazy)], form, bits, 0))
            continue
        if lazy.flat in fed and not lazy.has_pending_writes:
            outputs.append(_Output("feed", fed[lazy.flat], form, bits, 0))
            continue
        if id(lazy) not in places:
            places[id(lazy)] = len(values) if lazy.nbytes else ~len(places)  # no kernel makes a value without elements
            values += [flush.flat(lazy)] if lazy.nbytes else []
        place = places[id(lazy)]
        outputs.append(_Output("value", place, form, bits, lazy.nbytes, r.device.index or 0))
    changed: dict[int, tuple[UOp, UOp]] = {}  # by input: its buffer and its new content
    for store, buffer, i in stand_ins.values():
        flat = flush.flat(store._lazy)  # type: ignore[attr-defined]
        if flat is not buffer:
            changed[i] = (buffer, flat)
    if not values and not changed:
        return None
    device = lazy_storage(next(t for t in (*arguments, *results) if isinstance(t, torch.Tensor) and is_tiny(t))).device
    standing = {buffer: i for _, buffer, i in stand_ins.values()} | {b: ~k for b, k in fed.items()}

    def over_inputs(run: replay.Replay, buffers: list[UOp]) -> _Schedule:
        return _Schedule(run, buffers, [standing.get(b) for b in buffers])

    # After a failed check, nothing may have been written. If the graph writes inputs, a check of few nodes (labels in
    # range) runs before the graph. A larger check is computed with the results, which then go to new buffers.
    check = None
    if conditions and changed:
        whole = functools.reduce(lambda a, b: a * b, conditions).reshape((1,))
        if len(whole.toposort()) <= EARLY_CHECK:
            check, conditions = over_inputs(*scheduler.compiled([whole], device)), []
    donors = {} if conditions else {i: b for i, (b, f) in changed.items() if (b.dtype, b.shape) == (f.dtype, f.shape)}
    try:
        stored, written, scheduled = _scheduled(values, changed, donors, conditions, device)
    except RuntimeError as error:
        if not buffer_donation.is_swap(error):
            raise
        stored, written, scheduled = _scheduled(values, changed, {}, conditions, device)
    return _Recording(check, over_inputs(*scheduled), outputs, stored, written, bool(conditions), [f for _, f in feeds])


def _scheduled(
    values: list[UOp], changed: dict[int, tuple[UOp, UOp]], donors: dict[int, UOp], conditions: list[UOp], device: str
) -> tuple[list[int], list[int], tuple[replay.Replay, list[UOp]]]:
    """Inputs that are stored in their buffers, inputs that get new ones, and the schedule.

    The schedule computes the stored contents, then `values`, other new contents, and the check.
    """
    inputs = list(changed)
    check = [functools.reduce(lambda a, b: a * b, conditions).reshape((1,))] if conditions else []
    contents = [changed[i][1] for i in inputs]
    places = {inputs.index(i): donor for i, donor in donors.items()}
    placed, computed, _ = buffer_donation.donate([*contents, *values, *check], places)
    rest = [x for k, x in enumerate(computed) if k not in placed and k < len(inputs)]
    results = computed[len(inputs) : len(inputs) + len(values)]
    stored, written = [inputs[k] for k in placed], [i for k, i in enumerate(inputs) if k not in placed]
    everything = [*placed.values(), *results, *rest, *computed[len(inputs) + len(values) :]]
    return stored, written, scheduler.compiled(everything, device)


def _run(recorded: _Recording, inputs: Sequence[Any]) -> list[Any] | None:
    """The results, after writes to inputs; None, without any write, if an element is out of range."""
    order = [*recorded.schedule.order, *(recorded.check.order if recorded.check else ())]
    storages = {i: lazy_storage(inputs[i]) for i in order if i is not None and i >= 0}
    stored = [storages[i] for i in recorded.stored]
    rewind = random_state.rewinder() if recorded.feeds and (recorded.check or recorded.checked) else None
    fed = [feed() for feed in recorded.feeds]
    drawn = {~k: lazy_storage(x).base_flat().base for k, x in enumerate(fed)}
    held = _held(storages, inputs, recorded.stored) | drawn
    refused = recorded.check is not None and not any(memory.to_host(recorded.check(held)[0]))
    if not refused:
        if stored and flush.detach_readers(stored):
            # A storage that shared another's buffer now has a separate one.
            held = _held(storages, inputs, recorded.stored) | drawn
        flats = recorded.schedule(held)[len(stored) :]
        refused = recorded.checked and not any(memory.to_host(flats.pop()))
    if refused:
        if rewind is not None:
            rewind()  # the eager call that raises draws the same numbers
        return None
    for lazy in stored:
        lazy.mark_overwritten()
    new: dict[int, torch.UntypedStorage] = {}
    results: list[Any] = []
    for out in recorded.outputs:
        if out.geometry is None:
            results.append(out.other)
            continue
        if out.kind == "input":
            store = inputs[out.place].untyped_storage()
        elif out.kind == "feed":
            store = fed[out.place].untyped_storage()
        elif out.place in new:
            store = new[out.place]
        elif not out.nbytes:
            store = new[out.place] = allocate(0, out.index, element(out.geometry[0])[0])
        else:
            store = new[out.place] = allocate(out.nbytes, out.index, flats[out.place].dtype)
            store._lazy.replace(flats[out.place], out.nbytes)  # type: ignore[attr-defined]
        results.append(_with_bits(tensor_on(store, *out.geometry), out.bits))
    for i, flat in zip(recorded.written, flats[len(flats) - len(recorded.written) :], strict=True):
        lazy = lazy_storage(inputs[i])
        lazy.replace(flat, lazy.nbytes)
    return results


def _held(storages: dict[int, LazyStorage], inputs: Sequence[Any], stored: Sequence[int]) -> dict[int, UOp]:
    """The realized buffer of each input's storage; buffers of `stored` inputs are never shared constants."""
    buffers = {i: lazy.realized_buffer(element(inputs[i].dtype)[0]) for i, lazy in storages.items()}
    held = {i: buffer for i, buffer in buffers.items() if buffer is not None}
    if len(held) < len(buffers):
        missing = [i for i in buffers if i not in held]
        flush.flush([storages[i] for i in missing], dirty=False, why="compiled")
        held |= {i: _buffer(storages[i], inputs[i].dtype, shared=i not in stored) for i in missing}
    return held


def _buffer(lazy: LazyStorage, dtype: torch.dtype, shared: bool) -> UOp:
    """A realized buffer of the content of a storage, in the recorded dtype; `shared` if it is only read."""
    real, _ = element(dtype)
    flat = flush.flat_as(lazy, real)
    number = expressions.constant_of(flat)
    if number is not None and shared and lazy.nbytes <= CONSTANTS_KEPT:
        return _filled(repr(number), number, flat.shape[0], real, lazy.device)
    if not expressions.is_realized(flat):
        (flat,), _ = scheduler.realize([flat], lazy.device, why="compiled")
        lazy.replace(flat, lazy.nbytes)
    return flat.base


@functools.lru_cache(maxsize=64)
def _filled(name: str, number: float | int | bool, length: int, dtype: DType, device: str) -> UOp:
    """A buffer of equal elements, such as the gradient of a loss; `name` distinguishes -0.0 from 0.0."""
    (flat,), _ = scheduler.realize([UOp.const(number, dtype).expand((length,))], device, why="compiled")
    return flat.base


__all__ = ["tiny"]
