"""A failing call in its smallest form.

Defines `minimized`. The call becomes a program with one step, and the reducer of programs shrinks it. Each trial runs
the check's procedure in a fork, so a smaller call may crash. A smaller call must fail the same check, the reference
must accept it, and it must keep the property of its kind.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from conformance.program.capture import NotAnInput, Unwritable, as_inputs, inputs_of
from conformance.program.execute import make_inputs
from conformance.program.model import Program, ProgramError
from conformance.program.reduce import CALL_PASSES, reduce_program
from conformance.program.steps.op import Json, Step, decode
from conformance.sources.operator import calls as kinds
from conformance.sources.operator.calls import DrawnCall, conjugate_view, negative_view, note_of
from conformance.sources.operator.checks import REFUSED, Examination
from conformance.sources.operator.examine import ComparedCall, examined
from conformance.sources.operator.forks import processor_time
from conformance.sources.operator.inputs import described_sizes, smaller_inputs
from conformance.sources.operator.subject import TAKEN, by_finding_name
from conformance.sources.operator.table import CHECKS
from conformance.sources.operator.verdict import Difference
from conformance.standalone.moving import map_leaves, tensors
from conformance.standalone.observation import tensors_by_name
from conformance.standalone.oracles import Mismatch

TRIALS, SECONDS, TRIAL = 120, 10.0, 3.0
"""Limits on the trials of one difference: their number, the processor time in which they begin, and the time of one."""

PATIENCE = 6
"""Limit on the trials by a clock, in multiples of that on their processor time."""

SLOW = {"compile": 12, "dynamic": 12, "inductor": 0, "hang": 0}
"""Limits on the number of trials for slow checks."""

GRADIENT = "gradient of "
"""Beginning of the name of a gradient in findings."""

STEP = "operator"
"""Name of the step that calls the operator. The step table does not have it, so only this module runs it."""


def program_of(call: DrawnCall, taken: Collection[str] = ()) -> Program:
    """Return the call as a program with one step. Inputs have other names than those in `taken`. Raises Unwritable."""
    named, args, kwargs = _as_inputs(call, taken)
    try:
        storages, inputs = inputs_of(named)
    except NotAnInput as error:
        raise Unwritable(str(error)) from error
    return Program(storages, inputs, (Step(STEP, tuple(args), kwargs),))


def _as_inputs(call: DrawnCall, taken: Collection[str]) -> tuple[dict[str, torch.Tensor], list[Json], dict[str, Json]]:
    """Return the tensors of a call by their names in a script, which uses some names for itself, and the arguments of
    the step. Raises Unwritable."""
    taken = {*TAKEN, *taken}
    tensors = {f"{name}0" if name in taken else name: tensor for name, tensor in tensors_by_name(call.values).items()}
    return as_inputs(tensors, *call.arguments())


def variables(call: DrawnCall, taken: Collection[str] = ()) -> dict[str, str]:
    """Return the names of a call's tensors in a script, by their names in findings. Raises Unwritable."""
    known = {id(tensor): name for name, tensor in _as_inputs(call, taken)[0].items()}
    return {name: known[id(tensor)] for name, tensor in tensors_by_name(by_finding_name(call.values)).items()}


class LazyView(NamedTuple):
    """A view whose elements torch changes when it reads them: whether a tensor is one, the view with the values of a
    plain tensor, and its expression in a script."""

    holds: Callable[[torch.Tensor], bool]
    view: Callable[[torch.Tensor], torch.Tensor]
    text: str


LAZY_VIEWS = (
    LazyView(torch.is_conj, conjugate_view, "{0}.conj_physical().conj()"),
    LazyView(torch.is_neg, negative_view, "torch._neg_view(-{0})"),
)


def lazy_views(call: DrawnCall) -> dict[str, LazyView]:
    """Return the lazy views among the tensors of a call, by name."""
    named = tensors_by_name(call.values).items()
    return {name: lazy for name, one in named for lazy in LAZY_VIEWS if lazy.holds(one)}


def without_lazy_views(call: DrawnCall) -> DrawnCall:
    """Return the call on the same values, in memory that has them as they are: no program holds a lazy view."""

    def resolved(leaf: Any) -> Any:
        lazy = isinstance(leaf, torch.Tensor) and any(one.holds(leaf) for one in LAZY_VIEWS)
        return leaf.resolve_conj().resolve_neg() if lazy else leaf

    return call.on(map_leaves(call.values, resolved))


