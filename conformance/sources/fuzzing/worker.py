"""The work of a campaign's worker process: draw numbered programs, run them, and write each finding to disk.

The key insight: the device under test may end the process. So the worker records a program *before* it runs, and writes
a failure as soon as it occurs. After a death the findings are on disk, and another worker can draw the programs again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from conformance.engine.kernel_tables import needing
from conformance.engine.loading import describe_target
from conformance.engine.target import Target
from conformance.program import recorded
from conformance.program.alias_probes import with_alias_probes
from conformance.program.attribution import culprit
from conformance.program.calls import judge_program, resolved
from conformance.program.cause import cause_of, plainer
from conformance.program.gradients import with_gradient
from conformance.program.model import Program, ProgramError, digest, read_program
from conformance.program.reduce import RECORDED_PASSES
from conformance.program.remainder import remainder
from conformance.program.steps.op import VIEW, Json
from conformance.program.steps.table import OPS
from conformance.program.verdict import Verdict, leading, shortest, signature
from conformance.record import simple_values
from conformance.record.errors import TargetError, UserError
from conformance.record.finding import (
    ALSO,
    CRASH,
    FAIL,
    FLAKY,
    HARNESS,
    INVALID,
    MEMORY,
    MOVE,
    TIMEOUT,
    answers,
    cause_text,
    shown_by,
    with_signal_number,
)
from conformance.record.measurements import UNMEASURED, Measurements
from conformance.record.names import MEASURED
from conformance.record.patterns import base_operator, by_culprit, pattern_of
from conformance.run.messages import Death, ExitReason
from conformance.run.worker import UnitTimeout, at_most, keep, loaded, unit
from conformance.sources.fuzzing.drawing import Drawing, Tally
from conformance.sources.fuzzing.further_calls import with_calls
from conformance.sources.fuzzing.kernel_baseline import read_baseline
from conformance.sources.fuzzing.plan import Plan, Shard
from conformance.sources.programs.progress import Progress
from conformance.sources.programs.trials import Trials, alike, watching
from conformance.standalone.observation import out_of_memory
from conformance.standalone.oracles import Mismatch

PRECISE = frozenset({"crash", "timeout", "memory", "metadata", "not implemented", "missing error", "wording"})
"""Properties that differ at the step with the fault, not at a later one."""

MOST_PARTS = 8
"""Largest number of parts of one program that a worker judges."""

DEATHS = (CRASH, TIMEOUT, MEMORY)
"""The kinds of findings that end a worker."""

CRASH_TRIALS = 60
"""Number of smaller programs that one worker tries for a crash or a hang."""

NO_PROGRESS = Progress()

LONGEST_TRIAL = 30.0
"""Time limit in seconds for a smaller program during shrinking."""

MOST_MODELS = 3
"""Number of models that the note of a recorded call names."""

LONGEST_ATTRIBUTION = 120.0
"""Time limit in seconds for finding the culprit of one cause."""

NOTHING = Program((), ())
"""Placeholder for a program that was never drawn."""


PLAIN = ("kind", "seed", "number", "property", "op", "before", "said", "part", "unjudged", "layer", "culprit")
"""Fields of a finding that are the same in its JSON form."""


@dataclass(frozen=True)
class FailingProgram:
    """A program on which the target is wrong, with the kind of failure, its group, and the mismatches.

    `kind` is INVALID for a fault of the generator, a program without a meaning on torch CPU. It is HARNESS if the
    harness itself failed while it judged the program. These kinds have no known cause. `before` is the program that the
    same worker ran before, and `said` tells how the process ended, if it did. `layer` is a target without the backend
    under test that shows each mismatch too; empty if there is none. `part` is 0 for the whole program, and n for the
    remainder behind its n-th difference. `unjudged` is the number of steps behind this difference that it masks.
    `culprit` is an operator that the wrong step calls and whose answer by torch CPU mends the program, or a
    compiler's layer and part (`compiler_attribution.py`); empty if unknown."""

    kind: str
    seed: int
    number: int
    group: str
    program: Program
    mismatches: tuple[Mismatch, ...] = ()
    step: int | None = None
    property: str = ""
    op: str = ""
    before: int | None = None
    said: str = ""
    part: int = 0
    unjudged: int = 0
    layer: str = ""
    culprit: str = ""

    def cause(self) -> str:
        """The wrong property and the op to blame; the empty string if they are unknown."""
        cause = cause_text(self.kind, self.property, self.op)
        return cause + ALSO * bool(self.layer and cause)

    @functools.cached_property
    def precise(self) -> bool:
        """Whether the first wrong step does not change when the program shrinks, so that the cause needs no shrinking.
        A wrong value or storage may come from an earlier view."""
        return self.property in PRECISE or (self.property == "aliasing" and self.difference.oracle == "alias")

    @functools.cached_property
    def difference(self) -> Mismatch:
        """The difference with the property of the cause."""
        if not self.mismatches:
            return Mismatch(self.property, self.op or "the program", "an answer", self.said)
        of_property = (mismatch for mismatch in self.mismatches if shown_by(mismatch) == self.property)
        return next(of_property, self.mismatches[0])

    @functools.cached_property
    def differences(self) -> tuple[Mismatch, ...]:
        """The differences in report order: first the one with the property of the cause."""
        first = self.difference
        return (first, *(mismatch for mismatch in self.mismatches if mismatch is not first)) if self.mismatches else ()

    @functools.cached_property
    def pattern(self) -> str:
        """The pattern that this finding shares with findings in other operators; empty without a known cause."""
        if not self.property:
            return ""
        is_view = self.op in OPS and OPS[self.op].effect == VIEW
        pattern = pattern_of(self.difference, self.property, self.op, is_view)
        pattern = by_culprit(pattern, self.property, self.op, self.culprit)
        return f"flaky: {pattern}" if self.kind == FLAKY else pattern

    @functools.cached_property
    def operators(self) -> frozenset[str]:
        """The operators of all steps, by their base names."""
        return frozenset(base_operator(step.op) for step in self.program.every_step)

    @functools.cached_property
    def an_error(self) -> bool:
        """Whether the first difference is an error of one side, whose text may be that of several bugs. The text of a
        missing operator names it."""
        return self.kind == FAIL and self.property in ("error", "missing error")

    def death(self) -> str:
        """How and at which op the process ended; the empty string if it did not."""
        if self.kind not in DEATHS:
            return ""
        return f"{self.kind} at {self.op}: the device {with_signal_number(self.said) or 'ended its process'}"

    def flaky(self) -> FailingProgram:
        """This failure as FLAKY, after it did not repeat."""
        return replace(self, kind=FLAKY, group=f"flaky / {self.group}")

    def to_json(self) -> dict[str, Json]:
        """The finding as JSON; `--replay` reads it as it reads a program."""
        mismatches = [vars(mismatch) for mismatch in self.mismatches]
        changed = {"signature": self.group, "first_bad_step": self.step, "mismatches": mismatches}
        return {**{name: getattr(self, name) for name in PLAIN}, **changed, "program": self.program.to_json()}

    @classmethod
    def from_json(cls, data: Json) -> FailingProgram:
        """The finding that `to_json` wrote."""
        plain = {name: data[name] for name in PLAIN if name in data}
        mismatches = tuple(Mismatch(**mismatch) for mismatch in data["mismatches"])
        program, step = Program.from_json(data["program"]), data["first_bad_step"]
        return cls(group=data["signature"], program=program, mismatches=mismatches, step=step, **plain)


