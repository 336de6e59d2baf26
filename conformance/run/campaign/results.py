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
from conformance.declare.tolerances import unneeded
from conformance.engine.loading import describe_target
from conformance.engine.target import Target
from conformance.program.accesses import evidence_of
from conformance.program.calls import changes
from conformance.program.model import call_of
from conformance.program.steps import hazards
from conformance.program.steps.layouts import CLASSES
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
    ON_CPU,
    STARTING,
    TIMEOUT,
    Finding,
    layer_and_part,
    shown_by,
)
from conformance.record.patterns import COMPILER_LAYERS
from conformance.record.program_stats import ProgramStats
from conformance.record.result import UNEXPECTED, Failure, Outcome, Result, Run
from conformance.record.upstream import Evidence, known_as
from conformance.run.campaign.drawing_counts import Tally
from conformance.run.campaign.plan import HANGS
from conformance.run.failing_program import FailingProgram
from conformance.run.shrink_program import SAME

if TYPE_CHECKING:
    from conformance.run.campaign.campaign import Campaign

OUTCOMES = {FAIL: Outcome.FAIL, FLAKY: Outcome.FLAKY, CRASH: Outcome.CRASH, TIMEOUT: Outcome.TIMEOUT,
            MEMORY: Outcome.CRASH, INVALID: Outcome.FAIL}  # fmt: skip
DEATHS = {CRASH: "ended its process", TIMEOUT: "gave no answer in time", MEMORY: "took more memory than it may",
          FLAKY: "ended its process, once", INVALID: "a program without a meaning"}  # fmt: skip
TOGETHER = "only together"
PLACES = (MOVE, "the observation", "no step", STARTING, DRAWING, ON_CPU, TOGETHER)

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


def result_of(finding: FailingProgram, script: str = "") -> Result:
    """A finding as a result."""
    parts, mismatches = finding.parts, finding.differences
    ending = Failure(parts.oracle, finding.op or "the program", "an answer", _ended(finding))
    first, *others = [Failure(**vars(mismatch)) for mismatch in mismatches] or [ending]
    op = finding.op or finding.first_wrong_step or parts.op or parts.oracle
    return Result(
        op,
        "",
        "program",
        parts.layout,
        OUTCOMES.get(finding.kind, Outcome.FAIL),
        family=OPS[op].family if op in OPS else "programs",
        reason=_suspect(finding) if finding.kind == FLAKY else "",
        failures=(replace(first, script=script), *others),
        finding=finding,
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
        unwanted=len(campaign.order.unwanted),
        smaller=campaign.tried,
        shrinking=round(campaign.shrinking, 1),
        writes=hazards.ACCESSES if done.hazards else (),
        relations=hazards.RELATIONS if done.hazards else (),
        **plan.numbered.axes,  # type: ignore[arg-type]
    )
    limit = f"{plan.programs} programs" if plan.programs is not None else f"{plan.minutes:g} minutes"
    words = [f"seed {plan.seed}", limit, f"corpus {len(corpus)}" if corpus else "", options]
    words += ["shard {}/{}".format(*plan.part)] if plan.part != (1, 1) else []
    return Run(
        plan.target,
        [_result(campaign, finding, corpus) for finding in campaign.findings.distinct()],
        {**campaign.findings.environment, **plan.numbered.environment(), "selection": "; ".join(filter(None, words))},
        plan.command,
        seconds=round(campaign.running_seconds, 2),
        complete=not interrupted,
        interrupted=interrupted,
        notes=[
            f"{op} hung in {count} programs; after {HANGS} of them its kernels had no more time than the program"
            for op, count in campaign.hang.items()
        ]
        + [
            unneeded(tolerance, done.covered[str(place)], "program")
            for place, tolerance in enumerate(campaign.facts.tolerances)
            if done.covered[str(place)] and not done.needed[str(place)]
        ],
        drawn=drawn,
        identity=profiles.identity(plan.target),
        not_judged=[] if interrupted else campaign.shortfalls(),
    )


