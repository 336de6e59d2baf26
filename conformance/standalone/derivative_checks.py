"""The checks of an operator's derivatives, as functions of one call (`operator_checks`).

    compare_gradients(CheckedCall(my_silu, inputs, torch.nn.functional.silu))

The gradients are those of the reference, along cotangents in any layout; and they stay the same if only some inputs
require one, in a second pass, after a write to the result and under autocast. Second derivatives and those of forward
mode are compared where both sides have them.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from conformance.standalone.guarded_memory import Watched
from conformance.standalone.layouts import laid_out
from conformance.standalone.moving import map_leaves, tensors
from conformance.standalone.observation import Observation, Raised, tensors_by_name
from conformance.standalone.operator_checks import (
    ANSWER,
    RESULT,
    STRIDED,
    Around,
    CheckedCall,
    Found,
    Function,
    NotJudged,
    by_entry,
    by_itself,
    call_plainly,
    call_under_autocast,
    from_reference,
    is_differentiable,
    is_rounded_by_autocast,
    judge_own_rounding,
    line_of,
    mismatches_of,
    observe_where_it_runs,
    of_result,
    of_results,
    send_inputs,
    under,
)
from conformance.standalone.oracles import Mismatch
from conformance.standalone.torch_compat import version_of, with_memory

COTANGENTS = ("transposed", "expanded", "gaps")
"""Layouts of the gradients of results."""

NO_FORMULA = re.compile(r"no autograd formula was registered|derivative for .* is not implemented")
IN_FORK = re.compile(r"autograd's threading in combination with fork")
"""Sentences of torch about a missing part of an operator. Any other error is a difference."""

MODIFIED = re.compile(r"modified by an inplace operation|is a view and is being modified inplace|leaf Variable")
"""Sentences of torch that refuse a write to a result, or a derivative after it."""

NO_DERIVATIVE = "the operator registers no derivative"

DETACHED = (
    "its gradient is detached, so torch leaves it out of a second derivative and raises no error: mark its backward "
    "with torch.autograd.function.once_differentiable, or make it differentiable"
)
"""Reason of a missing second derivative that no user of the operator is told about."""

MOST_OUTPUTS, STEP = 100, 1e-6
"""Limit on the results whose gradients are compared with finite differences, and the step of these."""

RTOL, ATOL = 1e-3, 1e-5
"""Tolerances between a gradient and finite differences, as in `torch.autograd.gradcheck`."""


def differentiate_call(
    function: Function,
    inputs: dict[str, Any],
    lay: Callable[[torch.Tensor], torch.Tensor] = lambda cotangent: cotangent,
    only: Collection[str] | None = None,
    write: bool = False,
    times: int = 1,
) -> Any:
    """Return the gradients of the floating inputs by name, along cotangents that every dtype represents; `lay` changes
    their memory. A result that requires no gradient counts as such. The function gets copies of the leaves; those that
    it writes are results. Only the inputs in `only` require a gradient, if it is given. With `write`, the results are
    doubled in place before. The gradients are computed `times` times, along one graph."""
    variables, results = call_with_variables(function, inputs, only)
    drawn = [draw_cotangent(tensor) for tensor in results]
    pairs = [(tensor, lay(grad)) for tensor, grad in zip(results, drawn, strict=True) if tensor.requires_grad]
    if not pairs:
        return {"requires_grad": False}
    outputs, cotangents = zip(*pairs)
    if write:
        outputs, cotangents = tuple(one.mul_(2) for one in outputs), tuple(one / 2 for one in cotangents)
    for _ in range(times):
        grads = torch.autograd.grad(
            outputs, [*variables.values()], cotangents, allow_unused=True, retain_graph=times > 1
        )
    return name_gradients(variables, grads)


def call_with_variables(
    function: Function, inputs: dict[str, Any], only: Collection[str] | None = None
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Call the function on copies of leaves that require a gradient. Return these leaves by name, and the floating
    results, among which the inputs are that it writes."""
    leaves = {id(one): name for name, one in tensors_by_name(inputs).items()}
    wanted = lambda leaf: is_differentiable(leaf) and (only is None or leaves.get(id(leaf)) in only)  # noqa: E731
    inputs = map_leaves(
        inputs, lambda leaf: leaf.detach().requires_grad_(wanted(leaf)) if is_differentiable(leaf) else leaf
    )
    variables = {name: tensor for name, tensor in tensors_by_name(inputs).items() if tensor.requires_grad}
    copies = map_leaves(inputs, lambda leaf: leaf.clone() if is_differentiable(leaf) else leaf)
    returned = tensors(call_plainly(function, copies))
    written = [each for each in tensors(copies) if version_of(each) and not any(each is other for other in returned)]
    return variables, [tensor for tensor in (*returned, *written) if is_differentiable(tensor)]


