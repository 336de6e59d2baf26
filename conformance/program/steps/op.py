"""One row of the step table, and the few forms in which a step calls torch.

The key insight: a step is a torch call written as data, so its CPU meaning is torch itself; what a row adds is what the
schema does not say: which family it is in, whether it moves bits or computes, and a rule that draws its arguments. Each
form knows two things, how to run a call and how to print it as Python, so a program and its script cannot disagree.

Arguments are JSON values; a dict with one key is a marker: `{"t": name}` a tensor of the program, `{"tensor": values,
"dtype": d}` a constant on the device (`"host": true` leaves it on the CPU), `{"slice": [start, stop, step]}`,
`{"tuple": [...]}`, `{"dtype": d}`, `{"memory_format": f}`, `{"layout": l}`, `{"ellipsis": 0}`, `{"device": 0}`,
`{"number": "nan"}`, `{"complex": [real, imaginary]}`, `{"i": [m, c]}` the loop's index `m*i + c`.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from conformance.core.errors import UserError
from conformance.program.steps import definitions
from conformance.program.steps.states import fault_of

Json = Any
Env = Mapping[str, torch.Tensor]


SHAPES: dict[str, Any] = {"op": str, "args": list, "kwargs": dict, "out": list, "raises": str | None, "times": int,
                          "body": list, "under": list}  # fmt: skip
"""The fields of a step in JSON."""


class StepError(UserError):
    """A step is not understood: one sentence with what is wrong and where."""


@dataclass(frozen=True)
class Step:
    """One call: the row's name, JSON arguments, the names of its results, the error that CPU raises, if it does, and
    the global states (`states.STATES`) that it is made under, the first the outermost.

    A loop's `body` is run `times` times with `{"i": ...}` bound."""

    op: str
    args: tuple[Json, ...] = ()
    kwargs: Mapping[str, Json] = field(default_factory=dict)
    out: tuple[str, ...] = ()
    raises: str | None = None
    body: tuple[Step, ...] = ()
    times: int = 0
    under: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """The step as JSON; what is empty is left out."""
        data = {"op": self.op, "args": list(self.args)}
        more: dict[str, Json] = {"kwargs": dict(self.kwargs), "out": list(self.out), "raises": self.raises}
        more["under"] = list(self.under)
        if self.body:
            more |= {"times": self.times, "body": [step.to_json() for step in self.body]}
        return data | {key: value for key, value in more.items() if value or key == "times"}

    @classmethod
    def from_json(cls, data: Json) -> Step:
        """The step that `to_json` wrote. Raises StepError when the data has another shape."""
        if not isinstance(data, dict) or not isinstance(data.get("op"), str):
            raise StepError(f"a step is an object with an 'op', not {str(data)[:80]}")
        unknown = data.keys() - SHAPES.keys()
        if unknown:
            raise StepError(f"step {data['op']!r} has unknown fields: {', '.join(sorted(unknown))}")
        for key, value in data.items():
            if not isinstance(value, SHAPES[key]):
                raise StepError(f"field {key!r} of step {data['op']!r} has the wrong type: {str(value)[:80]}")
        if not all(is_name(name) for name in data.get("out", [])):
            raise StepError(f"step {data['op']!r} names its results {data['out']}: each must be an identifier")
        wrong = fault_of(data.get("under", []))
        if wrong:
            raise StepError(f"step {data['op']!r} is under {wrong}")
        given: dict[str, Any] = {key: tuple(part) if isinstance(part, list) else part for key, part in data.items()}
        return cls(**{**given, "body": tuple(map(cls.from_json, data.get("body", ())))})

    def names(self) -> list[str]:
        """The tensors that the step names, in order, including its body's."""
        found: list[str] = []
        walk([*self.args, *self.kwargs.values()], lambda marker: found.append(marker["t"]) if "t" in marker else None)
        return [*found, *(name for step in self.body for name in step.names())]

    def inside(self) -> tuple[Step, ...]:
        """The loop's steps, each under the loop's states."""
        return tuple(replace(inner, under=(*self.under, *inner.under)) for inner in self.body)


def is_name(value: Json) -> bool:
    """Whether a script can call a tensor so."""
    return isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value)


def walk(value: Json, visit: Callable[[dict[str, Json]], None]) -> None:
    """Visit every marker within a JSON argument."""
    if isinstance(value, dict):
        visit(value)
        for part in value.values():
            walk(part, visit)
    elif isinstance(value, (list, tuple)):
        for part in value:
            walk(part, visit)


