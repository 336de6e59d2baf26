"""What a worker process of the OpInfo run does: list op_db, and run one case after the other.

The key insight: the process that collects results must be able to name these functions without importing torch, so
everything that they need is imported inside of them.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from conformance.core.errors import TargetError
from conformance.core.names import VARIANTS
from conformance.core.result import Result
from conformance.opinfo.plan import Case, Entry
from conformance.run.messages import COMPILING
from conformance.run.worker import loaded, step, unit

CALIBRATE_EVERY = 20
"""Cases between two calibration loops of a worker."""


def catalog(
    target: str, variants: Collection[str] = (), beside: bool = False
) -> tuple[list[Entry], dict[str, str], str, frozenset[str], tuple[str, ...]]:
    """op_db, and with `beside` the entries beside it, without the variants that the target cannot show; the target's
    environment; the lines that a script needs to use it; the features that it lacks; and its `without_backend`. Raises
    TargetError, also where the target cannot show one of `variants`, asked for by name."""
    under_test = loaded(target)
    left_out = under_test.unsupported_variants
    refused = [variant for variant in VARIANTS if variant in variants and variant in left_out]
    if refused:
        left = ",".join(variant for variant in VARIANTS if variant not in left_out)
        raise TargetError(
            f"target {target!r} cannot show the variant {refused[0]}, by its own declaration: choose among "
            f"--variant {left}"
        )
    from conformance.opinfo import catalog as op_db
    from conformance.opinfo import seeding

    # As plain text: torch's version is an object, and reading it back would import torch in the parent.
    environment = {
        **{name: str.__str__(text) for name, text in under_test.environment().items()},
        "seed": f"{seeding.SEED}",
    }
    shown = [replace(entry, variants=entry.variants - left_out) for entry in op_db.entries(beside)]
    return shown, environment, under_test.script(), under_test.lacks, under_test.without_backend


def run(target: str, case: Case) -> tuple[Result, float]:
    """The case's result, and at every `CALIBRATE_EVERY`th case the seconds of the calibration loop, else 0."""
    global _cases_run
    under_test = loaded(target)
    from conformance.opinfo.case import run_case

    def note(sample: int, phase: str, builds: bool = False) -> None:
        step(f"{sample}\t{phase}", COMPILING if builds else phase)

    with unit(case.id):
        note(0, "sampling")
        result = run_case(case, under_test, note)
    _cases_run += 1
    return result, calibration_loop() if _cases_run % CALIBRATE_EVERY == 1 else 0.0


_cases_run = 0


def calibration_loop() -> float:
    """Seconds of a fixed piece of work of the kind that a run consists of: Python, and small torch calls."""
    import torch

    begin = time.perf_counter()
    small, total = torch.ones(16, 16), 0
    for number in range(2_000):
        small = small.add(1.0).t()
        total += len(str(number))
    return time.perf_counter() - begin
