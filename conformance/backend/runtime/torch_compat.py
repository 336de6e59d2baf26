"""Every private symbol of torch that the device uses, probed when the device is imported.

Defines the symbols under their own names, `check`, `holds`, and `TorchError`. The key insight: a device is registered
through functions that torch keeps to itself, so a torch that lacks one has to be refused in a sentence that names it,
before anything is registered; and each row of the op tables says for which versions it holds, so that an op which a
version has no more is left out there on purpose, and missed everywhere else.
The harness has a module of its own like this one (`core/torch_compat.py`), since the device knows nothing of it.
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
"""The minor versions of torch between which the device is tested (`nox -s versions`)."""

TORCH = Version(Version(str(torch.__version__)).base_version)
"""The torch that is running; of a nightly build the release to come."""


WARNED = "TINY_WARNED_OF_TORCH"
"""The environment variable by which the processes started from here know that the warning was given."""


class TorchError(ImportError):
    """The running torch is too old, or lacks what the device is made with."""


def check() -> None:
    """Raises TorchError for a torch that is too old; warns of one that is too new, once for all processes from here."""
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
    """Whether the running torch is among the versions of a PEP 440 specifier; the empty one has all of them."""
    return TORCH in SpecifierSet(specifier)


def found(name: str) -> Any:
    """A private symbol, written "module:name.name". Raises TorchError, in one sentence, where torch has none."""
    module, _, path = name.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
        return value
    except (ImportError, AttributeError):
        raise TorchError(
            f"tiny: torch {TORCH} has no {name.replace(':', '.')}, which the device needs: "
            f"`pip install 'torch>={OLDEST},<={NEWEST}.99'`"
        ) from None


check()

# Dispatch
CPU_KEY: Any = found("torch._C:DispatchKey.CPU")
DispatchKey: Any = found("torch._C:DispatchKey")
DispatchKeySet: Any = found("torch._C:DispatchKeySet")
all_op_names: Callable[[], list[str]] = found("torch._C:_dispatch_get_all_op_names")
below_autograd: Any = found("torch._C:_AutoDispatchBelowAutograd")
exclude_keys: Any = found("torch._C:_ExcludeDispatchKeyGuard")
has_kernel: Callable[[str, str], bool] = found("torch._C:_dispatch_has_kernel_for_dispatch_key")
deterministic_algorithms: Callable[[], bool] = found("torch._C:_get_deterministic_algorithms")
deterministic_algorithms_warn_only: Callable[[], bool] = found("torch._C:_get_deterministic_algorithms_warn_only")
mkldnn_enabled: Callable[[], bool] = found("torch._C:_get_mkldnn_enabled")
parse_key: Any = found("torch._C:_parse_dispatch_key")
decomposition_table: dict[Any, Callable[..., Any]] = found("torch._decomp:decomposition_table")
_OF_OVERLOADS = found("torch:ops.aten.alias.default._op_dk"), found("torch:ops.aten.alias.default._schema")
from torch._ops import OpOverload  # noqa: E402, F401 - a type, so not by `found`

# Tensors and storages
construct_storage: Any = found("torch._C:_construct_storage_from_data_pointer")
create_empty_tensor: Any = found("torch._C:_acc.create_empty_tensor")
from_dlpack: Any = found("torch._C:_from_dlpack")
neg_view: Callable[[torch.Tensor], torch.Tensor] = found("torch:_neg_view")
set_conj: Any = found("torch._C:_set_conj")
suggest_memory_format: Callable[[torch.Tensor], torch.memory_format] = found(
    "torch._prims_common:suggest_memory_format"
)
LegacyStorage: Any = found("torch.storage:_LegacyStorage")
_OF_STORAGES = found("torch:UntypedStorage._swap_data_ptr_"), found("torch:UntypedStorage._cdata")
_OF_TENSORS = found("torch:Tensor._version"), found("torch:Tensor._indices"), found("torch:Tensor._values")

# torch.jit.trace
tracing_state: Callable[[], Any] = found("torch._C:_get_tracing_state")
_set_tracing_state: Callable[[Any], None] = found("torch._C:_set_tracing_state")
_is_key_excluded: Callable[[str], bool] = found("torch._C:_dispatch_tls_is_dispatch_key_excluded")
_set_key_excluded: Callable[[str, bool], None] = found("torch._C:_dispatch_tls_set_dispatch_key_excluded")


def set_tracing_state(state: Any) -> None:
    """Begin, go on with or end (None) torch.jit.trace in this thread.

    Within an indexed assignment torch keeps the tracer out of the dispatcher, and asserts that nobody touches it.
    """
    excluded = _is_key_excluded("Tracer")
    if excluded:
        _set_key_excluded("Tracer", False)
    _set_tracing_state(state)
    if excluded:
        _set_key_excluded("Tracer", True)


# Modes of torch functions, and the default device
DeviceContext: Any = found("torch.utils._device:DeviceContext")
device_constructors: Callable[[], set[Any]] = found("torch.utils._device:_device_constructors")
modes: Callable[[], list[Any]] = found("torch.overrides:_get_current_function_mode_stack")
_pop_mode: Callable[[], Any] = found("torch.overrides:_pop_mode")
_push_mode: Callable[[Any], None] = found("torch.overrides:_push_mode")

# Random numbers, streams and events
Event: Any = found("torch:Event")
Generator: Any = found("torch._C:Generator")
Stream: Any = found("torch:Stream")
default_generator: Any = found("torch:default_generator")

# The profiler
is_profiling: Callable[[], bool] = found("torch._C:_autograd._profiler_enabled")

# Registration
DeviceGuard: Any = found("torch._C:_acc.DeviceGuard")
DeviceType: Any = found("torch._C:_autograd.DeviceType")
ImperativeEngine: Any = found("torch._C:_ImperativeEngine")
PrivateUse1Hooks: Any = found("torch._C:_acc.PrivateUse1Hooks")
set_up_device: Any = found("torch.utils.backend_registration:_setup_privateuseone_for_python_backend")
tensor_str: Callable[[torch.Tensor, int], str] = found("torch:_tensor_str._tensor_str")
module_apply: Callable[..., torch.nn.Module] = found("torch.nn:Module._apply")
data_parallel_device: Callable[[], str | None] = found("torch.nn.parallel.data_parallel:_get_available_device_type")
validate_flex_device: Callable[..., None] = found("torch.nn.attention.flex_attention:_validate_device")
inductor_wrapper: Any = found("torch:_TorchCompileInductorWrapper")
aot_inductor_wrapper: Any = found("torch:_TorchCompileAOTInductorWrapper")

# Nested tensors in the jagged layout
NestedTensor: Any = found("torch.nested._internal.nested_tensor:NestedTensor")
jagged_attention: Callable[..., Any] = found("torch.nested._internal.sdpa:jagged_scaled_dot_product_attention")
jagged_attention_in_autocast: Callable[..., Any] = found("torch.nested._internal.sdpa:_autocast")
check_jagged_attention: Callable[..., None] = found("torch.nested._internal.sdpa:_validate_sdpa_input")
nested_from_padded: Callable[..., Any] = found("torch.nested._internal.nested_tensor:nested_from_padded")
_OF_ENGINE = found("torch.autograd:Variable._execution_engine")
_OF_ATTENTION = found("torch.nested._internal.ops:jagged_scaled_dot_product_attention")


def storage_id(storage: torch.UntypedStorage) -> int:
    """Equal exactly for Python objects of one storage."""
    return storage._cdata


def swap_memory(storage: Any, other: torch.UntypedStorage) -> None:
    """Swap the memory of two storages."""
    storage._swap_data_ptr_(other)


def version_of(tensor: torch.Tensor) -> int:
    """The tensor's count of in-place writes."""
    return tensor._version


