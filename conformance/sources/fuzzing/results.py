"""The findings of a campaign as results of the common model: a `Run` with findings and totals of drawing.

Defines `run_of`, `replayed`, `result_of` and `parts`. A campaign's findings are named by their causes. Findings of
saved programs are not shrunk, so they are named by their signatures: the cause of a long program is unknown.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.declare import profile as profiles
from conformance.engine.loading import describe_target
from conformance.engine.target import Target
from conformance.program.accesses import evidence_of
from conformance.program.calls import changes
from conformance.program.model import call_of
from conformance.program.steps import hazards
from conformance.program.steps.table import FAMILIES, OPS
from conformance.program.verdict import FURTHER
from conformance.record.finding import (
    CRASH,
    DRAWING,
    FAIL,
    FLAKY,
    HARNESS,
    INVALID,
    MEMORY,
    MOVE,
    STARTING,
    TIMEOUT,
    Finding,
    layer_and_part,
    shown_by,
)
from conformance.record.patterns import COMPILER_LAYERS, NOT_SHRUNK
from conformance.record.program_stats import AXES, ProgramStats
from conformance.record.result import UNEXPECTED, Failure, Outcome, Result, Run
from conformance.record.upstream import Evidence, known_as
from conformance.run.failing_program import FailingProgram
from conformance.run.smaller import SAME
from conformance.sources.fuzzing.drawing import CLASSES, DTYPES, VERSION, Tally
from conformance.sources.fuzzing.group import Group
from conformance.sources.fuzzing.plan import HANGS

if TYPE_CHECKING:
    from conformance.sources.fuzzing.campaign import Campaign

OUTCOMES = {FAIL: Outcome.FAIL, FLAKY: Outcome.FLAKY, CRASH: Outcome.CRASH, TIMEOUT: Outcome.TIMEOUT,
            MEMORY: Outcome.CRASH, INVALID: Outcome.FAIL}  # fmt: skip
DEATHS = {CRASH: "ended its process", TIMEOUT: "gave no answer in time", MEMORY: "took more memory than it may",
          FLAKY: "ended its process, once", INVALID: "a program without a meaning"}  # fmt: skip
TOGETHER = "only together"
PLACES = (MOVE, "the observation", "no step", STARTING, DRAWING, TOGETHER)
NAMES = (FAMILIES, CLASSES, tuple(dict.fromkeys(DTYPES)))
"""Families, layout classes and dtypes over which coverage is counted, whatever the campaign's options, so that the
report shows cells that were never drawn."""


TOTALS = {field.name for field in fields(ProgramStats)}
"""The totals of a run, of which a campaign counts most under the same names."""


def parts() -> dict[str, tuple[str, ...]]:
    """The names that the parts of a finding can have, for each part with a fixed set of names."""
    steps = (*OPS, *FAMILIES)
    return {
        "step": (*PLACES, *map(FURTHER.format, changes()), *steps, *(f"{TOGETHER}, up to {step}" for step in steps)),
        "layout": ("", *CLASSES),
        "kind": (FAIL, FLAKY, CRASH, TIMEOUT, MEMORY),
        "first_wrong_step": ("", *OPS),
    }


def result_of(finding: FailingProgram, script: str = "", **more: object) -> Result:
    """A finding as a result. `more` holds fields of the model's finding."""
    steps = finding.program.steps
    wrong = steps[finding.step - 1].op if finding.step and finding.step <= len(steps) else ""
    known: dict[str, Any] = {"first_wrong_step": wrong, "steps": len(steps), "number": finding.number, **more}
    known_finding = Finding(finding.group, finding.kind, **known)
    failures = [Failure(**vars(mismatch)) for mismatch in finding.differences]
    failures = failures or [
        Failure(known_finding.parts.oracle, finding.op or "the program", "an answer", _ended(finding))
    ]
    known_cause = known_finding.shrunk or finding.precise
    known_finding = replace(
        known_finding, pattern=finding.pattern if known_cause else NOT_SHRUNK.format(finding.property)
    )
    first = Failure(**{**vars(failures[0]), "script": script})
    parts = known_finding.parts
    op = known_finding.op or wrong or parts.op or parts.oracle
    family = OPS[op].family if op in OPS else "programs"
    outcome, shown = OUTCOMES.get(finding.kind, Outcome.FAIL), (first, *failures[1:])
    reason = _suspect(finding) if finding.kind == FLAKY else ""
    return Result(
        op, "", "program", parts.layout, outcome, family=family, reason=reason, failures=shown, finding=known_finding
    )


def _ended(finding: FailingProgram) -> str:
    """How the process ended, for a finding without mismatches."""
    return finding.said or DEATHS.get(finding.kind, "none")


def _suspect(finding: FailingProgram) -> str:
    """The reason of a FLAKY failure, with the program that may have caused it."""
    if finding.before is None:
        return "it failed once, and not when it was run again"
    return (
        f"it failed once, and not when it was run again: program {finding.before}, which its worker had run before it, "
        "may have spoilt the process"
    )


