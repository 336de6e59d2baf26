"""Shortfalls of a run: the sentence, the numbers, the exit code, and the file of the run."""

from __future__ import annotations

import html
import json
from pathlib import Path

import jsonschema
import pytest

from conformance.declare.declaration import Declaration, Scope
from conformance.declare.expectations import due
from conformance.record import result as model
from conformance.record import shortfall
from conformance.record.merge import merge
from conformance.record.program_stats import ProgramStats
from conformance.record.result import Outcome, Result, Run
from conformance.record.shortfall import Shortfall, add_up, describe
from conformance.report import compare, machine, summary
from conformance.report.html import render

LATE = Shortfall("cases of op_db", 61, 677)
SAID = "Not judged: 61 of 677 cases of op_db (--minutes)."
STRICTLY = "Not judged: 61 of 677 cases of op_db (--minutes); --strict makes this a failure."
SCHEMA = json.loads((Path(model.__file__).parent / "result.schema.json").read_text())


def run(*rows: Shortfall, strict: bool = False, outcome: Outcome = Outcome.PASS, **more: object) -> Run:
    """A run of one case with these shortfalls."""
    result = Result("add", "float32", "forward", "as_sampled", outcome, samples=3)
    return Run("cpu", [result], not_judged=[*rows], strict=strict, **more)  # type: ignore[arg-type]


class TestSentence:
    def test_all_rows_are_one_sentence(self) -> None:
        rows = [Shortfall("programs", 165, 200), Shortfall("inputs of dtype", 3, 12, "budget=30")]
        assert describe(rows) == "Not judged: 165 of 200 programs (--minutes), 3 of 12 inputs of dtype (budget=30)."
        assert describe([LATE], strict=True) == STRICTLY

    def test_a_complete_run_has_none(self) -> None:
        assert describe([]) == describe([], strict=True) == run(strict=True).shortfall == ""

    def test_a_number_that_nobody_planned(self) -> None:
        """With `--minutes` alone, the time is the amount, unless nothing ran in it."""
        assert describe([Shortfall("programs")]) == "Not judged: all programs (--minutes)."

    def test_many_rows_are_counted(self) -> None:
        rows = [Shortfall(f"inputs of {number}", 1, 2) for number in range(9)]
        assert describe(rows).endswith("1 of 2 inputs of 5 (--minutes), and 3 more.")

    def test_the_same_thing_is_added_up(self) -> None:
        other = Shortfall("cases of op_db", 1, 3, "120 s")
        assert add_up([LATE, other, LATE]) == [Shortfall("cases of op_db", 122, 1354), other]


class TestExitCode:
    @pytest.mark.parametrize(
        ("late", "strict", "code"), [(False, False, 0), (False, True, 0), (True, False, 0), (True, True, 1)]
    )
    def test_only_strict_fails_a_shortfall(self, late: bool, strict: bool, code: int) -> None:
        assert run(*[LATE] * late, strict=strict).exit_code() == code

    def test_nothing_compared_and_an_interruption_keep_their_codes(self) -> None:
        nothing = Run("cpu", not_judged=[LATE], strict=True)
        assert nothing.exit_code() == 2
        assert run(LATE, strict=True, interrupted=2).exit_code() == 130

    def test_a_finding_fails_with_and_without_it(self) -> None:
        assert {run(LATE, strict=strict, outcome=Outcome.FAIL).exit_code() for strict in (False, True)} == {1}


class TestFile:
    def test_it_is_written_and_read(self, tmp_path: Path) -> None:
        model.save(run(LATE, strict=True), tmp_path / "opinfo.json")
        data = json.loads((tmp_path / "opinfo.json").read_text())
        assert data["not_judged"] == [{"what": "cases of op_db", "missing": 61, "planned": 677}] and data["strict"]
        jsonschema.Draft7Validator(SCHEMA).validate(data)
        read = model.load(tmp_path / "opinfo.json")
        assert (read.not_judged, read.shortfall) == ([LATE], STRICTLY)

    def test_a_complete_run_has_no_such_field(self) -> None:
        """So a file of an earlier version reads as a complete run."""
        data = model.run_to_json(run())
        assert not {"not_judged", "strict"} & data.keys() and model.run_from_json(data, "old.json").not_judged == []

    def test_shards_are_merged(self) -> None:
        first, second = run(LATE), run(LATE, strict=True)
        second.results = [second.results[0].replace(op="sub")]
        merged = merge([first, second])
        assert merged.not_judged == [Shortfall("cases of op_db", 122, 1354)] and merged.strict


class TestReports:
    def test_page_and_summary_say_it(self) -> None:
        assert SAID in html.unescape(machine.markdown(run(LATE), None))
        page = render(run(LATE))
        assert f'<p class="verdict open"><a href="#not-judged">{SAID}</a>' in page and 'id="not-judged"' in page
        assert f'<p class="verdict bad"><a href="#not-judged">{STRICTLY}</a>' in render(run(LATE, strict=True))

    def test_a_complete_run_says_nothing(self) -> None:
        for text in (machine.markdown(run(), None), render(run()), machine.junit(run()), machine.ctrf(run())):
            assert "not-judged" not in text and "Not judged" not in text and "was planned" not in text

    @pytest.mark.parametrize(("strict", "junit", "ctrf"), [(False, "skipped", "skipped"), (True, "failure", "failed")])
    def test_it_is_a_test_for_ci(self, strict: bool, junit: str, ctrf: str) -> None:
        """A skipped test, or a failed one under `--strict`, so that CI that reads only these files sees it."""
        late = run(LATE, strict=strict)
        assert f"<{junit} " in machine.junit(late) and SAID[:-1] in machine.junit(late)
        (test,) = [test for test in json.loads(machine.ctrf(late))["results"]["tests"] if "planned" in test["name"]]
        assert test["status"] == ctrf and SAID[:-1] in test["message"]

    def test_two_runs_are_one_sentence(self) -> None:
        programs = Run("cpu", drawn=ProgramStats((0,), 35), not_judged=[Shortfall("programs", 165, 200)])
        said = "Not judged: 61 of 677 cases of op_db (--minutes), 165 of 200 programs (--minutes)."
        assert [verdict.sentence for verdict in summary.verdicts(run(LATE), programs)][-1] == said


class TestTimeIsNoFinding:
    """A run with too little time fails by `--strict` alone, and never by a guess about what did not run."""

    def test_a_case_without_time_is_not_gone(self) -> None:
        """Regression test: with a baseline, each case that `--minutes` left out was a regression."""
        before = run()
        before.results.append(before.results[0].replace(op="sub"))
        assert compare.diff(before, run(LATE)).regressions == 0
        assert compare.diff(before, run()).regressions == 1

    def test_a_declared_finding_that_may_have_no_name_yet(self) -> None:
        """A finding gets its cause when it is shrunk. Regression test: without time for that, no program had
        the declared cause, and the run failed by XPASS."""
        drawn = ProgramStats((0,), 200)
        declaration = Declaration(Scope(op=("neg",), programs=100, seed=0), ("value",), "a known one")
        assert due(declaration, Run("cpu", drawn=drawn))
        assert not due(declaration, Run("cpu", drawn=drawn, not_judged=[Shortfall(shortfall.FINDINGS, 1, 2)]))
