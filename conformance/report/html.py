"""The HTML report: one self-contained file, no network, for looking at rather than reading.

Defines `render`, of a run of cases, of programs, or of both. The key insight: all text from outside
reaches the page either through jinja2's escaping or as JSON in which `<`, `>` and `&` are escapes, and the script puts
it on the page as text only; so nothing in it can become markup. Rows are data; the browser makes the few that are
looked at. This module must not import torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import jinja2

from conformance.core.drawn import AXES, Drawn
from conformance.core.result import BROKEN, UNEXPECTED, Failure, Outcome, Result, Run, counted, summary_line
from conformance.report import summary
from conformance.report.compare import KINDS, REGRESSIONS, Diff, diff
from conformance.report.escape import escape_control_characters
from conformance.report.history import Trend

DETAIL_BUDGET = 3_000_000
"""Characters of failure details in one page; scripts, then values, are left out once they are spent."""
LISTED_CHANGES = 200
WORDS = {
    Outcome.PASS: "agrees with torch CPU in every sample",
    Outcome.FAIL: "differs from torch CPU",
    Outcome.CRASH: "ended its process or ran out of memory",
    Outcome.TIMEOUT: "gave no answer in time",
    Outcome.XPASS: "declared to fail, but passed",
    Outcome.XFAIL: "fails as declared",
    Outcome.FLAKY: "failed, then passed when run again",
    Outcome.SKIP: "could not be compared",
}


def embed(data: Any) -> str:
    """JSON that is inert inside a <script> element, whatever strings it holds."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


class _Names:
    """Strings by number, so that a name that ten thousand rows share is in the page once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def page_data(run: Run, baseline: Run | None) -> dict[str, Any]:
    """What the page's script needs: rows by column, strings by number, details of the rows that have any."""
    names, before = _Names(), {result.id: result for result in baseline.results} if baseline else {}
    order = {outcome: rank for rank, outcome in enumerate(Outcome)}
    results = sorted(run.cases, key=lambda result: (order[result.outcome], result.id))
    rows = [
        [
            names(r.name),
            names(r.family),
            names(r.dtype),
            names(r.variant),
            names(r.layout),
            order[r.outcome],
            r.samples,
            r.skipped,
            r.failed,
            r.kernels,
            _kernels_before(before.get(r.id), r),
            r.eager,
            r.fallback,
            round(r.seconds * 1000),
            names(", ".join(r.oracles)),
            names(r.reason),
            r.arbitrated,
            r.host,
            *(getattr(r, name) for name in summary.COMPILED),
        ]
        for r in results
    ]
    return {
        "rows": rows,
        "names": list(map(escape_control_characters, names.numbers)),
        "outcomes": [str(outcome) for outcome in Outcome],
        "details": _details(results),
        "command": f"python -m conformance.opinfo_runner --target {escape_control_characters(run.target)}",
    }


def _kernels_before(old: Result | None, new: Result) -> int | None:
    """The baseline's kernel count, when it is for the same samples."""
    return old.kernels if old is not None and old.samples == new.samples else None


def _details(results: Sequence[Result]) -> dict[int, Any]:
    details: dict[int, Any] = {}
    left = DETAIL_BUDGET
    for number, result in enumerate(results):
        if not result.failures and not result.fallbacks and not result.hosts:
            continue
        failures = [_failure(failure, left) for failure in result.failures]
        details[number] = {
            "failures": failures,
            "fallbacks": [[escape_control_characters(k), v] for k, v in result.fallbacks.items()],
            "hosts": [[escape_control_characters(k), v] for k, v in result.hosts.items()],
        }
        details[number]["calls"] = [result.native, result.decomposed, result.fallback, result.host]
        left -= sum(len(str(failure)) for failure in failures)
    return details


def _failure(failure: Failure, left: int) -> dict[str, Any]:
    short = {
        name: escape_control_characters(getattr(failure, name))[:4_000]
        for name in ("oracle", "where", "expected", "actual", "detail", "call")
    }
    full = left > 0
    return {
        **short,
        "sample": failure.sample,
        "script": escape_control_characters(failure.script)[:60_000] if full else "",
        "values": [
            [
                escape_control_characters(i),
                escape_control_characters(a)[:200],
                escape_control_characters(b)[:200],
                int(bad),
            ]
            for i, a, b, bad in failure.values
        ]
        if full
        else [],
        "layouts": dict(failure.layouts),
    }


