"""A program as the judge's subject, with its answer in float64.

Defines `JudgedProgram` and `truth_of`. If only floating values differ, a run of the program in float64
shows which side rounds more. The float64 run is valid as long as it takes the same path. After each step, everything
that is not floating must equal the first run: integers, masks, shapes, strides, errors and Python values. A step that
branches on a rounded value, or reads its bits, ends the common path. After it the answer of torch CPU stands.

`arbitrate` decides from the answer in float64. The executor runs the target.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.engine.executor import Execution, StepFailed
from conformance.engine.judge import Terms
from conformance.engine.rounding import DOWN, UP, Float64Reference, draw_signs
from conformance.engine.rules import Arguments
from conformance.program.execute import ProgramSubject, RunningProgram, SteppedProgram, directions_of, make_inputs
from conformance.program.model import GivenInput, Program
from conformance.program.steps import layouts
from conformance.program.steps.entry import OBJECT
from conformance.program.steps.op import COMPUTE, LOSSY, Op, Step, StepError
from conformance.program.steps.states import SEEDS, STATES
from conformance.program.steps.table import OPS
from conformance.program.unsupported import runs_tagged
from conformance.standalone.moving import MARKER, leaves, map_leaves, send_tree, storage_key, tensors, whole_storage
from conformance.standalone.observation import Observation
from conformance.standalone.oracles import Mismatch, compare, differing
from conformance.standalone.rounding import CannotWiden, move_by_units, represented, subject, widened
from conformance.standalone.torch_compat import DRAWS_NUMBERS, version_of

OPEN_ZEROS = frozenset({"relu", "clamp", "maximum", "minimum"})
"""Operators that may return either of 0.0 and -0.0, which are equal: torch names none."""


@dataclass(frozen=True)
class JudgedProgram(ProgramSubject):
    """A program with the terms under which it is judged. `exact` names the tensors that must agree to the bit."""

    exact: Collection[str] = ()

    @property
    def draws(self) -> bool:
        """Whether a step draws random numbers."""
        if self.program.given:
            return runs_tagged(self.program, DRAWS_NUMBERS)
        return any(not {*SEEDS}.isdisjoint(step.under) for step in self.program.every_step)

    @property
    def terms(self) -> Terms:
        """The terms that the program states."""
        program = self.program
        return Terms(
            program.tolerance,
            self.exact,
            program.rules,
            program.undefined,
            # PyTorch does not define the content of operands after a refused call.
            oracles=None if program.refusal is None else frozenset({"error"}),
            process=program.process,
            message=program.refusal or "",
        )

    @property
    def on_host(self) -> bool:
        """Whether a step names the CPU, or no step gives the device a tensor."""
        steps, given = self.program.every_step, self.program.given
        if given:
            return any(map(_names_host, given)) or all(map(_stays_on_host, given))
        return any(map(_names_the_cpu, steps)) or not any(step.names() for step in steps)

    def names_of_inputs(self) -> Collection[str]:
        """Return the names of the inputs. An out= tensor of an entry of op_db is a result."""
        return {input_.name for input_ in self.program.inputs} | {*self.program.trees} - {"out"}

    def operators(self) -> Collection[str]:
        """Return the names of the steps. A result depends on earlier steps, so a tolerance of one holds for all."""
        if self.program.given:
            return self.program.operators or {self.arguments().op}
        return {step.op for step in self.program.every_step}

    def arguments(self) -> Arguments:
        """Return the arguments of the first step, to which the rules of a sample of op_db apply."""
        step = self.program.steps[0]
        if self.program.given:
            trees = self.program.trees
            strided = [tensor for tensor in tensors(trees) if tensor.layout is torch.strided]
            parts = trees.get("input"), trees.get("args", ()), trees.get("kwargs", {})
            if step.op.startswith(f"{OBJECT}:"):  # its inputs have names of their own
                parts = next(iter(trees.values()), None), (), trees
            return Arguments(step.op.partition(":")[2], *parts, strided)
        running = RunningProgram(self.program)
        (first, *args), kwargs = running.arguments(step)
        return Arguments(step.op.partition(":")[2], first, args, kwargs, [*running.env.values()])

    def in_float64(self, mismatches: Sequence[Mismatch], expected: Observation) -> Execution | None:
        """Return the program's answer in float64, or None if float64 cannot arbitrate.

        It cannot if bits differ that were only moved, since rounding never explains that, or if random numbers are
        drawn, which are others in float64. It also cannot if the inputs
        have no values in float64, or if a mismatched tensor changed on the CPU after the last step at which the float64
        run was valid."""
        if self.program.given:
            return _entry_in_float64(self.program)
        if self.draws or any(mismatch.where in self.exact for mismatch in mismatches):
            return None
        try:
            narrow, wide = truth_of(concerning(self.program, subjects_of(mismatches)))
        except CannotWiden:
            return None
        settled = all(_settled(subject(mismatch, narrow), subject(mismatch, expected)) for mismatch in mismatches)
        return Execution((wide,)) if settled else None

    def swayed(
        self, mismatches: Sequence[Mismatch], expected: Observation, actual: Observation
    ) -> Sequence[Observation]:
        """Return the answers in float64 with each rounded result of a step moved by one unit in the last place.

        The unit is that of the result's own dtype. The runs move all results up, all down, and twice at random. If this
        changes the answer much, or flips a decision, rounding explains the difference. Zeros whose sign torch leaves
        open, as in `torch.relu(-0.0)`, get the sign of the move. Results that agree on torch CPU
        and the target are kept; only the others are moved. Return no answers if a moved step fails."""
        if self.program.given:  # one call, without intermediate results
            return ()
        program = concerning(self.program, subjects_of(mismatches))
        try:
            known = _agreed(program, expected, actual)
            return [truth_of(program, sway, known)[1] for sway in (UP, DOWN, 1, 2)]
        except (StepFailed, StepError, RuntimeError):  # torch may reject a moved value: rounding then explains nothing
            return ()


def _names_host(given: GivenInput) -> bool:
    """Whether a given input names the CPU."""
    others = (leaf for leaf in leaves(given.value) if isinstance(leaf, (str, torch.device)))
    return given.on_host or any(leaf == "cpu" if isinstance(leaf, str) else leaf != MARKER for leaf in others)


def _stays_on_host(given: GivenInput) -> bool:
    """Whether each tensor of a given input stays on the CPU."""
    return all(one.layout is torch.strided and storage_key(one) in given.kept for one in tensors(given.value))


def _entry_in_float64(program: Program) -> Execution | None:
    """Return torch CPU's answer to an entry of op_db on the same inputs in float64 and complex128, or None if it has no
    answer there, or another one with another seed. Dtypes among the arguments are widened too; integer inputs stay
    unchanged."""
    named = [leaf.dtype if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves(program.trees)]
    if all(dtype == widened(dtype) for dtype in named if isinstance(dtype, torch.dtype)):
        return None
    first = widened_answer(program)
    if first is None or not any("seed" in step.kwargs for step in program.steps):
        return first
    again = widened_answer(program, change=1)
    return None if again is None or compare(first.last, again.last, exact=True) else first


def widened_answer(program: Program, reference: Float64Reference | None = None, change: int = 0) -> Execution | None:
    """Return torch CPU's answer to a program of given inputs, on the inputs that `reference` sends, along the
    directions that a run in its own dtypes draws, with the seeds plus `change`; None if it has no answer."""
    wide = reference or Float64Reference()
    try:
        drawn = directions_of(program)
        # Tensors that op_db keeps on the CPU are widened too.
        tree = map_leaves(send_tree(program.trees, wide.send, wide.device), widened_leaf)
        running = SteppedProgram(program, tree, wide)
        running.replayed, running.constant = iter(drawn), widened_leaf
        running.run(_reseeded(step, change) for step in program.steps)
        if running.error is not None:
            return None
        return Execution((running.observe(wide),), outcome=running.outcome)
    except Exception:  # torch CPU may have no kernel for float64: this says nothing about the target
        return None


def _reseeded(step: Step, change: int) -> Step:
    return replace(step, kwargs={"seed": step.kwargs["seed"] + change}) if "seed" in step.kwargs else step


def widened_leaf(leaf: Any) -> Any:
    """Return the leaf for a call in float64: a dtype is widened."""
    return widened(leaf) if isinstance(leaf, torch.dtype) else leaf


def _names_the_cpu(step: Step) -> bool:
    """Whether a step has a constant that stays on the CPU, or the CPU among its arguments."""
    return any("host" in marker for marker in step.markers()) or "cpu" in (*step.args, *step.kwargs.values())


def subjects_of(mismatches: Sequence[Mismatch]) -> set[str]:
    """Return the names of the tensors that the mismatches are about."""
    return {mismatch.where.removeprefix("grad of ") for mismatch in mismatches}


def concerning(program: Program, names: Collection[str]) -> Program:
    """Return the program reduced to the steps that may affect these tensors. Other steps may take another path in
    float64, which does not matter for these tensors."""
    reached, before = {*names}, set[str]()
    storages = {input_.name: input_.storage for input_ in program.inputs}
    while reached != before:
        before = {*reached}
        touched = {storages[name] for name in reached if name in storages}
        reached |= {name for name, storage in storages.items() if storage in touched}
        for step in program.steps:
            reached |= _named(step) if _named(step) & reached else set()
    return program.with_steps(tuple(step for step in program.steps if reached & _named(step)))


def _named(step: Step) -> set[str]:
    """Return the names that a step reads, writes or returns, including the body of a loop."""
    return {name for part in (step, *step.body) for name in (*part.names(), *part.out)}


def truth_of(
    program: Program, sway: str | int | None = None, known: Collection[tuple[int, str]] = (), inputs: bool = False
) -> tuple[Observation, Observation]:
    """Return the CPU observations of the program in its own dtypes and in float64, up to the last common step.

    The runs end before the first step that takes another path, or fails, in float64. With `sway`, float64 results that
    the original dtype cannot represent are moved by one unit in its last place. The direction is up, down, or random
    with an integer as the seed. Results in `known`, by step and name, take their rounded values instead. With `inputs`,
    the inputs move too."""
    alike = sum(1 for _ in _while_alike(program, *_begun(program)))
    narrow, wide = _begun(program)
    if inputs and sway is not None:
        _move_inputs(narrow, wide, sway)
    for number, step in enumerate(program.steps[:alike]):
        _both(narrow, wide, step)
        if sway is not None and step.op in OPS and OPS[step.op].effect in (COMPUTE, LOSSY):
            for name in (name for name in step.out if name in wide.env):  # a local name may stand for None
                move = _rounded if (number, name) in known else _moved
                wide.env[name] = move(wide.env[name], narrow.env[name], sway)
                if move is _moved and (OPS[step.op].call or step.op) in OPEN_ZEROS:
                    wide.env[name] = _with_zeros_of_a_sign(wide.env[name], sway)
    return narrow.observe(), wide.observe()


def _agreed(program: Program, expected: Observation, actual: Observation) -> set[tuple[int, str]]:
    """Return the results, by step and name, that are bitwise equal on both sides at the end.

    A result written after the step that returned it is excluded."""
    run, results = RunningProgram(program), dict[str, tuple[int, torch.Tensor, int]]()
    for number, step in enumerate(program.steps):
        run.step(step)
        for name in step.out:
            if isinstance(result := run.env.get(name), torch.Tensor) and not result.is_inference():
                results[name] = (number, result, version_of(result))
    return {
        (number, name)
        for name, (number, result, version) in results.items()
        if run.env.get(name) is result and version == version_of(result)
        if name in expected.tensors and name in actual.tensors
        if _settled(expected.tensors[name].value, actual.tensors[name].value)
    }


def _rounded(value: torch.Tensor, narrow: torch.Tensor, _: str | int) -> torch.Tensor:
    """Return the rounded value, with the gradient of the float64 value."""
    if value.dtype == narrow.dtype or not value.is_floating_point():
        return value
    away = narrow.detach().to(value.dtype) - value.detach()
    return value + away.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)


def _moved(value: torch.Tensor, narrow: torch.Tensor, sway: str | int) -> torch.Tensor:
    """Return the value. Elements that the narrow dtype cannot represent move by one unit in its last place."""
    if value.dtype == narrow.dtype or not value.is_floating_point():
        return value
    return value.where(represented(value, narrow.dtype), move_by_units(value, narrow.dtype, draw_signs(value, sway)))


def _with_zeros_of_a_sign(value: torch.Tensor, sway: str | int) -> torch.Tensor:
    """Return the value with other signs of its zeros. A value with a gradient stays, since its zeros would lose it."""
    if not value.is_floating_point() or value.requires_grad:
        return value
    return value.where(value != 0, torch.zeros_like(value).copysign(draw_signs(value, sway)))


def _move_inputs(narrow: RunningProgram, wide: RunningProgram, sway: str | int) -> None:
    """Move the elements of floating inputs by one unit in the last place of the inputs' dtype.

    An expanded input becomes dense, so that its elements move apart."""
    done = set[int]()
    for name, value in wide.env.items():
        if not value.is_floating_point() or storage_key(value) in done:
            continue
        dtype = narrow.env[name].dtype
        if layouts.overlaps_itself(value):
            wide.env[name] = move_by_units(value, dtype, draw_signs(value, sway))
            continue
        done.add(storage_key(value))
        flat = whole_storage(value.detach())
        flat.copy_(move_by_units(flat, dtype, draw_signs(flat, sway)))


def _begun(program: Program) -> tuple[RunningProgram, RunningProgram]:
    return RunningProgram(program), _InFloat64(program, Float64Reference().send(make_inputs(program)))


def _while_alike(program: Program, narrow: RunningProgram, wide: RunningProgram) -> Iterator[Step]:
    """Run the steps on both sides and yield them as long as both take the same path."""
    for step in program.steps:
        try:
            _both(narrow, wide, step)
        except Exception:  # from here on the float64 run cannot acquit the target, so the finding stands
            return
        if not _went_the_same_way(narrow, wide):
            return
        yield step


def _both(narrow: RunningProgram, wide: RunningProgram, step: Step) -> None:
    narrow.step(step)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # for new floats
    try:
        wide.step(step)
    finally:
        torch.set_default_dtype(before)


def _settled(before: torch.Tensor | None, at_the_end: torch.Tensor | None) -> bool:
    """Return whether the two tensors have the same dtype, shape and bits; False if one is None."""
    return (
        before is not None
        and at_the_end is not None
        and (before.dtype, before.shape) == (at_the_end.dtype, at_the_end.shape)
        and not bool(differing(before, at_the_end, True).any())
    )


class _InFloat64(RunningProgram):
    """A running program in float64: constants and dtypes among the arguments are widened too."""

    def call(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return super().call(op, _widened(args), _widened(kwargs))

    def within(self, step: Step, call: Callable[[], Any]) -> Any:
        """Call without the states that select a narrower dtype."""
        names = tuple(name for name in step.under if not STATES[name].rounds)
        return super().within(replace(step, under=names), call)


def _widened(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.to(widened(tree.dtype))
    if isinstance(tree, torch.dtype):
        return widened(tree)
    if isinstance(tree, dict):
        return {key: _widened(part) for key, part in tree.items()}
    return type(tree)(_widened(part) for part in tree) if type(tree) in (list, tuple) else tree


def _went_the_same_way(narrow: RunningProgram, wide: RunningProgram) -> bool:
    if _shared(narrow) != _shared(wide) or _plain(narrow.answers) != _plain(wide.answers):
        return False
    return all(_took_same_path(tensor, wide.env[name]) for name, tensor in narrow.env.items())


def _shared(run: RunningProgram) -> dict[str, str]:
    """Return for each tensor the name of the first tensor in the same storage."""
    first: dict[int, str] = {}
    return {name: first.setdefault(storage_key(tensor), name) for name, tensor in run.env.items()}


def _plain(answers: dict[str, Any]) -> dict[str, Any]:
    """Return the answers with floats replaced by their type, since they may be rounded, and errors without text."""
    kinds = {name: getattr(answer, "kind", answer) for name, answer in answers.items()}
    return {name: type(kind) if isinstance(kind, (float, complex)) else kind for name, kind in kinds.items()}


def _took_same_path(tensor: torch.Tensor, wide: torch.Tensor) -> bool:
    places = [(t.shape, t.stride(), t.storage_offset(), t.requires_grad) for t in (tensor, wide)]
    if places[0] != places[1] or wide.dtype != widened(tensor.dtype):
        return False
    return (
        wide.dtype != tensor.dtype
        or tensor.dtype.is_floating_point
        or tensor.dtype.is_complex
        or torch.equal(tensor, wide)
    )
