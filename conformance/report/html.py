"""The HTML report: one self-contained file without network access, for visual inspection.

Defines `render`, for a run of cases, of programs, or of both. The key insight: external text reaches the page in two
ways only: through jinja2's escaping, or as JSON with `<`, `>` and `&` escaped, which the script inserts as text. So no
external text can become markup. Rows are data, and the browser builds only the visible ones. This module must not
import torch.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from conformance.record import models
from conformance.record.accuracy import shown
from conformance.record.causes import causes_of
from conformance.record.footprint import mebibytes
from conformance.record.measurements import Measurements, Rise
from conformance.record.names import DTYPES, OPERATOR, REPROS, TEST_FILES, TRACE, UPSTREAM, VARIANTS
from conformance.record.program_stats import AXES, ProgramStats
from conformance.record.repro import VERDICTS
from conformance.record.result import UNEXPECTED, WITHOUT_BACKEND, Failure, Outcome, Result, Run, summary_line
from conformance.record.sentences import LAYOUTS, headline, legend, sentence
from conformance.record.shortfall import add_up
from conformance.report import summary
from conformance.report.compare import Diff, diff, kinds_of
from conformance.report.escape import escape_control_characters
from conformance.report.history import Trend
from conformance.report.rendering import rendered
from conformance.standalone.script import own_part

DETAIL_BUDGET = 3_000_000
"""Characters of failure details in one page. Beyond this budget, details have no scripts and no values."""
LISTED_CHANGES = 200
OPENED = 5
"""Number of findings that are open when the page loads, the worst first."""
LABELS = {
    Outcome.PASS: "agrees with {reference} in every sample",
    Outcome.FAIL: "differs from {reference}",
    Outcome.CRASH: "ended its process or ran out of memory",
    Outcome.TIMEOUT: "gave no answer in time",
    Outcome.XPASS: "declared to fail, but passed",
    Outcome.XFAIL: "known: fails as declared, or also without the backend",
    Outcome.FLAKY: "failed, then passed when run again",
    Outcome.SKIP: "could not be compared",
}
OF_REPROS = LABELS | {
    Outcome.PASS: "known bugs that do not show",
    Outcome.FAIL: "known bugs that show",
    Outcome.CRASH: "known bugs that end the process",
    Outcome.SKIP: "repros that the target cannot run",
}
"""The same for the repros of known bugs."""
OF_TESTS = LABELS | {
    Outcome.PASS: "tests that pass",
    Outcome.FAIL: "tests that fail",
    Outcome.SKIP: "tests that skip themselves on this device",
}
"""The same for PyTorch's own tests."""
LABELS_OF = {REPROS: OF_REPROS, UPSTREAM: OF_TESTS}


def embed(data: Any) -> str:
    """JSON that is safe inside a <script> element, whatever strings it holds."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


class _Names:
    """Numbers for strings, so that the page holds each string once, even if ten thousand rows share it."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


WHOLE = (OPERATOR, TRACE)
"""Commands that run one case again as the whole run."""


def page_data(run: Run, baseline: Run | None) -> dict[str, Any]:
    """The data of the page's script: rows by column, strings as numbers, and details of rows."""
    names, before = _Names(), {result.id: result for result in baseline.results} if baseline else {}
    order = {outcome: rank for rank, outcome in enumerate(Outcome)}
    results = sorted(run.cases, key=lambda result: (order[result.outcome], result.script_rank, result.id))
    measures, rows = [measure.name for measure in run.measures], []
    for r in results:
        texts = (r.name, r.family, r.dtype, r.variant, r.layout)
        counts = (r.samples, r.skipped, r.failed, r.arbitrated, r.tolerated)
        words = (names(", ".join(r.oracles)), names(r.remark))
        old = before[r.id].measurements if r.id in before and before[r.id].samples == r.samples else Measurements()
        measured = [[r.measurements.get(name), r.measurements.most.get(name), old.get(name)] for name in measures]
        rows.append([*map(names, texts), order[r.outcome], *counts, round(r.seconds * 1000), *words, measured])
    whole = run.table in WHOLE
    usual = f"conformance {run.table}" if run.table else "python -m conformance.opinfo_runner"
    again = run.command if whole else f"{usual} --target {run.target}"
    again += "".join(f" --tests {shlex.quote(path)}" for path in shlex.split(run.environment.get(TEST_FILES, "")))
    return {
        "rows": rows,
        "names": list(map(escape_control_characters, names.numbers)),
        "outcomes": [str(outcome) for outcome in Outcome],
        "details": _details(results),
        "command": escape_control_characters(again),
        "table": bool(run.table),
        "variants": run.table != UPSTREAM,
        "measures": [{**vars(measure), "watched": measure.rise is Rise.REGRESSION} for measure in run.measures],
        "whole": whole,
        "reference": escape_control_characters(run.reference),
    }