def render(
    run: Run,
    baseline: Run | None = None,
    fuzz: Run | None = None,
    trends: Sequence[Trend] = (),
    difference: Diff | None = None,
) -> str:
    """The page for a run, with a baseline, a campaign on its target that ran beside it, and earlier runs where given.
    `difference` is that to the baseline, where it is known already."""
    cases = dataclasses.replace(run, results=run.cases)
    counts, campaign = cases.counts(), run if run.drawn else fuzz
    verdicts = summary.verdicts(run, fuzz)
    title = [verdict.sentence for verdict in verdicts if verdict.half == "fuzz" and not verdict.good]
    return _page(
        "report.html.j2",
        run=run,
        cases=bool(cases.results) or not run.drawn,
        data=embed(page_data(run, baseline)),
        counts=[(str(o), counts[str(o)], WORDS[o]) for o in reversed(Outcome) if counts[str(o)]],
        total=len(cases.results),
        summary=summary_line(run),
        title="; ".join([*([] if run.drawn and title else [summary_line(run)]), *title]),
        plain=cases.passed_without_fallback(),
        host=cases.passed_on_host(),
        passed=counts["PASS"],
        over=_worse_than_eager(cases),
        arbitrated=sum(bool(result.arbitrated) for result in cases.results),
        compiled=summary.compiled(cases),
        heat=heat_map(cases.results),
        difference=difference or (diff(baseline, run) if baseline else None),
        kinds=KINDS,
        regressions=REGRESSIONS,
        budgets=_budgets(run, baseline),
        listed=LISTED_CHANGES,
        fallbacks=_fallbacks(run),
        campaign=campaign,
        fuzz=campaign_view(campaign) if campaign else None,
        verdicts=verdicts,
        trends=trends,
    )


def _page(template: str, **values: Any) -> str:
    loader = jinja2.PackageLoader("conformance.report")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: escape_control_characters(value) if type(value) is str else value,
    )

    def source(name: str) -> str:
        return loader.get_source(environment, name)[0]

    return environment.get_template(template).render(source=source, **values)


def _worse_than_eager(run: Run) -> int | None:
    """How many cases ran more kernels than torch CPU runs ops; None when kernels are not counted."""
    counted = [(r.kernels, r.eager) for r in run.results if r.kernels is not None and r.eager is not None]
    return sum(kernels > eager for kernels, eager in counted) if counted else None


def _budgets(run: Run, baseline: Run | None) -> list[tuple[str, dict[str, int], dict[str, int]]]:
    """(workload, counts now, counts in the baseline) for each workload that was counted."""
    before = baseline.budgets if baseline else {}
    return [(name, run.budgets[name], before.get(name, {})) for name in sorted(run.budgets)]


def _fallbacks(run: Run) -> list[tuple[str, int, int]]:
    """(op, calls, cases) for each op that ran on the CPU, most cases first."""
    cases: Counter[str] = Counter()
    for result in run.results:
        cases.update(result.fallbacks.keys())
    calls = run.fallbacks()
    return sorted(((name, calls[name], cases[name]) for name in calls), key=lambda row: (-row[2], -row[1], row[0]))


def heat_map(results: Iterable[Result]) -> dict[str, Any]:
    """Family x (dtype, variant, layout): for each cell the counts by outcome. Columns differ in what the run varied."""
    cells: dict[tuple[str, tuple[str, str, str]], Counter[str]] = {}
    for result in results:
        key = (result.family or "other", (result.dtype, result.variant, result.layout))
        cells.setdefault(key, Counter())[str(result.outcome)] += 1
    columns = sorted(
        {column for _, column in cells}, key=lambda c: (_rank(_VARIANTS, c[1]), c[2], _rank(_DTYPES, c[0]))
    )
    varied = [part for part in range(3) if len({column[part] for column in columns}) > 1] or [0]
    rows = []
    for family in sorted({family for family, _ in cells}):
        row = [_cell(family, column, cells.get((family, column), Counter())) for column in columns]
        total = sum((Counter(cell["counts"]) for cell in row), Counter())
        rows.append(
            {"family": family, "cells": row, "bad": sum(total[str(o)] for o in BROKEN), "total": sum(total.values())}
        )
    labels = [" ".join(column[part] for part in varied) for column in columns]
    return {"columns": labels, "rows": rows, "narrow": len(columns) <= 2}


