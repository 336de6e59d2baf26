"""The program as data: inputs of exact geometry and a list of steps, with its JSON format.

The key insight: a program is plain data, neither a pickle nor code. So the same object can be drawn, shrunk and saved.
It can also be replayed in another process, compared between targets and printed as a script.

This module depends on the step table only. Other modules run, draw, judge and report programs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import random
import string
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from conformance.engine.rules import KNOWN
from conformance.program.steps.op import Json, Step, StepError, decode, dtype_of, is_local, is_name
from conformance.program.steps.states import STATES, fault_of
from conformance.program.steps.table import OPS
from conformance.record.errors import UserError

T = TypeVar("T")

SCHEMA = 1

TERMS = ("rules", "undefined")
"""Lists of a program that only a sample of op_db has."""

LOOP = "loop"
"""Op of a step that runs its body several times."""

LONGEST_LOOP = 1000
"""Largest number of turns of a loop that `check` accepts. Drawn loops run over a dimension of at most 256 elements."""

LARGEST_STORAGE = 1_000_000
"""Largest number of cells of a storage that `check` accepts. Drawn storages have a few hundred cells."""

SPECIAL = (math.nan, math.inf, -math.inf, -0.0)
"""Floats that need special handling in kernels."""


class ProgramError(UserError):
    """A program that cannot be read or run. The message is one sentence with the fault and its place."""


@dataclass(frozen=True)
class Storage:
    """Cells of one dtype. `values` is a list or one of four generators:

    - "arange": 0, 1, 2, ... modulo 100
    - {"seed": n}: small whole numbers, for floats also halves
    - {"special": n}: such numbers mixed with nan, infinities and -0.0, or with an integer dtype's limits and neighbours
    - {"random": n, "low": a, "high": b}: numbers from a to b, both included. Floats are distinct unless the dtype
      rounds them. With "distinct": true, integers are distinct as well. With "sorted": true, numbers ascend to b.
      "beside" is a further number that replaces some of them, such as a label that a loss ignores
    """

    dtype: str
    size: int
    values: Json = "arange"

    def make(self) -> torch.Tensor:
        """Return the storage's content as a 1-d CPU tensor."""
        dtype = dtype_of(self.dtype)
        if isinstance(self.values, dict) and "random" in self.values:
            return _random(self.size, dtype, **self.values)
        return torch.tensor(self.literal(), dtype=dtype) if self.size else torch.empty(0, dtype=dtype)

    def literal(self) -> list[Any]:
        """Return the content as Python numbers. The dtype represents all generated numbers exactly."""
        dtype = dtype_of(self.dtype)
        if isinstance(self.values, list):
            return list(decode(self.values, {}, torch.device("cpu")))
        if isinstance(self.values, dict) and "random" in self.values:
            return self.make().tolist()
        if self.values == "arange":
            numbers: list[int] = [k % 100 for k in range(self.size)]
        else:
            ((kind, seed),) = self.values.items()
            special, rng = kind == "special", random.Random(seed)
            low = 0 if not dtype.is_signed else -8
            numbers = [rng.randint(low, 8) for _ in range(self.size)]
            if special and dtype.is_floating_point:
                return [rng.choice((float(n), *SPECIAL)) for n in numbers]
            if special and not (dtype.is_complex or dtype is torch.bool):
                info = torch.iinfo(dtype)
                return [rng.choice((n, info.min, info.max, info.min + 1, info.max - 1)) for n in numbers]
            if dtype.is_floating_point:
                return [n + rng.choice((0, 0, 0.5)) for n in numbers]
        return [bool(n % 2) for n in numbers] if dtype is torch.bool else list(numbers)


RANDOM = frozenset({"random", "low", "high"})
"""Keys of the generator of random numbers that it cannot do without."""

GRID = 4000
"""Least number of steps between the lowest and the highest of a storage's random floats."""


