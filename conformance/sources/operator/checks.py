"""The procedures that carry out the checks of an operator.

Defines `PROCEDURES` and `Examination`. A procedure runs two sides on one call and yields differences, each under the
name of a check of `table.py`; several checks may share a procedure. A refusal that names a missing part of the
operator, such as a derivative, is no difference: the check is then not judged, with the operator's own reason.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from conformance.engine.executor import Execution
from conformance.engine.judge import OneAnswer, Terms
from conformance.engine.loading import reference
from conformance.engine.rounding import Float64Reference, Swayed
from conformance.engine.target import Target
from conformance.record.accuracy import TIMES, limit, shown
from conformance.record.names import DTYPES, SIGNIFICANT_STRIDE
from conformance.sources.operator import calls as kinds
from conformance.sources.operator.calls import DrawnCall, Plan, laid
from conformance.sources.operator.sides import (
    Around,
    Guarded,
    along,
    differentiated,
    execution,
    is_differentiable,
    looped,
    mapped,
    observed,
    plainly,
    split,
    stacked,
    target_of,
    under_autocast,
    with_tensors,
)
from conformance.sources.operator.subject import RESULT, Operator, by_finding_name, finding_name, of_result
from conformance.standalone import torch_compat
from conformance.standalone.accuracy import beyond, errors
from conformance.standalone.fences import READ_ONLY
from conformance.standalone.moving import map_leaves, tensors
from conformance.standalone.observation import Observation, Raised, out_of_memory, tensors_by_name
from conformance.standalone.oracles import Mismatch, Tolerance, compare, differing, show

ANSWER = frozenset({"structure", "dtype", "shape", "value", "error"})
"""Oracles that ignore strides and memory."""

SWAYS = 8
"""Pairs of runs whose spread is the error that rounding explains. They move results by up to twice the factor of the
accuracy rule, so by that factor on average."""

Found = tuple[str, Mismatch]
"""The name of a check, and a difference that it finds."""


class NotJudged(Exception):
    """A check without a judgement. The message is the reason."""


@dataclass(frozen=True)
class Examination:
    """An operator, its reference, and the calls. `batch` are the dimensions that the check `batch` splits, by argument.
    `exact` says whether an accuracy rule exists, and whether it holds for each element (None: there is none)."""

    operator: Operator
    reference: Operator
    plan: Plan
    batch: Mapping[str, int] = field(default_factory=dict)
    exact: bool | None = None

    def expected(self, call: DrawnCall, target: Target | None = None, around: Around = plainly) -> Observation:
        """Return the observation of the reference on a target, torch CPU by default."""
        return observed(self.reference.function, call, target, around)

    def actual(self, call: DrawnCall, target: Target | None = None, around: Around = plainly) -> Observation:
        """Return the observation of the operator on a target, torch CPU by default."""
        return observed(self.operator.function, call, target, around)

    def written(self, want: Observation, call: DrawnCall) -> Collection[str]:
        """Return the inputs that may change: the schema declares them. Without a schema, the reference changes them in
        its observation `want`."""
        return changed_inputs(want, call) if self.operator.written is None else self.operator.written


def changed_inputs(seen: Observation, call: DrawnCall) -> list[str]:
    """Return the inputs whose elements a run has changed."""
    before = tensors_by_name(by_finding_name(call.values))
    return [name for name, one in before.items() if name in seen.tensors and _differs(one, seen.tensors[name].value)]


def _differs(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors differ in a bit, in the shape or in the dtype."""
    alike = tensor.shape == other.shape and tensor.dtype == other.dtype
    return not alike or bool(differing(tensor, other, True).any())


def of_results(mismatches: Iterable[Mismatch]) -> list[Mismatch]:
    """Return the differences of results, and of errors; inputs do not count."""
    return [one for one in mismatches if of_result(one.where) or one.oracle == "error"]


