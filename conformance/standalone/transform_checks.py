"""The checks of an operator under torch's transformations, as functions of one call (`operator_checks`): fake tensors,
compilers, vmap, and autocast.

    compare_fake(CheckedCall(my_silu, inputs, mode=FakeTensorMode()))

Each compares the operator with itself, or the metadata of its fake kernel with those of its real results.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from conformance.record.names import SIGNIFICANT_STRIDE
from conformance.standalone.conditions import Faked
from conformance.standalone.derivative_checks import differentiate_call, has_gradient
from conformance.standalone.moving import map_leaves, tensors
from conformance.standalone.observation import Observation, Raised
from conformance.standalone.operator_checks import (
    ANSWER,
    RESULT,
    Around,
    CheckedCall,
    Found,
    Function,
    Inputs,
    NotJudged,
    by_entry,
    by_itself,
    call_plainly,
    call_under_autocast,
    expect_answer,
    fact,
    is_rounded_by_autocast,
    join_results,
    judge_own_rounding,
    line_of,
    mismatches_of,
    observe_operator,
    observe_other,
    observe_where_it_runs,
    of_result,
    of_results,
    under,
    with_tensors,
)
from conformance.standalone.oracles import Mismatch
from conformance.standalone.torch_compat import raising_inner, symbolic_results

FAKE_ORACLES = frozenset({"structure", "dtype", "shape", SIGNIFICANT_STRIDE, "alias", "error"})
"""Oracles of a fake kernel."""

COMPILED_ORACLES = ANSWER | {SIGNIFICANT_STRIDE, "alias", "storage"}
"""Oracles that a compiler must not change."""

NO_FAKE_KERNEL = "the operator registers no fake kernel"

NO_FAKE = re.compile(r"no fake impl registered|UnsupportedOperator|has no .*(meta|fake)|no fake kernel", re.IGNORECASE)
NO_VMAP = re.compile(
    r"vmap|[Bb]atching rule|Tensor that doesn't have storage|storage of BatchedTensorImpl"
    r"|output with shape \[.*\] doesn't match the broadcast shape"
)
"""Sentences of torch about a missing part of an operator. Any other error is a difference. The last one is about a
batched value that is added to a tensor of the operator's own, which has no batch."""


def compare_fake(call: CheckedCall) -> Iterator[Found]:
    """Compare the fake kernel's metadata with that of the real results."""
    want = call.actual()
    expect_answer(want)
    got = call.ask(observe_fake, call_plainly)
    if got.error is not None and (reason := lacks_fake(got.error)):
        raise NotJudged(reason)
    if got.error is not None and "DynamicOutputShapeException" in got.error.ancestors:
        raise NotJudged("the shape of the result depends on values")
    for mismatch in of_results(mismatches_of(want, got, FAKE_ORACLES)):
        yield fact("fake", mismatch)


def observe_fake(call: CheckedCall, around: Around) -> Observation:
    """Call the operator on fake tensors."""
    return observe_operator(call, Faked(call.mode), around)


def lacks_fake(error: Raised) -> str:
    """Return a reason if an error says that the operator has no fake kernel."""
    lacks = NO_FAKE.search(f"{error.kind}: {error.text}") or "UnsupportedOperatorException" in error.ancestors
    return NO_FAKE_KERNEL if lacks else ""


def compare_symbolic(call: CheckedCall) -> Iterator[Found]:
    """Compare the fake kernel's metadata for symbolic sizes with the real results: at these sizes, and, where its
    guards hold, at the sizes of other calls."""
    every = [call.inputs, *call.others]
    first, *others = [call.ask(observe_other, number) for number in range(len(every))]
    expect_answer(first)
    sizes = [[tuple(tensor.shape) for tensor in tensors(inputs())] for inputs in every]
    answers = call.ask(symbolic_metadata, sizes)
    if isinstance(answers, Raised):
        if reason := lacks_fake(answers):
            raise NotJudged(reason)
        yield "symbolic", Mismatch("symbolic", RESULT, "an answer", answers.kind, line_of(answers))
        return
    for at, seen, shapes in zip(sizes, (first, *others), answers, strict=True):
        if seen.error is not None:
            continue
        wanted = [got for name, got in seen.tensors.items() if of_result(name)]
        for right, (dtype, shape) in zip(wanted, shapes):
            matches = len(shape) == len(right.shape) and all(n is None or n == m for n, m in zip(shape, right.shape))
            if dtype != right.dtype or not matches:
                texts = f"{right.dtype} {tuple(right.shape)}", f"{dtype} {shape}", f"for inputs of {at}"
                yield "symbolic", Mismatch("symbolic", RESULT, *texts)
                return


