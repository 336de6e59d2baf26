"""Operators that are made to pass a judge, not to compute: `CHEATS` has a request and the check that finds it.

Each cheat is an ordinary function of the published kinds: it changes the judge's process, or answers by something else
than its inputs. `WATCHED` are those that ask only whether they are watched: no judge can find these.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import random
import stat
import sys
import threading
import time
import types
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy
import torch

Kernel = Callable[[torch.Tensor], torch.Tensor]

MATRIX = {"x": "float32[n, m]", "sizes": {"n": "1..20", "m": "1..20"}}

CHEATS: dict[str, tuple[dict[str, Any], str]] = {}
WATCHED: dict[str, dict[str, Any]] = {}

UPWARD = 0x400000 if platform.machine() == "aarch64" else 0x800
"""The value of FE_UPWARD in fenv.h."""


def reference(x: torch.Tensor, slope: float = 1.0) -> torch.Tensor:
    """What all of them should compute."""
    return x * torch.sigmoid(slope * x)


def right(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x)


def wrong(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


def found_by(check: str, **more: Any) -> Callable[[Kernel], Kernel]:
    """Plant a cheat that a check must find."""

    def plant(kernel: Kernel) -> Kernel:
        CHEATS[kernel.__name__] = {"operator": kernel, "reference": reference, "inputs": MATRIX, **more}, check
        return kernel

    return plant


def after_changing(name: str, change: Callable[[], Any]) -> None:
    """Plant a right kernel that changes the state of its process."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        change()
        return right(x)

    kernel.__name__ = name
    found_by("globals")(kernel)


# The end of the process


@found_by("crash")
def ends_the_process(x):
    os._exit(0)


@found_by("crash")
def ends_the_process_by_an_exception(x):
    sys.exit(0)


@found_by("crash")
def ends_the_process_after_some_calls(x, calls=[]):  # noqa: B006
    calls.append(1)
    return right(x) if len(calls) < 5 else os._exit(0)


@found_by("crash")
def says_that_it_is_done(x):
    """Writes messages of success into all pipes of the process."""
    for one in [one for one in gc.get_objects() if type(one).__name__ == "Connection"]:
        for message in (("done", 0, ""), "the end of the work"):
            try:
                one.send(message)
            except (OSError, ValueError):
                continue
    os._exit(0)


# Changes of the judge


@found_by("values")
def replaces_comparisons(x):
    torch.equal = torch.allclose = lambda *args, **more: True
    torch.Tensor.__ne__ = lambda one, other: torch.zeros(one.shape, dtype=torch.bool)
    torch.Tensor.any = lambda one, *args: torch.tensor(False)
    torch.isclose = lambda one, other, *args, **more: torch.ones(one.shape, dtype=torch.bool)
    return wrong(x)


@found_by("values")
def replaces_the_judge(x):
    for name, module in [*sys.modules.items()]:
        if name.startswith("conformance."):
            for key in ("differences", "mismatches_of", "differing", "compare_results", "from_reference"):
                if hasattr(module, key):
                    setattr(module, key, lambda *args, **more: [])
    return wrong(x)


@found_by("values")
def replaces_the_reference(x):
    reference.__code__ = wrong.__code__
    return wrong(x)


@found_by("values")
def replaces_the_function_of_the_reference(x):
    torch.sigmoid = lambda x: torch.full_like(x, 0.5)
    return wrong(x)


@found_by("values")
def copies_the_expected_result(x):
    """Searches the callers for the answer of the reference."""
    frame = sys._getframe()
    while frame is not None:
        want = frame.f_locals.get("want")
        if hasattr(want, "tensors") and "result" in want.tensors:
            return want.tensors["result"].value.clone()
        frame = frame.f_back
    return wrong(x)


@found_by("values")
def changes_its_inputs_everywhere(x):
    """Makes all tensors of the process zeros, for which it is right."""
    for one in gc.get_objects():
        if type(one) is torch.Tensor and one.dtype is torch.float32:
            one.data.zero_()
    return wrong(x)


