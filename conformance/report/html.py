"""The HTML report: one self-contained file, no network, for looking at rather than reading.

Defines `render`. The key insight: all text from outside reaches the page either through jinja2's escaping or as JSON in
which `<`, `>` and `&` are escapes, and the script puts it on the page as text only; so nothing in it can become markup.
Rows are data; the browser makes the few that are looked at. This module must not import torch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from conformance.report.compare import KINDS, REGRESSIONS, Diff, diff
from conformance.report.foreign import visible
from conformance.report.history import Trend
from conformance.report.model import BROKEN, UNEXPECTED, Failure, Outcome, ReportError, Result, Run, summary_line

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
    results = sorted(run.results, key=lambda result: (order[result.outcome], result.id))
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
        ]
        for r in results
    ]
    return {
        "rows": rows,
        "names": list(map(visible, names.numbers)),
        "outcomes": [str(outcome) for outcome in Outcome],
        "details": _details(results),
        "command": f"python -m conformance.opinfo_runner --target {visible(run.target)}",
    }


def _kernels_before(old: Result | None, new: Result) -> int | None:
    """The baseline's kernel count, when it is for the same samples."""
    return old.kernels if old is not None and old.samples == new.samples else None


def _details(results: Sequence[Result]) -> dict[int, Any]:
    details: dict[int, Any] = {}
    left = DETAIL_BUDGET
    for number, result in enumerate(results):
        if not result.failures and not result.fallbacks:
            continue
        failures = [_failure(failure, left) for failure in result.failures]
        details[number] = {"failures": failures, "fallbacks": [[visible(k), v] for k, v in result.fallbacks.items()]}
        details[number]["calls"] = [result.native, result.decomposed, result.fallback]
        left -= sum(len(str(failure)) for failure in failures)
    return details


def _failure(failure: Failure, left: int) -> dict[str, Any]:
    short = {
        name: visible(getattr(failure, name))[:4_000]
        for name in ("oracle", "where", "expected", "actual", "detail", "call")
    }
    full = left > 0
    return {
        **short,
        "sample": failure.sample,
        "script": visible(failure.script)[:60_000] if full else "",
        "values": [[visible(i), visible(a)[:200], visible(b)[:200], int(bad)] for i, a, b, bad in failure.values]
        if full
        else [],
        "layouts": dict(failure.layouts),
    }


def render(
    run: Run,
    baseline: Run | None = None,
    fuzz: Mapping[str, Any] | None = None,
    trends: Sequence[Trend] = (),
    difference: Diff | None = None,
) -> str:
    """The page for a run, with a baseline, a fuzz campaign's results and earlier runs where given. `difference` is that
    to the baseline, where it is known already."""
    loader = jinja2.PackageLoader("conformance.report")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )

    counts = run.counts()

    def source(name: str) -> str:
        return loader.get_source(environment, name)[0]

    return environment.get_template("report.html.j2").render(
        run=run,
        style=source("report.css"),
        script=source("report.js"),
        data=embed(page_data(run, baseline)),
        counts=[(str(o), counts[str(o)], WORDS[o]) for o in reversed(Outcome) if counts[str(o)]],
        total=len(run.results),
        summary=summary_line(run),
        plain=run.passed_without_fallback(),
        passed=counts["PASS"],
        over=_worse_than_eager(run),
        arbitrated=sum(bool(result.arbitrated) for result in run.results),
        heat=heat_map(run.results),
        difference=difference or (diff(baseline, run) if baseline else None),
        kinds=KINDS,
        regressions=REGRESSIONS,
        budgets=_budgets(run, baseline),
        listed=LISTED_CHANGES,
        fallbacks=_fallbacks(run),
        fuzz=fuzz_view(fuzz),
        verdict=_verdict(run),
        trends=trends,
    )


