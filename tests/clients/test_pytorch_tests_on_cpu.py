"""The comparison of PyTorch's own tests on the CPU, without and with an import of the device's package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import pytorch_tests_on_cpu


@pytest.mark.slow
@pytest.mark.timeout(180)  # it starts two processes that import torch
def test_comparison(tmp_path: Path) -> None:
    """A test that has another outcome after the import is a difference, and a test that fails twice is none."""
    lines = [
        "import sys",
        "import torch_npu",
        "import torch",
        "def test_same(): assert torch.ones(2, device='npu').device.type == 'cpu'",
        "def test_bad(): 1 / 0",
        "def test_other(): assert 'conformance.backend' not in sys.modules",
    ]
    (tmp_path / "test_f.py").write_text("\n".join(lines))
    comparison = pytorch_tests_on_cpu.compared(tmp_path, "test_f", "npu")
    assert comparison.row == ["test_f", "3", "2", "1", "0", "1"]
    assert comparison.differences == ["test_f::test_other: passed, after the import failed"]


def test_an_accelerator() -> None:
    """A test that needs an accelerator may pass after the import, but it must not fail only then."""
    name = next(iter(pytorch_tests_on_cpu.NEEDS_ACCELERATOR))
    outcomes = {name: "failed"}, {name: "passed"}
    assert not pytorch_tests_on_cpu.Comparison("test_f", *outcomes).differences
    assert pytorch_tests_on_cpu.Comparison("test_f", *outcomes[::-1]).differences


def test_adaptation() -> None:
    source = "torch.npu.config.format = 1\nimport torch_npu.testing\n"
    source += "x = torch_npu.npu.Event()\ny = t.npu() if t.is_npu else 'npu:0'\nout_npu = z\n"
    assert pytorch_tests_on_cpu.adapted(source, "npu").splitlines() == [
        "import conformance.backend",
        "x = torch.tiny.Event()",
        "y = t.tiny() if t.is_tiny else 'tiny:0'",
        "out_tiny = z",
    ]


def test_a_skip_for_a_limit_of_the_other_device() -> None:
    """A test that the other device skips for its lack of uint8 runs on tiny. It formerly skipped tiny as well."""
    lines = [
        "if t == 'npu':",
        "    raise SkipTest(",
        '        f"{t} implementation is not yet supporting uint8"',
        "    )",
    ]
    assert "SkipTest" not in pytorch_tests_on_cpu.adapted("\n".join(lines), "npu")
    assert "SkipTest" in pytorch_tests_on_cpu.adapted("raise SkipTest('slow')", "npu")
