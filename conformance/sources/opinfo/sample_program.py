"""A sample of op_db in a variant and a layout as a program: its tensors are the inputs, its call is a step.

Defines `written`, and `steps_of` and `results_of`, which drawing shares. An entry is often a wrapper around the
user's call. So a call is written with a public name: a function, a method or an attribute. `written` runs both on
torch CPU and accepts the program only if every observed fact agrees. A gradient variant has one more step for each
differentiated result; cotangents and tangents are inputs. A call that torch CPU refuses is a step that must raise, and
one that draws random numbers has the entry's seed around it.

A call that no program can hold has a reason (`Unwritable`), and runs only as a sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from conformance.program.capture import NotAnInput, Unwritable, encoded, inputs_of, on_host
from conformance.program.execute import Broken, directions_of
from conformance.program.float64 import JudgedProgram
from conformance.program.model import Program, ProgramError, fresh_names
from conformance.program.shadow import reference as program_reference
from conformance.program.steps.op import ATTRIBUTE, METHOD, Json, Step, dtype_name, tensor
from conformance.program.steps.op_db import has_function, has_method
from conformance.program.steps.states import SEEDS
from conformance.record.names import ORACLES, SPECIALS_BACKWARD
from conformance.sources.opinfo import catalog
from conformance.sources.opinfo.variants import SampleTrial
from conformance.standalone.moving import storage_key, tensors
from conformance.standalone.observation import Observation, Raised, names_of
from conformance.standalone.oracles import WHOLE, compare

RESULT = "result"
"""Name of the single result of a call; several results are `result_0`, `result_1`, ..."""

BACKWARD, FORWARD_OVER_BACKWARD = ("backward", *SPECIALS_BACKWARD), "forward_over_backward"

STEP = "step 1"
"""Name of the answer of the call's step, if it is no tensor."""


def written(trial: SampleTrial) -> tuple[Program, dict[str, str]]:
    """Return a sample's program of given inputs as a program that is data, on the same terms, and its names by the
    names in an observation of the former.

    Runs it on torch CPU. Raises Unwritable."""
    case, given, run = trial.case, trial.program, trial.cpu.run
    if given.process is not None:
        raise Unwritable("a result whose sign or phase is free")
    names = _Names(given)
    args, kwargs = names.arguments()
    seen, outcome, error = run.last, run.outcome, run.last.error
    if error is not None and error.not_implemented:
        raise Unwritable("a call that torch CPU does not implement")
    if case.variant == FORWARD_OVER_BACKWARD and error is None:
        outcome = [derivative for derivative in outcome if derivative is not None]
        seen = replace(seen, others={} if outcome else {RESULT: outcome})
    results, ending = results_of(outcome) if error is None else ({}, "")
    known = names.of_observation(run.outcome, results, error)
    draws = error is None and JudgedProgram(given).draws
    drawn = directions_of(given)
    derived = names.of_directions(drawn) if case.variant == FORWARD_OVER_BACKWARD and error is None else ()
    backward = _backward(names, drawn, results) if case.variant in BACKWARD else ()
    bare, reason, op = names.program(trial), "", catalog.find(case)
    oracles = {*ORACLES} if catalog.has_value(op) else {*ORACLES} - {"value", "storage"}
    forms = steps_of(op, case.variant, ending, (*derived, *args), kwargs)
    for step, seed in itertools.product(forms, SEEDS if draws else ("",)):
        under = (seed,) if seed else ()
        step = replace(step, out=tuple(results), raises=error.kind if error else None, under=under)
        program = bare.with_steps((step, *backward))
        try:
            answer = program_reference(program).observation
        except (ProgramError, Broken) as broken:
            reason = reason or f"a program without a defined meaning: {_cause(str(broken))}"
            continue
        if not compare(_renamed(seen, known, answer), answer, oracles=oracles):
            return replace(program, **_terms(given, known, answer)), known
        reason = reason or "a public function that answers differently from the entry"
    raise Unwritable(reason or "a call without a public name")


