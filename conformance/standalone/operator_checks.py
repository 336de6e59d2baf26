"""The checks of an operator, as functions of one call: `compare_results`, `fill`, `vmap`, ...

    def inputs():
        return {"x": torch.ones(3)}

    compare_results(CheckedCall(my_silu, inputs, torch.nn.functional.silu))

A check runs the operator under two conditions, or the operator and its reference, and yields what differs, each
difference under the name of a check of `sources/operator/table.py`. All that runs the operator is a question, a
function of the call that another process may answer (`CheckedCall.ask`), so the operator has no part in the comparison.
`conformance.check` runs these functions, and the script of a difference carries the same ones, so they need torch only.
An error that names a missing part of the operator, such as a derivative, is no difference: it raises NotJudged with the
operator's own reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import torch

from conformance.record.accuracy import TIMES, limit, shown
from conformance.record.names import DTYPES, SIGNIFICANT_STRIDE
from conformance.standalone.accuracy import SEED, beyond, errors
from conformance.standalone.conditions import Conditions, Guarded, OnDevice
from conformance.standalone.device import Device, is_lost
from conformance.standalone.global_state import compare_states, global_state
from conformance.standalone.guarded_memory import READ_ONLY
from conformance.standalone.layouts import laid_out
from conformance.standalone.moving import map_leaves, storage_key, taken_apart, tensors
from conformance.standalone.observation import (
    Foreign,
    Observation,
    Raised,
    Seen,
    observe,
    out_of_memory,
    tensors_by_name,
    versions_of,
)
from conformance.standalone.oracles import Mismatch, Tolerance, differences, differing, facts_of, show
from conformance.standalone.rounding import ARBITRATED, Swayed, Widened, arbitrate, distance, subject

Function = Callable[..., Any]
Inputs = Callable[[], dict[str, Any]]
Around = Callable[[Function, dict[str, Any]], Any]
"""Makes the call of a function on inputs by name."""

Found = tuple[str, Mismatch]
"""The name of a check, and a difference that it finds."""

RESULT = "result"
"""Name of the results in findings. Parts of a result have names such as `result[0]`."""

MIXED = "mixed"
"""Kind of a call with inputs of several dtypes."""

SPECIAL = "specials"
"""Kind of a call with special values."""

STRIDED = "layouts"
"""Kind of a call with strided, offset or expanded inputs."""

OTHER_DTYPES = "dtypes"
"""Kind of a call in another dtype than the usual one."""

NEGATIVE = "negative"
"""Kind of a call with views that torch negates when it reads them."""

REFUSABLE = frozenset({MIXED, OTHER_DTYPES})
"""Kinds of calls in other dtypes. Like those with negative views, which NumPy has not, an operator may refuse them with
any error. It refuses others with NotImplementedError."""

ANSWER = frozenset({"structure", "dtype", "shape", "value", "error"})
"""Oracles that ignore strides and memory."""

HALVES = (torch.float16, torch.bfloat16)
"""Dtypes in which an operator rounds its results, but must not add."""

SWAYS = 8
"""Pairs of runs whose spread is the error that rounding explains. They move results by up to twice the factor of the
accuracy rule, so by that factor on average."""

PROCESS = "the process"
"""Name of the process in findings."""


LOST = "left the device unusable"
"""What a call has done after which a device holds no number any more."""


class NotJudged(Exception):
    """A check without a judgement. The message is the reason."""


def call_plainly(function: Function, inputs: dict[str, Any]) -> Any:
    """Make the call."""
    return function(*inputs.values())


@dataclass(frozen=True)
class CheckedCall:
    """A call of an operator. `operator` and `reference` are functions of the inputs, by position. `inputs` makes the
    inputs anew, by their names in findings.

    - `kind`: the check that compares the values of such calls.
    - `tolerance`: rtol and atol; None for torch.testing's.
    - `scales`: whether the absolute tolerance shrinks with results below 1; not if the user gives one.
    - `ties`: whether an index of another one of equal elements is right, too.
    - `random`: whether the operator draws random numbers of its own.
    - `watches`: whether the global state is compared.
    - `writes`: the inputs that the schema declares as written; None for those that the reference writes.
    - `aliases`: the pairs of a result and an input that share memory by the schema; None for those of the reference.
    - `batch`: the dimensions that the check `batch` splits, by input.
    - `forbidden`: full names of operators that the operator may not call.
    - `each`: whether the accuracy rule holds for each element, and not for the largest one.
    - `derivable`: whether the operator may have gradients.
    - `mode`: the FakeTensorMode in which the fake kernel runs; None for a function without one.
    - `transform`: the compiler; `received` says whether it received a graph.
    - `others`: inputs of other sizes.
    - `renewed`: inputs of the same sizes with other values; None if there are none.
    - `device`: the device on which the operator runs; None for torch CPU, on which the reference always runs.
    - `elsewhere`: asks a question in the process in which the operator runs; None if it runs in this one.
    - `reference_elsewhere`: asks a question in a process in which the reference runs on the device; None if it runs on
      torch CPU.
    """

    operator: Function
    inputs: Inputs
    reference: Function | None = None
    kind: str = "values"
    tolerance: tuple[float, float] | None = None
    scales: bool = True
    ties: bool = False
    random: bool = False
    watches: bool = True
    writes: Collection[str] | None = None
    aliases: Collection[tuple[str, str]] | None = None
    batch: Mapping[str, int] | None = None
    each: bool = False
    forbidden: Collection[str] = ()
    derivable: bool = True
    mode: Any = None
    transform: Callable[[Function], Function] | None = None
    received: Callable[[], bool] = lambda: True
    others: Sequence[Inputs] = ()
    renewed: Inputs | None = None
    device: Device | None = None
    elsewhere: Callable[..., Any] | None = None
    reference_elsewhere: Callable[..., Any] | None = None

    def ask(self, question: Callable[..., Any], *details: Any) -> Any:
        """Return `question(call, *details)`, which runs the operator. The question and its details are picklable, and
        the answer is plain data with tensors."""
        return question(self, *details) if self.elsewhere is None else self.elsewhere(question, *details)

    def actual(self, conditions: Conditions | None = None, around: Around = call_plainly) -> Observation:
        """Return the operator's answer."""
        seen: Observation = self.ask(observe_operator, conditions, around)
        return seen

    def expected(self, conditions: Conditions | None = None, around: Around = call_plainly) -> Observation:
        """Return the reference's answer, from the device if the reference runs there. In float64, it always runs on
        torch CPU."""
        assert self.reference is not None
        if self.reference_elsewhere is not None and conditions is None:
            seen: Observation = self.reference_elsewhere(observe_reference, around)
            return seen
        return observe_call(self.reference, self.inputs, conditions, around)

    @property
    def tolerances(self) -> Tolerance:
        """The tolerances for each dtype; empty for torch.testing's."""
        return dict.fromkeys(DTYPES, self.tolerance) if self.tolerance else {}

    def written(self, want: Observation) -> Collection[str]:
        """Return the inputs that may change. Without a schema, the reference changes them in its answer `want`."""
        return changed_inputs(want, self) if self.writes is None else self.writes


