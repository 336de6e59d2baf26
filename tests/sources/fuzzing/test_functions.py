"""Programs of topics of functions: their shares, and detection of planted faults that only such programs show."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.engine.loading import describe_target, load_target
from conformance.engine.target import Target, TargetFacts
from conformance.program.calls import judge_program
from conformance.program.script import script
from conformance.program.shadow import reference
from conformance.program.steps import functions, snippets
from conformance.program.steps.draw import Refused
from conformance.program.steps.table import FAMILIES, OPS
from conformance.program.unsupported import unsupported_reason, unsupported_steps
from conformance.run import options
from conformance.run.campaign.drawing_counts import Tally
from conformance.run.messages import Limits
from conformance.sources.fuzzing.command import FLAGS, USUAL, plan_of
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.kinds import FUNCTIONS, PERIOD, kind_of, topics_of

aten = torch.ops.aten

DRAWING = Drawing(compiled=True)
TOPICS = dict(functions.TOPICS)

PROGRAMS = 2_000
"""Number of programs of a campaign. One in `PERIOD` has topics of functions."""

BESIDE = 150
"""Number of other programs that must not show a fault."""


class _Operators(TorchDispatchMode):
    """Calls `fault(op, args, kwargs)` in place of each operator. `seen` are the operators called before."""

    def __init__(self, fault: Callable[..., object]) -> None:
        super().__init__()
        self.fault, self.seen, self.kept = fault, set(), None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = self.fault(self, func, args, kwargs or {})
        self.seen.add(func)
        return result


def _saturates(mode, op, args, kwargs):
    dtype = kwargs.get("dtype")
    if op is aten._to_copy.default and dtype in (torch.int8, torch.uint8, torch.int16) and args[0].is_floating_point():
        args = (args[0].clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max), *args[1:])
    return op(*args, **kwargs)


def _keeps_the_first_dtype(mode, op, args, kwargs):
    result = op(*args, **kwargs)
    return result.to(args[0].dtype) if op in (aten.atan2.default, aten.fmax.default, aten.hypot.default) else result


def _ignores_dtype(mode, op, args, kwargs):
    if op is aten.cumsum.default and mode.seen & {aten.full.default, aten.ones.default, aten.arange.default}:
        kwargs = {}
    return op(*args, **kwargs)


def _accepts_numbers(mode, op, args, kwargs):
    try:
        return op(*args, **kwargs)
    except RuntimeError as error:
        if "overflow" in str(error):
            return args[0].clone()
        raise


WRAPPING = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)
DECIDING = (aten.floor_divide.default, aten.fmod.Scalar, aten.remainder.Scalar, aten.gt.Tensor, aten.lt.Tensor)


def _wraps_late(mode, op, args, kwargs):
    """A narrow integer is wrapped only when it is stored; divisions and comparisons use the sum before that."""
    result = op(*args, **kwargs)
    mode.kept = mode.kept or {}
    if op in WRAPPING and result.dtype in (torch.int32, torch.int16, torch.int8):
        wide = op(*(one.long() if isinstance(one, torch.Tensor) else one for one in args), **kwargs)
        mode.kept[id(result)] = result, wide
    if op in DECIDING and id(args[0]) in mode.kept:
        return op(mode.kept[id(args[0])][1], *args[1:], **kwargs).to(result.dtype)
    return result


def _floors_quotients(mode, op, args, kwargs):
    floors = op is aten.floor_divide.default or kwargs.get("rounding_mode") == "floor"
    return torch.floor(args[0] / args[1]) if floors and args[0].is_floating_point() else op(*args, **kwargs)


def _negative_indices(mode, op, args, kwargs):
    if op is aten.index_add.default and args[0].dim() and bool((args[2] < 0).any()):
        args = (*args[:2], args[2] % args[0].size(args[1]), *args[3:])
    return op(*args, **kwargs)


def _computes_in_float(mode, op, args, kwargs):
    try:
        return op(*args, **kwargs)
    except NotImplementedError:
        return op(*(one.float() if isinstance(one, torch.Tensor) else one for one in args), **kwargs)


def _flips_nothing(mode, op, args, kwargs):
    products = {aten.mm.default, aten.add.Tensor, aten.t.default}
    return args[0].clone() if op is aten.flip.default and mode.seen >= products else op(*args, **kwargs)


def _reads_before_the_write(mode, op, args, kwargs):
    if op in (aten.index_put_.default, aten.index_copy_.default):
        mode.kept = args[0].clone()
    if op in (aten.flip.default, aten.roll.default) and mode.kept is not None and mode.kept.shape == args[0].shape:
        args = (mode.kept, *args[1:])
    return op(*args, **kwargs)


def _positions_before_the_flip(mode, op, args, kwargs):
    result = op(*args, **kwargs)
    if op is aten.flip.default:
        mode.kept = result, args[0]
    found = mode.kept is not None and args and args[0] is mode.kept[0]
    return op(mode.kept[1], *args[1:], **kwargs) if found and op in POSITIONED else result


POSITIONED = (
    aten.argmax.default,
    aten.argmin.default,
    aten.sort.default,
    aten.max.dim,
    aten.min.dim,
    aten.cummax.default,
)


def _strides_from_the_start(mode, op, args, kwargs):
    """A tensor made inside is read from its first element on, whatever the offset."""
    made = mode.kept is not None and args and any(args[0] is one for one in mode.kept)
    if op is aten.as_strided.default and made:
        args = (*args[:3], 0)
    result = op(*args, **kwargs)
    if op is aten.add.Tensor:
        mode.kept = [*(mode.kept or []), result]
    return result


def _folds_products_with_zero(mode, op, args, kwargs):
    result, other = op(*args, **kwargs), args[1] if len(args) > 1 else 1
    if op is aten.mul.Tensor and result.is_floating_point():
        number = other if not isinstance(other, torch.Tensor) else 1 if other.dim() else other.item()
        return torch.zeros_like(result) if number == 0 else result
    return result


@contextlib.contextmanager
def _region_of_one_dtype() -> Iterator[None]:
    """A region that is compiled for the first dtype answers in it for ever."""

    def compiled(function):
        first = []

        def called(x):
            result = function(x.to(first[0]) if first else x)
            first.append(result.dtype)
            return result * (1 if x.dtype is first[0] else 2)

        return called

    with mock.patch.object(torch.compiler, "nested_compile_region", compiled):
        yield


@contextlib.contextmanager
def _loop_of_its_first_turns() -> Iterator[None]:
    """A loop that is compiled once makes as many turns as in its first call."""
    turns = []

    def looped(is_left, turn, state):
        made = 0
        while made < turns[0] if turns else is_left(*state):
            state, made = turn(*state), made + 1
        turns.append(made)
        return state

    with (
        mock.patch.object(torch, "while_loop", looped),
        mock.patch.object(torch.compiler, "is_compiling", return_value=True),
    ):
        yield


@contextlib.contextmanager
def _scans_forwards() -> Iterator[None]:
    """A scan of the reversed rows returns its results in the order in which it made them."""

    def scanned(turn, state, rows, reverse):
        made = []
        for row in reversed(rows.unbind()) if reverse else rows.unbind():
            state, result = turn(state, row)
            made.append(result)
        return state, torch.stack(made)

    with (
        mock.patch.object(torch._higher_order_ops, "scan", scanned),
        mock.patch.object(torch.compiler, "is_compiling", return_value=True),
    ):
        yield


@contextlib.contextmanager
def _derives_the_forward() -> Iterator[None]:
    """Autograd derives what a function computes, and its own backward is lost."""
    with mock.patch.dict(snippets.GRADIENT_FUNCTIONS, {"saves its result": lambda x: x * 2 + 1}):
        yield


def _returns_its_operand(mode, op, args, kwargs):
    alone = op is aten.cat.default and len(args[0]) == 1
    padded = op is aten.constant_pad_nd.default and not any(args[1])
    return args[0][0] if alone else args[0] if padded else op(*args, **kwargs)


def _half_of_a_difference(mode, op, args, kwargs):
    return (args[0].exp() - (-args[0]).exp()) / 2 if op is aten.sinh.default else op(*args, **kwargs)


def _compares_unrounded(mode, op, args, kwargs):
    compares = op in (aten.eq.Scalar, aten.ne.Scalar, aten.le.Scalar, aten.lt.Scalar, aten.ge.Scalar, aten.gt.Scalar)
    return op(args[0].double() if compares else args[0], *args[1:], **kwargs)


def _returns_what_keeps_its_size(mode, op, args, kwargs):
    result = op(*args, **kwargs)
    resamples = "upsample" in op.name() or "adaptive" in op.name()
    return args[0] if resamples and result.shape == args[0].shape else result


def _allows_overlaps(mode, op, args, kwargs):
    try:
        return op(*args, **kwargs)
    except RuntimeError as error:
        if "single memory location" in str(error):
            return op(args[0], *(one.clone() if isinstance(one, torch.Tensor) else one for one in args[1:]), **kwargs)
        raise


def _accepts(*operators):
    """Return a fault: these operators return their first operand in place of an error."""

    def fault(mode, op, args, kwargs):
        try:
            return op(*args, **kwargs)
        except (RuntimeError, IndexError, NotImplementedError):
            if op in operators:
                return args[0].clone()
            raise

    return fault


@contextlib.contextmanager
def _doubled_jvp() -> Iterator[None]:
    jvp = torch.func.jvp
    with mock.patch.object(torch.func, "jvp", lambda *args: (jvp(*args)[0], 2 * jvp(*args)[1])):
        yield


@contextlib.contextmanager
def _ends_a_generator() -> Iterator[None]:
    def left(number):
        snippets.RECORDERS[0]["append"](number)

    with mock.patch.dict(snippets.RECORDERS[0], {"generator that leaves": left}):
        yield


@contextlib.contextmanager
def _transposed_jacobian() -> Iterator[None]:
    def wrong(function):
        return lambda x: torch.func.jacrev(function)(x).mT

    with mock.patch.object(torch.func, "jacfwd", wrong):
        yield


@contextlib.contextmanager
def _size_as_numbers() -> Iterator[None]:
    with mock.patch.object(torch, "FloatTensor", lambda size: torch.tensor([*size])):
        yield


@contextlib.contextmanager
def _loses_an_append() -> Iterator[None]:
    with mock.patch.dict(snippets.RECORDERS[0], {"append by a method": lambda number: None}):
        yield


FAULTS: dict[str, tuple[str, Callable[..., object]]] = {
    "a conversion saturates": (functions.CONVERSIONS, _saturates),
    "a binary operator keeps the first dtype": (functions.PROMOTION, _keeps_the_first_dtype),
    "a scan of constants ignores dtype=": (functions.CONSTANTS, _ignores_dtype),
    "numbers beyond the dtype are accepted": (functions.SCALARS, _accepts_numbers),
    "a number is compared before it is rounded": (functions.SCALARS, _compares_unrounded),
    "sinh is half of a difference of exponentials": (functions.MAGNITUDES, _half_of_a_difference),
    "an integer wraps after it is compared": (functions.EXTREMES, _wraps_late),
    "a floor division floors the quotient": (functions.EXTREMES, _floors_quotients),
    "index_add counts from the end": (functions.INDICES, _negative_indices),
    "a dtype without a kernel is computed": (functions.DTYPES, _computes_in_float),
    "the flip of a sum of products is lost": (functions.REARRANGED, _flips_nothing),
    "a rearrangement reads what was before a write": (functions.REWRITTEN, _reads_before_the_write),
    "an operation that changes nothing returns its operand": (functions.UNCHANGED, _returns_its_operand),
    "a resampling to the same size returns its operand": (functions.UNCHANGED, _returns_what_keeps_its_size),
    "a write from overlapping memory is accepted": (functions.OVERLAPS, _allows_overlaps),
    "jacfwd returns a transposed Jacobian": (functions.DERIVATIVES, _transposed_jacobian),
    "a legacy constructor takes a size as numbers": (functions.SIZES, _size_as_numbers),
    "positions are those before a flip": (functions.POSITIONS, _positions_before_the_flip),
    "as_strided of an intermediate ignores its offset": (functions.RESTRIDED, _strides_from_the_start),
    "a product with zero is folded to zeros": (functions.ZEROS, _folds_products_with_zero),
    "a region is compiled for one dtype": (functions.REGIONS, _region_of_one_dtype),
    "a loop makes the turns of its first call": (functions.REGIONS, _loop_of_its_first_turns),
    "a scan of reversed rows returns them reversed": (functions.REGIONS, _scans_forwards),
    "the backward of a function is lost": (functions.GRADIENTS, _derives_the_forward),
    "an append by a method is lost": (functions.SIDE_EFFECTS, _loses_an_append),
    "a generator that leaves the function is consumed": (functions.SIDE_EFFECTS, _ends_a_generator),
    "a convolution accepts any sizes": (functions.REFUSALS, _accepts(aten.convolution.default)),
    "probabilities are not checked": (functions.DOMAINS, _accepts(aten.bernoulli.default)),
    "jvp returns twice the derivative": (functions.TRANSFORMED, _doubled_jvp),
}
"""Planted faults of a compiler: the topic that shows each, and the fault in operators or in Python."""


class Compiler(Target):
    """A compiler on torch CPU with a fault; without one, it changes nothing."""

    name = "faulty compiler"
    facts = TargetFacts(transforms_program=True, compiles=True, follows_eager=True)

    def __init__(self, fault: Callable[..., object] | None = None) -> None:
        super().__init__()
        self.fault = fault

    def transform(self, function):
        def transformed(*inputs):
            with self.mode():
                return function(*inputs)

        return transformed

    def mode(self):
        if self.fault is None:
            return contextlib.nullcontext()
        return self.fault() if hasattr(self.fault, "__wrapped__") else _Operators(self.fault)


def topics_at(drawing: Drawing, number: int) -> tuple[tuple[str, int], ...]:
    """The topics of program `number` of seed 0, with their earlier turns; none of another kind."""
    kind, index = kind_of(drawing, number)
    return topics_of(drawing, 0, index) if kind is FUNCTIONS else ()


def of_topic(topic: str) -> Iterator[int]:
    """Numbers of the programs with a topic among the first `PROGRAMS` of seed 0."""
    numbers = range(FUNCTIONS.turns[0], PROGRAMS, PERIOD)
    return (number for number in numbers if topic in dict(topics_at(DRAWING, number)))


def fails(target: Target, drawing: Drawing, number: int) -> bool:
    program = drawing.numbered(0, number)
    unsupported = unsupported_reason(program, target.facts)
    return not unsupported and bool(judge_program(program, target, locate=False).mismatches)


class TestDrawing:
    def test_topics_take_turns(self):
        """Each topic has a turn before any has another, and nearly all take it."""
        tally, wanted = Tally(), list[tuple[str, int]]()
        for number in range(FUNCTIONS.turns[0], 2 * PERIOD * len(functions.NAMES), PERIOD):
            wanted += topics_at(DRAWING, number)
            program = DRAWING.numbered(0, number, tally)
            assert len(program.steps) <= functions.STEPS
            reference(program)
        turns = range(len(wanted) // len(functions.NAMES))
        assert {*wanted} == {(name, turn) for name in functions.NAMES for turn in turns}
        assert tally.topics.total() >= len(wanted) - 2

    def test_an_aimed_step_keeps_its_operands(self):
        """The inputs of a topic that cannot be drawn leave the program, except those that the aimed step uses."""

        def refused(*_):
            raise Refused

        kept = 0
        with mock.patch.dict(functions.TOPICS, {name: topic._replace(draw=refused) for name, topic in TOPICS.items()}):
            for number in range(FUNCTIONS.turns[0], 20 * PERIOD, PERIOD):
                program = DRAWING.numbered(0, number)
                reference(program)
                used = {name for step in program.steps for name in step.names()}
                kept += bool(used & {one.name for one in program.inputs[1:]})
        assert kept > 2

    def test_a_topic_alone(self):
        """`--only` a topic makes every program one of this topic."""
        for topic in (functions.CONSTANTS, functions.SIDE_EFFECTS):
            drawing = Drawing(only=(topic,))
            for number in range(10):
                assert topic in {OPS[step.op].family for step in drawing.numbered(3, number).steps}

    def test_a_target_that_compiles_nothing_has_ordinary_programs(self):
        """Only the campaign of a compiler has these programs, and `--only` has them for every target."""
        assert {*functions.NAMES} <= {*FAMILIES}
        assert not any(topics_at(Drawing(), number) for number in range(64))
        parser = options.parser("conformance fuzz", "", FLAGS, USUAL)
        for spec, drawn in (("cpu", False), ("aot_eager", True), ("functionalize", False)):
            plan = plan_of(parser.parse_args(["--target", spec]), Limits(), spec)
            assert plan.numbered.drawing.compiled is drawn

    def test_calls_that_another_compiler_may_answer_differently(self):
        """A compiler of another project need not follow torch CPU in conversions and missing kernels."""
        other = Compiler()
        other.facts = replace(other.facts, follows_eager=False)
        left_out = {*unsupported_steps(other.facts)}
        assert left_out == {"conversions", "dtypes", "state"}  # no target that transforms has states
        assert {"conversions", "dtypes"} <= {*functions.NAMES}
        assert not {*functions.NAMES} & {*unsupported_steps(describe_target("aot_eager").facts)}

    def test_a_script_carries_a_function_with_its_own_gradient(self, standalone, tmp_path):
        """The script has the source of the functions, and needs torch only."""
        program = Drawing(only=(functions.GRADIENTS,)).numbered(0, 1)
        assert {"own_gradient", "backward"} <= {step.op for step in program.steps}
        ran = standalone(script(program, load_target("cpu")))
        assert (ran.returncode, ran.stderr) == (0, "")

    def test_a_script_records_what_a_method_appends(self, standalone, tmp_path):
        """The script of a program with side effects needs torch only."""
        program = Drawing(only=(functions.SIDE_EFFECTS,)).numbered(0, 1)
        assert any("append by a staticmethod" in step.args for step in program.steps)
        ran = standalone(script(program, load_target("compile:eager")))
        assert (ran.returncode, ran.stderr) == (0, "")


class TestPower:
    @pytest.mark.parametrize("name", FAULTS)
    def test_a_planted_fault_is_found(self, name):
        """An ordinary campaign of `PROGRAMS` programs finds each fault."""
        topic, fault = FAULTS[name]
        assert any(fails(Compiler(fault), DRAWING, number) for number in of_topic(topic))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", [name for name, (topic, _) in FAULTS.items() if topic != functions.OVERLAPS])
    def test_other_programs_do_not_show_it(self, name):
        """Programs without these topics pass, so the topic finds the fault. Any program may write from overlapping
        memory."""
        assert not any(fails(Compiler(FAULTS[name][1]), Drawing(), number) for number in range(BESIDE))

    def test_without_a_fault_nothing_is_found(self):
        """The compiler of these tests passes if it changes nothing."""
        numbers = range(FUNCTIONS.turns[0], 40 * PERIOD, PERIOD)
        assert not any(fails(Compiler(), DRAWING, number) for number in numbers)
