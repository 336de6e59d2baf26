"""Faults to plant: a table with one fault per row, each modelled on a real bug of view and in-place semantics.

Only faults that are certain to exist can measure the power of a fuzzer. They are planted at run time in torch's
dispatcher, between autograd and the device, so one row applies to torch CPU and to the tiny device. In torch CPU the
planted fault is the only error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.program.steps.layouts import dense, geometry
from conformance.standalone.moving import storage_key
from conformance.standalone.torch_compat import version_of


@dataclass
class InterceptedCall:
    """One call of an aten op on its way to the device."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    memory: dict[Any, Any] = field(default_factory=dict)
    """Data that the fault stores between calls, by storage or view; cleared before the next program."""

    @property
    def first(self) -> Any:
        """The first argument."""
        return self.args[0]

    def run(self) -> Any:
        """Return the right answer."""
        return self.func(*self.args, **self.kwargs)

    @property
    def writes(self) -> bool:
        """Whether the call writes its first argument."""
        return bool(self.func._schema.is_mutable) and isinstance(self.first, torch.Tensor)

    def storage(self, tensor: torch.Tensor) -> int:
        """Return the identity of the tensor's storage, as a key of `memory`.

        The storage is kept until the memory is cleared: a later one at its address would count as the same."""
        key = storage_key(tensor)
        self.memory[("kept", key)] = tensor.untyped_storage()
        return key

    def view(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Return the identity of the view, as a key of `memory`; its storage is kept, too."""
        self.storage(tensor)
        return geometry(tensor)

    def having(self, at: int, value: Any) -> Any:
        """Return the answer with one argument replaced."""
        return self.func(*self.args[:at], value, *self.args[at + 1 :], **self.kwargs)


DISPATCH, FUNCTION = "dispatch", "function"
"""Level at which a fault is planted: between autograd and the device, or between the caller and torch's functions."""


@dataclass(frozen=True)
class Fault:
    """A fault: the ops that it affects (empty: all), the wrong behaviour, the real bug that it is modelled on, and its
    level.
    """

    ops: str
    act: Callable[[InterceptedCall], Any]
    like: str
    level: str = DISPATCH


VIEWS = "t transpose permute"
SLICES = "slice select"
EVERY_VIEW = f"{VIEWS} {SLICES} diagonal unfold view _unsafe_view expand as_strided unsqueeze squeeze detach alias"
ARITHMETIC = "add_ sub_ mul_ neg_ abs_ square_ relu_ clamp_ addcmul_ lerp_"
WRITES = f"{ARITHMETIC} copy_ fill_ zero_"
READS = "clone add mul sub neg sum"


def _gappy(t: torch.Tensor) -> bool:
    return not t.is_contiguous() and t.numel() > 1


def _whole(t: torch.Tensor) -> bool:
    return t.numel() * t.element_size() == t.untyped_storage().nbytes()


def _moved(t: torch.Tensor, offset: int) -> torch.Tensor:
    return t.as_strided(t.size(), t.stride(), offset)


def _stale(call: InterceptedCall) -> Any:
    view = call.run()
    return view.new_empty_strided(view.size(), view.stride()).copy_(view) if view.numel() else view


def _contiguous(call: InterceptedCall) -> Any:
    result = call.run()
    return result.new_empty(result.size()).copy_(result)


def _clobber(call: InterceptedCall) -> Any:
    t = call.first
    result = call.run()
    if _gappy(t) and 0 not in t.stride():
        last = t.storage_offset() + sum((n - 1) * st for n, st in zip(t.size(), t.stride(), strict=True))
        t.as_strided((last - t.storage_offset() + 1,), (1,))[1:2].zero_()
    return result


def _onto_contiguous(call: InterceptedCall) -> Any:
    out = call.kwargs["out"]
    room = out.untyped_storage().nbytes() // out.element_size() - out.storage_offset()
    if out.is_contiguous() or room < out.numel():
        return call.run()
    out.as_strided(out.size(), dense(out.size())).copy_(call.func(*call.args, **{**call.kwargs, "out": out.clone()}))
    return out


def _accept_overlap(call: InterceptedCall) -> Any:
    try:
        return call.run()
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        return call.first


def _not_when(wrong: Callable[[torch.Tensor], bool]) -> Callable[[InterceptedCall], Any]:
    return lambda call: call.first if isinstance(call.first, torch.Tensor) and wrong(call.first) else call.run()


def _fill_at_start(call: InterceptedCall) -> Any:
    call.having(0, _moved(call.first, 0))
    return call.first


def _whole_storage(call: InterceptedCall) -> Any:
    t = call.first
    t.as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0).zero_()
    return t


