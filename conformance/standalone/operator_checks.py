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

import dataclasses
import functools
import itertools
import os
import re
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
from conformance.standalone.conditions import Conditions, Faked, Guarded, OnDevice
from conformance.standalone.device import Device, is_lost
from conformance.standalone.fences import READ_ONLY, Watched
from conformance.standalone.global_state import compare_states, global_state
from conformance.standalone.layouts import laid_out
from conformance.standalone.moving import map_leaves, storage_key, taken_apart, tensors
from conformance.standalone.observation import (
    Foreign,
    Observation,
    Raised,
    observe,
    out_of_memory,
    tensors_by_name,
    versions_of,
)
from conformance.standalone.oracles import Mismatch, Tolerance, differences, differing, facts_of, show, tolerance_of
from conformance.standalone.rounding import ARBITRATED, Swayed, Widened, arbitrate
from conformance.standalone.torch_compat import raising_inner, symbolic_results, version_of, with_memory

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

ANSWER = frozenset({"structure", "dtype", "shape", "value", "error"})
"""Oracles that ignore strides and memory."""

FAKE_ORACLES = frozenset({"structure", "dtype", "shape", SIGNIFICANT_STRIDE, "alias", "error"})
"""Oracles of a fake kernel."""

COMPILED_ORACLES = ANSWER | {SIGNIFICANT_STRIDE, "alias", "storage"}
"""Oracles that a compiler must not change."""

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
    """

    operator: Function
    inputs: Inputs
    reference: Function | None = None
    kind: str = "values"
    tolerance: tuple[float, float] | None = None
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

    def ask(self, question: Callable[..., Any], *details: Any) -> Any:
        """Return `question(call, *details)`, which runs the operator. The question and its details are picklable, and
        the answer is plain data with tensors."""
        return question(self, *details) if self.elsewhere is None else self.elsewhere(question, *details)

    def actual(self, conditions: Conditions | None = None, around: Around = call_plainly) -> Observation:
        """Return the operator's answer."""
        seen: Observation = self.ask(observe_operator, conditions, around)
        return seen

    def expected(self, conditions: Conditions | None = None, around: Around = call_plainly) -> Observation:
        """Return the reference's answer."""
        assert self.reference is not None
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
    torch.manual_seed(SEED)  # as `observe_call` does before the call
    before = global_state(call.reference)
    if role == "reference":
        seen = observe_call(call.reference, call.inputs)
    else:
        seen = observe_where_it_runs(call, call.inputs)
    return seen, compare_states(before, global_state(call.reference))


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
        torch.manual_seed(SEED)
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
) -> list[Mismatch]:
    """Return the differences of two answers; `bits` says that values must agree to the bit."""
    return differences(facts_of(want), facts_of(got), oracles=oracles, exact=bits, tolerance=tolerance)


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


# The operator and its reference


def from_reference(
    call: CheckedCall,
    want: Observation,
    got: Observation,
    oracles: Collection[str],
    around: Around = call_plainly,
    narrow: torch.dtype | None = None,
) -> list[Mismatch]:
    """Return the differences of the operator's answer from the reference's that neither the reference's rounding nor
    its own indecision explains. `narrow` is the least precise dtype in which the operator may round, by default that
    of the inputs."""
    tolerances = scaled_tolerances(call, want)
    found = mismatches_of(want, got, oracles, tolerances)
    if call.kind == SPECIAL and any(one.oracle == "value" for one in found) and is_undecided(call):
        found = [one for one in found if one.oracle != "value"]
    if not found or any(one.oracle not in ARBITRATED for one in found):
        return found
    truth = call.expected(Widened(), around)
    if truth.error is not None:
        return found
    left = arbitrate(found, want, got, truth, tolerance=tolerances)
    if left and (swayed := sway_reference(call, around, narrow or coarsest_dtype(call.inputs()))):
        left = arbitrate(found, want, got, truth, tolerance=tolerances, swayed=swayed)
    return left