def symbolic_metadata(call: CheckedCall, sizes: Sequence[Any]) -> Any:
    """Return dtype and shape of each result of the fake kernel at each of these sizes, from one call with symbolic
    sizes; none at sizes that its guards exclude. An error is an answer."""
    values = call.inputs()

    def results(*parts: torch.Tensor) -> list[torch.Tensor]:
        return tensors(call_plainly(call.operator, with_tensors(values, parts)))

    try:
        shapes = symbolic_results(call.mode, results, tensors(values))
    except Exception as error:
        return Raised.of(error)
    return [[*(shapes.at(each) or ())] for each in sizes]


def compare_compiled(call: CheckedCall, check: str = "compile") -> Iterator[Found]:
    """Compare the operator with itself under a compiler; `check` is the name of the check. It is compiled once, then
    called at these sizes and at those of other calls. Two of these, since Dynamo compiles once more after a call whose
    sizes are equal, and no more, since a loop over the sizes is compiled for each of them."""
    every = [call.inputs, *call.others[:2]]
    for around in (call_plainly, differentiate_call) if call.derivable else (call_plainly,):
        wanted = [call.ask(observe_other, number, around) for number in range(len(every))]
        if around is call_plainly:
            expect_answer(wanted[0])
        elif not has_gradient(wanted[0]):
            continue
        answers, received = call.ask(observe_compiled, around, len(every))
        error = answers[0].error
        if error is not None and (reason := lacks_fake(error) or is_interpreted(error)):
            raise NotJudged(reason)
        if error is None and not received:
            raise NotJudged("the compiler received nothing")
        # Nothing promises the strides of a gradient.
        oracles = COMPILED_ORACLES - {SIGNIFICANT_STRIDE} if around is differentiate_call else COMPILED_ORACLES
        for inputs, want, got in zip(every, wanted, answers, strict=True):
            if inputs is not call.inputs and want.error is not None:
                continue
            if found := mismatches_of(want, got, oracles, call.tolerances):
                at = (
                    ""
                    if inputs is call.inputs
                    else f"compiled for other inputs, and called for inputs of {sizes_of_inputs(inputs)}"
                )
                for mismatch in found:
                    detail = "; ".join(filter(None, (at, mismatch.detail)))
                    yield fact(check, by_entry(dataclasses.replace(mismatch, detail=detail)))
                return


def observe_compiled(call: CheckedCall, around: Around, count: int) -> tuple[list[Observation], bool]:
    """Call the operator, compiled once, on its inputs and on those of other sizes, `count` calls in all. Return the
    answers, and whether the compiler received a graph."""
    transform = call.transform
    assert transform is not None
    compiled = functools.cache(lambda function: raising_inner(transform(function)))
    seen = [
        observe_where_it_runs(call, inputs, None, around, compiled) for inputs in [call.inputs, *call.others][:count]
    ]
    return seen, call.received()


def sizes_of_inputs(inputs: Inputs) -> str:
    """Return the sizes of the tensors among some inputs."""
    return str([tuple(tensor.shape) for tensor in tensors(inputs())])


def compare_dynamic(call: CheckedCall) -> Iterator[Found]:
    """Compare the operator with itself under a compiler for dynamic sizes, which must answer at all sizes."""
    return compare_compiled(call, "dynamic")


def compare_inductor(call: CheckedCall) -> Iterator[Found]:
    """Compare the operator with itself under Inductor."""
    return compare_compiled(call, "inductor")


def is_interpreted(error: Raised) -> str:
    """Return a reason if Dynamo traced Triton's interpreter, which is NumPy, instead of a compiled kernel."""
    interpreted = error.kind == "InterpreterError" and os.environ.get("TRITON_INTERPRET") == "1"
    return "Dynamo does not trace Triton's interpreter; a compiled kernel is traced" if interpreted else ""


