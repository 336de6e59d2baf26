"""The table of checks of an operator, and the procedures that carry them out.

Defines `CHECKS`, `PROCEDURES`, `Examination` and `Difference`. A procedure runs two sides on one call and yields
differences, each under the name of a check; several checks may share a procedure. A refusal that names a missing part
of the operator, such as a derivative, is no difference: the check is then not judged, with the operator's own reason.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.engine.executor import Execution
from conformance.engine.float64 import Float64Reference, Swayed
from conformance.engine.judge import OneAnswer, Terms
from conformance.engine.loading import reference
from conformance.record.accuracy import TIMES, limit, shown
from conformance.record.names import DTYPES, SIGNIFICANT_STRIDE
from conformance.sources.operator import calls as kinds
from conformance.sources.operator.calls import Call, Plan
from conformance.sources.operator.sides import (
    Guarded,
    along,
    differentiated,
    execution,
    looped,
    mapped,
    names_of_inputs,
    observed,
    plainly,
    split,
    stacked,
    target_of,
    under_autocast,
)
from conformance.sources.operator.subject import Operator
from conformance.standalone import torch_compat
from conformance.standalone.accuracy import beyond, errors
from conformance.standalone.fences import READ_ONLY
from conformance.standalone.layouts import laid_out
from conformance.standalone.moving import map_leaves, tensors
from conformance.standalone.observation import Observation, Raised, out_of_memory
from conformance.standalone.oracles import Mismatch, Tolerance, compare, differing, show

RESULT = "result"

SWAYS = 8
"""Pairs of runs whose spread is the error that rounding explains. They move results by up to twice the factor of the
accuracy rule, so by that factor on average."""


@dataclass(frozen=True)
class Check:
    """A row of the table: the name, the property that the operator must have, and the procedure that judges it. Checks
    that are not `usual` run only if they are named."""

    name: str
    about: str
    procedure: str
    usual: bool = True


CHECKS: Mapping[str, Check] = {
    one.name: one
    for one in (
        Check("values", "the results are those of the reference", "compare"),
        Check("layouts", "so are they for strided, offset and expanded inputs", "compare"),
        Check("empty", "and for tensors without elements", "compare"),
        Check("scalars", "and for 0-dim tensors", "compare"),
        Check("blocks", "and for sizes around vector widths and blocks", "compare"),
        Check("specials", "and for infinities, nan, and zeros of both signs", "compare"),
        Check("mixed", "and for inputs of several dtypes, unless the operator refuses them", "compare"),
        Check("structure", "the number and kinds of the results", "compare"),
        Check("dtype", "the dtypes of the results", "compare"),
        Check("shape", "the shapes of the results", "compare"),
        Check("strides", "the strides of the results", "compare", usual=False),
        Check(
            "aliasing", "results share memory only as the schema declares, else only as the reference's do", "compare"
        ),
        Check("mutation", "only inputs that the schema declares, else that the reference writes, change", "compare"),
        Check("version", "each write to an input raises its version counter, which autograd relies on", "compare"),
        Check("accuracy", "errors in ulp are at most 4 times torch CPU's, for operators with such a rule", "accuracy"),
        Check("writes", "no byte outside of the operands changes", "guard"),
        Check("reads", "no byte outside of the operands is read", "guard"),
        Check("unwritten", "every element of a result is written", "fill"),
        Check("repetition", "the same call gives the same bits", "repeat"),
        Check("batch", "each entry of a batch gives the same bits alone", "batch", usual=False),
        Check("gradients", "gradients are those of the reference", "gradients"),
        Check("cotangents", "they do not depend on the strides of the gradient of the result", "cotangents"),
        Check("gradcheck", "gradients agree with finite differences, if the reference has none", "gradcheck"),
        Check("fake", "the fake kernel gives the metadata of the real results", "fake"),
        Check("symbolic", "the same with symbolic sizes, also at other sizes", "symbolic"),
        Check("compile", "torch.compile changes nothing", "compile"),
        Check("dynamic", "torch.compile with dynamic sizes changes nothing", "dynamic"),
        Check("inductor", "torch.compile with Inductor changes nothing", "inductor", usual=False),
        Check("vmap", "vmap gives the results of a loop", "vmap"),
        Check("autocast", "results under autocast follow the operator or the reference", "autocast"),
        Check("refusals", "calls that the reference refuses raise", "refusals", usual=False),
        Check("crash", "the process survives", "compare"),
        Check("hang", "the call ends", "compare"),
        Check("memory", "the call needs no more memory than there is", "compare"),
    )
}


@dataclass(frozen=True)
class Difference:
    """A difference under the name of a check, in a call of the plan."""

    check: str
    mismatch: Mismatch
    call: Call


class NotJudged(Exception):
    """A check without a judgement. The message is the reason."""


Note = Callable[[str], None]
"""Receives the name of the check that a death of the process would concern."""


@dataclass
class Examination:
    """An operator, its reference, and the calls. `batch` are the dimensions that the check `batch` splits, by argument.
    `exact` says whether an accuracy rule exists, and whether it holds for each element (None: there is none)."""

    operator: Operator
    reference: Operator
    plan: Plan
    entry: Any = None
    batch: Mapping[str, int] = field(default_factory=dict)
    exact: bool | None = None
    note: Note = lambda check: None

    def written(self, call: Call) -> frozenset[str]:
        """Return the inputs that may be written: the schema's, or the ones that the reference writes."""
        if self.operator.written is not None:
            return self.operator.written
        return frozenset(changed_inputs(observed(self.reference.function, call), call))


