"""Steps of drawn programs with one argument changed: another kind of argument, or one that torch mostly refuses.

Defines `extended`. A share of the programs has such steps at the end. Each repeats a step of the program with one
argument changed by a row of op_db's table of changes. torch CPU says whether it accepts the call: the shadow runs it
like any step, and records its error as the answer that every target must give. The choices come from their own source,
so the steps before do not depend on this module.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import torch

from conformance.program.capture import Unwritable, encoded
from conformance.program.execute import Broken
from conformance.program.model import LOOP, Program, ProgramError, fresh_names
from conformance.program.shadow import ROUNDED, Shadow, Undefined, copied, reference
from conformance.program.steps.draw import Draw, Source
from conformance.program.steps.op import (
    COMPUTE,
    FUNCTION,
    GETITEM,
    LOSSY,
    METHOD,
    SETITEM,
    Json,
    Step,
    constant,
    dtype_name,
    tensor,
)
from conformance.program.steps.table import OPS
from conformance.program.unsupported import traits_of
from conformance.record.names import ARGUMENTS
from conformance.run.campaign.drawing_counts import Tally
from conformance.sources.opinfo import arguments, undefined
from conformance.sources.opinfo.arguments import Change, Place
from conformance.standalone.sample_runtime import replaced

SHARE = 10
"""One of this many programs ends with changed steps."""

MOST, PARSED = 4, 8
"""Largest number of changed steps of a program. One of `PARSED` calls with arguments of a wrong type is among them."""

FORMS = (METHOD, FUNCTION, SETITEM, GETITEM)
"""Forms of calls whose arguments are changed: calls of torch, not of helpers."""

EXCLUDED = ("autograd", "metadata in place", "questions", "state", "layers")
"""Families whose arguments are not changed: a change of metadata, or a step of several calls."""


def extended(program: Program, source: Source, unsupported: Collection[str], tally: Tally) -> Program:
    """Return the program with changed steps if it is one of the share, else the program itself. They come last, but
    before the steps that the caller runs after the return of the function.

    `source` makes the choices. `unsupported` are the traits that the target does not support. A changed step with one
    of them is left out.
    """
    d = Draw(source)
    if not d.chance(1, SHARE):
        return program
    inside = [step for step in program.steps if not step.after]
    later = program.steps[len(inside) :]
    shadow = Shadow(program.with_steps(()))
    with warnings.catch_warnings(), contextlib.suppress(Broken):
        warnings.simplefilter("ignore")
        for step in inside:
            shadow.step(step)
            shadow.steps.append(step)
        shadow.names = fresh_names({**shadow.env, **{name: None for step in later for name in step.out}})
        _extend(shadow, d, tally)
    added = (step for step in shadow.steps[len(inside) :] if not traits_of(step) & {*unsupported})
    longer = program.with_steps((*inside, *added, *later))
    return longer if len(longer.steps) == len(program.steps) or _has_meaning(longer) else program


def _has_meaning(program: Program) -> bool:
    """Whether the changed steps, and the caller's steps behind them, have a meaning on torch CPU. An error may depend
    on earlier inspections of a view, and torch accepts a size of -2**63, with which it cannot copy the tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            reference(program)
            return True
        except (ProgramError, RuntimeError):
            return False


def _extend(shadow: Shadow, d: Draw, tally: Tally) -> None:
    """Offer changed steps to the shadow."""
    steps = [step for step in shadow.steps if _changeable(step, shadow)]
    for _ in range(MOST if steps else 0):
        step = d.choice(steps)
        args, kwargs = shadow.arguments(step)
        tree = {"input": args[0], "args": tuple(args[1:]), "kwargs": kwargs}
        options = list(_options(step, tree))
        if not options:
            continue
        variant = d.choice(list(dict.fromkeys(change.variant for _, change in options)))
        place, change = d.choice([option for option in options if option[1].variant == variant])
        variation = arguments.changed(tree, place, change)
        changed = None if variation is None else _with(step, place, variation[1], change.host, shadow)
        if changed is None or not _judged(changed, shadow):
            continue
        error = _error(changed, shadow)
        if variant == "refused_device" and not error:
            continue  # torch CPU reads an index without values (docs/findings.md)
        if error is None or (error == "TypeError" and not d.chance(1, PARSED)):
            continue
        if not error and not changed.names():
            continue  # a result of Python numbers alone lies on the CPU
        offered = shadow.offer(replace(changed, raises=error, out=()) if error else changed, aimed=True)
        if offered is not None and offered.raises and shadow.answers.get(f"step {shadow.done}") == "no error":
            shadow.undo(len(shadow.steps) - 1)  # torch refuses only the copies, which overlap in other ways
        elif offered is not None:
            outcome = offered.raises or "accepted"
            tally.arguments[f"{step.op}|{arguments.shown(place)}|{variant}|{outcome}"] += 1


