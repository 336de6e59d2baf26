"""Everything that the device replaces in torch, each with the reason that torch offers no hook for it.

Defines `replace_at_import` and `replace_on_first_use`, which refuse a name that is not listed here, and the lists. A
process that imports the package but never uses the device has only the replacements of `AT_IMPORT` and the kernels of
`CPU_KERNELS`: a call that names the device may be the first use of it. All others follow when the first storage on the
device is made. No function of `torch.accelerator` is replaced, but the C functions below it.

A `torch.Event` that is made before the first use stays torch's own, which has no time on devices written in Python.

A name is written "module:attribute.attribute", with the module and the class that hold it.
`tests/backend/torch_api/test_replacements.py` compares the lists with the real difference, in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..runtime import first_use, torch_compat

_ACCELERATOR = "a device written in Python has no index, streams, allocator or properties in C++"
_GENERATOR = "torch.Generator(device='tiny') may be the first use, and only C++ can make generators of a device"

AT_IMPORT: Mapping[str, str] = {
    **dict.fromkeys(
        (f"torch._C:_accelerator_{name}" for name in torch_compat.ACCELERATOR_FUNCTIONS), _ACCELERATOR
    ),
    "torch._C:_set_default_tensor_type": "a type of torch.tiny may be the first use",
    torch_compat.GENERATOR_CALL: _GENERATOR,
    "torch.storage:UntypedStorage.__new__": "torch's own ends the process, if the device is named",
    "torch.nn.modules.module:Module._apply": "moving a module may be the first use, and would separate its shared "
    "parameters and drop their attributes",
    "torch.autograd.profiler:profile.__init__": "torch.profiler profiles every registered device, also for CPU code",
    "torch:_TorchCompileInductorWrapper.__call__": "a graph may make its tensors on the device",
    "torch:_TorchCompileAOTInductorWrapper.__call__": "a graph may make its tensors on the device",
    "torch.distributed.distributed_c10d:BackendConfig.__init__": "without a named backend, torch serves the "
    "accelerator alone, and no CPU tensors",
    "torch.distributed.distributed_c10d:_new_process_group_helper": "a group may be bound to the device before its "
    "first use",
    "torch.nn.parallel.data_parallel:_get_available_device_type": "torch would choose the accelerator, also for CPU "
    "modules",
}  # fmt: skip
"""What is replaced when the package is imported."""

_OF_STORAGE = "torch's own needs an allocator in C++ for a storage on the device"
_DLPACK = "torch's own knows devices by a list of names, and would share addresses that are no memory"
_REFUSED = "torch's own fails inside for tensors on the device: the refusal names the remedy"

ON_FIRST_USE: Mapping[str, str] = {
    "torch:Event": "torch's own has no time for the device",
    "torch:Stream": "torch's own makes events of torch's own",
    **{
        f"torch.storage:UntypedStorage.{name}": _OF_STORAGE
        for name in ("resize_", "new", "byteswap", "is_shared", "__getitem__", "share_memory_")
    },
    **{f"torch:Tensor.{name}": _DLPACK for name in ("__dlpack__", "__dlpack_device__")},
    **{f"{name}:{way}_dlpack": _DLPACK for name in ("torch", "torch.utils.dlpack") for way in ("from", "to")},
    "multiprocessing.reduction:ForkingPickler._extra_reducers": "torch shares memory, and the device's belongs to one "
    "process",
    "torch._tensor_str:_tensor_str": "torch formats with some thirty operators, on a host copy without any on the "
    "device",
    "torch.utils.hooks:RemovableHandle.next_id": "one more hook: the device looks at optimizers after each step",
    "torch.autograd.variable:Variable._execution_engine": "the device guard is Python, and must not be called with an "
    "error pending; backward passes run in the calling thread",
    "torch.nested._internal.sdpa:jagged_scaled_dot_product_attention": "torch's own has CUDA kernels alone",
    "torch.nested._internal.ops:jagged_scaled_dot_product_attention": "torch's own has CUDA kernels alone",
    "torch.nn.attention.flex_attention:_validate_device": "torch has a list of devices",
    "torch.nn.parallel.data_parallel:DataParallel.__init__": _REFUSED,
    "torch.nn.parallel:data_parallel": _REFUSED,
    **{
        f"torch.nn.parallel.comm:{name}": _REFUSED
        for name in ("broadcast", "broadcast_coalesced", "reduce_add", "reduce_add_coalesced", "scatter", "gather")
    },
    "torch.nn.parallel.distributed:DistributedDataParallel.__init__": _REFUSED,
    "torch.nn.parallel.distributed:DistributedDataParallel._set_static_graph": _REFUSED,
}
"""What is replaced when the device is used for the first time."""

_NAMED = "torch adds methods and names for a device in Python, here `tiny`"

BY_REGISTRATION: Mapping[str, str] = dict.fromkeys(
        (
            "torch:Tensor.tiny", "torch:Tensor.is_tiny", "torch.nn.modules.module:Module.tiny",
            "torch.nn.utils.rnn:PackedSequence.tiny", "torch.nn.utils.rnn:PackedSequence.is_tiny",
            "torch.storage:TypedStorage.tiny", "torch.storage:TypedStorage.is_tiny",
            "torch.storage:_StorageBase.tiny", "torch.storage:_StorageBase.is_tiny",
            "torch._C._autograd:DeviceType.TINY", "torch._C._profiler:ProfilerActivity.TINY",
            *(f"torch._C._autograd:DeviceType.{name}" for name in ("__repr__", "__str__", "name")),
            *(f"torch._C._profiler:ProfilerActivity.{name}" for name in ("__repr__", "__str__", "name")),
            "torch.utils.backend_registration:_privateuse1_backend_name",
        ),
        _NAMED,
)  # fmt: skip
"""What torch itself changes when a device in Python is registered."""

SETTINGS: Mapping[str, str] = {"recursion limit": "tinygrad raises Python's, since its graphs are deep"}
"""Process-wide settings that change when the package is imported."""

CPU_KERNELS: Mapping[str, str] = {
    "aten::_pin_memory": "torch pins with the accelerator's allocator, also for a DataLoader of CPU tensors",
    "aten::_nested_tensor_from_tensor_list": "a list of CPU tensors may name the device, and torch would read its "
    "memory",
}
"""Operators that get a kernel for CPU tensors when the package is imported. With the first pinned tensor follows
`aten::is_pinned`."""


def replace_at_import(path: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute of `AT_IMPORT` by what `make` returns for torch's own."""
    _replace(path, AT_IMPORT, make, torch_compat.lookup(path))


def replace_on_first_use(path: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute of `ON_FIRST_USE` by what `make` returns for torch's own, when the device is used."""
    torch_compat.lookup(path)  # a missing symbol is an error at import
    first_use.on_first_use(lambda: _replace(path, ON_FIRST_USE, make, torch_compat.lookup(path)))


def _replace(path: str, listed: Mapping[str, str], make: Callable[[Any], Any], original: Any) -> None:
    if path not in listed:
        raise RuntimeError(f"tiny: {path} is replaced, but torch_api/replacements.py does not list it with a reason")
    owner, _, name = path.rpartition("." if "." in path.partition(":")[2] else ":")
    setattr(torch_compat.lookup(owner), name, make(original))
