"""Programs of a sample, by variant: the function, the method, in place, into out=, or backward.

Defines `SampleTrial` and `trials_of`. The inputs of a program are the argument trees of the sample, and its first step
calls the entry of op_db; a gradient is a step of the caller. Its terms are what OpInfo states about the results:
tolerances, undefined values, free signs and phases, the text of an error. `undefined.toml` states which answers on
special values are open.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from conformance.engine.loading import reference
from conformance.engine.rules import CHOICE
from conformance.engine.target import Target
from conformance.program.model import GivenInput, Program
from conformance.program.steps import entry
from conformance.program.steps.op import ANY, Held, Json, Step, tensor
from conformance.program.trial import CpuAnswer, Trial
from conformance.record.names import CHANGED, DIFFERENTIATED, SPECIALS, SPECIALS_BACKWARD, TIERS
from conformance.sources.opinfo import catalog, script, seeding, undefined
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sampling import Sample
from conformance.standalone.layouts import contiguous_stride
from conformance.standalone.moving import send_tree, tensors
from conformance.standalone.oracles import Tolerance

NO_SPECIALS = "it has no tensor that special values can be placed in"
NO_GRADIENT = "no input requires a gradient"
NOTHING_THERE = frozenset({NO_SPECIALS, NO_GRADIENT})
"""Reasons why a variant has nothing to compare in a sample, on any target."""

OUT_FORMS = ("right-sized", "empty", "with gaps")


class Skip(Exception):
    """This sample cannot be compared; the text says why."""


@dataclass(frozen=True)
class SampleTrial(Trial):
    """The trial of a program of a case's sample."""

    case: Case = field(kw_only=True)
    sample: Sample = field(kw_only=True)

    @property
    def name(self) -> str:
        """The public name of the called function, or that of the entry if it is a wrapper."""
        return str(self.program.steps[0].args[0]["object"].name or self.case.name)


def trials_of(case: Case, sample: Sample, target: Target) -> Iterator[SampleTrial]:
    """Yield the trials of a sample in the case's variant. Raises Skip."""
    for program in VARIANTS[case.variant](case, catalog.find(case), sample):
        yield SampleTrial(program, target, (CpuAnswer(program),), case=case, sample=sample)


def _program(
    case: Case, sample: Sample, function: Held, kind: str = entry.ENTRY, out: Any = None, note: str = ""
) -> Program:
    """Return the program whose step of this kind calls a function of the entry on the sample's arguments."""
    trees = {**sample.tree, **({"out": out} if out is not None else {})}
    on_host = sample.origin is not None and sample.origin.change.host
    given = tuple(GivenInput(name, tree, sample.kept, on_host) for name, tree in trees.items())
    operands = tuple(map(tensor, trees))
    process: Json = {"object": Held(sample.process)}
    first: tuple[Json, ...] = ({"object": function},)
    first += (process,) if kind == entry.FORWARD_OVER_BACKWARD else ()
    call = functools.partial(Step, kwargs={"seed": seeding.SEED}, raises=ANY)
    steps = [call(f"{kind}:{case.op}", (*first, *operands), out=("result",))]
    if case.variant in ("backward", *SPECIALS_BACKWARD):
        steps.append(call(entry.BACKWARD, (tensor("result"), process, *operands), after=True))
    # Gradients are taken of the converted result, and the definition of a result knows no gradient.
    defined = CHOICE in undefined.rules_of(case) and case.variant not in (*DIFFERENTIATED, *TIERS, *CHANGED)
    return Program(
        (),
        (),
        tuple(steps),
        note,
        *_terms(case, note),
        given=given,
        process=None if defined else sample.process,
        refusal=(sample.error_regex or "") if case.variant == "error_inputs" else None,
    )


