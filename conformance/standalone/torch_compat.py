"""Every private symbol of torch that the harness uses, in one place, each behind a public function or name.

Defines `SYMBOLS`, `probe`, `missing` and a function for each use. A private symbol may disappear in any minor version.
The harness then reports one sentence that names the symbol, not an AttributeError in the middle of a run. Symbols of
torch itself are probed when this module is imported. Symbols of Dynamo, FakeTensorMode and op_db are imported on first
use. These imports take seconds, and `torch.testing._internal` must not be imported before a target has registered its
device. The device `tiny` does not depend on the harness, so it has a similar module of its own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import overrides
from torch.autograd import forward_ad
from torch.utils import _python_dispatch as dispatch

from conformance.record import versions
from conformance.record.errors import TargetError


def _since(version: str, symbols: Mapping[str, str]) -> dict[str, str]:
    return {f"{module}:{name}": version for module, names in symbols.items() for name in names.split()}


SYMBOLS: dict[str, str] = _since(
    ">=2.9",
    {
        "torch": (
            "_neg_view _is_zerotensor Tensor._indices Tensor._is_view Tensor._make_wrapper_subclass Tensor._values "
            "Tensor._version UntypedStorage._cdata"
        ),
        "torch._C": (
            "DispatchKey DispatchKeySet _current_autograd_node _dispatch_key_for_device _enter_dual_level "
            "_exit_dual_level _get_privateuse1_backend_name"
        ),
        "torch._C._functorch": "TransformType maybe_current_level peek_interpreter_stack",
        "torch._ops": "OpOverload.redispatch",
        "torch.autograd": "_get_sequence_nr",
        "torch.overrides": "_get_current_function_mode_stack _pop_mode _push_mode",
        "torch.testing._comparison": "default_tolerances",
        "torch.utils._python_dispatch": "TorchDispatchMode _get_current_dispatch_mode_stack _pop_mode _push_mode",
        "torch.utils._pytree": "tree_leaves tree_map",
    },
)
"""Symbols that come with torch itself, and the versions that have them."""

ON_USE: dict[str, str] = _since(
    ">=2.9",
    {
        "torch": "_TorchCompileInductorWrapper _TorchCompileWrapper",
        "torch._decomp": "core_aten_decompositions decomposition_table",
        "torch._dynamo": "disable list_backends reset",
        "torch._dynamo.backends.registry": "lookup_backend",
        "torch._dynamo.utils": "counters",
        "torch._functorch": "config.patch",
        "torch._inductor": "config.fallback_random config.patch",
        "torch._inductor.compiler_bisector": "CompilerBisector.disable_subsystem",
        "torch._inductor.cpp_builder": "get_cpp_compiler",
        "torch._inductor.exc": "InvalidCxxCompiler",
        "torch._inductor.virtualized": "V",
        "torch._logging": "set_logs",
        "torch._subclasses.fake_tensor": "FakeTensorMode",
        "torch.compiler": "config.patch",
        "torch.fx.experimental.symbolic_shapes": "ShapeEnv",
        "torch.testing._internal.common_device_type": (
            "DeviceTypeTestBase device_type_test_bases precisionOverride toleranceOverride"
        ),
        "torch.testing._internal.common_methods_invocations": (
            "op_db foreach_unary_op_db foreach_binary_op_db foreach_pointwise_op_db foreach_reduce_op_db "
            "foreach_other_op_db wrapper_set_seed"
        ),
        "torch.testing._internal.common_utils": "SEED extract_test_fn",
        "torch.testing._internal.opinfo.core": "DecorateInfo OpInfo SampleInput extract_test_fn",
    },
) | {"torch._dynamo.guards:profile_guard_manager": ""}
"""Symbols imported on first use, and the versions that have them. An empty specifier claims no version."""


def lookup(name: str) -> Any:
    """Return a private symbol of torch. Raises TargetError with one sentence if this torch does not have it."""
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
    """Return the symbols that the installed torch does not have."""
    gone = []
    for name in symbols:
        try:
            lookup(name)
        except TargetError:
            gone.append(name)
    return gone


def probe(symbols: Iterable[str] = tuple(SYMBOLS)) -> None:
    """Check that torch has these symbols. Raises TargetError with one sentence that names the first missing one."""
    gone = missing(symbols)
    if gone:
        lookup(gone[0])


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
    """Return an id that is equal exactly for Python objects of one storage. It also works for an empty storage, whose
    data pointer is always 0."""
    return storage._cdata


def device_names() -> list[str]:
    """Return the device types that torch accepts here, a renamed one under its new name."""
    renamed = torch._C._get_privateuse1_backend_name()
    known = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "ipu", "vulkan", "meta", "lazy")
    return sorted({*known, *([renamed] if renamed != "privateuseone" else [])})


def functorch_level() -> int | None:
    """Return the level of the torch.func transform that is running, None outside all transforms."""
    level: int | None = torch._C._functorch.maybe_current_level()
    return level


def leave_forward_ad() -> RuntimeError | None:
    """Return the error that the next `jvp` of this process would raise, None without one, and remove its cause.

    A compiler that fails inside a `jvp` leaves its level of forward-mode AD entered, and torch allows only one.
    """
    if forward_ad._current_level >= 0:  # Python code entered it and will leave it
        return None
    try:
        torch._C._enter_dual_level()
    except RuntimeError as error:
        torch._C._exit_dual_level(level=0)
        return error
    torch._C._exit_dual_level(level=0)
    return None


def count_modes() -> int:
    """Return the number of modes that see each call."""
    return len(overrides._get_current_function_mode_stack()) + len(dispatch._get_current_dispatch_mode_stack())


def is_idle_mode(value: Any) -> bool:
    """Whether a value is a mode that sees no call, since nobody has entered it."""
    if isinstance(value, overrides.TorchFunctionMode):
        return value not in overrides._get_current_function_mode_stack()
    return isinstance(value, TorchDispatchMode) and value not in dispatch._get_current_dispatch_mode_stack()


def in_backward() -> bool:
    """Whether the autograd engine is computing a gradient in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def backward_node() -> torch.autograd.graph.Node | None:
    """Return the node whose gradient the autograd engine is computing in this thread, None outside a backward pass."""
    node: torch.autograd.graph.Node | None = torch._C._current_autograd_node()
    return node


