"""Machine-readable reports: JUnit, CTRF, Markdown and annotations, with text from outside escaped."""

from __future__ import annotations

import dataclasses
import html
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from conformance.record import result as model
from conformance.record.accuracy import Accuracy
from conformance.record.footprint import Footprint
from conformance.record.measurements import Measure, Measurements
from conformance.record.missing_ops import MissingOperator
from conformance.record.program_stats import ProgramStats
from conformance.record.repro import Repro
from conformance.record.result import Failure, Finding, Outcome, Result, Run
from conformance.report import compare, machine
from tests.report.runs import campaign, failed, fuzz_finding, result, run


class TestMachine:
    """JUnit, Markdown and annotations."""

    def test_junit_is_xml(self, hostile: Run) -> None:
        """The file parses, whatever text the target produces, and the counts are right."""
        suite = ElementTree.fromstring(machine.junit(hostile)).find("testsuite")
        assert suite is not None
        assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
        assert suite.find("testcase/failure") is not None

    def test_markdown_is_inert(self, hostile: Run) -> None:
        """No markup, control character or table break from a target reaches the summary."""
        text = machine.markdown(hostile, None)
        assert "<img" not in text
        assert "\x1b" not in text
        # The tables of failures have four columns, those of measured errors seven.
        assert [line.count("|") for line in text.splitlines() if line.startswith("| `")] == [8, 5]

    def test_markdown_fits(self) -> None:
        """The summary of many failures stays under GitHub's limit and counts the omitted ones."""
        text = machine.markdown(run(*(failed(f"{i}" * 300) for i in range(9_000))), None)
        assert len(text.encode()) < 1 << 20
        assert "more failures are in the HTML report" in text

    def test_what_is_lacking(self) -> None:
        """The summary has the table of missing operators, with names escaped. Regression test: it was a sentence with
        two counts."""
        rows = (
            MissingOperator("aten::a|b", 3, (), 4, 10, 0.25, ("a", "b")),
            MissingOperator("aten::c", 0, ("roll", "flip"), 0, 10),
        )
        text = machine.markdown(run(result(), lacking=rows), None)
        assert "| `aten::a b` | 2 | 3 |  | 4 of 10 programs, 25.0% of calls |" in text
        assert "| `aten::c` |  |  | roll, flip | none of 10 programs |" in text
        many = tuple(MissingOperator(f"aten::{number}", 1) for number in range(machine.LISTED_FINDINGS + 2))
        assert "2 more operators are lacking." in machine.markdown(run(result(), lacking=many), None)

    def test_a_campaign(self) -> None:
        """Each finding is a test, and all programs without a finding are one more test; the worst comes first, also in
        the summary."""
        known = fuzz_finding("value / b", count=5).replace(outcome=Outcome.XFAIL, reason="a reason")
        fuzz_run = campaign(
            fuzz_finding("stride / a", count=3), known, fuzz_finding("crash / c", "CRASH"), expectations="t.toml"
        )
        suite = ElementTree.fromstring(machine.junit(fuzz_run)).find("testsuite")
        assert suite is not None
        names = [case.get("name") for case in suite]
        assert names == ["program::crash / c", "program::value / b", "program::stride / a",
                         "291 drawn programs without a finding"]  # fmt: skip
        assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["4", "1", "1", "1"]
        tests = json.loads(machine.ctrf(fuzz_run))["results"]["tests"]
        assert [test["status"] for test in tests] == ["failed", "other", "failed", "passed"]
        text = machine.markdown(fuzz_run, None)
        assert text.startswith("## Fuzzing of `tiny`\n\n**291 passed, 4 failed, 0 skipped**")
        assert text.index("crash / c") < text.index("value / b") < text.index("stride / a")
        assert "known: a reason" in text
        assert "1 known finding in 5 programs, declared in t.toml" in html.unescape(text)
        assert '<skipped type="known" message="XFAIL: a reason" />' in machine.junit(fuzz_run)
        assert len(machine.error_lines(fuzz_run)) == 2

    def test_a_campaign_that_compared_nothing(self) -> None:
        """A campaign that compared nothing is one skipped test, never a passed one."""
        fuzz_run = campaign(drawn=ProgramStats((0,), 3, unsupported={"autograd": 3}))
        assert '<skipped message="SKIP: no drawn program' in machine.junit(fuzz_run)
        assert "**Nothing was compared.**" in machine.markdown(fuzz_run, None)

    @pytest.mark.parametrize(("before", "after", "name", "said"), [
        (result(kernels=3), result(kernels=4), "add::float32::forward::as_sampled",
         "kernels up since the baseline: 3 -> 4"),
        (failed().replace(outcome=Outcome.XFAIL), failed(reason="known").replace(outcome=Outcome.XFAIL, failed=2),
         "add::float32::forward::as_sampled", "more samples fail since the baseline: 1 of 3 -> 2 of 3"),
        (result("gone"), result(), "gone::float32::forward::as_sampled",
         "gone since the baseline: PASS -> not in this run"),
    ])  # fmt: skip
    def test_a_regression_is_a_failure(self, before: Result, after: Result, name: str, said: str) -> None:
        """Each form that CI shows has the regression as one failure, with both states. Regression test: JUnit had no
        failure, and Markdown `0 failed`."""
        after_run = run(after)
        changes = compare.diff(run(before), after_run)
        suite = ElementTree.fromstring(machine.junit(after_run, changes)).find("testsuite")
        assert suite is not None and (suite.get("failures"), suite.get("skipped")) == ("1", "0")
        (test,) = (case for case in suite if case.find("failure") is not None)
        assert (test.get("name"), test.findall("failure")[0].get("message")) == (name, said)
        (failure,) = (test for test in json.loads(machine.ctrf(after_run, changes))["results"]["tests"]
                      if test["status"] == "failed")  # fmt: skip
        assert (failure["name"], failure["message"]) == (name, said)
        text = html.unescape(machine.markdown(after_run, changes))
        assert "0 failed, 0 skipped, 1 regression since the baseline**" in text
        assert f"| `{name}` | FAIL | baseline" in text and f"| {said} |" in text
        assert machine.error_lines(after_run, changes) == [f"::error title={name.replace(':', '%3A')}::{said}"]
        accepted = compare.diff(run(before), after_run, accepted=True)
        assert machine.junit(after_run, accepted) == machine.junit(after_run)

    def test_a_new_failure_is_one_failure(self) -> None:
        """A failure that is a regression as well is reported once, by its difference."""
        after_run = run(failed())
        changes = compare.diff(run(result()), after_run)
        assert changes.regressions == 1
        assert machine.junit(after_run, changes) == machine.junit(after_run)
        assert machine.error_lines(after_run, changes) == machine.error_lines(after_run)

    def test_annotations_are_one_line(self, hostile: Run) -> None:
        """A line break in a message cannot start another workflow command."""
        (line,) = machine.error_lines(hostile)
        assert "\n" not in line
        assert "\x1b" not in line
        assert line.startswith("::error title=")