def unrun(trial: SampleTrial) -> Program:
    """Return a program that ends the process, as data of one step without results. Nothing runs.

    Raises Unwritable."""
    names = _Names(trial.program)
    args, kwargs = names.arguments()
    for step in steps_of(catalog.find(trial.case), trial.case.variant, "", args, kwargs):
        return names.program(trial).with_steps((step,))
    raise Unwritable("a call without a public name")


class _Names:
    """Names of the given tensors in the program that is data, in the order of the call's arguments."""

    def __init__(self, program: Program) -> None:
        self.trees, self.fresh = program.trees, fresh_names({})
        self.kept = {key for given in program.given for key in given.kept}
        self.tensors: dict[str, torch.Tensor] = {}
        self.known: dict[int, str] = {}
        self.places = {name: leaf for key, part in self.trees.items() for name, leaf in names_of(part, key).items()}

    def name(self, value: torch.Tensor) -> str:
        """Return the name of a tensor, and make it an input if it is new."""
        if id(value) not in self.known:
            self.known[id(value)] = name = next(self.fresh)
            self.tensors[name] = value
        return self.known[id(value)]

    def marker(self, value: torch.Tensor) -> Json:
        """Return the marker of a tensor. A tensor that stays on the CPU is a constant."""
        stays = value.layout is torch.strided and not value.is_meta and storage_key(value) in self.kept
        return on_host(value) if stays else tensor(self.name(value))

    def arguments(self) -> tuple[tuple[Json, ...], dict[str, Json]]:
        """Return the arguments of the call's step. Raises Unwritable."""
        named = {**self.trees["kwargs"], **({"out": self.trees["out"]} if "out" in self.trees else {})}
        args = tuple(encoded(value, self.marker) for value in (self.trees["input"], *self.trees["args"]))
        return args, {key: encoded(value, self.marker) for key, value in named.items()}

    def of_directions(self, drawn: Sequence[torch.Tensor]) -> tuple[Json, ...]:
        """Return the tangents and the cotangents of a derivative in forward mode: two lists."""
        count = sum(operand.requires_grad for operand in tensors(self.trees))
        named = [tensor(self.name(direction)) for direction in drawn]
        return named[:count], named[count:]

    def program(self, trial: SampleTrial) -> Program:
        """Return a program with the named tensors as inputs, without steps. Raises Unwritable."""
        try:
            storages, inputs = inputs_of(self.tensors)
        except NotAnInput as error:
            raise Unwritable(str(error)) from error
        return Program(storages, inputs, note=f"{trial.case.id}, sample {trial.sample.index}")

    def of_observation(self, outcome: Any, results: Collection[str], error: Raised | None) -> dict[str, str]:
        """Return the program's names by the names in an observation of the call."""
        names = {name: self.known[id(leaf)] for name, leaf in self.places.items() if id(leaf) in self.known}
        if error is not None:
            return {**names, WHOLE: STEP}
        if results:
            tensors = (name for name, leaf in names_of(outcome, RESULT).items() if isinstance(leaf, torch.Tensor))
            return names | dict(zip(tensors, results, strict=True))
        return names if outcome is None else {**names, RESULT: STEP}