def _details(results: Sequence[Result]) -> dict[int, Any]:
    details: dict[int, Any] = {}
    left = DETAIL_BUDGET
    for number, result in enumerate(results):
        parts = result.measurements.parts
        if not result.failures and not parts:
            continue
        failures = [_failure(failure, left > 0) for failure in result.failures]
        left -= sum(len(str(failure)) for failure in failures)
        details[number] = {
            "failures": failures,
            "parts": _shown({name: list(part.items()) for name, part in parts.items()}),
        }
    return details


def _failure(failure: Failure, full: bool) -> dict[str, Any]:
    scripts, values = _shown(failure.script if full else "", 60_000), _shown(failure.values if full else (), 200)
    shown = {"sentence": sentence(failure), **vars(failure), "script": "", "values": ()}
    return {**_shown(shown), "script": scripts, "values": values}


def _shown(data: Any, most: int = 4_000) -> Any:
    """The data with control characters in its strings made visible, and each string cut to `most` characters."""
    if isinstance(data, str):
        return escape_control_characters(data)[:most]
    if isinstance(data, Mapping):
        return {key: _shown(value, most) for key, value in data.items()}
    return [_shown(value, most) for value in data] if isinstance(data, (list, tuple)) else data


def render(
    run: Run,
    baseline: Run | None = None,
    fuzz: Run | None = None,
    trends: Sequence[Trend] = (),
    difference: Diff | None = None,
    measured: Sequence[Result] = (),
) -> str:
    """The page for a run, with a baseline, a campaign on the same target, and earlier runs if given.

    `difference` is the comparison with the baseline, if it is computed already. `measured` are the cases with errors to
    list."""
    cases = dataclasses.replace(run, results=run.cases)
    counts, campaign = cases.counts(), run if run.drawn else fuzz
    difference = difference or (diff(baseline, run) if baseline else None)
    regressions = difference.regressions if difference else 0
    verdicts, numbers = summary.verdicts(run, fuzz, regressions=regressions), summary_line(run, regressions)
    labels = LABELS_OF.get(run.table, LABELS)
    title = [verdict.sentence for verdict in verdicts if verdict.half == "fuzz" and not verdict.good]
    return rendered(
        "report.html.j2",
        run=run,
        target=f"{run.cases[0].op} on {run.title}" if run.table == OPERATOR and run.cases else run.title,
        cases=bool(cases.results) or not run.drawn,
        whole=run.table in WHOLE,
        data=embed(page_data(run, baseline)),
        counts=[
            (str(o), counts[str(o)], labels[o].format(reference=run.reference))
            for o in reversed(Outcome)
            if counts[str(o)]
        ],
        total=len(cases.results),
        summary=numbers,
        title="; ".join([*([] if run.drawn and title else [numbers]), *title]),
        figures=list(summary.measured(cases)),
        arbitrated=sum(bool(result.arbitrated) for result in cases.results),
        tolerated=sum(bool(result.tolerated) for result in cases.results),
        excused=[result for result in cases.results if result.layer],
        without_backend=WITHOUT_BACKEND.capitalize(),
        scripts=[] if run.drawn else summary.scripts(run),
        heat=heat_map(cases.results),
        difference=difference,
        kinds_of=kinds_of,
        budgets=dict(sorted(run.budgets.items())),
        before=baseline.budgets if baseline else {},
        listed=LISTED_CHANGES,
        parts=_parts(cases),
        campaign=campaign,
        not_judged=add_up(row for each in (run, fuzz) if each for row in each.not_judged),
        fuzz=campaign_view(campaign) if campaign else None,
        models=campaign.models if campaign else (),
        models_said=models.sentence(campaign.models) if campaign else "",
        verdicts=verdicts,
        causes=causes_of(result for each in (run, fuzz) if each for result in each.results if _undeclared(result)),
        headline=headline,
        trends=trends,
        measured=measured,
        shown=shown,
        footprints=run.footprints,
        repros=run.repros,
        verdicts_on_bugs=VERDICTS,
        mebibytes=mebibytes,
    )