def _random(
    size: int,
    dtype: torch.dtype,
    random: int,
    low: float,
    high: float,
    distinct: bool = False,
    sorted: bool = False,
    beside: Json = None,
) -> torch.Tensor:
    """Return the cells that the generator "random" of `Storage` describes, as a 1-d CPU tensor."""
    source = torch.Generator().manual_seed(random)
    if dtype is torch.bool:
        result = torch.randint(0, 2, (size,), generator=source).bool()
    elif dtype.is_complex:
        parts = [_random(size, torch.float64, random + part, low, high) for part in (0, 1)]
        result = torch.complex(*parts).to(dtype)
    elif dtype.is_floating_point:
        steps = GRID
        while steps < size:
            steps *= 10
        places = torch.randperm(steps + 1, generator=source)[:size].double()
        result = (low + (high - low) * (places / steps)).to(dtype)
    elif distinct:
        if high - low >= LARGEST_STORAGE:
            raise ValueError(f"distinct integers from {low} to {high} are more than {LARGEST_STORAGE}")
        result = (torch.randperm(int(high) - int(low) + 1, generator=source)[:size] + int(low)).to(dtype)
    else:
        result = torch.randint(int(low), int(high) + 1, (size,), generator=source).to(dtype)
    if sorted:
        result = result.sort().values
        result[-1:] = high  # the last of ascending ends, which covers all rows
    if beside is not None:
        result[torch.randint(0, 4, (size,), generator=source) == 0] = decode(beside, {}, torch.device("cpu"))
    return result


@dataclass(frozen=True)
class Input:
    """A named tensor on a storage. `dtype` may differ from the storage's; `stride` and `offset` count its elements.

    If `same` names an earlier input, this input is the same tensor object."""

    name: str
    storage: int
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    requires_grad: bool = False
    same: str = ""

    def to_json(self) -> dict[str, Json]:
        """Return the input as JSON, without an empty `same`."""
        data = {**vars(self), "size": list(self.size), "stride": list(self.stride)}
        return data if self.same else {key: value for key, value in data.items() if key != "same"}


@dataclass(frozen=True)
class GivenInput:
    """A named input that exists already: a whole argument tree of a call, such as the keyword arguments of a sample of
    op_db. Its leaves are tensors of any layout, sparse ones included, and any Python objects; `MARKER` stands for the
    target's device. `kept` are the storages that stay on the CPU. A result may lie there too if it is `on_host`.

    With `make`, the function makes the value for each run. The program keeps no copy of it, which would count as memory
    of the call, and nothing observes it after the call."""

    name: str
    value: Any = None
    kept: Collection[int] = ()
    on_host: bool = False
    make: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Call:
    """A further call of a program's function, as changes against the first call.

    - `inputs`: changed fields of inputs, by name: "size", "stride", "offset", "dtype", "requires_grad" and "same";
      "values" of the input's storage; "beside", the name of an earlier input whose storage this input
      shares; and "alone", for a storage of its own.
    - `arguments`: other values of the Python arguments, by name (the markers `{"arg": name, "value": v}` of the steps).
    - `under`: global states around the call.
    - `restarted`: the function is compiled anew before the call, as in a new process that finds what the compiler saved
      at the calls before."""

    inputs: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    arguments: Mapping[str, Json] = field(default_factory=dict)
    under: tuple[str, ...] = ()
    restarted: bool = False

    def to_json(self) -> dict[str, Json]:
        """Return the call as JSON without its empty fields."""
        data: dict[str, Json] = {"inputs": {name: dict(changed) for name, changed in self.inputs.items()}}
        data |= {"arguments": dict(self.arguments), "under": list(self.under), "restarted": self.restarted}
        return {key: value for key, value in data.items() if value}

    @classmethod
    def from_json(cls, data: Json) -> Call:
        """Return the call from the output of `to_json`. Raises ProgramError, TypeError and AttributeError."""
        unknown = {name for changed in data.get("inputs", {}).values() for name in changed} - CHANGES
        if unknown:
            raise ProgramError(f"a call changes {min(unknown)!r} of an input: choose from {', '.join(sorted(CHANGES))}")
        if not isinstance(data.get("restarted", False), bool):
            raise ProgramError(f"'restarted' of a call is {data['restarted']!r}: write true or false")
        return cls(**{**data, "under": tuple(data.get("under", ()))})