def in_compiled_backward() -> bool:
    """Whether the autograd engine runs the backward pass of a compiled graph in this thread."""
    node = backward_node()
    return node is not None and node.name().startswith("CompiledFunction")


def sequence_number_of(node: torch.autograd.graph.Node) -> int:
    """Return the number of a node of the autograd graph; nodes of one thread are numbered in the order of the forward
    pass."""
    return int(node._sequence_nr())


def sequence_number() -> int:
    """Return the number that the next node of the autograd graph gets in this thread."""
    return int(torch.autograd._get_sequence_nr())


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd treats the tensor as a view of another."""
    return tensor._is_view()


def version_of(tensor: torch.Tensor) -> int:
    """Return the tensor's count of in-place writes; 0 for an inference tensor, which has no counter."""
    return 0 if tensor.is_inference() else tensor._version


def add_to_list(tensors: list[torch.Tensor], number: float) -> None:
    """Add a number to each tensor, by one operator on the list."""
    torch._foreach_add_(tensors, number)


def neg_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view with the lazy neg bit set."""
    return torch._neg_view(tensor)


def with_memory(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return the tensor; if it is a zero tensor without memory, such as the gradient of sgn, return a copy with memory.
    Reading the storage of the original would end the process."""
    return tensor.clone() if tensor is not None and torch._is_zerotensor(tensor) else tensor


def coo_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the indices and values of a sparse COO tensor that need not be coalesced."""
    return [tensor._indices(), tensor._values()]


def fake_tensor_mode() -> Any:
    """Return a new FakeTensorMode; its log of unusual calls is silenced."""
    mode = lookup("torch._subclasses.fake_tensor:FakeTensorMode")
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    return mode()


def forget_fake_calls() -> None:
    """Empty the cache of call results in fake tensors."""
    lookup("torch._subclasses.fake_tensor:FakeTensorMode").cache_clear()


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return all decompositions of operators that are registered, by overload."""
    return lookup("torch._decomp:decomposition_table")  # type: ignore[no-any-return]


def core_decompositions() -> Any:
    """Return torch's decompositions into core ATen operators, by overload."""
    return lookup("torch._decomp:core_aten_decompositions")()