@dataclass
class ShardResult(Tally):
    """The result of a shard: the tally of drawing, the number of programs, their kernels, and the findings."""

    done: int = 0
    measured: Measurements = UNMEASURED
    unsupported: Counter[str] = field(default_factory=Counter)
    """Programs that did not run, by the reason that the target declares."""
    arbitrated: int = 0
    """Programs that differ from torch CPU and pass by its answer in float64."""
    calls: int = 0
    """Judged calls of transformed functions, the first calls included."""
    recorded: int = 0
    """Programs whose measurements were compared with a baseline."""
    model_calls: dict[str, str] = field(default_factory=dict)
    """The recorded calls that ran, by number, with the reason if the target leaves the call out, else ""."""
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
    """The number of this process's last program, the groups of failures that it has confirmed, and the culprits of
    causes."""

    last: int | None = None
    confirmed: ClassVar[set[tuple[str, str]]] = set()
    culprits: ClassVar[dict[tuple[str, str], str]] = {}


def run_shard(shard: Shard) -> ShardResult:
    """Draw and run the shard's programs. Each failure runs a second time, and is FLAKY if it does not repeat. A shard
    may end early, at the first failure or at `until`; `done` is the number of programs that ran."""
    result = ShardResult()
    for number in range(shard.first, shard.first + shard.count):
        if (shard.plan.stop_at_first and result.findings) or time.time() >= shard.until:
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
    """Draw one program and judge it; after each difference, judge the remainder behind it."""
    try:
        with unit(json.dumps({"number": number})):
            program: Program | None = program_of(shard, number, result)
            part = 0
            if shard.behind is not None and number == shard.first:
                rest = remainder(shard.behind.program, shard.behind.step)
                program, part = rest.program if rest is not None else None, shard.behind.part
    except Exception as error:
        _keep(shard, result, FailingProgram(INVALID, shard.plan.seed, number, f"invalid / drawing: {error}", NOTHING))
        return
    earlier: FailingProgram | None = None
    while program is not None:
        failing, unsupported = _judge_part(shard, number, part, program, result)
        if unsupported and earlier is not None:  # a remainder, not a drawn program
            _keep(shard, result, replace(earlier, unjudged=earlier.unjudged + len(program.steps)))
        if failing is None:
            return
        with unit(json.dumps({"number": number})):
            rest = remainder(failing.program, failing.step) if failing.step and part + 1 < MOST_PARTS else None
        unjudged = rest.dropped if rest is not None else _unjudged(failing)
        earlier = replace(failing, part=part, unjudged=unjudged, before=_Ran.last)
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
    return len(finding.program.steps) - (finding.step or 0)