def draw_cotangent(tensor: torch.Tensor) -> torch.Tensor:
    """Return a random gradient of a result, with numbers that every dtype represents, none of which hides an element as
    0 does."""
    drawn = torch.randint(-8, 8, tensor.shape)
    return ((drawn + (drawn >= 0)) / 8).to(tensor.device, tensor.dtype)


def name_gradients(variables: Mapping[str, torch.Tensor], grads: Sequence[torch.Tensor | None]) -> dict[str, Any]:
    """Return the gradients of variables by name, as the result of a differentiated call."""
    gradients = {f"gradient of {name}": with_memory(grad) for name, grad in zip(variables, grads, strict=True)}
    return {"requires_grad": True, **gradients}


def why_none(seen: Observation) -> str:
    """Return why a differentiated call has no gradient, if an error says so."""
    if seen.error is None:
        return ""
    if IN_FORK.search(seen.error.text):
        return (
            ": autograd does not run in a fork of a process that has run a backward pass on a device; run this check "
            "in a process of its own, or before that pass"
        )
    return ": it registers none" if NO_FORMULA.search(seen.error.text) else f": {line_of(seen.error)}"


def has_gradient(seen: Observation) -> bool:
    """Whether a differentiated call has an answer that requires a gradient."""
    return seen.error is None and seen.others.get("result['requires_grad']") is True


def compare_gradients(call: CheckedCall) -> Iterator[Found]:
    """Compare the gradients with those of the reference."""
    want = call.expected(around=differentiate_call)
    if not has_gradient(want):
        raise NotJudged(f"the reference has no gradient{why_none(want)}")
    got = call.actual(around=differentiate_call)
    if got.error is not None and NO_FORMULA.search(got.error.text):
        raise NotJudged(NO_DERIVATIVE)
    if got.error is not None and got.error.not_implemented and call.kind == STRIDED:
        raise NotJudged(f"the operator refuses them: {line_of(got.error)}")
    if got.error is None and not has_gradient(got):
        if has_no_elements(call, want):
            return
        yield "gradients", Mismatch("gradients", RESULT, "a gradient", "none: it does not require grad")
        return
    for mismatch in of_results(from_reference(call, want, got, ANSWER, differentiate_call)):
        yield under("gradients", by_entry(mismatch))


def has_no_elements(call: CheckedCall, want: Observation) -> bool:
    """Whether an input of a call is empty, and all its gradients are zeros: an operator may then return a tensor that
    does not depend on its inputs."""
    values = [seen.value for name, seen in want.tensors.items() if of_result(name)]
    return any(not tensor.numel() for tensor in tensors(call.inputs())) and not any(bool(one.any()) for one in values)


