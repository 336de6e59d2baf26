"""Verdict on a program by metamorphic relations: the target must answer a rewritten program as the program itself.

Defines `judge_relations` for targets with `relations`. The target runs both programs, so it needs no trusted reference.
Torch CPU only says whether the programs have a defined meaning, which of their tensors share memory, and which answers
float64 gives. A difference breaks the relation if rounding does not explain it: each side must be within the tolerances
of float64's answer, or about as far from it as the other one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from conformance.engine.executor import Execution, Executor, StepFailed, Watch
from conformance.engine.judge import Terms, judge
from conformance.program.execute import ProgramSubject
from conformance.program.float64 import JudgedProgram, concerning, subjects_of, truth_of
from conformance.program.model import Program, ProgramError
from conformance.program.relations import BROKEN, RELATIONS, Related, StepRun, related, step_runs, strides_read
from conformance.program.shadow import Reference, reference
from conformance.program.steps.op import StepError
from conformance.program.trial import Trial
from conformance.program.unsupported import lacking_operator, unsupported_reason
from conformance.program.verdict import UNAVAILABLE, Verdict, leading
from conformance.standalone.observation import Observation, Seen
from conformance.standalone.oracles import Mismatch

UNRELATED = "a program to which no relation applies"
"""Reason to skip a program: nothing of it was compared."""


@dataclass(frozen=True)
class RelatedProgram(JudgedProgram):
    """A program whose reference is the target's own answer to a rewritten program. `cpu` is torch CPU's answer."""

    cpu: Observation = field(default_factory=Observation)

    @property
    def terms(self) -> Terms:
        """The program's terms; neither side is the reference."""
        return replace(super().terms, symmetric=True)

    def in_float64(self, mismatches: Sequence[Mismatch], expected: Observation) -> Execution | None:
        """Return the program's answer in float64. Torch CPU's answer says up to which step it is valid."""
        return super().in_float64(mismatches, self.cpu)

    def swayed(
        self, mismatches: Sequence[Mismatch], expected: Observation, actual: Observation
    ) -> Sequence[Observation]:
        """Return the answers in float64 with moved results, and with moved inputs.

        An operator that cancels its operands depends on their last bits."""
        program = concerning(self.program, subjects_of(mismatches))
        try:
            moved = [truth_of(program, seed, inputs=True)[1] for seed in range(1, 5)]
        except (StepFailed, StepError, RuntimeError):
            moved = []
        return [*super().swayed(mismatches, self.cpu, actual), *moved]


def judge_relations(trial: Trial, *, locate: bool, watch: Watch) -> Verdict:
    """Return the verdict on a program by the target's relations: the first broken one.

    With `locate`, search the step that breaks it. Raises ProgramError if the program has no defined meaning on torch
    CPU."""
    program, target = trial.program, trial.target
    unsupported = unsupported_reason(program, target.facts) or lacking_operator(program, target)
    if unsupported:
        return Verdict(unsupported=unsupported)
    expected, compared = trial.cpu.end, False
    run, runs = None, _step_runs(program)
    for name in target.facts.relations:
        other = _applies(program, name, expected, runs)
        if other is None:
            continue
        run = run or trial.run(watch=watch)
        if run.unavailable:
            return Verdict(unsupported=UNAVAILABLE)
        compared = True
        mismatches, want = _broken(trial, name, other, run)
        if mismatches:
            verdict = Verdict(tuple(mismatches), run.failed_step, sides=(want, run.last), relation=name)
            return _located(trial, verdict) if locate and not run.failed_step else verdict
    return Verdict() if compared else Verdict(unsupported=UNRELATED)


def _step_runs(program: Program) -> Sequence[StepRun]:
    try:
        return step_runs(program)
    except (StepError, StepFailed, RuntimeError):
        return ()