_VARIANTS = ("forward", "method", "inplace", "out", "backward", "forward_over_backward", "error_inputs",
             "reference_inputs")  # fmt: skip
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")


def _rank(order: Sequence[str], name: str) -> tuple[int, str]:
    return (order.index(name), name) if name in order else (len(order), name)


def _cell(family: str, column: tuple[str, str, str], counts: Counter[str]) -> dict[str, Any]:
    total, passed = sum(counts.values()), counts["PASS"]
    bad = sum(counts[str(outcome)] for outcome in UNEXPECTED)
    compared = total - counts["SKIP"]
    share = passed / compared if compared else None
    words = ", ".join(f"{count} {word}" for word, count in counts.most_common())
    # Steps rather than a continuous scale: equal colours can be compared by eye.
    step = "none" if share is None else "full" if share == 1 else str(min(4, int(share * 5)))
    keys = ("family", "dtype", "variant", "layout")
    query = "&".join(f"{key}={_quoted(value)}" for key, value in zip(keys, (family, *column), strict=True))
    return {
        "counts": dict(counts),
        "total": total,
        "passed": passed,
        "bad": bad,
        "step": step,
        "words": words,
        "query": query,
    }


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def campaign_view(campaign: Run) -> dict[str, Any]:
    """What the page shows of a campaign: plain facts, findings, what was not run and why, and its coverage."""
    drawn, findings = campaign.drawn or Drawn(), campaign.findings
    facts: dict[str, Any] = {
        "programs": f"{drawn.programs:,}",
        "failing programs": f"{sum(result.finding.count for result in findings if result.finding):,}",
        "programs that pass by float64": f"{drawn.arbitrated:,}",
        "steps": f"{drawn.steps:,}",
        "seed": ", ".join(map(str, drawn.seeds)),
        "seconds": f"{campaign.seconds:,.0f}",
    }
    if drawn.kernels_allowed:
        facts["kernels"] = f"{drawn.kernels:,}"
        facts["torch CPU's ops and transfers"] = f"{drawn.kernels_allowed:,}"
        facts["programs compared with the baseline"] = f"{drawn.kernels_compared:,}"
    return {
        "facts": facts,
        "known": summary.known(campaign),
        "findings": findings,
        "distinct": counted(
            sum(bool(result.finding and result.finding.count) for result in findings), "distinct finding"
        ),
        "unexpected": UNEXPECTED,
        "not_run": [
            (title, sorted(reasons.items(), key=lambda reason: -reason[1]))
            for title, reasons in (
                ("Programs not run, since the target leaves out", drawn.unsupported),
                ("Steps drawn and not run, since", drawn.avoided),
            )
            if reasons
        ],
        **_coverage(drawn),
    }


def _coverage(drawn: Drawn) -> dict[str, Any]:
    """Steps by family and layout class, and for each family by layout class and dtype. Rows and columns are all that
    there are where the campaign names them, so that what was never reached is seen."""
    reached = [sorted({cell[part] for cell in drawn.cells}) for part in range(3)]
    known = [getattr(drawn, name) for name in AXES]
    families, layouts, dtypes = (tuple(dict.fromkeys((*a, *b))) for a, b in zip(known, reached, strict=True))
    by_layout: Counter[tuple[str, str]] = Counter()
    for (family, layout, _), count in drawn.cells.items():
        by_layout[family, layout] += count
    most, most_cell = max(by_layout.values(), default=0), max(drawn.cells.values(), default=0)
    return {
        "named": all(known),
        "reached": len(drawn.cells),
        "missed": [
            (noun, [name for name in names if name not in reached[part]])
            for part, (noun, names) in enumerate((("family", families), ("layout class", layouts), ("dtype", dtypes)))
        ],
        "layouts": layouts,
        "dtypes": dtypes,
        "rows": [(family, [_heat(by_layout[family, layout], most) for layout in layouts]) for family in families],
        "families": [
            (
                family,
                counted(sum(cell[0] == family for cell in drawn.cells), "cell"),
                [
                    (layout, [_heat(drawn.cells.get((family, layout, dtype), 0), most_cell) for dtype in dtypes])
                    for layout in layouts
                ],
            )
            for family in families
        ],
    }


def _heat(count: int, most: int) -> tuple[int, int]:
    """A count and its step: 0 for none, else 1 to 4 on a logarithmic scale."""
    return count, 1 + int(3 * (count.bit_length() - 1) / max(most.bit_length() - 1, 1)) if count else 0
