"""Which versions of torch something holds for: specifiers, the warning for a newer one, the refusal of an older one."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from packaging.version import Version

from conformance.core import versions
from conformance.core.errors import TargetError, UserError


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
        """A local part does not count, and a nightly build is of the release to come."""
        torch(release)
        assert versions.minor() == minor
        assert versions.baselines() == Path(f"reports/baseline/torch-{minor}")

    def test_nothing_there_is_one_sentence(self):
        """A package that is not installed is said with its remedy."""
        with pytest.raises(UserError, match=r"^nosuchtorch is not installed; run `pip install nosuchtorch`$"):
            versions.installed("nosuchtorch")

    def test_of_a_run_made_elsewhere(self):
        """Shards are joined where another torch may be installed, or none: the baseline is the run's own."""
        assert versions.baselines("2.9.1+cu128") == Path("reports/baseline/torch-2.9")


class TestHolds:
    @pytest.mark.parametrize(
        ("text", "held"), [("", True), (">=2.14", False), ("<2.14", True), ("==2.13.*", True), (">=2.9,<2.13", False)]
    )
    def test_specifiers(self, text, held):
        """PEP 440; the empty one has all."""
        assert versions.holds(text, Version("2.13.0")) is held

    @pytest.mark.parametrize("text", ["2.14", "newer", ">=", " ", ">=2.14 or so"])
    def test_what_is_none_is_refused(self, text):
        """A misspelt specifier would hold nowhere, or everywhere, in silence."""
        with pytest.raises(ValueError, match=r"no specifier of versions, such as '>=2\.14'"):
            versions.holds(text, Version("2.13.0"))


class TestCheck:
    def test_a_newer_one_is_a_warning_once(self, torch):
        """A torch that nobody has tested is used all the same."""
        torch("2.99.0")
        with pytest.warns(UserWarning, match=r"torch 2\.99\.0 is newer than"):
            versions.check()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            versions.check()

    def test_an_older_one_is_refused(self, torch):
        """One sentence with the remedy."""
        torch("2.8.0")
        with pytest.raises(TargetError, match=r"^torch 2\.8\.0 is too old: `pip install 'torch>=2\.9'`$"):
            versions.check()

    @pytest.mark.parametrize("release", ["2.9.0", "2.13.0+cpu", f"{versions.NEWEST}.7"])
    def test_a_tested_one_is_silent(self, torch, release):
        """Within the range nothing is said."""
        torch(release)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            versions.check()


@pytest.mark.parametrize(
    ("job", "options"),
    [("conformance.fuzz", "--programs 2 --reports"), ("conformance.opinfo_runner", "--op neg --samples 1 --reports")],
)
class TestCommands:
    """The commands with another release in the metadata than the one that is there."""

    def said(self, job: str, options: str, release: str, folder: Path) -> subprocess.CompletedProcess:
        (folder / "sitecustomize.py").write_text(
            "import importlib.metadata as m\nold = m.version\n"
            f"m.version = lambda name: {release!r} if name == 'torch' else old(name)\n"
        )
        command = [sys.executable, "-m", job, "--target", "cpu", *options.split(), str(folder / "reports")]
        paths = {"PYTHONPATH": f"{folder}:{Path(__file__).parent.parent.parent}", "PATH": "/usr/bin:/bin"}
        return subprocess.run(command, check=False, capture_output=True, text=True, env=paths, cwd=folder)

    def test_too_old(self, job, options, tmp_path):
        """Exit code 2 and one sentence, no traceback."""
        said = self.said(job, options, "2.8.0", tmp_path)
        assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)
        assert "torch 2.8.0 is too old: `pip install 'torch>=2.9'`" in said.stderr

    def test_too_new(self, job, options, tmp_path):
        """It runs, and warns once, however many workers there are."""
        said = self.said(job, options, "2.99.0", tmp_path)
        assert said.returncode == 0, said.stderr
        assert said.stderr.count("torch 2.99.0 is newer than") == 1
