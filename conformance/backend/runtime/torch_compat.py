"""Every private symbol of torch that the device uses, probed when the device is imported.

Defines the symbols under their own names, `check`, `holds`, and `TorchError`. A device is registered through private
functions of torch. If one is missing, the import must fail with a sentence that names it, before anything is
registered. Each row of the op tables gives the torch versions that have its op. In other versions a missing op is
ignored; in these versions it is an error. The harness has a similar module (`standalone/torch_compat.py`), because
the device does not import the harness.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from packaging.specifiers import SpecifierSet
from packaging.version import Version

OLDEST, NEWEST = "2.13", "2.15"
"""Oldest and newest minor version of torch with which the device is tested (`nox -s versions`)."""

TORCH = Version(Version(str(torch.__version__)).base_version)
"""The version of the running torch; for a nightly build, the version of the next release."""


WARNED = "TINY_WARNED_OF_TORCH"
"""Environment variable, set after the warning, which suppresses it in child processes."""


class TorchError(ImportError):
    """The running torch is too old, or lacks a symbol that the device needs."""


def check() -> None:
    """Raise TorchError for a torch that is too old; warn about a newer torch than tested, once for all child
    processes.
    """
    if TORCH.release[:2] < Version(OLDEST).release:
        raise TorchError(f"tiny: torch {TORCH} is too old for the device: `pip install 'torch>={OLDEST}'`")
    if is_untested() and os.environ.get(WARNED) != str(TORCH):
        os.environ[WARNED] = str(TORCH)
        warnings.warn(
            f"tiny: torch {TORCH} is newer than {NEWEST}, the newest that the device was tested with", stacklevel=2
        )


def is_untested() -> bool:
    """Whether torch is newer than all versions that the tables were written for."""
    return TORCH.release[:2] > Version(NEWEST).release


@functools.cache
def holds(specifier: str) -> bool:
    """Whether the running torch is among the versions of a PEP 440 specifier; the empty one includes all."""
    return TORCH in SpecifierSet(specifier)


def lookup(name: str) -> Any:
    """A symbol, written "module:name.name", or a module. Raises TorchError, in one sentence, if torch lacks it."""
    module, _, path = name.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in filter(None, path.split(".")):
            value = getattr(value, part)
        return value
    except (ImportError, AttributeError):
        raise TorchError(
            f"tiny: torch {TORCH} has no {name.replace(':', '.')}, which the device needs: "
            f"`pip install 'torch>={OLDEST},<={NEWEST}.99'`"
        ) from None


check()

# Dispatch
CPU_KEY: Any = lookup("torch._C:DispatchKey.CPU")
DispatchKey: Any = lookup("torch._C:DispatchKey")
DispatchKeySet: Any = lookup("torch._C:DispatchKeySet")
all_op_names: Callable[[], list[str]] = lookup("torch._C:_dispatch_get_all_op_names")
below_autograd: Any = lookup("torch._C:_AutoDispatchBelowAutograd")
exclude_keys: Any = lookup("torch._C:_ExcludeDispatchKeyGuard")
conv_backend: Callable[..., Any] = lookup("torch._C:_select_conv_backend")
conv_memory_format: Callable[..., torch.memory_format] = lookup("torch._C:_conv_determine_backend_memory_format")
has_kernel: Callable[[str, str], bool] = lookup("torch._C:_dispatch_has_kernel_for_dispatch_key")
deterministic_algorithms: Callable[[], bool] = lookup("torch._C:_get_deterministic_algorithms")
deterministic_algorithms_warn_only: Callable[[], bool] = lookup("torch._C:_get_deterministic_algorithms_warn_only")
mkldnn_enabled: Callable[[], bool] = lookup("torch._C:_get_mkldnn_enabled")
parse_key: Any = lookup("torch._C:_parse_dispatch_key")
decomposition_table: dict[Any, Callable[..., Any]] = lookup("torch._decomp:decomposition_table")
forward_ad: Any = lookup("torch.autograd.forward_ad")
_FORWARD_AD_LEVEL = lookup("torch.autograd.forward_ad:_current_level")
_OF_OVERLOADS = lookup("torch:ops.aten.alias.default._op_dk"), lookup("torch:ops.aten.alias.default._schema")
from torch._ops import OpOverload  # noqa: E402, F401 - a type, so not by `lookup`

# Tensors and storages
construct_storage: Any = lookup("torch._C:_construct_storage_from_data_pointer")
create_empty_tensor: Any = lookup("torch._C:_acc.create_empty_tensor")
from_dlpack: Any = lookup("torch._C:_from_dlpack")
neg_view: Callable[[torch.Tensor], torch.Tensor] = lookup("torch:_neg_view")
set_conj: Any = lookup("torch._C:_set_conj")
set_neg: Any = lookup("torch._C:_set_neg")
suggest_memory_format: Callable[[torch.Tensor], torch.memory_format] = lookup(
    "torch._prims_common:suggest_memory_format"
)
LegacyStorage: Any = lookup("torch.storage:_LegacyStorage")
_OF_STORAGES = lookup("torch:UntypedStorage._swap_data_ptr_"), lookup("torch:UntypedStorage._cdata")
_OF_TENSORS = lookup("torch:Tensor._version"), lookup("torch:Tensor._indices"), lookup("torch:Tensor._values")

# torch.jit.trace
tracing_state: Callable[[], Any] = lookup("torch._C:_get_tracing_state")
_set_tracing_state: Callable[[Any], None] = lookup("torch._C:_set_tracing_state")
_is_key_excluded: Callable[[str], bool] = lookup("torch._C:_dispatch_tls_is_dispatch_key_excluded")
_set_key_excluded: Callable[[str, bool], None] = lookup("torch._C:_dispatch_tls_set_dispatch_key_excluded")


def set_tracing_state(state: Any) -> None:
    """Start, continue or end (None) torch.jit.trace in this thread.

    Within an indexed assignment torch excludes the tracer from the dispatcher, and asserts that the tracer does not
    change. The exclusion is therefore lifted for the change.
    """
    excluded = _is_key_excluded("Tracer")
    if excluded:
        _set_key_excluded("Tracer", False)
    _set_tracing_state(state)
    if excluded:
        _set_key_excluded("Tracer", True)


# Modes of torch functions, and the default device
DeviceContext: Any = lookup("torch.utils._device:DeviceContext")
device_constructors: Callable[[], set[Any]] = lookup("torch.utils._device:_device_constructors")
modes: Callable[[], list[Any]] = lookup("torch.overrides:_get_current_function_mode_stack")
_pop_mode: Callable[[], Any] = lookup("torch.overrides:_pop_mode")
_push_mode: Callable[[Any], None] = lookup("torch.overrides:_push_mode")

# Random numbers, streams and events
Event: Any = lookup("torch:Event")
set_multithreading: Callable[[bool], None] = lookup("torch._C:_set_multithreading_enabled")
multithreading: Callable[[], bool] = lookup("torch._C:_is_multithreading_enabled")
Generator: Any = lookup("torch._C:Generator")
GENERATOR_CALL = f"{type(Generator).__module__}:{type(Generator).__qualname__}.__call__"
"""The method that constructs generators. The module of the metaclass depends on the version of torch."""
Stream: Any = lookup("torch:Stream")
default_generator: Any = lookup("torch:default_generator")

# The profiler
is_profiling: Callable[[], bool] = lookup("torch._C:_autograd._profiler_enabled")

# Registration
DeviceGuard: Any = lookup("torch._C:_acc.DeviceGuard")
DeviceType: Any = lookup("torch._C:_autograd.DeviceType")
ImperativeEngine: Any = lookup("torch._C:_ImperativeEngine")
PrivateUse1Hooks: Any = lookup("torch._C:_acc.PrivateUse1Hooks")
set_up_device: Any = lookup("torch.utils.backend_registration:_setup_privateuseone_for_python_backend")

# Nested tensors in the jagged layout
NestedTensor: Any = lookup("torch.nested._internal.nested_tensor:NestedTensor")
jagged_attention_in_autocast: Callable[..., Any] = lookup("torch.nested._internal.sdpa:_autocast")
check_jagged_attention: Callable[..., None] = lookup("torch.nested._internal.sdpa:_validate_sdpa_input")
nested_from_padded: Callable[..., Any] = lookup("torch.nested._internal.nested_tensor:nested_from_padded")


def storage_id(storage: torch.UntypedStorage) -> int:
    """A number that is equal exactly for Python objects of one storage."""
    return storage._cdata


def swap_memory(storage: Any, other: torch.UntypedStorage) -> None:
    """Swap the memory of two storages."""
    storage._swap_data_ptr_(other)


def version_of(tensor: torch.Tensor) -> int:
    """The tensor's count of in-place writes."""
    return tensor._version


