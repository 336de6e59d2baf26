"""Every private symbol of torch that the harness uses, in one place, each under a public-looking name of ours.

Defines `SYMBOLS`, `probe`, `missing` and a function for each use. The key insight: a private symbol may go in any minor
version, and what then breaks should be one sentence here that names it, not an AttributeError in the middle of a run.
Symbols of torch itself are probed when this module is imported. Those of Dynamo, FakeTensorMode and op_db are imported
on first use: they take seconds, and `torch.testing._internal` must not be imported before a target has registered its
device. The device `tiny` has a module of its own like this one, since it knows nothing of the harness."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from conformance.core import versions
from conformance.core.errors import TargetError

SYMBOLS: dict[str, str] = {
    "torch:_neg_view": ">=2.9",
    "torch:_is_zerotensor": ">=2.9",
    "torch:Tensor._indices": ">=2.9",
    "torch:Tensor._is_view": ">=2.9",
    "torch:Tensor._values": ">=2.9",
    "torch:Tensor._version": ">=2.9",
    "torch:UntypedStorage._cdata": ">=2.9",
    "torch._C:DispatchKey": ">=2.9",
    "torch._C:DispatchKeySet": ">=2.9",
    "torch._C:_get_privateuse1_backend_name": ">=2.9",
    "torch._C._functorch:TransformType": ">=2.9",
    "torch._C._functorch:maybe_current_level": ">=2.9",
    "torch._C._functorch:peek_interpreter_stack": ">=2.9",
    "torch._ops:OpOverload.redispatch": ">=2.9",
    "torch.overrides:_get_current_function_mode_stack": ">=2.9",
    "torch.overrides:_pop_mode": ">=2.9",
    "torch.overrides:_push_mode": ">=2.9",
    "torch.testing._comparison:default_tolerances": ">=2.9",
    "torch.utils._python_dispatch:TorchDispatchMode": ">=2.9",
    "torch.utils._python_dispatch:_get_current_dispatch_mode_stack": ">=2.9",
    "torch.utils._python_dispatch:_pop_mode": ">=2.9",
    "torch.utils._python_dispatch:_push_mode": ">=2.9",
    "torch.utils._pytree:tree_leaves": ">=2.9",
    "torch.utils._pytree:tree_map": ">=2.9",
}
"""Where each symbol that comes with torch itself is, and the versions for which it is known to be there."""

ON_USE: dict[str, str] = {
    "torch._dynamo:disable": ">=2.9",
    "torch._dynamo:list_backends": ">=2.9",
    "torch._dynamo:reset": ">=2.9",
    "torch._dynamo.backends.registry:lookup_backend": ">=2.9",
    "torch._dynamo.guards:profile_guard_manager": "",
    "torch._dynamo.utils:counters": ">=2.9",
    "torch._inductor:config.fallback_random": ">=2.9",
    "torch._inductor.cpp_builder:get_cpp_compiler": ">=2.9",
    "torch._inductor.exc:InvalidCxxCompiler": ">=2.9",
    "torch._logging:set_logs": ">=2.9",
    "torch._subclasses.fake_tensor:FakeTensorMode": ">=2.9",
    "torch.testing._internal.common_device_type:precisionOverride": ">=2.9",
    "torch.testing._internal.common_device_type:toleranceOverride": ">=2.9",
    "torch.testing._internal.common_methods_invocations:op_db": ">=2.9",
    "torch.testing._internal.common_methods_invocations:foreach_unary_op_db": ">=2.9",
    "torch.testing._internal.common_methods_invocations:foreach_binary_op_db": ">=2.9",
    "torch.testing._internal.common_methods_invocations:foreach_pointwise_op_db": ">=2.9",
    "torch.testing._internal.common_methods_invocations:foreach_reduce_op_db": ">=2.9",
    "torch.testing._internal.common_methods_invocations:foreach_other_op_db": ">=2.9",
    "torch.testing._internal.common_methods_invocations:wrapper_set_seed": ">=2.9",
    "torch.testing._internal.common_utils:SEED": ">=2.9",
    "torch.testing._internal.common_utils:extract_test_fn": ">=2.9",
    "torch.testing._internal.opinfo.core:DecorateInfo": ">=2.9",
    "torch.testing._internal.opinfo.core:OpInfo": ">=2.9",
    "torch.testing._internal.opinfo.core:SampleInput": ">=2.9",
    "torch.testing._internal.opinfo.core:extract_test_fn": ">=2.9",
}
"""The same of what is imported on first use."""


def found(name: str) -> Any:
    """A private symbol of torch. Raises TargetError with one sentence where this torch does not have it."""
    module, _, path = name.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
        return value
    except (ImportError, AttributeError):
        raise TargetError(
            f"torch {versions.installed()} has no {name.replace(':', '.')}, which is used here: install one of "
            f"{versions.OLDEST} to {versions.NEWEST}, `pip install 'torch<={versions.NEWEST}.99'`"
        ) from None


def missing(symbols: Iterable[str]) -> list[str]:
    """Those which the torch that is installed does not have."""
    gone = []
    for name in symbols:
        try:
            found(name)
        except TargetError:
            gone.append(name)
    return gone


def probe(symbols: Iterable[str] = tuple(SYMBOLS)) -> None:
    """Raises TargetError with one sentence that names what this torch lacks of the symbols that come with it."""
    gone = missing(symbols)
    if gone:
        found(gone[0])


versions.check()
probe()

from torch._C import DispatchKey, DispatchKeySet  # noqa: E402 - after the probe, which names what is gone
from torch.testing._comparison import default_tolerances  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

VALUE_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""torch's tags of operators whose result's metadata, or plain answer, depends on values."""

