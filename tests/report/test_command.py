"""`python -m conformance.report`, two runs that write into one folder, and full disks."""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conformance.record import result as model
from conformance.report import __main__ as command
from tests.patience import stretched
from tests.report.runs import failed, fuzz_json, result, run

WRITER = """
import sys
from pathlib import Path
from conformance.report import __main__ as report
from conformance.record.result import Outcome, Result, Run
for number in range(6):
    results = [Result(f"{sys.argv[2]}{i}", "float32", "forward", "as_sampled", Outcome.PASS, samples=1) for i in range(400)]
    report.write(Run(sys.argv[2], results), Path(sys.argv[1]), None)
"""  # noqa: E501 - a program


class TestOneFolder:
    """Writes by two runs into one folder, and writes without disk space."""

    def test_two_runs_at_once(self, tmp_path: Path) -> None:
        """All files are of the same run, whichever process writes last."""
        words = [[sys.executable, "-c", WRITER, str(tmp_path), name] for name in ("first", "second")]
        for process in [subprocess.Popen(each) for each in words]:
            assert process.wait(100) == 0
        targets = {model.load(tmp_path / "opinfo.json").target}
        targets |= {json.loads((tmp_path / "opinfo.ctrf.json").read_text())["results"]["environment"]["appName"]}
        targets |= set(re.findall(r"<h1>(\w+)</h1>", (tmp_path / "conformance.html").read_text()))
        targets |= set(re.findall(r'name="conformance (\w+)"', (tmp_path / "opinfo.xml").read_text()))
        assert len(targets) == 1
        assert {p.name for p in tmp_path.iterdir() if p.name.startswith(".")} == set()

    def test_modules_stay_frozen(self, tmp_path: Path) -> None:
        """Modules that garbage collection excludes stay excluded. Regression test: after a report, each full collection
        traversed torch's objects."""
        gc.freeze()
        frozen = gc.get_freeze_count()
        command.write(run(result()), tmp_path, None)
        assert gc.isenabled() and gc.get_freeze_count() > frozen / 2

    def test_no_room(self, tmp_path: Path) -> None:
        """A full disk gives one sentence and exit code 2, and the old page stays unchanged."""
        model.save(run(result()), tmp_path / "opinfo.json")
        (tmp_path / "conformance.html").write_text("old")
        words = [sys.executable, "-m", "conformance.report", "html", str(tmp_path / "opinfo.json")]
        # A limit on file sizes simulates a disk of that size.
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4096, 4096))
        done = subprocess.run(
            words, capture_output=True, text=True, preexec_fn=limit, timeout=stretched(100), check=False
        )
        assert done.returncode == 2
        assert re.fullmatch(
            r"conformance report: \S+conformance\.html cannot be written \(.*\); make room .*\n", done.stderr
        )
        assert (tmp_path / "conformance.html").read_text() == "old"
        assert {p.name for p in tmp_path.iterdir()} == {"opinfo.json", "conformance.html"}


