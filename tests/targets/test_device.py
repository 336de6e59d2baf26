"""Devices that anybody wrote: how they are loaded, and what their loading may not do to torch CPU."""

from __future__ import annotations

import pytest
import torch

from conformance.core.loading import load_target
from conformance.core.probe import trial
from conformance.program.model import Program
from conformance.program.verdict import judge_program

PUSHES_MODES = """
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.Tensor.neg else result

class Counting(TorchDispatchMode):
    seen = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Counting.seen += 1
        return func(*args, **(kwargs or {}))

def enable():
    Counting().__enter__()
    Doubling().__enter__()
"""


@pytest.fixture
def pushing(tmp_path, monkeypatch):
    """A target whose module pushes modes for good."""
    (tmp_path / "pushes_modes.py").write_text(PUSHES_MODES)
    monkeypatch.syspath_prepend(tmp_path)
    return load_target("device:cpu,import=pushes_modes,call=enable,without=nothing")


class TestModes:
    def test_torch_cpu_is_not_under_the_modes_of_a_device(self, pushing):
        """torchax pushes a function mode, under which plain torch CPU raises: the judge failed in 6 of 120 programs."""
        assert torch.ones(1).neg().item() == -1
        with pushing.entered():
            assert torch.ones(1).neg().item() == -2
        assert torch.ones(1).neg().item() == -1

    def test_the_device_is(self, pushing):
        """A program on the target, and only there, goes through them; so does a trial of the probe."""
        import pushes_modes

        program = Program.from_json(
            {
                "schema": 1,
                "storages": [{"dtype": "float32", "size": 3, "values": "arange"}],
                "inputs": [{"name": "a", "storage": 0, "dtype": "float32", "size": [3], "stride": [1], "offset": 0,
                            "requires_grad": False}],
                "steps": [{"op": "neg", "args": [{"t": "a"}], "out": ["b"]}],
            }
        )  # fmt: skip
        verdict = judge_program(program, pushing)
        assert [(one.oracle, one.expected) for one in verdict.mismatches] == [("value", "[-0.0, -1.0, -2.0]")]
        before = pushes_modes.Counting.seen
        assert trial(pushing, "copy_").answer == "yes"
        assert pushes_modes.Counting.seen > before