def compare_subsets(call: CheckedCall) -> Iterator[Found]:
    """Compare the gradients with those of the same call in which some inputs require none."""
    names = [name for name, tensor in tensors_by_name(call.inputs()).items() if is_differentiable(tensor)]
    if len(names) < 2:
        raise NotJudged("only one input has a gradient")
    whole = call.actual(around=differentiate_call)
    if not has_gradient(whole):
        raise NotJudged(f"the operator has no gradient{why_none(whole)}")
    subsets = [{name} for name in names] + [{*names} - {name} for name in names if len(names) > 2]
    for only in subsets[:MOST_SUBSETS]:
        kept = {f"{RESULT}['gradient of {name}']" for name in only}
        want = dataclasses.replace(
            whole,
            tensors={name: seen for name, seen in whole.tensors.items() if not of_result(name) or name in kept},
            others={name: one for name, one in whole.others.items() if not of_result(name) or name in kept},
        )
        if not any(of_result(name) for name in want.tensors):
            continue
        got = call.actual(around=functools.partial(differentiate_call, only=sorted(only)))
        detail = f"if only {', '.join(sorted(only))} requires a gradient"
        if got.error is None and not has_gradient(got):
            yield "subsets", Mismatch("subsets", RESULT, "a gradient", "none: it does not require grad", detail)
            return
        for mismatch in of_results(mismatches_of(want, got, ANSWER - {"structure"}, call.tolerances)):
            yield under("subsets", by_entry(mismatch), "; ".join(filter(None, (detail, mismatch.detail))))
            return


MOST_SUBSETS = 8
"""Limit on the subsets of the inputs that require a gradient."""


def differentiate_twice(function: Function, inputs: dict[str, Any]) -> Any:
    """Return the second derivatives by name: gradients of the gradients, with respect to inputs and cotangents."""
    variables, results = call_with_variables(function, inputs)
    outputs = [tensor for tensor in results if tensor.requires_grad]
    cotangents = [draw_cotangent(tensor).requires_grad_() for tensor in outputs]
    if not outputs:
        return {"requires_grad": False}
    grads = torch.autograd.grad(outputs, [*variables.values()], cotangents, allow_unused=True, create_graph=True)
    first = [grad for grad in grads if grad is not None and grad.requires_grad]
    if not first:
        return {"requires_grad": False, "detached": True}
    names = {**variables, **{f"cotangent {number}": one for number, one in enumerate(cotangents)}}
    second = torch.autograd.grad(first, [*names.values()], [draw_cotangent(one) for one in first], allow_unused=True)
    if all(grad is None for grad in second):  # as of a backward that is differentiable once
        return {"requires_grad": False}
    wanted = [torch.zeros_like(one) if grad is None else grad for one, grad in zip(names.values(), second)]
    return name_gradients(names, wanted)


def compare_second(call: CheckedCall) -> Iterator[Found]:
    """Compare the second derivatives with those of the reference, if both have them."""
    yield from compare_derivatives(call, differentiate_twice, "second", "second derivative")


def compare_derivatives(call: CheckedCall, differentiate: Around, check: str, noun: str) -> Iterator[Found]:
    """Compare derivatives with those of the reference, if both have them. `noun` names one in words."""
    want = call.expected(around=differentiate)
    if not has_gradient(want):
        raise NotJudged(f"the reference has no {noun}{why_none(want)}")
    got = call.actual(around=differentiate)
    if got.others.get(f"{RESULT}['detached']") is True:
        raise NotJudged(DETACHED)
    if not has_gradient(got):
        raise NotJudged(f"the operator has no {noun}{why_none(got)}")
    for mismatch in of_results(from_reference(call, want, got, ANSWER, differentiate)):
        yield under(check, by_entry(mismatch))


def differentiate_forward(function: Function, inputs: dict[str, Any]) -> Any:
    """Return the derivatives of the results along random tangents of all floating inputs, by forward-mode AD."""
    with forward_ad.dual_level():
        given = map_leaves(
            inputs,
            lambda leaf: (
                forward_ad.make_dual(leaf.detach().clone(), draw_cotangent(leaf)) if is_differentiable(leaf) else leaf
            ),
        )
        results = [one for one in tensors(call_plainly(function, given)) if is_differentiable(one)]
        found = [forward_ad.unpack_dual(one).tangent for one in results]
        shown = {f"tangent {number}": with_memory(one) for number, one in enumerate(found)}
        return {"requires_grad": any(one is not None for one in found), **shown}


