"""Programs of hazards: coverage of their cells, and detection of planted faults in transforms."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conformance.engine.target import Target, TargetFacts
from conformance.program.calls import judge_program
from conformance.program.model import Program
from conformance.program.steps.hazards import CELLS, FUNCTION_STEPS, NAME, NEEDS, PER_FUNCTION
from conformance.program.steps.table import OPS
from conformance.program.unsupported import unsupported_reason
from conformance.run.campaign.drawing_counts import Tally
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.kinds import HAZARDS, PERIOD, hazards_of, kind_of
from scripts import hazard_cells

aten = torch.ops.aten

Fault = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def _dropped_clone(op, args, kwargs):
    return args[0] if op is aten.clone.default else op(*args, **kwargs)


def _neutral_returns_its_operand(op, args, kwargs):
    result = op(*args, **kwargs)
    same = op in (aten.mul.Tensor, aten.add.Tensor, aten.flip.default) and result.shape == args[0].shape
    return args[0] if same and result.dtype == args[0].dtype and result.equal(args[0]) else result


def _stale_bytes(op, args, kwargs):
    result = op(*args, **kwargs)
    return result.clone() if op is aten.view.dtype else result


def _second_of_a_list(op, args, kwargs):
    if op in (aten._foreach_copy_.default, aten._foreach_add_.List, aten._foreach_mul_.List) and len(args[0]) == 2:
        return op([args[0][0]], [args[1][0]])
    return op(*args, **kwargs)


def _custom_on_a_copy(op, args, kwargs):
    if op.namespace == "conformance":
        args = tuple(one.clone() if _gappy(one) else one for one in args)
    return op(*args, **kwargs)


def _gappy(one):
    return isinstance(one, torch.Tensor) and not one.is_contiguous()


def _out_on_a_copy(op, args, kwargs):
    if _gappy(kwargs.get("out")):
        kwargs = {**kwargs, "out": kwargs["out"].clone()}
    return op(*args, **kwargs)


def _sorted_indices(op, args, kwargs):
    if op in (aten.index_put_.default, aten._index_put_impl_.default):
        args = (args[0], [one if one is None else one.sort().values for one in args[1]], *args[2:])
    return op(*args, **kwargs)


def _scatter_of_the_first(op, args, kwargs):
    if op is aten.scatter_.src:
        args = (args[0], args[1], args[2], args[3].flatten()[0].expand(args[3].shape))
    return op(*args, **kwargs)


def _upright(op, args, kwargs):
    result = op(*args, **kwargs)
    square = op is aten.transpose.int and result.size(-1) == result.size(-2)
    return args[0] if square else result


def _without_offset(op, args, kwargs):
    return op(args[0], args[1], args[2], 0) if op is aten.as_strided.default else op(*args, **kwargs)


def _copied_beside(op, args, kwargs):
    result = op(*args, **kwargs)
    return result.clone() if op is aten.as_strided.default and _end(result) > _end(args[0]) else result


def _end(one):
    return one.storage_offset() + sum((n - 1) * step for n, step in zip(one.size(), one.stride(), strict=True))


def _expanded_copy(op, args, kwargs):
    result = op(*args, **kwargs)
    return result.clone() if op is aten.expand.default else result


FAULTS: dict[str, Fault] = {
    "a clone is dropped": _dropped_clone,
    "an operation that changes nothing returns its operand": _neutral_returns_its_operand,
    "a dtype view has stale bytes": _stale_bytes,
    "a list operator forgets the second tensor": _second_of_a_list,
    "a custom operator writes a copy of a view with gaps": _custom_on_a_copy,
    "out= of a view with gaps is a copy": _out_on_a_copy,
    "index_put_ sorts its indices": _sorted_indices,
    "scatter_ reads the first source only": _scatter_of_the_first,
    "the transpose of a square is the square": _upright,
    "as_strided loses its offset": _without_offset,
    "as_strided beside its input is a copy": _copied_beside,
    "an expanded view is a copy": _expanded_copy,
}


class _Mode(TorchDispatchMode):
    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault, self.inside = fault, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.inside:
            return func(*args, **(kwargs or {}))
        return self.fault(func, args, kwargs or {})


class Faulty(Target):
    """Transform with a fault in its operators, compared by values and storages."""

    name = "faulty"
    facts = TargetFacts(transforms_program=True, oracles=frozenset({"value", "storage", "error"}))

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault

    def transform(self, function):
        def transformed(*inputs):
            with _Mode(self.fault):
                return function(*inputs)

        return transformed


class ReturnsCopies(Target):
    """Transform that returns a copy in place of each view, or each input that equals a result in place of it."""

    name = "returns copies"
    facts = TargetFacts(transforms_program=True, oracles=frozenset({"value", "storage", "error", "structure"}))

    def __init__(self, returned: Callable[[torch.Tensor, tuple[torch.Tensor, ...]], torch.Tensor]) -> None:
        super().__init__()
        self.returned = returned

    def transform(self, function):
        def transformed(*inputs):
            results = function(*inputs)
            return {name: self.returned(value, inputs) for name, value in results.items()}

        return transformed


class DropsClones(Target):
    """Transform without the clones that `drops` selects, given the counts of reads by memory and the returned ones."""

    name = "drops clones"
    facts = TargetFacts(transforms_program=True, oracles=frozenset({"value", "storage", "error"}))

    def __init__(self, drops: Callable[..., bool]) -> None:
        super().__init__()
        self.drops = drops

    def transform(self, function):
        def transformed(*inputs):
            clones, reads, at = list[torch.Tensor](), Counter[int](), itertools.count()
            saved = [value.untyped_storage().clone() for value in inputs]

            def recorded(op, args, kwargs):
                result = op(*args, **kwargs)
                reads.update(_memories((args, kwargs)))
                clones.extend([result] if op is aten.clone.default else [])
                return result

            with _Mode(recorded):
                results = function(*inputs)
            for value, before in zip(inputs, saved, strict=True):
                value.untyped_storage().copy_(before)
            returned = {*_memories(results)}
            dropped = [self.drops(clone, reads, returned) for clone in clones]

            def faulty(op, args, kwargs):
                return args[0] if op is aten.clone.default and dropped[next(at)] else op(*args, **kwargs)

            with _Mode(faulty):
                return function(*inputs)

        return transformed


def _short_lived(clone, reads, returned):
    (memory,) = _memories(clone)
    return reads[memory] == 1 and memory not in returned and clone.dim() > 0 and clone.size(-1) % 16 == 0


def _memories(tree):
    leaves = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    return [leaf.untyped_storage().data_ptr() for leaf in leaves]


def _equal_input(value, inputs):
    return next((one for one in inputs if one.shape == value.shape and one.equal(value)), value)


def _late(value, inputs):
    """Return the input itself for a result that has the input's size, filled with the result's values."""
    return (
        value.clone()
        if any(value.untyped_storage()._cdata == one.untyped_storage()._cdata for one in inputs)
        else value
    )


PROGRAMS = 700
"""Number of programs of an ordinary campaign. One in `PERIOD` has hazards."""


def first_found(target: Target, compiled: bool = False) -> int | None:
    """Number of the first program of hazards, among the first `PROGRAMS` of seed 0, that fails."""
    for number in range(HAZARDS.turns[0], PROGRAMS, PERIOD):
        program = Drawing(compiled=compiled).numbered(0, number)
        if not unsupported_reason(program, target.facts) and judge_program(program, target, locate=False).mismatches:
            return number
    return None


def _unconnected(program: Program) -> int:
    """Number of groups of inputs that no step connects."""
    groups = {one.name: {("storage", one.storage)} for one in program.inputs}
    for step in program.steps:
        joined = set().union(*(groups[name] for name in step.names() if name in groups))
        for name in (*step.names(), *step.out):
            groups[name] = joined
    connected: list[set[tuple[str, int]]] = []
    for group in groups.values():
        meeting = [other for other in connected if other & group]
        connected = [other for other in connected if other not in meeting] + [group.union(*meeting)]
    return len(connected)


def cells_at(drawing: Drawing, seed: int, number: int) -> tuple[tuple[str, ...], ...]:
    """The cells of program `number` of a seed; none of another kind."""
    kind, index = kind_of(drawing, number)
    return hazards_of(drawing, seed, index) if kind is HAZARDS else ()


class TestCells:
    def test_cells_are_drawn_in_turn(self):
        """The first programs of a seed reach as many cells as they have hazards, and no cell twice."""
        tally, wanted = Tally(), list[tuple[str, ...]]()
        for number in range(200):
            wanted += cells_at(Drawing(), 0, number)
            if cells_at(Drawing(), 0, number):
                Drawing().numbered(0, number, tally)
        assert len(wanted) == len({*wanted}) == 2 * 200 // PERIOD
        assert tally.hazards.total() >= len(wanted) - 1
        assert {*tally.hazards} <= {"|".join(cell) for cell in CELLS}

    def test_a_program_for_a_compiler_has_more(self):
        """Such a program has the cells of four others, and no step mixes the inputs of two."""
        tally, wanted, drawing = Tally(), list[tuple[str, ...]](), Drawing(compiled=True)
        for number in range(HAZARDS.turns[0], 200, PERIOD):
            wanted += cells_at(drawing, 0, number)
            program = drawing.numbered(0, number, tally)
            assert len(program.steps) <= FUNCTION_STEPS
            assert _unconnected(program) >= PER_FUNCTION
        assert len(wanted) == len({*wanted}) == PER_FUNCTION * 200 // PERIOD
        assert tally.hazards.total() >= 0.95 * len(wanted)

    @pytest.mark.slow
    def test_every_cell_is_reached(self, capsys):
        """20,000 programs reach every cell, and the command prints the counts."""
        assert hazard_cells.main([]) == 0
        assert f"20,000 programs of seed 0: {len(CELLS):,} of {len(CELLS):,} cells" in capsys.readouterr().out

    def test_the_family_can_be_drawn_alone(self):
        """`--only hazards` makes every program one of hazards, with steps of other families."""
        drawing = Drawing(only=(NAME,))
        assert all(cells_at(drawing, 3, number) for number in range(20))
        families = {OPS[step.op].family for number in range(20) for step in drawing.numbered(3, number).steps}
        assert {NAME, "view", "copy"} <= families

    @pytest.mark.parametrize(("value", "needed"), NEEDS.items())
    def test_a_cell_that_needs_an_excluded_step_is_not_drawn(self, value, needed):
        """A target that lacks a step or family gets the other cells."""
        drawing = Drawing(without=(needed,))
        programs = [number for number in range(400) if cells_at(drawing, 0, number)]
        assert not any(value in cell for number in programs for cell in cells_at(drawing, 0, number))
        for number in programs[:20]:
            assert not any({step.op, OPS[step.op].family} & {needed} for step in drawing.numbered(0, number).steps)

    def test_the_steps_have_a_limit(self):
        """`--steps` limits these programs too."""
        drawing = Drawing((1, 4))
        assert max(len(drawing.numbered(0, number).steps) for number in range(HAZARDS.turns[0], 200, PERIOD)) <= 4


class TestPower:
    @pytest.mark.parametrize("name", FAULTS)
    def test_a_fault_of_an_operator_is_found(self, name):
        """An ordinary campaign of a few hundred programs finds each fault by values."""
        assert first_found(Faulty(FAULTS[name])) is not None

    @pytest.mark.parametrize("returned", [_equal_input, _late])
    def test_a_fault_that_only_the_caller_sees_is_found(self, returned):
        """A result that is the input, or a view that is a copy, differs only after the caller wrote."""
        assert first_found(ReturnsCopies(returned)) is not None

    def test_a_fault_that_a_second_use_hides_is_found(self):
        """The plain hazards of programs for compilers have no uses beside those of the cell."""
        assert first_found(DropsClones(_short_lived), compiled=True) is not None

    def test_without_a_fault_nothing_is_found(self):
        """The transforms of these tests pass if they change nothing."""
        assert first_found(Faulty(lambda op, args, kwargs: op(*args, **kwargs))) is None
        assert first_found(ReturnsCopies(lambda value, inputs: value)) is None
        assert first_found(DropsClones(lambda clone, reads, returned: False), compiled=True) is None
