"""Comparison of two runs of one op_db call, under OpInfo's statements about the op's results.

Defines `CallPolicy` and `judge_call`. OpInfo states which values are undefined, which signs and phases are free, and
the text of an error. These statements can only remove or add mismatches; the oracles still define equality. If only
rounding is in question, the same call in float64 decides.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.engine.arbitration import subject, widened
from conformance.engine.executor import Execution, Executor
from conformance.engine.judge import Judgement, Policy, first_line, judge
from conformance.engine.target import Target
from conformance.record.names import CHANGED, TIERS
from conformance.sources.opinfo import catalog, undefined
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.truth import truth_of
from conformance.sources.opinfo.variants import Call, draws_numbers, reference
from conformance.standalone.layouts import laid_out
from conformance.standalone.moving import MARKER, leaves, map_leaves, storage_key, tensors
from conformance.standalone.observation import Observation, observe
from conformance.standalone.oracles import Mismatch, compare, differing, show

_PROCESSED = "processed"

LARGE = ("specials_extremes", "specials_large")
"""Tiers where torch CPU's own rounding, or an overflow on the way, may dominate a result."""

AS_GOOD = 4.0
"""Factor on torch CPU's largest error from float64 that a target's error may reach in these tiers, as in the accuracy
of any operator.
"""


@dataclass(frozen=True, kw_only=True)
class CallPolicy(Policy):
    """Comparison policy of one op_db call; `expected` and `actual` are its two runs."""

    op: Any
    case: Case
    call: Call
    target: Target
    expected: Execution
    actual: Execution

    def undefined(self, mismatch: Mismatch) -> bool:
        """Whether the mismatch is about storage outside of the result that the op allocated for an empty out=, or about
        values without a defined meaning.
        """
        values = mismatch.oracle in ("value", "storage", "grad") and "elements differ" in mismatch.detail
        if values and "random" in self.target.lacks and self.draws:
            return True
        if self.case.variant in (*TIERS, *CHANGED) and (
            undefined.of_rounding(self.case, self.expected.last, self.actual.last)
            or (values and self._undecided(mismatch))
        ):
            return True
        if not self._of_result(mismatch):
            changed = self.case.variant in CHANGED and mismatch.oracle in ("value", "storage")
            return changed and not catalog.has_value(self.op)  # such as the input of resize_
        if mismatch.oracle == "storage" and self.call.note == "out empty":
            return True
        return mismatch.oracle in ("value", "storage") and not catalog.has_value(self.op)

    def _undecided(self, mismatch: Mismatch) -> bool:
        """Whether target and CPU differ only where the CPU's answer decides nothing.

        That holds where the CPU differs from itself, as its vectorized and scalar loops do for some special values, and
        where `undefined` says so.
        """
        want, got = (subject(mismatch, seen) for seen in (self.expected.last, self.actual.last))
        if want is None or got is None or (want.dtype, want.shape) != (got.dtype, got.shape):
            return False
        wrong = differing(want, got, False, self.rtol, self.atol)
        again = subject(mismatch, Executor(reference()).run(self._with_gaps()).last)
        if again is not None and (again.dtype, again.shape) == (want.dtype, want.shape):
            wrong &= ~differing(want, again, False, self.rtol, self.atol)
        rounds = TIERS.get(self.case.variant) in LARGE or undefined.cancels(self.case)
        truth = self.in_float64((), self.expected.last) if rounds else None
        right = subject(mismatch, truth) if truth is not None else None
        if right is not None and right.shape == want.shape and want.numel():
            # Sums of very large numbers may cancel or overflow on the way. The CPU's own largest error in the whole
            # result therefore bounds the error allowed for each element.
            bound = AS_GOOD * _distance(want, right.to(want.dtype)).max().nan_to_num(nan=torch.inf)
            wrong &= ~(_distance(got, right.to(want.dtype)) <= bound) & bool(bound.isfinite())
        left = ~undefined.open_to(self.case, self.call, mismatch.oracle, want, got)
        return not bool((wrong & left).any())

    def zeros_of_other_sign(self) -> list[Mismatch]:
        """Return mismatches for zeros whose sign differs from the CPU's, where all of the CPU's loops agree on it."""
        again, found = Executor(reference()).run(self._with_gaps()).last, []
        for name, seen in self.expected.last.tensors.items():
            other, got = again.tensors.get(name), self.actual.last.tensors.get(name)
            if not name.startswith("result") or other is None or got is None or not seen.value.is_floating_point():
                continue
            signs = [side.value.signbit() for side in (seen, got, other)]
            wrong = (seen.value == 0) & (got.value == 0) & (signs[0] != signs[1]) & (signs[0] == signs[2])
            if bool(wrong.any()):
                text = f"{int(wrong.sum())} zeros have the other sign, first at {tuple(wrong.nonzero()[0].tolist())}"
                found.append(Mismatch("value", name, show(seen.value), show(got.value), text))
        return found

    def _with_gaps(self) -> Call:
        """Return the call on inputs with gaps, for which the CPU has no vectorized loops."""
        made: dict[int, Any] = {}
        kept = self.call.sample.kept
        return self.call.on(
            map_leaves(self.call.tree, lambda leaf: made.setdefault(id(leaf), laid_out(leaf, "gaps", kept)))
        )

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the op draws random numbers."""
        return draws_numbers(self.op, self.call.sample)

    def processed(
        self, expected: Observation, actual: Observation, found: Sequence[Mismatch]
    ) -> tuple[Observation, Observation, list[Mismatch]] | None:
        """Apply OpInfo's own processing to both results, on the CPU so that the ops of the processing are not under
        test, and compare again. Returns None if there is no processing or no difference in values.
        """
        free = [m for m in found if m.oracle == "value" and self._of_result(m)]
        if self.call.sample.process is None or not free:
            return None
        want = self._with_processed(expected, self.expected, reference())
        got = self._with_processed(actual, self.actual, self.target)
        left = compare(want, got, oracles={"value", "structure"}, rtol=self.rtol, atol=self.atol)
        kept = [m for m in found if m not in free]
        return want, got, [*kept, *(m for m in left if m.where.startswith(_PROCESSED))]

    def _of_result(self, mismatch: Mismatch) -> bool:
        return mismatch.where.startswith(("result", "out")) and mismatch.where in self.expected.last.tensors

    def in_float64(self, found: Sequence[Mismatch], expected: Observation) -> Observation | None:
        """Return the call's answer in float64."""
        truth = truth_of(self.call)
        if truth is None or not any(name.startswith(_PROCESSED) for name in (*expected.tensors, *expected.others)):
            return truth and truth[0]
        return self._with_processed(truth[0], Execution((truth[0],), outcome=truth[1]), reference())

    def _with_processed(self, seen: Observation, run: Execution, target: Target) -> Observation:
        """Return the observation, extended by the outcome after OpInfo's processing under separate names."""
        process = self.call.sample.process
        assert process is not None
        with target.entered():
            fetched = target.fetch(run.outcome)
        left = observe({_PROCESSED: process(fetched)})
        tensors, others = {**seen.tensors, **left.tensors}, {**seen.others, **left.others}
        return replace(seen, tensors=tensors, others=others)


