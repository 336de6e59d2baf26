"""The model of a run: files, exit codes, merging, and kernel budgets."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from conformance.record import files
from conformance.record import result as model
from conformance.record.errors import ReportError
from conformance.record.merge import merge
from conformance.record.result import Failure, Outcome, Run
from conformance.report import budgets
from tests.report.runs import failed, fuzz_finding, result, run


class TestModel:
    """Results on disk."""

    @pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
    def test_round_trip(self, tmp_path: Path, hostile: Run, name: str) -> None:
        """A saved run loads equal, plain or compressed."""
        model.save(hostile, tmp_path / name)
        assert model.load(tmp_path / name) == hostile

    def test_a_result_is_small(self) -> None:
        """Results use slots: a dictionary of more than twenty names costs a kilobyte for each of 100,000 results."""
        assert vars(result()) == {}

    def test_one_result_a_line(self) -> None:
        """Each result is one line, so that a text tool can compare two files."""
        lines = model.dumps(run(result("add"), result("sub"))).splitlines()
        assert sum(line.startswith('{"op"') for line in lines) == 2

    def test_measurements_survive(self) -> None:
        """Measurements survive a round trip; without them the field is absent."""
        case_run = run(result(compiled=3, partly_compiled=0, not_compiled=1, host=2, parts={"host": {"item": 2}}))
        assert model.run_from_json(model.run_to_json(case_run), "f") == case_run
        assert not {"measurements", "finding"} & set(model.result_to_json(result()))

    def test_baseline_bytes_are_stable(self, tmp_path: Path) -> None:
        """The same results give the same compressed bytes."""
        model.save(run(result()), tmp_path / "a.json.gz")
        time.sleep(1.1)
        model.save(run(result()), tmp_path / "b.json.gz")
        assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "line 1: not valid JSON"),
            ("[]", "is not a conformance result file"),
            ('{"kind": "conformance", "schema": 99}', "result schema 99"),
            ('{"kind": "conformance", "schema": 4}', "result schema 4 and this version reads 5; run again to renew it"),
            ('{"kind": "conformance", "schema": 5, "target": "t", "results": [{"op": "x"}]}', "number 1 is damaged"),
            ('{"kind": "conformance", "schema": 5, "results": []}', "is damaged"),
            ('{"kind": "conformance", "schema": 5, "target": 1}', "'target' is no str"),
            ('{"kind": "conformance", "schema": 5, "target": "t", "results": 1}', "'results' is no list"),
            ('{"kind": "conformance",\n"schema": 5,\n"target": }', "line 3: not valid JSON"),
            ("[" * 100_000, "cannot be read"),
        ],
    )
    def test_damaged_files_are_named(self, tmp_path: Path, text: str, message: str) -> None:
        """A file that is no run is rejected in one sentence with its name."""
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ReportError, match=message) as raised:
            model.load(tmp_path / "run.json")
        assert "run.json" in str(raised.value)

    def test_a_cut_file_is_named(self, tmp_path: Path) -> None:
        """A truncated or corrupted compressed file is rejected."""
        model.save(run(result()), tmp_path / "run.json.gz")
        data = (tmp_path / "run.json.gz").read_bytes()
        for damaged in (data[:-9], b"no gzip", data[:30] + bytes(20) + data[50:], data[:12]):
            (tmp_path / "run.json.gz").write_bytes(damaged)
            with pytest.raises(ReportError, match=r"run\.json\.gz cannot be read"):
                model.load(tmp_path / "run.json.gz")

    def test_a_failed_write_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A full disk gives one sentence; the old file stays, and no temporary file remains."""

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        (tmp_path / "run.json").write_text("old")
        monkeypatch.setattr(files.os, "fsync", full)
        with pytest.raises(ReportError, match="No space left on device"):
            model.save(run(result()), tmp_path / "run.json")
        assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("run.json", "old")]

    def test_exit_codes(self) -> None:
        """Exit code 1: undeclared outcomes, flaky ones included, regressions, and an incomplete run. Exit code 2:
        nothing was compared. After a signal, the exit code is 128 plus its number."""
        assert run(result(), result("b", Outcome.XFAIL)).exit_code() == 0
        for outcome in (Outcome.FAIL, Outcome.CRASH, Outcome.TIMEOUT, Outcome.XPASS, Outcome.FLAKY):
            assert run(result(), result("b", outcome, samples=0)).exit_code() == 1
            assert run(result("b", outcome, samples=0)).exit_code() == 1
        assert run(result()).exit_code(regressions=1) == 1
        assert run(result(), complete=False).exit_code() == 1
        assert run(result("b", samples=0)).exit_code() == 2
        assert run(result("b", Outcome.FAIL), complete=False, interrupted=2).exit_code() == 130
        assert run(complete=False, interrupted=15).exit_code() == 143

    @pytest.mark.parametrize(
        ("codes", "code"),
        [([], 2), ([0, 0], 0), ([0, 2], 2), ([2, 1], 1), ([0, 1], 1), ([1, 130], 130), ([143, 2], 143)],
    )
    def test_the_exit_code_of_several(self, codes: list[int], code: int) -> None:
        """A finding in one part takes precedence over a part without comparisons."""
        assert model.worst(codes) == code

    def test_findings_are_listed_worst_first(self) -> None:
        """The order is: crashes, memory and aliasing, wrong values, metadata, missing errors, wording; then the
        count."""
        worded = fuzz_finding("error / E: text")
        worded = worded.replace(failures=(Failure("error", "", "E", "F"),))
        missing = fuzz_finding("error / no error").replace(failures=(Failure("error", "", "E", "no error"),))
        order = [
            fuzz_finding("crash / add", "CRASH"), fuzz_finding("timeout / add", "TIMEOUT"),
            fuzz_finding("alias / view"), fuzz_finding("storage / copy_"),
            fuzz_finding("value / mul", count=9), fuzz_finding("value / add", count=2),
            fuzz_finding("stride / mul", count=50), missing, worded, fuzz_finding("kernels / add", count=99),
        ]  # fmt: skip
        assert Run("t", order[::-1]).findings == order
        cases = [failed("a", "alias"), failed("b", "value"), failed("c", "shape"), failed("d", "kernels")]
        assert Run("t", cases[::-1]).unexpected == cases

    def test_summary_counts_every_case_once(self) -> None:
        """Each outcome except a known failure is in exactly one of the three counts."""
        line = model.summary_line(run(*(result(str(i), outcome) for i, outcome in enumerate(Outcome))))
        assert line == "1 passed, 5 failed, 1 skipped"

    def test_summary_names_regressions(self) -> None:
        """Regression test: the line of a run that failed only by a regression was `1 passed, 0 failed, 0 skipped`."""
        line = model.summary_line(run(result()), regressions=2)
        assert line == "1 passed, 0 failed, 0 skipped, 2 regressions since the baseline"

    def test_merge_joins_shards(self) -> None:
        """Merging joins shards, and rejects duplicate cases and different targets."""
        merged = merge([run(result("a")), run(result("b"))])
        assert [r.op for r in merged.results] == ["a", "b"]
        with pytest.raises(ReportError, match="in two of the merged files"):
            merge([run(result("a")), run(result("a"))])
        with pytest.raises(ReportError, match="different targets"):
            merge([run(result("a")), dataclasses.replace(run(result("b")), target="cpu")])

    def test_a_missing_shard_is_seen(self) -> None:
        """A matrix with a missing shard is an incomplete run; one with all shards is complete."""
        shards = [run(result(f"op{i}")) for i in (1, 2, 3)]
        for number, shard in enumerate(shards, 1):
            shard.environment["selection"] = f"suite main; shard {number}/3"
        whole = merge(shards)
        assert (whole.complete, whole.environment["selection"]) == (True, "suite main")
        merged = merge([shards[0], shards[2]])
        assert not merged.complete
        assert merged.notes == ["Shard 2 of 3 is missing: its cases are not in this report."]


