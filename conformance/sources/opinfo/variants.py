"""Calls of a sample, by variant: the function, the method, in place, into out=, or backward.

Defines `calls_of`. Only the function under test goes through a target's transform, not the code around it: for
`backward`, a compiler gets `op(input, *args, **kwargs)`, and the cotangents are drawn outside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import forward_ad

from conformance.engine.loading import reference
from conformance.record.names import CHANGED, SPECIALS, SPECIALS_BACKWARD
from conformance.sources.opinfo import catalog, script, seeding
from conformance.sources.opinfo.call import Apply, Draws, SampleCall
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sampling import Sample
from conformance.standalone.layouts import contiguous_stride
from conformance.standalone.moving import map_leaves, moved, tensors
from conformance.standalone.torch_compat import with_memory

NO_SPECIALS = "it has no tensor that special values can be placed in"
NO_GRADIENT = "no input requires a gradient"
NOTHING_THERE = frozenset({NO_SPECIALS, NO_GRADIENT})
"""Reasons why a variant has nothing to compare in a sample, on any target."""

OUT_FORMS = ("right-sized", "empty", "with gaps")


class Skip(Exception):
    """This sample cannot be compared; the text says why."""


def _named(function: Callable[..., Any]) -> Callable[[dict[str, Any], Apply], Any]:
    """Return a call of a function whose first argument is the sample's input."""

    def call(input: Any, args: Any, kwargs: Any) -> Any:
        return function(input, *args, **kwargs)

    return lambda tree, apply: apply(call)(tree["input"], tree["args"], tree["kwargs"])


def _function(case: Case, op: Any, sample: Sample) -> Iterator[SampleCall]:
    yield SampleCall(case, sample, sample.tree, _named(op.op), script.function_name(op))


def _special(calls: Calls, case: Case, op: Any, sample: Sample) -> Iterator[SampleCall]:
    if not sample.changed:
        raise Skip(NO_SPECIALS)
    yield from calls(case, op, sample)


def _changed(case: Case, op: Any, sample: Sample) -> Iterator[SampleCall]:
    """Yield the call whose argument has been changed: of the function, or in place."""
    assert sample.origin is not None
    calls = _on_tensor("inplace_variant", "_", case, op, sample) if sample.origin.form else _function(case, op, sample)
    yield from (replace(call, note=str(sample.origin)) for call in calls)


def _on_tensor(attribute: str, suffix: str, case: Case, op: Any, sample: Sample) -> Iterator[SampleCall]:
    """Yield the call of a tensor method, or of a function of tensor lists, that the OpInfo stores in this attribute."""
    listed = op.name.startswith("_foreach") and isinstance(sample.input, list)
    if not (isinstance(sample.input, torch.Tensor) or listed):
        raise Skip("the first argument is no tensor, so there is no method to call")
    yield SampleCall(case, sample, sample.tree, _named(getattr(op, attribute)), script.method_name(op, suffix))


def _out(case: Case, op: Any, sample: Sample) -> Iterator[SampleCall]:
    def call(input: Any, args: Any, kwargs: Any, out: Any) -> Any:
        return op.op(input, *args, **kwargs, out=out)

    def run(tree: dict[str, Any], apply: Apply) -> Any:
        return apply(call)(tree["input"], tree["args"], tree["kwargs"], tree["out"])

    copied = moved(sample.tree, reference().send, reference().device, sample.kept)
    try:
        seeding.seed()
        result = op.op(copied["input"], *copied["args"], **copied["kwargs"])
    except Exception as error:
        raise Skip(f"the CPU raises {type(error).__name__} without out=, so there is no size to give to out") from None
    wanted = (result,) if isinstance(result, torch.Tensor) else result
    if not (isinstance(wanted, (tuple, list)) and wanted and all(isinstance(t, torch.Tensor) for t in wanted)):
        raise Skip("the result is no tensor or tuple of tensors, so there is nothing to give to out")
    for form in OUT_FORMS:
        outs = [_out_tensor(tensor, form) for tensor in wanted]
        out = outs[0] if isinstance(result, torch.Tensor) else tuple(outs)
        name = script.function_name(op)
        yield SampleCall(case, sample, {**sample.tree, "out": out}, run, name, f"out {form}")


