"""How two runs of one call differ: the oracle's comparison, under what OpInfo says of the op's results.

Defines `judge`. The key insight: what OpInfo says (of values that nothing defines, of signs and phases that are free,
of the text of an error) can only take mismatches away or add some; what 'equal' means remains the oracle's. Where only
rounding is in question, the call's truth in float64 is asked, and that a sample passed by it is told.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch

from conformance.core.arbitration import ARBITRATED, arbitrate
from conformance.core.moving import storage_key
from conformance.core.observation import Observation, observe, out_of_memory
from conformance.core.oracles import Mismatch, compare
from conformance.core.target import Target
from conformance.opinfo import catalog
from conformance.opinfo.plan import Case
from conformance.opinfo.sampling import MARKER, Mixed, leaves, tensors
from conformance.opinfo.truth import truth_of
from conformance.opinfo.variants import Call, reference

Side = tuple[Observation, Any]
"""What was seen of a call, and its outcome itself: None when it raised."""


def judge(
    case: Case, op: Any, dtype: torch.dtype, target: Target, call: Call, here: Side, there: Side
) -> tuple[list[Mismatch], bool]:
    """The mismatches between the CPU's side and the target's, and whether there is none only because the target agrees
    with the call's truth in float64 and the CPU is no nearer to it."""
    rtol, atol = catalog.tolerances(op, dtype)
    (expected, right), (actual, wrong) = here, there
    # What lies in an out= tensor after a refused call is nobody's promise.
    oracles = {"error"} if case.variant == "error_inputs" else target.oracles
    found = compare(expected, actual, oracles=oracles, rtol=rtol, atol=atol)
    results = {name for name in expected.tensors if name.startswith(("result", "out"))}
    if call.note == "out empty":
        # The op allocated this storage itself; what it leaves outside the result is nobody's promise.
        found = [m for m in found if not (m.oracle == "storage" and m.where in results)]
    if not catalog.has_value(op):
        found = [m for m in found if not (m.oracle in ("value", "storage") and m.where in results)]
    processed = call.sample.process is not None and any(m.oracle == "value" and m.where in results for m in found)
    if processed:
        # OpInfo's own processing is applied to the values brought to the CPU, so that its ops are not under test.
        expected, actual = _processed(call, here, reference()), _processed(call, there, Mixed(target))
        found = [m for m in found if not (m.oracle == "value" and m.where in results)]
        left = compare(expected, actual, oracles={"value", "structure"}, rtol=rtol, atol=atol)
        found += [m for m in left if m.where.startswith(_PROCESSED)]
    arbitrated = False
    if found and all(m.oracle in ARBITRATED for m in found) and (truth := truth_of(call)) is not None:
        seen = _processed(call, truth, reference()) if processed else truth[0]
        found = arbitrate(found, expected, actual, seen, rtol=rtol, atol=atol)
        arbitrated = not found
    found = [*_exhausted(expected, actual), *found, *_misworded(case, call, expected, actual, found)]
    if expected.error is None and actual.error is None:
        found += _misplaced(target, call, right, wrong)
    return found, arbitrated and not found


def _exhausted(expected: Observation, actual: Observation) -> list[Mismatch]:
    if (
        actual.error is None
        or expected.error is not None
        or not out_of_memory(f"{actual.error.kind}: {actual.error.text}")
    ):
        return []
    return [Mismatch("memory", "the whole run", "no error", actual.error.kind, _first_line(actual.error.text))]


def _misworded(
    case: Case, call: Call, expected: Observation, actual: Observation, found: list[Mismatch]
) -> list[Mismatch]:
    """An error input whose error on the CPU has OpInfo's text, and on the target another."""
    if case.variant != "error_inputs" or expected.error is None or actual.error is None or found:
        return []
    pattern = call.sample.error_regex or ""
    if not re.search(pattern, expected.error.text) or re.search(pattern, actual.error.text):
        return []
    want, got = _first_line(expected.error.text), _first_line(actual.error.text)
    return [Mismatch("message", "the error", want, got, f"OpInfo's pattern is {pattern!r}")]


_PROCESSED = "processed"


def _processed(call: Call, side: Side, target: Target) -> Observation:
    """What was seen, and under names of its own what OpInfo's output processing leaves of the outcome."""
    process = call.sample.process
    assert process is not None
    left = observe({_PROCESSED: process(target.fetch(side[1]))})
    return replace(side[0], tensors={**side[0].tensors, **left.tensors}, others={**side[0].others, **left.others})


def _misplaced(target: Target, call: Call, right: Any, wrong: Any) -> list[Mismatch]:
    """A result that lies on the wrong device. A sample that names the CPU itself wants its result there."""
    if target.device.type == "cpu":
        return []
    given = leaves((call.sample.args, call.sample.kwargs))
    named = any(
        leaf == "cpu" or (isinstance(leaf, torch.device) and leaf != MARKER)
        for leaf in given
        if not isinstance(leaf, torch.Tensor)
    )
    kept = {id(t) for t in tensors(call.tree) if t.layout is torch.strided and storage_key(t) in call.sample.kept}
    on_cpu = named or (bool(kept) and len(kept) == len(tensors(call.tree))) or not tensors(call.tree)
    allowed = {"cpu", target.device.type} if on_cpu else {target.device.type}
    odd = [t for t in tensors(wrong) if t.device.type not in allowed]
    return [Mismatch("device", "result", target.device.type, odd[0].device.type)] if odd else []


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