def coo_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The indices and values of a sparse COO tensor, coalesced or not."""
    return [tensor._indices(), tensor._values()]


def make_storage_methods(name: str) -> None:
    """Add `tiny()` and `is_tiny` to storages."""
    generate: Any = lookup("torch.utils.backend_registration:_generate_storage_methods_for_privateuse1_backend")
    generate(name)


def replace_modes(instead: list[Any]) -> None:
    """Make these the only active modes of torch functions, outermost first."""
    for _ in modes():
        _pop_mode()
    for mode in instead:
        _push_mode(mode)


ACCELERATOR_FUNCTIONS = (
    "getDeviceIndex", "setDeviceIndex", "exchangeDevice", "maybeExchangeDevice", "getDeviceCapability", "getStream",
    "synchronizeDevice", "isAllocatorInitialized", "emptyCache", "emptyHostCache", "getDeviceStats",
    "resetAccumulatedStats", "resetPeakStats", "getMemoryInfo",
)  # fmt: skip
"""The C functions below `torch.accelerator` that the device serves, without their prefix `_accelerator_`."""


def default_backends() -> dict[str, str]:
    """torch's default process-group backend for each device type."""
    chosen: dict[str, str] = lookup("torch.distributed.distributed_c10d:Backend.default_device_backend_map")
    return chosen