def scaled_tolerances(call: CheckedCall, want: Observation) -> Tolerance:
    """Return the tolerances for each dtype. torch.testing's absolute ones are for results around 1: for smaller ones
    they shrink as the largest right result does, so that zeros are no answer. A user's stay as they are."""
    if call.tolerance:
        return call.tolerances
    scales: dict[torch.dtype, float] = {}
    for name, seen in want.tensors.items():
        if of_result(name) and is_differentiable(seen.value):
            finite = seen.value[seen.value.isfinite()].abs()
            scales[seen.dtype] = max(scales.get(seen.dtype, 0.0), float(finite.max()) if finite.numel() else 0.0)
    small = {dtype: scale for dtype, scale in scales.items() if 0 < scale < 1}
    rules = {dtype: tolerance_of(dtype, None) for dtype in small}
    return {str(dtype)[6:]: (rules[dtype][0], rules[dtype][1] * scale) for dtype, scale in small.items()}


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


def sway_reference(call: CheckedCall, around: Around, narrow: torch.dtype | None) -> list[Observation]:
    """Return the reference's answers in float64 with inputs and rounded results moved: the operator may round in
    another order, so its error depends on the size of the terms that the reference adds."""
    if narrow is None:
        return []
    sways = [Swayed(narrow, seed, units) for seed in range(SWAYS) for units in (2 * TIMES, -2 * TIMES)]
    runs = [call.expected(sway, around) for sway in sways]
    return runs if all(run.error is None for run in runs) else []


def compare_results(call: CheckedCall) -> Iterator[Found]:
    """Compare the operator with the reference: results, their metadata and memory, the inputs afterwards, and what the
    call changes of the global state."""
    want, usual = observe_changes(call, "reference")
    got, changed_state = call.ask(observe_changes, "operator")
    for name, texts in changed_state.items():
        if name not in usual:
            yield "globals", Mismatch("globals", name, *texts)
    if got.error is not None:
        if call.kind == MIXED:
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
    for mismatch in from_reference(call, want, got, oracles):
        if mismatch.where not in inputs:
            name = check_of_result(mismatch.oracle, call.kind)
        elif mismatch.oracle == "storage":
            name = "writes" if mismatch.where not in (*right, *changed) else ""
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


def check_of_result(oracle: str, kind: str) -> str:
    """Return the check of a difference in a result, in a call of this kind."""
    if oracle == "value" or (kind == MIXED and oracle in ("dtype", "shape", "structure")):
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
            texts = f"a tensor on {' or '.join(sorted(devices))}", f"one on {seen.device}"
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
        if sides[0].error is not None or (len(sides) == 2 and not has_gaps):
            return
    detail = "bytes between or beside the elements of an input change the result"
    for mismatch in of_results(mismatches_of(sides[0], sides[2], {"value", "shape"}, bits=True)):
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
    for mismatch in of_results(mismatches_of(want, got, {"value"}, bits=True)):
        yield under("unwritten", mismatch)


def watch_dispatch(call: CheckedCall) -> Iterator[Found]:
    """Look for forbidden operators among those that a call dispatches to."""
    for name in call.ask(observe_dispatch):
        if name in call.forbidden:
            yield "forbid", Mismatch("forbid", "the operators that it calls", f"none named {name}", "a call of it")


def observe_dispatch(call: CheckedCall) -> list[str]:
    """Return the names of the operators that a call dispatches to, in order."""
    names: dict[str, None] = {}

    def call_watched(function: Function, inputs: dict[str, Any]) -> Any:
        with Watched(call.device.device.type if call.device else "cpu") as mode:
            result = call_plainly(function, inputs)
        names.update(mode.names)
        return result

    observe_where_it_runs(call, call.inputs, None, call_watched)
    return [*names]


def repeat_call(call: CheckedCall) -> Iterator[Found]:
    """Run the operator three times."""
    first, *others = [call.actual() for _ in range(3)]
    for other in others:
        for mismatch in mismatches_of(first, other, {"value", "storage", "shape", "dtype"}, bits=True):
            yield under("repetition", mismatch)
            return


MANY, LONG = 2000, 0.5
"""Calls between the first and the last one of a replay, and the limit on their processor time in seconds."""


