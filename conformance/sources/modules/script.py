"""Standalone script of a failing sample of `module_db` or `optim_db`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.record.names import ORACLES
from conformance.sources.modules.table import ROUND_TRIP, StatefulCase
from conformance.standalone.script import ScriptBody, carried, comparison_options, render

if TYPE_CHECKING:
    from conformance.standalone.oracles import Mismatch


def standalone(case: StatefulCase, setup: str, number: int, finding: str, mismatch: Mismatch | None = None) -> str:
    """Return the script, which takes sample `number` from torch; without a mismatch, that of a crash. `setup` is the
    target's `script()`."""
    dtype, again = f"torch.{case.dtype}", case.variant == ROUND_TRIP
    if case.optimizer:
        called, results = "step_optimizer", "optimizer_round_trip" if again else "optimizer_results"
        sample = f"GIVEN = optimizer_sample({case.optimizer!r}, {dtype}, {number})"
        parameters = f"{case.optimizer!r}, {'step' if again else case.variant!r}"
        program = "def program(optimizer, closure):\n    return step_optimizer(optimizer, closure)"
    else:
        called, results = "call_module", "module_round_trip" if again else "module_results"
        sample = f"MODULE, GIVEN = module_sample({case.op!r}, {dtype}, {case.variant != 'eval'}, {number})"
        parameters = "MODULE"
        program = "def program(module, args, kwargs):\n    return call_module(module, args, kwargs)"
    own = f"{results}_of_sample"
    call = f"def {own}(program, given):\n    return {{'result': {results}(program, {parameters}, given)}}"
    names = [*(("parameters", "gradients", "arguments") if case.optimizer else ("state", "args", "kwargs"))]
    helpers = carried((called, results, "module_sample" if not case.optimizer else "optimizer_sample", "moved"))
    bug = ScriptBody([helpers, sample, call], ["return moved(GIVEN, device)"], names, program, own)
    options = {"apart": "taken_apart", **comparison_options({*ORACLES} - {"version"})}
    notes = [f"Case {case.id}, sample {number}"]
    return render(bug, setup, finding[:500].replace("\n", " "), mismatch, options, notes, roots=("taken_apart",))