def _judged(step: Step, shadow: Shadow) -> bool:
    """Whether the shadow can judge the step. Predicates of a row take only the kinds of arguments of its rule."""
    try:
        shadow.judge(step)
    except Undefined:
        return False
    except (RuntimeError, TypeError, AttributeError, ValueError, IndexError):
        return False
    return True


def _error(step: Step, shadow: Shadow) -> str | None:
    """Return the type of the error of the call on copies of the tensors, or "" without an error. Return None if other
    devices need not share the error, or if the results are not of the kind of the unchanged step."""
    args, kwargs = copied(shadow.arguments(step))
    try:
        result = OPS[step.op].run(args, kwargs)
    except NotImplementedError:
        return None
    except Exception as error:
        return type(error).__name__ if "INTERNAL ASSERT" not in str(error) else None
    results = result if isinstance(result, (tuple, list)) else [result]
    tensors = [result for result in results if isinstance(result, torch.Tensor)]
    if any(tensor.is_meta for tensor in tensors):
        return None
    return "" if not step.out or len(tensors) == len(results) == len(step.out) else None


def _changeable(step: Step, shadow: Shadow) -> bool:
    """Whether torch can make the step's call again, and rounding errors do not add up in it."""
    op = OPS.get(step.op) if step.op != LOOP else None
    if op is None or op.form not in FORMS or op.family in EXCLUDED or step.raises or step.under:
        return False
    names = step.names()
    if not step.args or any(name not in shadow.env for name in names):
        return False
    return op.effect not in (COMPUTE, LOSSY) or all(shadow.level(shadow.env[name]) != ROUNDED for name in names)


def _options(step: Step, tree: dict[str, Any]) -> Iterator[tuple[Place, Change]]:
    """Yield the changes of the step's arguments. The tensor of a method, and a written tensor, stay tensors."""
    op = OPS[step.op]
    for place, kind, value in arguments.places(tree):
        own = place[0] == "input" and (op.form is not FUNCTION or op.writes == 0)
        if own or (place[0] == "kwargs" and place[1] == "out"):
            continue
        if isinstance(value, torch.Tensor) and value.requires_grad:
            continue
        for variant in ARGUMENTS:
            if undefined.faulty(op.call or op.name, variant):
                continue
            for change in arguments.table()[variant].get(kind, ()):
                yield place, change


def _with(step: Step, place: Place, new: Any, host: bool, shadow: Shadow) -> Step | None:
    """Return the step with another argument and new results, or None if a program cannot hold it."""
    names = {id(value): name for name, value in shadow.env.items()}

    def marker(value: torch.Tensor) -> Json:
        return tensor(names[id(value)]) if id(value) in names else _constant(value, host)

    try:
        value = encoded(new, marker)
    except Unwritable:
        return None
    start, *rest = place
    args, kwargs = [*step.args], dict(step.kwargs)
    if start == "kwargs":
        kwargs = replaced(kwargs, rest, value)
    else:
        first, *inner = (0, *rest) if start == "input" else (int(rest[0]) + 1, *rest[1:])
        if inner and isinstance(args[int(first)], dict) and "tuple" in args[int(first)]:
            inner = ["tuple", *inner]
        args[int(first)] = replaced(args[int(first)], inner, value)
    return replace(step, args=tuple(args), kwargs=kwargs, out=shadow.fresh(len(step.out)))


def _constant(value: torch.Tensor, host: bool) -> Json:
    """Return a new tensor as a constant. Raises Unwritable for a tensor that a list cannot describe."""
    if value.dim() > 1 and not value.numel():
        raise Unwritable("a tensor without elements and of several dimensions")
    if value.is_meta:
        return {"meta": list(value.size()), "dtype": dtype_name(value.dtype)}
    return constant(value, **({"host": True} if host else {}))