def _judge_part(
    shard: Shard, number: int, part: int, program: Program, result: ShardResult
) -> tuple[FailingProgram | None, str]:
    """Judge a program or a remainder, and add it to the counts. Return its finding, if any, and the reason if the
    target does not support it. An exception of the harness itself is also a finding, so that the next programs are
    still judged."""
    try:
        verdict = _judged(shard, number, part, program, locate=True)
        if not part:
            _count(shard, number, program, verdict, result)
        if exhausted(verdict):
            raise MemoryError
        program, verdict = resolved(program, verdict, loaded(shard.plan.target), watching(program, shard.hang))
        failing = confirmed(shard, number, part, program, verdict) if verdict.mismatches else None
        return failing, verdict.unsupported
    except ProgramError as error:
        return FailingProgram(INVALID, shard.plan.seed, number, f"invalid / {error}", program), ""
    except (MemoryError, OSError, UserError):  # faults of the worker, the disk or the user, not of the program
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
        wrong = Mismatch("harness", "the harness itself", "no error", said, where)
        return FailingProgram(HARNESS, shard.plan.seed, number, f"harness / {said[:200]}", program, (wrong,)), ""


def _count(shard: Shard, number: int, program: Program, verdict: Verdict, result: ShardResult) -> None:
    result.measured += verdict.measured
    result.unsupported[verdict.unsupported] += bool(verdict.unsupported)
    if shard.plan.recorded:
        result.model_calls[str(number)] = verdict.unsupported
    result.arbitrated += verdict.arbitrated
    if described(shard.plan.target).transforms_program:
        result.calls += verdict.calls or (not verdict.unsupported)
    result.recorded += verdict.recorded
    judged = {name: count for name, count in verdict.measured.counts.items() if name in MEASURED}
    if shard.plan.record and judged and {*MEASURED} >= {m.oracle for m in verdict.mismatches}:
        result.counts[digest(program)] = judged