def _step_lost(call: InterceptedCall) -> Any:
    view = call.run()
    strides, dim = list(view.stride()), call.args[1]
    strides[dim] //= call.args[4] if len(call.args) > 4 else 1
    return view.as_strided(view.size(), strides)


def _third_write_lost(call: InterceptedCall) -> Any:
    count = call.memory[call.storage(call.first)] = call.memory.get(call.storage(call.first), 0) + 1
    return call.first if count % 3 == 0 else call.run()


def _after_base_write(lost: Callable[[InterceptedCall], Any]) -> Callable[[InterceptedCall], Any]:
    """Apply `lost` to writes through a view, if another tensor wrote the storage after the view was created."""

    def act(call: InterceptedCall) -> Any:
        t, memory = call.first, call.memory
        if not call.writes:
            view = call.run()
            if isinstance(view, torch.Tensor):
                memory.setdefault(call.view(view), memory.get(call.storage(view), 0))
            return view
        seen = memory.get(call.view(t))
        if seen is not None and memory.get(call.storage(t), 0) > seen:
            return lost(call)
        memory[call.storage(t)] = memory.get(call.storage(t), 0) + 1
        memory[call.view(t)] = memory[call.storage(t)] if seen is not None else memory.get(call.view(t))
        return call.run()

    return act


def _depth(act: Callable[[InterceptedCall], Any], deep: int) -> Callable[[InterceptedCall], Any]:
    """Apply `act` to writes through a view of a view, at least `deep` views away from the tensor that owns
    the storage.
    """

    def spoiled(call: InterceptedCall) -> Any:
        if not call.writes:
            view = call.run()
            if isinstance(view, torch.Tensor) and call.view(view) != call.view(call.first):
                call.memory.setdefault(call.view(view), call.memory.get(call.view(call.first), 0) + 1)
            return view
        return act(call) if call.memory.get(call.view(call.first), 0) >= deep else call.run()

    return spoiled


def _write_after_read(call: InterceptedCall) -> Any:
    """Update a result after a partial write to the operand that it was computed from."""
    if not call.writes:
        result = call.run()
        if isinstance(result, torch.Tensor) and isinstance(call.first, torch.Tensor) and "out" not in call.kwargs:
            call.memory[call.storage(call.first)] = (call, result, version_of(result))
        return result
    done = call.run()
    earlier, result, version = call.memory.pop(call.storage(call.first), (None, None, None))
    partial = call.first.numel() * call.first.element_size() < call.first.untyped_storage().nbytes()
    if earlier is not None and partial and version_of(result) == version and not result.requires_grad:
        result.copy_(earlier.run())
    return done


def _stale_read(call: InterceptedCall) -> Any:
    """Read from a view the values of its first read."""
    t = call.first
    if not isinstance(t, torch.Tensor) or call.writes or not t.numel() or "out" in call.kwargs:
        return call.run()
    kept = call.memory.setdefault(call.view(t), t.clone())
    return call.run() if _whole(t) or t.requires_grad else call.having(0, kept)


def _old_strides_after_t(call: InterceptedCall) -> Any:
    """Write with the old strides, if the tensor was transposed in place just before."""
    t = call.first
    if call.func.overloadpacket.__name__ in ("t_", "transpose_", "swapdims_", "swapaxes_"):
        call.memory[call.view(t)] = before = t.stride()
        result = call.run()
        call.memory[call.view(t)] = before
        return result
    before = call.memory.get(call.view(t))
    if before is None or sorted(before) != sorted(t.stride()) or before == t.stride():
        return call.run()
    if t.size() == t.size()[::-1]:
        call.having(0, t.as_strided(t.size(), before))
    return t


def _twice_through_one_view(call: InterceptedCall) -> Any:
    """Drop a write if the last write went through the same view."""
    last = call.memory.get("last")
    call.memory["last"] = call.view(call.first)
    return call.first if last == call.view(call.first) and not _whole(call.first) else call.run()