DRAWS_NUMBERS = (torch.Tag.nondeterministic_seeded,)
"""torch's tag of operators that draw from a generator."""

__all__ = [
    "VALUE_DEPENDENT",
    "DispatchKey",
    "DispatchKeySet",
    "TorchDispatchMode",
    "default_tolerances",
    "tree_leaves",
    "tree_map",
]


def storage_id(storage: torch.UntypedStorage) -> int:
    """Equal exactly for Python objects of one storage, also of an empty one, whose data pointers are all 0."""
    return storage._cdata


def device_names() -> list[str]:
    """The types of devices that torch knows by name here, a renamed one under its new name."""
    renamed = torch._C._get_privateuse1_backend_name()
    known = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "ipu", "vulkan", "meta", "lazy")
    return sorted({*known, *([renamed] if renamed != "privateuseone" else [])})


def functorch_level() -> int | None:
    """The level of the transform of torch.func that is being run, None outside of all."""
    level: int | None = torch._C._functorch.maybe_current_level()
    return level


def in_backward() -> bool:
    """Whether the autograd engine is computing a gradient in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd takes the tensor for a view of another."""
    return tensor._is_view()


def version_of(tensor: torch.Tensor) -> int:
    """The tensor's count of in-place writes; an inference tensor has none."""
    return 0 if tensor.is_inference() else tensor._version


def neg_view(tensor: torch.Tensor) -> torch.Tensor:
    """A view with the lazy neg bit set."""
    return torch._neg_view(tensor)