def _distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return absolute differences in float64, 0 where both values are equal or both are nan."""
    wide = widened(one.dtype)
    same = (one == other) | (one.isnan() & other.isnan())
    return (one.to(wide) - other.to(wide)).abs().where(~same, 0.0)


def judge_call(
    case: Case, op: Any, dtype: torch.dtype, target: Target, call: Call, expected: Execution, actual: Execution
) -> Judgement:
    """Return the mismatches between the CPU's run and the target's."""
    rtol, atol = catalog.tolerances(op, dtype)
    # PyTorch does not define the content of an out= tensor after a refused call.
    refused = case.variant == "error_inputs" or (case.variant in CHANGED and expected.last.error is not None)
    oracles = {"error"} if refused else target.oracles
    sides: dict[str, Any] = {"expected": expected, "actual": actual}
    policy = CallPolicy(oracles, rtol=rtol, atol=atol, op=op, case=case, call=call, target=target, **sides)
    found, arbitrated = judge(expected.last, actual.last, policy)
    if case.variant in CHANGED:
        found = [one for one in found if not _as_refused(call, expected.last, actual.last, one)]
    found = [*found, *_misworded(case, call, expected.last, actual.last, found)]
    if expected.last.error is None and actual.last.error is None:
        found += _misplaced(target, call, actual.outcome)
        found += policy.zeros_of_other_sign() if undefined.has_signed_zeros(case) and not found else []
    # A call that raised did not write its inputs: the error is the cause, and comes first.
    found.sort(key=lambda mismatch: mismatch.oracle not in ("memory", "error"))
    return Judgement(found, arbitrated and not found)


CLEAR = frozenset({"RuntimeError", "TypeError", "ValueError", "IndexError"})
"""Errors by which torch refuses a call. A device may check the arguments of a call in another order than torch CPU."""


def _as_refused(call: Call, expected: Observation, actual: Observation, mismatch: Mismatch) -> bool:
    """Whether the mismatch is about a call with a changed argument, which the target may refuse in its own way.

    The target must refuse what torch CPU refuses, by an error of a kind of `CLEAR`. It may refuse a tensor on another
    device, and copying a tensor without values is not implemented on any.
    """
    origin = call.sample.origin
    if origin is None or actual.error is None or mismatch.oracle != "error":
        return False
    if origin.change.variant == "kind_scalar" and re.search(r"(?i)\bdevice|on (the )?cpu\b", actual.error.text):
        return True  # torch's rules for tensors on two devices, which torch CPU cannot show
    there = not actual.error.not_implemented or origin.change.variant == "refused_device"
    return expected.error is not None and there and not CLEAR.isdisjoint(actual.error.ancestors)


def _misworded(
    case: Case, call: Call, expected: Observation, actual: Observation, found: list[Mismatch]
) -> list[Mismatch]:
    """Return a mismatch for an error input whose error text matches OpInfo's pattern on the CPU but not on
    the target.
    """
    if case.variant != "error_inputs" or expected.error is None or actual.error is None or found:
        return []
    pattern = call.sample.error_regex or ""
    if not re.search(pattern, expected.error.text) or re.search(pattern, actual.error.text):
        return []
    want, got = first_line(expected.error.text), first_line(actual.error.text)
    return [Mismatch("message", "the error", want, got, f"OpInfo's pattern is {pattern!r}")]


def _misplaced(target: Target, call: Call, wrong: Any) -> list[Mismatch]:
    """Return a mismatch for a result on the wrong device. If a sample names the CPU itself, its result
    belongs there.
    """
    origin = call.sample.origin
    if target.device.type == "cpu" or (origin is not None and origin.change.host):
        return []  # a view of a tensor on the CPU lies there too
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