def under(check: str, mismatch: Mismatch, detail: str = "") -> Found:
    """Return a difference under the name of a check, with another detail if one is given."""
    return check, replace(mismatch, oracle=check, detail=detail or mismatch.detail)


def fact(check: str, mismatch: Mismatch) -> Found:
    """Return a difference under the name of a check; the detail says which fact of an answer differs."""
    return under(check, mismatch, "; ".join(filter(None, (f"the {mismatch.oracle}", mismatch.detail))))


def by_entry(mismatch: Mismatch) -> Mismatch:
    """Return a difference under the name of the gradient, which is an entry of the result."""
    return replace(mismatch, where=mismatch.where.removeprefix("result['").removesuffix("']"))


@dataclass(frozen=True)
class AgainstReference(OneAnswer):
    """A call of the operator as a subject of the judge. The reference's own rounding and its own indecision are no
    differences. `narrow` is the least precise dtype in which the operator may round, by default that of the inputs."""

    trial: Examination
    call: DrawnCall
    around: Around = plainly
    narrow: torch.dtype | None = None
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
        gaps = self.call.on(laid(self.call.values, "gaps"))
        sides = [self.trial.expected(call) for call in (self.call, gaps)]
        return bool(compare(*sides, oracles={"value"}, tolerance=tolerance))

    def names_of_inputs(self) -> Collection[str]:
        """See `Judged.names_of_inputs`."""
        return tensors_by_name(by_finding_name(self.call.values))

    def in_float64(self, mismatches: Sequence[Mismatch], expected: Observation) -> Execution | None:
        """Return the reference's answer in float64."""
        truth = self.trial.expected(self.call, Float64Reference(), self.around)
        return Execution((truth,)) if truth.error is None else None

    def swayed(
        self, mismatches: Sequence[Mismatch], expected: Observation, actual: Observation
    ) -> Sequence[Observation]:
        """Return the reference's answers in float64 with inputs and rounded results moved: the operator may round in
        another order, so its error depends on the size of the terms that the reference adds."""
        narrow = self.narrow or self.call.coarsest
        if narrow is None:
            return ()
        targets = [Swayed(narrow, seed, units) for seed in range(SWAYS) for units in (2 * TIMES, -2 * TIMES)]
        runs = [self.trial.expected(self.call, target, self.around) for target in targets]
        return runs if all(run.error is None for run in runs) else ()

    def differences(self, want: Observation, got: Observation, oracles: Collection[str]) -> list[Mismatch]:
        """Return the mismatches between the reference and the operator."""
        return self.compared(Execution((want,)), Execution((got,)), reference(), oracles).mismatches


def tolerance_of(call: DrawnCall) -> Tolerance:
    """Return the tolerances of a call for each dtype; empty for torch.testing's."""
    if call.rtol is None or call.atol is None:
        return {}
    return dict.fromkeys(DTYPES, (call.rtol, call.atol))