def with_memory(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor; of zeros without memory, such as the gradient of sgn, a copy that has some: to read the other's
    storage ends the process."""
    return tensor.clone() if tensor is not None and torch._is_zerotensor(tensor) else tensor


def coo_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The indices and values of a sparse COO tensor that need not be coalesced."""
    return [tensor._indices(), tensor._values()]


def fake_tensor_mode() -> Any:
    """A new FakeTensorMode; its log of unusual calls is silenced."""
    mode = found("torch._subclasses.fake_tensor:FakeTensorMode")
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    return mode()


def forget_fake_calls() -> None:
    """Empty the cache in which fake tensors remember what a call gave."""
    found("torch._subclasses.fake_tensor:FakeTensorMode").cache_clear()


def in_functionalize() -> bool:
    """Whether the code that runs is inside of `torch.func.functionalize`."""
    interpreter = found("torch._C._functorch:peek_interpreter_stack")()
    return interpreter is not None and interpreter.key() == found("torch._C._functorch:TransformType").Functionalize


# Dynamo


def quiet_dynamo() -> None:
    """Silence the logs of torch, unless TORCH_LOGS asks for them, and what Dynamo does for its log alone: it times the
    guards of each new function and flushes the processor's caches before, 0.07 s."""
    import torch._dynamo

    if not missing(["torch._dynamo.guards:profile_guard_manager"]):  # without it nothing need be silenced
        torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[assignment]
    found("torch._logging:set_logs")(all=logging.CRITICAL)


def backend_names() -> list[str]:
    """All names that `torch.compile(backend=...)` knows here, also those that are not ready for users."""
    return list(found("torch._dynamo:list_backends")(exclude_tags=()))


def compiler_backend(name: str) -> Callable[[torch.fx.GraphModule, list[torch.Tensor]], Any]:
    """The function that compiles a graph, by its registered name. Raises what its own import raises."""
    compiler: Callable[..., Any] = found("torch._dynamo.backends.registry:lookup_backend")(name)
    return compiler


def has_cpp_compiler() -> bool:
    """Whether Inductor finds a C++ compiler."""
    compiler, none = (
        found("torch._inductor.cpp_builder:get_cpp_compiler"),
        found("torch._inductor.exc:InvalidCxxCompiler"),
    )
    try:
        return bool(compiler())
    except (none, RuntimeError, OSError):
        return False


def keep_eager_draws() -> None:
    """Inductor's random numbers come from eager kernels, so that one seed gives torch CPU's own: otherwise it draws by
    generators of its own."""
    from torch._inductor import config

    config.fallback_random = True


def reset_dynamo() -> None:
    """Forget all that was compiled, so that memory stays flat and an answer follows from its own calls alone."""
    found("torch._dynamo:reset")()
    forget_fake_calls()


def graph_breaks() -> int:
    """How often tracing has given up since `reset_graph_breaks`, to go on in plain Python."""
    return sum(found("torch._dynamo.utils:counters")["graph_break"].values())


def reset_graph_breaks() -> None:
    """Begin to count anew."""
    found("torch._dynamo.utils:counters").clear()


def run_eagerly(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, never traced itself; what it calls may be compiled again."""
    eager: Callable[..., Any] = found("torch._dynamo:disable")(function, recursive=False)
    return eager


def unwrapped(error: Exception) -> Exception:
    """The error that the call itself raises, without the errors that Dynamo wraps around it. Scripts carry this."""
    while any(base.__name__ == "TorchDynamoException" for base in type(error).__mro__):
        inner = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
        if not isinstance(inner, Exception):
            return error
        error = inner
    return error


def raising_inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises the call's own error in place of Dynamo's. Scripts carry this."""

    def call(*inputs: Any) -> Any:
        try:
            return function(*inputs)
        except Exception as error:
            inner = unwrapped(error)
            if inner is error:
                raise
            raise inner from error

    return call


# The dispatcher's tables


def dispatch_keys(tensor: torch.Tensor) -> list[str]:
    """The keys that calls on the tensor are dispatched by, the backend's first."""
    text = str(torch._C._dispatch_keys(tensor))
    return [key.strip() for key in text[text.find("(") + 1 : text.rfind(")")].split(",") if key.strip()]


@functools.cache
def operator_names() -> frozenset[str]:
    """Every operator that the dispatcher knows, such as aten::add.out."""
    return frozenset(torch._C._dispatch_get_all_op_names())


def has_kernel(operator: str, key: str) -> bool:
    """Whether a kernel is registered for exactly this key; of a key that this torch does not have there is none."""
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)
    except RuntimeError:  # there is no AutogradVulkan
        return False


def run_kernel(overload: Any, key: str, *args: Any, **kwargs: Any) -> Any:
    """Call the kernel that an operator's overload has for a dispatch key of this name, torch's composite ones
    included."""
    return overload.redispatch(DispatchKeySet(getattr(DispatchKey, key)), *args, **kwargs)


def out_form(operator: str) -> str:
    """The overload that writes into out= and takes what this one takes; an empty string where there is none."""
    packet = getattr(torch.ops.aten, operator.removeprefix("aten::").partition(".")[0].rstrip("_"), None)
    overload = operator.partition(".")[2] or "default"
    own = getattr(packet, overload, None)
    given = None if own is None else [str(each.type) for each in own._schema.arguments if not each.is_out]
    for name in packet.overloads() if packet is not None and given is not None else ():
        schema = getattr(packet, name)._schema
        taken = [str(each.type) for each in schema.arguments if not each.is_out]
        if taken == given and len(taken) < len(schema.arguments):
            return f"{schema.name}.{schema.overload_name}"
    return ""


# op_db


def op_db() -> SimpleNamespace:
    """PyTorch's op_db with its seed and the decorators that carry tolerances."""
    internal = "torch.testing._internal"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SimpleNamespace(
            ops=found(f"{internal}.common_methods_invocations:op_db"),
            seed=found(f"{internal}.common_utils:SEED"),
            precision_override=found(f"{internal}.common_device_type:precisionOverride"),
            tolerance_override=found(f"{internal}.common_device_type:toleranceOverride"),
            decorate_info=found(f"{internal}.opinfo.core:DecorateInfo"),
        )


FOREACH = ("unary", "binary", "pointwise", "reduce", "other")
"""The lists of OpInfos of foreach operators, which op_db does not hold."""


def foreach_op_db() -> list[Any]:
    """PyTorch's OpInfos of operators on lists of tensors."""
    module = "torch.testing._internal.common_methods_invocations"
    return [op for name in FOREACH for op in found(f"{module}:foreach_{name}_op_db")]


def sample_input(first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A sample as OpInfos draw them."""
    return found("torch.testing._internal.opinfo.core:SampleInput")(first, args=args, kwargs=kwargs)


def is_operator(function: Any, name: str) -> bool:
    """Whether this is what `torch.NAME` calls an operator: one of the dispatcher's, or made of them in Python."""
    return callable(function) and (hasattr(torch._C._VariableFunctions, name) or name in torch.functional.__all__)


NONDETERMINISTIC = frozenset(
    f"torch.ops.aten.{name}" if name.startswith("_") else name
    for name in (
        "_efficient_attention_forward", "_flash_attention_forward", "empty", "empty_like", "empty_permuted",
        "empty_strided", "new_empty", "new_empty_strided",
    )
)  # fmt: skip
"""OpInfos whose results hold uninitialized memory. Those of torch 2.9 do not say so themselves."""


def nondeterministic(opinfo: Any) -> bool:
    """Whether an OpInfo's results hold uninitialized memory, in part at least."""
    return opinfo.name in NONDETERMINISTIC or getattr(opinfo, "has_nondeterministic_output", False)


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


@contextlib.contextmanager
def op_db_outside_tests() -> Iterator[None]:
    """Within, OpInfo's iterators look for no unittest that asks for the samples: they would read the lines of source
    around each frame of the stack, for milliseconds, and seed with the name of a test."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    before = common_utils.extract_test_fn, core.extract_test_fn
    common_utils.extract_test_fn = core.extract_test_fn = _no_test
    try:
        yield
    finally:
        common_utils.extract_test_fn, core.extract_test_fn = before


def _no_test() -> None:
    return None


def _plain_call(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)