def replay_call(call: CheckedCall) -> Iterator[Found]:
    """Call the operator many times, then on the first call's tensors with new values, which neither an address nor a
    version counter tells. The last result must be right, and the first one must still be there."""
    if call.renewed is None:
        raise NotJudged("there are no other values for its inputs")
    first, last, kept = call.ask(observe_replay)
    if first.error is not None:
        return
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
    given, others = send_inputs(call), send_inputs(call)
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
    for _ in range(MANY):
        if time.process_time() > until:
            break
        call_plainly(call.operator, others)
    assert call.renewed is not None
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
    """Compare the operator with itself without autograd, in inference mode, in another thread, and on inputs that
    require a gradient."""
    want = call.actual()
    if want.error is not None:
        return
    for name, around in CONTEXTS.items():
        got = call.actual(around=around)
        if got.error is not None and around is call_with_grad:
            continue  # the check `gradients` judges it
        for mismatch in of_results(mismatches_of(want, got, ANSWER, call.tolerances)):
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


CONTEXTS: Mapping[str, Around] = {
    "without autograd": call_without_grad,
    "in inference mode": call_in_inference_mode,
    "in another thread": call_in_thread,
    "with inputs that require a gradient": call_with_grad,
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
    for mismatch in of_results(mismatches_of(want, got, ANSWER - {"dtype"}, bits=True)):
        yield under("batch", mismatch)


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


# Gradients

COTANGENTS = ("transposed", "expanded", "gaps")
"""Layouts of the gradients of results."""

NO_FORMULA = re.compile(r"no autograd formula was registered|derivative for .* is not implemented")
NO_FAKE = re.compile(r"no fake impl registered|UnsupportedOperator|has no .*(meta|fake)|no fake kernel", re.IGNORECASE)
IN_FORK = re.compile(r"autograd's threading in combination with fork")
NO_VMAP = re.compile(r"vmap|[Bb]atching rule|Tensor that doesn't have storage|storage of BatchedTensorImpl")
"""Sentences of torch about a missing part of an operator. Any other error is a difference."""

NO_DERIVATIVE = "the operator registers no derivative"


def differentiate_call(
    function: Function,
    inputs: dict[str, Any],
    lay: Callable[[torch.Tensor], torch.Tensor] = lambda cotangent: cotangent,
) -> Any:
    """Return the gradients of the floating inputs by name, along cotangents that every dtype represents; `lay` changes
    their memory. A result that requires no gradient counts as such. The function gets copies of the leaves; those that
    it writes are results."""
    inputs = map_leaves(inputs, lambda leaf: leaf.detach().requires_grad_() if is_differentiable(leaf) else leaf)
    variables = {name: tensor for name, tensor in tensors_by_name(inputs).items() if tensor.requires_grad}
    copies = map_leaves(inputs, lambda leaf: leaf.clone() if is_differentiable(leaf) else leaf)
    returned = tensors(call_plainly(function, copies))
    written = [each for each in tensors(copies) if version_of(each) and not any(each is other for other in returned)]
    results = [tensor for tensor in (*returned, *written) if is_differentiable(tensor)]
    drawn = [(torch.randint(-8, 9, tensor.shape) / 8).to(tensor.device, tensor.dtype) for tensor in results]
    pairs = [(tensor, lay(grad)) for tensor, grad in zip(results, drawn, strict=True) if tensor.requires_grad]
    if not pairs:
        return {"requires_grad": False}
    outputs, cotangents = zip(*pairs)
    grads = torch.autograd.grad(outputs, [*variables.values()], cotangents, allow_unused=True)
    gradients = {f"gradient of {name}": with_memory(grad) for name, grad in zip(variables, grads, strict=True)}
    return {"requires_grad": True, **gradients}


def is_differentiable(leaf: Any) -> bool:
    """Whether a leaf of the inputs or results is a floating or complex tensor."""
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def why_none(seen: Observation) -> str:
    """Return why a differentiated call has no gradient, if an error says so."""
    if seen.error is None:
        return ""
    if IN_FORK.search(seen.error.text):
        return (
            ": autograd does not run in a fork of a process that has run a backward pass on a device; run this check "
            "in a process of its own, or before that pass"
        )
    return f": {line_of(seen.error)}"


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
    if got.error is None and not has_gradient(got):
        yield "gradients", Mismatch("gradients", RESULT, "a gradient", "none: it does not require grad")
        return
    for mismatch in of_results(from_reference(call, want, got, ANSWER, differentiate_call)):
        yield under("gradients", by_entry(mismatch))


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
    if said := call.ask(check_finite_differences):
        yield "gradcheck", Mismatch("gradcheck", "the gradient", "the finite differences", "other numbers", said)


def check_finite_differences(call: CheckedCall) -> str:
    """Return how the operator's gradients differ from finite differences; "" if they do not. Raises NotJudged."""
    inputs = map_leaves(send_inputs(call, map_leaves(call.inputs(), in_float64)), as_leaf)
    variables = [tensor for tensor in tensors(inputs) if tensor.requires_grad]
    if not variables or sum(tensor.numel() for tensor in tensors(inputs)) > 200:
        return ""

    def function(*parts: torch.Tensor) -> Any:
        rest = iter(parts)
        copies = map_leaves(
            inputs, lambda leaf: next(rest).clone() if any(leaf is known for known in variables) else leaf
        )
        return tuple(result for result in tensors(call_plainly(call.operator, copies)) if result.requires_grad)

    try:
        if not function(*variables):
            raise NotJudged("the operator has no gradient either")
        torch.autograd.gradcheck(function, tuple(variables), check_undefined_grad=False, check_batched_grad=False)
    except NotJudged:
        raise
    except Exception as error:
        said = Raised.of(error)
        if NO_FORMULA.search(said.text):
            raise NotJudged(NO_DERIVATIVE) from None
        if "GradcheckError" not in said.ancestors:
            raise NotJudged(f"it does not run in float64: {line_of(said)}") from None
        return " ".join(said.text.split())[:300]
    return ""


def in_float64(leaf: Any) -> Any:
    """Return a floating tensor in float64, and another leaf unchanged."""
    return leaf.detach().double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def as_leaf(leaf: Any) -> Any:
    """Return a floating tensor such that it requires a gradient, and another leaf unchanged."""
    floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.detach().requires_grad_() if floating else leaf


# Transformations of torch


def compare_fake(call: CheckedCall) -> Iterator[Found]:
    """Compare the fake kernel's metadata with that of the real results."""
    want = call.actual()
    if want.error is not None:
        return
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
    return "the operator registers no fake kernel" if lacks else ""


def compare_symbolic(call: CheckedCall) -> Iterator[Found]:
    """Compare the fake kernel's metadata for symbolic sizes with the real results: at these sizes, and, where its
    guards hold, at the sizes of other calls."""
    every = [call.inputs, *call.others]
    first, *others = [call.ask(observe_other, number) for number in range(len(every))]
    if first.error is not None:
        return
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


def observe_other(call: CheckedCall, number: int) -> Observation:
    """Call the operator on its inputs, which are number 0, or on inputs of other sizes."""
    return observe_where_it_runs(call, [call.inputs, *call.others][number])


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
    """Compare the operator with itself under a compiler; `check` is the name of the check."""
    for around in (call_plainly, differentiate_call) if call.derivable else (call_plainly,):
        want = call.actual(around=around)
        if want.error is not None or (around is differentiate_call and not has_gradient(want)):
            continue
        got, received = call.ask(observe_compiled, around)
        if got.error is not None and (reason := lacks_fake(got.error) or is_interpreted(got.error)):
            raise NotJudged(reason)
        if got.error is None and not received:
            raise NotJudged("the compiler received nothing")
        # Nothing promises the strides of a gradient.
        oracles = COMPILED_ORACLES - {SIGNIFICANT_STRIDE} if around is differentiate_call else COMPILED_ORACLES
        if found := mismatches_of(want, got, oracles, call.tolerances):
            for mismatch in found:
                yield fact(check, by_entry(mismatch))
            return


def observe_compiled(call: CheckedCall, around: Around) -> tuple[Observation, bool]:
    """Call the operator under the compiler. Return its answer, and whether the compiler received a graph."""
    transform = call.transform
    assert transform is not None
    compiled = lambda function: raising_inner(transform(function))  # noqa: E731
    seen = observe_where_it_runs(call, call.inputs, None, around, compiled)
    return seen, call.received()


def compare_dynamic(call: CheckedCall) -> Iterator[Found]:
    """Compare the operator with itself under a compiler for dynamic sizes."""
    return compare_compiled(call, "dynamic")


def compare_inductor(call: CheckedCall) -> Iterator[Found]:
    """Compare the operator with itself under Inductor."""
    return compare_compiled(call, "inductor")


def is_interpreted(error: Raised) -> str:
    """Return a reason if Dynamo traced Triton's interpreter, which is NumPy, instead of a compiled kernel."""
    interpreted = error.kind == "InterpreterError" and os.environ.get("TRITON_INTERPRET") == "1"
    return "Dynamo does not trace Triton's interpreter; a compiled kernel is traced" if interpreted else ""


def compare_vmap(call: CheckedCall) -> Iterator[Found]:
    """Compare vmap with a loop."""
    if not tensors(call.inputs()) or call.written(call.expected()):
        raise NotJudged("the operator writes an input")
    want = call.ask(observe_stacked, call_in_loop)
    if want.error is not None:
        return
    got = call.ask(observe_stacked, call_under_vmap)
    if got.error is not None and NO_VMAP.search(got.error.text):
        raise NotJudged(f"the operator has no rule for vmap: {line_of(got.error)}")
    for mismatch in of_results(mismatches_of(want, got, ANSWER)):
        yield fact("vmap", mismatch)


def observe_stacked(call: CheckedCall, around: Around) -> Observation:
    """Call the operator on two entries of a new dimension."""
    return observe_where_it_runs(call, lambda: stack_inputs(call.inputs()), None, around)


def stack_inputs(inputs: dict[str, Any]) -> Any:
    """Return inputs with a new first dimension of length 2 in each tensor. The second entry has other values."""
    pairs = [torch.stack([leaf, leaf.flatten().roll(1).view(leaf.shape)]) for leaf in tensors(inputs)]
    return with_tensors(inputs, pairs)


def call_under_vmap(function: Function, inputs: dict[str, Any]) -> Any:
    """Call the function under `torch.func.vmap`, over the first dimension of each tensor."""
    return torch.func.vmap(lambda *parts: call_plainly(function, with_tensors(inputs, parts)))(*tensors(inputs))


def call_in_loop(function: Function, inputs: dict[str, Any]) -> Any:
    """Call the function on each entry of the first dimension, and stack the results."""
    rows = zip(*tensors(inputs), strict=True)
    return join_results([call_plainly(function, with_tensors(inputs, parts)) for parts in rows], torch.stack)


def compare_autocast(call: CheckedCall) -> Iterator[Found]:
    """Compare the results under autocast with three right ones: the operator's without autocast, the reference's under
    autocast, and the operator's on inputs that autocast has cast. Values may differ by rounding in bfloat16, to which
    autocast casts at other places in other code. The fake kernel must agree about the metadata."""
    plain = call.actual()
    if plain.error is not None:
        return
    got = call.actual(around=call_under_autocast)
    cast = call.ask(observe_cast)
    right = [want for want in (plain, call.expected(around=call_under_autocast), cast) if want.error is None]
    by_side = [of_results(mismatches_of(want, got, ANSWER)) for want in right]
    if all(by_side):
        values = [want for want, found in zip(right, by_side) if {one.oracle for one in found} == {"value"}]
        if all(of_results(from_reference(call, want, got, {"value"}, narrow=torch.bfloat16)) for want in values):
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


def call_under_autocast(function: Function, inputs: dict[str, Any]) -> Any:
    """Make the call under autocast to bfloat16."""
    devices = [tensor.device.type for tensor in tensors(inputs) if not tensor.is_meta]
    with torch.autocast(devices[0] if devices else "cpu", torch.bfloat16):
        return call_plainly(function, inputs)


def in_bfloat16(leaf: Any) -> Any:
    """Return a float32 tensor in bfloat16, and another leaf unchanged."""
    return leaf.bfloat16() if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32 else leaf


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