def _judged(shard: Shard, number: int, part: int, program: Program, locate: bool) -> Verdict:
    """The verdict on a program, within its time limit. Each step is recorded before it runs."""
    target, baseline = loaded(shard.plan.target), counted(shard.plan.kernels, shard.plan.target)
    with unit(json.dumps({"number": number, "part": part, "program": program.to_json()})):
        return judge_program(program, target, locate=locate, watch=watching(program, shard.hang), baseline=baseline)


def program_of(shard: Shard, number: int, tally: Tally | None = None) -> Program:
    """The shard's program of this number, from the corpus, recorded or drawn. If the target does not expose storages,
    writes at the end of a drawn program show which tensors share memory. If it transforms gradients, a drawn program
    ends with a backward."""
    if number < 0:
        return read_program(Path(shard.plan.corpus[number]))
    if shard.plan.recorded:
        return recorded_program(shard.plan, number)
    target = described(shard.plan.target)
    drawing = drawing_of(shard.plan.drawing, shard.plan.target)
    program = drawing.numbered(shard.plan.seed, number, tally)
    if drawing.changes_arguments:
        from conformance.sources.fuzzing import arguments  # imports op_db, which takes seconds

        source = random.Random(f"{shard.plan.seed}:{number}:arguments").randint
        program = arguments.extended(program, source, target.unsupported("trait"), tally)
    if target.differentiates:
        return with_gradient(program)
    if target.transforms_program and shard.plan.calls:
        return with_calls(program, shard.plan.seed, number, target)
    return program if target.exposes_storages else with_alias_probes(program, target.unsupported("step"))


def recorded_program(plan: Plan, number: int) -> Program:
    """The recorded call of this number as a program."""
    calls, ordered = recorded.chosen(plan.recorded, plan.models)
    call = ordered[number]
    names = ", ".join(calls.models[at] for at in call.models[:MOST_MODELS])
    more = f" and {len(call.models) - MOST_MODELS} more" if len(call.models) > MOST_MODELS else ""
    return replace(recorded.program_of(call, plan.seed), note=f"{call.name} of {names}{more}")


@functools.lru_cache
def drawing_of(drawing: Drawing, spec: str) -> Drawing:
    """The drawing for this target. If operators are declared lacking, it draws no entry of op_db that needs one of them
    in any form that the device calls."""
    return replace(drawing, lacking=tuple(needing(loaded(spec)))) if drawing.lacking else drawing


described = functools.cache(describe_target)
"""The target of a spec, unprepared, created once per process."""


def exhausted(verdict: Verdict) -> bool:
    """Whether the target ran out of memory."""
    return any(
        out_of_memory(f"{mismatch.actual} {mismatch.detail}")
        for mismatch in verdict.mismatches
        if mismatch.oracle == "error"
    )


def confirmed(shard: Shard, number: int, part: int, program: Program, verdict: Verdict) -> FailingProgram:
    """The failure after a second run, or FLAKY if it does not repeat. The search for the bad step of a transformed
    function has run the program a second time. The second run is omitted if this process has already confirmed a
    failure of the same group. `LocalShrinker.confirm` checks it in another process before it is
    reported."""
    cause = cause_of(program, verdict)
    group, step = str(signature(program, verdict)), verdict.bad_step
    result = FailingProgram(
        FAIL, shard.plan.seed, number, group, program, verdict.mismatches, step, cause.property, cause.op
    )
    with unit(json.dumps({"number": number, "part": part, "program": program.to_json()})):
        result = replace(result, layer=_unexplained(loaded(shard.plan.target), program, verdict.mismatches)[1])
    if verdict.vanished:
        return result.flaky()
    again = step is not None and loaded(shard.plan.target).transforms_program
    if not again and (shard.plan.target, group) not in _Ran.confirmed:
        if _judged(shard, number, part, program, locate=False).passed:
            return result.flaky()
        _Ran.confirmed.add((shard.plan.target, group))
    return result