def in_functionalize() -> bool:
    """Whether the running code is inside `torch.func.functionalize`."""
    interpreter = lookup("torch._C._functorch:peek_interpreter_stack")()
    return interpreter is not None and interpreter.key() == lookup("torch._C._functorch:TransformType").Functionalize


# Dynamo


def quiet_dynamo() -> None:
    """Silence torch's logs, unless TORCH_LOGS or TORCH_TRACE requests them: pytest would print a hundred lines of the
    trace below each failure. Also disable work that Dynamo does for its log alone: it times the guards of each new
    function, and flushes the processor's caches first, 0.07 s."""
    import torch._dynamo

    logging.getLogger("torch.__trace").disabled = "TORCH_TRACE" not in os.environ

    if not missing(["torch._dynamo.guards:profile_guard_manager"]):  # without the symbol, there is nothing to silence
        torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[assignment]
    lookup("torch._logging:set_logs")(all=logging.CRITICAL)


def backend_names() -> list[str]:
    """Return all names that `torch.compile(backend=...)` accepts here, including those not ready for users."""
    return list(lookup("torch._dynamo:list_backends")(exclude_tags=()))


def compiler_backend(name: str) -> Callable[[torch.fx.GraphModule, list[torch.Tensor]], Any]:
    """Return the function that compiles a graph, by its registered name. Raises errors of the backend's own import."""
    compiler: Callable[..., Any] = lookup("torch._dynamo.backends.registry:lookup_backend")(name)
    return compiler


def compile_wrappers() -> list[Any]:
    """Return the classes whose calls compile a graph for `torch.compile`, with any backend and with Inductor."""
    return [lookup("torch:_TorchCompileWrapper"), lookup("torch:_TorchCompileInductorWrapper")]


def has_cpp_compiler() -> bool:
    """Whether Inductor finds a C++ compiler."""
    compiler, none = (
        lookup("torch._inductor.cpp_builder:get_cpp_compiler"),
        lookup("torch._inductor.exc:InvalidCxxCompiler"),
    )
    try:
        return bool(compiler())
    except (none, RuntimeError, OSError):
        return False


def load_inductor() -> None:
    """Import Inductor with its patterns, and detect the vector instructions of the CPU, which Inductor does once per
    process by starting Python ten times. Whatever fails here, the first compilation does again."""
    with contextlib.suppress(Exception):
        import torch._inductor.codegen.cpp_wrapper_cpu
        import torch._inductor.compile_fx  # noqa: F401
        from torch._inductor.cpu_vec_isa import pick_vec_isa
        from torch._inductor.fx_passes import joint_graph, post_grad

        pick_vec_isa()
        joint_graph.lazy_init()
        post_grad.lazy_init()


def keep_eager_draws() -> None:
    """Make Inductor use eager kernels for random numbers, so that a seed gives the same numbers as torch CPU. By
    default it uses its own generators."""
    from torch._inductor import config

    config.fallback_random = True


def omit_line_tables() -> None:
    """Make Inductor compile C++ without debug lines, which take a sixth of the compiler's time."""
    from torch._inductor import config

    with contextlib.suppress(AttributeError):  # a torch that has no such setting
        config.aot_inductor.enable_line_tables = False


def build_whole_kernels() -> None:
    """Make Inductor's C++ compiler write beside the file of a kernel, and rename what is complete. Inductor takes any
    file of that name as compiled: what a worker that was killed meanwhile left there failed each later run of the
    program with "file too short", in every process of the user."""
    builder = lookup("torch._inductor.cpp_builder:CppBuilder")
    build = builder.build
    if hasattr(build, "__wrapped__"):  # another target of this process has done it
        return

    @functools.wraps(build)
    def build_whole(self: Any) -> None:
        file, output = getattr(self, "_target_file", ""), getattr(self, "_output", "")
        if not file or file not in output:  # a torch that names the file elsewhere
            return build(self)  # type: ignore[no-any-return]
        beside = f"{file}.{os.getpid()}"
        self._output = output.replace(file, beside)
        try:
            build(self)
            os.replace(beside, file)
        finally:
            self._output = output
        return None

    builder.build = build_whole