def compare_results(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Compare the operator with the reference: results, their metadata and memory, and the inputs afterwards."""
    want, got = trial.expected(call), trial.actual(call)
    if got.error is not None:
        if call.kind == kinds.MIXED:
            raise NotJudged(f"the operator refuses them: {_line(got.error)}")
        name = "memory" if out_of_memory(f"{got.error.kind}: {got.error.text}") else call.kind
        yield name, Mismatch(name, RESULT, "an answer", got.error.kind, _line(got.error))
        return
    if call.kind == kinds.MIXED:
        want, got = _in_one_dtype(want, got, call)
    right, changed = changed_inputs(want, call), changed_inputs(got, call)
    may = {*map(_argument, trial.written(want, call))}
    undeclared = [name for name in changed if _argument(name) not in may]
    inputs = tensors_by_name(by_finding_name(call.values))
    oracles = {"structure", "dtype", "shape", SIGNIFICANT_STRIDE, "value", "storage"}
    for mismatch in AgainstReference(trial, call).differences(want, got, oracles):
        if mismatch.where not in inputs:
            name = _check_of_result(mismatch.oracle, call.kind)
        elif mismatch.oracle == "storage":
            name = "writes" if mismatch.where not in (*right, *changed) else ""
        elif mismatch.oracle == "value":
            name = call.kind if mismatch.where in right and mismatch.where not in undeclared else "mutation"
        else:
            name = "mutation" if mismatch.oracle != "stride" else ""
        if name:
            yield name, mismatch
    for name in undeclared:
        yield "mutation", Mismatch("mutation", name, "the input as it was", show(got.tensors[name].value))
    for name in changed:
        if name not in undeclared and not got.tensors[name].version:
            text = "a write that raises the version counter"
            yield "version", Mismatch("version", name, text, "one that does not")
    yield from _aliasing(trial.operator, want, got)


def _check_of_result(oracle: str, kind: str) -> str:
    """Return the check of a difference in a result, in a call of this kind."""
    if oracle == "value" or (kind == kinds.MIXED and oracle in ("dtype", "shape", "structure")):
        return kind
    return "strides" if oracle == "stride" else oracle


def _in_one_dtype(want: Observation, got: Observation, call: DrawnCall) -> tuple[Observation, Observation]:
    """Return both sides with the results in the least precise dtype of the inputs, if each result has the dtype of an
    input: PyTorch promises no other dtype for inputs of several dtypes."""
    dtypes, coarse = {tensor.dtype for tensor in tensors(call.values)}, call.coarsest
    if coarse is None:
        return want, got

    def converted(seen: Observation) -> Observation:
        cast = {
            name: replace(tensor, value=tensor.value.to(coarse), metadata={**tensor.metadata, "dtype": coarse})
            for name, tensor in seen.tensors.items()
            if of_result(name) and tensor.dtype.is_floating_point and tensor.dtype in dtypes
        }
        return replace(seen, tensors={**seen.tensors, **cast})

    return converted(want), converted(got)


def _argument(name: str) -> str:
    """Return the argument of a tensor: `x` of `x[0]`."""
    return name.partition("[")[0]


def _partner(name: str) -> str:
    """Return the part of a call with which a result may share memory: a result, or an argument."""
    return name if of_result(name) else _argument(name)


def _aliasing(operator: Operator, want: Observation, got: Observation) -> Iterator[Found]:
    may, must = _declared(operator, want)
    elements = [name for name, tensor in got.tensors.items() if tensor.value.numel()]
    for name, other in itertools.combinations(elements, 2):
        if not of_result(name):
            continue
        shared, pair = got.tensors[name].alias == got.tensors[other].alias, (name, _partner(other))
        texts = "memory of its own", f"the memory of {other}"
        if shared and pair not in may:
            yield "aliasing", Mismatch("aliasing", name, *texts)
        elif not shared and pair in must:
            yield "aliasing", Mismatch("aliasing", name, *reversed(texts))


def _declared(operator: Operator, want: Observation) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return the pairs of a result and a result or input that may share memory, and those that must."""
    if operator.schema is None:
        pairs = {
            (name, _partner(other))
            for name, tensor in want.tensors.items()
            for other, two in want.tensors.items()
            if of_result(name) and tensor.alias == two.alias
        }
        return pairs, set()
    returns = operator.schema.returns
    pairs = set()
    for at, result in enumerate(returns):
        name = RESULT if len(returns) == 1 else f"{RESULT}[{at}]"
        sets = result.alias_info.before_set if result.alias_info is not None else set()
        for argument in operator.schema.arguments:
            if argument.alias_info is not None and argument.alias_info.before_set & sets:
                pairs.add((name, finding_name(argument.name)))
    return pairs, pairs


def accuracy(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Compare the errors of operator and reference against the reference in float64."""
    if trial.exact is None:
        raise NotJudged("there is no rule for this operator")
    exact, want, got = trial.expected(call, Float64Reference()), trial.expected(call), trial.actual(call)
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
        cpu, off = (errors(value, high.value, torch.zeros(()), value.dtype, trial.exact) for value in values)
        if beyond(off, cpu):
            usual, most = float(cpu.max()), float(off.max())
            texts = f"at most {shown(limit(usual))} ulp", f"{shown(most)} ulp", f"torch CPU {shown(usual)} ulp"
            yield "accuracy", Mismatch("accuracy", name, *texts)


def guard(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Run the operator on memory between pages that allow no access. An access to them ends the process, and
    `writes_beyond` says whether it was a write. The bytes in the gaps of an input must not change the result. They are
    numbers of ordinary size, so that none of them vanishes in a sum."""
    targets = Guarded(gaps=0x3F), Guarded(at_end=False), Guarded(gaps=0x41)
    sides = list[Observation]()
    for target in targets:
        sides.append(trial.actual(call, target))
        if place := target.trespassed():
            text = "a change of " + place
            yield "writes", Mismatch("writes", "the memory outside the tensors", "no change", text)
            return
        has_gaps = any(fence.gaps.numel() for fence in targets[0].fences)
        if sides[0].error is not None or (len(sides) == 2 and not has_gaps):
            return
    detail = "bytes in the gaps between the elements of an input change the result"
    for mismatch in of_results(compare(sides[0], sides[2], oracles={"value", "shape"}, exact=True)):
        yield under("reads", mismatch, detail)


def writes_beyond(trial: Examination, call: DrawnCall) -> None:
    """Run the operator on memory between pages that may be read. A write to them ends the process."""
    for at_end in (True, False):
        trial.actual(call, Guarded(at_end, READ_ONLY))


def fill(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Run the operator twice, with different bytes in new memory."""
    sides = [trial.actual(call, Guarded(fresh=byte)) for byte in (0xFF, 0x3C)]
    for mismatch in of_results(compare(*sides, oracles={"value"}, exact=True)):
        yield under("unwritten", mismatch)


def repeat(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Run the operator three times."""
    first, *others = [trial.actual(call) for _ in range(3)]
    for other in others:
        for mismatch in compare(first, other, oracles={"value", "storage", "shape", "dtype"}, exact=True):
            yield under("repetition", mismatch)
            return


def batch(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Compare the call with calls on each entry of the batch, to the bit."""
    dims = {name: dim for name, dim in trial.batch.items() if isinstance(call.values.get(name), torch.Tensor)}
    if not dims:
        raise NotJudged("no argument has a batch dimension: name it, for example batch={'x': 0}")
    if any(call.values[name].dim() <= dim or call.values[name].shape[dim] < 2 for name, dim in dims.items()):
        return
    sides = [trial.actual(call, around=around) for around in (plainly, split(dims))]
    for mismatch in of_results(compare(*sides, oracles=ANSWER - {"dtype"}, exact=True)):
        yield under("batch", mismatch)


COTANGENTS = ("transposed", "expanded", "gaps")
"""Layouts of the gradients of results."""

NO_FORMULA = re.compile(r"no autograd formula was registered|derivative for .* is not implemented")
NO_FAKE = re.compile(r"no fake impl registered|UnsupportedOperator|has no .*(meta|fake)|no fake kernel", re.IGNORECASE)
NO_VMAP = re.compile(r"vmap|[Bb]atching rule|Tensor that doesn't have storage|storage of BatchedTensorImpl")
"""Sentences of torch about a missing part of an operator. Any other error is a difference."""

NO_DERIVATIVE = "the operator registers no derivative"


def _need_derivative(trial: Examination) -> None:
    if trial.operator.written:
        raise NotJudged("torch.library has no derivatives of operators that write an input")
    if not trial.operator.derivable:
        raise NotJudged(NO_DERIVATIVE)


def _has_gradient(seen: Observation) -> bool:
    """Whether a differentiated call has an answer that requires a gradient."""
    return seen.error is None and seen.others.get("result['requires_grad']") is True


def gradients(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Compare the gradients with those of the reference."""
    if not any(map(is_differentiable, tensors(call.values))):
        raise NotJudged("no input has a gradient")
    _need_derivative(trial)
    want = trial.expected(call, None, differentiated)
    if not _has_gradient(want):
        raise NotJudged("the reference has no gradient")
    got = trial.actual(call, None, differentiated)
    if got.error is not None and NO_FORMULA.search(got.error.text):
        raise NotJudged(NO_DERIVATIVE)
    if got.error is None and not _has_gradient(got):
        yield "gradients", Mismatch("gradients", RESULT, "a gradient", "none: it does not require grad")
        return
    for mismatch in of_results(AgainstReference(trial, call, differentiated).differences(want, got, ANSWER)):
        yield under("gradients", by_entry(mismatch))


def cotangents(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Compare the gradients along strided and expanded gradients of the result with those along dense ones, on which a
    sum, a transposition or a slice after the operator never calls a backward kernel."""
    _need_derivative(trial)
    dense = dict[bool, Observation]()
    for layout in COTANGENTS:
        changes_values = layout == "expanded"
        if changes_values not in dense:
            dense[changes_values] = trial.actual(call, None, along(layout, True))
        want = dense[changes_values]
        if not _has_gradient(want):
            raise NotJudged("the operator has no gradient")
        got = trial.actual(call, None, along(layout, False))
        mismatches = compare(want, got, oracles=ANSWER - {"structure"}, tolerance=tolerance_of(call))
        for mismatch in of_results(mismatches):
            yield under("cotangents", by_entry(mismatch), f"along {layout} cotangents")
            return


def gradcheck(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Compare the gradients with finite differences in float64, if the reference has none."""
    if not trial.operator.derivable:
        raise NotJudged(NO_DERIVATIVE)
    if _has_gradient(trial.expected(call, None, differentiated)):
        raise NotJudged("the reference has gradients to compare with")
    if sum(tensor.numel() for tensor in tensors(call.values)) > 200:
        return

    def wide(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.detach().double().requires_grad_() if floating else leaf

    inputs = map_leaves(call.values, wide)
    leaves = [tensor for tensor in tensors(inputs) if tensor.requires_grad]
    if not leaves:
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
            raise NotJudged(NO_DERIVATIVE) from None
        if "GradcheckError" not in said.ancestors:
            raise NotJudged(f"it does not run in float64: {_line(said)}") from None
        texts = "the finite differences", "other numbers", " ".join(said.text.split())[:300]
        yield "gradcheck", Mismatch("gradcheck", "the gradient", *texts)


METADATA = frozenset({"structure", "dtype", "shape", SIGNIFICANT_STRIDE, "alias"})


def fake(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Compare the fake kernel's metadata with that of the real results."""
    _need_fake(trial)
    want = trial.actual(call)
    if want.error is not None:
        return
    got = trial.actual(call, target_of("fake"))
    if got.error is not None and (reason := _lacks_fake(got.error)):
        raise NotJudged(reason)
    if got.error is not None and "DynamicOutputShapeException" in got.error.ancestors:
        raise NotJudged("the shape of the result depends on values")
    for mismatch in of_results(compare(want, got, oracles=METADATA | {"error"})):
        yield fact("fake", mismatch)


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


def symbolic(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Compare the fake kernel's metadata for symbolic sizes with the real results: at these sizes, and, where its
    guards hold, at the sizes of other calls."""
    _need_fake(trial)
    calls = [call, *[other for other in trial.plan.of(kinds.SAMPLED, kinds.BLOCKS) if _alike(call, other)][:8]]
    real = [trial.actual(each) for each in calls]
    if real[0].error is not None:
        return

    def results(*parts: torch.Tensor) -> list[torch.Tensor]:
        return tensors(plainly(trial.operator.function, call, with_tensors(call.values, parts)))

    try:
        shapes = torch_compat.symbolic_results(results, tensors(call.values))
    except Exception as error:
        said = Raised.of(error)
        if reason := _lacks_fake(said):
            raise NotJudged(reason) from None
        yield "symbolic", Mismatch("symbolic", RESULT, "an answer", said.kind, _line(said))
        return
    for each, seen in zip(calls, real, strict=True):
        if seen.error is not None:
            continue
        sizes = [tuple(tensor.shape) for tensor in tensors(each.values)]
        wanted = [got for name, got in seen.tensors.items() if of_result(name)]
        for right, (dtype, shape) in zip(wanted, shapes.at(sizes) or ()):
            matches = len(shape) == len(right.shape) and all(n is None or n == m for n, m in zip(shape, right.shape))
            if dtype != right.dtype or not matches:
                texts = f"{right.dtype} {tuple(right.shape)}", f"{dtype} {shape}", f"for inputs of {sizes}"
                yield "symbolic", Mismatch("symbolic", RESULT, *texts)
                return


def _alike(call: DrawnCall, other: DrawnCall) -> bool:
    """Whether two calls differ in the sizes of their tensors only."""

    def rest(call: DrawnCall) -> Any:
        return map_leaves(call.values, lambda leaf: (leaf.dtype, leaf.dim()) if torch.is_tensor(leaf) else leaf)

    return call is not other and repr(rest(call)) == repr(rest(other))


COMPILERS: Mapping[str, str] = {
    "compile": "compile:aot_eager", "dynamic": "compile:aot_eager,dynamic=yes", "inductor": "inductor",
}  # fmt: skip
"""Procedures that compile, and the target of each. A call that they do not finish in time is no hang."""


def compiled(trial: Examination, call: DrawnCall, check: str) -> Iterator[Found]:
    """Compare the operator with itself under the compiler of a check."""
    function, target = trial.operator.function, target_of(COMPILERS[check])
    oracles = (target.facts.oracles - {"grad", "storage_offset", "contiguity"}) | {"storage"}
    derivable = trial.operator.derivable and not trial.operator.written
    for around in (plainly, differentiated) if derivable else (plainly,):
        want = trial.actual(call, None, around)
        if want.error is not None or (around is differentiated and not _has_gradient(want)):
            continue
        run = execution(function, call, target, around)
        got = run.last
        if got.error is not None and (reason := _lacks_fake(got.error) or _is_interpreted(got.error)):
            raise NotJudged(reason)
        if run.capture is not None and not run.capture.ops and got.error is None:
            raise NotJudged("the compiler received nothing")
        # Nothing promises the strides of a gradient.
        judged = oracles - {SIGNIFICANT_STRIDE} if around is differentiated else oracles
        if differs := compare(want, got, oracles=judged, tolerance=tolerance_of(call)):
            for mismatch in differs:
                yield fact(check, by_entry(mismatch))
            return


def vmap(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Compare vmap with a loop."""
    if not tensors(call.values) or trial.written(trial.expected(call), call):
        raise NotJudged("the operator writes an input")
    wide = stacked(call)
    want = trial.actual(wide, None, looped)
    if want.error is not None:
        return
    got = trial.actual(wide, None, mapped)
    if got.error is not None and NO_VMAP.search(got.error.text):
        raise NotJudged(f"the operator has no rule for vmap: {_line(got.error)}")
    for mismatch in of_results(compare(want, got, oracles=ANSWER)):
        yield fact("vmap", mismatch)


def autocast(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Compare the results under autocast with three right ones: the operator's without autocast, the reference's under
    autocast, and the operator's on inputs that autocast has cast. Values may differ by rounding in bfloat16, to which
    autocast casts at other places in other code. The fake kernel must agree about the metadata."""

    def low(leaf: Any) -> Any:
        return leaf.bfloat16() if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32 else leaf

    plain = trial.actual(call)
    if plain.error is not None:
        return
    got = trial.actual(call, None, under_autocast)
    cast = trial.actual(call.on(map_leaves(call.values, low)))
    right = [want for want in (plain, trial.expected(call, None, under_autocast), cast) if want.error is None]
    by_side = [of_results(compare(want, got, oracles=ANSWER)) for want in right]
    if all(by_side):
        subject = AgainstReference(trial, call, narrow=torch.bfloat16)
        values = [want for want, differs in zip(right, by_side) if {one.oracle for one in differs} == {"value"}]
        if all(of_results(subject.differences(want, got, {"value"})) for want in values):
            yield fact("autocast", by_side[0][0])
            return
    if trial.operator.overload is not None and got.error is None:
        meta = trial.actual(call, target_of("fake"), under_autocast)
        differs = compare(meta, got, oracles={"structure", "dtype", "shape"}) if meta.error is None else []
        for mismatch in of_results(differs):
            yield under("autocast", mismatch, f"the {mismatch.oracle}, which the fake kernel gives otherwise")


def refusals(trial: Examination, call: DrawnCall) -> Iterator[Found]:
    """Make calls that the reference refuses."""
    if trial.expected(call).error is not None and trial.actual(call).error is None:
        yield "refusals", Mismatch("refusals", RESULT, "an error", "no error")


def _line(error: Raised) -> str:
    return f"{error.kind}: {error.text}".strip().partition("\n")[0][:300]


@dataclass(frozen=True)
class Procedure:
    """A procedure on calls of these kinds, at most `most` of each kind. The time for all procedures is divided in
    proportion to `weight`. `death` is the check that the end of the process concerns."""

    run: Callable[[Examination, DrawnCall], Iterator[Found]]
    kinds: Collection[str]
    most: int = 100
    weight: int = 1
    death: str = "crash"


EVERY = (kinds.SAMPLED, kinds.STRIDED, kinds.EMPTY, kinds.SCALARS, kinds.BLOCKS, kinds.SPECIAL, kinds.MIXED)
PLAIN = (kinds.SAMPLED, kinds.STRIDED, kinds.EMPTY, kinds.SCALARS, kinds.BLOCKS)
REFUSED = "refused"

PROCEDURES: Mapping[str, Procedure] = {
    "compare": Procedure(compare_results, EVERY, weight=4),
    "accuracy": Procedure(accuracy, (kinds.SAMPLED, kinds.BLOCKS), 12),
    "gradcheck": Procedure(gradcheck, (kinds.SAMPLED, kinds.SCALARS), 3),
    "fake": Procedure(fake, PLAIN, 8),
    "symbolic": Procedure(symbolic, (kinds.SAMPLED, kinds.BLOCKS), 3),
    "vmap": Procedure(vmap, (kinds.SAMPLED, kinds.SCALARS), 4),
    "autocast": Procedure(autocast, (kinds.SAMPLED, kinds.SCALARS), 6),
    "refusals": Procedure(refusals, (REFUSED,)),
    "compile": Procedure(
        functools.partial(compiled, check="compile"), (kinds.SAMPLED, kinds.STRIDED, kinds.EMPTY), 3, 4
    ),
    "dynamic": Procedure(functools.partial(compiled, check="dynamic"), (kinds.SAMPLED, kinds.BLOCKS), 3, 4),
    "inductor": Procedure(functools.partial(compiled, check="inductor"), (kinds.SAMPLED, kinds.STRIDED), 2, 8),
    "batch": Procedure(batch, (kinds.SAMPLED, kinds.BLOCKS), 12),
    "repeat": Procedure(repeat, PLAIN, 8, weight=2),
    "fill": Procedure(fill, PLAIN, 12, weight=2),
    "guard": Procedure(guard, PLAIN, 12, weight=3, death="reads"),
    "gradients": Procedure(gradients, PLAIN, 6, weight=2),
    "cotangents": Procedure(cotangents, PLAIN, 6, weight=3),
}
"""In running order: procedures that often end early come first, so that their time goes to the others."""
