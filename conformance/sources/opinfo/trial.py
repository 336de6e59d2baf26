"""Trial of an OpInfo on a target: its first sample, forward, in the first dtype that the device holds.

`conformance init` and the checks of a profile in each run must make the same call. This module imports torch only in a
worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.declare import profile as profiles
from conformance.declare.probed import Probe
from conformance.declare.stale_declarations import stale_declarations
from conformance.record import result as model
from conformance.record.missing_ops import DECLARED, MissingOperator, Outcome, Trial
from conformance.record.names import DTYPES
from conformance.record.result import Result
from conformance.run.execution_place import LOCAL, Place
from conformance.run.messages import COMPILING, Limits, Task
from conformance.run.profile_trials import still_lacking
from conformance.run.worker import loaded, step, unit
from conformance.sources.opinfo.plan import Case

MODULES = (__name__, "conformance.sources.opinfo.variants", "conformance.engine.trial")


def task(spec: str, name: str) -> Task:
    """Return the trial of this OpInfo as a task for a pool."""
    return Task(name, trial, (spec, name))


def contradictions(
    spec: str, limits: Limits, rows: Sequence[MissingOperator], seen: Probe | None = None, place: Place = LOCAL
) -> tuple[list[Result], list[str]]:
    """Return evidence against the target's profile, and notes.

    An XPASS stands for each operator of `rows` for which one trial succeeds, and for each feature or dtype that the
    profile excludes and the probe has `seen`. The notes list trials that were not made, and lacks that are not
    declared.
    """
    profile, operators = profiles.load(spec), {row.operator for row in rows}
    names = [entry.opinfos[0] for entry in profile.lacking if entry.opinfos and entry.operator in operators]
    tasks = [task(spec, name) for name in names]
    there, notes = still_lacking(spec, limits, MODULES, tasks, lambda name: profile.told(name, "opinfos"), place=place)
    more, other = stale_declarations(profile, seen)
    made = {
        name: Result(name, "", DECLARED, "", model.Outcome.XPASS, reason=said)
        for name, said in {**more, **there}.items()
    }
    return list(made.values()), [*notes, *other]


def names(spec: str) -> list[str]:
    """Return the names of all OpInfos, in a worker that has loaded the target."""
    loaded(spec)
    from conformance.sources.opinfo import catalog

    return [entry.name for entry in catalog.entries()]


def trial(spec: str, name: str) -> Trial:
    """Run, in a worker, the trial of the OpInfo of this name."""
    target = loaded(spec)
    import torch

    from conformance.engine.trial import attempt
    from conformance.sources.opinfo import catalog
    from conformance.sources.opinfo.sampling import samples
    from conformance.sources.opinfo.variants import VARIANTS, Skip

    (entry,) = (entry for entry in catalog.entries() if entry.name == name)
    held = {str(dtype).removeprefix("torch.") for dtype in target.dtypes} if target.dtypes is not None else {*DTYPES}
    dtype = next((dtype for dtype in DTYPES if dtype in entry.dtypes and dtype in held), None)
    if dtype is None:
        return Trial(name, Outcome.UNTRIED, said="the device holds none of its dtypes")
    op = catalog.find(Case(entry.op, entry.overload, entry.family, dtype, "forward", "as_sampled"))
    with unit(name):
        step(name, COMPILING)  # the first kernel is compiled here
        sample = next(samples(op, "forward", getattr(torch, dtype), "as_sampled", 1), None)
        try:
            call = next(VARIANTS["forward"](op, sample), None) if sample is not None else None
        except Skip:
            call = None
        return attempt(name, call, target) if call is not None else Trial(name, Outcome.UNTRIED, said="no sample")
