"""The device's private symbols of torch, the versions it runs on, and rows of its tables that only some have."""

from __future__ import annotations

import subprocess
import sys

import pytest
from packaging.version import Version

from conformance.backend.dispatch import registry, schema_kernels
from conformance.backend.runtime import torch_compat
from conformance.backend.runtime.torch_compat import TorchError


@pytest.fixture
def torch(monkeypatch):
    """Pretend that a release of torch is running."""

    def pretend(release: str) -> None:
        torch_compat.holds.cache_clear()
        monkeypatch.delenv(torch_compat.WARNED, raising=False)
        monkeypatch.setattr(torch_compat, "TORCH", Version(release))

    yield pretend
    monkeypatch.delenv(torch_compat.WARNED, raising=False)
    torch_compat.holds.cache_clear()


class TestVersions:
    def test_an_older_one_is_refused(self, torch):
        """The functions that register a device are not there before."""
        torch("2.12.1")
        with pytest.raises(TorchError, match=r"^tiny: torch 2\.12\.1 is too old for the device: `pip install 'torch>="):
            torch_compat.check()

    def test_a_newer_one_is_a_warning(self, torch):
        """It is used all the same."""
        torch("2.99.0")
        with pytest.warns(UserWarning, match=r"tiny: torch 2\.99\.0 is newer than"):
            torch_compat.check()

    def test_what_is_gone_is_named(self):
        """One sentence with the symbol."""
        with pytest.raises(TorchError, match=r"has no torch\._C\._gone, which the device needs: `pip install"):
            torch_compat.found("torch._C:_gone")


class TestRows:
    def test_a_row_that_does_not_hold_is_left_out(self, monkeypatch):
        """aten::cholesky is gone from torch 2.14 on, where importing the device raised for it."""
        monkeypatch.setitem(registry.HELD_BY, "nosuchop.default", "<2.1")
        assert schema_kernels.listed("nosuchop.default") is None

    def test_a_row_that_holds_must_be_there(self):
        """In a version that was tested, a name that torch lacks is a fault of the table."""
        with pytest.raises(
            RuntimeError, match=r"the table names aten::nosuchop\.default, which torch .* does not have"
        ):
            schema_kernels.listed("nosuchop.default")

    def test_in_an_untested_version_it_is_a_warning(self, torch):
        """An op that a newer torch has dropped does not take the device along."""
        torch("2.99.0")
        with pytest.warns(UserWarning, match=r"the table names aten::nosuchop\.default"):
            assert schema_kernels.listed("nosuchop.default") is None

    @pytest.mark.parametrize("name", sorted(registry.HELD_BY))
    def test_the_versions_of_a_row_are_true(self, name):
        """Where a row does not hold, torch has no such overload; where it does, it has."""
        there = schema_kernels.find(name) is not None
        assert torch_compat.holds(registry.HELD_BY[name]) is there


class TestInstallation:
    @pytest.mark.parametrize(
        "command",
        [
            "-m conformance.fuzz --target tiny --programs 1",
            "-m conformance.fuzz --target tiny:llvm --programs 1",
            "-m conformance.opinfo_runner --target tiny --op neg",
            "-m conformance.kernels script.py",
            "-m conformance.mutants --on tiny",
        ],
    )
    def test_without_tinygrad(self, command, tmp_path):
        """What needs the device says in one sentence what to install, and exits with 2."""
        (tmp_path / "sitecustomize.py").write_text(
            "import importlib.util as u\nold = u.find_spec\n"
            "u.find_spec = lambda name, *rest: None if name == 'tinygrad' else old(name, *rest)\n"
        )
        said = subprocess.run(
            [sys.executable, *command.split()], check=False, capture_output=True, text=True, cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert said.returncode == 2, said.stderr
        assert said.stderr.count("\n") == 1
        assert "tinygrad, which is not installed: `pip install 'tinygrad>=0.14,<0.15' ziglang`" in said.stderr