def changed_inputs(seen: Observation, call: Call) -> list[str]:
    """Return the inputs whose elements a run has changed."""
    before = names_of_inputs(call.values)
    return [
        name for name, one in before.items() if name in seen.tensors and not _same_bits(one, seen.tensors[name].value)
    ]


def _same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        tensor.shape == other.shape and tensor.dtype == other.dtype and not bool(differing(tensor, other, True).any())
    )


@dataclass(frozen=True)
class AgainstReference(OneAnswer):
    """A call of the operator as a subject of the judge. The reference's own rounding and its own indecision are no
    differences."""

    reference: Callable[..., Any]
    call: Call
    around: Any = plainly
    grad: bool = False
    draws = False
    on_host = True

    @functools.cached_property
    def terms(self) -> Terms:
        """The tolerances of the call. Values of a call with special values are undefined if the reference differs from
        itself on inputs with gaps, for which torch CPU has no vectorized loops."""
        tolerance = tolerance_of(self.call)
        undecided = self.call.kind == kinds.SPECIAL and self._undecided(tolerance)
        return Terms(tolerance, undefined=("value of ",) if undecided else ())

    def _undecided(self, tolerance: Tolerance) -> bool:
        copies: dict[int, Any] = {}
        inputs = map_leaves(dict(self.call.values), lambda leaf: copies.setdefault(id(leaf), laid_out(leaf, "gaps")))
        sides = [observed(self.reference, call) for call in (self.call, self.call.on(inputs))]
        return bool(compare(*sides, oracles={"value"}, tolerance=tolerance))

    def names_of_inputs(self) -> Collection[str]:
        """See `Judged.names_of_inputs`."""
        return names_of_inputs(self.call.values)

    def in_float64(self, mismatches: Sequence[Mismatch], expected: Observation) -> Execution | None:
        """Return the reference's answer in float64."""
        truth = observed(self.reference, self.call, Float64Reference(), self.around, self.grad)
        return Execution((truth,)) if truth.error is None else None

    def swayed(
        self, mismatches: Sequence[Mismatch], expected: Observation, actual: Observation
    ) -> Sequence[Observation]:
        """Return the reference's answers in float64 with inputs and rounded results moved: the operator may round in
        another order, so its error depends on the size of the terms that the reference adds."""
        dtypes = [tensor.dtype for tensor in tensors(self.call.values) if tensor.is_floating_point()]
        if not dtypes:
            return ()
        narrow = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        targets = [Swayed(narrow, seed, units) for seed in range(SWAYS) for units in (2 * TIMES, -2 * TIMES)]
        runs = [observed(self.reference, self.call, target, self.around, self.grad) for target in targets]
        return runs if all(run.error is None for run in runs) else ()

    def differences(self, want: Observation, got: Observation, oracles: Collection[str]) -> list[Mismatch]:
        """Return the mismatches between the reference and the operator."""
        return self.compared(Execution((want,)), Execution((got,)), reference(), oracles).mismatches


def tolerance_of(call: Call) -> Tolerance:
    """Return the tolerances of a call for each dtype; empty for torch.testing's."""
    if call.rtol is None or call.atol is None:
        return {}
    return dict.fromkeys(DTYPES, (call.rtol, call.atol))