def _offset_unspecified(call: InterceptedCall) -> Any:
    offset = call.args[3] if len(call.args) > 3 else call.kwargs.get("storage_offset")
    return call.first.as_strided(*call.args[1:3]) if offset == 0 else call.run()


def _strides_kept(call: InterceptedCall) -> Any:
    t = call.first
    before = t.stride()
    call.run()
    return t.as_strided_(t.size(), before[: t.dim()]) if len(before) == t.dim() and t.numel() else t


def _alias_when(aliases: Callable[[torch.Tensor], bool]) -> Callable[[InterceptedCall], Any]:
    return lambda call: torch.ops.aten.alias(call.first) if aliases(call.first) else call.run()


def _wide_result(call: InterceptedCall) -> Any:
    result = call.run()
    return result.to(torch.uint8) if result.dtype is torch.bool else result


def _saturate(call: InterceptedCall) -> Any:
    t = call.first
    if t.dtype is not torch.uint8:
        return call.run()
    wide = [arg.to(torch.int64) if isinstance(arg, torch.Tensor) else arg for arg in call.args]
    return t.copy_(call.func(*wide, **call.kwargs).clamp(0, 255))


def _size_one_stride(call: InterceptedCall) -> Any:
    result = call.run()
    strides = tuple(1 if n == 1 else st for n, st in zip(result.size(), result.stride(), strict=True))
    return result.as_strided(result.size(), strides)


def _round_to_int(call: InterceptedCall) -> Any:
    source, dtype = call.first, call.kwargs.get("dtype")
    result = call.run()
    to_int = source.is_floating_point() and dtype is not None and not dtype.is_floating_point and not dtype.is_complex
    return result.copy_(source.round()) if to_int and dtype is not torch.bool else result  # only the values are wrong


def _last_row_missing(call: InterceptedCall) -> Any:
    result = call.run()
    source = call.args[1]
    broadcast = isinstance(source, torch.Tensor) and source.dim() < call.first.dim()
    if broadcast and call.first.size(0) > 1:
        call.first[-1].zero_()
    return result


