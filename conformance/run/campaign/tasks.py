"""The work of a campaign's worker process: make numbered programs, run them, and write each finding to disk.

The key insight: the device under test may end the process. So the worker records a program *before* it runs, and writes
a failure as soon as it occurs. After a death the findings are on disk, and another worker can make the programs again.
"""

from __future__ import annotations

import functools
import json
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from conformance.engine.kernel_tables import needing
from conformance.engine.loading import describe_target
from conformance.program.calls import judge_trial, resolved
from conformance.program.cause import cause_of
from conformance.program.model import Program, ProgramError, digest, read_program
from conformance.program.steps.op import Json
from conformance.program.steps_after_fault import remainder
from conformance.program.trial import Trial
from conformance.program.verdict import Verdict, signature
from conformance.record import simple_values
from conformance.record.error_text import text_of
from conformance.record.errors import UserError
from conformance.record.finding import FAIL, FLAKY, HARNESS, INVALID
from conformance.record.measurements import UNMEASURED, Measurements
from conformance.record.names import MEASURED
from conformance.run.campaign.drawing_counts import Tally
from conformance.run.campaign.kernel_baseline import read_baseline
from conformance.run.campaign.plan import Shard
from conformance.run.failing_program import FailingProgram
from conformance.run.shrink_program import unexplained, watch_steps
from conformance.run.worker import keep, loaded, unit
from conformance.standalone.oracles import Mismatch

MOST_PARTS = 8
"""Largest number of parts of one program that a worker judges."""


@dataclass
class ShardResult(Tally):
    """The result of a shard: the tally of drawing, the number of programs, their kernels, and the findings."""

    done: int = 0
    measured: Measurements = UNMEASURED
    unsupported: Counter[str] = field(default_factory=Counter)
    """Programs that did not run, by the reason that the target declares."""
    arbitrated: int = 0
    """Programs that differ from torch CPU and pass by its answer in float64."""
    tolerated: int = 0
    """Programs that pass only by a tolerance of the target's profile."""
    covered: Counter[str] = field(default_factory=Counter)
    """Programs that ran and that a tolerance of the profile covers, by its place in the profile."""
    needed: Counter[str] = field(default_factory=Counter)
    """Those of them that passed only by a tolerance."""
    calls: int = 0
    """Judged calls of transformed functions, the first calls included."""
    recorded: int = 0
    """Programs whose measurements were compared with a baseline."""
    listed: dict[str, str] = field(default_factory=dict)
    """The listed programs that ran, by number, with the reason if the target leaves the program out, else ""."""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """The judged measurements of programs by digest, if the campaign records them."""
    findings: list[FailingProgram] = field(default_factory=list)

    @property
    def judged(self) -> int:
        """Programs that ran on the target."""
        return self.done - self.unsupported.total()

    def to_json(self) -> dict[str, Json]:
        """The counts. Findings have separate files."""
        return {**super().to_json(), "measured": simple_values.dump(self.measured), "findings": []}

    @classmethod
    def from_json(cls, data: Json) -> ShardResult:
        """The counts that `to_json` wrote."""
        result = super().from_json({**data, "measured": ()})
        result.measured = simple_values.load(Measurements, data["measured"])
        return result


@functools.cache
def counted(file: str, spec: str) -> Mapping[str, Mapping[str, int]]:
    """The baseline's measurements of programs, read once per process."""
    return read_baseline(Path(file), spec) if file else {}


class _Ran:
    """The number of this process's last program, and the signatures of failures that it has confirmed."""

    last: int | None = None
    confirmed: ClassVar[set[tuple[str, str]]] = set()


