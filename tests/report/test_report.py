"""Reports: the model survives the disk, changes are named, and what a target says stays text in every form."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from conformance.report import __main__ as command
from conformance.report import budgets, compare, html, machine, model
from conformance.report.model import Failure, Outcome, ReportError, Result, Run

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\x00\u202e]]>&amp;`|${{7*7}}\n::error::x"


def result(op: str = "add", outcome: Outcome = Outcome.PASS, **changes: Any) -> Result:
    made = Result(op, "float32", "forward", "as_sampled", outcome, family="binary", samples=3)
    return made.replace(**changes)


def failed(op: str = "add", oracle: str = "value", **changes: Any) -> Result:
    return result(op, Outcome.FAIL, failed=1, failures=(Failure(oracle, "result", "1", "2"),), **changes)


def over(kernels: int) -> Result:
    """A case that is declared to run too many kernels, and is right otherwise."""
    return failed(oracle="kernels").replace(outcome=Outcome.XFAIL, kernels=kernels)


def run(*results: Result, **changes: Any) -> Run:
    return Run("tiny", list(results), {"torch": "2.13"}, started="2026-01-01T00:00:00+00:00", **changes)


@pytest.fixture
def hostile() -> Run:
    """A run in which every text that comes from outside is hostile."""
    failure = Failure(
        "value", HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, HOSTILE, HOSTILE, ((HOSTILE, HOSTILE, HOSTILE, True),), "",
        {"expected": {"size": [2, 2], "stride": [2, 1], "offset": 0}},
    )  # fmt: skip
    bad = result(HOSTILE, Outcome.FAIL, family=HOSTILE, reason=HOSTILE, failures=(failure,), fallbacks={HOSTILE: 1})
    made = run(bad, result(), command=HOSTILE, notes=[HOSTILE])
    made.environment[HOSTILE] = HOSTILE
    return made


class TestModel:
    """Results on disk."""

    @pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
    def test_round_trip(self, tmp_path: Path, hostile: Run, name: str) -> None:
        """What is saved is loaded, plain or compressed."""
        model.save(hostile, tmp_path / name)
        assert model.load(tmp_path / name) == hostile

    def test_a_result_is_small(self) -> None:
        """Fields lie in slots: a dictionary of more than twenty names costs each of 100,000 results a kilobyte."""
        assert vars(result()) == {}

    def test_one_result_a_line(self) -> None:
        """A text tool can compare two files."""
        lines = model.dumps(run(result("add"), result("sub"))).splitlines()
        assert sum(line.startswith('{"op"') for line in lines) == 2

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
            ('{"kind": "conformance.opinfo", "schema": 99}', "result schema 99"),
            (
                '{"kind": "conformance.opinfo", "schema": 1, "target": "t", "results": [{"op": "x"}]}',
                "number 1 is damaged",
            ),
            ('{"kind": "conformance.opinfo", "schema": 1, "results": []}', "is damaged"),
            ('{"kind": "conformance.opinfo", "schema": 1, "target": 1}', "'target' is no str"),
            ('{"kind": "conformance.opinfo", "schema": 1, "target": "t", "results": 1}', "'results' is no list"),
            ('{"kind": "conformance.opinfo",\n"schema": 1,\n"target": }', "line 3: not valid JSON"),
            ("[" * 100_000, "cannot be read"),
        ],
    )
    def test_damaged_files_are_named(self, tmp_path: Path, text: str, message: str) -> None:
        """A file that is no run is refused in one sentence with its name."""
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ReportError, match=message) as raised:
            model.load(tmp_path / "run.json")
        assert "run.json" in str(raised.value)

    def test_a_cut_file_is_named(self, tmp_path: Path) -> None:
        """A compressed file that was cut off is refused."""
        model.save(run(result()), tmp_path / "run.json.gz")
        data = (tmp_path / "run.json.gz").read_bytes()
        for damaged in (data[:-9], b"no gzip", data[:30] + bytes(20) + data[50:], data[:12]):
            (tmp_path / "run.json.gz").write_bytes(damaged)
            with pytest.raises(ReportError, match=r"run\.json\.gz cannot be read"):
                model.load(tmp_path / "run.json.gz")

    def test_a_failed_write_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A full disk is one sentence; the old file stays, and nothing is left beside it."""

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        (tmp_path / "run.json").write_text("old")
        monkeypatch.setattr(model.os, "fsync", full)
        with pytest.raises(ReportError, match="No space left on device"):
            model.save(run(result()), tmp_path / "run.json")
        assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("run.json", "old")]

    def test_exit_codes(self) -> None:
        """Only undeclared failures, and a run without comparisons, fail."""
        assert run(result(), result("b", Outcome.XFAIL)).exit_code() == 0
        for outcome in (Outcome.FAIL, Outcome.CRASH, Outcome.TIMEOUT, Outcome.XPASS):
            assert run(result("b", outcome)).exit_code() == 1
        assert run(result("b", samples=0)).exit_code() == 1

    def test_summary_counts_every_case_once(self) -> None:
        """Each outcome is in exactly one of the three figures."""
        line = model.summary_line(run(*(result(str(i), outcome) for i, outcome in enumerate(Outcome))))
        assert line == "2 passed, 4 failed, 2 skipped"

    def test_merge_joins_shards(self) -> None:
        """Shards are joined; the same case twice, or two targets, are refused."""
        merged = model.merge([run(result("a")), run(result("b"))])
        assert [r.op for r in merged.results] == ["a", "b"]
        with pytest.raises(ReportError, match="in two of the merged files"):
            model.merge([run(result("a")), run(result("a"))])
        with pytest.raises(ReportError, match="different targets"):
            model.merge([run(result("a")), dataclasses.replace(run(result("b")), target="cpu")])


    def test_a_missing_shard_is_seen(self) -> None:
        """A matrix whose second machine left no file is no complete run; a whole one is."""
        shards = [run(result(f"op{i}")) for i in (1, 2, 3)]
        for number, shard in enumerate(shards, 1):
            shard.environment["selection"] = f"suite main; shard {number}/3"
        whole = model.merge(shards)
        assert (whole.complete, whole.environment["selection"]) == (True, "suite main")
        merged = model.merge([shards[0], shards[2]])
        assert not merged.complete
        assert merged.notes == ["Shard 2 of 3 is missing: its cases are not in this report."]


