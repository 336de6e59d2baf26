"""Features that a target does not support, checked against a program before the target runs it.

"Unsupported" is never inferred from an exception, since any bug could raise one. Instead a target declares families,
steps, states and traits of programs beforehand. A program with one of them does not run and does not pass; it is
counted separately.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Iterable

import torch

from conformance.declare.declaration import unknown
from conformance.declare.features import FEATURES
from conformance.engine.aten_ops import OperatorNames, Tagged
from conformance.engine.attempt import named, not_implemented
from conformance.engine.facts import TargetFacts
from conformance.engine.kernel_tables import lacking
from conformance.engine.target import Target
from conformance.program.execute import RunningProgram
from conformance.program.model import Program
from conformance.program.steps.op import VIEW, Step, dtype_of, is_local
from conformance.program.steps.op_db import BY_VALUES, RECORDED
from conformance.program.steps.stateful import NAME as STATE
from conformance.program.steps.states import STATES
from conformance.program.steps.table import FAMILIES, OPS
from conformance.record.errors import TargetError
from conformance.record.names import SPECIALS_BACKWARD, VARIANTS
from conformance.standalone.observation import Raised
from conformance.standalone.torch_compat import DRAWS_NUMBERS, VALUE_DEPENDENT


def runs_tagged(program: Program, tags: Collection[torch.Tag]) -> bool:
    """Return whether the program calls an operator with one of these tags on torch CPU, up to an undeclared error."""
    running = RunningProgram(program)
    with Tagged(tags) as seen:
        running.run(program.steps)
    return seen.seen


def not_finite(program: Program) -> bool:
    """Return whether torch CPU's run of the program, up to an undeclared error, has a tensor or a gradient with an
    infinity or nan."""
    running = RunningProgram(program)
    running.run(program.steps)
    gradients = [running.env[input_.name].grad for input_ in program.inputs if input_.requires_grad]
    every = [value for value in (*running.env.values(), *gradients) if isinstance(value, torch.Tensor)]
    return not all(bool(tensor.isfinite().all()) for tensor in every)


def _writes_shared(program: Program) -> bool:
    """Return whether the caller writes, after the return, to memory that an input or result may share.

    A row that may return a view counts as one that does."""
    roots = {input_.name: f"storage {input_.storage}" for input_ in program.inputs}
    for step in program.every_step:
        sources = step.names()
        views = OPS[step.op].effect == VIEW and bool(sources)
        roots |= {name: roots.get(sources[0], name) if views else name for name in step.out}
    held = [root for name, root in roots.items() if not is_local(name)]
    writes = (step for step in program.steps if step.after and OPS[step.op].writes is not None)
    return any(held.count(roots[name]) > 1 for step in writes for name in step.names()[:1])


def traits_of(step: Step) -> frozenset[str]:
    """Return the traits of a step that raises."""
    op = OPS.get(step.op)
    if op is None or not step.raises:
        return frozenset()
    traits = {RAISES}
    traits |= {WRITE_RAISES} if op.writes is not None else set()
    traits |= {NO_KERNEL} if step.raises == "NotImplementedError" else set()
    return frozenset(traits | ({"a refused call"} if not op.may_raise else set()))


WANTS_GRAD, WITH_OUT, SHARED = "an input that requires grad", "a call with out=", "inputs that share a storage"
RAISES, WRITE_RAISES = "a step that raises", "a write that raises"
AVOIDED = WANTS_GRAD, WITH_OUT, SHARED, RAISES, WRITE_RAISES
"""Frequent traits, which drawing avoids for a target that does not support them."""

NO_KERNEL = "a dtype without a kernel"
"""Trait of a call in a dtype that torch CPU does not implement; another device may implement it."""

SPARSE = "sparse"
"""Trait of op_db's samples: a tensor that is not strided."""

EAGER_ONLY = {"step": frozenset({"conversions", "dtypes"}), "trait": frozenset({NO_KERNEL})}
"""Families and traits of calls whose answer PyTorch leaves to the device (`TargetFacts.follows_eager`)."""

TAGGED: dict[str, Collection[torch.Tag]] = {
    "an answer that depends on values": VALUE_DEPENDENT,
    "random numbers": DRAWS_NUMBERS,
    "a geometry that changes in place": (torch.Tag.inplace_view,),
}
"""Traits of programs and of op_db's samples that a target may declare as unsupported: torch CPU calls an operator with
one of these tags."""

TRAITS: dict[str, Callable[[Program], bool]] = {
    RAISES: lambda program: _has(program, RAISES),
    WRITE_RAISES: lambda program: _has(program, WRITE_RAISES),
    "a refused call": lambda program: _has(program, "a refused call"),
    NO_KERNEL: lambda program: _has(program, NO_KERNEL),
    WANTS_GRAD: lambda program: any(input_.requires_grad for input_ in program.inputs),
    "a second backward": lambda program: sum(step.op == "backward" for step in program.steps) > 1,
    "a backward inside": lambda program: any(s.op == "backward" and not s.after for s in program.steps),
    "a caller that writes shared memory": _writes_shared,
    SHARED: lambda program: len({input_.storage for input_ in program.inputs}) < len(program.inputs),
    "values that are not finite": not_finite,
    WITH_OUT: lambda program: any(OPS[step.op].writes == "out" for step in program.steps),
    **{trait: functools.partial(runs_tagged, tags=tags) for trait, tags in TAGGED.items()},
}
"""Traits of programs that a target may declare as unsupported, each with its predicate."""