def load_no_graphs() -> None:
    """Make AOTAutograd and Inductor compile each function, whatever earlier processes compiled. The keys of saved
    graphs lack the offsets of the inputs and their shared memory."""
    from torch._functorch import config as of_autograd
    from torch._inductor import config as of_inductor

    of_autograd.enable_autograd_cache = of_inductor.fx_graph_cache = False


@contextlib.contextmanager
def saved_graphs() -> Iterator[None]:
    """Context that saves compiled graphs. It loads only graphs that it saved itself."""
    of_autograd, of_caches = lookup("torch._functorch:config.patch"), lookup("torch.compiler:config.patch")
    of_inductor, tag = lookup("torch._inductor:config.patch"), uuid.uuid4().hex
    with of_autograd(enable_autograd_cache=True), of_inductor(fx_graph_cache=True), of_caches(cache_key_tag=tag):
        yield


@contextlib.contextmanager
def compiler_settings(changed: Mapping[str, Any]) -> Iterator[None]:
    """Context with these settings of the compiler, named as `_inductor.config.dce`. The compiler reads nothing from its
    caches, whose keys do not contain what `bisected` skips. Changes of a setting that this torch lacks are ignored."""
    changed = {**changed, "_inductor.config.force_disable_caches": True}
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a cache is off
        for module in ("_inductor.config", "_functorch.config", "_dynamo.config"):
            config = importlib.import_module(f"torch.{module}")
            named = {key.removeprefix(f"{module}."): value for key, value in changed.items() if key.startswith(module)}
            with contextlib.suppress(AttributeError):
                for key in named:
                    functools.reduce(getattr, key.split("."), config)
                stack.enter_context(config.patch(named))
        yield


@contextlib.contextmanager
def bisected(skips: Callable[[str, str], bool]) -> Iterator[None]:
    """Context in which torch.compile calls `skips` with the kind (`decomposition`, `pass`, `lowering`) and the name of
    each part that it is about to apply, and does not apply it if the answer is true."""
    bisector = lookup("torch._inductor.compiler_bisector:CompilerBisector")
    virtualized = lookup("torch._inductor.virtualized:V")
    lookup("torch._inductor.compiler_bisector:CompilerBisector.disable_subsystem")

    def disable(backend: str, subsystem: str, about: Callable[[], str] | None = None) -> bool:
        if about is None:  # a switch of cudagraphs or of the whole backend
            return False
        if subsystem == "lowerings":
            return skips("lowering", str(virtualized.current_node.target))
        if subsystem == "decomposition":
            return skips("decomposition", _OVERLOAD.sub(r"\1.\2", about()))
        return skips("pass", about())

    with mock.patch.object(bisector, "disable_subsystem", staticmethod(disable)):
        yield


_OVERLOAD = re.compile(r"<OpOverload\(op='([\w.]+)', overload='(\w+)'\)>")


def reset_dynamo() -> None:
    """Discard everything compiled, so that memory stays flat and an answer depends on its own calls alone."""
    lookup("torch._dynamo:reset")()
    forget_fake_calls()


def graph_breaks() -> int:
    """Return the number of graph breaks since `reset_graph_breaks`: each time tracing stopped and plain Python
    continued."""
    return sum(lookup("torch._dynamo.utils:counters")["graph_break"].values())


def reset_graph_breaks() -> None:
    """Reset the count of graph breaks."""
    lookup("torch._dynamo.utils:counters").clear()


def run_eagerly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, never traced itself; functions that it calls may be compiled again."""
    eager: Callable[..., Any] = lookup("torch._dynamo:disable")(function, recursive=False)
    return eager


def unwrapped(error: Exception) -> Exception:
    """Return the error that the call itself raises, without the errors that Dynamo wraps around it. One of them, since
    torch 2.14, is a plain RuntimeError. Scripts carry this."""
    plain = "Dynamo failed to run FX node"
    while str(error).startswith(plain) or any(base.__name__ == "TorchDynamoException" for base in type(error).__mro__):
        inner = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
        if not isinstance(inner, Exception):
            return error
        error = inner
    return error


def raising_inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, changed to raise the call's own error in place of Dynamo's. Scripts carry this."""

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
    """Return the dispatch keys of calls on the tensor, the backend's first."""
    text = str(torch._C._dispatch_keys(tensor))
    return [key.strip() for key in text[text.find("(") + 1 : text.rfind(")")].split(",") if key.strip()]