def run_of(campaign: Campaign, interrupted: int = 0) -> Run:
    """A campaign's results and totals. `interrupted` is the number of the signal that ended it."""
    plan, done = campaign.plan, campaign.result
    corpus = tuple(Path(path).stem for path in plan.corpus)
    options = shlex.join(plan.options)
    totals: dict[str, Any] = {name: count for name, count in vars(done).items() if name in TOTALS}
    totals |= {name: dict(counts) for name, counts in totals.items() if isinstance(counts, Counter)}
    totals |= {name: dict(getattr(done, name).most_common()) for name in ("unsupported", "avoided")}
    drawn = ProgramStats(
        **{**totals, "seeds": (plan.seed,), "programs": done.done, "options": options, "corpus": corpus},
        unwanted=len(campaign.unwanted),
        writes=hazards.ACCESSES if done.hazards else (),
        relations=hazards.RELATIONS if done.hazards else (),
        **({} if plan.listed is not None else dict(zip(AXES, map(tuple, NAMES), strict=True))),  # type: ignore[arg-type]
    )
    limit = f"{plan.programs} programs" if plan.programs is not None else f"{plan.minutes:g} minutes"
    words = [f"seed {plan.seed}", limit, f"corpus {len(corpus)}" if corpus else "", options]
    words += ["shard {}/{}".format(*plan.part)] if plan.part != (1, 1) else []
    drawn_by = {} if plan.listed is not None else {"drawing": f"version {VERSION}"}
    return Run(
        plan.target,
        [_result(campaign, group, corpus) for group in campaign.distinct()],
        {**campaign.environment, **drawn_by, "selection": "; ".join(filter(None, words))},
        plan.command,
        seconds=round(campaign.running_seconds, 2),
        complete=not interrupted,
        interrupted=interrupted,
        notes=[
            f"{op} hung in {count} programs; after {HANGS} of them its kernels had no more time than the program"
            for op, count in campaign.hang.items()
        ],
        drawn=drawn,
        identity=profiles.identity(plan.target),
        not_judged=[] if interrupted else campaign.shortfalls(),
    )


def with_counts(campaign: Campaign, run: Run) -> Run:
    """The run with three numbers of programs: failing programs, programs with known findings only, and programs with
    steps that known findings mask."""
    groups = {group.title: group for group in campaign.distinct()}
    failing, known, masked = set[int](), set[int](), set[int]()
    for result in run.results:
        group = groups.get(result.finding.title()) if result.finding else None
        if group is not None and result.outcome is Outcome.XFAIL:
            known |= group.numbers
            masked |= group.masked
        elif group is not None and result.outcome in UNEXPECTED:
            failing |= group.numbers
    if run.drawn is None:
        return run
    drawn = replace(run.drawn, failing=len(failing), known=len(known - failing), masked=len(masked))
    return replace(run, drawn=drawn)


def _result(campaign: Campaign, group: Group, corpus: tuple[str, ...]) -> Result:
    saved = tuple(corpus[number] for number in sorted(group.numbers) if number < 0)
    plan_target = describe_target(campaign.plan.target)
    result = result_of(
        group.finding,
        campaign.script(group),
        count=len(group.numbers),
        first=min((number for number in group.numbers if number >= 0), default=None),
        saved=saved,
        elsewhere=dict(group.elsewhere),
        property=group.finding.property,
        op=group.finding.op,
        shrunk=group.shrunk or group.finding.kind in (INVALID, HARNESS),
        masked=len(group.masked),
        layer=group.finding.layer,
        culprit=group.finding.culprit,
        upstream=upstream_of(group.finding, plan_target) if group.shrunk else "",
        signatures=tuple(sorted(group.found_as - {group.finding.group})),
    )
    layers = plan_target.facts.without_backend
    layer = next((spec for spec in layers if group.elsewhere.get(spec, "").startswith(SAME)), "")
    layer = layer if group.finding.layer or group.finding.kind in (CRASH, TIMEOUT) else ""
    return result.without_backend(layer, campaign.plan.fail_on_torch_bugs) if layer else result


MOST_STEPS = 8
"""Largest number of steps of a program that can be a reported bug. A longer one has the operators of many bugs."""


def evidence(finding: FailingProgram, target: Target) -> Evidence | None:
    """The evidence that decides whether a finding is a reported bug of PyTorch; None if its cause is unknown, or lies
    in no part of PyTorch, or if its program is long. A program that ended its process is not run."""
    layer, part = layer_and_part(finding.culprit)
    layer = layer if layer in COMPILER_LAYERS else target.facts.of_pytorch
    if not (layer and finding.property and finding.program.inputs) or len(finding.program.steps) > MOST_STEPS:
        return None
    runs = finding.kind in (FAIL, FLAKY)
    wrong = call_of(finding.program, len(finding.program.calls))  # the calls behind the wrong one are removed
    result = evidence_of(wrong, finding.property, layer, part, runs=runs)
    first = finding.mismatches[0] if finding.mismatches else None
    seen = shown_by(first) if first else ""
    return replace(result, symptom=seen)


def upstream_of(finding: FailingProgram, target: Target) -> str:
    """The names of the reported bugs that a finding is, or that the index has none; "" without evidence."""
    known = evidence(finding, target)
    return known_as(known) if known is not None else ""


def replayed(
    spec: str, findings: Sequence[tuple[FailingProgram, str]], programs: Sequence[str], unsupported: int
) -> Run:
    """The run of saved programs: each finding with its program's name, the names of all programs, and the number of
    programs that the target does not support."""
    results: dict[str, Result] = {}
    for finding, name in findings:
        result = result_of(finding, saved=(name,))
        known = results.get(result.id)
        if known and known.finding:
            more = replace(known.finding, count=known.finding.count + 1, saved=(*known.finding.saved, name))
            result = known.replace(finding=more)
        results[result.id] = result
    left = {"the target leaves it out": unsupported} if unsupported else {}
    drawn = ProgramStats(programs=len(programs), corpus=tuple(programs), unsupported=left)
    return Run(spec, list(results.values()), drawn=drawn)


def undefined(tally: Tally) -> int:
    """Number of drawn steps that were rejected before they ran, because torch refuses them or does not define their
    result. Draws for which no tensor fits do not count."""
    return sum(count for reason, count in tally.avoided.items() if not reason.startswith("nothing fits"))
