"""Steps whose answer depends on global state, and steps that change global state and restore it.

Most calls return the same under every state. So programs that change states need calls that do not. Examples are new
tensors and type promotion, which depend on the default dtype and device, and matrix products under autocast. Others are
empty memory, which deterministic mode fills, and results that autograd records or not. Devices draw different random
numbers, so a step checks a property of the device instead: whether a seed repeats its numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from conformance.program.steps import predicates
from conformance.program.steps.draw import MOST_ELEMENTS, Draw, DrawContext, category, tensor_of
from conformance.program.steps.op import COMPUTE, DEFINED, FUNCTION, LOSSY, MOVE, QUERY, Json, Op, Step, tensor
from conformance.program.steps.rows import Given, row
from conformance.program.steps.states import OF_STEPS, STATES, ordered, promises
from conformance.standalone.moving import storage_key

NAME = "state"
"""Name of the family."""

SEEDED = ("rand", "randn", "randint", "randperm", "bernoulli", "dropout", "uniform_", "normal_", "random_",
          "exponential_")  # fmt: skip
WARNED = ("real", "resize", "freedom", "transpose", "mask", "grad", "loss", "meshgrid")
DEVICE: Json = {"device": 0}
RECORDED = "mul.recorded"


def _integers(t: torch.Tensor) -> bool:
    return category(t.dtype) < 2 and t.numel() > 0


def _size(k: DrawContext) -> list[int]:
    return [k.integer(1, 3) for _ in range(k.integer(1, 2))]


def new(name: str, call: str, rest: Any, needs: str = "", **options: Any) -> Op:
    """Return a row that makes a new tensor without tensor arguments, on the program's device or the default device."""

    def rule(k: DrawContext) -> Step | None:
        args, kwargs = rest(k)
        placed = {} if needs == "default_device" else {"device": DEVICE}
        return Step(name, tuple(args), {**kwargs, **placed}, under=(needs,) if needs else ())

    return Op(name, NAME, COMPUTE, rule, FUNCTION, call, needs=needs, **options)


def _full(k: DrawContext) -> tuple[list[Json], dict[str, Json]]:
    return [_size(k), k.choice((1.5, 2.0, -0.5))], {}


def _arange(k: DrawContext) -> tuple[list[Json], dict[str, Json]]:
    return [0.0, float(k.integer(1, 4)), 0.5], {}


def _tensor(k: DrawContext) -> tuple[list[Json], dict[str, Json]]:
    return [[1.5, float(k.integer(0, 3))]], {}


def _empty(k: DrawContext) -> tuple[list[Json], dict[str, Json]]:
    return [_size(k)], {"dtype": {"dtype": k.choice(k.dtypes)}}


def like(name: str, call: str, rest: Any, **options: Any) -> Op:
    """Return a row that makes new memory from a tensor under "deterministic", where torch fills it."""

    def rule(k: DrawContext) -> Step | None:
        start = k.pick(predicates.always)
        return Step(name, (tensor(start), *rest(k)), under=("deterministic",)) if start else None

    return Op(name, NAME, COMPUTE, rule, call=call, needs="deterministic", **options)


def _whole_divisor(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.choice((2, 4)) if k.chance(1, 2) else tensor_of(2)]


def _chosen(k: DrawContext) -> Step | None:
    name = k.pick(_integers)
    return Step("where.state", (k.mask(k[name].size()), tensor(name), 1.5)) if name else None


def _rows(t: torch.Tensor) -> bool:
    return t.dtype is torch.float32 and predicates.filled(t)


def _factor(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.constant((t.size(-1), 2), t.dtype)]


def _weight(k: DrawContext, t: torch.Tensor) -> list[Json]:
    return [k.constant((2, t.size(-1)), t.dtype)]


def _beside(k: DrawContext, t: torch.Tensor) -> list[Json]:
    """Draw a tensor that shares the memory of `t`, or `t` itself if there is none; sometimes any tensor."""
    if k.chance(1, 4):
        return [tensor(k.pick(_leaf) or k.name_of(t))]
    other = k.pick(lambda u: _leaf(u) and u is not t and storage_key(u) == storage_key(t))
    return [tensor(other or k.name_of(t))]


