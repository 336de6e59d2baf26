"""What a call must leave as it was, beside its arguments: functions of torch, generators, settings, the reference.

    before = global_state(reference)
    torch.manual_seed(0)
    compare_states(before, global_state(reference))  # {"torch.initial_seed()": ("1234", "0"), ...}

An operator that replaces `torch.equal`, or the code of its reference, makes every later comparison in its process
worthless. One that seeds a generator or leaves autograd off changes the user's program far away from the call.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_not
from typing import Any

import torch

from conformance.standalone.torch_compat import count_modes

REPLACEABLE: Mapping[str, Any] = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.nn.functional": torch.nn.functional,
    "torch.linalg": torch.linalg,
    "torch.special": torch.special,
    "torch.autograd": torch.autograd,
    "torch.testing": torch.testing,
    "torch.nn.Module": torch.nn.Module,
    "torch.cuda": torch.cuda,
    "builtins": builtins,
    "time": time,
}
"""Modules and classes whose functions a call must not replace: those with which it may be compared, or timed."""

NAMES = [
    (home, vars(base)) for home, owner in REPLACEABLE.items() for base in reversed(getattr(owner, "__mro__", (owner,)))
]
"""Their names, which change with them, base classes first."""

ANY, CALLABLE, MAP, ZIP = any, callable, map, zip
"""Builtins that compare states: a call may have replaced them."""

WRAPPED_BY_DYNAMO = "torch.manual_seed"
"""A function that torch itself replaces when it imports Dynamo, as the first call of a custom operator does."""

EIGHTH = sys.float_info.epsilon / 8
"""Vanishes beside 1 where numbers are rounded to the nearest one."""

NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
"""What numpy does at first with floating-point errors."""


def numpy_errors() -> dict[str, str]:
    """Return what numpy does with floating-point errors, also before the call that imports it."""
    return sys.modules["numpy"].geterr() if "numpy" in sys.modules else NUMPY_ERRORS


MODES: Mapping[str, Callable[[], Any]] = {
    "torch.initial_seed()": torch.initial_seed,
    "torch.is_grad_enabled()": torch.is_grad_enabled,
    "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled,
    "torch.is_anomaly_enabled()": torch.is_anomaly_enabled,
    "torch.is_autocast_enabled('cpu')": lambda: torch.is_autocast_enabled("cpu"),
    "torch.get_autocast_dtype('cpu')": lambda: torch.get_autocast_dtype("cpu"),
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.get_default_device()": torch.get_default_device,
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    "torch.backends.cuda.matmul.allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": lambda: (
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": lambda: (
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    ),
    "torch.backends.cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "torch.backends.cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "torch.backends.mkldnn.enabled": lambda: torch.backends.mkldnn.enabled,
    "the number of modes around each call": count_modes,
    "torch.get_num_threads()": torch.get_num_threads,
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
    "whether numbers below the smallest normal one are 0": lambda: sys.float_info.min / 2 == 0,
    "how 1 + 2**-55 and 1 - 2**-55 are rounded": lambda: (1 + EIGHTH, 1 - EIGHTH),
    "os.getcwd()": os.getcwd,
    "gc.isenabled()": gc.isenabled,
    "numpy.geterr()": numpy_errors,
}
"""Settings of the process that hold beyond a call. Nothing tells `torch.set_flush_denormal` and the direction of
rounding, so two of them try these."""

SET_BY_COMPILERS = (
    "TORCHINDUCTOR_", "_TORCHINDUCTOR_", "TRITON_", "KMP_DUPLICATE_LIB_OK", "CUBLAS_WORKSPACE_CONFIG", "CUDA_HOME",
)  # fmt: skip
"""Beginnings of the names of environment variables that torch and Triton set when they compile for the first time."""


def environment() -> dict[str, str]:
    """Return the variables of the environment, by their names in findings."""
    return {
        f"os.environ[{name!r}]": value for name, value in os.environ.items() if not name.startswith(SET_BY_COMPILERS)
    }


def torch_state() -> bytes:
    """Return the state of torch's generator on the CPU."""
    state = torch.get_rng_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


def numpy_state() -> Any:
    """Return the state of numpy's generator, which must be imported."""
    state = sys.modules["numpy"].random.get_state()
    return state[1].tobytes(), state[2]


GENERATORS: Mapping[str, Callable[[], Any]] = {
    "torch's random generator": torch_state,
    "Python's random generator": sys.modules["random"].getstate,
    "numpy's random generator": numpy_state,
}
"""States of the random generators."""


MOST_FUNCTIONS = 100
"""Limit on the functions below a function whose code is watched."""


@dataclass(frozen=True)
class GlobalState:
    """What a call must leave as it was, by name: the names of modules and classes, each with its objects in order, and
    other objects, which must all stay the same ones; settings that must stay equal; and states of generators, which are
    too long to show."""

    owners: Sequence[tuple[str, Mapping[str, Any]]]
    objects: Mapping[str, Any]
    settings: Mapping[str, Any]
    generators: Mapping[str, Any]


def global_state(function: Any) -> GlobalState:
    """Return the state of this process. The code of a function and of those below it is a part of it."""
    objects: dict[str, Any] = {}
    owners = [(home, dict(names)) for home, names in NAMES]
    for one in functions_below(function):
        parts = {"code": one.__code__, "defaults": one.__defaults__, "keyword defaults": one.__kwdefaults__}
        objects |= {f"the {part} of {one.__qualname__}": value for part, value in parts.items()}
    known = {name: read for name, read in GENERATORS.items() if "numpy" not in name or "numpy" in sys.modules}
    settings = {name: read() for name, read in MODES.items()} | environment()
    return GlobalState(owners, objects, settings, {name: read() for name, read in known.items()})


def compare_states(before: GlobalState, after: GlobalState) -> dict[str, tuple[str, str]]:
    """Return what has changed, by name: as it was, and as it is."""
    found = {
        name: (str(before.settings.get(name, "unset")), str(after.settings.get(name, "unset")))
        for name in {**before.settings, **after.settings}
        if before.settings.get(name) != after.settings.get(name)
    }
    found |= {
        name: ("its state before the call", "another one")
        for name, value in before.generators.items()
        if after.generators[name] != value
    }
    was, now = dict(before.objects), dict(after.objects)
    # 3,000 objects are compared after each call, so the usual answer, that none has changed, must be quick.
    changed = [
        home
        for (home, old), (_, new) in ZIP(before.owners, after.owners)
        if old.keys() != new.keys() or ANY(MAP(is_not, old.values(), new.values()))
    ]
    for known, owners in ((was, before.owners), (now, after.owners)):
        for home, objects in owners:
            if home in changed:  # with its base classes: the method of one may be replaced below it
                known |= {f"{home}.{name}": value for name, value in objects.items() if CALLABLE(value)}
    was.pop(WRAPPED_BY_DYNAMO, None)
    return found | {
        name: ("the one before the call", "another one") for name, value in was.items() if now.get(name) is not value
    }


def functions_below(function: Any) -> list[Any]:
    """Return a Python function, and those in its closure and among the globals that it names. Functions of torch are
    not among them."""
    found: dict[int, Any] = {}
    left = [function]
    while left and len(found) < MOST_FUNCTIONS:
        one = left.pop()
        if type(one) is not type(functions_below) or id(one) in found or one.__module__.partition(".")[0] == "torch":
            continue
        found[id(one)] = one
        for cell in one.__closure__ or ():
            try:
                left.append(cell.cell_contents)
            except ValueError:  # the name has no value yet
                continue
        left += [one.__globals__[name] for name in one.__code__.co_names if name in one.__globals__]
    return [*found.values()]