def _parts(run: Run) -> dict[str, list[tuple[str, int, int]]]:
    """(operator, count, cases) by the unit of each measure that is counted by operator, most cases first."""
    tables, counts = {}, run.measured.parts
    for measure in (measure for measure in run.measures if counts.get(measure.name)):
        cases = Counter(op for result in run.results for op in result.measurements.parts.get(measure.name, ()))
        rows = [(op, count, cases[op]) for op, count in counts[measure.name].items()]
        tables[measure.unit] = sorted(rows, key=lambda row: (-row[2], -row[1], row[0]))
    return tables


def heat_map(results: Iterable[Result]) -> dict[str, Any]:
    """Family x (dtype, variant, layout): the counts by outcome in each cell. A column label names the parts that vary
    in the run. Without a family, as of the checks of one operator, the map is empty."""
    results = [*results]
    if not any(result.family for result in results):
        results = []
    cells: dict[tuple[str, tuple[str, str, str]], Counter[str]] = {}
    for result in results:
        key = (result.family or "other", (result.dtype, result.variant, result.layout))
        cells.setdefault(key, Counter())[str(result.outcome)] += 1
    columns = sorted(
        {column for _, column in cells}, key=lambda c: (_rank(tuple(VARIANTS), c[1]), c[2], _rank(DTYPES, c[0]))
    )
    varied = [part for part in range(3) if len({column[part] for column in columns}) > 1] or [0]
    families = sorted({family for family, _ in cells})
    rows = [
        {
            "family": family,
            "cells": [_cell(family, column, cells.get((family, column), Counter())) for column in columns],
        }
        for family in families
    ]
    labels = [" ".join(column[part] for part in varied) or "no dtype" for column in columns]
    return {"columns": labels, "rows": rows, "narrow": len(columns) <= 2}


def _rank(order: Sequence[str], name: str) -> tuple[int, str]:
    return (order.index(name), name) if name in order else (len(order), name)


def _cell(family: str, column: tuple[str, str, str], counts: Counter[str]) -> dict[str, Any]:
    compared, passed = counts.total() - counts["SKIP"], counts["PASS"]
    # A few steps, not a continuous scale: a reader can compare equal colors.
    step = str(min(4, int(5 * passed / compared))) if compared else "none"
    keys = ("family", "dtype", "variant", "layout")
    return {
        "counts": counts,
        "total": counts.total(),
        "passed": passed,
        "step": "full" if compared and passed == compared else step,
        "words": ", ".join(f"{count} {word}" for word, count in counts.most_common()),
        "query": "&".join(f"{key}={quote(value, safe='')}" for key, value in zip(keys, (family, *column), strict=True)),
    }