def compare_results(trial: Examination, call: Call) -> Iterator[Difference]:
    """Compare the operator with the reference: results, their metadata and memory, and the inputs afterwards."""
    want = observed(trial.reference.function, call)
    got = observed(trial.operator.function, call)
    if got.error is not None:
        if call.kind == kinds.MIXED:
            raise NotJudged(f"the operator refuses them: {_line(got.error)}")
        name = "memory" if out_of_memory(f"{got.error.kind}: {got.error.text}") else call.kind
        yield Difference(name, Mismatch(name, RESULT, "an answer", got.error.kind, _line(got.error)), call)
        return
    if call.kind == kinds.MIXED:
        want, got = _in_one_dtype(want, got, call)
    oracles = {"structure", "dtype", "shape", SIGNIFICANT_STRIDE, "value", "storage"}
    judged = AgainstReference(trial.reference.function, call)
    inputs, changed = names_of_inputs(call.values), changed_inputs(want, call)
    may = trial.operator.written if trial.operator.written is not None else frozenset(changed)
    undeclared = [
        name for name in changed_inputs(got, call) if _argument(name) not in {_argument(place) for place in may}
    ]
    for mismatch in judged.differences(want, got, oracles):
        of_input, name = mismatch.where in inputs, mismatch.oracle
        if name == "stride":
            name = "strides" if not of_input else ""
        elif of_input and name == "value":
            name = "mutation" if mismatch.where in undeclared or mismatch.where not in changed else call.kind
        elif of_input and name == "storage":
            same = mismatch.where not in changed_inputs(got, call) and mismatch.where not in changed
            name = "writes" if same else ""
        elif name == "value":
            name = call.kind
        elif of_input:
            name = "mutation"
        if name:
            name = call.kind if call.kind == kinds.MIXED and name in ("dtype", "shape", "structure") else name
            yield Difference(name, mismatch, call)
    for name in undeclared:
        yield Difference(
            "mutation", Mismatch("mutation", name, "the input as it was", show(got.tensors[name].value)), call
        )
    for name in changed_inputs(got, call):
        if name not in undeclared and not got.tensors[name].version:
            text = "a write that raises the version counter"
            yield Difference("version", Mismatch("version", name, text, "one that does not"), call)
    yield from _aliasing(trial, call, want, got)


def _in_one_dtype(want: Observation, got: Observation, call: Call) -> tuple[Observation, Observation]:
    """Return both sides with the results in the least precise dtype of the inputs, if each result has the dtype of an
    input: PyTorch promises no other dtype for inputs of several dtypes."""
    dtypes = {tensor.dtype for tensor in tensors(call.values) if tensor.is_floating_point()}
    if not dtypes:
        return want, got
    coarse = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)

    def converted(seen: Observation) -> Observation:
        cast = {
            name: dataclasses.replace(tensor, value=tensor.value.to(coarse), dtype=coarse)
            if name.startswith(RESULT) and tensor.dtype in dtypes
            else tensor
            for name, tensor in seen.tensors.items()
        }
        return dataclasses.replace(seen, tensors=cast)

    return converted(want), converted(got)


def _argument(name: str) -> str:
    """Return the argument of a tensor: `x` of `x[0]`."""
    return name.partition("[")[0]


def _aliasing(trial: Examination, call: Call, want: Observation, got: Observation) -> Iterator[Difference]:
    may, must = _declared(trial.operator, want)
    names, elements = [*got.tensors], {name for name, tensor in got.tensors.items() if tensor.value.numel()}
    for at, name in enumerate(names):
        for other in names[at + 1 :]:
            if not name.startswith(RESULT) or not {name, other} <= elements:
                continue
            shared = got.tensors[name].alias == got.tensors[other].alias
            pair = (name, other if other.startswith(RESULT) else _argument(other))
            if shared and pair not in may:
                mismatch = Mismatch("aliasing", name, "memory of its own", f"the memory of {other}")
                yield Difference("aliasing", mismatch, call)
            elif not shared and pair in must:
                yield Difference(
                    "aliasing", Mismatch("aliasing", name, f"the memory of {other}", "memory of its own"), call
                )


