"""A run for CI: JUnit XML, CTRF JSON, a GitHub job summary in Markdown, and GitHub's error annotations.

The key insight: a target's exception text is untrusted. Each form escapes it by its own rules, and replaces characters
that the form cannot hold.
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from conformance.record.accuracy import shown
from conformance.record.footprint import mebibytes
from conformance.record.result import UNEXPECTED, WITHOUT_BACKEND, Failure, Outcome, Result, Run, counted, summary_line
from conformance.record.sentences import headline, legend, sentence
from conformance.report import summary
from conformance.report.compare import Diff
from conformance.report.escape import escape_control_characters
from conformance.report.rendering import cell, code, rendered

SUMMARY_LIMIT = 1_000_000
"""GitHub refuses a job summary of more than 1 MiB."""
LISTED_FINDINGS = 100
LISTED_ERRORS = 10
"""Number of cases with measured errors or memory that the summary lists, the worst first."""
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(run: Run, changes: Diff | None = None) -> str:
    """The run as one JUnit test suite. A known failure (XFAIL) is a skipped test of type `known`; a regression is a
    failed test."""
    tests, root = list_tests(run, changes), ElementTree.Element("testsuites")
    counts = Counter(str(result.outcome) for result in tests)
    numbers = {
        "tests": len(tests),
        "failures": counts["FAIL"] + counts["XPASS"] + counts["FLAKY"],
        "errors": counts["CRASH"] + counts["TIMEOUT"],
        "skipped": counts["SKIP"] + counts["XFAIL"],
    }
    name, moment = f"conformance {run.title}", {"timestamp": run.started} if run.started else {}
    suite = _element(root, "testsuite", name=name, **numbers, time=f"{run.seconds:.3f}", **moment)
    for result in tests:
        names = {"classname": f"{result.family}.{result.variant}", "name": name_of(result)}
        case = _element(suite, "testcase", **names, time=f"{result.seconds:.3f}")
        if result.outcome in UNEXPECTED:
            tag = "error" if result.outcome in (Outcome.CRASH, Outcome.TIMEOUT) else "failure"
            shown = _element(case, tag, type=result.outcome, message=headline_of(result))
            shown.text = _xml(
                "\n\n".join(
                    f"{sentence(failure)}\n{failure}\n{failure.call}\n\n{failure.script}" for failure in result.failures
                )
            )
        elif result.outcome in (Outcome.SKIP, Outcome.XFAIL):
            kind = {"type": "known"} if result.outcome is Outcome.XFAIL else {}
            _element(case, "skipped", **kind, message=f"{result.outcome}: {result.reason}")
    ElementTree.indent(root, "")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _element(parent: ElementTree.Element, tag: str, **attributes: object) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, {name: _xml(str(value)) for name, value in attributes.items()})


def _xml(text: str) -> str:
    """The text with each character that XML cannot hold replaced."""
    return _NOT_XML.sub("\ufffd", text)


def list_tests(run: Run, changes: Diff | None = None) -> list[Result]:
    """The results, findings with the worst first, and one test for all programs without a finding. A result that fails
    the run only by a regression has the outcome FAIL, and a regression without a result is a test of its own."""
    worse: dict[str, list[Failure]] = {}
    for change in changes.worst if changes else ():
        worse.setdefault(change.id, []).append(Failure("baseline", change.kind, change.before, change.after))
    tests = [_regressed(result, worse.pop(result.id, [])) for result in _results(run)]
    gone = (Result(name, "", "baseline", "", Outcome.FAIL, failures=(*failures,)) for name, failures in worse.items())
    return [*tests, *gone, *_not_judged(run)]


def _not_judged(run: Run) -> list[Result]:
    """One test for all that was not judged, if anything was not: skipped, or failed under `--strict`."""
    outcome, name = Outcome.FAIL if run.strict else Outcome.SKIP, "all that was planned was judged"
    return [Result(name, "", "run", "", outcome, family="run", reason=run.shortfall)] if run.not_judged else []


def _regressed(result: Result, failures: Sequence[Failure]) -> Result:
    if not failures or result.outcome in UNEXPECTED:
        return result
    return result.replace(outcome=Outcome.FAIL, failures=(*failures, *result.failures))


def _failures(run: Run, changes: Diff | None) -> list[Result]:
    """The tests that fail the run, worst first, and the regressions behind the others."""
    known = {result.id for result in run.unexpected}
    regressed = (test for test in list_tests(run, changes) if test.outcome in UNEXPECTED and test.id not in known)
    return [*run.unexpected, *regressed]


def _results(run: Run) -> list[Result]:
    if not run.drawn:
        return run.results
    agree = run.drawn.compared - run.failing_programs - run.known_programs
    name, outcome = f"{counted(agree, run.program)} without a finding", Outcome.PASS if agree else Outcome.SKIP
    reason = "" if agree else f"no {run.program} was compared, or every one showed a finding"
    return [*run.cases, *run.findings, Result(name, "", "program", "", outcome, family="programs", reason=reason)]


def name_of(result: Result) -> str:
    """The name of a test."""
    return result.id if result.dtype or result.finding else result.op


# Outcomes in the Common Test Report Format. A known failure is "other". All outcomes not listed are "failed"; a pass on
# a rerun also has `flaky` set.
_CTRF = {Outcome.PASS: "passed", Outcome.SKIP: "skipped", Outcome.XFAIL: "other"}


def ctrf(run: Run, changes: Diff | None = None) -> str:
    """The run in the Common Test Report Format (ctrf.io), version 0.0.0; durations are in milliseconds. A regression is
    a failed test."""
    tests = [_ctrf_test(result) for result in list_tests(run, changes)]
    counts = {word: sum(test["status"] == word for test in tests) for word in ("passed", "failed", "skipped", "other")}
    start = milliseconds(run.started)
    summary = {"tests": len(tests), **counts, "pending": 0}
    summary |= {"start": start, "stop": start + round(run.seconds * 1000)}
    results = {"tool": {"name": "conformance"}, "summary": summary, "tests": tests}
    extra = {"target": run.target, "complete": run.complete, **run.environment}
    results["environment"] = {"appName": run.title, "extra": extra}
    return json.dumps({"reportFormat": "CTRF", "specVersion": "0.0.0", "results": results}) + "\n"


def _ctrf_test(result: Result) -> dict[str, Any]:
    test: dict[str, Any] = {"name": name_of(result), "status": _CTRF.get(result.outcome, "failed")}
    test |= {"duration": round(result.seconds * 1000), "rawStatus": str(result.outcome)}
    test["tags"] = [tag for tag in (result.family, result.dtype, result.variant, result.layout) if tag]
    if result.outcome is Outcome.FLAKY:
        test["flaky"] = True
    if result.outcome is not Outcome.PASS:
        test["message"] = escape_control_characters(headline_of(result) if result.failures else result.reason)
    if result.outcome in UNEXPECTED and result.failures:
        test["trace"] = escape_control_characters(result.failures[0].script)
    return test


def milliseconds(moment: str) -> int:
    """A run's start in milliseconds since 1970; 0 if it is unknown."""
    try:
        return round(datetime.datetime.fromisoformat(moment).timestamp() * 1000)
    except ValueError:
        return 0


