"""The device's private symbols of torch, the supported versions, and table rows that apply only to some versions."""

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
    """Simulate a release of torch."""

    def pretend(release: str) -> None:
        torch_compat.holds.cache_clear()
        monkeypatch.delenv(torch_compat.WARNED, raising=False)
        monkeypatch.setattr(torch_compat, "TORCH", Version(release))

    yield pretend
    monkeypatch.delenv(torch_compat.WARNED, raising=False)
    torch_compat.holds.cache_clear()


class TestVersions:
    def test_an_older_one_is_refused(self, torch):
        """An older torch is refused, because it lacks the functions that register a device."""
        torch("2.12.1")
        with pytest.raises(TorchError, match=r"^tiny: torch 2\.12\.1 is too old for the device: `pip install 'torch>="):
            torch_compat.check()

    def test_a_newer_one_is_a_warning(self, torch):
        """A newer torch is used, with a warning."""
        torch("2.99.0")
        with pytest.warns(UserWarning, match=r"tiny: torch 2\.99\.0 is newer than"):
            torch_compat.check()

    def test_what_is_gone_is_named(self):
        """A missing symbol is named in one sentence."""
        with pytest.raises(TorchError, match=r"has no torch\._C\._gone, which the device needs: `pip install"):
            torch_compat.lookup("torch._C:_gone")


class TestRows:
    def test_a_row_that_does_not_hold_is_left_out(self, monkeypatch):
        """A row that does not apply to this torch is ignored. aten::cholesky is missing from torch 2.14 on, where
        importing the device formerly raised."""
        monkeypatch.setitem(registry.HELD_BY, "nosuchop.default", "<2.1")
        assert schema_kernels.listed("nosuchop.default") is None

    def test_a_row_that_holds_must_be_there(self):
        """In a tested version, a name that torch lacks is a fault of the table."""
        with pytest.raises(
            RuntimeError, match=r"the table names aten::nosuchop\.default, which torch .* does not have"
        ):
            schema_kernels.listed("nosuchop.default")

    def test_in_an_untested_version_it_is_a_warning(self, torch):
        """In an untested version, a missing op is a warning, and the device still loads."""
        torch("2.99.0")
        with pytest.warns(UserWarning, match=r"the table names aten::nosuchop\.default"):
            assert schema_kernels.listed("nosuchop.default") is None

    @pytest.mark.parametrize("name", sorted(registry.HELD_BY))
    def test_the_versions_of_a_row_are_true(self, name):
        """torch has an overload in exactly the versions that its row declares."""
        there = schema_kernels.find(name) is not None
        assert torch_compat.holds(registry.HELD_BY[name]) is there


class TestInstallation:
    @pytest.mark.parametrize(
        "command",
        [
            "-m conformance.fuzz --target tiny --programs 1",
            pytest.param("-m conformance.fuzz --target tiny:llvm --programs 1", marks=pytest.mark.slow),
            pytest.param("-m conformance.opinfo_runner --target tiny --op neg", marks=pytest.mark.slow),
            "-m conformance kernels script.py",
            "-m conformance mutants --target tiny",
        ],
    )
    def test_without_tinygrad(self, command, tmp_path):
        """Without tinygrad, each command that needs the device says in one sentence what to install, and exits with
        2."""
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