class TestBudgets:
    """Kernel budgets on disk."""

    def test_round_trip(self, tmp_path: Path) -> None:
        """What is written is read, one workload a line."""
        counts = {"mlp": {"kernels": 3, "copies_in": 2}, "cnn": {"kernels": 9, "copies_in": 1}}
        (tmp_path / "kernels.json").write_text(budgets.dumps(counts))
        assert budgets.load(tmp_path / "kernels.json") == counts
        assert len((tmp_path / "kernels.json").read_text().splitlines()) == 4

    @pytest.mark.parametrize(("text", "message"), [("{\n,", "line 2"), ('{"mlp": 3}', "holds no kernel budgets")])
    def test_damage(self, tmp_path: Path, text: str, message: str) -> None:
        """Anything else is refused by name."""
        (tmp_path / "kernels.json").write_text(text)
        with pytest.raises(ReportError, match=rf"kernels\.json.*{message}"):
            budgets.load(tmp_path / "kernels.json")


WRITER = """
import sys
from pathlib import Path
from conformance.report import __main__ as report
from conformance.report.model import Outcome, Result, Run
for number in range(6):
    results = [Result(f"{sys.argv[2]}{i}", "float32", "forward", "as_sampled", Outcome.PASS, samples=1) for i in range(400)]
    report.write(Run(sys.argv[2], results), Path(sys.argv[1]), None)
"""  # noqa: E501 - a program


