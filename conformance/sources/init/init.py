"""Investigation of a target: the probe, the dtypes, and one trial of every OpInfo and every program step.

Defines `investigate` and `Investigation`. Only here may an exception mean that a feature is lacking, and only if the
dispatcher's tables confirm it (`engine/attempt.py`). A crash or a hang is a finding.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from conformance.declare.declaration import UNSUPPORTED, Declaration, Scope
from conformance.declare.features import FEATURES
from conformance.declare.probed import Probe
from conformance.declare.profile import OPTIONS, Profile
from conformance.engine.loading import describe_target
from conformance.program.steps.table import OPS
from conformance.program.unsupported import check_declarations, unsupported_steps
from conformance.record.missing_ops import Attempt, AttemptOutcome
from conformance.record.names import DTYPES
from conformance.report.escape import escape_control_characters
from conformance.run import signals
from conformance.run.execution_place import LOCAL, ExecutionPlace
from conformance.run.messages import Limits
from conformance.run.placed_pool import PlacedPool
from conformance.run.probe import resolve
from conformance.run.profile_trials import LATE, MODULES, task, trials
from conformance.run.worker import environment
from conformance.sources.fuzzing import shortest_program as of_step
from conformance.sources.opinfo import first_sample as of_opinfo

USUAL = 60.0
"""Least limit in seconds that a profile states for a program, if no trial took long."""

KINDS = ("opinfos", "steps")
SHARE = {"opinfos": 0.7, "steps": 1.0}
"""Fraction of the time at which the trials of a kind end, so that a slow device leaves time for the steps."""


@dataclass
class Investigation:
    """Results about the target of this spec; `trials` by their kind in a profile and their name."""

    spec: str
    probe: Probe | None = None
    environment: dict[str, str] = field(default_factory=dict)
    trials: dict[tuple[str, str], Attempt] = field(default_factory=dict)
    interrupted: int = 0
    """Number of the signal that ended it, or 0; trials not made by then are reported as "not tried"."""

    def of(self, outcome: AttemptOutcome) -> list[Attempt]:
        """Return the trials with this outcome."""
        return [trial for trial in self.trials.values() if trial.outcome is outcome]

    def profile(self, environment: Mapping[str, str], memory: float, file: Path) -> Profile:
        """Return the profile with these results."""
        by_operator: dict[str, dict[str, list[Attempt]]] = defaultdict(lambda: {kind: [] for kind in KINDS})
        for (kind, _), trial in self.trials.items():
            if trial.outcome is AttemptOutcome.LACKING:
                by_operator[trial.operator][kind].append(trial)
        declarations = _of_probe(self.probe) if self.probe else []
        for operator, kinds in sorted(by_operator.items()):
            names = {kind: tuple(sorted(trial.name for trial in trials)) for kind, trials in kinds.items()}
            text = next(trial.said for trials in kinds.values() for trial in trials)
            scope = Scope(operator=(operator,), op=names["opinfos"], step=names["steps"])
            declarations.append(Declaration(scope, (UNSUPPORTED,), text or "it has no kernel of the device"))
        kind, _, argument = self.spec.partition(":")
        name, *parts = argument.split(",") if kind in ("device", "compile") else [argument]
        settings = dict(part.partition("=")[::2] for part in parts)
        slowest = max((trial.seconds for trial in self.trials.values()), default=0.0)
        return Profile(
            kind,
            name,
            {key: settings[key] for key in OPTIONS if key in settings},
            environment,
            tuple(declarations),
            seconds=max(USUAL, float(math.ceil(2 * slowest))),
            memory=memory,
            file=file,
        )


def _of_probe(probe: Probe) -> list[Declaration]:
    """Return one declaration for each missing feature, with the probe's answer, and one for the missing dtypes."""
    answers = {row.name: f"{row.answer}{': ' if row.detail else ''}{row.detail}" for row in probe.rows}
    declarations = [
        Declaration(Scope(feature=(name,)), (UNSUPPORTED,), f"the probe's answer is {answers[name]}")
        for name in sorted(probe.lacks)
    ]
    lost = tuple(name for name in DTYPES if name not in probe.dtypes)
    reason = "values do not survive the way to the device and back"
    return [*declarations, *([Declaration(Scope(dtype=lost), (UNSUPPORTED,), reason)] if lost else [])]


def investigate(
    spec: str, limits: Limits, jobs: int, seconds: float, console: Console, place: ExecutionPlace = LOCAL
) -> Investigation:
    """Probe the target and try each OpInfo and step once, for at most `seconds`. Raises TargetError, and Stopped if it
    is stopped before the first trial.
    """
    begin = time.monotonic()
    full, probe = resolve(spec, limits, place)
    target = describe_target(full)
    check_declarations(target)
    declared = {*unsupported_steps(target.facts)}
    declared |= {step for name in (probe.lacks if probe else ()) for step in FEATURES[name].steps}
    result = Investigation(spec, probe)
    pool = PlacedPool(place, full, limits, jobs, [of_step.__name__, of_opinfo.__name__, *MODULES])
    try:
        result.environment = pool.ask_first(environment, full)
        opinfos = pool.ask_first(of_opinfo.names, full)
        steps = [name for name, op in OPS.items() if not {name, op.family} & declared]
        todo = {"opinfos": [task(full, of_opinfo.call_of, name) for name in opinfos],
                "steps": [task(full, of_step.subject_of, name) for name in steps]}  # fmt: skip
        for kind in KINDS:
            console.print(f"{len(todo[kind])} {'ops of op_db' if kind == 'opinfos' else 'steps'} to be tried")
            for one in todo[kind]:
                result.trials[kind, one.name] = Attempt(one.name, AttemptOutcome.UNTRIED, said=LATE)
            left = SHARE[kind] * seconds - (time.monotonic() - begin)
            _try(result, kind, trials(pool, todo[kind], max(left, 1.0)), console)
    except KeyboardInterrupt:
        if not result.trials:
            raise
        result.interrupted = signals.signal_number()
    finally:
        pool.close()
    return result


def _try(investigation: Investigation, kind: str, stream: Iterator[Attempt], console: Console) -> None:
    """Record the trials as they end, and print the progress every ten seconds."""
    last = time.monotonic()
    for done, trial in enumerate(stream, 1):
        investigation.trials[kind, trial.name] = trial
        if trial.outcome is AttemptOutcome.DIED:
            console.print(f"{trial.name} {escape_control_characters(trial.said)}")
        if time.monotonic() - last >= 10:
            last = time.monotonic()
            console.print(f"{done} {kind} tried, {len(investigation.of(AttemptOutcome.LACKING))} without a kernel")