def ended(kind: str, seed: int, number: int, program: Program, step: int) -> FailingProgram:
    """A crash or a hang in this step, with the program up to it. Step 0 is the move of the inputs; the number after the
    last step is the observation."""
    where = [MOVE, *(step.op for step in program.steps), "the observation"][step]
    word, beginning = kind.lower(), program.with_steps(program.steps[:step])
    return FailingProgram(kind, seed, number, f"{word} / {where}", beginning, step=step, property=word, op=where)


def passes_of(program: Program) -> Sequence[Callable[[Program], Iterator[Program]]]:
    """The passes that make the program smaller; none for the usual ones."""
    return RECORDED_PASSES if recorded.is_recorded(program) else ()


def died_of(finding: FailingProgram, small: Program) -> FailingProgram:
    """The death of a finding on a smaller program."""
    if not finding.step:
        return replace(finding, program=small)
    step = len(small.steps) + (finding.step > len(finding.program.steps))
    died = ended(finding.kind, finding.seed, finding.number, small, step)
    return replace(died, before=finding.before, said=finding.said)


def _unexplained(target: Target, program: Program, wrong: Sequence[Mismatch]) -> tuple[Sequence[Mismatch], str]:
    """The mismatches that PyTorch without the backend does not show, and the target without the backend that shows all
    of them, if there is one. Without such targets, all mismatches."""
    for spec in target.without_backend if wrong else ():
        there = answers(judge_program(program, loaded(spec), locate=False, watch=watching(program)).mismatches)
        left = [mismatch for mismatch in wrong if not answers([mismatch]) <= there]
        if not left:
            return [], spec
        wrong = left
    return wrong, ""


def shrink(
    spec: str,
    finding: FailingProgram,
    trials: int,
    until: float = math.inf,
    progress: Progress = NO_PROGRESS,
    hang: Collection[str] = (),
) -> FailingProgram:
    """Return the failure on a smaller program that is wrong in the same way, with its group computed again. From
    `until` on, in seconds since the epoch, no smaller program is tried. `progress` is that of earlier workers.

    Steps after the first bad step may be wrong for other reasons, so they are removed first. If the finding also shows
    on PyTorch without the backend, so must each smaller program. Otherwise each smaller program must have a mismatch
    that does not show there. If the last layer of a target is slow, the trials run on the first layer that shows the
    failure, unless the result does not fail on the target."""
    target = loaded(spec)
    if finding.kind in DEATHS:

        def exhausts(candidate: Program, verdict: Verdict) -> bool:
            return finding.kind == MEMORY and exhausted(verdict)

        hangs = finding.kind == TIMEOUT
        deadly = Trials(target, progress, exhausts, hangs=hangs, hang=hang, until=until)
        return died_of(finding, deadly.smallest(finding.program, CRASH_TRIALS, passes_of(finding.program)))

    def own(candidate: Program, wrong: Sequence[Mismatch]) -> Sequence[Mismatch]:
        left, layer = _unexplained(target, candidate, wrong)
        return (wrong if layer else ()) if finding.layer else left

    def matches(candidate: Program, verdict: Verdict) -> bool:
        left = own(candidate, verdict.mismatches)
        return bool(left) and alike(first, leading(left))

    def mismatches_of(candidate: Program) -> Sequence[Mismatch]:
        with contextlib.suppress(UnitTimeout):
            return own(candidate, attempts.judged(candidate).mismatches)
        return ()

    whole, shown = finding.program, own(finding.program, finding.mismatches) or finding.mismatches
    for tried in dict.fromkeys((shortest(whole, target, shown, judge_program), target)):
        program, wrong = whole, shown
        attempts = Trials(tried, progress, matches, seconds=LONGEST_TRIAL, until=until)
        if finding.step:
            beginning = program.with_steps(program.steps[: finding.step])
            cut = mismatches_of(beginning)
            program, wrong = (beginning, cut) if cut else (program, wrong)
        first = leading(wrong)
        small = attempts.smallest(program, trials, passes_of(program))
        verdict = judge_program(small, target)
        if tried is target or matches(small, verdict):
            break
    if not verdict.mismatches or verdict.vanished:
        return finding

    def wrong_at_all(other: Program) -> bool:
        return bool(mismatches_of(other))

    plain = None if recorded.is_recorded(small) else plainer(small, verdict, wrong_at_all)
    if plain is not None:
        small, verdict = plain, judge_program(plain, target)
    cause = cause_of(small, verdict, wrong_at_all)
    return replace(
        finding,
        group=str(signature(small, verdict)),
        program=small,
        mismatches=verdict.mismatches,
        step=verdict.bad_step,
        property=cause.property,
        op=cause.op,
    )


