"""Probing a device before anything runs on it: every trial in a worker, so that one that kills it is an answer, too.

Defines `resolve` and `probe`. The key insight: a trial is a unit of its own with the limits of one, noted before it
begins; after a death the probe is made anew without the trial that the worker died of.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.core import profile as profiles
from conformance.core.errors import TargetError
from conformance.core.features import FEATURES
from conformance.core.names import BUILTIN, DTYPES
from conformance.core.probed import Answer, Probe, Row
from conformance.run.messages import COMPILING, Limits, Pool, WorkerDied, unusable
from conformance.run.place import LOCAL, Place
from conformance.run.worker import loaded, step, unit


def resolve(spec: str, limits: Limits, place: Place = LOCAL) -> tuple[str, Probe | None]:
    """The spec that says what the device lacks, and the probe that found it out; a target that says so itself is not
    probed. A profile's environment variables are set from here on. Raises TargetError, and Stopped."""
    profile = profiles.of(spec)
    if profile is not None:
        profile.activate()
        return spec, None
    kind = spec.partition(":")[0]
    if kind in BUILTIN and kind not in ("device", "tinygrad-upstream"):
        return spec, None
    from conformance.core.loading import describe_target

    if not describe_target(spec).probed:
        return spec, None
    with place.pool(spec, limits) as pool:
        made = probe(pool, spec)
    return f"{spec},without={'+'.join(sorted(made.lacks)) or 'nothing'}", made


def probe(pool: Pool, spec: str) -> Probe:
    """What the device of this target has. Raises TargetError where the target cannot be loaded, or values do not
    survive the way to the device and back."""
    fatal: dict[str, str] = {}
    while True:
        try:
            made: Probe = pool.ask(_probed, spec, fatal)
        except WorkerDied as died:
            note = died.death.note
            if note is None or not note.unit or note.unit in fatal:
                raise unusable(spec, died.death) from None
            fatal[note.unit] = died.death.said
        else:
            moves = made.rows[0]
            if moves.answer != "yes":
                raise TargetError(
                    f"target {spec!r} cannot be tested: float32 values do not survive the way to the device and back "
                    f"({moves.detail})"
                )
            return made


def _probed(spec: str, fatal: Mapping[str, str]) -> Probe:
    """In a worker: all trials but those that are known to end one."""
    from conformance.core.probe import TRIALS, dtype_survives, trial

    target, rows, dtypes = loaded(spec), [], []
    for name in (*TRIALS, *(f"dtype {name}" for name in DTYPES)):
        if name in fatal:
            row = Row(name, Answer.DIED, fatal[name])
        else:
            with unit(name):
                step(name, COMPILING)  # the first kernels of a device are built here
                if name not in TRIALS:
                    dtypes += [name.removeprefix("dtype ")] * dtype_survives(target, name.removeprefix("dtype "))
                    continue
                row = trial(target, name)
        rows.append(row)
        if name in FEATURES and row.answer is not Answer.YES:
            target.without(frozenset({name}))
    return Probe(tuple(rows), tuple(dtypes))