def with_lazy_views(call: DrawnCall, lazy: Mapping[str, LazyView]) -> DrawnCall:
    """Return the call with these tensors as lazy views of the same values."""
    views = {id(one): lazy[name].view for name, one in tensors_by_name(call.values).items() if name in lazy}
    return call.on(map_leaves(call.values, lambda leaf: views[id(leaf)](leaf) if id(leaf) in views else leaf))


def call_of(program: Program, call: DrawnCall) -> DrawnCall:
    """Return the call that a program writes, with the names of another call."""
    (step,), env, cpu = program.steps, make_inputs(program), torch.device("cpu")
    names = [*call.values][: call.positional]
    values = dict(zip(names, (decode(arg, env, cpu) for arg in step.args)))
    return call.on({**values, **{key: decode(value, env, cpu) for key, value in step.kwargs.items()}})


def minimized(trial: Examination, finding: Difference, seconds: float = SECONDS) -> Difference:
    """Return the difference in a smaller call. A difference that its call alone does not show stays as it is, and so
    does a write that never happens: in fewer and smaller numbers, a right operator shows none either (0 doubled is 0).
    """
    if finding.check == "declared":
        return finding
    trial = replace(trial, watches=finding.check == "globals")  # which takes longer than a small call
    if _is_right_alone(trial, finding):
        return replace(finding, recurs=False)
    until, latest = processor_time() + seconds, time.time() + PATIENCE * seconds

    def is_late() -> bool:
        """Whether the time is over: processor time, so that a loaded machine finds the same, unless a call sleeps."""
        return processor_time() >= until or time.time() >= latest

    smallest = finding = in_writable_size(trial, finding, is_late)
    if not is_writable(finding.call):
        return replace(finding, cut=is_late())
    program = program_of(without_lazy_views(finding.call))
    lazy = lazy_views(finding.call)

    def call_again(candidate: Program) -> DrawnCall | None:
        """Return the call of a smaller program, with the lazy views of the original one."""
        return restated(trial, with_lazy_views(call_of(candidate, finding.call), lazy), finding.call)

    def fails(candidate: Program) -> bool:
        nonlocal smallest
        call = call_again(candidate)
        assert call is not None
        found = None if is_late() else same_difference(trial, finding, call)
        smallest = found or smallest
        return found is not None

    def allowed(candidate: Program) -> Program | None:
        if _valid(candidate) is None or call_again(candidate) is None:
            return None
        return candidate

    def smaller_sizes(candidate: Program) -> Iterator[Program]:
        call = call_again(candidate)
        if trial.description is not None and call is not None:
            for values in smaller_inputs(trial.description, call.values, dict(call.sizes)):
                with contextlib.suppress(Unwritable):
                    yield program_of(without_lazy_views(call.on(values)))

    reduce_program(
        program,
        fails,
        SLOW.get(finding.check, TRIALS),
        (smaller_sizes, smaller_lengths, *CALL_PASSES[:2], fewer_keywords, *CALL_PASSES[2:]),
        latest,
        allowed,
    )
    return replace(smallest, cut=is_late())


def same_difference(trial: Examination, finding: Difference, call: DrawnCall) -> Difference | None:
    """Return the difference of a finding's kind in a smaller call; None if there is none."""
    args, kwargs = call.arguments()
    if not _keeps(call, finding.call) or trial.operator.bound(args, kwargs) is None:
        return None
    if call.kind not in (REFUSED, kinds.OVERLAP) and not trial.plan.accepts(call):
        return None
    for item in examined(trial, CHECKS[finding.check].procedure, [call], TRIAL):
        if (
            isinstance(item, Difference)
            and item.check == finding.check
            and _kind(item.mismatch) == _kind(finding.mismatch)
        ):
            return item
    return None


def is_writable(call: DrawnCall) -> bool:
    """Whether a script can write the call."""
    try:
        program_of(without_lazy_views(call))
    except Unwritable:
        return False
    return True


def in_writable_size(trial: Examination, finding: Difference, is_late: Callable[[], bool]) -> Difference:
    """Return the difference in a call of described sizes that a script can write, if a smaller one has it in time: a
    script holds no tensor of more than 10,000 elements."""
    while not is_writable(finding.call) and trial.description is not None:
        for values in smaller_inputs(trial.description, finding.call.values, dict(finding.call.sizes)):
            call = restated(trial, finding.call.on(values), finding.call)
            if is_late():
                return finding
            if call is not None and (found := same_difference(trial, finding, call)):
                finding = found
                break
        else:
            return finding
    return finding