def _declared(operator: Operator, want: Observation) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return the pairs of a result and a result or input that may share memory, and those that must."""
    if operator.schema is None:
        pairs = {
            (name, other if other.startswith(RESULT) else _argument(other))
            for name, tensor in want.tensors.items()
            for other, two in want.tensors.items()
            if name.startswith(RESULT) and tensor.alias == two.alias
        }
        return pairs, set()
    returns = operator.schema.returns
    pairs = set()
    for at, result in enumerate(returns):
        name = RESULT if len(returns) == 1 else f"{RESULT}[{at}]"
        sets = result.alias_info.before_set if result.alias_info is not None else set()
        for argument in operator.schema.arguments:
            if argument.alias_info is not None and argument.alias_info.before_set & sets:
                pairs.add((name, argument.name))
    return pairs, pairs


def accuracy(trial: Examination, call: Call) -> Iterator[Difference]:
    """Compare the errors of operator and reference against the reference in float64."""
    if trial.exact is None:
        raise NotJudged("there is no rule for this operator")
    exact = observed(trial.reference.function, call, Float64Reference())
    sides = [observed(function.function, call) for function in (trial.reference, trial.operator)]
    if exact.error is not None or sides[1].error is not None:
        return
    for name, high in exact.tensors.items():
        seen = [side.tensors.get(name) for side in sides]
        if not name.startswith(RESULT) or not high.value.numel() or high.dtype is not torch.float64:
            continue
        values = [answer.value for answer in seen if answer is not None and answer.shape == high.shape]
        if len(values) < 2 or values[0].dtype != values[1].dtype or not values[0].is_floating_point():
            continue
        off = [errors(value, high.value, torch.zeros(()), values[0].dtype, trial.exact) for value in values]
        if beyond(off[1], off[0]):
            most, cpu = float(off[1].max()), float(off[0].max())
            texts = f"at most {shown(limit(cpu))} ulp", f"{shown(most)} ulp", f"torch CPU {shown(cpu)} ulp"
            yield Difference("accuracy", Mismatch("accuracy", name, *texts), call)


def guard(trial: Examination, call: Call) -> Iterator[Difference]:
    """Run the operator on memory between pages that allow no access. An access to them ends the process, and
    `writes_beyond` says whether it was a write. The bytes in the gaps of an input must not change the result. They are
    numbers of ordinary size, so that none of them vanishes in a sum."""
    trial.note("reads")
    targets = Guarded(gaps=0x3F), Guarded(at_end=False), Guarded(gaps=0x41)
    sides = list[Observation]()
    for target in targets:
        sides.append(observed(trial.operator.function, call, target))
        if place := target.trespassed():
            text = "a change of " + place
            yield Difference("writes", Mismatch("writes", "the memory outside the tensors", "no change", text), call)
            return
        has_gaps = any(fence.gaps.numel() for fence in targets[0].fences)
        if sides[0].error is not None or (len(sides) == 2 and not has_gaps):
            return
    for mismatch in compare(sides[0], sides[2], oracles={"value", "shape"}, exact=True):
        if mismatch.where.startswith(RESULT):
            detail = "bytes in the gaps between the elements of an input change the result"
            yield Difference("reads", dataclasses.replace(mismatch, oracle="reads", detail=detail), call)


def writes_beyond(trial: Examination, call: Call) -> None:
    """Run the operator on memory between pages that may be read. A write to them ends the process."""
    for at_end in (True, False):
        observed(trial.operator.function, call, Guarded(at_end, READ_ONLY))


def fill(trial: Examination, call: Call) -> Iterator[Difference]:
    """Run the operator twice, with different bytes in new memory."""
    sides = [observed(trial.operator.function, call, Guarded(fresh=byte)) for byte in (0xFF, 0x3C)]
    for mismatch in compare(*sides, oracles={"value"}, exact=True):
        if mismatch.where.startswith(RESULT):
            yield Difference("unwritten", dataclasses.replace(mismatch, oracle="unwritten"), call)


def repeat(trial: Examination, call: Call) -> Iterator[Difference]:
    """Run the operator three times."""
    first, *others = [observed(trial.operator.function, call) for _ in range(3)]
    for other in others:
        for mismatch in compare(first, other, oracles={"value", "storage", "shape", "dtype"}, exact=True):
            yield Difference("repetition", dataclasses.replace(mismatch, oracle="repetition"), call)
            return


def batch(trial: Examination, call: Call) -> Iterator[Difference]:
    """Compare the call with calls on each entry of the batch, to the bit."""
    dims = {name: dim for name, dim in trial.batch.items() if isinstance(call.values.get(name), torch.Tensor)}
    if not dims:
        raise NotJudged("no argument has a batch dimension: name it, for example batch={'x': 0}")
    if any(call.values[name].dim() <= dim or call.values[name].shape[dim] < 2 for name, dim in dims.items()):
        return
    sides = [observed(trial.operator.function, call, around=around) for around in (plainly, split(dims))]
    for mismatch in compare(*sides, oracles={"value", "shape", "structure", "error"}, exact=True):
        if mismatch.where.startswith(RESULT) or mismatch.oracle == "error":
            yield Difference("batch", dataclasses.replace(mismatch, oracle="batch"), call)


COTANGENTS = ("transposed", "expanded", "gaps")
"""Layouts of the gradients of results."""

NO_FORMULA = re.compile(r"no autograd formula was registered|derivative for .* is not implemented")
NO_FAKE = re.compile(r"no fake impl registered|UnsupportedOperator|has no .*(meta|fake)|no fake kernel", re.IGNORECASE)
NO_VMAP = re.compile(r"vmap|[Bb]atching rule|Tensor that doesn't have storage|storage of BatchedTensorImpl")
"""Sentences of torch about a missing part of an operator. Any other error is a difference."""


def _need_derivative(trial: Examination) -> None:
    if trial.operator.written:
        raise NotJudged("torch.library has no derivatives of operators that write an input")
    if not trial.operator.derivable:
        raise NotJudged("the operator registers no derivative")


def gradients(trial: Examination, call: Call) -> Iterator[Difference]:
    """Compare the gradients with those of the reference."""
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors(call.values)):
        raise NotJudged("no input has a gradient")
    _need_derivative(trial)
    want = observed(trial.reference.function, call, None, differentiated, True)
    if want.error is not None or want.others.get("result['requires_grad']") is not True:
        raise NotJudged("the reference has no gradient")
    got = observed(trial.operator.function, call, None, differentiated, True)
    if got.error is not None and NO_FORMULA.search(got.error.text):
        raise NotJudged("the operator registers no derivative")
    if got.error is None and got.others.get("result['requires_grad']") is not True:
        mismatch = Mismatch("gradients", RESULT, "a gradient", "none: it does not require grad")
        yield Difference("gradients", mismatch, call)
        return
    judged = AgainstReference(trial.reference.function, call, differentiated, True)
    for mismatch in judged.differences(want, got, {"structure", "dtype", "shape", "value", "error"}):
        if mismatch.where.startswith(RESULT) or mismatch.oracle == "error":
            where = mismatch.where.removeprefix("result['").removesuffix("']")
            yield Difference("gradients", dataclasses.replace(mismatch, oracle="gradients", where=where), call)


def cotangents(trial: Examination, call: Call) -> Iterator[Difference]:
    """Compare the gradients along strided and expanded gradients of the result with those along dense ones, on which a
    sum, a transposition or a slice after the operator never calls a backward kernel."""
    function, dense = trial.operator.function, dict[bool, Observation]()
    _need_derivative(trial)
    for layout in COTANGENTS:
        changes_values = layout == "expanded"
        if changes_values not in dense:
            dense[changes_values] = observed(function, call, None, along(layout, True), True)
        want = dense[changes_values]
        if want.error is not None or want.others.get("result['requires_grad']") is not True:
            raise NotJudged("the operator has no gradient")
        got = observed(function, call, None, along(layout, False), True)
        for mismatch in compare(want, got, oracles={"value", "shape", "dtype", "error"}, tolerance=tolerance_of(call)):
            if mismatch.where.startswith(RESULT) or mismatch.oracle == "error":
                where = mismatch.where.removeprefix("result['").removesuffix("']")
                changes = {"oracle": "cotangents", "where": where, "detail": f"along {layout} cotangents"}
                yield Difference("cotangents", dataclasses.replace(mismatch, **changes), call)
                return


def gradcheck(trial: Examination, call: Call) -> Iterator[Difference]:
    """Compare the gradients with finite differences in float64, if the reference has none."""
    if not trial.operator.derivable:
        raise NotJudged("the operator registers no derivative")
    want = observed(trial.reference.function, call, None, differentiated, True)
    if want.error is None and want.others.get("result['requires_grad']"):
        raise NotJudged("the reference has gradients to compare with")
    if sum(tensor.numel() for tensor in tensors(call.values)) > 200:
        return

    def wide(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.detach().double().requires_grad_() if floating else leaf

    inputs = map_leaves(dict(call.values), wide)
    leaves = [tensor for tensor in tensors(inputs) if tensor.requires_grad]
    if not leaves or call.kind not in (kinds.SAMPLED, kinds.SCALARS):
        return

    def function(*parts: torch.Tensor) -> Any:
        rest = iter(parts)
        copies = map_leaves(inputs, lambda leaf: next(rest).clone() if any(leaf is known for known in leaves) else leaf)
        results = tensors(plainly(trial.operator.function, call, copies))
        return tuple(result for result in results if result.requires_grad)

    try:
        if not function(*leaves):
            raise NotJudged("the operator has no gradient either")
        torch.autograd.gradcheck(function, tuple(leaves), check_undefined_grad=False, check_batched_grad=False)
    except NotJudged:
        raise
    except Exception as error:
        said = Raised.of(error)
        if NO_FORMULA.search(said.text):
            raise NotJudged("the operator registers no derivative") from None
        if "GradcheckError" not in said.ancestors:
            raise NotJudged(f"it does not run in float64: {_line(said)}") from None
        texts = "the finite differences", "other numbers", " ".join(said.text.split())[:300]
        yield Difference("gradcheck", Mismatch("gradcheck", "the gradient", *texts), call)


METADATA = frozenset({"structure", "dtype", "shape", SIGNIFICANT_STRIDE, "alias"})


def fake(trial: Examination, call: Call) -> Iterator[Difference]:
    """Compare the fake kernel's metadata with that of the real results."""
    _need_fake(trial)
    want = observed(trial.operator.function, call)
    if want.error is not None:
        return
    got = observed(trial.operator.function, call, target_of("fake"))
    if got.error is not None and (reason := _lacks_fake(got.error)):
        raise NotJudged(reason)
    if got.error is not None and "DynamicOutputShapeException" in got.error.ancestors:
        raise NotJudged("the shape of the result depends on values")
    for mismatch in compare(want, got, oracles=METADATA | {"error"}):
        if mismatch.where.startswith(RESULT) or mismatch.oracle == "error":
            yield Difference("fake", dataclasses.replace(mismatch, oracle="fake", detail=_what(mismatch)), call)


