"""Finds the first sample of an OpInfo as a program: forward, in the first dtype that the device holds.

This module imports torch only in a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.record.names import DTYPES
from conformance.run.worker import loaded
from conformance.sources.opinfo.plan import Case

if TYPE_CHECKING:
    from conformance.engine.target import Target
    from conformance.program.execute import ProgramSubject


def names(spec: str) -> list[str]:
    """Return the names of all OpInfos, in a worker that has loaded the target."""
    loaded(spec)
    from conformance.sources.opinfo import catalog

    return [entry.name for entry in catalog.entries()]


def call_of(target: Target, name: str) -> ProgramSubject | str:
    """Return the program of the OpInfo of this name, or the reason why there is none."""
    import torch

    from conformance.program.execute import ProgramSubject
    from conformance.sources.opinfo import catalog
    from conformance.sources.opinfo.sampling import samples
    from conformance.sources.opinfo.variants import Skip, trials_of

    (entry,) = (entry for entry in catalog.entries() if entry.name == name)
    held = target.facts.dtypes
    known = [dtype for dtype in DTYPES if held is None or getattr(torch, dtype) in held]
    dtype = next((dtype for dtype in known if dtype in entry.dtypes), None)
    if dtype is None:
        return "the device holds none of its dtypes"
    case = Case(entry.op, entry.overload, entry.family, dtype, "forward", "as_sampled")
    sample = next(samples(catalog.find(case), "forward", getattr(torch, dtype), "as_sampled", 1), None)
    try:
        trial = next(trials_of(case, sample, target), None) if sample is not None else None
    except Skip:
        trial = None
    return ProgramSubject(trial.program) if trial is not None else "no sample"