def headline_of(result: Result) -> str:
    """The headline of a result, with what its script does alone."""
    mark = f" ({result.script_mark[:230]})" if result.script_mark else ""
    return headline(result)[:300] + mark


def markdown(run: Run, changes: Diff | None, fuzz: Run | None = None) -> str:
    """A GitHub job summary under 1 MiB, of cases, programs or both, with failures and changes first. `fuzz` is a
    campaign on the same target."""
    campaign = run if run.drawn else fuzz
    rows = [
        f"| `{code(name_of(result))}` | {result.outcome} | {', '.join(result.oracles)} | "
        f"{cell(headline_of(result))} |\n"
        for result in _failures(run, changes)
        if not result.finding
    ]
    text = rendered(
        "summary.md.j2",
        run=run,
        target=run.title,
        word=run.table.capitalize() or ("Conformance" if run.cases or not run.drawn else "Fuzzing"),
        summary=summary_line(run, changes.regressions if changes else 0),
        campaign=campaign,
        verdict=next((spoken.sentence for spoken in summary.verdicts(campaign) if spoken.half == "fuzz"), ""),
        listed=LISTED_FINDINGS,
        headline=headline,
        legend=legend(*(result.finding.title() for result in campaign.listed[:LISTED_FINDINGS] if result.finding))
        if campaign
        else "",
        heading=WITHOUT_BACKEND.capitalize(),
        excused=[result for result in run.cases if result.layer],
        counts=Counter(str(result.outcome) for result in run.cases),
        facts=summary.facts(run),
        not_judged=summary.shortfall(run, campaign if campaign is not run else None),
        changes=changes,
        failures=bool(rows),
        measured=run.errors[:LISTED_ERRORS],
        footprints=run.footprints[:LISTED_ERRORS],
        mebibytes=mebibytes,
        shown=shown,
    )
    sizes = itertools.accumulate((len(row.encode()) for row in rows), initial=len(text.encode()))
    fitting = sum(size <= SUMMARY_LIMIT for size in sizes) - 1
    left = len(rows) - fitting
    return text + "".join(rows[:fitting]) + (f"\n{left} more failures are in the HTML report.\n" if left else "")


def error_lines(run: Run, changes: Diff | None = None) -> list[str]:
    """`::error` lines, which GitHub shows as annotations of a job. GitHub keeps ten of them."""
    return [
        f"::error title={_command(escape_control_characters(name_of(result)), True)}::"
        + _command(escape_control_characters(headline_of(result)))
        for result in _failures(run, changes)[:10]
    ]


def _command(text: str, in_property: bool = False) -> str:
    escapes = {"%": "%25", "\r": "%0D", "\n": "%0A"} | ({":": "%3A", ",": "%2C"} if in_property else {})
    return "".join(escapes.get(character, character) for character in text)