def compare_forward_mode(call: CheckedCall) -> Iterator[Found]:
    """Compare the derivatives of forward mode with those of the reference, if both have them."""
    yield from compare_derivatives(call, differentiate_forward, "forward_mode", "derivative in forward mode")


def compare_backward(call: CheckedCall) -> Iterator[Found]:
    """Compare the gradients with those of a second pass along the same graph, and of one after a write to the result,
    which may be an error; and those under autocast with the reference's there, or with those outside of autocast."""
    want = call.actual(around=differentiate_call)
    if not has_gradient(want):
        raise NotJudged(f"the operator has no gradient{why_none(want)}")
    for detail, changes in (("in a second pass", {"times": 2}), ("after a write to the result", {"write": True})):
        got = call.actual(around=functools.partial(differentiate_call, **changes))
        if got.error is not None and MODIFIED.search(got.error.text):
            continue
        for mismatch in of_results(mismatches_of(want, got, ANSWER, call.tolerances)):
            yield under("backward", by_entry(mismatch), detail)
            return
    for mismatch in judge_own_rounding(call, want, differentiate_call):
        yield under("backward", by_entry(mismatch), by_itself(mismatch))
        return
    differentiate = functools.partial(call_under_autocast, around=differentiate_call)
    got = call.actual(around=differentiate)
    right = [want]
    if call.reference is not None:
        right += [one for one in (call.expected(around=differentiate),) if has_gradient(one)]
    by_side = [of_results(mismatches_of(one, got, ANSWER)) for one in right]
    near = [one for one, found in zip(right, by_side) if {each.oracle for each in found} == {"value"}]
    if all(by_side) and not is_rounded_by_autocast(call, near, got, differentiate_call):
        yield under("backward", by_entry(by_side[-1][0]), "under autocast")


def differentiate_along(layout: str, dense: bool, function: Function, inputs: dict[str, Any]) -> Any:
    """Return the gradients along cotangents in a layout, or along dense cotangents with the same values."""

    def lay(cotangent: torch.Tensor) -> torch.Tensor:
        grad: torch.Tensor = laid_out(cotangent, layout)
        return grad.clone(memory_format=torch.contiguous_format) if dense else grad

    return differentiate_call(function, inputs, lay)


def compare_cotangents(call: CheckedCall) -> Iterator[Found]:
    """Compare the gradients along strided and expanded gradients of the result with those along dense ones, on which a
    sum, a transposition or a slice after the operator never calls a backward kernel."""
    dense: dict[bool, Observation] = {}
    for layout in COTANGENTS:
        changes_values = layout == "expanded"
        if changes_values not in dense:
            dense[changes_values] = call.actual(around=functools.partial(differentiate_along, layout, True))
        want = dense[changes_values]
        if not has_gradient(want):
            raise NotJudged(f"the operator has no gradient{why_none(want)}")
        got = call.actual(around=functools.partial(differentiate_along, layout, False))
        for mismatch in of_results(mismatches_of(want, got, ANSWER - {"structure"}, call.tolerances)):
            yield under("cotangents", by_entry(mismatch), f"along {layout} cotangents")
            return


def check_gradients(call: CheckedCall) -> Iterator[Found]:
    """Compare the gradients with finite differences in float64, if the reference has none."""
    if has_gradient(call.expected(around=differentiate_call)):
        raise NotJudged("the reference has gradients to compare with")
    found = call.ask(observe_slopes)
    if found is None:
        return
    gradients, above, below = found
    slopes = (above - below) / (2 * STEP)
    if gradients.shape != slopes.shape:
        yield "gradcheck", Mismatch("gradcheck", "the gradient", str([*slopes.shape]), str([*gradients.shape]))
        return
    wrong = ~torch.isclose(gradients, slopes, RTOL, ATOL, equal_nan=True)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        slope, gradient = (f"{float(one[row, column]):.6g}" for one in (slopes, gradients))
        detail = (
            f"{int(wrong.sum())} of {wrong.numel()} derivatives differ, first that of result {column} by input {row}"
        )
        yield "gradcheck", Mismatch("gradcheck", "the gradient", slope, gradient, detail)