def run_shard(shard: Shard) -> ShardResult:
    """Make and run the shard's programs. Each failure runs a second time, and is FLAKY if it does not repeat. A shard
    may end early, at the first failure or at its time; `done` is the number of programs that ran."""
    result = ShardResult()
    for number in range(shard.first, shard.first + shard.count):
        until = shard.until_found if result.findings else shard.until
        if (shard.plan.stop_at_first and result.findings) or time.time() >= until:
            break
        _run_program(shard, number, result)
        result.done, _Ran.last = result.done + 1, number
    if result.lacking:
        declared = needing(loaded(shard.plan.target))
        for (operator, entry), count in [(tuple(key.split("|")), n) for key, n in result.lacking.items()]:
            del result.lacking[f"{operator}|{entry}"]
            result.lacking[f"{declared[operator]}|{entry}"] += count
    return result


def _run_program(shard: Shard, number: int, result: ShardResult) -> None:
    """Make one program and judge it; after each difference, judge the remainder behind it."""
    try:
        with unit(json.dumps({"number": number})):
            program: Program | None = program_of(shard, number, result)
            part = 0
            if shard.behind is not None and number == shard.first:
                rest = remainder(shard.behind.program, shard.behind.step)
                program, part = rest.program if rest is not None else None, shard.behind.part
    except Exception as error:
        text = f"invalid / drawing: {error}"
        _keep(shard, result, FailingProgram(text, INVALID, number, seed=shard.plan.seed, seconds=shard.elapsed))
        return
    earlier: FailingProgram | None = None
    while program is not None:
        failing, unsupported = Part(shard, number, part, program).finding(result)
        if unsupported and earlier is not None:  # a remainder, not a drawn program
            _keep(shard, result, replace(earlier, masking=earlier.numbers if program.steps else earlier.masking))
        if failing is None:
            return
        with unit(json.dumps({"number": number})):
            bad = failing.bad_step
            rest = remainder(failing.program, bad) if bad and part + 1 < MOST_PARTS else None
        unjudged = rest.dropped if rest is not None else _unjudged(failing)
        masking = failing.numbers if unjudged else failing.masking
        earlier = replace(failing, part=part, masking=masking, before=_Ran.last, seconds=shard.elapsed)
        _keep(shard, result, earlier)
        program, part = rest.program if rest is not None else None, part + 1


def _keep(shard: Shard, result: ShardResult, finding: FailingProgram) -> None:
    """Write a finding to disk and add it to the result. It replaces an earlier finding of the same part of the
    program."""
    keep(shard.path_of(finding.number, finding.part), json.dumps(finding.to_json()))
    place = (finding.number, finding.part)
    result.findings = [*(finding for finding in result.findings if (finding.number, finding.part) != place), finding]


def _unjudged(finding: FailingProgram) -> int:
    """Number of steps that are not judged because a difference ends the judgement of its program."""
    if finding.kind == FLAKY or {*MEASURED} >= {mismatch.oracle for mismatch in finding.mismatches}:
        return 0  # the program ran to its end
    if finding.program.calls:
        return 0  # the judge compared every step of the first call
    return len(finding.program.steps) - (finding.bad_step or 0)


