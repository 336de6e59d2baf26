"""Results that PyTorch leaves open: ties, NaN propagation, signed zeros, large rounding errors.

Defines `RULES`. A subject names the rules that hold for it. Each rule marks the elements of a result or gradient that
are open, and the target may differ there. An op that may spread a nan over its result still may not drop one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from conformance.declare.declaration import UNDEFINED
from conformance.engine.executor import Executor, Subject
from conformance.engine.loading import reference
from conformance.engine.rounding import as_good
from conformance.engine.target import Target
from conformance.standalone.layouts import laid_out
from conformance.standalone.moving import map_leaves
from conformance.standalone.observation import Observation
from conformance.standalone.oracles import Mismatch, Tolerance, differing, show
from conformance.standalone.rounding import subject as subject_of

if TYPE_CHECKING:
    from conformance.engine.executor import Running, Transform
    from conformance.engine.judge import Judged

FAULT, TIES, BY_NAN, GRADIENT, ZEROS, SPREAD, CANCELS, DIRECTION, SINGULAR, REPEATED, CHOICE = UNDEFINED

SPECIAL, LARGE, SIGNED_ZEROS = "special values", "large values", "signed zeros"
"""Rules that follow from the values of the inputs. With special values, torch CPU's loops may disagree with each other.
With large values, its rounding, or an overflow on the way, may dominate a result. Signed zeros are part of the answer.
"""

DIM_SECOND = ("topk", "kthvalue")
"""Ops whose second argument after the input is `dim`; it is the first argument of the others with ties."""


@dataclass(frozen=True)
class Arguments:
    """The arguments of the call on trial, on the CPU, and all input tensors that are strided."""

    op: str
    input: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    tensors: Sequence[torch.Tensor]

    @property
    def finite(self) -> bool:
        """Whether no input has an infinite element or a nan."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors)

    @property
    def dim(self) -> int:
        """The dimension that a call of an op with ties names, or the last one."""
        place = int(self.op in DIM_SECOND)
        return int(self.kwargs.get("dim", self.args[place] if len(self.args) > place else -1))


@dataclass(frozen=True)
class Answers:
    """Both answers to one question: a mismatch of the judge, about tensors of one dtype and shape."""

    subject: Judged
    mismatch: Mismatch
    expected: Observation
    want: torch.Tensor
    got: torch.Tensor

    @functools.cached_property
    def arguments(self) -> Arguments:
        """The arguments of the call on trial."""
        return self.subject.arguments()

    @property
    def of_gradient(self) -> bool:
        """Whether the answers are gradients."""
        return self.mismatch.oracle == "grad"

    def mask(self, holds: bool = False) -> torch.Tensor:
        """Return a bool tensor of the answers' shape with one value."""
        return torch.full(self.want.shape, holds)


def decides_nothing(
    subject: Judged, mismatch: Mismatch, expected: Observation, actual: Observation, tolerance: Tolerance
) -> bool:
    """Whether target and CPU differ, beyond the tolerance, only in elements that a rule of the subject marks as
    open."""
    rules = subject.terms.rules
    want, got = (subject_of(mismatch, seen) for seen in (expected, actual))
    if want is None or got is None or (want.dtype, want.shape) != (got.dtype, got.shape):
        return False
    answers, wrong = Answers(subject, mismatch, expected, want, got), differing(want, got, False, tolerance)
    for name, rule in RULES.items():
        if name in rules:
            wrong &= ~rule(answers)
            if not bool(wrong.any()):
                return True
    return False


def of_rounding(rules: Collection[str], expected: Observation, actual: Observation) -> bool:
    """Whether only one side reports a singular matrix, which depends on rounding. Nothing can be compared then, since
    only the other side has results and gradients."""
    kinds = [side.error.kind if side.error is not None else "" for side in (expected, actual)]
    return SINGULAR in rules and kinds[0] != kinds[1] and "_LinAlgError" in kinds