@functools.cache
def operator_names() -> frozenset[str]:
    """Return the names of all operators in the dispatcher, such as aten::add.out."""
    return frozenset(torch._C._dispatch_get_all_op_names())


def has_kernel(operator: str, key: str) -> bool:
    """Whether a kernel is registered for exactly this key; False for a key that this torch does not have."""
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)
    except RuntimeError:  # for example, there is no AutogradVulkan
        return False


def run_kernel(overload: Any, key: str, *args: Any, **kwargs: Any) -> Any:
    """Call the kernel of an operator's overload for the dispatch key of this name. This includes torch's composite
    kernels."""
    return overload.redispatch(DispatchKeySet(getattr(DispatchKey, key)), *args, **kwargs)


def key_of_device(device: str) -> Any:
    """Return the dispatch key of a type of devices."""
    return getattr(DispatchKey, torch._C._dispatch_key_for_device(device))


def out_form(operator: str) -> str:
    """Return the overload with out= that takes the same other arguments; an empty string if there is none."""
    packet = getattr(torch.ops.aten, operator.removeprefix("aten::").partition(".")[0].rstrip("_"), None)
    overload = operator.partition(".")[2] or "default"
    own = getattr(packet, overload, None)
    kinds = None if own is None else [str(argument.type) for argument in own._schema.arguments if not argument.is_out]
    for name in packet.overloads() if packet is not None and kinds is not None else ():
        schema = getattr(packet, name)._schema
        taken = [str(argument.type) for argument in schema.arguments if not argument.is_out]
        if taken == kinds and len(taken) < len(schema.arguments):
            return f"{schema.name}.{schema.overload_name}"
    return ""


# op_db


def op_db() -> SimpleNamespace:
    """Return PyTorch's op_db with its seed and the decorators that carry tolerances."""
    internal = "torch.testing._internal"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SimpleNamespace(
            ops=lookup(f"{internal}.common_methods_invocations:op_db"),
            seed=lookup(f"{internal}.common_utils:SEED"),
            precision_override=lookup(f"{internal}.common_device_type:precisionOverride"),
            tolerance_override=lookup(f"{internal}.common_device_type:toleranceOverride"),
            decorate_info=lookup(f"{internal}.opinfo.core:DecorateInfo"),
        )


FOREACH = ("unary", "binary", "pointwise", "reduce", "other")
"""The lists of OpInfos of foreach operators, which op_db does not hold."""


def foreach_op_db() -> list[Any]:
    """Return PyTorch's OpInfos of operators on lists of tensors."""
    module = "torch.testing._internal.common_methods_invocations"
    return [op for name in FOREACH for op in lookup(f"{module}:foreach_{name}_op_db")]


