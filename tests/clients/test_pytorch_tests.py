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
    assert outcome.row == ["test_f", "1", "2", "1", "1"]
    assert outcome.failed == {"test_f::TestA::test_bad[1]": "wrong"}
    assert outcome.unneeded == ["test_f::TestA::test_good"]


def test_adaptation() -> None:
    source = "import torch_npu.testing\nx = torch_npu.npu.Event()\ny = t.npu() if t.is_npu else 'npu:0'\nout_npu = z\n"
    assert pytorch_tests_run.adapted(source, "npu").splitlines() == [
        "import conformance.backend",
        "x = torch.tiny.Event()",
        "y = t.tiny() if t.is_tiny else 'tiny:0'",
        "out_tiny = z",
    ]


def test_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file runs in a process of its own, on tiny, and each test has a limit of CPU time."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "helper.py").write_text("import torch_npu\n")
    lines = [
        "import torch",
        "from package import helper",
        "def test_a(): assert torch.ones(2, device='npu').device.type == 'tiny'",
        "def test_b(): 1 / 0",
        "def test_c():",
        "    while True: pass",
    ]
    monkeypatch.setattr(pytorch_tests_run, "TEST_CPU_S", 0.2)
    (tmp_path / "test_f.py").write_text("\n".join(lines))
    outcome = pytorch_tests_run.run(tmp_path, "test_f", "npu")
    assert (outcome.passed, list(outcome.failed)) == (["test_f::test_a"], ["test_f::test_b", "test_f::test_c"])


def test_entries_have_reasons() -> None:
    entries = tomllib.loads(pytorch_tests_run.NOT_JUDGED.read_text())["not_judged"]
    assert all(entry["reason"] and "::" in entry["test"] for entry in entries)


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