def _in_place_of(k: DrawContext, t: torch.Tensor) -> Given:
    """Sometimes let the result take the tensor's name, unless that is an input, so that later steps use the result."""
    results = {name for step in k.shadow.steps for name in step.out}
    name = k.name_of(t)
    return Given([], out=(name,) if name in results and k.chance(1, 2) else ())


def _ordinary(t: torch.Tensor) -> bool:
    return t.dtype is torch.float32 and t.numel() > 0 and bool((t.detach().abs() <= MOST_ELEMENTS).all())


def _leaf(t: torch.Tensor) -> bool:
    return t.is_leaf and not t.is_inference()


state = functools.partial(row, family=NAME)
dtyped = functools.partial(state, fits=_integers, form=FUNCTION)
cast = functools.partial(state, fits=_rows, effect=LOSSY, form=FUNCTION)
copied = functools.partial(state, effect=MOVE, form=DEFINED)


TOPICS: dict[str, tuple[str, ...]] = {
    **{name: state.suits for name, state in OF_STEPS.items()},
    "copies": ("pickled", "pickled_together", "deepcopied", "deepcopied_together"),
    "random numbers": ("seeded", "generated"),
    "warnings": ("warned",),
    "garbage": ("collected",),
}
"""Topics of programs that change states, each with the steps that suit it. A topic is a state or one of the others."""

LAST = Step("global_state")
"""Last step of such a program: it checks that all global state was restored."""


def suited(k: DrawContext, topic: str, families: Mapping[str, Iterable[Op]]) -> list[Op]:
    """Return the rows that suit this topic and that fit some tensor of the program."""
    named = dict.fromkeys(op for ops in families.values() for op in ops if op.name in TOPICS[topic])
    return [op for op in named if op.fits is None or k.holds(op.fits)]


def under(k: DrawContext, topic: str) -> tuple[str, ...]:
    """Draw the states of a step: mostly the topic's own state or none, sometimes another or both."""
    other, own = k.choice(tuple(OF_STEPS)), ((topic,) if topic in OF_STEPS else ())
    chosen = k.choice((own, (), own, (), (other,), (*own, other)))
    return ordered(chosen if sum(STATES[name].wraps for name in chosen) < 2 else chosen[:1])


WEIGHT = {NAME: 20, "view": 3, "setitem": 3, "arithmetic": 3, "copy": 2, "out of place": 3, "autograd": 2}
"""Weight of a family in programs that change states. Other families have weight 1."""


def draw(
    k: DrawContext,
    families: Mapping[str, list[Op]],
    topic: str,
    most: int,
    choose: Callable[[list[str]], Op],
    offer: Callable[[Op, tuple[str, ...]], Step | None],
) -> None:
    """Draw a step that suits the topic, or any step of the families, and offer it under drawn states or none.

    Then mostly repeat the call under other states: this finds answers that the device cached under the first states."""
    states, suits = under(k, topic), suited(k, topic, families)
    names = [family for family in families for _ in range(WEIGHT.get(family, 1))]
    op = k.choice(suits) if suits and k.chance(1, 2) else choose(names)
    step = offer(op, states)
    for _ in range(2):
        if step is None or len(k.shadow.steps) >= most or not k.chance(2, 3):
            return
        step = k.shadow.offer(again(k, step, topic, op.needs))


def open_with(
    k: DrawContext,
    families: Mapping[str, Iterable[Op]],
    topic: str,
    turn: int,
    most: int,
    offer: Callable[[Op, tuple[str, ...]], Step | None],
) -> None:
    """Make one call three times: outside, inside and outside of the topic's state, or the reverse. The turn chooses the
    call and the order, so that every call that suits the state occurs in both. Topics with the same calls share turns.

    An answer that is kept for one side of the state, or for one thread, is wrong at the third call at the latest."""
    rows = suited(k, topic, families)
    if topic not in STATES or not rows:
        return
    alike = [name for name in TOPICS if TOPICS[name] == TOPICS[topic]]
    reverse, at = divmod(turn * len(alike) + alike.index(topic), len(rows))
    op, order = rows[at], ((topic,), (), (topic,)) if reverse % 2 else ((), (topic,), ())
    step = offer(op, order[0])
    for states in order[1:]:
        if step is not None and len(k.shadow.steps) < most:
            step = k.shadow.offer(repeated(step, states, op.needs))


