"""A run for CI: JUnit XML, CTRF JSON, a GitHub job summary in Markdown, and GitHub's error annotations.

The key insight: what a target prints in an exception is untrusted text; each form escapes it by its own rules, and
drops characters that the form cannot hold at all.
"""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from conformance.core.result import UNEXPECTED, Outcome, Result, Run, counted, summary_line
from conformance.report import summary
from conformance.report.compare import KINDS, Diff
from conformance.report.escape import escape_control_characters

SUMMARY_LIMIT = 1_000_000
"""GitHub refuses a job summary of more than 1 MiB."""
LISTED_FINDINGS = 100
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(run: Run) -> str:
    """The run as one JUnit test suite; XFAIL and SKIP are skipped tests with their reason."""
    tests = _tests(run)
    counts = Counter(str(result.outcome) for result in tests)
    failed, errors = counts["FAIL"] + counts["XPASS"] + counts["FLAKY"], counts["CRASH"] + counts["TIMEOUT"]
    head = (
        f'<testsuite name={_attribute(f"conformance {run.target}")} tests="{len(tests)}" failures="{failed}" '
        f'errors="{errors}" skipped="{counts["SKIP"] + counts["XFAIL"]}" time="{run.seconds:.3f}" '
        f"timestamp={_attribute(run.started)}>"
    )
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            "<testsuites>",
            head,
            *map(_case, tests),
            "</testsuite>",
            "</testsuites>",
            "",
        ]
    )


def _tests(run: Run) -> list[Result]:
    """The results, worst first where they are findings; and one test for all programs that showed no finding."""
    if not run.drawn:
        return run.results
    agree = run.drawn.compared - sum(result.finding.count for result in run.findings if result.finding)
    name, outcome = f"{counted(agree, 'drawn program')} without a finding", Outcome.PASS if agree else Outcome.SKIP
    reason = "" if agree else "no drawn program was compared, or every one showed a finding"
    return [*run.cases, *run.findings, Result(name, "", "program", "", outcome, family="programs", reason=reason)]


def _name(result: Result) -> str:
    return result.id if result.dtype or result.finding else result.op


def _case(result: Result) -> str:
    start = f"<testcase classname={_attribute(f'{result.family}.{result.variant}')} name={_attribute(_name(result))} "
    start += f'time="{result.seconds:.3f}"'
    if result.outcome in UNEXPECTED:
        tag = "error" if result.outcome in (Outcome.CRASH, Outcome.TIMEOUT) else "failure"
        body = "\n\n".join(f"{_finding(failure)}\n{failure.call}\n\n{failure.script}" for failure in result.failures)
        message = _attribute(_headline(result))
        return f"{start}><{tag} type={_attribute(result.outcome)} message={message}>{_xml(body)}</{tag}></testcase>"
    if result.outcome in (Outcome.SKIP, Outcome.XFAIL):
        return f"{start}><skipped message={_attribute(f'{result.outcome}: {result.reason}')}/></testcase>"
    return f"{start}/>"


# Outcomes in the words of the Common Test Report Format; all others have failed, a pass on a rerun with `flaky` set.
_CTRF = {Outcome.PASS: "passed", Outcome.SKIP: "skipped", Outcome.XFAIL: "skipped"}


def ctrf(run: Run) -> str:
    """The run in the Common Test Report Format (ctrf.io), version 0.0.0; durations are in milliseconds."""
    tests = [_ctrf_test(result) for result in _tests(run)]
    counts = {word: sum(test["status"] == word for test in tests) for word in ("passed", "failed", "skipped")}
    start = _milliseconds(run.started)
    summary = {"tests": len(tests), **counts, "pending": 0, "other": 0}
    summary |= {"start": start, "stop": start + round(run.seconds * 1000)}
    results = {"tool": {"name": "conformance"}, "summary": summary, "tests": tests}
    extra = {"target": run.target, "complete": run.complete, **run.environment}
    results["environment"] = {"appName": run.target, "extra": extra}
    return json.dumps({"reportFormat": "CTRF", "specVersion": "0.0.0", "results": results}) + "\n"


def _ctrf_test(result: Result) -> dict[str, Any]:
    test: dict[str, Any] = {"name": _name(result), "status": _CTRF.get(result.outcome, "failed")}
    test |= {"duration": round(result.seconds * 1000), "rawStatus": str(result.outcome)}
    test["tags"] = [tag for tag in (result.family, result.dtype, result.variant, result.layout) if tag]
    if result.outcome is Outcome.FLAKY:
        test["flaky"] = True
    if result.outcome is not Outcome.PASS:
        test["message"] = escape_control_characters(_headline(result) if result.failures else result.reason)
    if result.outcome in UNEXPECTED and result.failures:
        test["trace"] = escape_control_characters(result.failures[0].script)
    return test