def sample_input(first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a sample input, as OpInfos yield it."""
    return lookup("torch.testing._internal.opinfo.core:SampleInput")(first, args=args, kwargs=kwargs)


def is_operator(function: Any, name: str) -> bool:
    """Whether `torch.NAME` is an operator: one of the dispatcher's, or composed of them in Python."""
    return callable(function) and (hasattr(torch._C._VariableFunctions, name) or name in torch.functional.__all__)


NONDETERMINISTIC = frozenset(
    f"torch.ops.aten.{name}" if name.startswith("_") else name
    for name in (
        "_efficient_attention_forward", "_flash_attention_forward", "empty", "empty_like", "empty_permuted",
        "empty_strided", "new_empty", "new_empty_strided",
    )
)  # fmt: skip
"""OpInfos whose results hold uninitialized memory. OpInfos of torch 2.9 do not declare this themselves."""


def nondeterministic(opinfo: Any) -> bool:
    """Whether an OpInfo's results hold uninitialized memory, at least in part."""
    return opinfo.name in NONDETERMINISTIC or getattr(opinfo, "has_nondeterministic_output", False)


@contextlib.contextmanager
def op_db_unseeded() -> Iterator[None]:
    """Inside the block, op_db's entries that draw random numbers call the op itself, and the caller sets the seed.
    Otherwise they set a seed around the op, in a wrapper that Dynamo cannot trace, so no compiler would ever receive
    the op."""
    from torch.testing._internal import common_methods_invocations as invocations

    wrapper = invocations.wrapper_set_seed
    invocations.wrapper_set_seed = _plain_call
    try:
        yield
    finally:
        invocations.wrapper_set_seed = wrapper


@contextlib.contextmanager
def op_db_outside_tests() -> Iterator[None]:
    """Inside the block, OpInfo's iterators do not search for a unittest that requests the samples. The search reads
    source lines around each frame of the stack, which takes milliseconds, and seeds with the name of a test."""
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


class SymbolicResults:
    """Metadata of results for symbolic sizes. `at` evaluates it at sizes of the inputs."""

    def __init__(self, inputs: list[torch.Tensor], results: list[torch.Tensor], guards: list[Any]) -> None:
        self.inputs, self.results, self.guards = inputs, results, guards

    def at(self, sizes: list[tuple[int, ...]]) -> list[tuple[torch.dtype, tuple[int | None, ...]]] | None:
        """Return dtype and shape of each result for inputs of these sizes; None for a length that depends on values.
        Return None if the sizes contradict a guard of the kernel, or one symbol would stand for two lengths."""
        known: dict[Any, int] = {}
        for tensor, shape in zip(self.inputs, sizes, strict=True):
            for symbol, n in zip(tensor.shape, shape, strict=True):
                plain: Any = symbol  # a SymInt, which the types of torch call an int
                if not isinstance(plain, torch.SymInt):
                    if plain != n:
                        return None
                elif known.setdefault(plain.node.expr, n) != n:
                    return None
        if not all(bool(guard.subs(known)) for guard in self.guards if guard.free_symbols <= known.keys()):
            return None

        def length(n: Any) -> int | None:
            if not isinstance(n, torch.SymInt):
                return int(n)
            value = n.node.expr.subs(known)
            return int(value) if value.is_number else None

        return [(result.dtype, tuple(map(length, result.shape))) for result in self.results]


def symbolic_mode() -> Any:
    """Return a new FakeTensorMode whose tensors may have symbols as sizes."""
    shapes = lookup("torch.fx.experimental.symbolic_shapes:ShapeEnv")()
    return lookup("torch._subclasses.fake_tensor:FakeTensorMode")(shape_env=shapes)


def symbolic_results(
    mode: Any, function: Callable[..., list[torch.Tensor]], inputs: list[torch.Tensor]
) -> SymbolicResults:
    """Call the function in a `symbolic_mode`, on fake tensors whose sizes are symbols, and return the metadata of its
    results."""
    fakes = [mode.from_tensor(tensor.detach(), static_shapes=False) for tensor in inputs]
    with mode:
        results = function(*fakes)
    return SymbolicResults(fakes, results, [guard.expr for guard in mode.shape_env.guards])


def implementation(function: Any) -> Callable[..., Any]:
    """Return the Python function of a custom operator; another function is returned as it is."""
    result: Callable[..., Any] = getattr(function, "_init_fn", function)
    return result


def wrapper_of(kind: type[Any], inner: torch.Tensor) -> Any:
    """Return a tensor of this subclass without memory, with the size, strides, dtype and device of another one."""
    options: dict[str, Any] = {"strides": inner.stride(), "dtype": inner.dtype, "device": inner.device}
    return torch.Tensor._make_wrapper_subclass(kind, inner.size(), **options)


def module_infos() -> dict[str, Any]:
    """Return the entries of PyTorch's `module_db` by name, such as nn.Linear."""
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def optimizer_infos() -> dict[str, Any]:
    """Return the entries of PyTorch's `optim_db` by name, such as Adam."""
    from torch.testing._internal.common_optimizers import optim_db

    return {info.optim_cls.__name__: info for info in optim_db}  # type: ignore[attr-defined]


def device_type_tests() -> tuple[type, list[Any], Any]:
    """Return the parts of PyTorch's device-type tests: the class of all such tests, the list of those classes for which
    a file makes tests, and the decorator of an operator's tests."""
    from torch.testing._internal.common_device_type import DeviceTypeTestBase, device_type_test_bases
    from torch.testing._internal.opinfo.core import DecorateInfo

    return DeviceTypeTestBase, device_type_test_bases, DecorateInfo


def renamed_backend() -> str:
    """Return the name of the device that is outside of PyTorch's tree; torch runs fused optimizers on it."""
    return torch._C._get_privateuse1_backend_name()