CHANGES = frozenset({"size", "stride", "offset", "dtype", "requires_grad", "same", "values", "beside", "alone"})
"""The keys of a changed input of a call."""


@dataclass(frozen=True)
class Program:
    """Storages, the inputs on them, and the steps. `note` is free text for readers.

    `calls` are further calls of the program's function, after the first one. Only targets that transform functions make
    them.

    `tolerance` maps a dtype to (rtol, atol) if PyTorch's own tests use a larger tolerance than usual for an op of the
    program. `rules` and `undefined` are further terms of a sample of op_db (`engine.judge.Terms`); the rules hold for
    its first step.

    A sample of op_db has `given` inputs in place of storages, and its first step calls the entry itself. Such a program
    lives in one process only: if it fails, `sources/opinfo/sample_program.py` writes it with literal inputs and a
    public call. `operators` are those that the object of a step calls, if it calls several. `process` converts a result
    whose sign or phase is free. If `refusal` is not None, the call must raise
    an error whose text matches that pattern, and nothing else is compared."""

    storages: tuple[Storage, ...]
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...] = ()
    note: str = ""
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    given: tuple[GivenInput, ...] = ()
    process: Callable[[Any], Any] | None = None
    refusal: str | None = None
    operators: tuple[str, ...] = ()

    @functools.cached_property
    def trees(self) -> dict[str, Any]:
        """The given inputs by name, without those that are made for each run."""
        return {given.name: given.value for given in self.given if given.make is None}

    def make_given(self) -> dict[str, Any]:
        """Return the given inputs of one run by name."""
        return {given.name: given.value if given.make is None else given.make() for given in self.given}

    def to_json(self) -> dict[str, Json]:
        """Return the program as JSON, with the schema's version. Raises ProgramError for a program of given inputs."""
        if self.given:
            raise ProgramError(f"{self.note}: a program of given inputs cannot be saved")
        return {
            "schema": SCHEMA,
            **({"note": self.note} if self.note else {}),
            **({"tolerance": {name: list(pair) for name, pair in self.tolerance.items()}} if self.tolerance else {}),
            **{key: list(terms) for key in TERMS if (terms := getattr(self, key))},
            "storages": [vars(storage) for storage in self.storages],
            "inputs": [input_.to_json() for input_ in self.inputs],
            "steps": [step.to_json() for step in self.steps],
            **({"calls": [call.to_json() for call in self.calls]} if self.calls else {}),
        }

    @classmethod
    def from_json(cls, data: Json) -> Program:
        """Return the program from the output of `to_json`. Raises ProgramError if the data is not a valid program."""
        if not isinstance(data, dict) or "schema" not in data:
            raise ProgramError("this is not a program: it has no 'schema'")
        if data["schema"] != SCHEMA:
            raise ProgramError(
                f"the program has schema {data['schema']!r}, and this version reads schema {SCHEMA}: "
                "draw it again, or use the version that wrote it"
            )
        unknown = data.keys() - {"schema", "note", "tolerance", *TERMS, "storages", "inputs", "steps", "calls"}
        if unknown:
            raise ProgramError(f"the program has unknown parts: {', '.join(sorted(unknown))}")
        try:
            storages = tuple(Storage(**storage) for storage in data["storages"])
            inputs = tuple(
                Input(**{**input_, "size": tuple(input_["size"]), "stride": tuple(input_["stride"])})
                for input_ in data["inputs"]
            )
            steps = tuple(Step.from_json(step) for step in data["steps"])
            tolerance = {name: (float(r), float(a)) for name, (r, a) in data.get("tolerance", {}).items()}
            calls = tuple(Call.from_json(call) for call in data.get("calls", ()))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ProgramError(f"the program's data is damaged: {error}") from error
        except StepError as error:
            raise ProgramError(str(error)) from error
        rules, undefined = (tuple(map(str, data.get(key, ()))) for key in TERMS)
        program = cls(storages, inputs, steps, str(data.get("note", "")), tolerance, rules, undefined, calls)
        unknown = {*program.rules} - KNOWN
        if unknown:
            raise ProgramError(f"the program has the unknown rule {min(unknown)!r}")
        program.check()
        return program

    def check(self) -> None:
        """Check that each input lies in its storage, each step is in the table, and each name is defined before use.

        Raises ProgramError."""
        defined: set[str] = set()
        try:
            for storage in self.storages:
                _check_storage(storage)
            for input_ in self.inputs:
                _check_input(input_, self.storages)
                if input_.name in defined:
                    raise ProgramError(f"two inputs are named {input_.name!r}")
                if input_.same and input_.same not in defined:
                    raise ProgramError(
                        f"input {input_.name!r} is the same as {input_.same!r}, which is no earlier input"
                    )
                defined.add(input_.name)
        except (TypeError, ValueError, KeyError, IndexError, RuntimeError, OverflowError, StepError) as error:
            raise ProgramError(f"the program's inputs are damaged: {' '.join(str(error).split())}") from error
        for number, step in enumerate(self.steps, 1):
            _check_loop(number, step)
            for inner in step.body if step.op == LOOP else (step,):
                _check_step(number, inner, defined)
                defined.update(inner.out)
        _check_after(self)
        if self.calls and any(step.after for step in self.steps):
            raise ProgramError("a program with further calls has a step of its caller: it can have only one of both")
        for number in range(1, len(self.calls) + 1):
            call_of(self, number).check()

    @property
    def restarts(self) -> bool:
        """Whether a further call is made as in a new process."""
        return any(call.restarted for call in self.calls)

    @property
    def every_step(self) -> tuple[Step, ...]:
        """The steps in order, each loop followed by the steps of its body."""
        return tuple(inner for step in self.steps for inner in (step, *step.body))

    def with_steps(self, steps: tuple[Step, ...]) -> Program:
        """Return a program with the same inputs and other steps."""
        return replace(self, steps=steps)


