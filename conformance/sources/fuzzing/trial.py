"""One trial of a drawn step on a target: the plainest program that has it, with as few steps before it as possible.

Defines `program_with` and `trial`. `conformance init` and each run's check of the profile must try the same program, so
the program depends on the step's name alone.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from conformance.declare import profile as profiles
from conformance.declare.probed import Probe
from conformance.engine.trial import attempt
from conformance.program.execute import Broken, ProgramSubject
from conformance.program.model import Program
from conformance.program.shadow import Shadow
from conformance.program.steps.draw import Draw, DrawContext
from conformance.program.steps.op import dtype_name
from conformance.program.steps.stateful import NAME as STATE
from conformance.program.steps.table import OPS
from conformance.record import result as model
from conformance.record.missing_ops import Outcome, Trial
from conformance.record.result import Finding, Result
from conformance.run.execution_place import LOCAL, Place
from conformance.run.messages import COMPILING, Limits, Task
from conformance.run.profile_trials import still_lacking
from conformance.run.worker import loaded, step, unit
from conformance.sources.fuzzing.drawing import DTYPES, draw_inputs, draw_step, families_of

MODULES = (__name__,)
TRIED = 40
"""Number of programs drawn with no earlier step, then with one, two, and so on. The plainest one is used."""
MOST_BEFORE = 4


def task(spec: str, name: str) -> Task:
    """The trial of the step of this name as a task of a pool."""
    return Task(name, trial, (spec, name))


def contradictions(
    spec: str, limits: Limits, seconds: float, seen: Probe | None = None, place: Place = LOCAL
) -> tuple[list[Result], list[str]]:
    """Evidence against the target's profile: results and notes.

    Each result is an XPASS. Its subject is an operator that the profile declares lacking for a step and that a trial
    finds present, or an excluded feature or dtype that the probe has `seen`. The notes name entries that were not tried
    within `seconds`, and features or dtypes that are missing and not declared."""
    profile = profiles.load(spec)
    tasks = [task(spec, one.scope.step[0]) for one in profile.unsupported("operator").values() if one.scope.step]
    remedy = functools.partial(profile.remedy, "step")
    there, notes = still_lacking(spec, limits, MODULES, tasks, remedy, seconds, place)
    more, other = profile.contradicted(seen)
    there, notes = {**more, **there}, [*notes, *other]
    found = [Finding(f"declared lacking: {name}", "XPASS", 0, step=name) for name in there]
    made = [
        Result(one.step, "", "program", "", model.Outcome.XPASS, reason=there[one.step], finding=one) for one in found
    ]
    return made, notes


def trial(spec: str, name: str) -> Trial:
    """Try the step of this name. Runs in a worker."""
    target = loaded(spec)
    held = {dtype_name(dtype) for dtype in target.dtypes} if target.dtypes is not None else {*DTYPES}
    dtypes = [dtype for dtype in dict.fromkeys(DTYPES) if dtype in held]
    program = program_with(name, dtypes)
    if program is None:
        return Trial(name, Outcome.UNTRIED, said="no program of it could be drawn in the dtypes that the device holds")
    with unit(name):
        step(name, COMPILING)  # builds the first kernels
        return attempt(name, ProgramSubject(program), target)


def program_with(name: str, dtypes: Sequence[str]) -> Program | None:
    """The plainest program whose last step is this one, in the first of the dtypes if possible; None if drawing finds
    none."""
    for before in range(MOST_BEFORE):
        for some in dict.fromkeys((tuple(dtypes[:1]), tuple(dtypes))):
            drawn = [_drawn(name, some, before, number) for number in range(TRIED)] if some else []
            found = [program for program in drawn if program is not None]
            if found:
                return min(found, key=_complexity)
    return None


def _drawn(name: str, dtypes: tuple[str, ...], before: int, number: int) -> Program | None:
    source, op = random.Random(f"{name}:{before}:{number}").randint, OPS[name]
    program = draw_inputs(Draw(source), dtypes, op.family in ("autograd", STATE))
    shadow = Shadow(program)
    k = DrawContext(source, shadow, dtypes, False)
    try:
        while len(shadow.steps) < before:
            count = len(shadow.steps)
            draw_step(k, families_of(op.family), None)
            if len(shadow.steps) == count:
                return None
        if op.fits is not None and not k.holds(op.fits):
            return None
        drawn = op.draw(k)
        offered = shadow.offer(drawn) if drawn is not None else None
    except Broken:
        return None
    if offered is None or (offered.raises is not None and op.family != "errors"):
        return None
    return program.with_steps(tuple(shadow.steps))


def _complexity(program: Program) -> tuple[int, int, int]:
    """Sort key of parts that do not concern the last step: inputs that are not dense, inputs, elements."""
    dense = sum(one.offset == 0 and list(one.stride) == sorted(one.stride, reverse=True) for one in program.inputs)
    elements = sum(storage.size for storage in program.storages)
    return len(program.inputs) - dense, len(program.inputs), elements
