"""What a call changes of the state of its process, by name."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import subprocess
import sys

import numpy
import pytest
import torch

from conformance.sources.operator.forks import forked
from conformance.standalone.global_state import compare_states, functions_below, global_state
from tests.planted.cheats import UPWARD


def scale(x, by=2):
    return x * by


def reference(x):
    return scale(x)


def changed(change) -> list[str]:
    """The names of what differs after a change, made in a fork of this process."""

    def work(send):
        before = global_state(reference)
        change()
        send([*compare_states(before, global_state(reference))])

    return next(forked(work, 60))


def replace_code():
    scale.__code__ = reference.__code__


@pytest.mark.parametrize(("change", "name"), [
    (lambda: setattr(torch, "equal", 0), "torch.equal"),
    (lambda: setattr(torch.Tensor, "softmax", scale), "torch.Tensor.softmax"),
    (lambda: setattr(torch.Tensor, "__eq__", scale), "torch.Tensor.__eq__"),
    (lambda: setattr(torch.nn.functional, "silu", scale), "torch.nn.functional.silu"),
    (lambda: setattr(torch.autograd, "grad", scale), "torch.autograd.grad"),
    (replace_code, "the code of scale"),
    (lambda: setattr(scale, "__defaults__", (3,)), "the defaults of scale"),
    (lambda: torch.manual_seed(torch.initial_seed() + 1), "torch.initial_seed()"),
    (lambda: torch.rand(1), "torch's random generator"),
    (random.random, "Python's random generator"),
    (numpy.random.rand, "numpy's random generator"),
    (lambda: torch.set_grad_enabled(False), "torch.is_grad_enabled()"),
    (lambda: torch.set_default_dtype(torch.float64), "torch.get_default_dtype()"),
    (lambda: torch.set_float32_matmul_precision("medium"), "torch.get_float32_matmul_precision()"),
    (lambda: torch.set_num_threads(3), "torch.get_num_threads()"),
    (lambda: torch.use_deterministic_algorithms(True), "torch.are_deterministic_algorithms_enabled()"),
    (lambda: os.environ.update(OMP_NUM_THREADS="77"), "os.environ['OMP_NUM_THREADS']"),
    (lambda: os.environ.pop("PATH"), "os.environ['PATH']"),
    (lambda: os.chdir("/"), "os.getcwd()"),
    (gc.disable, "gc.isenabled()"),
    (lambda: ctypes.CDLL("libm.so.6").fesetround(UPWARD), "how 1 + 2**-55 and 1 - 2**-55 are rounded"),
    (lambda: torch.set_flush_denormal(True), "whether numbers below the smallest normal one are 0"),
])  # fmt: skip
def test_a_change_is_named(change, name):
    """The most telling change comes first."""
    assert changed(change)[0] == name


def test_a_call_that_changes_nothing():
    """New names, results and restored settings are no changes."""

    def change():
        torch.no_such_function = scale
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            reference(torch.ones(3)).sum()

    assert changed(change) == []


def test_an_import_of_dynamo_is_no_change():
    """The first call of a custom operator imports it, and it replaces a function of torch."""
    code = (
        "import sys; from conformance.standalone.global_state import compare_states, global_state;"
        "before = global_state(len); assert 'torch._dynamo' not in sys.modules; import torch._dynamo;"
        "sys.exit(str(compare_states(before, global_state(len)) or 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "0"


def test_what_compilers_set_is_no_change():
    """The first call of a compiled kernel sets these variables."""
    assert changed(lambda: os.environ.update(TORCHINDUCTOR_CACHE_DIR="folder", TRITON_CACHE_DIR="folder")) == []


def test_without_numpy(monkeypatch):
    """Its generator is read only where it has been imported."""
    monkeypatch.delitem(sys.modules, "numpy")
    assert "numpy's random generator" not in global_state(reference).generators


def test_functions_below_a_function():
    """Those in its closure and those that it names, and none of torch."""
    assert functions_below(lambda x: reference(torch.norm(x)))[1:] == [reference, scale]
    assert functions_below(torch.norm) == [] == functions_below(torch.nn.Linear(1, 1))
