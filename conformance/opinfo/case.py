"""One case: every sample of an OpInfo run on torch CPU and on the target, observed, and compared.

Defines `run_case`. The key insight: the CPU runs first, on its own copy of the inputs, and whatever it does, raising
included, is what the target must do; a sample without an answer from the CPU is skipped and counted, never passed.
This module decides nothing about what equal means; that is the oracle's.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from conformance.core.errors import TargetError
from conformance.core.observation import Observation, Raised, observe
from conformance.core.oracles import compare
from conformance.core.result import Failure, Outcome, Result
from conformance.core.target import Target
from conformance.opinfo import catalog
from conformance.opinfo.finding import LONGEST_TEXT, failure_of
from conformance.opinfo.judge import judge
from conformance.opinfo.plan import Case
from conformance.opinfo.sampling import Mixed, Sample, observable, samples, send, taken_apart, tensors
from conformance.opinfo.variants import VARIANTS, Call, Skip, reference


@dataclass
class _Tally:
    compared: int = 0
    arbitrated: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    declared: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    worst: Call | None = None
    excess: int = 0
    kernels: int | None = None
    eager: int | None = None
    allowed: int | None = None

    def count(self, kernels: int, eager: int, moved: int, call: Call) -> None:
        """Add what one call ran and what it may have run; remember the call that went furthest beyond."""
        self.kernels = (self.kernels or 0) + kernels
        self.eager = (self.eager or 0) + eager
        self.allowed = (self.allowed or 0) + eager + moved
        if kernels - eager - moved > self.excess:
            self.worst, self.excess = call, kernels - eager - moved


def run_case(case: Case, target: Target, note: Callable[[int, str], None] = lambda sample, phase: None) -> Result:
    """Compare up to `case.samples` samples of the case. `note` is told the sample and the phase before each step that
    may crash, so that somebody outside can say where it happened."""
    begin = time.perf_counter()
    op, dtype = catalog.find(case), getattr(torch, case.dtype)
    target.reset_state()
    tally, before, scheduled = _Tally(), calls_so_far(target), scheduled_so_far(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for sample in samples(op, case.variant, dtype, case.layout, case.samples):
                note(sample.index, "sampling")
                for call in _made(op, case, sample, tally):
                    _run_call(case, op, dtype, target, call, tally, note)
        except Exception as error:
            tally.failed += 1
            text = f"{type(error).__name__}: {error}"
            tally.failures.setdefault(
                "harness", Failure("harness", "the harness itself", "no error", text[:LONGEST_TEXT])
            )
    _judge_kernels(case, target, dtype, tally)
    reason = "" if tally.compared else ("; ".join(tally.skipped) or "OpInfo has no sample for it")
    if not (tally.compared or tally.failures or (tally.declared and tally.declared == sum(tally.skipped.values()))):
        # Only what the target declares beforehand may be skipped whole; anything else must be among the expectations.
        tally.failures["skip"] = Failure("skip", "the whole case", "a comparison", "none", reason)
    counted = _difference(before, calls_so_far(target))
    now = scheduled_so_far(target)
    return case.result(
        _outcome(tally),
        samples=tally.compared,
        arbitrated=tally.arbitrated,
        skipped=sum(tally.skipped.values()),
        failed=tally.failed,
        reason=reason,
        failures=tuple(tally.failures.values()),
        kernels=tally.kernels,
        eager=tally.eager,
        allowed=tally.allowed,
        native=None if counted is None else sum(counted["native"].values()),
        decomposed=None if counted is None else sum(counted["decomposed"].values()),
        fallback=None if counted is None else sum(counted["fallback"].values()),
        fallbacks={} if counted is None else dict(sorted(counted["fallback"].items())),
        host=None if counted is None else sum(counted["host"].values()),
        hosts={} if counted is None else dict(sorted(counted["host"].items())),
        scheduled=None if scheduled is None or now is None else now - scheduled,
        seconds=time.perf_counter() - begin,
    )


def _judge_kernels(case: Case, target: Target, dtype: torch.dtype, tally: _Tally) -> None:
    """Hold the samples together to what the oracle allows them together, as a case's kernels are compared with the
    baseline: a small sample may cost a kernel more where another saves it."""
    if case.variant == "error_inputs":
        return
    allowed, ran = Observation(kernels=tally.allowed), Observation(kernels=tally.kernels)
    for mismatch in compare(allowed, ran, oracles=target.oracles & {"kernels"}):
        assert tally.worst is not None  # the sum can only be too large where a part is
        found = replace(mismatch, detail=f"{mismatch.detail} and storages moved, {tally.excess} more in this sample")
        tally.failures["kernels"] = failure_of(case, target, tally.worst, found, allowed, ran, dtype)


def _outcome(tally: _Tally) -> Outcome:
    if "memory" in tally.failures:
        return Outcome.CRASH
    if tally.failures:
        return Outcome.FAIL
    return Outcome.PASS if tally.compared else Outcome.SKIP


def calls_so_far(target: Target) -> dict[str, dict[str, int]] | None:
    """Calls so far as {"native": {op: count}, "decomposed": ..., "fallback": ..., "host": ...}; None when the target
    cannot tell."""
    stats = _stats(target)
    return None if stats is None else {k: dict(stats.get(k, {})) for k in ("native", "decomposed", "fallback", "host")}


def scheduled_so_far(target: Target) -> int | None:
    """Graphs scheduled so far; None when the target cannot tell."""
    stats = _stats(target)
    return None if stats is None else stats.get("scheduled")


def _stats(target: Target) -> dict[str, Any] | None:
    stats = getattr(getattr(target, "backend", None), "stats", None)
    return None if stats is None else dict(stats())


def _difference(
    before: Mapping[str, Mapping[str, int]] | None, after: Mapping[str, Mapping[str, int]] | None
) -> dict[str, Counter[str]] | None:
    if before is None or after is None:
        return None
    return {kind: Counter(after[kind]) - Counter(before[kind]) for kind in after}


def _made(op: Any, case: Case, sample: Sample, tally: _Tally) -> Iterator[Call]:
    try:
        yield from VARIANTS[case.variant](op, sample)
    except Skip as reason:
        tally.skipped[str(reason)] += 1


def _run_call(
    case: Case, op: Any, dtype: torch.dtype, target: Target, call: Call, tally: _Tally, note: Callable[[int, str], None]
) -> None:
    index = call.sample.index
    reason = _undeclared(target, call.tree)
    if reason:
        tally.skipped[reason] += 1
        tally.declared += 1
        return
    try:
        here = send(reference(), call.tree, call.sample.kept)
    except (TargetError, TypeError) as error:
        # Nothing declares this skip, so it fails until the expectations do.
        tally.failed += 1
        text = f"{type(error).__name__}: {error}"[:LONGEST_TEXT]
        tally.failures.setdefault(
            "skip", Failure("skip", "an input", "a comparison", "none", f"it cannot be moved: {text}", index)
        )
        return
    note(index, "CPU")
    expected, right = _observed(reference(), call, here)
    if expected.error is not None and expected.error.not_implemented:
        tally.skipped[f"the CPU does not implement it either: {_first_line(expected.error.text)}"] += 1
        return
    if case.layout == "expanded" and _wrote_to_shared(call.tree, here):
        tally.skipped["it writes to an expanded input, which is undefined"] += 1
        return
    if case.variant == "error_inputs" and expected.error is None:
        tally.skipped["the CPU accepts this input"] += 1
        return
    note(index, "target")
    # On the CPU itself counting means a dispatch mode, under which some composite ops take other paths.
    counts = target.name != reference().name
    try:
        there = send(target, call.tree, call.sample.kept)
    except Exception as error:
        actual, wrong = Observation(error=Raised.of(error)), None
    else:
        actual, wrong = _observed(target, call, there, counts)
    if actual.kernels is not None:
        tally.count(actual.kernels, _eager_ops(call), transfers(expected), call)
    tally.compared += 1
    found, arbitrated = judge(case, op, dtype, target, call, (expected, right), (actual, wrong))
    tally.arbitrated += arbitrated
    if not found:
        return
    tally.failed += 1
    for mismatch in found:
        if mismatch.oracle not in tally.failures:
            tally.failures[mismatch.oracle] = failure_of(case, target, call, mismatch, expected, actual, dtype)


def _undeclared(target: Target, tree: Any) -> str:
    """Why the target need not take these inputs, by its own declaration; empty when it must."""
    if target.dtypes is None:
        return ""
    missing = sorted({str(t.dtype).removeprefix("torch.") for t in tensors(tree) if t.dtype not in target.dtypes})
    return f"the target declares that it does not hold {', '.join(missing)}" if missing else ""


def _observed(target: Target, call: Call, tree: dict[str, Any], counts: bool = False) -> tuple[Observation, Any]:
    """What is seen of the call on inputs that lie on the target, and the outcome itself (None when it raised).
    `counts` asks for the kernels that the call and its observation ran, where the target can count."""
    error: BaseException | None = None
    outcome: Any = None
    with target.kernels() if counts else contextlib.nullcontext() as count:
        with target.active():
            catalog.seed(target.device)
            try:
                outcome = call.run(tree)
            except Exception as raised:
                error = raised
        try:
            seen = _observe(target, outcome, tree, error)
        except Exception as raised:
            # A lazy device raises when it is observed.
            outcome, error = None, raised
            seen = Observation(error=Raised.of(raised))
    return replace(seen, kernels=count.total if count is not None else None), outcome


def transfers(seen: Observation) -> int:
    """A kernel for each storage that is sent or fetched: what moving data may cost, beside computing it."""
    fetched = {one.alias for one in seen.tensors.values()}
    return len(seen.storages) + len(fetched) + sum(grad is not None for grad in seen.grads.values())


def _wrote_to_shared(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether inputs whose elements share memory have changed; not all operators that write say so in their schema."""
    for old, new in zip(tensors(before), tensors(after), strict=True):
        strides = zip(old.stride(), old.shape, strict=True) if old.layout is torch.strided else ()
        shared = any(stride == 0 and size > 1 for stride, size in strides)
        if shared and not bool(((old == new) | (old.isnan() & new.isnan())).all()):
            return True
    return False


def _eager_ops(call: Call) -> int:
    """How many aten ops the call takes on torch CPU. In a run of its own: what counts them changes what some ops do."""
    tree = send(reference(), call.tree, call.sample.kept)
    catalog.seed()
    with reference().kernels() as count, contextlib.suppress(Exception):
        call.run(tree)
    return count.total or 0


def _observe(target: Target, outcome: Any, tree: dict[str, Any], error: BaseException | None) -> Observation:
    return observe(
        {"result": taken_apart(outcome)} if error is None else None, observable(tree), target=Mixed(target), error=error
    )


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
