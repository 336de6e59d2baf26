"""Probe of a device before a run, with every trial in a worker.

Defines `resolve` and `probe`. Each trial is a unit with its own limits, and the worker writes it to the note before it
begins. If a trial kills the worker, that is its answer, and the probe starts again without this trial.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from conformance.declare import profile as profiles
from conformance.declare.features import FEATURES
from conformance.declare.probed import UNENDED, Probe, ProbedFeature, TrialAnswer
from conformance.declare.profile import Profile
from conformance.record.errors import TargetError
from conformance.record.names import BUILTIN, DTYPES, without_relations
from conformance.run.execution_place import LOCAL, ExecutionPlace
from conformance.run.messages import COMPILING, Limits, OutOfTime, WorkerDied, unusable
from conformance.run.placed_pool import PlacedPool
from conformance.run.worker import loaded, step, unit

if TYPE_CHECKING:
    from conformance.engine.target import Target

TRIAL_SHARE, SHORTEST_TRIAL = 0.25, 5.0
"""Share of the run's time that one trial of the probe may take without a profile, and the least such limit in
seconds."""

SURE = frozenset(BUILTIN) - {"device", "tinygrad-upstream"}
"""Kinds of targets that declare their own lacks."""


def resolve(
    spec: str, limits: Limits, place: ExecutionPlace = LOCAL, *, strict: float = 0.0, seconds: float = math.inf
) -> tuple[str, Probe | None]:
    """Return the spec and the probe, or None without one. A probe of a device completes its spec with `without=`.

    Targets that declare their own lacks are not probed. A profile is trusted; with `strict` above 0 it is also probed,
    for at most `strict` seconds, but its declarations remain in force. The profile's environment variables are set from
    here on. The probe takes at most `seconds`. Raises TargetError and Stopped.

    Without a profile, a trial that takes a quarter of `seconds` counts as one that hangs: the probe names it and goes
    on. With a profile it must not, since a slow trial would then contradict a true profile.
    """
    profile = profiles.of(spec)
    if profile is not None:
        profile.activate()
        if not strict or (profile.kind in SURE and not profile.tried):
            return spec, None
        with PlacedPool(place, spec, limits) as pool:
            return spec, probe(pool, min(strict, seconds))
    kind = without_relations(spec).partition(":")[0]
    if kind in SURE:
        return spec, None
    from conformance.engine.loading import describe_target

    if not describe_target(spec).facts.probed:
        return spec, None
    limits = replace(limits, compiling=min(limits.compiling, max(TRIAL_SHARE * seconds, SHORTEST_TRIAL)))
    with PlacedPool(place, spec, limits) as pool:
        probed = probe(pool, seconds)
    if probed.unmade:
        raise TargetError(f"target {spec!r} was not run: {probed.unmade}; give more --minutes")
    return f"{spec},without={'+'.join(sorted(probed.lacks)) or 'nothing'}", probed


def probe(pool: PlacedPool, seconds: float = math.inf) -> Probe:
    """Probe the device of the pool's target for at most `seconds`, which count from when the target is loaded.

    Raises TargetError if the target cannot be loaded, or if values do not survive the way to the device and back.
    """
    fatal: dict[str, str] = {}
    pool.ask_first(os.getpid)
    begin, until = time.monotonic(), time.time() + seconds
    while True:
        try:
            result: Probe = pool.ask(_probed, pool.target, fatal, until=until)
        except OutOfTime:
            return Probe(seconds=seconds, unmade=f"{UNENDED} within {seconds:.0f} s")
        except WorkerDied as died:
            note = died.death.note
            if note is None or not note.unit or note.unit in fatal:
                raise unusable(pool.target, died.death) from None
            fatal[note.unit] = died.death.said
        else:
            result = replace(result, seconds=time.monotonic() - begin)
            if result.unmade:
                return result
            moves = result.rows[0]
            if moves.answer != "yes":
                raise TargetError(
                    f"target {pool.target!r} cannot be tested: float32 values do not survive the way to the device and "
                    f"back ({moves.detail})"
                )
            return result


def _probed(spec: str, fatal: Mapping[str, str]) -> Probe:
    """Run, in a worker, all trials except those that have killed a worker before."""
    from conformance.engine.probe import TRIALS, dtype_survives, trial

    target, declared, rows, dtypes = loaded(spec), frozenset[str](), [], []
    if target.facts.profile is not None:
        target, unmade = _without_profile(target, target.facts.profile)
        if unmade:
            return Probe(unmade=unmade)
        declared = target.facts.lacks
    for name in (*TRIALS, *(f"dtype {name}" for name in DTYPES)):
        if name in fatal:
            row = ProbedFeature(name, TrialAnswer.DIED, fatal[name])
        else:
            with unit(name):
                step(name, COMPILING)  # the first kernels of a device are compiled here
                if name not in TRIALS:
                    dtypes += [name.removeprefix("dtype ")] * dtype_survives(target, name.removeprefix("dtype "))
                    continue
                row = trial(target, name)
        rows.append(row)
        if name in FEATURES and row.answer is not TrialAnswer.YES:
            target.facts = target.facts.without({name})
    return Probe(tuple(rows), tuple(dtypes), declared)


def _without_profile(target: Target, profile: Profile) -> tuple[Target, str]:
    """Return the loaded target without its profile's declarations, and the reason why it cannot be probed, or ""."""
    from conformance.engine.loading import describe_target

    plain, bare = describe_target(profile.spec), copy.copy(target)
    bare.facts = replace(bare.facts, lacks=plain.facts.lacks)
    if plain.facts.transforms_program:
        return bare, "it transforms functions, and moves nothing to a device"
    if not (plain.facts.probed or profile.tried):
        return bare, "its class says what it lacks"
    return bare, "" if plain.facts.shows_values else "its tensors hold no values"