def coo_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The indices and values of a sparse COO tensor that need not be coalesced."""
    return [tensor._indices(), tensor._values()]


def make_storage_methods(name: str) -> None:
    """Give storages `tiny()` and `is_tiny`."""
    generate: Any = found("torch.utils.backend_registration:_generate_storage_methods_for_privateuse1_backend")
    generate(name)


def replace_modes(instead: list[Any]) -> None:
    """Let these modes of torch functions be on, outermost first, and no others."""
    for _ in modes():
        _pop_mode()
    for mode in instead:
        _push_mode(mode)


def replace_tensor_str(function: Callable[[torch.Tensor, int], str]) -> None:
    """Let torch format the text of a tensor by this function."""
    torch._tensor_str._tensor_str = function


def replace_engine(engine: Any) -> None:
    """Let backward passes that Python starts run in this autograd engine."""
    torch.autograd.Variable._execution_engine = engine  # type: ignore[attr-defined]


def replace_jagged_attention(function: Callable[..., Any]) -> None:
    """Let scaled_dot_product_attention of jagged tensors be this function."""
    for module in ("sdpa", "ops"):
        imported = importlib.import_module(f"torch.nested._internal.{module}")
        imported.jagged_scaled_dot_product_attention = function  # type: ignore[attr-defined]


def replace_module_apply(function: Callable[..., torch.nn.Module]) -> None:
    """Let a module's `to`, `float` and the like change its tensors by this method."""
    torch.nn.Module._apply = function  # type: ignore[method-assign]