def arguments_of(program: Program) -> dict[str, Json]:
    """Return the Python arguments of the program's function, by name, with their values in the first call."""
    result: dict[str, Json] = {}
    for step in program.every_step:
        for marker in step.markers():
            if "arg" in marker:
                result.setdefault(marker["arg"], marker["value"])
    return result


def call_of(program: Program, number: int) -> Program:
    """Return call `number` of the program as a program of one call. 0 is the first call. Its states surround each step.
    Raises ProgramError if the call does not fit the program."""
    if not number:
        return replace(program, calls=())
    call = program.calls[number - 1]
    known, arguments = {input_.name: input_ for input_ in program.inputs}, arguments_of(program)
    strange = [*({*call.inputs} - {*known}), *({*call.arguments} - {*arguments})]
    if strange:
        raise ProgramError(f"call {number + 1} changes {strange[0]!r}, which the program does not have")
    storages = [*program.storages]
    changed: dict[str, Input] = {}
    try:
        for input_ in program.inputs:
            fields = dict(call.inputs.get(input_.name, {}))
            beside, alone = fields.pop("beside", ""), fields.pop("alone", False)
            values = fields.pop("values", None)
            if beside:
                fields["storage"] = changed[beside].storage
            elif alone:
                storages.append(storages[input_.storage])
                fields["storage"] = len(storages) - 1
            fields |= {key: tuple(fields[key]) for key in ("size", "stride") if key in fields}
            changed[input_.name] = changed_input = replace(input_, **fields)
            if changed_input.same:
                first = changed[changed_input.same]
                changed[input_.name] = replace(first, name=input_.name, same=changed_input.same)
                continue
            at = changed_input.storage
            if values is not None:
                storages[at] = replace(storages[at], values=values)
            if changed_input.dtype != input_.dtype and storages[at].dtype == input_.dtype:
                storages[at] = replace(storages[at], dtype=changed_input.dtype)
            storages[at] = _grown(storages[at], changed_input)
    except (KeyError, TypeError, ValueError) as error:
        raise ProgramError(f"call {number + 1} is damaged: {error}") from error
    steps = tuple(_called(step, call) for step in program.steps)
    return replace(program, storages=tuple(storages), inputs=tuple(changed.values()), steps=steps, calls=())