def _applies(program: Program, name: str, expected: Reference, runs: Sequence[StepRun]) -> Related | None:
    """Return the rewritten program, if the relation changes the program and the new one has a defined meaning too.

    Some views and copies depend on strides by definition. So torch CPU must report the same shapes, dtypes, errors and
    sharing of memory for both programs."""
    try:
        other = related(program, name, runs)
        if other is None:
            return None
        answer = _answer(other, reference(other.program).observation)
    except (ProgramError, StepError, StepFailed, RuntimeError):
        return None
    strides = strides_read(runs)
    if strides:  # a later step depends on them
        numbered = [replace(run, number=other.numbers[run.number - 1]) for run in _step_runs(other.program)]
        if strides_read([run for run in numbered if run.number]) != strides:
            return None
    return other if _metadata(answer, answer) == _metadata(expected.observation, answer) else None


def _metadata(seen: Observation, like: Observation) -> dict[str, object]:
    """Return the facts that must not depend on a rewriting, of the tensors that `like` has."""
    tensors = {name: tensor for name, tensor in seen.tensors.items() if name in like.tensors}
    owners: dict[str, str] = {}
    facts: dict[str, object] = {}
    for name, tensor in tensors.items():
        facts[name] = tensor.dtype, tensor.shape, owners.setdefault(tensor.alias, name), tensor.requires_grad
    return facts | {name: type(other) for name, other in seen.others.items()}


def _answer(other: Related, seen: Observation) -> Observation:
    """Return an observation of the rewritten program under the numbers of the original steps."""
    numbers = {f"step {at}": f"step {number}" for at, number in enumerate(other.numbers, 1)}
    return replace(seen, others={numbers.get(name, name): other for name, other in seen.others.items()})


def _broken(trial: Trial, name: str, other: Related, run: Execution) -> tuple[list[Mismatch], Observation]:
    """Return the mismatches that rounding does not explain, and the answer to the rewritten program."""
    target, expected = trial.target, trial.cpu.end
    again = Executor(target).run(ProgramSubject(other.program))
    want = _answer(other, again.last)
    exact: Collection[str] = expected.observation.tensors if RELATIONS[name].bits else expected.exact
    got = run.last
    if want.error is None and got.error is None:
        got = replace(got, tensors={key: tensor for key, tensor in got.tensors.items() if key in want.tensors})
        want, got = _without_other_strides(want, got), _without_other_strides(got, want)
    subject = RelatedProgram(trial.program, exact, expected.observation)
    mismatches = judge(
        subject, Execution((want,)), replace(run, observations=(got,)), target, target.facts.oracles
    ).mismatches
    return [
        replace(mismatch, detail="; ".join(filter(None, (mismatch.detail, BROKEN.format(name)))))
        for mismatch in mismatches
    ], want


def _place_of(tensor: Seen) -> tuple[tuple[int, ...], int]:
    return tensor.metadata["stride"], tensor.metadata["storage_offset"]


def _without_other_strides(seen: Observation, other: Observation) -> Observation:
    """Return the observation without the storages of tensors that have other strides on the other side: an out= tensor
    that was resized."""
    placed = {name: _place_of(tensor) for name, tensor in other.tensors.items()}
    moved = {tensor.alias for name, tensor in seen.tensors.items() if placed.get(name) != _place_of(tensor)}
    return replace(seen, storages={name: storage for name, storage in seen.storages.items() if name not in moved})


def _located(trial: Trial, verdict: Verdict) -> Verdict:
    """Return the verdict with the first step that breaks the relation: the shortest prefix that does."""
    name = verdict.relation
    for number in range(1, len(trial.program.steps) + 1):
        beginning = trial.beginning(number)
        other = _applies(beginning.program, name, beginning.cpu.end, _step_runs(beginning.program))
        if other is None:
            continue
        mismatches, _ = _broken(beginning, name, other, beginning.run())
        if mismatches:
            return replace(verdict, bad_step=number, cause=leading(mismatches))
    return verdict