def attributed(spec: str, finding: FailingProgram, until: float = math.inf) -> FailingProgram:
    """Return the finding with the culprit of its cause, if it is known by `until`, in seconds since the epoch. A worker
    searches once for each cause. Whatever a target raises while its parts are replaced, the finding stays."""
    if finding.kind != FAIL or not finding.mismatches:
        return finding
    key = (spec, finding.cause())
    if key not in _Ran.culprits:
        limit = min(LONGEST_ATTRIBUTION, max(until - time.time(), 0.01))
        with contextlib.suppress(UnitTimeout, Exception), at_most(limit):
            _Ran.culprits[key] = culprit(finding.program, loaded(spec), finding.difference)
    return replace(finding, culprit=_Ran.culprits.get(key, ""))


def fails(spec: str, program: Program, limit: float) -> bool:
    """Whether the target is wrong on a program. Raises ProgramError if the program has no meaning on torch CPU."""
    try:
        with at_most(limit):
            return bool(judge_program(program, loaded(spec), locate=False).mismatches)
    except UnitTimeout:
        return True


def survives(spec: str, program: Program, hang: Collection[str] = ()) -> bool:
    """Run a program to see whether the process survives it. Return False if it only runs out of memory."""
    try:
        with unit("a smaller program"):
            return not exhausted(judge_program(program, loaded(spec), locate=False, watch=watching(program, hang)))
    except MemoryError:
        return False


SAME = "fails in the same way"
"""Answer for a related target that shows every difference of a finding with the same answers."""


def elsewhere(spec: str, finding: FailingProgram, limit: float) -> str:
    """The result of a finding's program on a related target: `agrees`, `fails` with the oracle, or why it did not
    run."""
    program = finding.program
    try:
        with at_most(limit):
            verdict = judge_program(program, loaded(spec), locate=False, watch=watching(program))
    except UnitTimeout:
        return f"{SAME} (timeout)" if finding.kind == TIMEOUT else "runs too long"
    except TargetError as error:
        return f"cannot be used: {error}"
    except ProgramError as error:
        return f"cannot be judged: {error}"
    if verdict.unsupported:
        return f"leaves out {verdict.unsupported}"
    if not verdict.mismatches:
        return "agrees"
    same = finding.kind == FAIL and answers(finding.mismatches) <= answers(verdict.mismatches)
    return f"{SAME if same else 'fails'} ({verdict.mismatches[0].oracle})"


def died_elsewhere(finding: FailingProgram, death: Death) -> str:
    """The result of a finding's program on a related target whose worker died of it."""
    if death.reason is ExitReason.TIMEOUT:
        return f"{SAME} (timeout)" if finding.kind == TIMEOUT else "runs too long"
    return f"{SAME if finding.kind == CRASH and finding.said == death.said else 'fails'} (crash)"