def observe_operator(call: CheckedCall, conditions: Conditions | None, around: Around) -> Observation:
    """Call the operator under these conditions."""
    return observe_where_it_runs(call, call.inputs, conditions, around)


def observe_reference(call: CheckedCall, around: Around) -> Observation:
    """Call the reference on the device of the operator."""
    assert call.reference is not None
    return observe_where_it_runs(dataclasses.replace(call, operator=call.reference), call.inputs, None, around)


def observe_where_it_runs(
    call: CheckedCall,
    inputs: Inputs,
    conditions: Conditions | None = None,
    around: Around = call_plainly,
    transformed: Callable[[Function], Function] = lambda function: function,
) -> Observation:
    """Call the operator on these inputs, on its device if it has one. Raises NotJudged for an error that says nothing
    of the operator: the device also answers `x + x` with an error there, for example since it knows no autocast."""
    conditions = conditions or Conditions()
    if call.device is None:
        return observe_call(transformed(call.operator), inputs, conditions, around)
    conditions = conditions.on(call.device)
    seen = observe_call(transformed(call.operator), inputs, conditions, around)
    if seen.error is not None and conditions.shows_values and not is_lost(call.device):
        control = observe_call(transformed(double_inputs), inputs, conditions, around)
        if control.error is not None:
            raise NotJudged(f"the device has no answer to x + x there: {line_of(control.error)}")
    return seen


def double_inputs(*parts: Any) -> Any:
    """Return the sum of each tensor and itself: what each device can compute."""
    return [tensor.clone() if tensor.dtype is torch.bool else tensor + tensor for tensor in tensors(parts)]


def observe_changes(call: CheckedCall, role: str) -> tuple[Observation, dict[str, tuple[str, str]]]:
    """Call the operator or the reference, as `role` says. Return the answer, and the changes of the global state."""
    assert call.reference is not None
    seed_generators(SEED)  # as `observe_call` does before the call
    before = global_state(call.reference) if call.watches else None
    if role == "reference":
        seen = observe_call(call.reference, call.inputs)
    else:
        seen = observe_where_it_runs(call, call.inputs)
    return seen, {} if before is None else compare_states(before, global_state(call.reference))


def seed_generators(seed: int) -> None:
    """Seed the generators of torch CPU and of the accelerators that this process uses. `torch.manual_seed` also notes
    the call for each other kind, each time with the text of the stack, which takes longer than a small call."""
    torch.default_generator.manual_seed(seed)
    accelerator = torch.accelerator.current_accelerator()
    used = {accelerator.type} if accelerator is not None else set()
    used |= {"cuda"} if torch.cuda.is_initialized() else set()  # beside a device in Python, not named above
    for kind in used:
        module = getattr(torch, kind, None)
        seed_all = getattr(module, "manual_seed_all", None) or getattr(module, "manual_seed", None)
        # A device in Python needs both functions, as for `torch.manual_seed`.
        in_bad_fork = getattr(module, "_is_in_bad_fork", None)
        if seed_all is not None and in_bad_fork is not None and not in_bad_fork():
            seed_all(seed)


def observe_call(
    function: Function, inputs: Inputs, conditions: Conditions | None = None, around: Around = call_plainly
) -> Observation:
    """Make a call under these conditions, with the same seed each time, and return everything observable. An error is
    an answer like any other."""
    conditions = conditions or Conditions()
    given: dict[str, Any] = {}
    versions: dict[int, int] = {}
    result, error = None, None
    try:
        given = conditions.send(inputs())
        versions = versions_of(given)
        seed_generators(SEED)
        with conditions.active():
            result = around(function, given)
    except Exception as raised:
        error = raised
    try:
        written = taken_apart(map_leaves(given, as_observable))
        if error is not None:
            return observe((), written, target=conditions.reader, error=error)
        result = map_leaves(result, as_plain) if conditions.shows_values else result
        return observe({RESULT: taken_apart(result)}, written, target=conditions.reader, versions=versions)
    except Exception as raised:  # for example a result that reaches past the end of its storage
        return Observation(error=Raised.of(raised))


def as_observable(leaf: Any) -> Any:
    """Return a tensor among the inputs, which a call may change, and None for another leaf."""
    return leaf if isinstance(leaf, torch.Tensor) and not leaf.is_meta else None


PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, type(None), bool, int, float, complex, str, bytes, torch.dtype, slice)
"""Types of results that are compared as they are, beside sizes, and trees of these."""


def as_plain(leaf: Any) -> Any:
    """Return a leaf of a result if it can be compared, a dataclass as a dict of its fields, and otherwise the name of
    the leaf's type. An instance of a subclass of tensors may compute its values when they are read."""
    if type(leaf) in PLAIN_TYPES or isinstance(leaf, torch.Size):
        return leaf
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        parts = {one.name: getattr(leaf, one.name) for one in dataclasses.fields(leaf)}
        return {"type": type(leaf).__name__, **map_leaves(parts, as_plain)}
    kind = type(leaf)
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return Foreign(f"{home}{kind.__qualname__}", "" if isinstance(leaf, torch.Tensor) else repr(leaf)[:200])


# What an answer says


def of_result(name: str) -> bool:
    """Whether a finding's name is that of a result or of its part, and not that of an argument."""
    return name.partition("[")[0] == RESULT


def argument_of(name: str) -> str:
    """Return the argument of a tensor: `x` of `x[0]`."""
    return name.partition("[")[0]


def changed_inputs(seen: Observation, call: CheckedCall) -> list[str]:
    """Return the inputs whose elements a run has changed."""
    before = tensors_by_name(call.inputs())
    return [name for name, one in before.items() if name in seen.tensors and differs(one, seen.tensors[name].value)]