def observe_slopes(call: CheckedCall) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Return the operator's gradients in float64, and its results at inputs that lie a step above and a step below:
    each a matrix with a row for each element of the inputs. None for inputs that have no gradient or are large. Raises
    NotJudged."""
    inputs = map_leaves(send_inputs(call, map_leaves(call.inputs(), in_float64)), as_leaf)
    variables = [tensor for tensor in tensors(inputs) if tensor.requires_grad]
    if not variables or sum(tensor.numel() for tensor in tensors(inputs)) > 200:
        return None

    def results() -> torch.Tensor:
        copies = map_leaves(inputs, lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
        parts = [one for one in tensors(call_plainly(call.operator, copies)) if one.requires_grad]
        if not parts:
            raise NotJudged("the operator has no gradient either")
        flat = [torch.view_as_real(one).flatten() if one.is_complex() else one.flatten() for one in parts]
        return torch.cat(flat)[:MOST_OUTPUTS]

    try:
        rows = []
        for one in results():
            grads = torch.autograd.grad(one, variables, retain_graph=True, allow_unused=True)
            pairs = zip(variables, grads)
            rows.append(torch.cat([(torch.zeros_like(x) if grad is None else grad).flatten() for x, grad in pairs]))
        moved: dict[float, list[torch.Tensor]] = {STEP: [], -STEP: []}
        for step, seen in moved.items():
            for tensor in variables:
                for at in range(tensor.numel()):
                    flat = tensor.data.view(-1)
                    before = flat[at].clone()
                    flat[at] += step
                    seen.append(results().detach())
                    flat[at] = before
    except NotJudged:
        raise
    except Exception as error:
        said = Raised.of(error)
        if NO_FORMULA.search(said.text):
            raise NotJudged(NO_DERIVATIVE) from None
        raise NotJudged(f"it does not run in float64: {line_of(said)}") from None
    answers = [torch.stack(rows).t() if rows else torch.zeros(0, 0), *map(torch.stack, moved.values())]
    matrix = [one.detach().cpu().double().contiguous() for one in answers]
    return matrix[0], matrix[1], matrix[2]


def in_float64(leaf: Any) -> Any:
    """Return a floating tensor in float64, and another leaf unchanged."""
    return leaf.detach().double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def as_leaf(leaf: Any) -> Any:
    """Return a floating tensor such that it requires a gradient, and another leaf unchanged."""
    floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.detach().requires_grad_() if floating else leaf


# Calls of forbidden operators


def watch_dispatch(call: CheckedCall) -> Iterator[Found]:
    """Look for forbidden operators among those that a call, or its backward pass, dispatches to. Raises NotJudged if
    one of the two ends with an error, unless the operator has no backward pass."""
    for place, around in (("it calls", call_plainly), ("its backward pass calls", differentiate_call)):
        names, seen = call.ask(observe_dispatch, around)
        for name in names:
            if {name, name.removesuffix("_")} & {*call.forbidden}:  # in place, too
                yield "forbid", Mismatch("forbid", f"the operators that {place}", f"none named {name}", "a call of it")
                return
        if seen.error is not None and not NO_FORMULA.search(seen.error.text):
            raise NotJudged(f"the operators that {place} were not seen{why_none(seen)}")


def observe_dispatch(call: CheckedCall, around: Around) -> tuple[list[str], Observation]:
    """Return the names of the operators that a call dispatches to, and its answer. A mode takes apart what autograd
    does not see inside an operator of a library, and the profiler sees calls for which the operator has disabled
    modes."""
    names: dict[str, None] = {}

    def call_watched(function: Function, inputs: dict[str, Any]) -> Any:
        device = call.device.device.type if call.device else "cpu"
        try:
            with torch.autograd.profiler.profile() as profile, Watched(device) as mode:
                return around(function, inputs)
        finally:
            names.update(mode.names)
            names.update(dict.fromkeys(event.name for event in profile.function_events or ()))

    seen = observe_where_it_runs(call, call.inputs, None, call_watched)
    return [*names], seen