def campaign_view(campaign: Run) -> dict[str, Any]:
    """A campaign's data for the page: facts, findings, reasons for programs and steps not run, and coverage."""
    drawn, stopped = campaign.drawn or ProgramStats(), campaign.stopped_at_inputs
    facts: dict[str, Any] = {
        "programs": f"{drawn.programs:,}",
        "failing programs": f"{campaign.failing_programs:,}",
        "programs that pass by float64": f"{drawn.arbitrated:,}",
        **({"programs that pass by a declared tolerance": f"{drawn.tolerated:,}"} if drawn.tolerated else {}),
        "steps": f"{drawn.steps:,}",
        "seed": ", ".join(map(str, drawn.seeds)),
        "seconds": f"{campaign.seconds:,.0f}",
    }
    for name, most in drawn.measured.most.items():
        facts[name] = f"{drawn.measured.counts[name]:,}"
        facts["torch CPU's ops and transfers"] = f"{most:,}"
        facts["programs compared with the baseline"] = f"{drawn.recorded:,}"
    return {
        "facts": facts,
        "findings": [result for result in campaign.listed if not result.layer],
        "causes": causes_of(result for result in campaign.listed if _undeclared(result)),
        "others": [result for result in campaign.listed if not (result.layer or _undeclared(result))],
        "of_torch": [result for result in campaign.listed if result.layer],
        "facts_below": [
            *summary.scripts(campaign),
            *summary.known(campaign),
            *summary.masked(campaign),
            *summary.not_shrunk(campaign),
        ],
        "at_inputs": summary.at_inputs(campaign, stopped) if stopped else "",
        "headline": headline,
        "opened": OPENED,
        "legend": legend,
        "own_part": own_part,
        "unexpected": UNEXPECTED,
        "not_run": {
            "Programs not run, since the target leaves out": Counter(drawn.unsupported).most_common(),
            "Steps drawn and not run, since": Counter(drawn.avoided).most_common(),
        },
        **_coverage(drawn),
    }


def _coverage(drawn: ProgramStats) -> dict[str, Any]:
    """Steps by family and layout class, and for each family by layout class and dtype. If the campaign names all rows
    and columns, the table has all of them, so that it shows cells that were never reached."""
    reached = [sorted({cell[part] for cell in drawn.cells}) for part in range(3)]
    known = [getattr(drawn, name) for name in AXES]
    families, layouts, dtypes = (tuple(dict.fromkeys((*a, *b))) for a, b in zip(known, reached, strict=True))
    by_layout: Counter[tuple[str, str]] = Counter()
    for (family, layout, _), count in drawn.cells.items():
        by_layout[family, layout] += count
    by_relation: Counter[tuple[str, str]] = Counter()
    for hazard, count in drawn.hazards.items():
        write, relation, *_ = (*hazard.split("|"), "")
        by_relation[write, relation] += count
    return {
        "named": all(known),
        "reached": len(drawn.cells),
        "called": drawn.called,
        "calls": len(drawn.entries),
        "changed": drawn.changed,
        "arguments": sorted(drawn.arguments.items()),
        "missed": [
            (noun, [name for name in names if name not in reached[part]])
            for part, (noun, names) in enumerate((("family", families), ("layout class", layouts), ("dtype", dtypes)))
        ],
        "layouts": layouts,
        "explained": LAYOUTS,
        "dtypes": dtypes,
        "families": families,
        "cells": drawn.cells,
        "by_layout": by_layout,
        "hazards": drawn.hazards,
        "writes": tuple(dict.fromkeys((*drawn.writes, *(write for write, _ in by_relation)))),
        "relations": tuple(dict.fromkeys((*drawn.relations, *(relation for _, relation in by_relation)))),
        "by_relation": by_relation,
        "step": _step,
    }


def _undeclared(result: Result) -> bool:
    """Whether a result is a failure that is not declared, does not come from PyTorch itself, and was seen in a case or
    program."""
    seen = result.outcome is not Outcome.XPASS and (result.finding is None or result.finding.count > 0)
    return result.outcome in UNEXPECTED and seen and not result.layer


def _step(count: int, counts: Mapping[Any, int]) -> int:
    """Color step of a count: 0 for none, else 1 to 4 on a logarithmic scale."""
    most = max(counts.values(), default=0).bit_length() - 1
    return 1 + int(3 * (count.bit_length() - 1) / max(most, 1)) if count else 0