@dataclass(frozen=True)
class Part:
    """A program of a shard, as part 0, or as part n the remainder behind the program's n-th difference."""

    shard: Shard
    number: int
    part: int
    program: Program

    @functools.cached_property
    def trial(self) -> Trial:
        """The trial of the program on the target, which is loaded."""
        return Trial.of(self.program, loaded(self.shard.plan.target))

    def failing(self, kind: str, signature: str, **more: Any) -> FailingProgram:
        """A finding on the program. `more` are the further fields of `FailingProgram`."""
        return FailingProgram(signature, kind, self.number, seed=self.shard.plan.seed, program=self.program, **more)

    def finding(self, result: ShardResult) -> tuple[FailingProgram | None, str]:
        """Judge the program, and add it to the counts of `result`. Return its finding, if any, and the reason if the
        target does not support it. An exception of the harness itself is also a finding, so that the next programs are
        still judged."""
        part = self
        try:
            verdict = self._judged(self.trial, locate=True)
            if not self.part:
                self._count(verdict, result)
            if verdict.exhausted:
                raise MemoryError
            trial, verdict = resolved(self.trial, verdict, watch_steps(self.program, self.shard.hang))
            part = replace(self, program=trial.program)
            return part.confirmed(trial, verdict) if verdict.mismatches else None, verdict.unsupported
        except ProgramError as error:
            return part.failing(INVALID, f"invalid / {error}"), ""
        except (MemoryError, OSError, UserError):  # faults of the worker, the disk or the user, not of the program
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {text_of(error)}".partition("\n")[0]
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
            fault = Mismatch("harness", "the harness itself", "no error", text, where)
            return part.failing(HARNESS, f"harness / {text[:200]}", mismatches=(fault,)), ""

    def _noted(self) -> AbstractContextManager[None]:
        """Context in which the worker's note holds the program."""
        return unit(json.dumps({"number": self.number, "part": self.part, "program": self.program.to_json()}))

    def _judged(self, trial: Trial, locate: bool) -> Verdict:
        """The verdict on the program, within its time limit. Each step is recorded before it runs."""
        plan, watch = self.shard.plan, watch_steps(trial.program, self.shard.hang)
        with self._noted():
            return judge_trial(trial, locate=locate, watch=watch, baseline=counted(plan.kernels, plan.target))

    def _count(self, verdict: Verdict, result: ShardResult) -> None:
        plan = self.shard.plan
        result.measured += verdict.measured
        result.unsupported[verdict.unsupported] += bool(verdict.unsupported)
        if not plan.numbered.endless:
            result.listed[str(self.number)] = verdict.unsupported
        result.arbitrated += verdict.arbitrated
        result.tolerated += verdict.tolerated
        if self.trial.target.facts.tolerances and not verdict.unsupported:
            operators = {step.op for step in self.program.every_step}
            for place, tolerance in enumerate(self.trial.target.facts.tolerances):
                result.covered[str(place)] += tolerance.covers(operators)
                result.needed[str(place)] += verdict.tolerated and tolerance.covers(operators)
        if described(plan.target).facts.transforms_program:
            result.calls += verdict.calls or (not verdict.unsupported)
        result.recorded += verdict.recorded
        judged = {name: count for name, count in verdict.measured.counts.items() if name in MEASURED}
        if plan.record and judged and {*MEASURED} >= {m.oracle for m in verdict.mismatches}:
            result.counts[digest(self.program)] = judged

    def confirmed(self, trial: Trial, verdict: Verdict) -> FailingProgram:
        """The failure after a second run, or FLAKY if it does not repeat. The search for the bad step of a transformed
        function has run the program a second time. The second run is omitted if this process has already confirmed a
        failure of the same signature. `LocalShrinker.confirm` checks it in another process before it is reported."""
        cause, step = cause_of(self.program, verdict), verdict.bad_step
        known = {
            "property": cause.property,
            "op": cause.op,
            "mismatches": verdict.mismatches,
            "bad_step": step,
            "wrong_first": verdict.wrong_first,
        }
        result = self.failing(FAIL, str(signature(self.program, verdict)), **known)
        with self._noted():
            result = replace(result, layer=unexplained(trial, verdict.mismatches)[1])
        if verdict.vanished:
            return result.flaky()
        key = self.shard.plan.target, result.signature
        again = step is not None and trial.target.facts.transforms_program
        if not again and key not in _Ran.confirmed:
            if self._judged(trial, locate=False).passed:
                return result.flaky()
            _Ran.confirmed.add(key)
        return result


def program_of(shard: Shard, number: int, tally: Tally | None = None) -> Program:
    """The shard's program of this number, from the corpus if the number is negative."""
    plan = shard.plan
    if number < 0:
        return read_program(Path(plan.corpus[number]))
    return plan.numbered.program(plan.seed, number, plan.target, Tally() if tally is None else tally)


described = functools.cache(describe_target)
"""The target of a spec, unprepared, created once per process."""