def place(d: Draw, topic: str, dtypes: Sequence[str]) -> tuple[str, str, str] | None:
    """Return mostly a family, layout and dtype for the first input, so that calls that depend on the state fit it."""
    dtype, layout = STATES[topic].dtype if topic in STATES else "float32", d.choice(("contiguous", "permuted", "gaps"))
    return (NAME, layout, dtype) if dtype in dtypes and d.chance(3, 4) else None


def promising(step: Step, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the given states without those in which torch does not define the step.

    A state that wraps a single call is also removed for a loop."""
    every = [inner.op for inner in step.body] or [step.op]
    return tuple(
        name for name in names if all(promises(name, op) for op in every) and not (step.body and STATES[name].wraps)
    )


def again(k: DrawContext, step: Step, topic: str, needs: str) -> Step:
    """Return the same call outside of its states, or under a state if it was outside. Its results get new names."""
    outside = step.under == ((needs,) if needs else ())
    own = (topic,) if topic in STATES and k.chance(2, 3) else under(k, topic)
    return repeated(step, own if outside else (), needs)


def repeated(step: Step, names: tuple[str, ...], needs: str) -> Step:
    """Return the same call under these states and the one that it needs. Its results get new names."""
    return replace(step, under=ordered((*((needs,) if needs else ()), *promising(step, names))), out=(), raises=None)


def question(name: str, kinds: tuple[str, ...] = (), seeds: bool = False, **options: Any) -> Op:
    """Return a row that queries the device itself."""

    def rule(k: DrawContext) -> Step | None:
        return Step(name, (*([k.choice(kinds)] if kinds else []), *([k.integer(0, 99)] if seeds else []), DEVICE))

    options.setdefault("draw", rule)

    return Op(name, NAME, QUERY, form=DEFINED, **options)


ROWS = [
    dtyped("true_divide.state", _whole_divisor, effect=LOSSY, call="true_divide", weight=2),
    dtyped("sqrt.state", effect=LOSSY, call="sqrt"),
    dtyped("sigmoid.state", effect=LOSSY, call="sigmoid"),
    dtyped("add.state", lambda k, t: [k.choice((1.5, 0.5))], effect=COMPUTE, call="add"),
    dtyped("mul.state", lambda k, t: [k.choice((0.5, 2.0))], effect=COMPUTE, call="mul"),
    Op("where.state", NAME, MOVE, _chosen, FUNCTION, "where", fits=_integers),
    new("full.state", "full", _full),
    new("arange.state", "arange", _arange),
    new("linspace.state", "linspace", lambda k: ([0, 4, k.choice((5, 3, 9))], {})),
    new("tensor.state", "tensor", _tensor),
    new("full.here", "full", _full, "default_device"),
    new("arange.here", "arange", _arange, "default_device"),
    new("tensor.here", "tensor", _tensor, "default_device"),
    new("empty.state", "empty", _empty, "deterministic", weight=2),
    like("empty_like.state", "empty_like", lambda k: [], form=FUNCTION),
    like("new_empty.state", "new_empty", lambda k: [_size(k)]),
    state(RECORDED, lambda k, t: [2], predicates.wants_grad, effect=COMPUTE, form=FUNCTION, call="mul", weight=2),
    state("sum.state", fits=predicates.filled_numbers, effect=COMPUTE, form=FUNCTION, call="sum"),
    cast("mm.state", _factor, fits=lambda t: _rows(t) and t.dim() == 2, call="mm"),
    cast("matmul.state", _factor, call="matmul"),
    cast("nn.functional.linear.state", _weight, call="nn.functional.linear"),
    copied("pickled", _in_place_of, fits=_leaf, weight=2),
    copied("pickled_together", _beside, fits=_leaf, results=2, weight=2),
    copied("deepcopied", _in_place_of, fits=_leaf),
    copied("deepcopied_together", _beside, fits=_leaf, results=2),
    copied("collected"),
    state("subnormals", fits=_ordinary, effect=LOSSY, form=DEFINED),
    question("seeded", SEEDED, seeds=True, weight=2),
    question("generated", seeds=True),
    question("warned", WARNED, weight=2),
    question("new_tensors_lie"),
    question("global_state", draw=lambda k: LAST, weight=2),
]