def _out_tensor(like: torch.Tensor, form: str) -> torch.Tensor:
    if form == "empty":
        return torch.empty(0, dtype=like.dtype)
    step = 2 if form == "with gaps" else 1
    # Filled with sevens, so that an unwritten element and a write into a gap both show.
    base = torch.full((max(like.numel(), 1) * step + 1,), 7, dtype=torch.uint8).to(like.dtype)
    return base.as_strided(like.shape, contiguous_stride(like.shape, step))


Derive = Callable[[dict[str, Any], Callable[[dict[str, Any]], tuple[Any, list[torch.Tensor]]], Draws], Any]
"""Function that runs the call on a tree, which returns its result and the parts with gradients, and
differentiates it.
"""


def _differentiated(derive: Derive, case: Case, op: Any, sample: Sample) -> Iterator[SampleCall]:
    if not any(tensor.requires_grad for tensor in tensors(sample.tree)):
        raise Skip(NO_GRADIENT)
    drawn, forward = Draws(), _named(op.op)

    def run(tree: dict[str, Any], apply: Apply) -> Any:
        def function(inputs: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
            result = forward(inputs, apply)
            processed = result if sample.process is None else sample.process(result)
            return result, [tensor for tensor in tensors(processed) if tensor.requires_grad]

        drawn.start()
        return derive(tree, function, drawn)

    yield SampleCall(case, sample, sample.tree, run, script.function_name(op), drawn=drawn)


def _backward(tree: dict[str, Any], function: Any, drawn: Draws) -> Any:
    result, differentiable = function(tree)
    if differentiable:
        seeding.seed()
        torch.autograd.backward(differentiable, list(map(drawn, differentiable)))
        for tensor in tensors(tree):
            tensor.grad = with_memory(tensor.grad)
    return result


def _forward_over_backward(tree: dict[str, Any], function: Any, drawn: Draws) -> Any:
    duals: list[torch.Tensor] = []

    def dual(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.requires_grad:
            return leaf
        duals.append(forward_ad.make_dual(leaf, drawn(leaf)))
        return duals[-1]

    with forward_ad.dual_level():
        _, outputs = function(map_leaves(tree, dual))
        if not outputs:
            return []
        gradients = torch.autograd.grad(outputs, duals, list(map(drawn, outputs)), allow_unused=True)
        return [with_memory(forward_ad.unpack_dual(g).tangent if g is not None else None) for g in gradients]


Calls = Callable[[Case, Any, Sample], Iterator[SampleCall]]
"""Function that yields the calls of a case's OpInfo and sample. Raises Skip."""

VARIANTS: dict[str, Calls] = {
    "forward": _function,
    "reference_inputs": _function,
    "error_inputs": _function,
    **dict.fromkeys(CHANGED, _changed),
    "method": functools.partial(_on_tensor, "method_variant", ""),
    "inplace": functools.partial(_on_tensor, "inplace_variant", "_"),
    "out": _out,
    "backward": functools.partial(_differentiated, _backward),
    "forward_over_backward": functools.partial(_differentiated, _forward_over_backward),
    **dict.fromkeys(SPECIALS, functools.partial(_special, _function)),
    **dict.fromkeys(SPECIALS_BACKWARD, functools.partial(_special, functools.partial(_differentiated, _backward))),
}


def calls_of(case: Case, sample: Sample) -> Iterator[SampleCall]:
    """Yield the calls of a sample in the case's variant. Raises Skip."""
    yield from VARIANTS[case.variant](case, catalog.find(case), sample)
