"""The tasks of the OpInfo run: list op_db, and run one case.

The process that collects results must be able to name these functions without importing torch. Each function therefore
imports its dependencies itself.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from conformance.record.errors import TargetError
from conformance.record.measurements import Measure
from conformance.record.names import VARIANTS
from conformance.record.result import Result
from conformance.run.messages import COMPILING
from conformance.run.worker import environment, loaded, step, unit
from conformance.sources.opinfo.arguments import Origin
from conformance.sources.opinfo.plan import Case, Entry

CALIBRATE_EVERY = 20
"""Cases between two calibration loops of a worker."""


def catalog(
    target: str, variants: Collection[str] = (), beside: bool = False
) -> tuple[list[Entry], dict[str, str], str, frozenset[str], tuple[str, ...], tuple[Measure, ...]]:
    """Return op_db without the variants that the target cannot show, and facts about the target.

    With `beside`, add the entries outside op_db. The facts are the target's environment, the lines that set it
    up in a script, the features that it lacks, its `without_backend`, and its measures. Raises
    TargetError, also if the target cannot show one of `variants`, which the user named.
    """
    from conformance.program.unsupported import check_declarations, unsupported_names

    under_test = loaded(target)
    check_declarations(under_test)
    left_out = unsupported_names(under_test.facts, "variant")
    refused = [variant for variant in VARIANTS if variant in variants and variant in left_out]
    if refused:
        left = ",".join(variant for variant in VARIANTS if variant not in left_out)
        raise TargetError(
            f"target {target!r} cannot show the variant {refused[0]}, by its own declaration: choose among "
            f"--variant {left}"
        )
    from conformance.sources.opinfo import catalog as op_db
    from conformance.sources.opinfo import seeding

    facts = {**environment(target), "seed": f"{seeding.SEED}"}
    shown = [replace(entry, variants=entry.variants - left_out) for entry in op_db.entries(beside)]
    stated = under_test.facts
    without = tuple(filter(under_test.is_like, stated.without_backend))
    return shown, facts, under_test.script(), stated.lacks, without, stated.measures


def run(target: str, case: Case, skipped: Collection[int] = (), together: bool = True) -> tuple[Result, float]:
    """Return the case's result without the samples in `skipped`, and the seconds of the calibration loop. With
    `together`, a target that compiles functions gets several calls in one.

    The loop runs at every `CALIBRATE_EVERY`th case; its seconds are 0 at the others."""
    global _cases_run
    under_test = loaded(target)
    from conformance.sources.opinfo.case import run_case

    def note(sample: int, phase: str, builds: bool = False, origin: Origin | None = None) -> None:
        changed = origin.to_json() if origin is not None else ""
        step(f"{sample}\t{phase}\t{changed}", COMPILING if builds else phase)

    with unit(case.id):
        note(0, "sampling")
        result = run_case(case, under_test, note, skipped, together)
    _cases_run += 1
    return result, calibration_loop() if _cases_run % CALIBRATE_EVERY == 1 else 0.0


_cases_run = 0


def calibration_loop() -> float:
    """Return the seconds of a fixed workload similar to a run: Python, and small torch calls."""
    import torch

    begin = time.perf_counter()
    small, total = torch.ones(16, 16), 0
    for number in range(2_000):
        small = small.add(1.0).t()
        total += len(str(number))
    return time.perf_counter() - begin
