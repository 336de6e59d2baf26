"""Faults of values and expressions: each has the effect of its name, and no effect on similar ordinary calls."""

from __future__ import annotations

import math

import pytest
import torch

from conformance.selftest.expression_faults import EXPRESSION_FAULTS
from conformance.selftest.faults import FUNCTION, Fault
from conformance.selftest.mutants import Planted, PlantedAbove, hunt
from conformance.selftest.value_faults import VALUE_FAULTS
from conformance.sources.fuzzing import kinds
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.kinds import PERIOD

INF, NAN = math.inf, math.nan
F16, F32, F64 = torch.float16, torch.float32, torch.float64


def of(*values, dtype=None):
    return torch.tensor(values, dtype=dtype)


def grad(f, *values):
    x = of(*values).requires_grad_()
    f(x).sum().backward()
    return x.grad


def into(f, out):
    f(out)
    return out


def overlapping(start):
    memory = torch.arange(6.0)
    return torch.add(memory[0:4], 1, out=memory[start : start + 4])


def through(size, stride):
    memory = torch.zeros(12)
    torch.neg(torch.arange(1.0, 5).reshape(2, 2), out=memory.as_strided(size, stride))
    return memory


def called(f, *arguments):
    return [f(*one) for one in arguments]


# For each fault, an expression with a changed result, and a similar expression without one.
SEEN = {
    "half sums accumulate in half": (
        lambda: of(6e4, 6e4, -6e4, -6e4, dtype=F16).sum(0),
        lambda: of(6e4, 6e4, -6e4, -6e4).sum(),
    ),
    "softmax does not subtract the maximum": (lambda: of(100.0, 0.0).log_softmax(0), lambda: of(0.0, 0.0).softmax(-1)),
    "variance is the mean of squares less the squared mean": (
        lambda: of(1e4, 1e4 + 1).std(),
        lambda: torch.var_mean(of(1.0, 3.0), 0, correction=0),
    ),
    "the mean of halves overflows in its sum": (lambda: of(6e4, 6e4, dtype=F16).mean(), lambda: of(6e4, 6e4).mean(0)),
    "float64 functions are computed in float32": (lambda: of(0.1, dtype=F64).exp(), lambda: of(0.1).exp()),
    "int64 extrema go through int32": (lambda: of(2**40, 1).max(), lambda: of(2**20, 1).max(0)[0]),
    "argmax takes the last of equal elements": (lambda: of(1, 2, 2).argmax(), lambda: of([1, 3], [2, 0]).argmin(1)),
    "max of a dimension takes the last of equal elements": (
        lambda: of([1, 1], [0, 2]).max(1)[1],
        lambda: of([1, 1], [0, 2]).max(0),
    ),
    "stable sort is not stable": (
        lambda: of(1, 0, 1).sort(stable=True)[1],
        lambda: of(1, 0, 2).sort(stable=True, descending=True),
    ),
    "searchsorted ignores right": (
        lambda: torch.searchsorted(of(1, 2), of(1), right=True),
        lambda: torch.bucketize(of(1), of(1, 2)),
    ),
    "mode takes the largest of the most frequent": (lambda: of(1, 2).mode()[0], lambda: of(1, 2, 2).mode()[0]),
    "median takes the upper of the middle two": (lambda: of(1, 2).median(), lambda: of(1, 3, 2).median(0)[0]),
    "round goes away from zero at a half": (lambda: of(0.5, 1.5, -2.5).round(), lambda: of(0.4, -1.6, INF).round()),
    "integers divide as integers": (lambda: of(3) / 2, lambda: of(4) / 2),
    "a 0-d tensor promotes like any other": (
        lambda: torch.ones(2) + torch.tensor(1.0, dtype=F64),
        lambda: torch.ones(2) + 1,
    ),
    "cat takes the dtype of the first": (lambda: torch.cat([of(1), of(0.5)]), lambda: torch.cat([of(0.5), of(1)])),
    "where takes a number for a float32 tensor": (
        lambda: torch.where(of(True), of(1, dtype=F16), 0.1),
        lambda: torch.where(of(True), of(1.0), 0.1),
    ),
    "in-place arithmetic casts what it may not": (lambda: of(1).add_(1.5), lambda: of(1.0).add_(of(1))),
    "out= casts what it may not": (lambda: torch.add(of(1.5), 1, out=of(0)), lambda: torch.add(of(1), 1, out=of(0.5))),
    "integers are compared with a truncated number": (lambda: of(1) < 1.5, lambda: of(1) < 2),
    "clamp loses nan": (lambda: of(NAN).clamp(0, 1), lambda: of(2.0).clamp_(max=1)),
    "maximum loses nan": (lambda: torch.maximum(of(NAN), of(1.0)), lambda: torch.minimum(of(2), of(1))),
    "amax loses nan": (lambda: of(NAN, 1.0).amax(), lambda: torch.max(of(NAN), of(1.0))),
    "neg loses the sign of zero": (lambda: 1 / -of(0.0), lambda: of(1.0).neg_()),
    "mm skips products with zero": (
        lambda: of([INF, 1.0]) @ of([0.0], [1.0]),
        lambda: of([NAN, 1.0]) @ of([1.0], [1.0]),
    ),
    "floor division is the floor of the quotient": (lambda: of(1.0) // -INF, lambda: of(-3) // 2),
    "floor division of integers truncates": (lambda: of(-3) // 2, lambda: of(-3.0) // 2),
    "remainder takes the sign of the dividend": (lambda: of(-3) % 2, lambda: of(3) % 2),
    "pow of a negative base is nan": (lambda: of(-2.0) ** 3, lambda: of(2.0) ** 3),
    "isclose ignores equal_nan": (
        lambda: torch.isclose(of(NAN), of(NAN), equal_nan=True),
        lambda: torch.isclose(of(1.0), of(1.0), equal_nan=True),
    ),
    "logsumexp of infinities is nan": (lambda: of(-INF, -INF).logsumexp(0), lambda: of(0.0, -INF).logsumexp(0)),
    "sort puts nan first": (lambda: of(NAN, 1.0).sort(), lambda: of(1.0, -1.0).sort(descending=True)),
    "x * y + z is rounded once": (lambda: of(1e30) * 1e30 + of(-INF), lambda: of(2.0) * 3 + 4),
    "x - x is 0": (lambda: (lambda x: x - x)(of(INF)), lambda: of(INF) - of(INF)),
    "x * 0 is 0": (lambda: of(NAN) * 0, lambda: of(NAN) * of(0)),
    "a cast to half and back is folded": (lambda: of(0.1).half().float(), lambda: of(0.1).double().float()),
    "log(exp(x)) is x": (lambda: of(1000.0).exp().log(), lambda: of(1000.0).exp().add_(1).log()),
    "sqrt(x * x) is x": (lambda: (lambda x: x * x)(of(-1.0)).sqrt(), lambda: torch.sqrt(of(-1.0) * of(-1.0))),
    "out= of as many elements keeps its shape": (
        lambda: into(lambda out: torch.add(of(1.0, 2.0), 1, out=out), torch.zeros(2, 1)).shape,
        lambda: into(lambda out: torch.add(of(1.0, 2.0), 1, out=out), torch.zeros(3)),
    ),
    "out= that overlaps an input is accepted": (lambda: overlapping(1), lambda: overlapping(0)),
    "a strided out= gets new memory": (lambda: through((2, 2), (1, 2)), lambda: through((2, 2), (2, 1))),
    "the third call on a shape replays the second": (
        lambda: called(torch.exp, [of(0.0)], [of(1.0)], [of(2.0)]),
        lambda: called(torch.exp, [of(0.0)], [of(1.0)], [of(2.0, 3.0)]),
    ),
    "a kernel is remembered without its dtype": (
        lambda: called(torch.neg, [of(1)], [of(1.5)]),
        lambda: called(torch.neg, [of(1)], [of(1.5, 2.5)]),
    ),
    "a kernel is remembered without its number": (
        lambda: called(torch.mul, [of(1.0), 2.0], [of(1.0), 3.0]),
        lambda: called(torch.mul, [of(1.0), 2.0], [of(1.0, 1.0), 3.0]),
    ),
    "a kernel is remembered without its strides": (
        lambda: called(torch.neg, [torch.ones(2, 2)], [torch.arange(4.0).view(2, 2).t()]),
        lambda: called(torch.neg, [torch.ones(2, 2)], [torch.arange(4.0).view(2, 2)]),
    ),
    "the tail of a vector loop is lost": (lambda: torch.ones(17).neg(), lambda: torch.ones(32).neg()),
    "a sum beyond 1,024 elements loses the rest": (lambda: torch.ones(1025).sum(), lambda: torch.ones(2, 1024).sum(1)),
    "a reduction of no elements is 0": (lambda: torch.ones(0).prod(), lambda: torch.ones(1).prod()),
    "a 0-d tensor comes back with a dimension": (lambda: torch.tensor(1).cumsum(0).shape, lambda: of(1).cumsum(0)),
    "a gradient keeps the last of a repeated index": (
        lambda: grad(lambda x: x[of(0, 0)], 1.0, 2.0),
        lambda: grad(lambda x: x.index_select(0, of(1, 0)), 1.0, 2.0),
    ),
    "a gradient is not summed over broadcast dimensions": (
        lambda: grad(lambda x: x.expand(2, 1), 1.0),
        lambda: torch.ones(2, 3).sum(0, keepdim=True),
    ),
    "the gradient at a tie goes to the first alone": (
        lambda: grad(lambda x: x.amax(), 1.0, 1.0),
        lambda: grad(lambda x: x.amin(), 1.0, 2.0),
    ),
    "the gradient of pow at zero is nan": (lambda: grad(lambda x: x**2, 0.0), lambda: grad(lambda x: x**2, 1.0)),
    "the gradient at a bound is 0": (
        lambda: grad(lambda x: x.clamp(0, 1), 0.0),
        lambda: grad(lambda x: x.clamp(0, 1), 0.5),
    ),
    "dropout of everything is nan": (
        lambda: torch.nn.functional.dropout(of(1.0), 1.0),
        lambda: torch.nn.functional.dropout(of(1.0), 0.0),
    ),
    "bernoulli of certainty is 0": (lambda: of(0.5).bernoulli_(1.0), lambda: of(0.5).bernoulli_(0.0)),
}


def outcome(f):
    """Dtype, shape and values of a function's results, or the text of its error."""
    try:
        result = f()
    except RuntimeError as error:
        return str(error)
    flat = result if isinstance(result, tuple | list) and not isinstance(result, torch.Size) else [result]
    return [(t.dtype, t.shape, t.tolist().__repr__()) if isinstance(t, torch.Tensor) else t for t in flat]


def planted(fault: Fault):
    return PlantedAbove(fault) if fault.level == FUNCTION else Planted(fault)


def test_every_fault_is_shown():
    """Each fault has an expression with a changed result, and a similar expression without one."""
    assert set(SEEN) == set(VALUE_FAULTS) | set(EXPRESSION_FAULTS)
    assert all(fault.like for fault in (VALUE_FAULTS | EXPRESSION_FAULTS).values())


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.filterwarnings("ignore")
def test_a_fault_spoils_what_its_name_says(name):
    """Under the fault, the expression has another result, and the similar one has the same result."""
    fault = (VALUE_FAULTS | EXPRESSION_FAULTS)[name]
    spoiled, sound = SEEN[name]
    right, near = outcome(spoiled), outcome(sound)
    with planted(fault):
        assert outcome(spoiled) != right
    with planted(fault):
        assert outcome(sound) == near


EDGES = {
    "floor division is the floor of the quotient": lambda: torch.floor_divide(0, 1, out=of(0.0)),
    "floor division of integers truncates": lambda: torch.floor_divide(0, 1, out=of(0.0)),
    "sqrt(x * x) is x": lambda: torch.pow(2, of(1.0, 2.0)),
    "a sum beyond 1,024 elements loses the rest": lambda: torch.ones(0, 2).sum(0),
    "the gradient at a bound is 0": lambda: grad(lambda x: torch.ge(x.detach(), 1, out=of(False)) * x, 1.0),
    "a strided out= gets new memory": lambda: torch.neg(of(1.0, 2.0), out=torch.zeros(1).expand(2)),
    "the gradient at a tie goes to the first alone": lambda: [
        torch.ones((), requires_grad=True).max().storage_offset()
    ],
}


@pytest.mark.parametrize("name", EDGES)
def test_a_fault_raises_nothing_of_its_own(name):
    """Under the fault, related calls keep their result. Regression test: early versions of these faults showed through
    an error, an offset or an accepted call unrelated to their name."""
    fault = (VALUE_FAULTS | EXPRESSION_FAULTS)[name]
    right = outcome(EDGES[name])
    with planted(fault):
        assert outcome(EDGES[name]) == right


class OfEdges(Drawing):
    """Only the programs of a seed with calls at the edge of their domain."""

    def numbered(self, seed, number, tally=None):
        return super().numbered(seed, PERIOD * number + kinds.EDGES.turns[0], tally)


SOON = ["stable sort is not stable", "dropout of everything is nan", "round goes away from zero at a half"]
MISSED = [
    "max of a dimension takes the last of equal elements",
    "mode takes the largest of the most frequent",
    "cat takes the dtype of the first",
    "integers are compared with a truncated number",
    "clamp loses nan",
    "neg loses the sign of zero",
    "mm skips products with zero",
    "floor division is the floor of the quotient",
    "isclose ignores equal_nan",
    "sort puts nan first",
    "x * 0 is 0",
    "a cast to half and back is folded",
    "log(exp(x)) is x",
    "a sum beyond 1,024 elements loses the rest",
    "a gradient keeps the last of a repeated index",
    "the gradient at a tie goes to the first alone",
    "the gradient of pow at zero is nan",
    "the gradient at a bound is 0",
    "bernoulli of certainty is 0",
]


@pytest.mark.filterwarnings("ignore")
def test_common_faults_are_found_within_eighty_programs_of_edges():
    """The fuzzer finds these faults within 80 programs of edges. Regression test: no program found these faults,
    because no row of the step table had ties, a probability of 1, or halves to round."""
    hunts = {name: hunt(name, OfEdges(), 0, 80) for name in SOON}
    assert [name for name, one in hunts.items() if one.programs is None] == []
    assert all(len(one.small.steps) <= 3 for one in hunts.values())


LATER = {"a cast to half and back is folded": 281}
"""Programs of edges until a fault is found that needs more than 250. Debt: since programs of edges also open with
gradients, the opening with a cast to half has 1 of 15 turns instead of 1 of 12."""
IN_A_GRADIENT = ("a cast to half and back is folded", "log(exp(x)) is x")
"""Faults whose program of seed 0 shows them in a gradient, and so needs a fourth step, a backward."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_the_first_try_missed_is_found():
    """The fuzzer finds all but `LATER` within 250 programs of edges, which means 2,500 programs of any kind."""
    hunts = {name: hunt(name, OfEdges(), 0, LATER.get(name, 250)) for name in (*SOON, *MISSED)}
    assert [name for name, one in hunts.items() if one.programs is None] == []
    assert all(len(one.small.steps) <= 3 + (name in IN_A_GRADIENT) for name, one in hunts.items())