def zeros_of_other_sign(subject: Judged, expected: Observation, actual: Observation) -> list[Mismatch]:
    """Return mismatches for zeros of results whose sign differs from the CPU's, where all of the CPU's loops agree."""
    again, inputs, result = again_with_gaps(subject), subject.names_of_inputs(), []
    for name, seen in expected.tensors.items():
        other, got = again.tensors.get(name), actual.tensors.get(name)
        if name.partition("[")[0] in inputs or other is None or got is None or not seen.value.is_floating_point():
            continue
        signs = [side.value.signbit() for side in (seen, got, other)]
        wrong = (seen.value == 0) & (got.value == 0) & (signs[0] != signs[1]) & (signs[0] == signs[2])
        if bool(wrong.any()):
            text = f"{int(wrong.sum())} zeros have the other sign, first at {tuple(wrong.nonzero()[0].tolist())}"
            result.append(Mismatch("value", name, show(seen.value), show(got.value), text))
    return result


def again_with_gaps(subject: Judged) -> Observation:
    """Return torch CPU's answer on inputs with gaps, for which it has no vectorized loops."""
    return Executor(reference()).run(LaidOut(subject, "gaps")).last


@dataclass(frozen=True)
class LaidOut:
    """A subject on inputs in another layout of `standalone/layouts.py`, such as `gaps`."""

    subject: Subject
    layout: str

    def inputs(self) -> tuple[Any, Collection[int]]:
        (tree, kept), copies = self.subject.inputs(), dict[int, Any]()
        return map_leaves(tree, lambda leaf: copies.setdefault(id(leaf), laid_out(leaf, self.layout, kept))), kept

    def begin(self, inputs: Any, target: Target, transform: Transform | None) -> Running:
        return self.subject.begin(inputs, target, transform)


def _of_loops(answers: Answers) -> torch.Tensor:
    """Elements where the CPU differs from itself, as its vectorized and scalar loops do for some special values."""
    again, want = subject_of(answers.mismatch, again_with_gaps(answers.subject)), answers.want
    if again is None or (again.dtype, again.shape) != (want.dtype, want.shape):
        return answers.mask()
    return differing(want, again, False, answers.subject.terms.tolerance)


def _as_good(answers: Answers) -> torch.Tensor:
    """Elements that are about as near to the answer in float64 as the CPU's worst element."""
    wide, want = answers.subject.in_float64([answers.mismatch], answers.expected), answers.want
    right = subject_of(answers.mismatch, wide.last) if wide is not None else None
    if right is None or right.shape != want.shape or not want.numel():
        return answers.mask()
    return as_good(want, answers.got, right)


def _at_nan(answers: Answers) -> torch.Tensor:
    if not answers.of_gradient:
        return answers.mask()
    x = answers.arguments.input.detach()
    return x.isnan() if x.shape == answers.want.shape else answers.mask()


def _cancelled(answers: Answers) -> torch.Tensor:
    return _as_good(answers) | (_spread(answers) if answers.want.is_complex() else answers.mask())


def _spread(answers: Answers) -> torch.Tensor:
    return answers.mask() if answers.arguments.finite else ~answers.got.isfinite()


def _directed(answers: Answers) -> torch.Tensor:
    both = ~answers.got.isfinite() & ~answers.want.isfinite()
    return both if answers.want.is_complex() else answers.mask()


def _tied(answers: Answers) -> torch.Tensor:
    """Indices that name equal elements of the input on both sides, none of them twice; nan equals nan. Gradients that
    may be distributed differently among equal elements."""
    if answers.of_gradient:
        return _shared(answers, BY_NAN in answers.subject.terms.rules)
    x, want = answers.arguments.input, answers.want
    if answers.arguments.op == "mode":
        return _as_frequent(answers)
    if want.dtype != torch.int64 or answers.arguments.kwargs.get("stable") or not x.dim():
        return answers.mask()
    dim = answers.arguments.dim
    indices = [side if side.dim() == x.dim() else side.unsqueeze(dim) for side in (want, answers.got)]
    if any(bool(((index < 0) | (index >= x.shape[dim])).any()) for index in indices):
        return answers.mask()
    expected, actual = (x.detach().gather(dim, index) for index in indices)
    twice = (indices[1].sort(dim).values.diff(dim=dim) == 0).any(dim, keepdim=True)
    return (((expected == actual) | (expected.isnan() & actual.isnan())) & ~twice).view(want.shape)