def _milliseconds(moment: str) -> int:
    """A run's start in milliseconds since 1970, 0 when it is not known."""
    try:
        return round(datetime.datetime.fromisoformat(moment).timestamp() * 1000)
    except ValueError:
        return 0


def _finding(failure: object) -> str:
    oracle, where, expected, actual, detail = (
        getattr(failure, name) for name in ("oracle", "where", "expected", "actual", "detail")
    )
    return f"{oracle} of {where}: expected {expected}, got {actual}" + (f" ({detail})" if detail else "")


def _headline(result: Result) -> str:
    return _finding(result.failures[0])[:300] if result.failures else f"{result.outcome}: {result.reason}"


def _xml(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))


def _attribute(text: str) -> str:
    return quoteattr(_NOT_XML.sub("\ufffd", text), {"\n": "&#10;"})


def markdown(run: Run, changes: Diff | None, fuzz: Run | None = None) -> str:
    """A GitHub job summary under 1 MiB, of cases, programs or both: what fails, changes and failures first. `fuzz` is a
    campaign on the same target."""
    counts, campaign = Counter(str(result.outcome) for result in run.cases), run if run.drawn else fuzz
    word = "Conformance" if run.cases or not run.drawn else "Fuzzing"
    lines = [f"## {word} of `{_code(run.target)}`", "", f"**{summary_line(run)}**", ""]
    if not run.complete:
        lines += ["The run was interrupted; these are the results so far.", ""]
    if run.exit_code() == 2:
        lines += ["**Nothing was compared.**", ""]
    for note in run.notes:
        lines += [_cell(note), ""]
    lines += _findings(campaign) if campaign else []
    if counts:
        lines += [*_row(counts), "|" + " --- |" * len(counts), *_row(map(str, counts.values())), ""]
    lines += [line for fact in summary.facts(run) for line in (f"{_cell(fact)}.", "")]
    if changes is not None:
        lines += ["### Changes since the baseline", ""]
        lines += [f"- {kind}: {changes.count(kind)}" for kind in KINDS if changes.count(kind)] or ["No changes."]
        lines += [""]
    bad = [result for result in run.unexpected if not result.finding]
    if bad:
        lines += ["### Failures", "", "| case | outcome | oracles | first mismatch |", "| --- | --- | --- | --- |"]
    size = sum(map(len, lines))
    for position, result in enumerate(bad):
        row = f"| `{_code(result.id)}` | {result.outcome} | {', '.join(result.oracles)} | {_cell(_headline(result))} |"
        size += len(row.encode()) + 1
        if size > SUMMARY_LIMIT:
            lines.append(f"\n{len(bad) - position} more failures are in the HTML report.")
            break
        lines.append(row)
    return "\n".join(lines) + "\n"


def _findings(campaign: Run) -> list[str]:
    """The verdict on a campaign and its findings, worst first."""
    (verdict,) = [verdict for verdict in summary.verdicts(campaign) if verdict.half == "fuzz"]
    lines, found = [f"**Fuzzing: {_cell(verdict.sentence)}**", ""], campaign.findings
    if found:
        lines += ["| finding | kind | programs | elsewhere |", "| --- | --- | --- | --- |"]
    for result in found[:LISTED_FINDINGS]:
        finding = result.finding
        assert finding is not None  # it is among the findings
        elsewhere = "; ".join(f"{target}: {answer}" for target, answer in finding.elsewhere.items())
        kind = f"{finding.kind}, known: {result.reason}" if result.outcome is Outcome.XFAIL else finding.kind
        lines += _row(_cell(text[:300]) for text in (finding.signature, kind, str(finding.count), elsewhere))
    if len(found) > LISTED_FINDINGS:
        lines.append(f"\n{len(found) - LISTED_FINDINGS} more findings are in fuzz.json.")
    return [*lines, ""] if found else lines


def _row(cells: Iterable[str]) -> list[str]:
    return [f"| {' | '.join(cells)} |"]


def _code(text: str) -> str:
    return re.sub(r"[`|<>\x00-\x1f\x7f]", " ", text)


def _cell(text: str) -> str:
    """Text in a Markdown table cell: nothing in it is markup, a link or a mention."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text)
    return re.sub(r"([\\`*_{}\[\]()<>#+!|@~$&-])", lambda match: f"&#{ord(match[1])};", text)


def error_lines(run: Run, limit: int = 10) -> list[str]:
    """`::error` lines that GitHub shows beside a job; it keeps ten of them."""
    return [
        f"::error title={_command(escape_control_characters(result.id), True)}::"
        + _command(escape_control_characters(_headline(result)))
        for result in run.unexpected[:limit]
    ]


def _command(text: str, in_property: bool = False) -> str:
    escapes = {"%": "%25", "\r": "%0D", "\n": "%0A"} | ({":": "%3A", ",": "%2C"} if in_property else {})
    return "".join(escapes.get(character, character) for character in text)