def differs(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors differ in a bit, in the shape or in the dtype."""
    alike = tensor.shape == other.shape and tensor.dtype == other.dtype
    return not alike or bool(differing(tensor, other, True).any())


def mismatches_of(
    want: Observation,
    got: Observation,
    oracles: Collection[str],
    tolerance: Tolerance | None = None,
    bits: bool = False,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> list[Mismatch]:
    """Return the differences of two answers; `bits` says that values must agree to the bit."""
    facts = facts_of(want), facts_of(got)
    return differences(*facts, oracles=oracles, exact=bits, tolerance=tolerance, weights=weights)


def by_container(found: Iterable[Mismatch], want: Observation, got: Observation) -> list[Mismatch]:
    """Return differences in which a tensor in place of several parts, or the reverse, is one difference."""
    named: dict[tuple[str, str], Mismatch] = {}
    sides = [{**seen.tensors, **seen.others} for seen in (want, got)]
    for one in found:
        wholes = [
            whole
            for whole in sorted({*sides[0]} | {*sides[1]})
            if one.oracle == "structure" and (one.where == whole or one.where.startswith(f"{whole}["))
            for parts in ([[name for name in side if name.startswith(f"{whole}[")] for side in sides],)
            if any(parts) and not all(parts)
        ]
        if wholes:
            texts = (what_is(wholes[0], side) for side in sides)
            one = Mismatch("structure", wholes[0], *texts)
        named.setdefault((one.oracle, one.where), one)
    return [*named.values()]


def what_is(name: str, parts: Mapping[str, Any]) -> str:
    """Return what a result is, of which an answer has these parts: a list of tensors has one for each."""
    inside = {part[len(name) :].partition("]")[0] for part in parts if part.startswith(f"{name}[")}
    if inside:
        return f"{'dict' if min(inside).startswith(QUOTED) else 'sequence'} of {len(inside)}"
    if name not in parts:
        return "nothing"
    leaf = parts[name]
    return "Tensor" if isinstance(leaf, Seen) else leaf.kind if isinstance(leaf, Foreign) else type(leaf).__name__


QUOTED = ("['", '["')
"""How the name of a part of a dict goes on after the name of the dict."""


def of_results(mismatches: Iterable[Mismatch]) -> list[Mismatch]:
    """Return the differences of results, and of errors; inputs do not count."""
    return [one for one in mismatches if of_result(one.where) or one.oracle == "error"]


def under(check: str, mismatch: Mismatch, detail: str = "") -> Found:
    """Return a difference under the name of a check, with another detail if one is given."""
    return check, dataclasses.replace(mismatch, oracle=check, detail=detail or mismatch.detail)


def fact(check: str, mismatch: Mismatch) -> Found:
    """Return a difference under the name of a check; the detail says which fact of an answer differs."""
    return under(check, mismatch, "; ".join(filter(None, (f"the {mismatch.oracle}", mismatch.detail))))


def by_entry(mismatch: Mismatch) -> Mismatch:
    """Return a difference under the name of the gradient, which is an entry of the result."""
    return dataclasses.replace(mismatch, where=mismatch.where.removeprefix("result['").removesuffix("']"))


def line_of(error: Raised) -> str:
    """Return the first line of an error, with its type."""
    return f"{error.kind}: {error.text}".strip().partition("\n")[0][:300]


def expect_answer(seen: Observation) -> None:
    """Raise NotJudged for a call without an answer: two equal errors are no comparison. The check of values says
    whether the operator may refuse it."""
    if seen.error is not None:
        verb = "refuses them" if seen.error.not_implemented else "raises"
        raise NotJudged(f"the operator {verb}: {line_of(seen.error)}")


def is_differentiable(leaf: Any) -> bool:
    """Whether a leaf of the inputs or results is a floating or complex tensor."""
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


# The operator and its reference


def from_reference(
    call: CheckedCall,
    want: Observation,
    got: Observation,
    oracles: Collection[str],
    around: Around = call_plainly,
    narrow: torch.dtype | None = None,
    adds_in: torch.dtype | None = None,
) -> list[Mismatch]:
    """Return the differences of the operator's answer from the reference's that neither the reference's rounding nor
    its own indecision explains. `narrow` is the least precise dtype in which the operator may round, by default that
    of the inputs, and `adds_in` that in which it may add."""
    weights = weights_of(want, around is call_plainly and narrow is None) if call.scales else {}
    found = mismatches_of(want, got, oracles, call.tolerances, weights=weights)
    if call.kind == SPECIAL and any(one.oracle == "value" for one in found) and is_undecided(call):
        found = [one for one in found if one.oracle != "value"]
    strides = [one for one in found if one.oracle == "stride"]  # which do not keep values from being compared
    found = [one for one in found if one.oracle != "stride"]
    if not found or any(one.oracle not in ARBITRATED for one in found):
        return strides + found
    truth = call.expected(Widened(), around)
    if truth.error is not None:
        return strides + found
    weigh = functools.partial(weighted, weights=weights)
    judge = functools.partial(
        arbitrate, found, *map(weigh, (want, got, truth)), tolerance=call.tolerances, names=JUDGED
    )
    left = judge()
    if left and (swayed := sway_reference(call, around, narrow or coarsest_dtype(call.inputs()), adds_in)):
        left = judge(swayed=[*map(weigh, swayed)])
        if left and narrow is None and rounds_in_own_steps(call, found, got, truth, swayed, around):
            left = judge(swayed=[*map(weigh, sway_operator(call, around))])
    return strides + left


JUDGED = ("the reference", "the operator")
"""Names of the two sides in the detail of a difference."""


LEAST_SLICE = 8
"""Elements of a slice whose largest one is a scale of its own. The largest one of a few may be small by chance."""


def weights_of(want: Observation, in_slices: bool) -> dict[str, torch.Tensor]:
    """Return the factors by which results below 1 are multiplied before they are compared. The absolute tolerances of
    torch.testing and op_db are for results around 1, and zeros are within them where all right results are small. So
    the largest element of each result becomes about 1, and with `in_slices` that of each row, column, and so on: an
    operator may compute these apart from each other. The factors are powers of two, so no bit is lost."""
    found: dict[str, torch.Tensor] = {}
    for name, seen in want.tensors.items():
        if not (of_result(name) and is_differentiable(seen.value) and seen.value.numel() and seen.dtype.itemsize > 1):
            continue
        sizes = seen.value.abs().nan_to_num(0.0, 0.0, 0.0)
        scale, dims = sizes.amax(), {*range(sizes.dim())}
        for dim in dims if in_slices and len(dims) > 1 else ():
            if sizes.numel() >= LEAST_SLICE * sizes.shape[dim]:
                largest = sizes.amax([*dims - {dim}], keepdim=True)
                scale = torch.minimum(scale, largest.where(largest > 0, scale))
        limits = torch.finfo(sizes.dtype)
        scale = scale.where(scale > 0, 1.0).clamp(max(limits.tiny, 1 / limits.max), 1.0)
        if bool((scale < 1).any()):
            found[name] = (-scale.double().log2().ceil()).exp2().to(sizes.dtype).expand(sizes.shape)
    return found


def weighted(seen: Observation, weights: Mapping[str, torch.Tensor]) -> Observation:
    """Return an answer with its results multiplied by their weights."""
    values = {
        name: dataclasses.replace(one, value=one.value * weights[name].to(one.value.abs().dtype))
        for name, one in seen.tensors.items()
        if name in weights and is_differentiable(one.value) and one.value.shape == weights[name].shape
    }
    return dataclasses.replace(seen, tensors={**seen.tensors, **values}) if values else seen


def is_undecided(call: CheckedCall) -> bool:
    """Whether the reference's values on special inputs differ from themselves on inputs with gaps, for which torch CPU
    has no vectorized loops."""
    gaps = observe_call(call.reference, lambda: lay_inputs(call.inputs(), "gaps")) if call.reference else Observation()
    return bool(mismatches_of(call.expected(), gaps, {"value"}, call.tolerances))


def lay_inputs(values: dict[str, Any], layout: str) -> dict[str, Any]:
    """Return inputs in a layout. A tensor that occurs twice remains one object."""
    copies: dict[int, Any] = {}
    inputs: dict[str, Any] = map_leaves(values, lambda leaf: copies.setdefault(id(leaf), laid_out(leaf, layout)))
    return inputs


def coarsest_dtype(values: Any) -> torch.dtype | None:
    """Return the least precise floating dtype of the inputs; None if there is none."""
    dtypes = [tensor.dtype for tensor in tensors(values) if tensor.is_floating_point()]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=None)


def sway_reference(
    call: CheckedCall, around: Around, narrow: torch.dtype | None, adds_in: torch.dtype | None = None
) -> list[Observation]:
    """Return the reference's answers in float64 with inputs and rounded results moved: the operator may round in
    another order, so its error depends on the size of the terms that the reference adds. An operator in half precision
    adds in float32: only the results of the reference's own operators are rounded to halves, and the inputs, if they
    are no halves yet."""
    if narrow is None:
        return []
    casts = narrow is not coarsest_dtype(call.inputs())
    add_in = adds_in or (torch.float32 if narrow in HALVES and not casts else narrow)
    sways = [Swayed(add_in, seed, units) for seed in range(SWAYS) for units in (2 * TIMES, -2 * TIMES)]
    if add_in is not narrow:
        units = 2.0 if casts else 1.0
        sways += [Swayed(narrow, seed, unit, inputs=casts) for seed in range(SWAYS) for unit in (units, -units)]
    runs = [call.expected(sway, around) for sway in sways]
    return runs if all(run.error is None for run in runs) else []


def rounds_in_own_steps(
    call: CheckedCall,
    found: Sequence[Mismatch],
    got: Observation,
    truth: Observation,
    swayed: Sequence[Observation],
    around: Around,
) -> bool:
    """Whether rounding to float32 in steps that the reference has not may explain differences. Strassen's product adds
    what it subtracts later: its error follows the largest elements of the product, and that of the reference each
    element. So no element may be farther from the truth than the one that moves most in `swayed`, where the steps of
    the reference are rounded (a mean of squares minus the square of a mean is), and in float64 the operator must be
    right."""
    if call.device is not None or coarsest_dtype(call.inputs()) is not torch.float32:
        return False

    def errors_of(seen: Observation) -> list[float]:
        """The largest distances from the truth, for each difference; infinite if there is none."""
        pairs = [(subject(one, truth), subject(one, seen)) for one in found]
        return [
            math.inf
            if right is None or part is None or right.shape != part.shape
            else float(distance(right, part).nan_to_num(math.inf, math.inf).amax())
            for right, part in pairs
        ]

    most = [max(each) for each in zip(*map(errors_of, swayed))]
    if not all(off <= limit < math.inf for off, limit in zip(errors_of(got), most)):
        return False
    return all(off <= EXACT * limit for off, limit in zip(errors_of(call.actual(Widened(), around)), most))


EXACT = 1e-4
"""Largest error of an operator that is right in float64, in errors that rounding to float32 explains."""


def sway_operator(call: CheckedCall, around: Around) -> list[Observation]:
    """Return the operator's answers in float64 with inputs and rounded results moved, as far as it has any."""
    sways = (Swayed(torch.float32, seed, units) for seed in range(SWAYS) for units in (2 * TIMES, -2 * TIMES))
    return [run for run in (call.actual(sway, around) for sway in sways) if run.error is None]


# Autocast

IN_FLOAT32: Mapping[str, Any] = {"narrow": torch.bfloat16, "adds_in": torch.float32}
"""How `from_reference` judges under autocast: inputs and results may be rounded to bfloat16, sums may not."""


def call_under_autocast(
    function: Function, inputs: dict[str, Any], around: Around = call_plainly, casts: bool = True
) -> Any:
    """Make the call under autocast to bfloat16. Without `casts`, it says that it is on, but casts nothing."""
    devices = [tensor.device.type for tensor in tensors(inputs) if not tensor.is_meta]
    device = devices[0] if devices else "cpu"
    with torch.autocast(device, torch.bfloat16), contextlib.nullcontext() if casts else no_casts(device):
        return around(function, inputs)


@contextlib.contextmanager
def no_casts(device: str) -> Iterator[None]:
    """Context in which autocast is on and casts to float32. The functions of torch that tell its dtype tell the usual
    one, as those that set it do: an operator may cast by itself, and `torch.autocast` may be entered again."""
    said = {device: torch.get_autocast_dtype(device)}
    torch.set_autocast_dtype(device, torch.float32)
    changed = {
        "get_autocast_dtype": lambda kind: said.get(kind) or TOLD[0](kind),
        "set_autocast_dtype": lambda kind, dtype: said.update({kind: dtype}) if kind in said else TOLD[1](kind, dtype),
        f"get_autocast_{'gpu' if device == 'cuda' else device}_dtype": lambda: said[device],
    }
    before = {name: getattr(torch, name) for name in changed if hasattr(torch, name)}
    try:
        for name in before:
            setattr(torch, name, changed[name])
        yield
    finally:
        for name, function in before.items():
            setattr(torch, name, function)


TOLD = torch.get_autocast_dtype, torch.set_autocast_dtype
"""torch's own functions, which `no_casts` replaces for a while."""


def is_rounded_by_autocast(
    call: CheckedCall, right: Sequence[Observation], got: Observation, around: Around = call_plainly
) -> bool:
    """Whether rounding explains how an answer under autocast differs from one of the right answers, whose values alone
    differ from it: that of inputs and of the reference's results to bfloat16, or that of each of the operator's own
    steps, since autocast rounds the results of products, and what is computed from these. For these steps, the operator
    runs in float64, which autocast leaves as it is, with each of its results moved by up to two units of bfloat16, as
    the range of few runs must hold the rounding errors of many elements. If it does not run in float64, each step of
    the reference may be rounded to bfloat16."""

    def by_reference(**limits: Any) -> bool:
        return any(not of_results(from_reference(call, want, got, {"value"}, around, **limits)) for want in right)

    if not right or by_reference(**IN_FLOAT32):
        return bool(right)
    truth, runs = call.expected(Widened(), around), list[Observation]()
    if call.device is None and truth.error is None:
        cast = functools.partial(call_under_autocast, around=around)
        sways = (Swayed(torch.bfloat16, seed, unit) for seed in range(SWAYS) for unit in (2.0, -2.0))
        runs = [call.actual(sway, cast) for sway in sways]
    if not runs or any(run.error is not None for run in runs):
        return by_reference(narrow=torch.bfloat16)
    found = ((want, of_results(mismatches_of(want, got, {"value"}))) for want in right)
    return any(not arbitrate(each, want, got, truth, swayed=runs) for want, each in found)


def by_itself(mismatch: Mismatch) -> str:
    """Return the detail of a difference that `judge_own_rounding` has found."""
    return "; ".join(filter(None, (mismatch.detail, "under autocast, by the operator's own rounding")))


def judge_own_rounding(call: CheckedCall, plain: Observation, around: Around = call_plainly) -> list[Mismatch]:
    """Return the differences of the operator's values where autocast is on and casts nothing. Whatever is rounded to
    halves there, the operator itself has rounded: it may do that to inputs and results, but must add as in float32.
    None if `plain`, its answer without autocast, is as wrong: other checks judge that."""
    if call.reference is None:
        return []
    truth = call.expected(Widened(), around)

    def beyond_rounding(seen: Observation) -> list[Mismatch]:
        want, got = results_in_dtypes(truth, seen), results_in_dtypes(seen, seen)
        if {one.oracle for one in of_results(mismatches_of(want, got, ANSWER))} != {"value"}:
            return []  # other facts are judged where autocast casts
        return of_results(from_reference(call, want, got, {"value"}, around, **IN_FLOAT32))

    own = call.actual(around=functools.partial(call_under_autocast, around=around, casts=False))
    found = beyond_rounding(own)
    return found if found and not beyond_rounding(plain) else []


def results_in_dtypes(seen: Observation, like: Observation) -> Observation:
    """Return an answer with floating results in the dtypes of another one, and with float32 in place of float64."""

    def converted(name: str, one: Seen) -> Seen:
        if not of_result(name) or name not in like.tensors or not one.dtype.is_floating_point:
            return one
        dtype = like.tensors[name].dtype
        dtype = torch.float32 if dtype is torch.float64 else dtype
        return dataclasses.replace(one, value=one.value.to(dtype), metadata={**one.metadata, "dtype": dtype})

    return dataclasses.replace(seen, tensors={name: converted(name, one) for name, one in seen.tensors.items()})


def compare_results(call: CheckedCall) -> Iterator[Found]:
    """Compare the operator with the reference: results, their metadata and memory, the inputs afterwards, and what the
    call changes of the global state."""
    want, usual = observe_changes(call, "reference")
    if call.reference_elsewhere is not None:
        want = call.expected()
    got, changed_state = call.ask(observe_changes, "operator")
    for name, texts in changed_state.items():
        if name not in usual:
            yield "globals", Mismatch("globals", name, *texts)
    if got.error is not None:
        if call.kind in {*REFUSABLE, NEGATIVE} or (call.kind == STRIDED and got.error.not_implemented):
            raise NotJudged(f"the operator refuses them: {line_of(got.error)}")
        name = "memory" if out_of_memory(f"{got.error.kind}: {got.error.text}") else call.kind
        yield name, Mismatch(name, RESULT, "an answer", got.error.kind, line_of(got.error))
        return
    if call.kind == MIXED:
        want, got = in_one_dtype(want, got, call)
    right, changed = changed_inputs(want, call), changed_inputs(got, call)
    may = {*map(argument_of, call.written(want))}
    undeclared = [name for name in changed if argument_of(name) not in may]
    inputs = tensors_by_name(call.inputs())
    oracles = {"structure", "dtype", "shape", SIGNIFICANT_STRIDE, "value", "storage"}
    for mismatch in by_container(from_reference(call, want, got, oracles), want, got):
        of_values = mismatch.oracle == "value" and of_result(mismatch.where)
        if of_values and (call.random or (call.ties and names_equal_elements(call, want, got, mismatch.where))):
            continue
        if mismatch.where not in inputs:
            name = check_of_result(mismatch.oracle, call.kind)
        elif mismatch.oracle == "storage":
            name = "mutation" if mismatch.where not in (*right, *changed) else ""  # beside the view, in its storage
        elif mismatch.oracle == "value":
            name = call.kind if mismatch.where in right and mismatch.where not in undeclared else "mutation"
        else:
            name = "mutation" if mismatch.oracle != "stride" else ""
        if name:
            yield name, mismatch
    yield from results_elsewhere(got)
    for name in undeclared:
        yield "mutation", Mismatch("mutation", name, "the input as it was", show(got.tensors[name].value))
    for name in changed:
        if name not in undeclared and not got.tensors[name].version:
            text = "a write that raises the version counter"
            yield "version", Mismatch("version", name, text, "one that does not")
    yield from shared_memory(call, want, got)


def names_equal_elements(call: CheckedCall, want: Observation, got: Observation, name: str) -> bool:
    """Whether a result holds indices that name elements equal to those that the reference's indices name, in some input
    along some dimension, each at most as often as the reference does."""
    right, found = want.tensors[name].value, got.tensors[name].value
    if right.dtype.is_floating_point or right.dtype.is_complex or right.dtype is torch.bool or not right.numel():
        return False
    for tensor in tensors(call.inputs()):
        choices = [(tensor.flatten(), right.flatten(), found.flatten(), 0)] if right.dim() == 0 else []
        for dim in range(tensor.dim()):
            pair = (right, found) if right.dim() == tensor.dim() else (right.unsqueeze(dim), found.unsqueeze(dim))
            rest = [n for at, n in enumerate(tensor.shape) if at != dim]
            if pair[0].dim() == tensor.dim() and [n for at, n in enumerate(pair[0].shape) if at != dim] == rest:
                choices.append((tensor, *pair, dim))
        for values, old, new, dim in choices:
            if min(int(old.min()), int(new.min())) < 0 or max(int(old.max()), int(new.max())) >= values.shape[dim]:
                continue
            named, other = (values.gather(dim, index.long()) for index in (old, new))
            ordered = new.sort(dim).values
            twice = (ordered.narrow(dim, 1, new.shape[dim] - 1) == ordered.narrow(dim, 0, new.shape[dim] - 1)).any()
            if not twice and bool((named.eq(other) | (named.isnan() & other.isnan())).all()):
                return True
    return False


def check_of_result(oracle: str, kind: str) -> str:
    """Return the check of a difference in a result, in a call of this kind."""
    if oracle == "value" or (kind in REFUSABLE and oracle in ("dtype", "shape", "structure")):
        return kind
    return "strides" if oracle == "stride" else oracle


def in_one_dtype(want: Observation, got: Observation, call: CheckedCall) -> tuple[Observation, Observation]:
    """Return both sides with the results in the least precise dtype of the inputs, if each result has the dtype of an
    input: PyTorch promises no other dtype for inputs of several dtypes."""
    inputs = call.inputs()
    dtypes, coarse = {tensor.dtype for tensor in tensors(inputs)}, coarsest_dtype(inputs)
    if coarse is None:
        return want, got

    def converted(seen: Observation) -> Observation:
        cast = {
            name: dataclasses.replace(
                tensor, value=tensor.value.to(coarse), metadata={**tensor.metadata, "dtype": coarse}
            )
            for name, tensor in seen.tensors.items()
            if of_result(name) and tensor.dtype.is_floating_point and tensor.dtype in dtypes
        }
        return dataclasses.replace(seen, tensors={**seen.tensors, **cast})

    return converted(want), converted(got)


def results_elsewhere(got: Observation) -> Iterator[Found]:
    """Yield the results that are on another device than the inputs."""
    devices = {seen.device for name, seen in got.tensors.items() if not of_result(name)}
    for name, seen in got.tensors.items():
        if of_result(name) and devices and seen.device not in devices:
            texts = f"Tensor on {' or '.join(sorted(devices))}", f"Tensor on {seen.device}"
            yield "structure", Mismatch("structure", name, *texts, "the device")


def partner_of(name: str) -> str:
    """Return the part of a call with which a result may share memory: a result, or an argument."""
    return name if of_result(name) else argument_of(name)


def shared_memory(call: CheckedCall, want: Observation, got: Observation) -> Iterator[Found]:
    """Compare the memory that results share with what is declared, else with what the reference's results share."""
    may = call.aliases
    if may is None:
        may = {
            (name, partner_of(other))
            for name, tensor in want.tensors.items()
            for other, two in want.tensors.items()
            if of_result(name) and tensor.alias == two.alias
        }
    elements = [name for name, tensor in got.tensors.items() if tensor.value.numel()]
    for name, other in itertools.combinations(elements, 2):
        if not of_result(name):
            continue
        shared, pair = got.tensors[name].alias == got.tensors[other].alias, (name, partner_of(other))
        texts = "memory of its own", f"the memory of {other}"
        if shared and pair not in may:
            yield "aliasing", Mismatch("aliasing", name, *texts)
        elif not shared and pair in (call.aliases or ()):
            yield "aliasing", Mismatch("aliasing", name, *reversed(texts))


DRAWS = 300
"""Calls of a random operator whose results are compared with as many of the reference."""

BEYOND = 6.0
"""Largest difference of two means of draws that is no finding, in standard errors of this difference."""

DISTANCE = 3.0
"""Largest Kolmogorov-Smirnov distance that is no finding, in units of sqrt(2 / DRAWS): chance exceeds it once in 30
million elements."""


def draw_often(function: Function, inputs: dict[str, Any]) -> Any:
    """Return the results of many calls, stacked."""
    return join_results([call_plainly(function, inputs) for _ in range(DRAWS)], torch.stack)


def compare_distribution(call: CheckedCall) -> Iterator[Found]:
    """Compare many results of a random operator with those of the reference: the means of the elements and of their
    squares, and the distribution of each element. All results of a call must not be equal if the reference's are
    not."""
    if not call.random:
        raise NotJudged("the operator is not random")
    want, got = call.expected(around=draw_often), call.actual(around=draw_often)
    if want.error is not None or got.error is not None:
        return  # the check `values` judges it
    for name, right in want.tensors.items():
        seen = got.tensors.get(name)
        if not of_result(name) or seen is None or seen.shape != right.shape or not right.value.numel():
            continue
        draws = [one.value.double().reshape(DRAWS, -1) for one in (right, seen)]
        for detail, want_text, got_text in distribution_faults(*draws):
            yield "distribution", Mismatch("distribution", name, want_text, got_text, f"{detail}, of {DRAWS} calls")
            return


def distribution_faults(want: torch.Tensor, got: torch.Tensor) -> Iterator[tuple[str, str, str]]:
    """Yield how the columns of two samples differ: what, as it should be, and as it is."""
    for text, power in (("mean", 1), ("mean square", 2)):
        for where, joined in (("all elements", True), ("an element", False)):
            sides = [one.pow(power).mean(1, keepdim=True) if joined else one.pow(power) for one in (want, got)]
            means = [one.mean(0) for one in sides]
            error = ((sides[0].var(0) + sides[1].var(0)) / DRAWS).sqrt()
            off = (means[0] - means[1]).abs() - BEYOND * error - 1e-6 * means[0].abs()
            if bool((off > 0).any()):
                at = int(off.argmax())
                yield f"the {text} of {where}", f"{float(means[0][at]):.4g}", f"{float(means[1][at]):.4g}"
    distance = kolmogorov_smirnov(want, got)
    if float(distance.max()) > DISTANCE * (2 / DRAWS) ** 0.5:
        texts = "the distribution of the reference", f"one {float(distance.max()):.2g} away"
        yield f"element {int(distance.argmax())}", *texts


def kolmogorov_smirnov(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the largest difference of the distribution functions of two samples, for each column. Numbers that differ
    by rounding count as equal: a dropout may multiply or divide by its rate."""
    columns = [one.t().contiguous().sort(1).values for one in (first, second)]
    at = torch.cat(columns, 1)
    slack = 1e-5 * at.abs()
    below = [torch.searchsorted(one, (at - slack).contiguous(), right=True) / one.shape[1] for one in columns]
    above = [torch.searchsorted(one, (at + slack).contiguous(), right=True) / one.shape[1] for one in columns]
    return torch.maximum(below[0] - above[1], below[1] - above[0]).amax(1).clamp(min=0)


def compare_overlap(call: CheckedCall) -> Iterator[Found]:
    """Call an operator that writes an input whose elements share memory, which the reference refuses. The operator may
    refuse it, too, or write what the reference writes to an input with memory for each element."""
    dense = dataclasses.replace(call, inputs=lambda: lay_inputs(call.inputs(), "contiguous"))
    want, got = dense.expected(), call.actual()
    if want.error is not None or got.error is not None:
        return
    for mismatch in from_reference(dense, want, got, {"value"}):
        yield under("overlap", mismatch, "elements of an input share memory")
        return


def expect_write(call: CheckedCall) -> Iterator[Found]:
    """Look for an input that the schema declares as written, and that neither the operator nor the reference changes in
    any call."""
    names = sorted(call.writes or ())
    if not names:
        raise NotJudged("its schema declares no write")
    every = [call.inputs, *call.others]
    for number, inputs in enumerate(every):
        one = dataclasses.replace(call, inputs=inputs)
        sides = [call.ask(observe_other, number), one.expected()]
        changed = {argument_of(name) for seen in sides for name in changed_inputs(seen, one)}
        names = [name for name in names if name not in changed]
    for name in names:
        text = f"a write in one of {len(every)} calls, which the schema declares"
        yield "declared", Mismatch("declared", name, text, "none")


def observe_other(call: CheckedCall, number: int, around: Around = call_plainly) -> Observation:
    """Call the operator on its inputs, which are number 0, or on inputs of other sizes."""
    return observe_where_it_runs(call, [call.inputs, *call.others][number], around=around)


def compare_accuracy(call: CheckedCall) -> Iterator[Found]:
    """Compare the errors of operator and reference against the reference in float64."""
    exact, want, got = call.expected(Widened()), call.expected(), call.actual()
    if exact.error is not None or got.error is not None:
        return
    for name, high in exact.tensors.items():
        if not of_result(name) or not high.value.numel() or high.dtype is not torch.float64:
            continue
        values = [side.tensors[name].value for side in (want, got) if name in side.tensors]
        if len(values) < 2 or values[0].dtype != values[1].dtype or not values[0].is_floating_point():
            continue
        if any(value.shape != high.value.shape for value in values):
            continue
        cpu, off = (errors(value, high.value, torch.zeros(()), value.dtype, call.each) for value in values)
        if beyond(off, cpu):
            usual, most = float(cpu.max()), float(off.max())
            texts = f"at most {shown(limit(usual))} ulp", f"{shown(most)} ulp", f"torch CPU {shown(usual)} ulp"
            yield "accuracy", Mismatch("accuracy", name, *texts)


def expect_error(call: CheckedCall) -> Iterator[Found]:
    """Make a call that the reference refuses."""
    if call.expected().error is not None and call.actual().error is None:
        yield "refusals", Mismatch("refusals", RESULT, "an error", "no error")


# Memory and repetition


def guard_memory(call: CheckedCall) -> Iterator[Found]:
    """Run the operator on memory between pages that allow no access. An access to them ends the process, and
    `writes_beyond` says whether it was a write. On a device, known bytes take the place of the pages. The bytes in the
    gaps of an input, and those beside it on a device, must not change the result. They are numbers of ordinary size, so
    that none of them vanishes in a sum."""
    sides: list[Observation] = []
    for guarded in (Guarded(gaps=0x3F), Guarded(at_end=False), Guarded(gaps=0x41)):
        seen, place, has_gaps = call.ask(observe_guarded, guarded)
        sides.append(seen)
        if place:
            text = "a change of " + place
            yield "writes", Mismatch("writes", "the memory outside the tensors", "no change", text)
            return
        expect_answer(sides[0])
        if len(sides) == 2 and not has_gaps:
            return
    detail = "bytes between or beside the elements of an input change the result"
    found = of_results(mismatches_of(sides[0], sides[2], {"value", "shape"}, bits=True))
    for mismatch in found if found and is_steady(call, sides[0], Guarded(gaps=0x3F)) else ():
        yield under("reads", mismatch, detail)


def observe_guarded(call: CheckedCall, guarded: Guarded) -> tuple[Observation, str, bool]:
    """Call the operator on fenced memory. Return its answer, the place outside of its tensors where it wrote ("" for
    none), and whether other bytes lie among those of its inputs. Raises NotJudged for a device whose memory cannot be
    read."""
    if call.device is None:
        seen = observe_operator(call, guarded, call_plainly)
        return seen, guarded.trespassed(), guarded.has_gaps
    if not call.device.reads_storages:
        raise NotJudged("the device does not show the memory around its tensors")
    padded = guarded.on(call.device)
    seen = observe_operator(call, padded, call_plainly)
    return seen, padded.trespassed() if seen.error is None else "", padded.has_gaps


def call_operator(call: CheckedCall) -> list[Found]:
    """Call the operator, which may end the process or hang. The only other difference is a device that it leaves
    unusable."""
    call.actual()
    if call.device is not None and is_lost(call.device):
        return [("crash", Mismatch("crash", PROCESS, "an answer", LOST))]
    return []


def writes_beyond(call: CheckedCall) -> list[Found]:
    """Run the operator on memory between pages that may be read. A write to them ends the process, so there is no
    difference to return."""
    for at_end in (True, False):
        call.actual(Guarded(at_end, READ_ONLY))
    return []


def fill_memory(call: CheckedCall) -> Iterator[Found]:
    """Run the operator twice, with different bytes in new memory."""
    want, got = (call.actual(Guarded(fresh=byte)) for byte in (0xFF, 0x3C))
    found = of_results(mismatches_of(want, got, {"value"}, bits=True))
    for mismatch in found if found and is_steady(call, want, Guarded(fresh=0xFF)) else ():
        yield under("unwritten", mismatch)
    expect_answer(want)


STEADY = 12
"""Calls that must give the same bits; few give the same by chance if sums of small inputs differ in their order."""


def is_steady(call: CheckedCall, seen: Observation, conditions: Conditions | None = None) -> bool:
    """Whether the operator gives the same bits each time under the conditions of an answer. If not, as with atomic
    additions in random order, that is the difference, which the check `repetition` finds."""
    return not any(
        of_results(mismatches_of(seen, call.actual(conditions), {"value", "shape"}, bits=True)) for _ in range(STEADY)
    )


def repeat_call(call: CheckedCall) -> Iterator[Found]:
    """Run the operator three times."""
    first, *others = [call.actual() for _ in range(3)]
    for other in others:
        for mismatch in mismatches_of(first, other, {"value", "storage", "shape", "dtype"}, bits=True):
            yield under("repetition", mismatch)
            return
    expect_answer(first)


MANY, LONG = 2000, 0.5
"""Calls between the first and the last one of a replay, and the limit on their processor time in seconds."""


def replay_call(call: CheckedCall) -> Iterator[Found]:
    """Call the operator many times, then on the first call's tensors with new values, which neither an address nor a
    version counter tells. The last result must be right, and the first one must still be there."""
    if call.renewed is None:
        raise NotJudged("there are no other values for its inputs")
    first, last, kept = call.ask(observe_replay)
    expect_answer(first)
    renewed = dataclasses.replace(call, inputs=call.renewed)
    for mismatch in of_results(from_reference(renewed, renewed.expected(), last, ANSWER)):
        yield under("replay", mismatch, "on new values in the memory of an earlier call")
        return
    for mismatch in of_results(mismatches_of(first, kept, {"value"}, bits=True)):
        yield under("replay", mismatch, "the result of the first call, after the last one")
        return


def observe_replay(call: CheckedCall) -> tuple[Observation, Observation, Observation]:
    """Call the operator as `replay_call` says. Return the first result, the last one, and the first one afterwards."""
    sent = None if call.device is None else OnDevice(call.device, sent=True)
    assert call.renewed is not None
    given, others = send_inputs(call), [send_inputs(call), send_inputs(call, call.renewed())]
    results: list[Any] = []

    def call_and_keep(function: Function, inputs: dict[str, Any]) -> Any:
        results.append(call_plainly(function, inputs))
        return results[-1]

    first = observe_where_it_runs(call, lambda: given, sent, call_and_keep)
    if first.error is not None:
        return first, first, first
    shared = {storage_key(tensor) for tensor in tensors(given)}
    kept = map_leaves(results[0], lambda leaf: None if is_on(leaf, shared) else leaf)
    first, until = observe({RESULT: taken_apart(kept)}, target=call.device), time.process_time() + LONG
    for number in range(MANY):
        if time.process_time() > until:
            break
        call_plainly(call.operator, others[number % 2])  # a ring of buffers for results holds other values then
    call_plainly(call.operator, others[0])
    for old, new in zip(tensors(given), tensors(call.renewed()), strict=True):
        old.data.copy_(new)  # which raises no version counter
    last = observe_where_it_runs(call, lambda: given, sent)
    return first, last, observe({RESULT: taken_apart(kept)}, target=call.device)


def send_inputs(call: CheckedCall, inputs: dict[str, Any] | None = None) -> Any:
    """Return inputs where the operator runs, by default those of the call."""
    inputs = call.inputs() if inputs is None else inputs
    return inputs if call.device is None else OnDevice(call.device).send(inputs)


def is_on(leaf: Any, storages: Collection[int]) -> bool:
    """Whether a leaf is a tensor on one of these storages."""
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and storage_key(leaf) in storages


def compare_contexts(call: CheckedCall) -> Iterator[Found]:
    """Compare the operator with itself without autograd, in inference mode, in another thread, on inputs that require a
    gradient, and after another seed, unless the reference draws random numbers."""
    want = call.actual()
    expect_answer(want)
    for name, around in CONTEXTS.items():
        if around is call_after_another_seed and draws_numbers(call):
            continue
        got = call.actual(around=around)
        if got.error is not None and around is call_with_grad:
            continue  # the check `gradients` judges it
        found = of_results(mismatches_of(want, got, ANSWER, call.tolerances))
        for mismatch in found if found and is_steady(call, want) else ():
            yield fact("contexts", dataclasses.replace(mismatch, detail=f"{name}; {mismatch.detail}".rstrip("; ")))
            return


def call_without_grad(function: Function, inputs: dict[str, Any]) -> Any:
    """Make the call without autograd."""
    with torch.no_grad():
        return call_plainly(function, inputs)


def call_in_inference_mode(function: Function, inputs: dict[str, Any]) -> Any:
    """Make the call in inference mode."""
    with torch.inference_mode():
        return call_plainly(function, inputs)


def call_in_thread(function: Function, inputs: dict[str, Any]) -> Any:
    """Make the call in another thread."""
    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(call_plainly, function, inputs).result()


def call_with_grad(function: Function, inputs: dict[str, Any]) -> Any:
    """Make the call on copies of the inputs that require a gradient."""
    variables = lambda leaf: leaf.detach().requires_grad_().clone() if is_differentiable(leaf) else leaf  # noqa: E731
    result = call_plainly(function, map_leaves(inputs, variables))
    return map_leaves(result, lambda leaf: leaf.detach() if is_differentiable(leaf) else leaf)


def call_after_another_seed(function: Function, inputs: dict[str, Any]) -> Any:
    """Make the call after another seed than that of all other calls."""
    seed_generators(SEED + 1)
    return call_plainly(function, inputs)


def draws_numbers(call: CheckedCall) -> bool:
    """Whether the reference's result depends on the seed, or there is no reference to tell."""
    if call.reference is None:
        return True
    sides = call.expected(), call.expected(around=call_after_another_seed)
    return bool(of_results(mismatches_of(*sides, {"value"}, bits=True)))


CONTEXTS: Mapping[str, Around] = {
    "without autograd": call_without_grad,
    "in inference mode": call_in_inference_mode,
    "in another thread": call_in_thread,
    "with inputs that require a gradient": call_with_grad,
    "after another seed": call_after_another_seed,
}
"""Contexts of a call that must not change its result."""


def compare_batch(call: CheckedCall) -> Iterator[Found]:
    """Compare the call with calls on each entry of the batch, to the bit."""
    inputs = call.inputs()
    dims = {name: dim for name, dim in (call.batch or {}).items() if isinstance(inputs.get(name), torch.Tensor)}
    if not dims:
        raise NotJudged("no argument has a batch dimension: name it, for example batch={'x': 0}")
    if any(inputs[name].dim() <= dim or inputs[name].shape[dim] < 2 for name, dim in dims.items()):
        return

    want, got = call.actual(), call.actual(around=functools.partial(call_by_entry, dims))
    found = of_results(mismatches_of(want, got, ANSWER - {"dtype"}, bits=True))
    for mismatch in found if found and is_steady(call, want) else ():
        yield under("batch", mismatch)
    expect_answer(want)


def call_by_entry(dims: Mapping[str, int], function: Function, inputs: dict[str, Any]) -> Any:
    """Call the function on each entry of the dimensions of these inputs, and join the results."""
    count = min(inputs[name].shape[dim] for name, dim in dims.items())
    entries = [{name: inputs[name].narrow(dim, at, 1) for name, dim in dims.items()} for at in range(count)]
    return join_results([call_plainly(function, {**inputs, **entry}) for entry in entries], torch.cat)


def join_results(results: Sequence[Any], join: Callable[[list[torch.Tensor]], torch.Tensor]) -> Any:
    """Return several results as one, with their tensors joined."""
    return with_tensors(results[0], [join([*each]) for each in zip(*map(tensors, results), strict=True)])


def with_tensors(tree: Any, parts: Iterable[torch.Tensor]) -> Any:
    """Return the tree with its tensors replaced by these, in order."""
    rest = iter(parts)
    return map_leaves(tree, lambda leaf: next(rest) if isinstance(leaf, torch.Tensor) else leaf)


# The end of a script


def report_differences(check: str, found: Iterable[Found]) -> int:
    """Print the differences under the name of a check, and return the exit code of a script: 1 if there are any, 0 if
    there are none, 2 if the check cannot judge the operator."""
    try:
        mine = [dataclasses.replace(mismatch, oracle=check) for name, mismatch in found if name == check]
    except NotJudged as reason:
        print(f"{check} is not judged: {reason}")
        return 2
    for mismatch in mine:
        print("".join(c if c.isprintable() else "?" for c in str(mismatch)))
    if not mine:
        print(f"{check}: no difference here")
    return int(bool(mine))


def report_in_fork(check: str, work: Callable[[], Iterable[Found]], seconds: float = 10.0) -> int:
    """Run a check in a fork, and return the exit code as `report_differences` does. A process that does not survive
    the check, or a check that does not end in time, is a difference."""
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        code = report_differences(check, work())
        sys.stdout.flush()
        os._exit(code)
    until, ended, status = time.perf_counter() + seconds, 0, 0
    while not ended and time.perf_counter() < until:
        time.sleep(0.01)
        ended, status = os.waitpid(process, os.WNOHANG)
    if not ended:
        os.kill(process, 9)
    code = os.waitstatus_to_exitcode(status)
    if ended and code >= 0:
        return code
    how = f"its end by signal {-code}" if ended else f"none in {seconds:g} s"
    return report_differences(check, [(check, Mismatch(check, PROCESS, "an answer", how))])