def _as_frequent(answers: Answers) -> torch.Tensor:
    """Values of `torch.mode`, and indices of values, that are as frequent as the CPU's: torch names none of several."""
    x, dim, place = answers.arguments.input.detach(), answers.arguments.dim, answers.mismatch.where.rstrip("]")[-1:]
    sides = [side if side.dim() == x.dim() else side.unsqueeze(dim) for side in (answers.want, answers.got)]
    if not x.dim() or place not in ("0", "1"):
        return answers.mask()
    if place == "1":
        if any(bool(((index < 0) | (index >= x.shape[dim])).any()) for index in sides):
            return answers.mask()
        sides = [x.gather(dim, index) for index in sides]
    expected, actual = ((x == side).sum(dim, keepdim=True) for side in sides)
    return ((expected == actual) & (expected > 0)).view(answers.want.shape)


def _unordered(answers: Answers) -> torch.Tensor:
    """Results chosen among elements that include a nan, if the target's result is one of these elements or its
    index."""
    x, got = answers.arguments.input, answers.got
    if answers.of_gradient or not x.dim() or not x.is_floating_point():
        return answers.mask()
    dim = answers.arguments.dim
    side = got if got.dim() == x.dim() else got.unsqueeze(dim)
    if got.dtype == torch.int64:
        among = (side >= 0) & (side < x.shape[dim])
    else:
        among = ((x == side) | (x.isnan() & side.isnan())).any(dim, keepdim=True)
    return (x.isnan().any(dim, keepdim=True) & among).view(answers.want.shape)


def _shared(answers: Answers, by_nan: bool) -> torch.Tensor:
    """Gradients that may be distributed differently among equal elements; their sums must agree. With `by_nan`, the
    same holds among all elements next to a nan."""
    op, kwargs, args = answers.arguments.op, answers.arguments.kwargs, answers.arguments.args
    source, want = answers.arguments.input.detach(), answers.want
    if want.shape != source.shape or not source.dim():
        return answers.mask()
    named = "dim" in kwargs or len(args) > (op in DIM_SECOND)
    dim = 0 if op == "msort" else answers.arguments.dim
    whole = not named and op in ("median", "nanmedian")
    x, *sides = (tensor.flatten() if whole else tensor.transpose(dim, -1) for tensor in (source, want, answers.got))
    equal = (x.unsqueeze(-1) == x.unsqueeze(-2)) | (x.isnan().unsqueeze(-1) & x.isnan().unsqueeze(-2))
    if by_nan:
        equal |= x.isnan().any(-1)[..., None, None]
    sums = [torch.where(equal, side.unsqueeze(-2), 0).sum(-1) for side in sides]
    # The tolerance is torch.testing's for float32. The sums have few terms, each of the size of the incoming gradient.
    same = torch.isclose(sums[0], sums[1], rtol=1.3e-6, atol=1e-6, equal_nan=True)
    return same.view(want.shape) if whole else same.transpose(dim, -1)


RULES: dict[str, Callable[[Answers], torch.Tensor]] = {
    GRADIENT: _at_nan,
    TIES: _tied,
    BY_NAN: _unordered,
    SINGULAR: lambda answers: answers.mask(True),
    SPREAD: _spread,
    DIRECTION: _directed,
    SPECIAL: _of_loops,
    CANCELS: _cancelled,
    LARGE: _as_good,
}
"""The rules by name, the cheapest first: each returns the elements at which torch CPU's answer decides nothing."""

KNOWN = frozenset({*RULES, SIGNED_ZEROS, CHOICE})
"""The names that a subject may use."""
