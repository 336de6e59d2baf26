"""Operators that are made to pass a judge, not to compute: `CHEATS` has a request and the check that finds it.

Each cheat is an ordinary function of the published kinds: it changes the judge's process, or answers by something else
than its inputs.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy
import torch

Kernel = Callable[[torch.Tensor], torch.Tensor]

MATRIX = {"x": "float32[n, m]", "sizes": {"n": "1..20", "m": "1..20"}}

CHEATS: dict[str, tuple[dict[str, Any], str]] = {}


def reference(x: torch.Tensor, slope: float = 1.0) -> torch.Tensor:
    """What all of them should compute."""
    return x * torch.sigmoid(slope * x)


def right(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x)


def wrong(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


def found_by(check: str) -> Callable[[Kernel], Kernel]:
    """Plant a cheat that a check must find."""

    def plant(kernel: Kernel) -> Kernel:
        CHEATS[kernel.__name__] = {"operator": kernel, "reference": reference, "inputs": MATRIX}, check
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