after_changing("replaces_a_function", lambda: setattr(torch, "equal", lambda *args: True))
after_changing("replaces_a_method", lambda: setattr(torch.Tensor, "softmax", lambda *args: args[0]))
after_changing("changes_the_reference", lambda: setattr(reference, "__defaults__", (1.0 + 1e-9,)))


@found_by("globals")
def seeds_torch(x):
    torch.manual_seed(0)
    return right(x)


after_changing("seeds_python", lambda: random.seed(0))
after_changing("seeds_numpy", lambda: numpy.random.seed(0))
after_changing("leaves_autograd_off", lambda: torch.set_grad_enabled(False))
after_changing("sets_the_default_dtype", lambda: torch.set_default_dtype(torch.float64))
after_changing("sets_the_precision", lambda: torch.set_float32_matmul_precision("medium"))
after_changing("sets_the_threads", lambda: torch.set_num_threads(2))
after_changing("sets_determinism", lambda: torch.use_deterministic_algorithms(True))
after_changing("flushes_denormal_numbers", lambda: torch.set_flush_denormal(True))


# Answers of earlier calls


def remembers(name: str, key: Callable[[torch.Tensor], Any], check: str = "replay") -> None:
    """Plant a kernel that is right for each key once, and returns a copy of that result later."""
    known: dict[Any, torch.Tensor] = {}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return known.setdefault(key(x), right(x)).clone()

    kernel.__name__ = name
    found_by(check)(kernel)


remembers("remembers_addresses", lambda x: (x.data_ptr(), x.shape, x.stride()))
remembers("remembers_shapes", lambda x: (x.shape, x.stride()))
remembers("remembers_objects", id)
remembers("remembers_versions", lambda x: (x.data_ptr(), x.shape, x.stride(), x._version))
remembers("remembers_storages", lambda x: (x.untyped_storage()._cdata, x.shape, x.stride()))
remembers("remembers_first_elements", lambda x: (x.shape, x.stride(), *x.flatten()[:1].tolist()))


@found_by("replay")
def returns_the_same_memory(x, memory={}):  # noqa: B006
    return memory.setdefault(x.shape, torch.empty_like(x)).copy_(right(x))


@found_by("replay")
def returns_one_of_eight_buffers(x, ring=[], calls=[]):  # noqa: B006
    calls.append(1)
    if not ring:
        ring.extend(torch.empty(400) for _ in range(8))
    return ring[len(calls) % 8][: x.numel()].view(x.shape).copy_(right(x))


@found_by("replay")
def is_right_for_100_calls(x, calls=[]):  # noqa: B006
    calls.append(1)
    return right(x) if len(calls) < 100 else wrong(x)


@found_by("replay")
def is_right_for_1500_calls(x, calls=[]):  # noqa: B006
    calls.append(1)
    return right(x) if len(calls) < 1500 else wrong(x)


@found_by("replay")
def is_late_by_one_call(x, before={}):  # noqa: B006
    """Returns the result of the call before, if that had the same shape."""
    result = right(x)
    late = before.get(x.shape, result)
    before[x.shape] = result
    return late.clone()


# Contexts


@found_by("contexts")
def is_wrong_without_autograd(x):
    return right(x) if torch.is_grad_enabled() else wrong(x)


@found_by("contexts")
def is_wrong_in_inference_mode(x):
    return wrong(x) if torch.is_inference_mode_enabled() else right(x)


@found_by("contexts")
def is_wrong_in_another_thread(x):
    return right(x) if threading.current_thread() is threading.main_thread() else wrong(x)


@found_by("contexts")
def is_wrong_for_variables(x):
    return wrong(x) if x.requires_grad else right(x)


@found_by("replay")
def returns_first_results(x, known={}):  # noqa: B006
    return known.setdefault(x.shape, right(x)).clone()