def tensor(name: str) -> Json:
    """The marker of a program's tensor."""
    return {"t": name}


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of this name. Raises StepError when there is none."""
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise StepError(f"unknown dtype {name!r}")
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def number(value: Any) -> Json:
    """A Python number as JSON, also nan and the infinities, and complex ones."""
    if isinstance(value, complex):
        return {"complex": [str(value.real), str(value.imag)]}
    return value if not isinstance(value, float) or math.isfinite(value) else {"number": str(value)}


def _find(env: Env, name: str) -> torch.Tensor:
    if name not in env:
        raise StepError(f"there is no tensor {name!r} at this point")
    return env[name]


DECODE: dict[str, Callable[[dict[str, Json], Env, torch.device, int], Any]] = {
    "t": lambda m, env, device, i: _find(env, m["t"]),
    "tensor": lambda m, env, device, i: torch.tensor(
        decode(m["tensor"], env, device, i), dtype=dtype_of(m["dtype"]), device="cpu" if m.get("host") else device
    ),
    "slice": lambda m, env, device, i: slice(*(decode(part, env, device, i) for part in m["slice"])),
    "tuple": lambda m, env, device, i: tuple(decode(part, env, device, i) for part in m["tuple"]),
    "dtype": lambda m, env, device, i: dtype_of(m["dtype"]),
    "ellipsis": lambda m, env, device, i: Ellipsis,
    "device": lambda m, env, device, i: device,
    "number": lambda m, env, device, i: float(m["number"]),
    "memory_format": lambda m, env, device, i: getattr(torch, m["memory_format"]),
    "layout": lambda m, env, device, i: getattr(torch, m["layout"]),
    "complex": lambda m, env, device, i: complex(*(float(part) for part in m["complex"])),
    "i": lambda m, env, device, i: m["i"][0] * i + m["i"][1],
}


def decode(value: Json, env: Env, device: torch.device, i: int = 0) -> Any:
    """The Python value that a JSON argument stands for. Raises StepError for what is not understood."""
    if isinstance(value, list):
        return [decode(part, env, device, i) for part in value]
    if not isinstance(value, dict):
        return value
    for key, rule in DECODE.items():
        if key in value:
            try:
                return rule(value, env, device, i)
            except (TypeError, KeyError, IndexError, AttributeError, ValueError) as error:
                raise StepError(f"argument {value} is not understood: {error}") from error
    raise StepError(f"argument {value} is not understood: no marker of that name")


HOST = '"cpu"'
RENDER: dict[str, Callable[[dict[str, Json]], str]] = {
    "t": lambda m: m["t"],
    "tensor": lambda m: (
        f"torch.tensor({render(m['tensor'])}, dtype=torch.{m['dtype']}, device={HOST if m.get('host') else 'device'})"
    ),
    "slice": lambda m: "slice(" + ", ".join(render(part) for part in m["slice"]) + ")",
    "tuple": lambda m: "(" + "".join(f"{render(part)}, " for part in m["tuple"]).removesuffix(" ") + ")",
    "dtype": lambda m: f"torch.{m['dtype']}",
    "ellipsis": lambda m: "...",
    "device": lambda m: "device",
    "number": lambda m: f"float({m['number']!r})",
    "memory_format": lambda m: f"torch.{m['memory_format']}",
    "layout": lambda m: f"torch.{m['layout']}",
    "complex": lambda m: f"complex({m['complex'][0]}, {m['complex'][1]})",
    "i": lambda m: _affine(*m["i"]),
}


def _affine(factor: int, constant: int) -> str:
    if factor == 0:
        return str(constant)
    text = "i" if factor == 1 else f"{factor} * i"
    return f"{text} {'-' if constant < 0 else '+'} {abs(constant)}" if constant else text


def render(value: Json) -> str:
    """The Python expression of a JSON argument; the device is called `device`, a loop's index `i`."""
    if isinstance(value, list):
        return "[" + ", ".join(render(part) for part in value) + "]"
    if isinstance(value, dict):
        return next(rule(value) for key, rule in RENDER.items() if key in value)
    return repr(value)


def render_index(index: Json) -> str:
    """The text between the brackets of `a[...]`."""
    parts = index["tuple"] if isinstance(index, dict) and "tuple" in index else [index]
    texts = [
        _render_slice(part["slice"]) if isinstance(part, dict) and "slice" in part else render(part) for part in parts
    ]
    return ", ".join(texts) + ("," if len(texts) == 1 and parts is not None and parts[0] is not index else "") or "()"


def _render_slice(parts: list[Json]) -> str:
    start, stop, step = ("" if part is None else render(part) for part in parts)
    return f"{start}:{stop}" + (f":{step}" if step else "")


def _augment(target: torch.Tensor, index: Any, value: Any) -> None:
    target[index] += value


@functools.cache
def torch_function(path: str) -> Callable[..., Any]:
    """torch's function of this dotted path below `torch`."""
    return functools.reduce(getattr, path.split("."), torch)  # type: ignore[arg-type,return-value]


def _call(args: tuple[Json, ...], kwargs: Mapping[str, Json]) -> str:
    return ", ".join([*(render(arg) for arg in args), *(f"{key}={render(value)}" for key, value in kwargs.items())])


@dataclass(frozen=True)
class Form:
    """How a step calls torch: `run(name, args, kwargs)` and `show(name, args, kwargs)`, the latter on JSON; `least` is
    how many arguments the form itself needs."""

    run: Callable[[str, list[Any], dict[str, Any]], Any]
    show: Callable[[str, tuple[Json, ...], Mapping[str, Json]], str]
    least: int = 0