class TestCommand:
    """`python -m conformance.report`."""

    def test_diff(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A regression is printed and gives exit code 1; no change gives 0."""
        model.save(run(result()), tmp_path / "a.json")
        model.save(run(failed()), tmp_path / "b.json")
        a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
        assert command.main(["diff", a, b]) == 1
        assert "new failures (1)" in capsys.readouterr().out
        assert command.main(["diff", a, a]) == 0

    def test_diff_of_two_kinds(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A run of op_db and a campaign have no result in common. Regression test: there were "no changes"."""
        model.save(run(result()), tmp_path / "a.json")
        (tmp_path / "b.json").write_text(json.dumps(fuzz_json()))
        assert command.main(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
        sentence = f"conformance report: {tmp_path}/a.json is a result of the kind opinfo; give one of the kind fuzz"
        assert capsys.readouterr().err.startswith(sentence)

    def test_html_and_summary(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """`html` writes the page next to the run; `summary` prints the summary."""
        model.save(run(result()), tmp_path / "a.json")
        assert command.main(["html", str(tmp_path / "a.json")]) == 0
        assert (tmp_path / "conformance.html").read_text().startswith("<!doctype html>")
        assert command.main(["summary", str(tmp_path / "a.json")]) == 0
        assert "1 passed" in capsys.readouterr().out

    def test_merge(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Shards become one report in every form."""
        for name, each in (("a", result("a")), ("b", failed("b"))):
            model.save(run(each), tmp_path / f"{name}.json")
        words = ["merge", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--reports", str(tmp_path / "out")]
        assert command.main(words) == 1
        last = "1 passed, 1 failed, 0 skipped, 1 regression since the baseline"  # of tiny, which has no case b
        assert capsys.readouterr().out.splitlines()[-1] == last
        assert len(list((tmp_path / "out").iterdir())) == 6

    def test_merged_shards_are_compared(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The merged run is compared with the target's baseline, and a regression gives exit code 1."""
        monkeypatch.chdir(tmp_path)
        model.save(run(result(kernels=3), result("gone")), command.baseline_for("tiny"))
        model.save(run(result(kernels=3)), tmp_path / "a.json")
        assert command.main(["merge", "a.json"]) == 1
        assert "gone: 1" in Path("reports/opinfo-summary.md").read_text()
        last = "1 passed, 0 failed, 0 skipped, 1 regression since the baseline"
        assert capsys.readouterr().out.splitlines()[-1] == last

    def test_bad_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A missing file gives one sentence and exit code 2."""
        assert command.main(["html", str(tmp_path / "none.json")]) == 2
        assert "does not exist" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "words", ["conformance.report diff a.json a.json", "conformance.sources.init.expectations explain value / a"]
    )
    def test_a_reader_that_leaves(self, words: str, tmp_path: Path) -> None:
        """A command that pipes into a finished program, such as `head`, ends without a traceback. Regression test: only
        some commands did."""
        model.save(run(result()), tmp_path / "a.json")
        words = f"{sys.executable} -m {words.replace('value / a', repr('value / a'))} | true"
        path = str(Path(__file__).parent.parent.parent)
        done = subprocess.run(
            ["bash", "-c", words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.stderr == ""


class TestAcceptingARun:
    def accept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: model.Run) -> int:
        monkeypatch.chdir(tmp_path)
        model.save(accepted, tmp_path / "opinfo.json")
        return command.main(["baseline", "opinfo.json"])

    def test_it_becomes_the_baseline(self, tmp_path, monkeypatch, capsys) -> None:
        """The file is where later runs look for it. Cases that only an earlier baseline has stay in it."""
        assert self.accept(tmp_path, monkeypatch, run(result("a"), result("b"))) == 0
        assert self.accept(tmp_path, monkeypatch, run(failed("a"))) == 0
        file = command.baseline_for(run().title)
        assert capsys.readouterr().out.splitlines() == [str(file)] * 2
        kept = {each.op: str(each.outcome) for each in model.load(file).results}
        assert kept == {"a": "FAIL", "b": "PASS"}

    @pytest.mark.parametrize("change", [{"complete": False}, {"results": []}])
    def test_a_part_of_a_run_is_refused(self, tmp_path, monkeypatch, capsys, change) -> None:
        """An interrupted run, or one without comparisons, would hide regressions."""
        assert self.accept(tmp_path, monkeypatch, replace(run(result()), **change)) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert "accept a whole one" in said.err and not (tmp_path / "reports").exists()

    def test_a_campaign_is_refused(self, tmp_path, monkeypatch, capsys) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "fuzz.json").write_text(json.dumps(fuzz_json()))
        assert command.main(["baseline", "fuzz.json"]) == 2
        assert "of the kind fuzz" in capsys.readouterr().err


class TestFuzzing:
    """A fuzz campaign, with a run and alone."""

    def put(self, folder: Path, **changes: Any) -> str:
        """Write a campaign into the folder; return its path."""
        folder.mkdir(exist_ok=True)
        (folder / "fuzz.json").write_text(json.dumps(fuzz_json(**changes)))
        return str(folder / "fuzz.json")

    def test_alone(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A campaign alone gets a page and a summary. Regression test: `html` rejected it."""
        path = self.put(tmp_path)
        assert command.main(["html", path]) == 0
        assert capsys.readouterr().out == f"{tmp_path / 'fuzz.html'}\n"
        assert "26 of 300 drawn programs fail" in (tmp_path / "fuzz.html").read_text()
        assert command.main(["summary", path]) == 0
        assert "26 of 300 drawn programs fail" in capsys.readouterr().out

    def test_beside_a_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The page and the summary of a run include the campaign in the same folder."""
        self.put(tmp_path)
        command.write(run(result()), tmp_path, None)
        words = "26 of 300 drawn programs fail"
        for name in ("conformance.html", "opinfo-summary.md"):
            assert words in (tmp_path / name).read_text()
        assert command.main(["html", str(tmp_path / "opinfo.json")]) == 0
        assert words in (tmp_path / "conformance.html").read_text()
        assert command.main(["summary", str(tmp_path / "opinfo.json")]) == 0
        assert words in capsys.readouterr().out

    def test_of_another_target(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A campaign of another target in the folder is omitted with a note on the page; an explicit one is rejected.
        Regression test: it was shown as if it were of the run's target."""
        other = self.put(tmp_path, target="mutant:x")
        command.write(run(result()), tmp_path, None)
        page = (tmp_path / "conformance.html").read_text()
        assert "drawn programs" not in page
        assert "it is on &#39;mutant:x&#39;, another target" in page
        assert "another target" in (tmp_path / "opinfo-summary.md").read_text()
        assert command.main(["html", str(tmp_path / "opinfo.json")]) == 0
        assert "another target" in (tmp_path / "conformance.html").read_text()
        assert command.main(["html", str(tmp_path / "opinfo.json"), "--fuzz", other]) == 2
        assert "'mutant:x'" in capsys.readouterr().err

    def test_several_are_joined(self, tmp_path: Path) -> None:
        """`--fuzz` joins the campaigns of the shards of one run."""
        both = [self.put(tmp_path / "a"), self.put(tmp_path / "b")]
        model.save(run(result()), tmp_path / "a.json")
        assert command.main(["html", str(tmp_path / "a.json"), "--fuzz", *both]) == 0
        assert "52 of 600 drawn programs fail: 1 distinct cause" in (tmp_path / "conformance.html").read_text()

    def test_merged(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The merged report and its exit code include the shards' campaigns, except an unreadable one."""
        shards = []
        for name in ("a", "b", "c"):
            self.put(tmp_path / name, results=fuzz_json()["results"] if name == "b" else [])
            shards.append(str(tmp_path / name / "opinfo.json"))
            model.save(run(result(name)), shards[-1])
        (tmp_path / "c" / "fuzz.json").write_text("{")
        assert command.main(["merge", *shards, "--reports", str(tmp_path / "out")]) == 1
        said = capsys.readouterr()
        assert said.out.splitlines()[-2:] == ["26 of 600 drawn programs fail: 1 distinct cause.",
                                              "3 passed, 0 failed, 0 skipped"]  # fmt: skip
        assert "fuzz.json, line 1: not valid JSON" in said.err
        summary = (tmp_path / "out" / "opinfo-summary.md").read_text()
        assert "26 of 600 drawn programs fail" in summary
        assert "Without the fuzzer" in summary

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"kind": "fuzz"}', '{"kind": "fuzz", "schema": 1}'])
    def test_bad_input(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
        """A bad file gives one sentence and exit code 2, as the main file, as an option, or in the run's folder."""
        model.save(run(result()), tmp_path / "opinfo.json")
        bad = tmp_path / "fuzz.json"
        bad.write_text(text)
        for words in (["html", str(bad)], ["summary", str(bad)], ["html", str(tmp_path / "opinfo.json")],
                      ["summary", str(tmp_path / "opinfo.json"), "--fuzz", str(bad)]):  # fmt: skip
            assert command.main(words) == 2
            said = capsys.readouterr()
            assert (said.out, said.err.count("\n")) == ("", 1)
            assert said.err.startswith(f"conformance report: {bad}")
        assert not [*tmp_path.glob("*.html")]

    def test_a_campaign_has_no_campaign_beside_it(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Options for runs of op_db are rejected for a campaign; an earlier campaign is a baseline."""
        path = self.put(tmp_path)
        assert command.main(["html", path, "--fuzz", path]) == 2
        assert "needs a run of op_db" in capsys.readouterr().err
        assert command.main(["summary", path, "--baseline", path]) == 0
        assert "still failing: 1" in capsys.readouterr().out
        assert command.main(["diff", path, path]) == 0

    def test_campaigns_alone_are_merged(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """`merge` writes all files of the joined campaign, and the usual rule decides its exit code."""
        both = [self.put(tmp_path / name) for name in ("a", "b")]
        assert command.main(["merge", *both, "--reports", str(tmp_path / "out")]) == 1
        assert capsys.readouterr().out.splitlines()[-1] == "548 passed, 52 failed, 0 skipped"
        names = {path.name for path in (tmp_path / "out").iterdir()}
        assert names == {"fuzz.json", "fuzz.xml", "fuzz.ctrf.json", "fuzz-summary.md", "fuzz.html"}
        quiet = self.put(tmp_path / "c", results=[])
        assert command.main(["merge", quiet, "--reports", str(tmp_path / "out")]) == 0
        nothing = self.put(tmp_path / "d", results=[], drawn={"programs": 3, "unsupported": {"autograd": 3}})
        assert command.main(["merge", nothing, "--reports", str(tmp_path / "out")]) == 2

    def test_damaged_results_do_not_lose_the_run(self, tmp_path: Path) -> None:
        """The page is written without the damaged results and has a note about them."""
        (tmp_path / "fuzz.json").write_text("{")
        command.write(run(result()), tmp_path, None)
        assert "fuzz.json, line 1: not valid JSON" in (tmp_path / "conformance.html").read_text()
