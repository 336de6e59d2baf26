"""Joining of runs: the shards of one op_db run, or several campaigns on one target.

Defines `merge`. An op case is in exactly one shard, so a duplicate is a mistake; a finding may be in several shards and
is still one finding. A shard without a file must be visible in the report.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Iterable

from conformance.record import missing_ops, models, program_stats
from conformance.record.errors import ReportError
from conformance.record.result import Outcome, Result, Run
from conformance.record.shortfall import add_up

_SHARD = re.compile(r"; shard (\d{1,4})/(\d{1,4})$")


def merge(runs: Iterable[Run]) -> Run:
    """Join the shards of one run, or several campaigns. A missing shard makes the run incomplete. A finding of several
    campaigns becomes one, with the shortest of its programs. Raises ReportError if the runs are of different targets or
    a case is in two of them."""
    runs = list(runs)
    if len({run.title for run in runs}) > 1:
        raise ReportError(f"runs of different targets cannot be merged: {', '.join(sorted({r.title for r in runs}))}.")
    results: dict[str, Result] = {}
    for run in runs:
        for result in run.results:
            if result.id not in results:
                results[result.id] = result
            elif result.variant == missing_ops.DECLARED:
                continue  # each shard reports a wrong declaration of the profile
            elif result.finding is None:
                raise ReportError(f"{result.id} is in two of the merged files; merge the shards of one run only.")
            else:
                results[result.id] = _joined(results[result.id], result)
    first = runs[0]
    # The selection that all shards together cover.
    whole = _SHARD.sub("", first.environment.get("selection", ""))
    shards = [match for run in runs if (match := _SHARD.search(run.environment.get("selection", "")))]
    count = int(shards[0][2]) if shards else 0
    missing = sorted({str(i + 1) for i in range(count)} - {match[1] for match in shards}, key=int)
    lost = [f"Shard {', '.join(missing)} of {count} is missing: its cases are not in this report."] if missing else []
    return dataclasses.replace(
        first,
        results=list(results.values()),
        environment={**first.environment, **({"selection": whole} if whole else {})},
        command=first.command if len({run.command for run in runs}) == 1 or not first.drawn else "",
        seconds=sum(run.seconds for run in runs),
        calibration=statistics.median(run.calibration for run in runs),
        complete=all(run.complete for run in runs) and not missing,
        interrupted=0,
        notes=lost + list(dict.fromkeys(note for run in runs for note in run.notes)),
        drawn=program_stats.join([run.drawn for run in runs if run.drawn]),
        measures=tuple(dict.fromkeys(measure for run in runs for measure in run.measures)),
        lacking=missing_ops.joined([run.lacking for run in runs]),
        models=models.merged([run.models for run in runs]),
        not_judged=add_up(row for run in runs for row in run.not_judged),
        strict=any(run.strict for run in runs),
        reference=" or ".join(dict.fromkeys(run.reference for run in runs)),
    )


def _joined(first: Result, second: Result) -> Result:
    """Join the same finding of two campaigns, with the worse of the two outcomes."""
    assert first.finding is not None and second.finding is not None  # op cases are never joined
    order, steps = list(Outcome), (first.finding.steps or 0, second.finding.steps or 0)
    least = first if steps[0] <= steps[1] else second
    worst = min(first, second, key=lambda result: order.index(result.outcome))
    firsts = [number for number in (first.finding.first, second.finding.first) if number is not None]
    named = {signature for part in (first.finding, second.finding) for signature in (part.signature, *part.signatures)}
    finding = dataclasses.replace(
        least.finding or first.finding,
        count=first.finding.count + second.finding.count,
        first=min(firsts, default=None),
        saved=tuple(dict.fromkeys((*first.finding.saved, *second.finding.saved))),
        signatures=tuple(sorted(named - {least.finding.signature if least.finding else ""})),
    )
    return least.replace(finding=finding, outcome=worst.outcome, reason=worst.reason, declared=worst.declared)