class TestOneFolder:
    """What is written where another run writes, or where there is no room."""

    def test_two_runs_at_once(self, tmp_path: Path) -> None:
        """Whoever is last, all forms are of one and the same run."""
        words = [[sys.executable, "-c", WRITER, str(tmp_path), name] for name in ("first", "second")]
        for process in [subprocess.Popen(each) for each in words]:
            assert process.wait(100) == 0
        targets = {model.load(tmp_path / "opinfo.json").target}
        targets |= {json.loads((tmp_path / "opinfo.ctrf.json").read_text())["results"]["environment"]["appName"]}
        targets |= set(re.findall(r"<h1>(\w+)</h1>", (tmp_path / "conformance.html").read_text()))
        targets |= set(re.findall(r'name="conformance (\w+)"', (tmp_path / "opinfo.xml").read_text()))
        assert len(targets) == 1
        assert {p.name for p in tmp_path.iterdir() if p.name.startswith(".")} == set()

    def test_no_room(self, tmp_path: Path) -> None:
        """A disk without room is one sentence and exit code 2, and the old page stays as it was."""
        model.save(run(result()), tmp_path / "opinfo.json")
        (tmp_path / "conformance.html").write_text("old")
        words = [sys.executable, "-m", "conformance.report", "html", str(tmp_path / "opinfo.json")]
        # A limit on the size of files stands for a disk of that size.
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4096, 4096))
        done = subprocess.run(words, capture_output=True, text=True, preexec_fn=limit, timeout=100, check=False)
        assert done.returncode == 2
        assert re.fullmatch(r"report: \S+conformance\.html cannot be written \(.*\); make room .*\n", done.stderr)
        assert (tmp_path / "conformance.html").read_text() == "old"
        assert {p.name for p in tmp_path.iterdir()} == {"opinfo.json", "conformance.html"}


class TestCompare:
    """What changed between two runs."""

    @pytest.mark.parametrize(
        ("before", "after", "kind"),
        [
            (result(), failed(), "new failures"),
            (None, failed(), "new failures"),
            (failed(), result(), "fixed"),
            (failed(), failed(), "still failing"),
            (failed(), failed(oracle="stride"), "fails otherwise"),
            (result(), result(outcome=Outcome.FLAKY), "newly flaky"),
            (result(kernels=3), result(kernels=4), "kernels up"),
            (result(kernels=3), result(kernels=2), "kernels down"),
            (result(fallback=0), result(fallback=1), "fallbacks up"),
            (result(fallback=1), result(fallback=0), "fallbacks down"),
            (None, result(), "new"),
            (result(outcome=Outcome.XFAIL), failed(), "new failures"),
            (result(), result(outcome=Outcome.XFAIL), "declared"),
            (result(), result(arbitrated=1), "by float64"),
            (over(3), over(4), "kernels up"),
        ],
    )
    def test_kind(self, before: Result | None, after: Result, kind: str) -> None:
        """Each change has its kind, and is counted once."""
        difference = compare.diff(run(*([before] if before else [])), run(after))
        assert {k: len(v) for k, v in difference.changes.items()} == {kind: 1}

    def test_no_change(self) -> None:
        """The same run has no changes."""
        both = run(result(kernels=3), result("sub"))
        assert compare.diff(both, both).changes == {}

    def test_kernels_of_other_samples_are_not_compared(self) -> None:
        """More samples may take more kernels."""
        assert compare.diff(run(result(kernels=3)), run(result(kernels=9, samples=5))).changes == {}

    def test_gone(self) -> None:
        """A case that a whole run misses is gone; one that a partial run did not ask for is only counted."""
        ops = [result(f"op{i}") for i in range(20)]
        assert compare.diff(run(*ops), run(*ops[1:])).count("gone") == 1
        narrower = run(ops[0])
        narrower.environment["selection"] = "fewer ops; shard 1/20"
        partial = compare.diff(run(*ops), narrower)
        assert (partial.count("gone"), partial.not_run) == (0, 19)

    def test_the_whole_run_is_slower(self) -> None:
        """Time is compared as a multiple of each run's calibration loop: a machine half as fast is no change."""
        before = run(result(seconds=100.0), calibration=0.01)
        assert compare.diff(before, run(result(seconds=200.0), calibration=0.02)).changes == {}
        slow = compare.diff(before, run(result(seconds=500.0), calibration=0.01))
        assert {kind: len(changes) for kind, changes in slow.changes.items()} == {"time up": 1, "slower": 1}
        assert slow.regressions == 1
        assert "time: 5.00 of the baseline's" in slow.facts[0]

    def test_an_empty_cache_is_no_regression(self) -> None:
        """A run that has to schedule what the baseline's found on disk took three times as long, and failed."""
        before = run(result(seconds=100.0, scheduled=0), result("warm", seconds=100.0, scheduled=3), calibration=0.01)
        cold = run(result(seconds=900.0, scheduled=5), result("warm", seconds=110.0, scheduled=3), calibration=0.01)
        found = compare.diff(before, cold)
        assert (found.changes, found.regressions) == ({}, 0)
        assert found.facts[0].startswith("time: not compared of 1 cases")
        assert "time: 1.10 of the baseline's" in found.facts[1]
        slow = run(result(seconds=900.0, scheduled=0), result("warm", seconds=110.0, scheduled=3), calibration=0.01)
        assert compare.diff(before, slow).count("time up") == 1

    def test_one_slower_case_is_no_regression(self) -> None:
        """What a compiler's cache may explain is shown only."""
        others = [result(f"op{i}", seconds=1.0) for i in range(100)]
        before = run(result(seconds=2.0), *others, calibration=0.01)
        found = compare.diff(before, run(result(seconds=20.0), *others, calibration=0.01))
        assert (list(found.changes), found.regressions) == (["slower"], 0)

    def test_fallback_share(self) -> None:
        """The share of calls on the CPU is said before and after, over what both passed."""
        pairs = [(result(native=9, decomposed=0, fallback=1), result(native=10, decomposed=0, fallback=0))]
        found = compare.diff(run(*(a for a, _ in pairs)), run(*(b for _, b in pairs)))
        assert found.facts == ["CPU fallbacks: 10.00% of the calls before, 0.00% now"]

    def test_kernel_budgets(self) -> None:
        """A workload that takes more kernels or copies, or is no longer counted, is a regression; fewer is not."""
        before = run(result(), budgets={"mlp": {"kernels": 3, "copies_in": 2}, "cnn": {"kernels": 9}, "gone": {}})
        after = run(result(), budgets={"mlp": {"kernels": 4, "copies_in": 1}, "cnn": {"kernels": 9}})
        found = compare.diff(before, after)
        kinds = {kind: [change.id for change in changes] for kind, changes in found.changes.items()}
        assert kinds == {"budgets up": ["mlp: kernels"], "gone": ["workload gone"], "budgets down": ["mlp: copies_in"]}
        assert found.regressions == 2