def with_counts(run: Run) -> Run:
    """The run with three numbers of programs: failing programs, programs with known findings only, and programs with
    steps that known findings mask."""
    failing, known, masked = set[int](), set[int](), set[int]()
    for result in run.results:
        finding = result.finding
        if isinstance(finding, FailingProgram) and result.outcome is Outcome.XFAIL:
            known |= finding.numbers
            masked |= finding.masking
        elif isinstance(finding, FailingProgram) and result.outcome in UNEXPECTED:
            failing |= finding.numbers
    if run.drawn is None:
        return run
    drawn = replace(run.drawn, failing=len(failing), known=len(known - failing), masked=len(masked))
    return replace(run, drawn=drawn)


def _result(campaign: Campaign, finding: FailingProgram, corpus: tuple[str, ...]) -> Result:
    target = describe_target(campaign.plan.target)
    script = campaign.findings.script(finding)
    finding = replace(
        finding,
        first=min((number for number in finding.numbers if number >= 0), default=None),
        saved=tuple(corpus[number] for number in sorted(finding.numbers) if number < 0),
        upstream=upstream_of(finding, target) if finding.shrunk else "",
        shrunk=finding.shrunk or finding.kind in (INVALID, HARNESS),  # no smaller program tells more
    )
    result = result_of(finding, script)
    layers = target.facts.without_backend
    layer = next((spec for spec in layers if finding.elsewhere.get(spec, "").startswith(SAME)), "")
    # A worker has seen that the finding also shows there. Only a separate process can tell that it does not.
    layer = layer or (finding.layer if finding.layer not in finding.elsewhere else "")
    layer = layer if finding.layer or finding.kind in (CRASH, TIMEOUT) else ""
    return result.without_backend(layer, campaign.plan.fail_on_torch_bugs) if layer else result


MOST_STEPS = 8
"""Largest number of steps of a program that can be a reported bug. A longer one has the operators of many bugs."""


def can_be_reported_bug(finding: FailingProgram) -> bool:
    """Whether a finding can be a reported bug of PyTorch, as far as its program tells: it has inputs and few steps."""
    return bool(finding.property and finding.program.inputs) and len(finding.program.steps) <= MOST_STEPS


def evidence(finding: FailingProgram, target: Target) -> Evidence | None:
    """The evidence that decides whether a finding is a reported bug of PyTorch; None if its cause is unknown, or lies
    in no part of PyTorch, or if its program is long. A program that ended its process is not run."""
    layer, part = layer_and_part(finding.culprit)
    layer = layer if layer in COMPILER_LAYERS else target.facts.of_pytorch
    if not (layer and can_be_reported_bug(finding)):
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


def replayed_result(*findings: FailingProgram) -> Result:
    """The findings of saved programs that have one signature as a result. It is named by the signature, since the cause
    of a long program is unknown."""
    first = findings[0]
    known = Finding(
        first.signature,
        first.kind,
        count=len(findings),
        saved=tuple(name for finding in findings for name in finding.saved),
        first_wrong_step=first.first_wrong_step,
        pattern=first.pattern_if_shrunk,
    )
    return result_of(first).replace(finding=known)


def replayed(spec: str, findings: Sequence[FailingProgram], programs: Sequence[str], unsupported: int) -> Run:
    """The run of saved programs: the finding of each, the names of all programs, and the number of programs that the
    target does not support."""
    alike: dict[str, list[FailingProgram]] = {}
    for finding in findings:
        alike.setdefault(finding.signature, []).append(finding)
    left = {"the target leaves it out": unsupported} if unsupported else {}
    drawn = ProgramStats(programs=len(programs), corpus=tuple(programs), unsupported=left)
    return Run(spec, [replayed_result(*of_signature) for of_signature in alike.values()], drawn=drawn)


def undefined(tally: Tally) -> int:
    """Number of drawn steps that were rejected before they ran, because torch refuses them or does not define their
    result. Draws for which no tensor fits do not count."""
    return sum(count for reason, count in tally.avoided.items() if not reason.startswith("nothing fits"))