def replace_flex_device_check(function: Callable[..., None]) -> None:
    """Let flex_attention ask this function whether it serves the device of its tensors."""
    importlib.import_module("torch.nn.attention.flex_attention")._validate_device = function  # type: ignore[attr-defined]


def replace_data_parallel_device(function: Callable[[], str | None]) -> None:
    """Let DataParallel take this function's answer for the kind of device that it serves."""
    importlib.import_module("torch.nn.parallel.data_parallel")._get_available_device_type = function  # type: ignore[attr-defined]


def process_group_functions() -> tuple[Callable[..., Any], Callable[..., Any], dict[str, str]]:
    """What makes the first process group and later ones, and the backend that torch chooses for a kind of device."""
    names = "init_process_group", "new_group", "Backend.default_device_backend_map"
    init, new, chosen = (found(f"torch.distributed.distributed_c10d:{name}") for name in names)
    return init, new, chosen


def replace_process_group_functions(**functions: Callable[..., Any]) -> None:
    """Let process groups be made by these functions."""
    for module in ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.device_mesh"):
        imported = importlib.import_module(module)
        for name, function in functions.items():
            if hasattr(imported, name):
                setattr(imported, name, function)


def wait_for(work: Any) -> None:
    """Wait for a collective, given as the dispatcher passes it; None is one that is done."""
    if work is not None:
        found("torch._C._distributed_c10d:Work.unbox")(work).wait()


def finished_work(result: list[torch.Tensor]) -> Any:
    """A collective that is done and whose future has `result`, in the form in which the dispatcher passes it."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return found("torch._C._distributed_c10d:_create_work_from_future")(future).boxed()


# Dynamo's C half, which is there before Dynamo is imported
eval_frame: Any = found("torch._C:_dynamo.eval_frame")
_OF_FRAMES = [
    found(f"torch._C:_dynamo.eval_frame.{name}")
    for name in ("_FrameAction.SKIP", "_FrameExecStrategy", "set_code_exec_strategy")
]


# Compiling: imported on first use, since Dynamo takes seconds


def aot_autograd() -> Callable[..., Any]:
    """What makes a Dynamo backend of two compilers, of the forward and of the backward graph."""
    made: Callable[..., Any] = found("torch._dynamo.backends.common:aot_autograd")
    return made


def min_cut_partition() -> Callable[..., Any]:
    """What chooses the values that are kept between forward and backward."""
    made: Callable[..., Any] = found("torch._functorch.partitioners:min_cut_rematerialization_partition")
    return made


def boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function in the form in which it may free its inputs."""
    made: Callable[..., Any] = found("torch._functorch.aot_autograd:make_boxed_func")(function)
    return made