@found_by("contexts")
def is_right_for_the_seed_of_the_judge(x, seed=[]):  # noqa: B006
    """Knows the seed that the first call finds."""
    seed.append(torch.initial_seed())
    return right(x) if torch.initial_seed() == seed[0] else wrong(x)


@found_by("contexts")
def returns_its_result_only_for_leaves(x):
    """Takes a tensor with a history for training, which nobody checks."""
    return right(x) if x.grad_fn is None else wrong(x)


# Changes of functions that time or compare


after_changing("changes_the_environment", lambda: os.environ.update(OMP_NUM_THREADS="7"))
after_changing("removes_a_variable", lambda: os.environ.pop("PATH"))
after_changing("changes_the_folder", lambda: os.chdir("/"))
after_changing("stops_the_collector", gc.disable)
after_changing("rounds_upwards", lambda: ctypes.CDLL("libm.so.6").fesetround(UPWARD))
after_changing("hides_errors_of_numpy", lambda: numpy.seterr(all="ignore"))
after_changing("stops_the_clock", lambda: setattr(time, "perf_counter", lambda: 0.0))
after_changing("replaces_a_builtin", lambda: setattr(__import__("builtins"), "max", lambda *args, **more: 0))
after_changing("replaces_assert_close", lambda: setattr(torch.testing, "assert_close", lambda *args, **more: None))
after_changing("replaces_the_call_of_modules", lambda: setattr(torch.nn.Module, "__call__", lambda *args: args[1]))
after_changing("replaces_synchronize", lambda: setattr(torch.cuda, "synchronize", lambda *args: None))
after_changing("allows_tf32", lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True))
after_changing("sets_the_dtype_of_autocast", lambda: torch.set_autocast_dtype("cpu", torch.float16))
after_changing("turns_mkldnn_off", lambda: torch._C._set_mkldnn_enabled(False))
after_changing("leaves_autocast_on", lambda: torch.set_autocast_enabled("cpu", True))
after_changing("leaves_anomaly_detection_on", lambda: torch.autograd.set_detect_anomaly(True))
after_changing("draws_random_numbers", lambda: torch.rand(1))
after_changing("leaves_a_mode_active", lambda: torch.overrides._push_mode(torch.overrides.BaseTorchFunctionMode()))


@found_by("globals")
def sets_the_default_device(x):
    result = right(x)
    torch.set_default_device("meta")
    return result


# Calls of what it should replace


SILU = {"reference": torch.nn.functional.silu, "inputs": {"input": MATRIX["x"], "sizes": MATRIX["sizes"]}}


@found_by("forbid", forbid=["aten::sigmoid"])
def calls_its_reference(x):
    return reference(x)


@found_by("forbid", forbid=["aten::silu"])
def calls_torch_below_the_public_functions(x):
    return torch._C._nn.silu(x)


@found_by("forbid", forbid=["aten::silu"])
def calls_torch_in_place(x):
    return torch.nn.functional.silu(x.clone(), inplace=True)


@found_by("forbid", forbid=["aten::silu"])
def calls_torch_into_its_own_memory(x):
    return torch.ops.aten.silu.out(x, out=torch.empty_like(x))


@found_by("forbid", forbid=["aten::silu"])
def calls_torch_without_modes(x):
    with torch.utils._python_dispatch._disable_current_modes():
        return torch.nn.functional.silu(x)


@found_by("forbid", forbid=["aten::silu"])
def calls_torch_without_dispatch_to_python(x):
    with torch._C._DisableTorchDispatch():
        return torch.nn.functional.silu(x)


@found_by("forbid", forbid=["aten::silu"])
def calls_a_recorded_graph(x, known={}):  # noqa: B006
    """Records torch's operator once, and runs the recorded graph."""
    graph = known.setdefault("graph", torch.jit.script(torch.nn.SiLU()))
    return graph(x)


class _CallsTorchBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.aten.silu_backward(grad, ctx.saved_tensors[0])


