"""The terms of one op_db call: OpInfo's statements about its results, and its answer in float64.

Defines `JudgedCall`, and `truth_of`, the answer in float64. OpInfo states tolerances, undefined values, free signs and
phases, and the text of an error. `undefined.toml` states which answers on special values are open. `engine/judge.py`
applies these terms.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.engine.executor import Execution, Running, Transform
from conformance.engine.judge import OneAnswer, Terms
from conformance.engine.rounding import Float64Reference
from conformance.engine.rules import CHOICE, Arguments
from conformance.engine.target import Target
from conformance.record.names import CHANGED, DIFFERENTIATED, TIERS
from conformance.sources.opinfo import catalog, seeding, undefined
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sampling import Sample
from conformance.sources.opinfo.variants import SampleCall, draws_numbers
from conformance.standalone.moving import (
    MARKER,
    leaves,
    map_leaves,
    moved,
    observable,
    storage_key,
    taken_apart,
    tensors,
)
from conformance.standalone.observation import Observation, observe
from conformance.standalone.oracles import Mismatch, compare
from conformance.standalone.rounding import widened


def process_of(case: Case, sample: Sample) -> Callable[[Any], Any] | None:
    """Return OpInfo's conversion of a result whose sign or phase is free; None if there is none, or if the definition
    of the result decides in its place. Gradients are taken of the converted result, and the definition knows none."""
    usual = case.variant not in (*DIFFERENTIATED, *TIERS, *CHANGED)
    return None if usual and CHOICE in undefined.rules_of(case) else sample.process


RESULTS = ("result", "out")
"""Beginnings of the names of a call's results."""


@dataclass(frozen=True)
class JudgedCall(OneAnswer):
    """A call of a case, as the judge's subject."""

    case: Case
    call: SampleCall

    def inputs(self) -> tuple[Any, Collection[int]]:
        """Return the call's inputs, and the storages of inputs that stay on the CPU."""
        return self.call.inputs()

    def begin(self, inputs: Any, target: Target, transform: Transform | None) -> Running:
        """Begin the call."""
        return self.call.begin(inputs, target, transform)

    @functools.cached_property
    def terms(self) -> Terms:
        """The terms of the call."""
        case, sample, refused = self.case, self.call.sample, self.case.variant == "error_inputs"
        return Terms(
            catalog.tolerances(catalog.find(case), getattr(torch, case.dtype)),
            rules=undefined.rules_of(case),
            undefined=undefined_parts(case, self.call),
            # PyTorch does not define the content of an out= tensor after a refused call.
            oracles=frozenset({"error"}) if refused else None,
            process=process_of(case, sample),
            message=(sample.error_regex or "") if refused else "",
        )

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the op draws random numbers."""
        return draws_numbers(catalog.find(self.case), self.call.sample)

    @property
    def on_host(self) -> bool:
        """Whether the sample names the CPU, or all of its tensors stay there, or a changed argument is on the CPU."""
        if self.call.sample.origin is not None and self.call.sample.origin.change.host:
            return True
        sample, inputs = self.call.sample, tensors(self.call.tree)
        for leaf in leaves((sample.args, sample.kwargs)):
            if not isinstance(leaf, torch.Tensor) and (
                leaf == "cpu" or (isinstance(leaf, torch.device) and leaf != MARKER)
            ):
                return True
        kept = {
            id(tensor) for tensor in inputs if tensor.layout is torch.strided and storage_key(tensor) in sample.kept
        }
        return not inputs or (bool(kept) and len(kept) == len(inputs))

    def names_of_inputs(self) -> Collection[str]:
        """Return the names of the arguments, except `out`."""
        return self.call.sample.tree.keys()

    def arguments(self) -> Arguments:
        """Return the arguments of the call."""
        sample, strided = (
            self.call.sample,
            [tensor for tensor in tensors(self.call.tree) if tensor.layout is torch.strided],
        )
        return Arguments(self.case.op, sample.input, sample.args, sample.kwargs, strided)

    def in_float64(self, mismatches: Sequence[Mismatch], expected: Observation) -> Execution | None:
        """Return the call's answer in float64."""
        return truth_of(self.call)


def undefined_parts(case: Case, call: SampleCall) -> tuple[str, ...]:
    """Return the answers without a meaning: results without a defined value, and the storage of a result that the op
    allocated for an empty out=."""
    facts = ["storage"] if call.note == "out empty" else []
    facts = facts if catalog.has_value(catalog.find(case)) else ["value", "storage"]
    # A changed argument may leave an input undefined, too, such as the input of `resize_`.
    names = ("",) if case.variant in CHANGED and "value" in facts else RESULTS
    return tuple(f"{fact} of {name}" for fact in facts for name in names)


CLEAR = frozenset({"RuntimeError", "TypeError", "ValueError", "IndexError"})
"""Errors by which torch refuses a call. A device may check the arguments of a call in another order than torch CPU."""


def as_refused(call: SampleCall, expected: Observation, actual: Observation, mismatch: Mismatch) -> bool:
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


def truth_of(call: SampleCall) -> Execution | None:
    """Return torch CPU's answer on the same inputs in float64 and complex128, or None if it has no answer there, or
    another one with another seed. Dtypes among the arguments are widened too; integer inputs stay unchanged."""
    named = [leaf.dtype if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves(call.tree)]
    if all(dtype == widened(dtype) for dtype in named if isinstance(dtype, torch.dtype)):
        return None
    try:
        first, again = (_run(call, seed) for seed in (seeding.SEED, seeding.SEED + 1))
    except Exception:  # says nothing about the target: the finding stands
        return None
    return None if compare(first.last, again.last, exact=True) else first


def _run(call: SampleCall, seed: int) -> Execution:
    wide = Float64Reference()
    # `kept` is not passed: tensors that OpInfo keeps on the CPU are widened too.
    tree = moved(call.tree, wide.send, wide.device)
    tree = map_leaves(tree, lambda leaf: widened(leaf) if isinstance(leaf, torch.dtype) else leaf)
    seeding.seed()
    torch.default_generator.manual_seed(seed)
    with call.draws.repeated():
        outcome = call.run(tree, lambda function: function)
    seen = observe({"result": taken_apart(outcome)}, observable(tree, call.tree), target=wide)
    return Execution((seen,), outcome=outcome)
