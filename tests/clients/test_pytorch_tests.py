"""The runner of PyTorch's own test files: adaptation, verdicts, and the list of tests that cannot judge."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.clients import pytorch_tests_run

RESULTS = """<testsuites><testsuite>
<testcase classname="test_f.TestA" name="test_good"/>
<testcase classname="test_f.TestA" name="test_bad[1]"><failure message="wrong&#10;more"/></testcase>
<testcase classname="test_f.TestA" name="test_known[1]"><failure message="x"/></testcase>
<testcase classname="test_f.TestA" name="test_skipped"><skipped/></testcase>
</testsuite></testsuites>"""


def test_verdicts(tmp_path: Path) -> None:
    """A failure is excepted only by an entry, and an entry without a failure is reported."""
    (tmp_path / "results.xml").write_text(RESULTS)
    entries = [{"test": f"test_f::TestA::{name}"} for name in ("test_known[*", "test_good")]
    outcome = pytorch_tests_run.judged("test_f", [tmp_path / "results.xml"], entries)
    assert outcome.row == ["test_f", "all", "1", "2", "1", "1"]
    assert outcome.failed == {"test_f::TestA::test_bad[1]": "wrong"}
    assert outcome.unneeded == ["test_f::TestA::test_good"]


def test_adaptation() -> None:
    source = "torch.npu.config.format = 1\nimport torch_npu.testing\n"
    source += "x = torch_npu.npu.Event()\ny = t.npu() if t.is_npu else 'npu:0'\nout_npu = z\n"
    assert pytorch_tests_run.adapted(source, "npu").splitlines() == [
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
    assert "SkipTest" not in pytorch_tests_run.adapted("\n".join(lines), "npu")
    assert "SkipTest" in pytorch_tests_run.adapted("raise SkipTest('slow')", "npu")


def test_a_whole_file(tmp_path: Path) -> None:
    """Each file runs on tiny in a separate process."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "helper.py").write_text("import torch_npu\n")
    lines = [
        "import torch",
        "from package import helper",
        "def test_a(): assert torch.ones(2, device='npu').device.type == 'tiny'",
        "def test_b(): 1 / 0",
    ]
    (tmp_path / "test_f.py").write_text("\n".join(lines))
    outcome = pytorch_tests_run.run(tmp_path, "test_f", "npu")
    assert (outcome.passed, list(outcome.failed)) == (["test_f::test_a"], ["test_f::test_b"])


def test_entries_have_reasons() -> None:
    entries = tomllib.loads(pytorch_tests_run.NOT_JUDGED.read_text())["not_judged"]
    assert all(entry["reason"] and "::" in entry["test"] for entry in entries)


@pytest.mark.slow
def test_slices(tmp_path: Path) -> None:
    """Slices add up to the whole file, and a kept slice is not run again."""
    (tmp_path / "test_f.py").write_text("\n".join(f"def test_{name}(): assert {name!r} != 'b'" for name in "abc"))
    keep = tmp_path / "kept"
    keep.mkdir()
    outcome = pytorch_tests_run.run(tmp_path, "test_f", slices=2, keep=keep)
    assert (outcome.passed, list(outcome.failed)) == (["test_f::test_a", "test_f::test_c"], ["test_f::test_b"])
    (keep / "test_f-1-2.xml").write_text(RESULTS)
    again = pytorch_tests_run.run(tmp_path, "test_f", slices=2, keep=keep)
    assert again.passed == ["test_f::test_a", "test_f::test_c", "test_f::TestA::test_good"]


@pytest.mark.slow
def test_limit_of_processor_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test fails if it computes for longer than the limit. A test that only waits for as long passes."""
    monkeypatch.setattr(pytorch_tests_run, "TEST_S", 0.5)
    lines = ["import time", "def test_a(): time.sleep(1)", "def test_b():", "    while True: pass"]
    (tmp_path / "test_f.py").write_text("\n".join(lines))
    outcome = pytorch_tests_run.run(tmp_path, "test_f")
    assert (outcome.passed, list(outcome.failed)) == (["test_f::test_a"], ["test_f::test_b"])


@pytest.mark.slow
def test_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the slices gives a row that says so, and no verdict on entries for the other slices."""
    (tmp_path / "test_f.py").write_text("\n".join(f"def test_{name}(): assert {name!r} != 'b'" for name in "abc"))
    (tmp_path / "entries.toml").write_text("[part]\n[[not_judged]]\ntest = 'test_f::test_b'\nreason = 'x'\n")
    monkeypatch.setattr(pytorch_tests_run, "NOT_JUDGED", tmp_path / "entries.toml")
    outcome = pytorch_tests_run.run(tmp_path, "test_f", slices=2, take=1)
    assert outcome.row == ["test_f", "1 of 2", "2", "2", "0", "0"]
    assert outcome.unneeded == []