def _called(step: Step, call: Call) -> Step:
    """Return a step of the program as this call makes it."""

    def bind(marker: dict[str, Json]) -> Json:
        return {**marker, "value": call.arguments.get(marker["arg"], marker["value"])} if "arg" in marker else marker

    return replace(step.mapped(bind), under=tuple(dict.fromkeys((*call.under, *step.under))))


def _grown(storage: Storage, input_: Input) -> Storage:
    """Return the storage with enough cells for the input. Listed values repeat."""
    if 0 in input_.size or len(input_.size) != len(input_.stride):  # `check` refuses the second
        return storage
    last = input_.offset + sum((n - 1) * st for n, st in zip(input_.size, input_.stride, strict=True))
    size = max(storage.size, -(-(last + 1) * dtype_of(input_.dtype).itemsize // dtype_of(storage.dtype).itemsize))
    values = storage.values
    if isinstance(values, list) and size != len(values):
        values = [(values or [0])[at % max(len(values), 1)] for at in range(size)]
    return replace(storage, size=size, values=values)


def connected(program: Program, number: int) -> tuple[int, ...]:
    """Return the numbers, from 1, of the steps that share memory with step `number`, through other steps too: steps
    that name the same tensor, or inputs on the same storage. The other steps do not change its answer."""
    storages = {input_.name: f"storage {input_.storage}" for input_ in program.inputs}
    names = [{storages.get(name, name) for name in (*step.names(), *step.out)} for step in program.steps]
    reached, size = set(names[number - 1]), 0
    while len(reached) > size:
        size = len(reached)
        reached.update(*(own for own in names if own & reached))
    return tuple(at for at, own in enumerate(names, 1) if own & reached or at == number)


def spliced(items: Sequence[T], at: int, *new: T) -> tuple[T, ...]:
    """Return the items with others in place of item `at`, counted from 0; without it if there are no others."""
    return (*items[:at], *new, *items[at + 1 :])


def _is_whole(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_storage(storage: Storage) -> None:
    if not _is_whole(storage.size) or not 0 <= storage.size <= LARGEST_STORAGE:
        raise ProgramError(f"a storage has {storage.size!r} cells: give a whole number of at most {LARGEST_STORAGE}")
    values = storage.values
    seeded = (
        isinstance(values, dict) and values.keys() in ({"seed"}, {"special"}) and all(map(_is_whole, values.values()))
    )
    random = isinstance(values, dict) and RANDOM <= values.keys() <= {*RANDOM, "distinct", "sorted", "beside"}
    if not (values == "arange" or isinstance(values, list) or seeded or random):
        raise ProgramError(
            f'a storage has the values {str(values)[:80]}: give "arange", a list, '
            '{"seed": n} or {"special": n} with a whole number n, or {"random": n, "low": a, "high": b}'
        )
    if len(storage.make()) != storage.size:
        raise ProgramError(f"a storage of {storage.size} cells is given {len(storage.make())} values")


def _check_loop(number: int, step: Step) -> None:
    if step.op != LOOP and step.body:
        raise ProgramError(f"step {number} ({step.op}) has a body, and only a loop has one")
    if any(inner.op == LOOP for inner in step.body):
        raise ProgramError(f"step {number} is a loop within a loop")
    if step.op == LOOP and any(STATES[name].wraps for part in (step, *step.body) for name in part.under):
        raise ProgramError(f"step {number} is a loop under a state that takes one call")
    if not 0 <= step.times <= LONGEST_LOOP:
        raise ProgramError(f"step {number} ({step.op}) runs {step.times} times: give at most {LONGEST_LOOP}")


def _check_step(number: int, step: Step, defined: Set[str]) -> None:
    wrong = fault_of(step.under)
    if wrong:
        raise ProgramError(f"step {number} ({step.op}) is under {wrong}")
    if step.op not in OPS:
        raise ProgramError(f"step {number} has the unknown op {step.op!r}")
    needed = OPS[step.op].least
    if len(step.args) < needed:
        raise ProgramError(f"step {number} ({step.op}) has {len(step.args)} arguments and needs {needed}")
    for name in step.names():
        if not isinstance(name, str) or name not in defined:
            raise ProgramError(f"step {number} ({step.op}) uses {name!r}, which is not defined by then")


def _check_after(program: Program) -> None:
    """Check that the caller's steps come last and use inputs, results, and each other's results only."""
    inside = [step.after for step in program.steps].index(True) if any(step.after for step in program.steps) else None
    for number, step in enumerate(program.steps[inside:] if inside is not None else (), (inside or 0) + 1):
        if not step.after:
            raise ProgramError(f"step {number} ({step.op}) is not after the return, and follows a step that is")
        local = [name for name in step.names() if is_local(name)]
        if local:
            raise ProgramError(f"step {number} ({step.op}) is after the return, and {local[0]!r} is not returned")


def _check_input(input_: Input, storages: tuple[Storage, ...]) -> None:
    if not is_name(input_.name):
        raise ProgramError(f"an input is named {input_.name!r}, which is not an identifier")
    if not all(map(_is_whole, (input_.storage, input_.offset, *input_.size, *input_.stride))):
        raise ProgramError(f"input {input_.name!r} has a storage, size, stride or offset that is not a whole number")
    if not isinstance(input_.requires_grad, bool):
        raise ProgramError(f"input {input_.name!r} has requires_grad {input_.requires_grad!r}: give true or false")
    if not 0 <= input_.storage < len(storages):
        raise ProgramError(
            f"input {input_.name!r} lies on storage {input_.storage}, and the program has {len(storages)}"
        )
    if len(input_.size) != len(input_.stride):
        raise ProgramError(f"input {input_.name!r} has {len(input_.size)} dimensions and {len(input_.stride)} strides")
    storage = storages[input_.storage]
    room = storage.size * dtype_of(storage.dtype).itemsize // dtype_of(input_.dtype).itemsize
    last = input_.offset + sum((n - 1) * st for n, st in zip(input_.size, input_.stride, strict=True))
    if min((*input_.size, *input_.stride, input_.offset)) < 0:
        raise ProgramError(f"input {input_.name!r} has a negative size, stride or offset")
    if 0 not in input_.size and last >= room:
        raise ProgramError(f"input {input_.name!r} reaches cell {last} of a storage that holds {room} of its dtype")
    dtype = dtype_of(input_.dtype)
    if input_.requires_grad and not (dtype.is_floating_point or dtype.is_complex):
        raise ProgramError(f"input {input_.name!r} is of dtype {input_.dtype}, which cannot require grad")


def digest(program: Program) -> str:
    """Return a hash of the program without its note."""
    return hashlib.sha256(json.dumps(replace(program, note="").to_json(), sort_keys=True).encode()).hexdigest()[:16]


def read_program(path: Path) -> Program:
    """Return the program in a JSON file. Raises ProgramError, with the file's name, if it is missing or invalid."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and "results" in data:
            raise ProgramError("this is the result of a run, not a program: give the file of a finding in failures/")
        return Program.from_json(data.get("program", data) if isinstance(data, dict) else data)
    except FileNotFoundError:
        raise ProgramError(f"{path} does not exist: give the JSON file of a finding or of a program") from None
    except OSError as error:
        raise ProgramError(f"{path} cannot be read ({error.strerror}): give the JSON file of a program") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ProgramError(f"{path}: cannot be read as a program: {error}") from error
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from error


def dump(program: Program) -> str:
    """Return the program as JSON text with one line for each storage, input and step."""
    return "{\n" + ",\n".join(_field(key, value) for key, value in program.to_json().items()) + "\n}\n"


def _field(key: str, value: Json) -> str:
    if isinstance(value, list) and value:
        return f" {json.dumps(key)}: [\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
    return f" {json.dumps(key)}: {json.dumps(value)}"


def fresh_names(used: Mapping[str, Any]) -> Iterator[str]:
    """Yield a, b, ..., z, a1, b1, ... without `i` and the names in use."""
    for number in ("", *range(1, 1000)):
        names = (f"{letter}{number}" for letter in string.ascii_lowercase)
        yield from (name for name in names if name not in used and name != "i")
