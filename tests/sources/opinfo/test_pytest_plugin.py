"""`pytest --pyargs conformance.sources.opinfo`: op_db as items of another project's pytest run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.sources.opinfo import pytest_plugin
from tests.patience import stretched

ROOT = Path(__file__).parents[3]
SAMPLES = ("--samples", "2")


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "tests" / "planted"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=stretched(110), check=False,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "160"},
    )  # fmt: skip


def items(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the suite with the plugin of an installed package."""
    words = words if "--samples" in words else (*words, *SAMPLES)
    return run(tmp_path, "--pyargs", "conformance.sources.opinfo", *words,
               "--dtype", "float32")  # fmt: skip


class TestItems:
    """Each case is one item."""

    def test_outcomes_and_ids(self, tmp_path: Path) -> None:
        """Item ids are case ids. A fault fails, a crash affects its own item only, a declared failure is xfailed, and
        the other case passes."""
        declared = tmp_path / "expected.toml"
        declared.write_text('[[declare]]\nscope = {op = "exp"}\nproperty = "error"\nreason = "known error"\n')
        words = [word for op in ("add", "atan", "exp", "sin") for word in ("--op", op)]
        done = items(tmp_path, "--target", "planted", *words, "--expectations", str(declared), "-rx")
        assert done.returncode == 1, done.stderr
        for name, word in (("add", "FAILED"), ("atan", "FAILED"), ("exp", "XFAIL"), ("sin", "PASSED")):
            assert any(f"[{name}::float32::forward::as_sampled] {word}" in line for line in done.stdout.splitlines())
        assert "SIGSEGV" in done.stdout
        assert "known error" in done.stdout
        assert "2 failed, 1 passed, 1 xfailed" in done.stdout.splitlines()[-1]

    def test_a_flaky_case_is_a_word_of_its_own(self, tmp_path: Path) -> None:
        """A case that fails and then passes on a rerun is FLAKY: the output has that word, and the run fails."""
        done = items(tmp_path, *"--target planted --op sinh --rerun-failures 1 --samples all".split())
        assert done.returncode == 1, done.stdout
        assert "[sinh::float32::forward::as_sampled] FLAKY" in done.stdout
        assert "1 flaky" in done.stdout.splitlines()[-1]

    @pytest.mark.slow
    def test_shards(self, tmp_path: Path) -> None:
        """Two shards together collect every case once."""
        words = "--target cpu --op add --op sin --op cos --collect-only -q".split()
        collected = [
            {line for line in items(tmp_path, *words, *more).stdout.splitlines() if "::as_sampled" in line}
            for more in ([], ["--shard", "1/2"], ["--shard", "2/2"])
        ]
        assert collected[0] == collected[1] | collected[2]
        assert [len(each) for each in collected] == [3, 2, 1]

    @pytest.mark.slow
    def test_under_xdist(self, tmp_path: Path) -> None:
        """Several processes share the items."""
        words = "--target cpu --op sin --op add --variant inplace,forward --layout transposed -n 2".split()
        done = items(tmp_path, *words)
        assert done.returncode == 0, done.stdout
        assert "[add::float32::inplace::transposed]" in done.stdout
        assert "4 passed" in done.stdout.splitlines()[-1]

    @pytest.mark.parametrize(
        ("words", "text"),
        [(["--op", "ad"], "did you mean"), (["--dtype", "float31"], "unknown dtype"), (["--samples", "0"], "neither")],
    )
    def test_bad_usage(self, tmp_path: Path, words: list[str], text: str) -> None:
        """An unknown name is a usage error of pytest, in one sentence."""
        done = items(tmp_path, "--target", "cpu", *words)
        assert done.returncode != 0
        assert text in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr

    @pytest.mark.parametrize(("stats", "code"), [({"skipped": [1]}, 2), ({"skipped": [1], "passed": [1]}, 0)])
    def test_nothing_compared_fails(self, stats: dict[str, list[int]], code: int) -> None:
        """A run with skips only fails."""
        reporter = SimpleNamespace(stats=stats, write_line=lambda *_, **__: None)
        plugins = SimpleNamespace(get_plugin=lambda _: reporter)
        config = SimpleNamespace(option=SimpleNamespace(case_timeout=1.0), pluginmanager=plugins)
        session = SimpleNamespace(config=config, exitstatus=pytest.ExitCode.OK)
        pytest_plugin.pytest_sessionfinish(session)
        assert session.exitstatus == code


class TestOtherSuites:
    """Other test suites in an environment with this package."""

    def test_their_options_are_theirs(self, tmp_path: Path) -> None:
        """Another suite's conftest may define `--target`."""
        (tmp_path / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--target')\n")
        (tmp_path / "test_it.py").write_text("def test_it(pytestconfig): assert pytestconfig.option.target == 'x'\n")
        done = run(tmp_path, "--target", "x", str(tmp_path))
        assert done.returncode == 0, done.stdout + done.stderr
