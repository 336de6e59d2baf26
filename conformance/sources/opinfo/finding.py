"""A mismatch as the report shows it: the call, both answers, the geometry, and the script that shows it.

Everything is converted to text and numbers right after the comparison, since neither tensors nor the target outlive the
worker. This module makes no decisions; the oracles have decided.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy
import torch

from conformance.engine.target import Target
from conformance.program.capture import Unwritable
from conformance.program.execute import RunningProgram
from conformance.program.model import Program
from conformance.program.script import script as program_script
from conformance.program.steps.op import FUNCTION
from conformance.program.steps.table import OPS
from conformance.program.verdict import Verdict
from conformance.record.finding import MOVE
from conformance.record.result import Failure
from conformance.record.sentences import sentence
from conformance.sources.opinfo import script
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sample_program import written
from conformance.sources.opinfo.variants import SampleTrial
from conformance.standalone.observation import Observation
from conformance.standalone.oracles import MAX_SHOWN, Mismatch, Tolerance, differing

LONGEST_LINES = 25
"""Limit on the lines of a minimized script before its comparison part."""

LONGEST_INPUTS = 400
"""Limit on the storage elements of written inputs; a script takes larger inputs from op_db."""


def failure_of(trial: SampleTrial, mismatch: Mismatch, expected: Observation, actual: Observation) -> Failure:
    """Return a mismatch of the program of a sample as a failure."""
    given, program, names = trial.program, None, dict[str, str]()
    with contextlib.suppress(Unwritable):
        program, names = written(trial)
    if program is not None and sum(storage.size for storage in program.storages) > LONGEST_INPUTS:
        program, names = None, {}
    named = _renamed(mismatch, names)
    where = named.where if not given.note else f"{named.where} ({given.note})"
    return Failure.of(
        named,
        where=where,
        sample=trial.sample.index,
        call=script.summary(trial.name, given.trees),
        script=script.standalone(
            trial,
            sentence(replace(named, where=where)),
            named,
            program,
            sparse=any(name.endswith("['layout']") for name in expected.others),
        ),
        **_shown(mismatch, expected, actual, given.tolerance),
    )


def failure_of_program(case: Case, target: Target, failure: Failure, program: Program, verdict: Verdict) -> Failure:
    """Return the failure of a sample as its minimized program shows it: by the first mismatch of the verdict, or as
    before for a failure that ends the process."""
    first, death = next(iter(verdict.mismatches), failure), ""
    if not verdict.mismatches:
        death = sentence(failure)
    again = f"Again: {script.again(case, target.spec, failure.sample)}"
    notes = [f"Minimized from {program.note}", *(["Finding: " + death] if death else []), again]
    text = program_script(program, target, verdict.mismatches, notes, verdict.bad_step, death)
    if not isinstance(first, Mismatch):
        return replace(failure, call=_summary(program), script=text)
    shown = _shown(first, *verdict.sides, program.tolerance) if verdict.sides is not None else {}
    return Failure.of(first, sample=failure.sample, call=_summary(program), script=text, **shown)


def _summary(program: Program) -> str:
    """Return the first call of a program in one line."""
    if not program.steps:
        return MOVE
    step = program.steps[0]
    op, running = OPS[step.op], RunningProgram(program)
    args, kwargs = running.arguments(step)
    name = f"torch.{'Tensor.' * (op.form is not FUNCTION)}{op.call or op.name}"
    return script.summary(name, {"input": args[0], "args": args[1:], "kwargs": kwargs})


def _shown(mismatch: Mismatch, expected: Observation, actual: Observation, tolerance: Tolerance) -> dict[str, Any]:
    """Return the fields of a failure that show values and layouts of both sides."""
    want, got = expected.tensors.get(mismatch.where), actual.tensors.get(mismatch.where)
    rows: tuple[tuple[str, str, str, bool], ...] = ()
    if want is not None and got is not None and mismatch.oracle == "value":
        rows = _rows(want.value, got.value, tolerance)
    elif mismatch.oracle == "storage" and mismatch.where in expected.storages and mismatch.where in actual.storages:
        rows = _rows(expected.storages[mismatch.where], actual.storages[mismatch.where])
    geometry = mismatch.oracle in ("shape", "stride", "storage_offset", "contiguity")
    layouts = {
        name: {
            "size": list(seen.shape),
            "stride": list(seen.metadata["stride"]),
            "offset": seen.metadata["storage_offset"],
        }
        for name, seen in (("expected", want), ("actual", got))
        if geometry and seen is not None
    }
    return {"values": rows, "layouts": layouts}


def _renamed(mismatch: Mismatch, names: Mapping[str, str]) -> Mismatch:
    """Return the mismatch with the names of a program."""
    where = mismatch.where.removeprefix("grad of ")
    ends = (mismatch.expected, mismatch.actual)
    expected, actual = (names.get(end, end) for end in ends) if mismatch.oracle == "alias" else ends
    prefix = mismatch.where.removesuffix(where)
    return replace(mismatch, where=prefix + names.get(where, where), expected=expected, actual=actual)


def _rows(
    want: torch.Tensor, got: torch.Tensor, tolerance: Tolerance | None = None
) -> tuple[tuple[str, str, str, bool], ...]:
    """Return values as (index, expected, actual, differs): all of a small tensor, or those around the first
    difference.
    """
    if want.shape != got.shape or want.dtype != got.dtype or not want.numel():
        return ()
    want, got = (tensor.resolve_conj().resolve_neg() for tensor in (want, got))
    wrong = differing(want, got, False, tolerance).reshape(-1)
    first = int(wrong.nonzero()[0]) if bool(wrong.any()) else 0
    start = 0 if wrong.numel() <= MAX_SHOWN else max(0, min(first - 4, wrong.numel() - MAX_SHOWN // 2))
    stop = wrong.numel() if wrong.numel() <= MAX_SHOWN else start + MAX_SHOWN // 2
    rows = []
    for flat, bad in zip(range(start, stop), wrong[start:stop].tolist(), strict=True):
        index = tuple(map(int, numpy.unravel_index(flat, want.shape)))
        rows.append((str(list(index)), str(want[index].item()), str(got[index].item()), bad))
    return tuple(rows)