class TestMachine:
    """JUnit, Markdown and annotations."""

    def test_junit_is_xml(self, hostile: Run) -> None:
        """Whatever a target says, the file parses, and counts are right."""
        suite = ElementTree.fromstring(machine.junit(hostile)).find("testsuite")
        assert suite is not None
        assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
        assert suite.find("testcase/failure") is not None

    def test_markdown_is_inert(self, hostile: Run) -> None:
        """No markup, control character or table break of a target's reaches the summary."""
        text = machine.markdown(hostile, None)
        assert "<img" not in text
        assert "\x1b" not in text
        assert all(line.count("|") == 5 for line in text.splitlines() if line.startswith("| `"))

    def test_markdown_fits(self) -> None:
        """The summary of very many failures stays under GitHub's limit and says what is left out."""
        text = machine.markdown(run(*(failed(f"{i}" * 300) for i in range(9_000))), None)
        assert len(text.encode()) < 1 << 20
        assert "more failures are in the HTML report" in text

    def test_annotations_are_one_line(self, hostile: Run) -> None:
        """A line break in a message starts no command of its own."""
        (line,) = machine.error_lines(hostile)
        assert "\n" not in line
        assert "\x1b" not in line
        assert line.startswith("::error title=")


SCHEMAS = {
    "ours": (Path(model.__file__).parent / "opinfo.schema.json", model.dumps),
    "ctrf": (Path(__file__).parent / "ctrf.schema.json", machine.ctrf),
}


@pytest.mark.parametrize("name", SCHEMAS)
class TestSchemas:
    """The JSON that is written fits its schema."""

    def every(self, hostile: Run) -> Run:
        """A run with every outcome and every field."""
        rest = (result(f"op{outcome}", outcome, kernels=3, eager=4, native=1, decomposed=0) for outcome in Outcome)
        made = run(*hostile.results, *rest, seconds=1.5, calibration=0.01, command="it", notes=["a note"])
        made.budgets = {"mlp": {"kernels": 3}}
        return made

    def test_fits(self, name: str, hostile: Run) -> None:
        """Whatever was found."""
        path, dumps = SCHEMAS[name]
        jsonschema.Draft7Validator(json.loads(path.read_text())).validate(json.loads(dumps(self.every(hostile))))

    def test_every_field_is_documented(self, name: str, hostile: Run) -> None:
        """A name that the schema has not, at any depth, does not fit it."""
        path, dumps = SCHEMAS[name]
        validator = jsonschema.Draft7Validator(json.loads(path.read_text()))
        results = {"ours": lambda data: data["results"], "ctrf": lambda data: data["results"]["tests"]}[name]
        for spoil in (lambda data: data, lambda data: results(data)[0]):
            data = json.loads(dumps(self.every(hostile)))
            spoil(data)["unheard of"] = 1
            assert not validator.is_valid(data)


