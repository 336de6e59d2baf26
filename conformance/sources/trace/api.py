"""`conformance.trace`: a context that judges each operator call of a device inside it.

Defines `Trace` and `trace`. The command and the context manager share everything but the script.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from conformance.engine.target import Target
from conformance.record.errors import UsageError
from conformance.record.files import write_atomic
from conformance.record.names import TORCH_CPU, TRACE
from conformance.record.result import Failure, Outcome, Result, Run, counted
from conformance.record.sentences import sentence
from conformance.record.shortfall import FINDINGS, Shortfall, describe
from conformance.sources.trace.compiled import SECONDS, Compiled
from conformance.sources.trace.faults import FaultyOperator
from conformance.sources.trace.mode import BOTH_RAISE, CallCounts, Options, Tracing, loaded
from conformance.sources.trace.script import scripted
from conformance.sources.trace.source_lines import PHASES
from conformance.standalone.modes import move_to_top

_OVERLOAD = re.compile(r"\w+\.\w+\.\w+")
"""Name of an operator of the dispatcher, as `aten.add.Tensor`; a compiled graph has another name."""

FINITE = "finite arithmetic"
"""What a search for nan and inf compares with."""

AGAINST = "against"
"""The phase of the case about the place where a run and a saved one part."""

MOST_NAMED = 3
"""Number of operators without a verdict that the summary names."""

MOST_SCRIPTS = 20
"""Number of faults that get a script, the worst of each phase first."""


class Trace:
    """The result of a trace, readable while it goes on and afterwards."""

    def __init__(self, target: Target | None, options: Options, progress: Callable[[Trace], None]) -> None:
        self.mode = Tracing(target, options, lambda mode: progress(self))
        self.compiled = Compiled(self.mode, lambda: progress(self))
        self.options = options
        self._entered = target.entered if target is not None else contextlib.nullcontext
        self.started, self._began, self.seconds = datetime.now(UTC).isoformat(timespec="seconds"), monotonic(), 0.0

    @property
    def judged(self) -> int:
        """Number of judged calls."""
        return self.mode.judged

    @property
    def faults(self) -> list[FaultyOperator]:
        """The wrong operators: of the forward pass, of the backward pass and of the optimizer, the worst of each
        first."""
        return self.mode.faults.all()

    @property
    def loss(self) -> float | None:
        """The value of the last scalar root of a backward pass."""
        return self.mode.faults.loss

    @property
    def devices(self) -> list[str]:
        """The types of the devices and the names of the compilers that the trace has seen."""
        return [*self.mode.targets, *self.compiled.compilers]

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Trace the calls inside the block."""
        places = self.mode.places

        def begin(*_: Any) -> None:
            places.optimizing += 1

        def end(*_: Any) -> None:
            places.optimizing -= 1
            self.mode.step += 1

        hooks = register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)
        try:
            with self._entered(), self.compiled.traced(), self.mode:
                try:
                    yield
                finally:
                    move_to_top(self.mode)  # a device may push modes of its own when the script imports it
        finally:
            for hook in hooks:
                hook.remove()
            places.optimizing = 0
            with self.mode.paused():
                if self.mode.writer is not None:
                    self.mode.writer.close({"device": ", ".join(self.devices), "torch": torch.__version__})
                self.seconds = monotonic() - self._began

    def attribute(self, seconds: float = SECONDS) -> None:
        """Find the wrong nodes of wrong graphs, and add them to the faults. After `seconds` no further node is
        compiled."""
        self.compiled.attribute(seconds)

    def write_scripts(self, folder: Path | None = None) -> None:
        """Minimize the smallest wrong call of each fault and keep its script, also as a file of the folder, if any. A
        script compares with torch CPU, so nan and inf have none."""
        if self.options.nonfinite:
            return
        ranked = [self.mode.faults.ranked(phase) for phase in PHASES]
        most = max(map(len, ranked), default=0)
        order = [faults[at] for at in range(most) for faults in ranked if at < len(faults)]
        for fault in order[:MOST_SCRIPTS]:
            if not fault.script:
                fault.script = scripted(fault)
            if fault.script and folder is not None:
                name = re.sub(r"[^a-z0-9_.]+", "-", f"{fault.phase} {fault.name} {fault.place}".lower())
                fault.file = folder / f"trace-{name}.py"
                write_atomic(fault.file, fault.script)

    def __str__(self) -> str:
        said = describe(self.not_judged)
        return "\n".join([*self.lines(), *([said] if said else [])])

    def lines(self) -> Iterator[str]:
        """Yield the summary for a terminal."""
        for phase in PHASES:
            faults = self.mode.faults.ranked(phase)
            if faults:
                yield f"{phase}: {self._found(len(faults))}"
            for fault in faults:
                tally = self.mode.tallies[fault.group or fault.name, phase]
                unit = f"calls of {fault.group}" if fault.group else "calls"
                text = fault.described(self.loss)
                yield f"  {fault.name}, {fault.place}: {fault.place.code}".removesuffix(": ")
                yield f"    {', '.join(filter(None, (text, f'wrong in {fault.wrong} of {tally.judged} {unit}')))}"
                yield f"    {sentence(fault.mismatch).partition('; ')[0]}"
                if fault.file is not None:
                    yield f"    script: {fault.file}"
        yield from self.notes()
        if self.mode.divergence is not None:
            yield from self.mode.divergence.lines()
        wrong = self._verdict()
        unjudged = self.unjudged_calls
        if unjudged:
            count, more = sum(unjudged.values()), len(unjudged) - MOST_NAMED
            named = ", ".join(list(unjudged)[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            left = f"{count:,} of {count + self.judged:,} calls were not judged, of {named}"
            wrong = f"{wrong}; {left}" if self.faults else f"no verdict, since {left}"
        yield f"{counted(self.judged, 'call')} judged on {', '.join(self.devices) or 'no device'}: {wrong}"

    def _found(self, count: int) -> str:
        """Return what was found about a number of operators."""
        what = "nan or inf out of finite inputs"
        if count == 1:
            return f"1 operator makes {what}" if self.options.nonfinite else "1 operator is wrong"
        return f"{count} operators make {what}" if self.options.nonfinite else f"{count} operators are wrong"

    def _verdict(self) -> str:
        """Return the verdict about the judged calls."""
        first = next(iter(self.mode.faults.in_order), None)
        if not self.options.nonfinite:
            return counted(len(self.faults), "wrong operator") if first else "no wrong operator"
        return f"the first nan or inf is that of {first.name}, {first.place}" if first else "no nan or inf"

    @property
    def unjudged_calls(self) -> dict[str, int]:
        """The number of calls that could not be judged, by operator. One of them may be wrong, so a trace with such
        calls has no verdict. Calls that raise on both sides, and those that the options exclude, do not count."""
        numbers = Counter[str]()
        for (name, _), tally in self.mode.tallies.items():
            numbers[name] += tally.unjudged.total() - tally.unjudged[BOTH_RAISE]
        return {name: count for name, count in numbers.most_common() if count}

    @property
    def exit_code(self) -> int:
        """The exit code of a trace without failures: 2 if the saved run has no call of it, or if calls could not be
        judged."""
        divergence = self.mode.divergence
        nothing = divergence is not None and divergence.saved is not None and not divergence.saved.compared
        return 2 if nothing or self.unjudged_calls else 0

    def notes(self) -> Iterator[str]:
        """Yield sentences about calls that were not judged, or that pass only by float64."""
        unjudged = Counter[str]()
        for tally in self.mode.tallies.values():
            unjudged += tally.unjudged
        for reason, count in unjudged.most_common(5):
            yield f"{counted(count, 'call')} not judged: {reason}"

    @property
    def not_judged(self) -> list[Shortfall]:
        """What a limit kept from being judged: nodes of wrong graphs, and wrong operators without a small script."""
        faults, rows = self.faults, [*self.compiled.not_judged]
        scripted = [fault for fault in faults if fault.script]
        if scripted and len(scripted) < len(faults):
            what, missing = "wrong operators with a script", len(faults) - len(scripted)
            rows.append(Shortfall(what, missing, len(faults), f"{MOST_SCRIPTS} scripts"))
        if cut := sum(fault.cut for fault in scripted):
            rows.append(Shortfall(FINDINGS, cut, len(scripted), "time of one finding"))
        return rows

    def run(self) -> Run:
        """Return the results in the form of the reports: one case for each operator in each phase."""
        specs = [target.spec for target in self.mode.targets.values()]
        result = Run(",".join([*specs, *self.compiled.compilers]) or "none")
        result.results = [self._result(name, phase, tally) for (name, phase), tally in self.mode.tallies.items()]
        result.results += self._parting()
        result.reference = FINITE if self.options.nonfinite else TORCH_CPU
        parting = [] if self.mode.divergence is None else [*map(str.strip, self.mode.divergence.lines())]
        result.notes, result.started, result.seconds = [*self.notes(), *parting], self.started, round(self.seconds, 2)
        for target in self.mode.targets.values():
            result.environment |= target.environment()
        return result

    def _result(self, name: str, phase: str, tally: CallCounts) -> Result:
        faults = [fault for fault in self.mode.faults.ranked(phase) if (fault.group or fault.name) == name]
        op, overload = name.rpartition(".")[::2] if "." in name else (name, "")
        family = name.partition(".")[0] if _OVERLOAD.fullmatch(name) else ""
        result = Result(op, "", phase, TRACE, Outcome.PASS, overload, family, samples=tally.judged)
        result = result.replace(arbitrated=tally.arbitrated, tolerated=tally.tolerated)
        if faults:
            failures = tuple(map(self._failure, faults))
            wrong = sum(fault.wrong for fault in faults)
            return result.replace(
                outcome=Outcome.FAIL, failed=wrong, failures=failures, samples=max(tally.judged, wrong)
            )
        if not tally.judged:
            reason = next(iter(tally.unjudged), "the options exclude it")
            return result.replace(outcome=Outcome.SKIP, skipped=tally.seen, reason=reason)
        return result

    def _parting(self) -> list[Result]:
        """Return a failing case if the run and the saved one part."""
        divergence = self.mode.divergence
        if divergence is None or divergence.saved is None or divergence.parting is None:
            return []
        parting, saved = divergence.parting, divergence.saved
        off = f"{parting.saved:.2g} off in {saved.path.name}" if parting.reason else f"{parting.device:.2g} off here"
        call = f"{parting.place}: {parting.place.code}, {parting.cause}"
        failure = Failure("value", parting.where, "right but for rounding", f"{off} (relative error)", call=call)
        result = Result(parting.name, "", AGAINST, TRACE, Outcome.FAIL, samples=saved.compared, failed=1)
        return [result.replace(failures=(failure,))]

    def _failure(self, fault: FaultyOperator) -> Failure:
        place = f"{fault.place}: {fault.place.code}"
        place = f"{fault.name}, {place}" if fault.group else place
        text = ", ".join(filter(None, (place, fault.described(self.loss), counted(fault.wrong, "wrong call"))))
        return Failure.of(fault.mismatch, call=text, script=fault.script, cut=fault.cut)


@contextlib.contextmanager
def trace(
    target: str | None = None,
    *,
    every: int = 1,
    operators: Iterable[str] = (),
    steps: tuple[int, int] | None = None,
    divergence: bool = False,
    nonfinite: bool = False,
    save: str | Path | None = None,
    against: str | Path | None = None,
    progress: Callable[[Trace], None] = lambda trace: None,
) -> Iterator[Trace]:
    """Judge each operator that a device runs inside the block: torch CPU computes the same call on copies of its
    inputs. Yields the `Trace`, whose `faults` name the wrong operators; `print(trace)` shows them.

    `target` is the spec of a target with a device; without it, every device but the CPU is traced. `every` judges only
    each n-th call of an operator, `operators` only operators that match one of these patterns (`aten.add*`), and
    `steps` only training steps from the first to the last, counted from 1 by the steps of optimizers. `divergence` also
    compares the run with a free run of torch CPU, and tells where the two part. With `nonfinite`, calls are not
    compared with torch CPU: the faults are operators that make nan or inf out of finite inputs, on any device, the CPU
    included. `save` is a file for the results of the selected calls, and `against` such a file, perhaps of another
    machine, with which the run is compared as by `divergence`. `progress` is called after each judged call.

    Raises UsageError for a target that transforms functions instead of having a device, and TargetError.
    """
    tracer = Trace(
        device_target(target) if target else None,
        Options(every, tuple(operators), steps, divergence, nonfinite, *map(_path, (save, against))),
        progress,
    )
    with tracer.active():
        yield tracer
    tracer.attribute()
    tracer.write_scripts()


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def device_target(spec: str) -> Target:
    """Return the prepared target of a spec. Raises UsageError if it has no device, and TargetError."""
    target = loaded(spec)
    if target.facts.transforms_program or not target.facts.shows_values:
        raise UsageError(f"--target {spec} has no device whose operators can be traced: give device:NAME or tiny")
    return target