def _has(program: Program, trait: str) -> bool:
    return any(trait in traits_of(step) for step in program.steps)


STATE_NAMES = frozenset({*STATES, *(name.partition(":")[0] for name in STATES)})
"""States that a target may declare as unsupported, with or without an argument."""

KNOWN = {
    "step": frozenset({*FAMILIES, *OPS, RECORDED, BY_VALUES}),
    "state": STATE_NAMES,
    "trait": frozenset({*TRAITS, SPARSE}),
    "variant": frozenset(VARIANTS),
}
"""The names of parts that a target may declare as unsupported, by key of a scope."""


def unsupported_names(facts: TargetFacts, key: str) -> frozenset[str]:
    """Return the names of parts that a target does not support. `key` is a key of a scope: "step" (families included),
    "state", "trait" or "variant" (of op_db)."""
    scopes = (declaration.scope for declaration in facts.declarations if declaration.holds)
    names: set[str] = {name for scope in scopes for name in getattr(scope, key)}
    if key == "step":
        names.update(*(FEATURES[feature].steps for feature in facts.lacks))
    if key == "variant" and "backward" in names:
        names.update(SPECIALS_BACKWARD)
    if not facts.follows_eager:
        names.update(EAGER_ONLY.get(key, ()))
    return frozenset(names)


def unsupported_reason(program: Program, facts: TargetFacts) -> str:
    """Return the reason why a target does not support the program; "" if it does."""
    steps, states, traits = (unsupported_names(facts, key) for key in ("step", "state", "trait"))
    for step in program.every_step:
        for name in (step.op, OPS[step.op].family):
            if name in steps:
                return name
    for name in (state for step in program.every_step for state in step.under):
        left_out = {name, name.partition(":")[0]} & states
        if left_out or (facts.transforms_program and not STATES[name].compiled):
            return f"under {name}"
    for trait, has in TRAITS.items():
        if trait in traits and has(program):
            return trait
    if facts.dtypes is not None:
        missing = [name for name in dtypes_of(program) if dtype_of(name) not in facts.dtypes]
        return f"dtype {missing[0]}" if missing else ""
    return ""


def lacking_operator(program: Program, target: Target) -> str:
    """Return an operator that the program calls on torch CPU and that the target's profile declares missing, or "".

    Runs the program on the CPU if the profile declares missing operators."""
    if target.facts.profile is None or not target.facts.profile.operators:
        return ""
    return lacking(operators_of(program, program.steps), target)


def missing_operator(error: Raised | None, target: Target) -> str:
    """Return the operator that the error says is missing, if the target's profile declares it missing too; else "".

    Torch's kernels call operators that `operators_of` cannot see, such as aten::_cummax_helper in aten::cummax. An
    error alone never means "unsupported": the profile must name the same operator."""
    if error is None or target.facts.profile is None or not not_implemented(error):
        return ""
    operator = named(error.text)
    return operator if operator in target.facts.profile.operators else ""


def disabled_autocast(program: Program, target: Target) -> str:
    """Return the state of autocast that the program enters and that torch disables, with a warning, since the device
    does not list the dtype; else ""."""
    name, kind = "autocast:bfloat16", target.device.type
    if not any(name in step.under for step in program.every_step):
        return ""
    try:
        with warnings.catch_warnings(action="ignore"), torch.autocast(kind, torch.bfloat16):
            return "" if torch.is_autocast_enabled(kind) else f"under {name}"
    except Exception:  # the program itself raises it, and is judged
        return ""


def operators_of(program: Program, steps: Iterable[Step]) -> Collection[str]:
    """Return the dispatcher's operators that these steps call on torch CPU, from the program's inputs. The run stops
    at an undeclared error."""
    running = RunningProgram(program)
    with OperatorNames() as operators:
        running.run(steps)
    return operators.names


def dtypes_of(program: Program) -> list[str]:
    """Return the dtypes of the program's inputs, of its constants on the device, and of its dtype arguments."""
    markers = (marker for step in program.every_step for marker in step.markers())
    constants = [marker["dtype"] for marker in markers if "dtype" in marker and not marker.get("host")]
    return [input_.dtype for input_ in program.inputs] + constants


def unsupported_steps(facts: TargetFacts) -> tuple[str, ...]:
    """Return the families and steps to leave out of drawing: those that the target does not support, and the family of
    states if it transforms programs, since few states can be in one."""
    return tuple(sorted(unsupported_names(facts, "step") | ({STATE} if facts.transforms_program else set())))


def unsupported_traits(facts: TargetFacts) -> tuple[str, ...]:
    """Return the traits that the target does not support and that drawing avoids."""
    return tuple(sorted(unsupported_names(facts, "trait") & {*AVOIDED}))


def held(dtypes: tuple[str, ...], facts: TargetFacts) -> tuple[str, ...]:
    """Return the dtypes to draw for a target: those in its profile if there is one with dtypes, otherwise all."""
    known = facts.dtypes if facts.profile is not None else None
    return tuple(name for name in dtypes if known is None or dtype_of(name) in known)


def check_declarations(target: Target) -> None:
    """Raise TargetError if the target declares as unsupported a name that does not exist, and so would declare
    nothing."""
    problems = unknown(target.facts.declarations, KNOWN)
    if problems:
        raise TargetError(f"target {target.spec!r}, {problems[0].removesuffix('.')}")
