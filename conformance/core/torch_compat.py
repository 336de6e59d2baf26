"""Every private symbol of torch that the harness uses, in one place, each under a public-looking name of ours.

The key insight: a private symbol may go in any minor version, and what then breaks should be one line here and not a
search through the package. Symbols of Dynamo, FakeTensorMode and op_db are imported on first use: they take seconds,
and `torch.testing._internal` must not be imported before a target has registered its device. Seen to work with torch
2.13."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch.testing._comparison import default_tolerances
from torch.utils._python_dispatch import TorchDispatchMode

VALUE_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""torch's tags of operators whose result's metadata, or plain answer, depends on values."""

DRAWS_NUMBERS = (torch.Tag.nondeterministic_seeded,)
"""torch's tag of operators that draw from a generator."""

__all__ = ["VALUE_DEPENDENT", "DispatchKey", "DispatchKeySet", "TorchDispatchMode", "default_tolerances"]


def storage_id(storage: torch.UntypedStorage) -> int:
    """Equal exactly for Python objects of one storage, also of an empty one, whose data pointers are all 0."""
    return storage._cdata


def device_names() -> list[str]:
    """The types of devices that torch knows by name here, a renamed one under its new name."""
    renamed = torch._C._get_privateuse1_backend_name()
    known = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "ipu", "vulkan", "meta", "lazy")
    return sorted({*known, *([renamed] if renamed != "privateuseone" else [])})


def version_of(tensor: torch.Tensor) -> int:
    """The tensor's count of in-place writes."""
    return tensor._version


def neg_view(tensor: torch.Tensor) -> torch.Tensor:
    """A view with the lazy neg bit set."""
    return torch._neg_view(tensor)


def is_zerotensor(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor of zeros without memory, which most kernels must not read."""
    return torch._is_zerotensor(tensor)


def coo_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The indices and values of a sparse COO tensor that need not be coalesced."""
    return [tensor._indices(), tensor._values()]


def fake_tensor_mode() -> Any:
    """A new FakeTensorMode; its log of unusual calls is silenced."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    return FakeTensorMode()


def forget_fake_calls() -> None:
    """Empty the cache in which fake tensors remember what a call gave."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    FakeTensorMode.cache_clear()


def in_functionalize() -> bool:
    """Whether the code that runs is inside of `torch.func.functionalize`."""
    from torch._C._functorch import TransformType, peek_interpreter_stack

    interpreter = peek_interpreter_stack()
    return interpreter is not None and interpreter.key() == TransformType.Functionalize


# Dynamo


def quiet_dynamo() -> None:
    """Only for its log, Dynamo times the guards of each new function and flushes the processor's caches before: 0.07
    s."""
    import torch._dynamo

    if hasattr(torch._dynamo.guards, "profile_guard_manager"):
        torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)


def backend_names() -> list[str]:
    """All names that `torch.compile(backend=...)` knows here, also those that are not ready for users."""
    import torch._dynamo

    return list(torch._dynamo.list_backends(exclude_tags=()))


def compiler_backend(name: str) -> Callable[[torch.fx.GraphModule, list[torch.Tensor]], Any]:
    """The function that compiles a graph, by its registered name. Raises what its own import raises."""
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(name)


def has_cpp_compiler() -> bool:
    """Whether Inductor finds a C++ compiler."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return bool(get_cpp_compiler())
    except (InvalidCxxCompiler, RuntimeError, OSError):
        return False


def keep_eager_draws() -> None:
    """Inductor's random numbers come from eager kernels, so that one seed gives torch CPU's own: otherwise it draws by
    generators of its own."""
    from torch._inductor import config

    config.fallback_random = True


def reset_dynamo() -> None:
    """Forget all that was compiled, so that memory stays flat and an answer follows from its own calls alone."""
    import torch._dynamo

    torch._dynamo.reset()
    forget_fake_calls()


def graph_breaks() -> int:
    """How often tracing has given up since `reset_graph_breaks`, to go on in plain Python."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


def reset_graph_breaks() -> None:
    """Begin to count anew."""
    from torch._dynamo.utils import counters

    counters.clear()


def run_eagerly(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, never traced itself; what it calls may be compiled again."""
    import torch._dynamo

    eager: Callable[..., Any] = torch._dynamo.disable(function, recursive=False)
    return eager


def unwrapped(error: Exception) -> Exception:
    """The error that the call itself raises, without what Dynamo wraps around one that it met while it traced."""
    from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

    while isinstance(error, TorchDynamoException):
        inner = (
            error.inner_exception if isinstance(error, BackendCompilerFailed) else error.__cause__ or error.__context__
        )
        if not isinstance(inner, Exception):
            return error
        error = inner
    return error


# modes


def take_modes(function: Callable[[], None]) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Call the function, and take off torch's stacks what it has pushed there: modes through which every call goes from
    then on, of CPU tensors, too. Returns a context that pushes them again for as long as it lasts."""
    from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
    from torch.utils import _python_dispatch as dispatch

    functions, dispatches = len(_get_current_function_mode_stack()), len(dispatch._get_current_dispatch_mode_stack())
    function()
    pushed = [_pop_mode() for _ in _get_current_function_mode_stack()[functions:]][::-1]
    below = [dispatch._pop_mode() for _ in dispatch._get_current_dispatch_mode_stack()[dispatches:]][::-1]

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        for mode in below:
            dispatch._push_mode(mode)
        for mode in pushed:
            _push_mode(mode)
        try:
            yield
        finally:
            for _ in pushed:
                _pop_mode()
            for _ in below:
                dispatch._pop_mode()

    return entered


# op_db


def op_db() -> SimpleNamespace:
    """PyTorch's op_db with its seed and the decorators that carry tolerances. Imported after the target's `prepare`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_utils import SEED
        from torch.testing._internal.opinfo.core import DecorateInfo
    return SimpleNamespace(
        ops=op_db,
        seed=SEED,
        precision_override=precisionOverride,
        tolerance_override=toleranceOverride,
        decorate_info=DecorateInfo,
    )


@contextlib.contextmanager
def op_db_unseeded() -> Iterator[None]:
    """Within, op_db's entries that draw random numbers call the op itself. Otherwise they set a seed around it, in a
    wrapper that Dynamo cannot trace, so that no compiler is ever handed the op; who calls them sets the seed then."""
    from torch.testing._internal import common_methods_invocations as invocations

    wrapper = invocations.wrapper_set_seed
    invocations.wrapper_set_seed = _plain_call
    try:
        yield
    finally:
        invocations.wrapper_set_seed = wrapper


def _plain_call(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)
