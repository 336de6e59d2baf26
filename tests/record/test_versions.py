"""Supported versions of torch: specifiers, a warning for a newer torch, and an error for an older one."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from packaging.version import Version

from conformance.record import versions
from conformance.record.errors import TargetError, UserError


@pytest.fixture
def torch(monkeypatch):
    """Pretend that a release of torch is installed."""

    def pretend(release: str) -> None:
        monkeypatch.delenv(versions.WARNED, raising=False)
        versions.installed.cache_clear()
        monkeypatch.setattr(versions.metadata, "version", lambda package: release)

    yield pretend
    monkeypatch.delenv(versions.WARNED, raising=False)
    versions.installed.cache_clear()


class TestInstalled:
    @pytest.mark.parametrize(
        ("release", "minor"), [("2.13.0+cpu", "2.13"), ("2.9.1", "2.9"), ("2.16.0.dev20270101+cu132", "2.16")]
    )
    def test_the_minor_version(self, torch, release, minor):
        """A local version part does not count, and a nightly build belongs to the next release."""
        torch(release)
        assert versions.minor() == minor
        assert versions.baselines() == Path(f"reports/baseline/torch-{minor}")

    def test_nothing_there_is_one_sentence(self):
        """A package that is not installed gives a sentence with the pip command."""
        with pytest.raises(UserError, match=r"^nosuchtorch is not installed; run `pip install nosuchtorch`$"):
            versions.installed("nosuchtorch")

    def test_of_a_run_made_elsewhere(self):
        """Shards may be merged with another torch, or none, so the baseline follows the run's own version."""
        assert versions.baselines("2.9.1+cu128") == Path("reports/baseline/torch-2.9")


class TestHolds:
    @pytest.mark.parametrize(
        ("text", "held"), [("", True), (">=2.14", False), ("<2.14", True), ("==2.13.*", True), (">=2.9,<2.13", False)]
    )
    def test_specifiers(self, text, held):
        """Specifiers follow PEP 440; the empty one matches every version."""
        assert versions.holds(text, Version("2.13.0")) is held

    @pytest.mark.parametrize("text", ["2.14", "newer", ">=", " ", ">=2.14 or so"])
    def test_what_is_none_is_refused(self, text):
        """An invalid specifier is rejected; it would silently match nothing or everything."""
        with pytest.raises(ValueError, match=r"no specifier of versions, such as '>=2\.14'"):
            versions.holds(text, Version("2.13.0"))


class TestCheck:
    def test_a_newer_one_is_a_warning_once(self, torch):
        """An untested newer torch is used, with one warning."""
        torch("2.99.0")
        with pytest.warns(UserWarning, match=r"torch 2\.99\.0 is newer than"):
            versions.check()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            versions.check()

    def test_an_older_one_is_refused(self, torch):
        """An older torch gives one sentence with the pip command."""
        torch("2.8.0")
        with pytest.raises(TargetError, match=r"^torch 2\.8\.0 is too old: `pip install 'torch>=2\.9'`$"):
            versions.check()

    @pytest.mark.parametrize("release", ["2.9.0", "2.13.0+cpu", f"{versions.NEWEST}.7"])
    def test_a_tested_one_is_silent(self, torch, release):
        """A tested torch gives no warning."""
        torch(release)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            versions.check()


@pytest.mark.parametrize(
    ("job", "options"),
    [("conformance.fuzz", "--programs 2 --reports"), ("conformance.opinfo_runner", "--op neg --samples 1 --reports")],
)
class TestCommands:
    """The commands with another torch release in the metadata than the installed one."""

    def said(self, job: str, options: str, release: str, folder: Path) -> subprocess.CompletedProcess:
        (folder / "sitecustomize.py").write_text(
            "import importlib.metadata as m\nold = m.version\n"
            f"m.version = lambda name: {release!r} if name == 'torch' else old(name)\n"
        )
        command = [sys.executable, "-m", job, "--target", "cpu", *options.split(), str(folder / "reports")]
        paths = {"PYTHONPATH": f"{folder}:{Path(__file__).parent.parent.parent}", "PATH": "/usr/bin:/bin"}
        return subprocess.run(command, check=False, capture_output=True, text=True, env=paths, cwd=folder)

    def test_too_old(self, job, options, tmp_path):
        """An old torch gives exit code 2 and one sentence, no traceback."""
        said = self.said(job, options, "2.8.0", tmp_path)
        assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)
        assert "torch 2.8.0 is too old: `pip install 'torch>=2.9'`" in said.stderr

    def test_too_new(self, job, options, tmp_path):
        """The command runs and warns once, whatever the number of workers."""
        said = self.said(job, options, "2.99.0", tmp_path)
        assert said.returncode == 0, said.stderr
        assert said.stderr.count("torch 2.99.0 is newer than") == 1