FAULTS: dict[str, Fault] = {
    "slice drops the offset": Fault(
        SLICES, lambda call: _moved(call.run(), call.first.storage_offset()), "pytorch#187117"
    ),
    "narrow slice loses its step": Fault("slice", _step_lost, "tinygrad#17855"),
    "transpose is stale": Fault(VIEWS, _stale, "xla#7304"),
    "select is stale": Fault("select", _stale, "xla#7304"),
    "diagonal is stale": Fault("diagonal", _stale, "tinygrad#10945"),
    "unfold is stale": Fault("unfold", _stale, "write through unfold"),
    "view is stale": Fault("view _unsafe_view", _stale, "xla#7304"),
    "expand is stale": Fault("expand", _stale, "pytorch#78642"),
    "as_strided is stale": Fault("as_strided", _stale, "pytorch#104505"),
    "split does not alias": Fault(
        "split split_with_sizes unbind", lambda call: [piece.clone() for piece in call.run()], "xla#3072"
    ),
    "detach does not alias": Fault("detach", _stale, "stale view"),
    "as_strided takes offset 0 for unspecified": Fault("as_strided", _offset_unspecified, "tinygrad#17195"),
    "as_strided ignores the offset": Fault("as_strided", lambda call: call.func(*call.args[:3], 0), "tinygrad#17195"),
    "as_strided_ leaves stale strides": Fault("as_strided_ t_ transpose_ swapdims_", _strides_kept, "pytorch#185888"),
    "empty_strided is contiguous": Fault(
        "empty_strided", lambda call: torch.empty(call.first, **call.kwargs), "peer: empty_strided drops its strides"
    ),
    "copy_ clobbers the gap": Fault("copy_", _clobber, "pytorch#189961"),
    "copy_ into gaps is lost": Fault("copy_", _not_when(_gappy), "tinygrad#17855"),
    "copy_ broadcasts one row short": Fault("copy_", _last_row_missing, "peer: copy_ into a slice with broadcast"),
    "copy_ through stride 0 is accepted": Fault("copy_ fill_", _accept_overlap, "pytorch#152425"),
    "arithmetic through stride 0 is accepted": Fault(ARITHMETIC, _accept_overlap, "peer: add_ on an expanded tensor"),
    "arithmetic on gaps is lost": Fault(ARITHMETIC, _not_when(_gappy), "tinygrad#17855"),
    "every third write is lost": Fault(f"{ARITHMETIC} copy_ fill_ zero_", _third_write_lost, "long chains cut wrongly"),
    "addcmul_ is wrong on gaps": Fault("addcmul_ addcdiv_", _not_when(_gappy), "pytorch#118115"),
    "fill_ ignores the offset": Fault("fill_", _fill_at_start, "pytorch PR#95113"),
    "zero_ clears the storage": Fault("zero_", _whole_storage, "write outside the view"),
    "out= ignores strides": Fault(
        "add mul neg exp cat mm sum cumsum gather",
        lambda call: _onto_contiguous(call) if isinstance(call.kwargs.get("out"), torch.Tensor) else call.run(),
        "tinygrad#17210",
    ),
    "mask is off by one": Fault(
        "masked_fill_ masked_scatter_",
        lambda call: call.having(1, call.args[1].roll(1)) if call.args[1].dim() else call.run(),
        "mask write off by one",
    ),
    "index_put_ does not accumulate": Fault("index_put_", lambda call: call.func(*call.args[:3]), "index_put_"),
    "scatter_add_ overwrites": Fault(
        "scatter_add_", lambda call: torch.ops.aten.scatter_.src(*call.args), "scatter_add_"
    ),
    "item ignores the offset": Fault(
        "_local_scalar_dense", lambda call: call.func(_moved(call.first, 0)), "pytorch#187117"
    ),
    "clone of a transpose aliases": Fault("clone", _alias_when(_gappy), "peer: a.t().contiguous() aliases"),
    "clone always aliases": Fault("clone", _alias_when(lambda t: True), "write after read"),
    "clone is always contiguous": Fault("clone", _contiguous, "pytorch#133512"),
    "arithmetic results are contiguous": Fault(
        "add mul neg sub", lambda call: call.run() if "out" in call.kwargs else _contiguous(call), "pytorch#170175"
    ),
    "diag_embed ignores the offset": Fault("diag_embed", lambda call: call.func(call.first), "diag_embed"),
    "size-1 dims get stride 1": Fault("slice unsqueeze expand", _size_one_stride, "stride of size-1 dims"),
    "flip forgets the last dim": Fault("flip", lambda call: call.having(1, call.args[1][:-1]), "flip"),
    "comparison gives uint8": Fault("eq gt", _wide_result, "peer: bool + bool gives int32"),
    "uint8 saturates": Fault("add_ sub_ mul_", _saturate, "integer overflow"),
    "float to int rounds": Fault("_to_copy", _round_to_int, "casts truncate"),
    "alpha is ignored": Fault("add_ sub_", lambda call: call.func(*call.args), "add_(alpha=)"),
    "tril_ is off by one": Fault(
        "tril_ triu_",
        lambda call: call.func(call.first, (call.args[1] if len(call.args) > 1 else 0) + 1),
        "pytorch tril",
    ),
    "diagonal ignores the offset": Fault(
        "diagonal", lambda call: call.func(call.first, 0, *call.args[2:]), "tinygrad#10945"
    ),
    "a write through a view is lost once its base was written": Fault(
        f"{EVERY_VIEW} {WRITES}", _after_base_write(lambda call: call.first), "xla#7304"
    ),
    "a fill through a view goes to its base once that was written": Fault(
        f"{EVERY_VIEW} fill_ zero_ copy_ add_", _after_base_write(_fill_at_start), "xla#7304"
    ),
    "a write through a view of a view is lost": Fault(
        f"{EVERY_VIEW} {ARITHMETIC}", _depth(lambda call: call.first, 3), "pytorch#104505"
    ),
    "a view read twice is read once": Fault(READS, _stale_read, "xla#7304"),
    "a result follows a write after the read": Fault(f"{READS} {WRITES}", _write_after_read, "peer: write after read"),
    "a write after t_ goes by the old strides": Fault(
        f"t_ transpose_ swapdims_ swapaxes_ {WRITES}", _old_strides_after_t, "pytorch#185888"
    ),
    "the second write through a view is lost": Fault(WRITES, _twice_through_one_view, "long chains cut wrongly"),
    "cumsum_ is lost on gaps": Fault("cumsum_", _not_when(_gappy), "in-place on a view"),
}