def _verdict(run: Run) -> tuple[str, str]:
    """A class and a sentence: what a reader wants to know first."""
    bad = sum(result.outcome in UNEXPECTED for result in run.results)
    if not run.compared:
        return "bad", "Nothing was compared."
    if not run.complete:
        return "bad", f"The run was interrupted after {len(run.results)} cases."
    if bad:
        return "bad", f"{bad:,} of {len(run.results):,} cases do not do what torch CPU does."
    return "good", f"All {run.counts()['PASS']:,} cases that were compared do what torch CPU does, or fail as declared."


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
    total, passed = sum(counts.values()), counts["PASS"] + counts["FLAKY"]
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


def load_fuzz(path: Path) -> dict[str, Any] | None:
    """A fuzz campaign's results, None when there are none. Raises ReportError for a damaged file."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} cannot be read ({error}); remove it or run the fuzzer again.") from None
    if not isinstance(data, dict):
        raise ReportError(f"{path} is not a fuzz result; remove it or run the fuzzer again.")
    return data


def fuzz_view(data: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the page shows of a fuzz campaign: plain facts, findings, and a coverage table when there is one."""
    if data is None:
        return None
    findings = [item for item in _list(data.get("findings", data.get("failures"))) if isinstance(item, Mapping)]
    facts = [
        (key, str(value))
        for key, value in data.items()
        if isinstance(value, (str, int, float)) and key not in ("schema", "kind")
    ]
    return {"facts": facts, "findings": [_finding(item) for item in findings], **_coverage(data)}


def _coverage(data: Mapping[str, Any]) -> dict[str, Any]:
    """Steps drawn by family and layout class, and where known one table a family by layout class and dtype."""
    cells = {family: {layout: _counts(dtypes) for layout, dtypes in _mapping(layouts).items()}
             for family, layouts in _mapping(data.get("cells")).items()}
    rows = {family: {layout: sum(dtypes.values()) for layout, dtypes in layouts.items()}
            for family, layouts in cells.items()} or {
        family: _counts(layouts) for family, layouts in _mapping(data.get("coverage")).items()}
    columns = sorted({layout for row in rows.values() for layout in row})
    dtypes = sorted({dtype for layouts in cells.values() for row in layouts.values() for dtype in row})
    most = max((count for row in rows.values() for count in row.values()), default=0)
    most_cell = max((count for layouts in cells.values() for row in layouts.values() for count in row.values()),
                    default=0)
    families = [
        {"name": family, "reached": sum(len(row) for row in layouts.values()), "all": len(columns) * len(dtypes),
         "rows": [(layout, [_heat(layouts.get(layout, {}).get(dtype, 0), most_cell) for dtype in dtypes])
                  for layout in columns]}
        for family, layouts in sorted(cells.items())]
    return {
        "columns": columns,
        "rows": [(name, [_heat(row.get(column, 0), most) for column in columns]) for name, row in sorted(rows.items())],
        "dtypes": dtypes, "families": families,
    }


def _mapping(value: Any) -> dict[str, Any]:
    return {str(key): part for key, part in value.items()} if isinstance(value, Mapping) else {}


def _counts(value: Any) -> dict[str, int]:
    return {key: count for key, count in _mapping(value).items() if isinstance(count, int)}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _heat(count: Any, most: int) -> tuple[int, int]:
    """A count and its step, 0 to 4, on a logarithmic scale."""
    number = count if isinstance(count, int) else 0
    return number, 0 if not number or not most else 1 + int(
        3 * (number.bit_length() - 1) / max(most.bit_length() - 1, 1)
    )


def _finding(item: Mapping[str, Any]) -> dict[str, Any]:
    title = item.get("signature") or item.get("title") or item.get("oracle") or "finding"
    if isinstance(title, (list, tuple)):
        title = " · ".join(map(str, title))
    elif isinstance(title, Mapping):
        title = " · ".join(map(str, title.values()))
    facts = {
        key: str(value)
        for key, value in item.items()
        if isinstance(value, (str, int, float)) and key not in ("script", "signature", "title")
    }
    return {"title": str(title), "facts": facts, "script": str(item.get("script", ""))}