SCHEMAS = {
    "ours": (Path(model.__file__).parent / "result.schema.json", model.dumps),
    "ctrf": (Path(__file__).parent / "ctrf.schema.json", machine.ctrf),
}


@pytest.mark.parametrize("name", SCHEMAS)
class TestSchemas:
    """The written JSON is valid against its schema."""

    def every(self, hostile: Run) -> Run:
        """A run with every outcome and every field."""
        rest = (result(f"op{outcome}", outcome, kernels=3, native=1, decomposed=0) for outcome in Outcome)
        full = result("all", kernels=3, most={"kernels": 4}, host=1, parts={"host": {"item": 1}}, scheduled=3)
        known = fuzz_finding(
            first=4, saved=("a",), elsewhere={"b": "c"}, pattern="value of add", shrunk=False, masked=2
        )
        case_run = run(
            *hostile.results, *rest, full, known, seconds=1.5, calibration=0.01, command="it", notes=["a note"]
        )
        case_run.budgets, case_run.interrupted, case_run.expectations = {"mlp": {"kernels": 3}}, 2, "tiny.toml"
        words: dict[str, Any] = dict.fromkeys(("families", "layouts", "dtypes", "corpus"), ("a",))
        counts: dict[str, Any] = dict.fromkeys(("steps", "recorded"), 3)
        counts |= dict.fromkeys(("arbitrated", "failing", "known", "masked"), 3)
        tallies: dict[str, Any] = {"unsupported": {"a": 1}, "avoided": {"b": 2}, "entries": {"add|method|gaps|bool": 1}}
        tallies["cells"] = {("a", "b", "c"): 3}
        tallies["measured"] = Measurements({"kernels": 3}, {"kernels": 5})
        case_run.drawn = ProgramStats((0,), 300, options="--steps 1..2", **counts, **words, **tallies)
        return case_run

    def test_fits(self, name: str, hostile: Run) -> None:
        """A run with any content is valid."""
        path, dumps = SCHEMAS[name]
        jsonschema.Draft7Validator(json.loads(path.read_text())).validate(json.loads(dumps(self.every(hostile))))

    def test_every_field_is_documented(self, name: str, hostile: Run) -> None:
        """An unknown name, at any depth, is invalid."""
        path, dumps = SCHEMAS[name]
        validator = jsonschema.Draft7Validator(json.loads(path.read_text()))
        results = {"ours": lambda data: data["results"], "ctrf": lambda data: data["results"]["tests"]}[name]
        places = {
            "ours": (
                lambda data: data["drawn"],
                lambda data: data["measures"][0],
                lambda data: results(data)[-1]["finding"],
            ),
            "ctrf": (),
        }[name]
        for spoil in (lambda data: data, lambda data: results(data)[0], *places):
            data = json.loads(dumps(self.every(hostile)))
            spoil(data)["unheard of"] = 1
            assert not validator.is_valid(data)


