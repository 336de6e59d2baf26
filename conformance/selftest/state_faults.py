"""Faults to plant in behaviour that depends on global state: cached answers, and states that a device ignores.

A cached answer is wrong only if the program made the same call before in another state. Each of these faults therefore
caches within one program, as a device does within a process. Faults of autograd, autocast and transforms lie above the
dispatcher, and are planted between the caller and torch's functions (`FUNCTION`).
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Hashable
from types import FrameType
from typing import Any

import torch

from conformance.selftest.faults import FUNCTION, Fault, InterceptedCall
from conformance.standalone.moving import map_tensors, whole_storage
from conformance.standalone.torch_compat import functorch_level

PROMOTED = "div true_divide sqrt sigmoid add mul where"
NEW = "full arange linspace"
DRAWN = "rand randn randint randperm bernoulli uniform_ normal_ random_ exponential_"
WRITES = "add_ sub_ mul_ fill_ zero_ copy_ neg_ abs_ clamp_ index_put_ masked_fill_"
WARNING = "var add to __getitem__ mse_loss"


def _like(call: InterceptedCall) -> Hashable:
    """Return an incomplete cache key of a call: its name, dtypes and shapes."""
    key: list[Any] = [getattr(call.func, "__name__", ""), *map(type, call.args)]
    map_tensors((call.args, call.kwargs), lambda t: key.append((t.dtype, tuple(t.shape))))
    return tuple(key)


def _dtype_remembered(call: InterceptedCall) -> Any:
    result = call.run()
    return result.to(call.memory.setdefault(_like(call), result.dtype)) if "out" not in call.kwargs else result


def _new_dtype_remembered(call: InterceptedCall) -> Any:
    result = call.run()
    named = call.kwargs.get("dtype") is not None
    return result if named else result.to(call.memory.setdefault(_like(call), result.dtype))


def _device_remembered(call: InterceptedCall) -> Any:
    device = call.memory.setdefault(_like(call), call.kwargs.get("device"))
    return call.func(*call.args, **{**call.kwargs, "device": device})


def _grad_remembered(call: InterceptedCall) -> Any:
    result = call.run()
    if not isinstance(result, torch.Tensor):
        return result
    recorded = call.memory.setdefault(_like(call), result.requires_grad)
    return result.detach() if result.requires_grad and not recorded else result


def _ordinary_in_inference(call: InterceptedCall) -> Any:
    if not torch.is_inference_mode_enabled():
        return call.run()
    with torch.inference_mode(False):
        return call.run()


def _flushed_ever_after(call: InterceptedCall) -> Any:
    if not (torch.tensor(1e-40) * 1.0).item():
        call.memory["flushed"] = True
    result = call.run()
    if "flushed" not in call.memory or not result.is_floating_point():
        return result
    return result.masked_fill_(result.abs() < torch.finfo(result.dtype).tiny, 0.0)


def _last_part_missing(call: InterceptedCall) -> Any:
    usual = call.memory.setdefault("threads", torch.get_num_threads())
    t = call.first
    if torch.get_num_threads() == usual or t.numel() < 2 or len(call.args) > 1:
        return call.run()
    return call.func(t.flatten()[:-1], **call.kwargs)


def _called_by(name: str, file: str) -> bool:
    """Whether this function is on the stack: torch removes a mode while the mode handles a call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == name and frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False


def _lost_within(name: str) -> Callable[[InterceptedCall], Any]:
    return lambda call: call.first if _called_by(name, "snippets/states.py") else call.run()


def _lost_in_transform(call: InterceptedCall) -> Any:
    return call.first if functorch_level() is not None else call.run()


def _cut_in_transform(call: InterceptedCall) -> Any:
    result = call.run()
    return result.detach() if functorch_level() is not None and isinstance(result, torch.Tensor) else result