@functools.lru_cache(maxsize=8)  # of one case after the other, each asked for every sample
def _terms(case: Case, note: str) -> tuple[Tolerance, tuple[str, ...], tuple[str, ...]]:
    """Return the tolerances, the rules and the answers without a meaning: results without a defined value, and the
    storage of a result that the op allocated for an empty out=."""
    op, facts = catalog.find(case), ["storage"] if note == "out empty" else []
    facts = facts if catalog.has_value(op) else ["value", "storage"]
    # A changed argument may leave an input undefined, too, such as the input of `resize_`.
    names = ("",) if case.variant in CHANGED and "value" in facts else ("result", "out")
    parts = tuple(f"{fact} of {name}" for fact in facts for name in names)
    return catalog.tolerances(op, getattr(torch, case.dtype)), undefined.rules_of(case), parts


def _function(case: Case, op: Any, sample: Sample) -> Iterator[Program]:
    yield _program(case, sample, Held(op.op, script.function_name(op)))


def _special(programs: Programs, case: Case, op: Any, sample: Sample) -> Iterator[Program]:
    if not sample.changed:
        raise Skip(NO_SPECIALS)
    yield from programs(case, op, sample)


def _changed(case: Case, op: Any, sample: Sample) -> Iterator[Program]:
    """Yield the call whose argument has been changed: of the function, or in place."""
    assert sample.origin is not None
    of = functools.partial(_on_tensor, "inplace_variant", "_") if sample.origin.form else _function
    yield from (replace(program, note=str(sample.origin)) for program in of(case, op, sample))


def _on_tensor(attribute: str, suffix: str, case: Case, op: Any, sample: Sample) -> Iterator[Program]:
    """Yield the call of a tensor method, or of a function of tensor lists, that the OpInfo stores in this attribute."""
    listed = op.name.startswith("_foreach") and isinstance(sample.input, list)
    if not (isinstance(sample.input, torch.Tensor) or listed):
        raise Skip("the first argument is no tensor, so there is no method to call")
    yield _program(case, sample, Held(getattr(op, attribute), script.method_name(op, suffix)))


def _out(case: Case, op: Any, sample: Sample) -> Iterator[Program]:
    copied = send_tree(sample.tree, reference().send, reference().device, sample.kept)
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
        yield _program(case, sample, Held(op.op, script.function_name(op)), out=out, note=f"out {form}")


def _out_tensor(like: torch.Tensor, form: str) -> torch.Tensor:
    if form == "empty":
        return torch.empty(0, dtype=like.dtype)
    step = 2 if form == "with gaps" else 1
    # Filled with sevens, so that an unwritten element and a write into a gap both show.
    base = torch.full((max(like.numel(), 1) * step + 1,), 7, dtype=torch.uint8).to(like.dtype)
    return base.as_strided(like.shape, contiguous_stride(like.shape, step))


def _differentiated(kind: str, case: Case, op: Any, sample: Sample) -> Iterator[Program]:
    if not any(tensor.requires_grad for tensor in tensors(sample.tree)):
        raise Skip(NO_GRADIENT)
    yield _program(case, sample, Held(op.op, script.function_name(op)), kind)


Programs = Callable[[Case, Any, Sample], Iterator[Program]]
"""Function that yields the programs of a case's OpInfo and sample. Raises Skip."""

BACKWARD = functools.partial(_differentiated, entry.ENTRY)

VARIANTS: dict[str, Programs] = {
    "forward": _function,
    "reference_inputs": _function,
    "error_inputs": _function,
    **dict.fromkeys(CHANGED, _changed),
    "method": functools.partial(_on_tensor, "method_variant", ""),
    "inplace": functools.partial(_on_tensor, "inplace_variant", "_"),
    "out": _out,
    "backward": BACKWARD,
    "forward_over_backward": functools.partial(_differentiated, entry.FORWARD_OVER_BACKWARD),
    **dict.fromkeys(SPECIALS, functools.partial(_special, _function)),
    **dict.fromkeys(SPECIALS_BACKWARD, functools.partial(_special, BACKWARD)),
}