def _what(mismatch: Mismatch) -> str:
    return "; ".join(filter(None, (f"the {mismatch.oracle}", mismatch.detail)))


def _need_fake(trial: Examination) -> None:
    if trial.operator.overload is None:
        raise NotJudged("a plain function has no fake kernel")


def _lacks_fake(error: Raised) -> str:
    lacks = NO_FAKE.search(f"{error.kind}: {error.text}") or "UnsupportedOperatorException" in error.ancestors
    return "the operator registers no fake kernel" if lacks else ""


def _is_interpreted(error: Raised) -> str:
    """Return a reason if Dynamo traced Triton's interpreter, which is NumPy, instead of a compiled kernel."""
    interpreted = error.kind == "InterpreterError" and os.environ.get("TRITON_INTERPRET") == "1"
    return "Dynamo does not trace Triton's interpreter; a compiled kernel is traced" if interpreted else ""


def symbolic(trial: Examination, call: Call) -> Iterator[Difference]:
    """Compare the fake kernel's metadata for symbolic sizes with the real results: at these sizes, and, where its
    guards hold, at the sizes of other calls."""
    _need_fake(trial)
    others = [other for other in trial.plan.of(kinds.SAMPLED, kinds.BLOCKS) if _alike(call, other)][:8]
    real = [observed(trial.operator.function, other) for other in (call, *others)]
    if real[0].error is not None:
        return
    try:
        shapes = torch_compat.symbolic_results(lambda *parts: _called(trial, call, parts), tensors(call.values))
    except Exception as error:
        said = Raised.of(error)
        if reason := _lacks_fake(said):
            raise NotJudged(reason) from None
        mismatch = Mismatch("symbolic", RESULT, "an answer", said.kind, _line(said))
        yield Difference("symbolic", mismatch, call)
        return
    for one, seen in zip((call, *others), real, strict=True):
        if seen.error is not None:
            continue
        sizes = [tuple(tensor.shape) for tensor in tensors(one.values)]
        wanted = [got for name, got in seen.tensors.items() if name.startswith(RESULT)]
        for at, (dtype, shape) in enumerate(shapes.at(sizes) or ()):
            if at >= len(wanted):
                break
            right = wanted[at]
            matches = len(shape) == len(right.shape) and all(n is None or n == m for n, m in zip(shape, right.shape))
            if dtype != right.dtype or not matches:
                texts = f"{right.dtype} {tuple(right.shape)}", f"{dtype} {shape}", f"for inputs of {sizes}"
                yield Difference("symbolic", Mismatch("symbolic", RESULT, *texts), call)
                return