def _other_thread_unseen(call: InterceptedCall) -> Any:
    """Before a write, restore the storage as this thread saw it last, so that writes of other threads are lost."""
    tensors: list[torch.Tensor] = []
    map_tensors((call.args, call.kwargs), tensors.append)
    if call.func._schema.is_mutable and tensors and call.func.overloadpacket.__name__ in WRITES.split():
        own, kept = whole_storage(tensors[0]), call.memory.get(call.storage(tensors[0]))
        if kept is not None and (kept.dtype, kept.shape) == (own.dtype, own.shape):
            own.copy_(kept)
    result = call.run()
    for t in tensors:
        call.memory[call.storage(t)] = whole_storage(t).clone()
    return result


def _storage_of_its_own(call: InterceptedCall) -> Any:
    loads = len(call.args) > 1 and _called_by("load", "serialization.py")
    return call.having(1, call.args[1].clone()) if loads else call.run()


def _shallow(call: InterceptedCall) -> Any:
    return call.first.detach().requires_grad_(call.first.requires_grad)


def _freed_by_collection(call: InterceptedCall) -> Any:
    count = gc.get_stats()[1]["collections"]
    result = call.run()
    return result.zero_() if call.memory.setdefault("collections", count) != count else result


def _first_draw_again(call: InterceptedCall) -> Any:
    result = call.run()
    return result.copy_(call.memory.setdefault(_like(call), result.clone()))


def _swallowed(call: InterceptedCall) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call.run()


def _warned_once(call: InterceptedCall) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call.run()
    for warning in caught:
        if call.memory.setdefault(str(warning.message), call) is call:
            warnings.warn(warning.message, warning.category, stacklevel=2)
    return result


STATE_FAULTS: dict[str, Fault] = {
    "promotion remembers the default dtype": Fault(PROMOTED, _dtype_remembered, "tiny: a meta kernel's answer kept"),
    "new floats remember the default dtype": Fault(NEW, _new_dtype_remembered, "pytorch fake tensor cache"),
    "new tensors remember the default device": Fault(f"{NEW} empty", _device_remembered, "default device"),
    "no_grad is remembered": Fault("mul add clone sub", _grad_remembered, "grad mode is no key of a cache", FUNCTION),
    "inference mode is ignored": Fault("mul add clone sum", _ordinary_in_inference, "inference mode", FUNCTION),
    "autocast is remembered": Fault("mm matmul linear", _dtype_remembered, "autocast is no key of a cache", FUNCTION),
    "empty memory is not filled": Fault(
        "empty empty_like new_empty", lambda call: call.run().zero_(), "tiny: fill_uninitialized_memory was ignored"
    ),
    "subnormals are flushed ever after": Fault("mul", _flushed_ever_after, "set_flush_denormal kept by a kernel"),
    "a sum remembers the number of threads": Fault("sum", _last_part_missing, "a split kept for other threads"),
    "a write under a function mode is lost": Fault(WRITES, _lost_within("__torch_function__"), "function modes"),
    "a write under a dispatch mode is lost": Fault(WRITES, _lost_within("__torch_dispatch__"), "dispatch modes"),
    "a write in a transform is lost": Fault(WRITES, _lost_in_transform, "functorch levels", FUNCTION),
    "a result in a transform has no graph": Fault("mul", _cut_in_transform, "functorch levels", FUNCTION),
    "a write of another thread is not seen": Fault("", _other_thread_unseen, "a cache of one thread"),
    "a pickled view is alone": Fault("set_", _storage_of_its_own, "pickling of views"),
    "a deep copy shares memory": Fault("__deepcopy__", _shallow, "deepcopy", FUNCTION),
    "a collection frees what is in use": Fault("clone", _freed_by_collection, "buffers freed by the collector"),
    "random numbers are remembered": Fault(DRAWN, _first_draw_again, "a recorded graph with its numbers"),
    "warnings are swallowed": Fault(WARNING, _swallowed, "warnings", FUNCTION),
    "a warning comes once": Fault(WARNING, _warned_once, "TORCH_WARN_ONCE", FUNCTION),
}