METHOD = Form(
    lambda name, args, kwargs: getattr(args[0], name)(*args[1:], **kwargs),
    lambda name, args, kwargs: f"{render(args[0])}.{name}({_call(args[1:], kwargs)})",
    1,
)
FUNCTION = Form(
    lambda name, args, kwargs: torch_function(name)(*args, **kwargs),
    lambda name, args, kwargs: f"torch.{name}({_call(args, kwargs)})",
)
DEFINED = Form(
    lambda name, args, kwargs: getattr(definitions, name)(*args, **kwargs),
    lambda name, args, kwargs: f"{name}({_call(args, kwargs)})",
)
ATTRIBUTE = Form(
    lambda name, args, kwargs: getattr(args[0], name), lambda name, args, kwargs: f"{render(args[0])}.{name}", 1
)
GETITEM = Form(
    lambda name, args, kwargs: args[0][args[1]],
    lambda name, args, kwargs: f"{render(args[0])}[{render_index(args[1])}]",
    2,
)
SETITEM = Form(
    lambda name, args, kwargs: operator.setitem(*args),
    lambda name, args, kwargs: f"{render(args[0])}[{render_index(args[1])}] = {render(args[2])}",
    3,
)
AUGMENT = Form(
    lambda name, args, kwargs: _augment(*args),
    lambda name, args, kwargs: f"{render(args[0])}[{render_index(args[1])}] += {render(args[2])}",
    3,
)
SET_DATA = Form(
    lambda name, args, kwargs: setattr(args[0], name, args[1]),
    lambda name, args, kwargs: f"{render(args[0])}.{name} = {render(args[1])}",
    2,
)

VIEW, MOVE, COMPUTE, LOSSY, METADATA, QUERY = "view", "move", "compute", "lossy", "metadata", "query"
"""What a row does to bits: nothing but a new view; moves them unchanged; computes (exactly on small whole numbers);
computes with rounding; changes a tensor's own metadata; answers with a Python value."""


@dataclass(frozen=True)
class Op:
    """A row of the step table.

    `writes` is the position of the argument that is written in place, or "out", or None. `constant` says that every
    element is written with the same value, so that overlapping elements do no harm. `pointwise` says that the call may
    read exactly what it writes. `results` is how many results get names, 0 for a tuple that the rule names. `settled`
    says that the call must not be given rounded values, since it may decide by them; `fatal` which calls must not be
    made since torch CPU ends the process. `fits` says which tensors the rule can start from; `draw` draws a step from
    what the shadow holds, or None when nothing there fits after all. `may_raise` lets CPU's error be the answer.
    Without the state that it `needs` a call means nothing.
    """

    name: str
    family: str
    effect: str
    draw: Callable[..., Step | None]
    form: Form = METHOD
    call: str = ""
    writes: int | str | None = None
    constant: bool = False
    pointwise: bool = False
    may_raise: bool = False
    weight: int = 1
    results: int = 1
    settled: bool = False
    fatal: Callable[[list[Any], dict[str, Any]], bool] | None = None
    fits: Callable[[torch.Tensor], bool] | None = None
    needs: str = ""

    @property
    def makes(self) -> int:
        """How many results get names, where the rule has not named them."""
        return self.results if self.writes is None and self.effect not in (METADATA, QUERY) else 0

    @property
    def least(self) -> int:
        """How many arguments a call needs that is to be looked at before torch is asked."""
        return max(self.form.least, self.writes + 1 if isinstance(self.writes, int) else 0)

    def run(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call torch."""
        return self.form.run(self.call or self.name, args, kwargs)

    def show(self, step: Step) -> str:
        """The call as Python."""
        return self.form.show(self.call or self.name, step.args, step.kwargs)

    def line(self, step: Step, call: str = "") -> str:
        """The call, or this one in its place, with its results' names before it, as a line of Python."""
        made = f"{', '.join(step.out)}{' = ' if self.results else ', = '}" if step.out else ""
        return made + (call or self.show(step))


IMPORTS = {
    **{rf"\b{module}\.": f"import {module}" for module in ("contextlib", "copy", "gc", "io", "threading", "warnings")},
    r"\(TorchDispatchMode\)": "from torch.utils._python_dispatch import TorchDispatchMode",
}
"""What functions of `definitions` need beside torch, by how they use it."""


def definitions_of(names: Iterable[str]) -> list[str]:
    """The sources of these functions, which steps call and torch does not have, and of those that they call, each
    once, behind what they import; they need torch only."""
    sources: dict[str, str] = {}
    for name in names:
        function = inspect.unwrap(getattr(definitions, name))
        for needed in (*function.__code__.co_names, name):
            if inspect.isfunction(getattr(definitions, needed, None)):
                sources[needed] = inspect.getsource(getattr(definitions, needed)).rstrip()
    texts = list(sources.values())
    imports = [line for used, line in IMPORTS.items() if any(re.search(used, text) for text in texts)]
    return ["\n".join(imports), *texts] if imports else texts