WRITTEN = {"result": Result, "failure": Failure, "finding": Finding, "drawn": ProgramStats, "lacking": MissingOperator,
           "accuracy": Accuracy, "footprint": Footprint, "repro": Repro, "measure": Measure,
           "measurements": Measurements}  # fmt: skip
"""Dataclasses of a result file, by the schema definition that describes them."""


class TestFields:
    """The fields of each written dataclass and the properties of its schema are the same."""

    SCHEMA = json.loads(SCHEMAS["ours"][0].read_text())

    @pytest.mark.parametrize("name", WRITTEN)
    def test_a_definition_has_the_fields_of_its_dataclass(self, name: str) -> None:
        fields = {field.name for field in dataclasses.fields(WRITTEN[name])}
        assert self.SCHEMA["definitions"][name]["properties"].keys() == fields

    def test_a_run_has_the_fields_of_its_dataclass(self) -> None:
        """The writer adds the version, the kind and the totals."""
        fields = {field.name for field in dataclasses.fields(Run)}
        assert self.SCHEMA["properties"].keys() == fields | {"schema", "kind", "totals"}


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
        """A case that passed on a rerun only is a flaky failure. A known failure has the status "other" and its
        reason."""
        case_run = run(
            result("a", outcome=Outcome.FLAKY, reason="r"), result("b", outcome=Outcome.XFAIL, reason="known")
        )
        case_run.expectations = "f.toml"
        flaky, declared = json.loads(machine.ctrf(case_run))["results"]["tests"]
        assert (flaky["status"], flaky["flaky"]) == ("failed", True)
        assert (declared["status"], declared["rawStatus"], declared["message"]) == ("other", "XFAIL", "known")
        assert json.loads(machine.ctrf(case_run))["results"]["summary"]["other"] == 1
        assert "1 known failure, declared in f.toml" in html.unescape(machine.markdown(case_run, None))