class TestCtrf:
    """The Common Test Report Format."""

    def test_every_case_is_a_test(self, hostile: Run) -> None:
        """Each case has its status, and the summary counts them."""
        data = json.loads(machine.ctrf(hostile))
        assert (data["reportFormat"], data["specVersion"]) == ("CTRF", "0.0.0")
        summary, tests = data["results"]["summary"], data["results"]["tests"]
        assert [summary[word] for word in ("tests", "passed", "failed", "skipped")] == [2, 1, 1, 0]
        assert summary["stop"] >= summary["start"]
        assert {test["status"] for test in tests} == {"passed", "failed"}
        assert not set("".join(test.get("message", "") for test in tests)) & {"\x1b", "\u202e"}

    def test_flaky_and_declared(self) -> None:
        """A pass on a rerun is a flaky pass; a declared failure is skipped, with its reason."""
        given = run(result("a", outcome=Outcome.FLAKY, reason="r"), result("b", outcome=Outcome.XFAIL, reason="known"))
        flaky, declared = json.loads(machine.ctrf(given))["results"]["tests"]
        assert (flaky["status"], flaky["flaky"]) == ("passed", True)
        assert (declared["status"], declared["rawStatus"], declared["message"]) == ("skipped", "XFAIL", "known")


class Page(HTMLParser):
    """The page's elements and the text of its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attributes if name in ("src", "onerror")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.scripts[-1] += data


class TestHtml:
    """The page."""

    def test_hostile_text_is_inert(self, hostile: Run) -> None:
        """Op names, exceptions, reasons and environments add no element, and no control character survives."""
        text = html.render(
            hostile, hostile, {"findings": [{"signature": HOSTILE, "script": HOSTILE}], HOSTILE: HOSTILE}
        )
        page = Page(text)
        assert page.tags.count("script") == 2
        assert "img" not in page.tags
        assert page.sources == []
        assert not set(text) & {"\x1b", "\x00", "\u202e"}

    def test_self_contained(self) -> None:
        """Nothing is fetched: no source, no stylesheet link, and a policy that forbids it."""
        text = html.render(run(result()))
        assert not {"link", "img", "iframe"} & set(Page(text).tags)
        assert "default-src 'none'" in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")

    def test_data_is_what_was_found(self) -> None:
        """The rows that the browser reads are the results, worst first."""
        data = json.loads(Page(html.render(run(result("good"), failed("bad")))).scripts[0])
        names = [data["names"][row[0]] for row in data["rows"]]
        assert names == ["bad", "good"]
        assert list(data["details"]) == ["0"]

    def test_changes_come_first(self) -> None:
        """With a baseline, its section is before the map and the cases."""
        text = html.render(run(failed()), run(result()))
        assert text.index('id="changes"') < text.index('id="map"') < text.index('id="cases"')

    def test_heat_map_counts(self) -> None:
        """A cell counts its cases, and a column is named by what varies."""
        heat = html.heat_map([result("a"), failed("b"), result("c", dtype="int64")])
        assert heat["columns"] == ["float32", "int64"]
        cell = heat["rows"][0]["cells"][0]
        assert (cell["passed"], cell["total"], cell["step"]) == (1, 2, "2")

    def test_details_have_a_budget(self) -> None:
        """Very many long failures do not make a page that no browser opens."""
        long = [dataclasses.replace(failed(f"op{i}"), failures=(Failure("value", "w", "e", "a", script="x" * 50_000),)) for i in range(400)]  # fmt: skip  # noqa: E501
        assert len(html.render(run(*long))) < 5_000_000


class TestCommand:
    """`python -m conformance.report`."""

    def test_diff(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A regression is printed and is exit code 1; no change is 0."""
        model.save(run(result()), tmp_path / "a.json")
        model.save(run(failed()), tmp_path / "b.json")
        a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
        assert command.main(["diff", a, b]) == 1
        assert "new failures (1)" in capsys.readouterr().out
        assert command.main(["diff", a, a]) == 0

    def test_html_and_summary(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The page is written beside the run; the summary is printed."""
        model.save(run(result()), tmp_path / "a.json")
        assert command.main(["html", str(tmp_path / "a.json")]) == 0
        assert (tmp_path / "conformance.html").read_text().startswith("<!doctype html>")
        assert command.main(["summary", str(tmp_path / "a.json")]) == 0
        assert "1 passed" in capsys.readouterr().out

    def test_merge(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Shards become one report with every form."""
        for name, each in (("a", result("a")), ("b", failed("b"))):
            model.save(run(each), tmp_path / f"{name}.json")
        words = ["merge", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--reports", str(tmp_path / "out")]
        assert command.main(words) == 1
        assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"
        assert len(list((tmp_path / "out").iterdir())) == 6

    def test_merged_shards_are_compared(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With the target's baseline; a regression that is in it fails the join."""
        monkeypatch.chdir(tmp_path)
        model.save(run(result(kernels=3), result("gone")), command.baseline_for("tiny"))
        model.save(run(result(kernels=3)), tmp_path / "a.json")
        assert command.main(["merge", "a.json"]) == 1
        assert "gone: 1" in Path("reports/opinfo-summary.md").read_text()
        assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"

    def test_bad_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A file that is not there is one sentence and exit code 2."""
        assert command.main(["html", str(tmp_path / "none.json")]) == 2
        assert "does not exist" in capsys.readouterr().err

    def test_coverage_of_the_fuzzer_has_three_dimensions(self) -> None:
        """Family x layout class x dtype: each cell's steps are counted, cells that were not reached are empty, and what
        an older version wrote, or something else, is shown as far as it goes."""
        cells = {"writes": {"gaps": {"bool": 3}, "contiguous": {"float32": 37, "bool": 3}}}
        view = html.fuzz_view({"cells": cells, "coverage": {"writes": {"gaps": 3, "contiguous": 40}}})
        assert view is not None
        assert view["columns"] == ["contiguous", "gaps"]
        assert [(name, [count for count, _ in row]) for name, row in view["rows"]] == [("writes", [40, 3])]
        assert view["dtypes"] == ["bool", "float32"]
        [family] = view["families"]
        assert (family["reached"], family["all"]) == (3, 4)
        counts = [(layout, [count for count, _ in row]) for layout, row in family["rows"]]
        assert counts == [("contiguous", [3, 37]), ("gaps", [3, 0])]
        older = html.fuzz_view({"coverage": {"writes": {"gaps": 3}}})
        assert older is not None
        assert (older["columns"], older["families"]) == (["gaps"], [])
        damaged = html.fuzz_view({"cells": {"writes": {"gaps": 3, "empty": {"bool": "<b>"}}}, "coverage": 7})
        assert damaged is not None
        assert [row for _, row in damaged["rows"]] == [[(0, 0), (0, 0)]]

    def test_a_reader_that_leaves(self, tmp_path: Path) -> None:
        """What pipes into a program that has ended, as `head` may, ends without a traceback."""
        model.save(run(result()), tmp_path / "a.json")
        words = f"{sys.executable} -m conformance.report diff a.json a.json | true"
        path = str(Path(__file__).parent.parent.parent)
        done = subprocess.run(
            ["bash", "-c", words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.stderr == ""

    def test_damaged_fuzz_results_do_not_lose_the_run(self, tmp_path: Path) -> None:
        """The page is written without them, and says so."""
        (tmp_path / "fuzz.json").write_text("{")
        command.write(run(result()), tmp_path, None)
        assert "fuzz.json cannot be read" in (tmp_path / "conformance.html").read_text()


def test_a_baseline_with_failures_is_read_again(tmp_path):
    """A kept failure has no texts; the baseline that held one was refused as damaged."""
    from conformance.report import model

    failure = model.Failure("value", "result", "1.0", "2.0")
    result = model.Result("add", "float32", "forward", "as_sampled", model.Outcome.FAIL, failures=(failure,))
    path = tmp_path / "tiny.json.gz"
    model.save(model.slim(model.Run(target="tiny", results=[result])), path)
    (kept,) = model.load(path).results
    assert [(f.oracle, f.where, f.expected) for f in kept.failures] == [("value", "result", "")]