def _called(trial: Examination, call: Call, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    rest = iter(parts)
    inputs = map_leaves(dict(call.values), lambda leaf: next(rest) if isinstance(leaf, torch.Tensor) else leaf)
    return tensors(plainly(trial.operator.function, call, inputs))


def _alike(call: Call, other: Call) -> bool:
    """Whether two calls differ in the sizes of their tensors only."""

    def rest(call: Call) -> Any:
        return map_leaves(dict(call.values), lambda leaf: (leaf.dtype, leaf.dim()) if torch.is_tensor(leaf) else leaf)

    return call is not other and repr(rest(call)) == repr(rest(other))


def compiled(spec: str, check: str) -> Callable[[Examination, Call], Iterator[Difference]]:
    """Return the procedure that compares the operator with itself under a compiler."""

    def procedure(trial: Examination, call: Call) -> Iterator[Difference]:
        function = trial.operator.function
        target = target_of(spec)
        may = trial.operator.derivable and not trial.operator.written
        for around, grad in ((plainly, False), (differentiated, True))[: 2 if may else 1]:
            want = observed(function, call, None, around, grad)
            if want.error is not None or (grad and want.others.get("result['requires_grad']") is not True):
                continue
            run = execution(function, call, target, around, grad)
            got = run.last
            if got.error is not None and (reason := _lacks_fake(got.error) or _is_interpreted(got.error)):
                raise NotJudged(reason)
            if run.capture is not None and not run.capture.ops and got.error is None:
                raise NotJudged("the compiler was handed nothing")
            oracles = (target.oracles - {"grad", "storage_offset", "contiguity"}) | {"storage"}
            oracles -= {SIGNIFICANT_STRIDE} if grad else set()  # nothing promises the strides of a gradient
            differs = compare(want, got, oracles=oracles, tolerance=tolerance_of(call))
            for mismatch in differs:
                where = mismatch.where.removeprefix("result['").removesuffix("']")
                detail = _what(mismatch)
                yield Difference(check, dataclasses.replace(mismatch, oracle=check, where=where, detail=detail), call)
            if differs:
                return

    return procedure


def vmap(trial: Examination, call: Call) -> Iterator[Difference]:
    """Compare vmap with a loop."""
    function = trial.operator.function
    if not tensors(call.values) or trial.written(call):
        raise NotJudged("the operator writes an input")
    wide = stacked(call)
    want = observed(function, wide, None, looped)
    if want.error is not None:
        return
    got = observed(function, wide, None, mapped)
    if got.error is not None and NO_VMAP.search(got.error.text):
        raise NotJudged(f"the operator has no rule for vmap: {_line(got.error)}")
    for mismatch in compare(want, got, oracles={"structure", "dtype", "shape", "value", "error"}):
        if mismatch.where.startswith(RESULT) or mismatch.oracle == "error":
            yield Difference("vmap", dataclasses.replace(mismatch, oracle="vmap", detail=_what(mismatch)), call)


def autocast(trial: Examination, call: Call) -> Iterator[Difference]:
    """Compare the results under autocast with three right ones: the operator's without autocast, the reference's under
    autocast, and the operator's on inputs that autocast has cast. The fake kernel must agree about the metadata."""
    function = trial.operator.function

    def low(leaf: Any) -> Any:
        return leaf.bfloat16() if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32 else leaf

    plain = observed(function, call)
    if plain.error is not None:
        return
    got = observed(function, call, None, under_autocast)
    right = [plain, observed(trial.reference.function, call, None, under_autocast)]
    right.append(observed(function, call.on(map_leaves(dict(call.values), low))))
    first = []
    for want in right:
        if want.error is None:
            # Results and inputs of the last side are of other dtypes than the call's inputs: only results count.
            left = compare(want, got, oracles={"structure", "dtype", "shape", "value", "error"})
            left = [
                difference for difference in left if difference.where.startswith(RESULT) or difference.oracle == "error"
            ]
            if not left:
                break
            first.append(left[0])
    else:
        one = first[0]
        yield Difference("autocast", dataclasses.replace(one, oracle="autocast", detail=_what(one)), call)
        return
    if trial.operator.overload is not None and got.error is None:
        meta = observed(function, call, target_of("fake"), under_autocast)
        for mismatch in compare(got, meta, oracles={"structure", "dtype", "shape"}) if meta.error is None else ():
            if mismatch.where.startswith(RESULT):
                detail = f"the {mismatch.oracle}, which the fake kernel gives otherwise"
                mismatch = Mismatch("autocast", mismatch.where, mismatch.actual, mismatch.expected, detail)
                yield Difference("autocast", mismatch, call)


def refusals(trial: Examination, call: Call) -> Iterator[Difference]:
    """Make calls that the reference refuses."""
    if observed(trial.reference.function, call).error is None:
        return
    if observed(trial.operator.function, call).error is None:
        yield Difference("refusals", Mismatch("refusals", RESULT, "an error", "no error"), call)


def _line(error: Raised) -> str:
    return f"{error.kind}: {error.text}".strip().partition("\n")[0][:300]


@dataclass(frozen=True)
class Procedure:
    """A procedure on calls of these kinds, at most `most` of each kind. The time for all procedures is divided in
    proportion to `weight`."""

    run: Callable[[Examination, Call], Iterator[Difference]]
    kinds: Collection[str]
    most: int = 100
    weight: int = 1


EVERY = (kinds.SAMPLED, kinds.STRIDED, kinds.EMPTY, kinds.SCALARS, kinds.BLOCKS, kinds.SPECIAL, kinds.MIXED)
PLAIN = (kinds.SAMPLED, kinds.STRIDED, kinds.EMPTY, kinds.SCALARS, kinds.BLOCKS)
REFUSED = "refused"
COMPILED, DYNAMIC, INDUCTOR = "compile:aot_eager", "compile:aot_eager,dynamic=yes", "inductor"

PROCEDURES: Mapping[str, Procedure] = {
    "compare": Procedure(compare_results, EVERY, weight=4),
    "accuracy": Procedure(accuracy, (kinds.SAMPLED, kinds.BLOCKS), 12),
    "gradcheck": Procedure(gradcheck, (kinds.SAMPLED, kinds.SCALARS), 3),
    "fake": Procedure(fake, PLAIN, 8),
    "symbolic": Procedure(symbolic, (kinds.SAMPLED, kinds.BLOCKS), 3),
    "vmap": Procedure(vmap, (kinds.SAMPLED, kinds.SCALARS), 4),
    "autocast": Procedure(autocast, (kinds.SAMPLED, kinds.SCALARS), 6),
    "refusals": Procedure(refusals, (REFUSED,)),
    "compile": Procedure(compiled(COMPILED, "compile"), (kinds.SAMPLED, kinds.STRIDED, kinds.EMPTY), 3, 4),
    "dynamic": Procedure(compiled(DYNAMIC, "dynamic"), (kinds.SAMPLED, kinds.BLOCKS), 3, 4),
    "inductor": Procedure(compiled(INDUCTOR, "inductor"), (kinds.SAMPLED, kinds.STRIDED), 2, 8),
    "batch": Procedure(batch, (kinds.SAMPLED, kinds.BLOCKS), 12),
    "repeat": Procedure(repeat, PLAIN, 8, weight=2),
    "fill": Procedure(fill, PLAIN, 12, weight=2),
    "guard": Procedure(guard, PLAIN, 12, weight=3),
    "gradients": Procedure(gradients, PLAIN, 6, weight=2),
    "cotangents": Procedure(cotangents, PLAIN, 6, weight=3),
}
"""In running order: procedures that often end early come first, so that their time goes to the others."""

COMPILING: Mapping[str, str] = {"compile": COMPILED, "dynamic": DYNAMIC, "inductor": INDUCTOR}
"""Procedures that compile, and the target of each. A call that they do not finish in time is no hang."""