def wait_for(work: Any) -> None:
    """Wait for a collective, as the dispatcher passes it; None means that it is complete."""
    if work is not None:
        lookup("torch._C._distributed_c10d:Work.unbox")(work).wait()


def finished_work(result: list[torch.Tensor]) -> Any:
    """A completed collective whose future has `result`, as the dispatcher passes it."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return lookup("torch._C._distributed_c10d:_create_work_from_future")(future).boxed()


# Dynamo's C half, which exists before Dynamo is imported
eval_frame: Any = lookup("torch._C:_dynamo.eval_frame")
_OF_FRAMES = [
    lookup(f"torch._C:_dynamo.eval_frame.{name}")
    for name in ("_FrameAction.SKIP", "_FrameExecStrategy", "set_code_exec_strategy")
]


# Compiling: imported on first use, since importing Dynamo takes seconds


def aot_autograd() -> Callable[..., Any]:
    """The function that makes a Dynamo backend from two compilers, for the forward and the backward graph."""
    result: Callable[..., Any] = lookup("torch._dynamo.backends.common:aot_autograd")
    return result


def min_cut_partition() -> Callable[..., Any]:
    """The function that selects the values to keep between forward and backward."""
    result: Callable[..., Any] = lookup("torch._functorch.partitioners:min_cut_rematerialization_partition")
    return result


def boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function with the calling convention that lets it free its inputs."""
    result: Callable[..., Any] = lookup("torch._functorch.aot_autograd:make_boxed_func")(function)
    return result