def results_of(outcome: Any) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors in a call's outcome by name, and the ending of the step's kind. Raises Unwritable."""
    if isinstance(outcome, torch.Tensor):
        named, ending = {RESULT: outcome}, ""
    elif isinstance(outcome, (tuple, list)) and outcome and all(isinstance(result, torch.Tensor) for result in outcome):
        named, ending = {f"{RESULT}_{at}": result for at, result in enumerate(outcome)}, ".many"
    elif tensors(outcome):
        raise Unwritable("a result that is no tensor or row of tensors")
    else:
        named, ending = {}, ".query"
    if any(tensor.layout is not torch.strided for tensor in named.values()):
        raise Unwritable("a sparse result")
    return named, ending


def _backward(
    names: _Names, cotangents: Sequence[torch.Tensor], results: Mapping[str, torch.Tensor]
) -> tuple[Step, ...]:
    """Return the steps that differentiate the results with these cotangents."""
    roots = [name for name, result in results.items() if result.requires_grad]
    steps = [
        Step("backward", (tensor(name), tensor(names.name(cotangent)))) for name, cotangent in zip(roots, cotangents)
    ]
    return tuple(replace(step, kwargs={"retain_graph": True}) for step in steps[:-1]) + tuple(steps[-1:])


def steps_of(op: Any, variant: str, ending: str, args: tuple[Json, ...], kwargs: dict[str, Json]) -> Iterator[Step]:
    """Yield the ways to call a variant of the entry by public names."""
    if variant in ("method", "inplace"):
        place = variant == "inplace"
        name = getattr(op.inplace_variant if place else op.method_variant, "__name__", "")
        if has_method(name, METHOD):
            yield Step(f"op_db.inplace:{name}" if place else f"op_db.method{ending}:{name}", args, kwargs)
        if has_function(name):
            yield Step(f"op_db.function.inplace:{name}" if place else f"op_db{ending}:{name}", args, kwargs)
    elif variant == FORWARD_OVER_BACKWARD:
        name = op.name.removeprefix("torch.")
        path = name if has_function(name) else f"Tensor.{name}"
        if has_function(name) or has_method(name, METHOD):
            yield Step(f"op_db.forward_over_backward:{path}", args, kwargs)
            if len(args) > 3:
                yield Step(f"op_db.forward_over_backward:{path}", (*args[:2], args[3], args[2], *args[4:]), kwargs)
    elif variant == "out":
        for step in _forms(op, "", args, kwargs):
            if step.op.startswith("op_db:"):
                yield replace(step, op=step.op.replace(":", ".out:", 1))
    else:
        yield from _forms(op, ending, args, kwargs)


def _forms(op: Any, ending: str, args: tuple[Json, ...], kwargs: dict[str, Json]) -> Iterator[Step]:
    """Yield the ways to call the entry by public names: as a function, as a method, as an attribute."""
    name = op.name.removeprefix("torch.")
    if has_function(name):
        yield Step(f"op_db{ending}:{name}", args, kwargs)
        if len(args) > 1:
            yield Step(f"op_db{ending}:{name}", (args[1], args[0], *args[2:]), kwargs)
    if has_method(name, METHOD):
        yield Step(f"op_db.method{ending}:{name}", args, kwargs)
    if has_method(name, ATTRIBUTE) and not args[1:] and not kwargs:
        yield Step(f"op_db.attribute:{name}", args)


def _renamed(seen: Observation, names: Mapping[str, str], program: Observation) -> Observation:
    """Return the call's observation under the program's names. The cotangents, which no call observes, are the
    program's."""
    tensors = {
        names[name]: replace(tensor, alias=names.get(tensor.alias, tensor.alias))
        for name, tensor in seen.tensors.items()
        if name in names
    }
    others = {names[name]: other for name, other in seen.others.items() if names.get(name, "").startswith("step ")}
    others |= {} if seen.error is None else {names[WHOLE]: seen.error}
    storages = {names[name]: storage for name, storage in seen.storages.items() if name in names}
    grads = {names[name]: grad for name, grad in seen.grads.items() if name in names}
    more = {name: tensor for name, tensor in program.tensors.items() if name not in tensors}
    return replace(
        seen,
        tensors={**tensors, **more},
        others=others,
        error=None,
        storages={**storages, **{name: program.storages[name] for name in more if name in program.storages}},
        grads=grads,
    )


def _terms(given: Program, names: Mapping[str, str], answer: Observation) -> dict[str, Any]:
    """Return the terms of a program of given inputs, with the dtypes and names of the program that is data."""
    dtypes = {
        dtype_name(tensor.dtype)
        for tensor in answer.tensors.values()
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex
    }
    undefined = list[str]()
    for beginning in given.undefined:
        fact, _, root = beginning.rpartition(" ")
        undefined += [f"{fact} {name}" for old, name in names.items() if old.partition("[")[0] == root]
    if WHOLE in names:  # PyTorch does not define the content of operands after a refused call
        undefined = ["value of ", "storage of ", "version of "]
    return {
        "tolerance": {name: given.tolerance[name] for name in sorted(dtypes & given.tolerance.keys())},
        "rules": given.rules,
        "undefined": tuple(dict.fromkeys(undefined)),
    }


def _cause(text: str) -> str:
    """Return an error's text without the place of the step."""
    return text.partition(": ")[2].partition("\n")[0][:80] or text[:80]