def restated(trial: Examination, call: DrawnCall, before: DrawnCall) -> DrawnCall | None:
    """Return a smaller call with a note about its own sizes; None if the user's description does not allow it."""
    if trial.description is None:
        differs = [tensor.shape for tensor in tensors(call.values)] != [one.shape for one in tensors(before.values)]
        return call.on(call.values, note="") if call.kind in (kinds.BLOCKS, kinds.EMPTY) and differs else call
    sizes = described_sizes(trial.description, call.values, before.sizes, call.kind == kinds.MIXED)
    if sizes is None:
        return None
    old, new = (note_of(each) for each in (before.sizes, sizes))
    return call.on(call.values, sizes=sizes, note=new if call.note == old else call.note)


def _is_right_alone(trial: Examination, finding: Difference) -> bool:
    """Whether the call of a difference shows none if no call precedes it."""
    items = [*examined(trial, CHECKS[finding.check].procedure, [finding.call], TRIAL)]
    return items == [ComparedCall(finding.call.kind, "", finding.call)]


def _kind(mismatch: Mismatch) -> tuple[str, bool, str]:
    """Return the parts of a difference that a smaller call must repeat: its oracle, whether it is of a gradient, and
    the type of an exception."""
    raised = mismatch.actual if mismatch.expected in ("an answer", "no error") else ""
    return mismatch.oracle, mismatch.where.startswith(GRADIENT), raised


def _valid(program: Program) -> Program | None:
    """Return the program if torch can create its inputs."""
    try:
        replace(program, steps=()).check()
        return program
    except ProgramError:
        return None


def _keeps(call: DrawnCall, before: DrawnCall) -> bool:
    """Whether a call still has the property of its kind. Arguments stay different tensors: a write to one must not
    change another one, and each has a gradient of its own."""
    inputs = tensors(call.values)
    if len({*map(id, inputs)}) < min(len(inputs), len({*map(id, tensors(before.values))})):
        return False
    if before.kind == kinds.EMPTY:
        return call.has_empty
    if before.kind == kinds.SCALARS:
        return any(not tensor.dim() for tensor in inputs)
    if before.kind in (kinds.STRIDED, kinds.OVERLAP):
        return any(not one.is_contiguous() or one.storage_offset() or one.is_conj() for one in inputs)
    if before.kind == kinds.MIXED:
        return len({tensor.dtype for tensor in inputs}) >= len({tensor.dtype for tensor in tensors(before.values)})
    return before.has_empty or not call.has_empty


def smaller_lengths(program: Program) -> Iterator[Program]:
    """Yield the program with one length cut, or with two lengths halved, in all tensors and in tuples and lists of
    lengths alike. Two lengths may be multiples of each other."""
    lengths = sorted({n for input_ in program.inputs for n in input_.size if n > 1}, reverse=True)
    cuts = [
        {length: fewer}
        for length in lengths
        for fewer in dict.fromkeys((1, 2, length // 2, length - 1))
        if fewer < length
    ]
    even = [length for length in lengths if not length % 2]
    cuts += [{size: size // 2, other: other // 2} for size, other in itertools.combinations(even, 2)]
    for cut in cuts:
        if candidate := _cut(program, cut):
            yield candidate


def _cut(program: Program, cut: Mapping[int, int]) -> Program | None:
    """Return the program with these lengths replaced by smaller ones."""
    named = {}
    for name, one in make_inputs(program).items():
        part = one.detach()[tuple(slice(cut.get(n)) for n in one.shape)]
        named[name] = part.clone() if one.is_contiguous() else part

    def numbers(value: Json) -> Json:
        if isinstance(value, list):
            return [cut.get(number, number) if type(number) is int else number for number in value]
        if isinstance(value, dict) and "tuple" in value:
            return {"tuple": numbers(value["tuple"])}
        return value

    (step,) = program.steps
    step = replace(step, args=tuple(map(numbers, step.args)), kwargs={k: numbers(v) for k, v in step.kwargs.items()})
    try:
        storages, inputs = inputs_of(named)
    except NotAnInput:
        return None
    return replace(program, storages=storages, inputs=inputs, steps=(step,))


def fewer_keywords(program: Program) -> Iterator[Program]:
    """Yield the program with one argument fewer."""
    (step,) = program.steps
    for key in step.kwargs:
        yield program.with_steps((replace(step, kwargs={k: v for k, v in step.kwargs.items() if k != key}),))
    if len(step.args) > 1:
        yield program.with_steps((replace(step, args=step.args[:-1]),))