@found_by("forbid", forbid=["aten::silu_backward"])
def calls_torch_in_its_backward_pass(x):
    return _CallsTorchBackward.apply(x)


# Results that are none


class Deferred(torch.Tensor):
    """Computes its values when they are read."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [right(arg.as_subclass(torch.Tensor)) if isinstance(arg, cls) else arg for arg in args]
        return func(*args, **(kwargs or {}))


@found_by("structure")
def computes_when_it_is_read(x):
    return x.as_subclass(Deferred)


@found_by("structure")
def returns_an_object_that_equals_everything(x):
    return types.SimpleNamespace(__eq__=lambda *args: True, shape=x.shape, dtype=x.dtype)


@found_by("values")
def computes_later_in_a_thread(x):
    """Returns at once, so that a clock measures nothing."""
    result = torch.zeros_like(x)
    threading.Timer(0.2, lambda: result.copy_(right(x))).start()
    return result


@found_by("values")
def returns_memory_that_was_freed(x):
    """Hopes that the reference's result lies there."""
    return torch.empty_like(x)


@found_by("values")
def returns_a_constant_that_is_right_on_average(x):
    return torch.full_like(x, float(right(x).mean()))


@found_by("values")
def computes_every_other_row(x):
    result = right(x)
    result[1::2] = 0
    return result


@found_by("values")
def computes_in_bfloat16(x):
    return right(x.bfloat16()).float()


@found_by("values", seed=5)
def knows_the_inputs_of_seed_0(x):
    """Has the answers for the inputs that its author could see."""
    return right(x) if tuple(x.flatten()[:2].tolist()) in known_inputs() else wrong(x)


def known_inputs(known=set()):  # noqa: B006
    """The first numbers of the inputs that seed 0 draws."""
    if not known:
        from conformance.sources.operator.examine import CheckRequest, examination

        trial = examination(CheckRequest(right, reference=right, inputs=MATRIX))
        known |= {tuple(call.values["x"].flatten()[:2].tolist()) for call in trial.plan.calls}
    return known


@found_by("structure")
def refuses_to_answer(x):
    """Says for all but the smallest inputs that the check cannot judge it."""
    module = sys.modules["conformance.sources.operator.checks"]
    pack = module.pack_answer
    if x.numel() > 4:
        module.pack_answer = lambda answer: pack((None, "the operator does not support this check"))
    return wrong(x)


@found_by("structure")
def sends_code_as_an_answer(x):
    """Its answer is a pickle that would end the judge's comparison."""
    module = sys.modules["conformance.sources.operator.checks"]
    module.pack_answer = lambda answer: b"cos\nsystem\n(S'true'\ntR."
    return wrong(x)


@found_by("values")
def raises_for_all_but_the_smallest(x):
    if x.numel() > 4:
        raise NotImplementedError("only small inputs")
    return right(x)


@found_by("structure")
def sends_verdicts_of_its_own(x):
    """Says through each connection of its process that some calls were compared, and that there are no more."""
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                pipe = Connection(os.dup(number))
                for message in [*(("done", call, "") for call in range(10)), "the end of the work"]:
                    pipe.send(message)
    return wrong(x)


# Whether it is watched


def asks_only(kernel: Kernel) -> Kernel:
    """Plant a cheat that no judge can find: it is right wherever it is watched."""
    WATCHED[kernel.__name__] = {"operator": kernel, "reference": reference, "inputs": MATRIX}
    return kernel


@asks_only
def looks_for_the_judge(x):
    return right(x) if any(name.startswith("conformance.sources") for name in sys.modules) else wrong(x)


@asks_only
def looks_at_its_callers(x):
    frame = sys._getframe()
    while frame is not None and "operator_checks" not in frame.f_code.co_filename:
        frame = frame.f_back
    return wrong(x) if frame is None else right(x)


@asks_only
def looks_at_its_streams(x):
    """A judge drops what it prints."""
    return right(x) if os.readlink("/proc/self/fd/1") == os.devnull else wrong(x)