class TestBudgets:
    """Kernel budgets on disk."""

    def test_round_trip(self, tmp_path: Path) -> None:
        """Budgets survive a round trip, with one workload per line."""
        counts = {"mlp": {"kernels": 3, "copies_in": 2}, "cnn": {"kernels": 9, "copies_in": 1}}
        (tmp_path / "kernels.json").write_text(budgets.dumps(counts))
        assert budgets.load(tmp_path / "kernels.json") == counts
        assert len((tmp_path / "kernels.json").read_text().splitlines()) == 4

    @pytest.mark.parametrize(("text", "message"), [("{\n,", "line 2"), ('{"mlp": 3}', "holds no kernel budgets")])
    def test_damage(self, tmp_path: Path, text: str, message: str) -> None:
        """A damaged file is rejected with its name."""
        (tmp_path / "kernels.json").write_text(text)
        with pytest.raises(ReportError, match=rf"kernels\.json.*{message}"):
            budgets.load(tmp_path / "kernels.json")


def test_a_baseline_with_failures_is_read_again(tmp_path):
    """A failure in a baseline has no texts. Regression test: such a baseline was rejected as damaged."""
    from conformance.record import result as model

    failure = model.Failure("value", "result", "1.0", "2.0")
    result = model.Result("add", "float32", "forward", "as_sampled", model.Outcome.FAIL, failures=(failure,))
    path = tmp_path / "tiny.json.gz"
    model.save(model.slim(model.Run(target="tiny", results=[result])), path)
    (kept,) = model.load(path).results
    assert [(f.oracle, f.where, f.expected) for f in kept.failures] == [("value", "result", "")]
