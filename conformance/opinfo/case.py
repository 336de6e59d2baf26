"""One case: every sample of an OpInfo run on torch CPU and on the target, observed, and compared.

Defines `run_case`. The key insight: the CPU runs first, on its own copy of the inputs, and whatever it does, raising
included, is what the target must do; a sample without an answer from the CPU is skipped and counted, never passed.
This module decides nothing about what equal means; that is the oracle's.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.opinfo import catalog, script
from conformance.opinfo.plan import Case
from conformance.opinfo.sampling import MARKER, Mixed, Sample, leaves, map_leaves, samples, send, taken_apart, tensors
from conformance.oracle import MAX_SHOWN, Mismatch, Observation, compare, differing, observe
from conformance.report.model import Failure, Outcome, Result
from conformance.target import Target, TargetError, load_target, storage_key

OUT_FORMS = ("right-sized", "empty", "with gaps")
_OUT_OF_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|bad_alloc", re.IGNORECASE)
_LONGEST_TEXT = 2_000


@dataclass
class Call:
    """One call to compare: `run` takes the inputs where they are and returns the outcome.

    `tree` holds the inputs on the CPU, by name. `source` is how the call reads in a script, None when it has no name.
    """

    sample: Sample
    tree: dict[str, Any]
    run: Callable[[dict[str, Any]], Any]
    source: str | None
    note: str = ""


class Skip(Exception):
    """This sample cannot be compared; the text says why."""


@dataclass
class _Tally:
    compared: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Failure] = field(default_factory=dict)
    kernels: int | None = None


def run_case(
    case: Case, target: Target, limit: int | None = 20, note: Callable[[int, str], None] = lambda sample, phase: None
) -> Result:
    """Compare up to `limit` samples of the case. `note` is told the sample and the phase before each step that may
    crash, so that somebody outside can say where it happened."""
    begin = time.perf_counter()
    op, dtype = catalog.find(case), getattr(torch, case.dtype)
    tally, before = _Tally(), calls(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for sample in samples(op, case.variant, dtype, case.layout, limit):
                note(sample.index, "sampling")
                for call in _calls(op, case, sample, tally):
                    _run_call(case, op, dtype, target, call, tally, note)
        except Exception as error:
            tally.failed += 1
            text = f"{type(error).__name__}: {error}"
            tally.failures.setdefault(
                "harness", Failure("harness", "the harness itself", "no error", text[:_LONGEST_TEXT])
            )
    counted = _difference(before, calls(target))
    return Result(
        op=case.op,
        overload=case.overload,
        family=case.family,
        dtype=case.dtype,
        variant=case.variant,
        layout=case.layout,
        outcome=_outcome(tally),
        samples=tally.compared,
        skipped=sum(tally.skipped.values()),
        failed=tally.failed,
        reason="" if tally.compared else ("; ".join(tally.skipped) or "OpInfo has no sample for it"),
        failures=tuple(tally.failures.values()),
        kernels=tally.kernels,
        native=None if counted is None else sum(counted["native"].values()),
        decomposed=None if counted is None else sum(counted["decomposed"].values()),
        fallback=None if counted is None else sum(counted["fallback"].values()),
        fallbacks={} if counted is None else dict(sorted(counted["fallback"].items())),
        seconds=time.perf_counter() - begin,
    )


def _outcome(tally: _Tally) -> Outcome:
    if "memory" in tally.failures:
        return Outcome.CRASH
    if tally.failures:
        return Outcome.FAIL
    return Outcome.PASS if tally.compared else Outcome.SKIP


def calls(target: Target) -> dict[str, dict[str, int]] | None:
    """Calls so far as {"native": {op: count}, "decomposed": ..., "fallback": ...}; None when the target cannot tell."""
    stats = getattr(getattr(target, "backend", None), "stats", None)
    if stats is None:
        return None
    stats = stats()
    return {kind: dict(stats.get(kind, {})) for kind in ("native", "decomposed", "fallback")}


def _difference(
    before: Mapping[str, Mapping[str, int]] | None, after: Mapping[str, Mapping[str, int]] | None
) -> dict[str, Counter[str]] | None:
    if before is None or after is None:
        return None
    return {kind: Counter(after[kind]) - Counter(before[kind]) for kind in after}


# The calls of a sample, by variant


def _calls(op: Any, case: Case, sample: Sample, tally: _Tally) -> Iterator[Call]:
    try:
        yield from _VARIANTS[case.variant](op, sample)
    except Skip as reason:
        tally.skipped[str(reason)] += 1


def _function(op: Any, sample: Sample) -> Iterator[Call]:
    yield Call(sample, sample.tree, lambda t: op.op(t["input"], *t["args"], **t["kwargs"]), script.function_name(op))


def _method(op: Any, sample: Sample) -> Iterator[Call]:
    method = _on_tensor(op.method_variant, sample)
    yield Call(sample, sample.tree, lambda t: method(t["input"], *t["args"], **t["kwargs"]), script.method_name(op, ""))


def _inplace(op: Any, sample: Sample) -> Iterator[Call]:
    method = _on_tensor(op.inplace_variant, sample)
    yield Call(
        sample, sample.tree, lambda t: method(t["input"], *t["args"], **t["kwargs"]), script.method_name(op, "_")
    )


def _on_tensor(method: Any, sample: Sample) -> Any:
    if not isinstance(sample.input, torch.Tensor):
        raise Skip("the first argument is no tensor, so there is no method to call")
    return method


def _out(op: Any, sample: Sample) -> Iterator[Call]:
    def run(tree: dict[str, Any]) -> Any:
        return op.op(tree["input"], *tree["args"], **tree["kwargs"], out=tree["out"])

    copied = send(_cpu(), sample.tree, sample.kept)
    try:
        torch.manual_seed(catalog.SEED)
        result = op.op(copied["input"], *copied["args"], **copied["kwargs"])
    except Exception as error:
        raise Skip(f"the CPU raises {type(error).__name__} without out=, so there is no size to give to out") from None
    wanted = (result,) if isinstance(result, torch.Tensor) else result
    if not (isinstance(wanted, (tuple, list)) and wanted and all(isinstance(t, torch.Tensor) for t in wanted)):
        raise Skip("the result is no tensor or tuple of tensors, so there is nothing to give to out")
    for form in OUT_FORMS:
        made = [_out_tensor(tensor, form) for tensor in wanted]
        out = made[0] if isinstance(result, torch.Tensor) else tuple(made)
        name = script.function_name(op)
        yield Call(sample, {**sample.tree, "out": out}, run, name, f"out {form}")


def _out_tensor(like: torch.Tensor, form: str) -> torch.Tensor:
    if form == "empty":
        return torch.empty(0, dtype=like.dtype)
    step = 2 if form == "with gaps" else 1
    stride = list(
        itertools.accumulate([*reversed([max(n, 1) for n in like.shape[1:]])], lambda a, b: a * b, initial=step)
    )
    # Sevens, so that an element that was not written shows, and so that a write into a gap shows.
    base = torch.full((max(like.numel(), 1) * step + 1,), 7, dtype=torch.uint8).to(like.dtype)
    return base.as_strided(like.shape, stride[::-1][: like.dim()] if like.dim() else (), 0)


def _backward(op: Any, sample: Sample) -> Iterator[Call]:
    leaf = any(tensor.requires_grad for tensor in tensors(sample.tree))
    if not leaf:
        raise Skip("no input requires a gradient")

    def run(tree: dict[str, Any]) -> Any:
        result = op.op(tree["input"], *tree["args"], **tree["kwargs"])
        processed = result if sample.process is None else sample.process(result)
        found = [tensor for tensor in tensors(processed) if tensor.requires_grad]
        if not found:
            return result
        device = found[0].device
        torch.manual_seed(catalog.SEED)
        ones = [torch.randn(tensor.shape, dtype=tensor.dtype).to(device) for tensor in found]
        torch.autograd.backward(found, ones)
        for tensor in tensors(tree):
            # The gradient of sgn is a tensor without memory, which nothing may read before it is made real.
            if tensor.grad is not None and torch._is_zerotensor(tensor.grad):
                tensor.grad = tensor.grad.clone()
        return result

    yield Call(sample, sample.tree, run, script.function_name(op))


_VARIANTS: dict[str, Callable[[Any, Sample], Iterator[Call]]] = {
    "forward": _function,
    "reference_inputs": _function,
    "error_inputs": _function,
    "method": _method,
    "inplace": _inplace,
    "out": _out,
    "backward": _backward,
}


# Running and comparing one call


def _run_call(
    case: Case, op: Any, dtype: torch.dtype, target: Target, call: Call, tally: _Tally, note: Callable[[int, str], None]
) -> None:
    index = call.sample.index
    reason = _undeclared(target, call.tree)
    if reason:
        tally.skipped[reason] += 1
        return
    note(index, "CPU")
    expected, right = _observed(_cpu(), call)
    if expected.error is not None and expected.error.not_implemented:
        tally.skipped[f"the CPU does not implement it either: {_first_line(expected.error.text)}"] += 1
        return
    if case.variant == "error_inputs" and expected.error is None:
        tally.skipped["the CPU accepts this input"] += 1
        return
    note(index, "target")
    # On the CPU itself counting means a dispatch mode, under which some composite ops take other paths.
    kernels: list[int] | None = None if target.device.type == "cpu" else []
    actual, wrong = _observed(target, call, kernels)
    if kernels:
        tally.kernels = (tally.kernels or 0) + kernels[0]
    tally.compared += 1
    found = _mismatches(case, op, dtype, target, call, expected, actual, right, wrong)
    if not found:
        return
    tally.failed += 1
    for mismatch in found:
        if mismatch.oracle not in tally.failures:
            tally.failures[mismatch.oracle] = _failure(case, target, call, mismatch, expected, actual, dtype)


def _undeclared(target: Target, tree: Any) -> str:
    """Why the target need not take these inputs, by its own declaration; empty when it must."""
    if target.dtypes is None:
        return ""
    missing = sorted({str(t.dtype).removeprefix("torch.") for t in tensors(tree) if t.dtype not in target.dtypes})
    return f"the target declares that it does not hold {', '.join(missing)}" if missing else ""


def _observed(target: Target, call: Call, kernels: list[int] | None = None) -> tuple[Observation, Any]:
    """What is seen of the call on the target, and the outcome itself (None when it raised)."""
    tree = send(target, call.tree, call.sample.kept)
    error: BaseException | None = None
    outcome: Any = None
    with target.kernels() if kernels is not None else contextlib.nullcontext() as count:
        with target.active():
            torch.manual_seed(catalog.SEED)
            try:
                outcome = call.run(tree)
            except Exception as raised:
                error = raised
        try:
            seen = _observe(target, outcome, tree, error)
        except (TargetError, KeyboardInterrupt):
            raise
        except Exception as raised:
            outcome, error = None, raised
            seen = Observation(error=_raised(raised))
    if kernels is not None and count is not None and count.total is not None:
        kernels.append(count.total)
    return seen, outcome


def _raised(error: BaseException) -> Any:
    from conformance.oracle import Raised

    return Raised.of(error)


def _observe(target: Target, outcome: Any, tree: dict[str, Any], error: BaseException | None) -> Observation:
    # Only tensors can be written to; other inputs, such as the device, rightly differ.
    inputs = map_leaves(taken_apart(tree), lambda leaf: leaf if isinstance(leaf, torch.Tensor) else None)
    return observe(
        {"result": taken_apart(outcome)} if error is None else None, inputs, target=Mixed(target), error=error
    )


def _mismatches(
    case: Case,
    op: Any,
    dtype: torch.dtype,
    target: Target,
    call: Call,
    expected: Observation,
    actual: Observation,
    right: Any,
    wrong: Any,
) -> list[Mismatch]:
    rtol, atol = catalog.tolerances(op, dtype)
    # What lies in an out= tensor after a refused call is nobody's promise.
    oracles = {"error"} if case.variant == "error_inputs" else target.oracles
    found = compare(expected, actual, oracles=oracles, rtol=rtol, atol=atol)
    results = {name for name in expected.tensors if name.startswith(("result", "out"))}
    if call.note == "out empty":
        # The op allocated this storage itself; what it leaves outside the result is nobody's promise.
        found = [m for m in found if not (m.oracle == "storage" and m.where in results)]
    if not catalog.has_value(op):
        found = [m for m in found if not (m.oracle in ("value", "storage") and m.where in results)]
    if call.sample.process is not None and any(m.oracle == "value" and m.where in results for m in found):
        found = _processed(call, target, found, results, right, wrong, rtol, atol)
    if actual.error is not None and expected.error is None and _OUT_OF_MEMORY.search(actual.error.text):
        found.insert(
            0, Mismatch("memory", "the whole run", "no error", actual.error.kind, _first_line(actual.error.text))
        )
    if case.variant == "error_inputs" and expected.error is not None and actual.error is not None and not found:
        pattern = call.sample.error_regex or ""
        if re.search(pattern, expected.error.text) and not re.search(pattern, actual.error.text):
            found.append(
                Mismatch(
                    "message",
                    "the error",
                    _first_line(expected.error.text),
                    _first_line(actual.error.text),
                    f"OpInfo's pattern is {pattern!r}",
                )
            )
    if expected.error is None and actual.error is None:
        found += _misplaced(target, call, right, wrong)
    return found


def _processed(
    call: Call,
    target: Target,
    found: list[Mismatch],
    results: set[str],
    right: Any,
    wrong: Any,
    rtol: float | None,
    atol: float | None,
) -> list[Mismatch]:
    """The mismatches, with those of result values replaced by what OpInfo's own output processing leaves of them.

    It is applied to the values brought to the CPU, so that its own ops are not under test.
    """
    process = call.sample.process
    assert process is not None
    kept = [m for m in found if not (m.oracle == "value" and m.where in results)]
    want = observe({"processed": process(_cpu().fetch(right))})
    got = observe({"processed": process(Mixed(target).fetch(wrong))})
    return kept + compare(want, got, oracles={"value", "structure"}, rtol=rtol, atol=atol)


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


# What a report needs of a mismatch


def _failure(
    case: Case,
    target: Target,
    call: Call,
    mismatch: Mismatch,
    expected: Observation,
    actual: Observation,
    dtype: torch.dtype,
) -> Failure:
    want, got = expected.tensors.get(mismatch.where), actual.tensors.get(mismatch.where)
    rows: tuple[tuple[str, str, str, bool], ...] = ()
    if want is not None and got is not None and mismatch.oracle == "value":
        rows = _rows(want.value, got.value, *catalog.tolerances(catalog.find(case), dtype))
    elif mismatch.oracle == "storage" and mismatch.where in expected.storages and mismatch.where in actual.storages:
        rows = _rows(expected.storages[mismatch.where], actual.storages[mismatch.where], None, None)
    layouts = {}
    if want is not None and got is not None and mismatch.oracle in ("shape", "stride", "storage_offset", "contiguity"):
        layouts = {
            name: {"size": list(seen.shape), "stride": list(seen.stride), "offset": seen.storage_offset}
            for name, seen in (("expected", want), ("actual", got))
        }
    where = mismatch.where if not call.note else f"{mismatch.where} ({call.note})"
    return Failure(
        oracle=mismatch.oracle,
        where=where,
        expected=mismatch.expected[:_LONGEST_TEXT],
        actual=mismatch.actual[:_LONGEST_TEXT],
        detail=mismatch.detail[:_LONGEST_TEXT],
        sample=call.sample.index,
        call=script.summary(call.source or case.name, call.tree),
        script=script.standalone(case, target.script(), call.source, call.tree, call.sample, str(mismatch)),
        values=rows,
        layouts=layouts,
    )


def _rows(
    want: torch.Tensor, got: torch.Tensor, rtol: float | None, atol: float | None
) -> tuple[tuple[str, str, str, bool], ...]:
    """Values side by side as (index, expected, actual, differs): all of a small tensor, else those around the first
    difference."""
    if want.shape != got.shape or want.dtype != got.dtype or not want.numel():
        return ()
    want, got = (tensor.resolve_conj().resolve_neg() for tensor in (want, got))
    wrong = differing(want, got, False, rtol, atol).reshape(-1)
    first = int(wrong.nonzero()[0]) if bool(wrong.any()) else 0
    start = 0 if wrong.numel() <= MAX_SHOWN else max(0, min(first - 4, wrong.numel() - MAX_SHOWN // 2))
    stop = wrong.numel() if wrong.numel() <= MAX_SHOWN else start + MAX_SHOWN // 2
    rows = []
    for flat, bad in zip(range(start, stop), wrong[start:stop].tolist(), strict=True):
        index = _index(flat, tuple(want.shape))
        rows.append((str(list(index)), str(want[index].item()), str(got[index].item()), bad))
    return tuple(rows)


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        flat, rest = divmod(flat, size)
        index.append(rest)
    return tuple(reversed(index))


_REFERENCE: list[Target] = []


def _cpu() -> Target:
    """torch CPU, which says what is right."""
    if not _REFERENCE:
        _REFERENCE.append(load_target("cpu"))
    return _REFERENCE[0]


__all__ = ["Call", "Skip", "calls", "map_leaves", "run_case"]