def compare_vmap(call: CheckedCall) -> Iterator[Found]:
    """Compare vmap with a loop: all inputs batched at their first dimension, at their last one, each one alone, and all
    but each one at their last dimension."""
    given = tensors(call.inputs())
    if not given or call.written(call.expected()):
        raise NotJudged("the operator writes an input")
    batched: list[list[int | None]] = [[0] * len(given), [tensor.dim() for tensor in given]]
    batched += [[0 if at == alone else None for at in range(len(given))] for alone in range(len(given))]
    if len(given) > 1:
        batched += [[None if at == left else one.dim() for at, one in enumerate(given)] for left in range(len(given))]
    for number, dims in enumerate(batched[:MOST_BATCHED]):
        if number and dims in batched[:number]:
            continue
        want = call.ask(observe_stacked, call_in_loop, dims)
        if want.error is not None and number:
            return  # a size or dtype that the first call has not
        expect_answer(want)
        got = call.ask(observe_stacked, call_under_vmap, dims)
        if got.error is not None and NO_VMAP.search(got.error.text):
            if number:
                return  # a rule for the other dimensions
            raise NotJudged(f"the operator has no rule for vmap: {line_of(got.error)}")
        for mismatch in of_results(mismatches_of(want, got, ANSWER)):
            detail = "; ".join(filter(None, (f"in_dims={tuple(dims)}" * bool(number), mismatch.detail)))
            yield fact("vmap", dataclasses.replace(mismatch, detail=detail))
            return


MOST_BATCHED = 8
"""Limit on the choices of batched inputs."""


def observe_stacked(call: CheckedCall, around: Callable[..., Any], dims: Sequence[int | None]) -> Observation:
    """Call the operator on two entries of a new dimension of the inputs, at these places; None for an input without
    it."""
    stacked = functools.partial(around, dims)
    return observe_where_it_runs(call, lambda: stack_inputs(call.inputs(), dims), None, stacked)


def stack_inputs(inputs: dict[str, Any], dims: Sequence[int | None]) -> Any:
    """Return inputs with a new dimension of length 2 at these places. The second entry has other values."""
    pairs = [
        leaf if dim is None else torch.stack([leaf, leaf.flatten().roll(1).view(leaf.shape)], dim)
        for leaf, dim in zip(tensors(inputs), dims, strict=True)
    ]
    return with_tensors(inputs, pairs)


def call_under_vmap(dims: Sequence[int | None], function: Function, inputs: dict[str, Any]) -> Any:
    """Call the function under `torch.func.vmap`, over these dimensions of the tensors."""
    entry = lambda *parts: call_plainly(function, with_tensors(inputs, parts))  # noqa: E731
    return torch.func.vmap(entry, tuple(dims))(*tensors(inputs))


def call_in_loop(dims: Sequence[int | None], function: Function, inputs: dict[str, Any]) -> Any:
    """Call the function on each entry of these dimensions, and stack the results."""
    given = [*zip(tensors(inputs), dims, strict=True)]
    rows = [[one if dim is None else one.select(dim, entry) for one, dim in given] for entry in range(2)]
    return join_results([call_plainly(function, with_tensors(inputs, parts)) for parts in rows], torch.stack)


def compare_autocast(call: CheckedCall) -> Iterator[Found]:
    """Compare the results under autocast with three right ones: the operator's without autocast, the reference's under
    autocast, and the operator's on inputs that autocast has cast. Values may differ by rounding in bfloat16, to which
    autocast casts at other places in other code; but what the operator itself rounds must be right where autocast
    casts nothing. The fake kernel must agree about the metadata."""
    plain = call.actual()
    expect_answer(plain)
    for mismatch in judge_own_rounding(call, plain):
        yield under("autocast", mismatch, by_itself(mismatch))
        return
    got = call.actual(around=call_under_autocast)
    cast = call.ask(observe_cast)
    right = [want for want in (plain, call.expected(around=call_under_autocast), cast) if want.error is None]
    by_side = [of_results(mismatches_of(want, got, ANSWER)) for want in right]
    if all(by_side):
        values = [want for want, found in zip(right, by_side) if {one.oracle for one in found} == {"value"}]
        if not is_rounded_by_autocast(call, values, got):
            yield fact("autocast", by_side[0][0])
            return
    if call.mode is not None and got.error is None:
        meta = call.ask(observe_fake, call_under_autocast)
        found = mismatches_of(meta, got, {"structure", "dtype", "shape"}) if meta.error is None else []
        for mismatch in of_results(found):
            yield under("autocast", mismatch, f"the {mismatch.oracle}, which the fake kernel gives otherwise")


def observe_cast(call: CheckedCall) -> Observation:
    """Call the operator on inputs that autocast has cast."""
    return observe_where_it_runs(call, lambda: map_leaves(call.inputs(), in_bfloat16))


def in_bfloat16(leaf: Any) -> Any:
    """Return a float32 tensor in bfloat16, and another leaf unchanged."""
    return leaf.bfloat16() if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32 else leaf
