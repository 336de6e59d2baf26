"""Classes for steps and for rows of the step table, and the forms of calls of torch.

A step is a torch call as data, so torch CPU defines its meaning. A row adds facts that the schema lacks: the family,
the effect on bits, and a rule that draws the arguments. Each form has two functions: one runs a call, the other prints
it as Python. So a program and its script agree.

Arguments are JSON values. A dict is a marker, named by one of its keys:

- `{"t": name}`: a tensor of the program
- `{"tensor": values, "dtype": d}`: a constant on the device; `"host": true` leaves it on the CPU
- `{"arg": name, "value": v}`: a Python argument of the program's function, with its value
- `{"i": [m, c]}`: the index `m*i + c`, where `i` is the turn of the loop
- `{"meta": size, "dtype": d}`: a tensor without values
- `{"numpy": number, "dtype": d}`: a NumPy scalar
- `{"object": Held(f)}`: a Python object that is no data, such as the function of an entry of op_db
- `{"slice": [start, stop, step]}`, `{"tuple": [...]}`, `{"dtype": d}`, `{"memory_format": f}`, `{"layout": l}`,
  `{"ellipsis": 0}`, `{"device": 0}`, `{"number": "nan"}`, `{"complex": [real, imaginary]}`: the value of this kind
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

import numpy
import torch

from conformance.program.steps import snippets
from conformance.program.steps.states import fault_of
from conformance.record.errors import UserError
from conformance.standalone.torch_compat import implementation

Json = Any
Env = Mapping[str, torch.Tensor]


SHAPES: dict[str, Any] = {"op": str, "args": list, "kwargs": dict, "out": list, "raises": str | None, "times": int,
                          "body": list, "under": list, "after": bool}  # fmt: skip
"""Fields of a step in JSON, with their types."""


ANY = "any"
"""Error of a step whose answer may be an error: torch CPU says whether it is. The error ends the program."""


@dataclass(frozen=True)
class Held:
    """A Python object in a step or an input that no JSON can hold. `name` is its public name; "" if it has none."""

    value: Any
    name: str = ""


class StepError(UserError):
    """A step that cannot be decoded. The message is one sentence with the fault and its place."""


@dataclass(frozen=True)
class Step:
    """One call: the row's name, JSON arguments, and the names of its results.

    `raises` is the error that torch CPU raises, if any, or `ANY`. `under` are the global states (`states.STATES`)
    around the call, outermost first. A loop runs its `body` `times` times with `{"i": ...}` bound to the turn. A step
    `after` the return is a call of the program's caller: a target that transforms functions does not transform it."""

    op: str
    args: tuple[Json, ...] = ()
    kwargs: Mapping[str, Json] = field(default_factory=dict)
    out: tuple[str, ...] = ()
    raises: str | None = None
    body: tuple[Step, ...] = ()
    times: int = 0
    under: tuple[str, ...] = ()
    after: bool = False

    def to_json(self) -> dict[str, Json]:
        """Return the step as JSON without its empty fields."""
        data = {"op": self.op, "args": list(self.args)}
        more: dict[str, Json] = {"kwargs": dict(self.kwargs), "out": list(self.out), "raises": self.raises}
        more |= {"under": list(self.under), "after": self.after}
        if self.body:
            more |= {"times": self.times, "body": [step.to_json() for step in self.body]}
        return data | {key: value for key, value in more.items() if value or key == "times"}

    @classmethod
    def from_json(cls, data: Json) -> Step:
        """Return the step from the output of `to_json`. Raises StepError if the data is not a valid step."""
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
        fields: dict[str, Any] = {key: tuple(part) if isinstance(part, list) else part for key, part in data.items()}
        return cls(**{**fields, "body": tuple(map(cls.from_json, data.get("body", ())))})

    def names(self) -> list[str]:
        """Return the names of the tensors in the arguments, in order, then those of the body."""
        own = [marker["t"] for marker in self.markers() if "t" in marker]
        return own + [name for step in self.body for name in step.names()] if self.body else own

    def markers(self) -> list[dict[str, Json]]:
        """Return all markers within the arguments, in order."""
        result: list[dict[str, Json]] = []
        walk(self.args, result.append)
        walk([*self.kwargs.values()], result.append)
        return result

    @property
    def operands(self) -> list[str]:
        """The names of the tensors that are positional arguments themselves, not parts of one."""
        return [arg["t"] for arg in self.args if isinstance(arg, dict) and "t" in arg]

    def mapped(self, change: Callable[[dict[str, Json]], Json]) -> Step:
        """Return the step with each marker of its arguments, and of its body's, replaced by `change(marker)`."""
        args = tuple(mapped(value, change) for value in self.args)
        kwargs = {key: mapped(value, change) for key, value in self.kwargs.items()}
        return replace(self, args=args, kwargs=kwargs, body=tuple(inner.mapped(change) for inner in self.body))

    def renamed(self, names: Mapping[str, str]) -> Step:
        """Return the step with tensors of its arguments renamed."""

        def change(marker: dict[str, Json]) -> Json:
            return {**marker, "t": names.get(marker["t"], marker["t"])} if "t" in marker else marker

        return self.mapped(change) if names else self

    def inside(self) -> tuple[Step, ...]:
        """Return the loop's steps, each under the loop's states and its own."""
        return tuple(replace(inner, under=(*self.under, *inner.under)) for inner in self.body)


def is_name(value: Json) -> bool:
    """Return whether a script can use this name for a tensor."""
    return isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value)


def is_local(name: str) -> bool:
    """Return whether a name is local to the program: it begins with `_`. The program does not return such a result, so
    a compiler need not compute it as a tensor."""
    return name.startswith("_")


def walk(value: Json, visit: Callable[[dict[str, Json]], None]) -> None:
    """Call `visit` on every marker within a JSON argument."""
    if isinstance(value, dict):
        visit(value)
        for part in value.values():
            walk(part, visit)
    elif isinstance(value, (list, tuple)):
        for part in value:
            walk(part, visit)


def mapped(value: Json, change: Callable[[dict[str, Json]], Json]) -> Json:
    """Return a JSON argument with every marker replaced by `change(marker)`, the inner ones first."""
    if isinstance(value, dict):
        return change({key: mapped(part, change) for key, part in value.items()})
    return [mapped(part, change) for part in value] if isinstance(value, (list, tuple)) else value


def tensor(name: str) -> Json:
    """Return the marker of a program's tensor."""
    return {"t": name}


def tensors(names: Iterable[str]) -> list[Json]:
    """Return the markers of several tensors."""
    return [{"t": name} for name in names]


def dtype_of(name: str) -> torch.dtype:
    """Return the torch dtype of this name. Raises StepError if there is none."""
    result = getattr(torch, str(name), None)
    if not isinstance(result, torch.dtype):
        raise StepError(f"unknown dtype {name!r}")
    return result


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def number(value: Any) -> Json:
    """Return a Python number as JSON, including nan, infinities and complex numbers."""
    if isinstance(value, complex):
        return {"complex": [str(value.real), str(value.imag)]}
    return value if not isinstance(value, float) or math.isfinite(value) else {"number": str(value)}


def constant(value: torch.Tensor, **more: Json) -> Json:
    """Return the values of a tensor on the CPU as a constant."""

    def row(values: Any) -> Json:
        return list(map(row, values)) if isinstance(values, list) else number(values)

    return {"tensor": row(value.resolve_conj().resolve_neg().tolist()), "dtype": dtype_name(value.dtype), **more}


def _find(env: Env, name: str) -> torch.Tensor:
    if name not in env:
        raise StepError(f"there is no tensor {name!r} at this point")
    return env[name]


def _scalar(m: dict[str, Json]) -> Any:
    if not isinstance(getattr(numpy, str(m["dtype"]), None), type):
        raise StepError(f"NumPy has no type {m['dtype']!r}")
    return getattr(numpy, m["dtype"])(decode(m["numpy"], {}, torch.device("cpu")))


DECODE: dict[str, Callable[[dict[str, Json], Env, torch.device, int], Any]] = {
    "t": lambda m, env, device, i: _find(env, m["t"]),
    "arg": lambda m, env, device, i: decode(m["value"], env, device, i),
    "tensor": lambda m, env, device, i: torch.tensor(
        decode(m["tensor"], env, device, i), dtype=dtype_of(m["dtype"]), device="cpu" if m.get("host") else device
    ),
    "object": lambda m, env, device, i: m["object"].value,
    "meta": lambda m, env, device, i: torch.empty(m["meta"], dtype=dtype_of(m["dtype"]), device="meta"),
    "numpy": lambda m, env, device, i: _scalar(m),
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
    """Return the Python value of a JSON argument; `i` is the turn of a loop. Raises StepError if it is invalid."""
    if isinstance(value, list):
        return [decode(part, env, device, i) if isinstance(part, (list, dict)) else part for part in value]
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
    "arg": lambda m: m["arg"],
    "tensor": lambda m: (
        f"torch.tensor({render(m['tensor'])}, dtype=torch.{m['dtype']}, device={HOST if m.get('host') else 'device'})"
    ),
    "meta": lambda m: f"torch.empty({m['meta']}, dtype=torch.{m['dtype']}, device='meta')",
    "numpy": lambda m: f"numpy.{m['dtype']}({render(m['numpy'])})",
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
    """Return the Python expression of a JSON argument. It names the device `device` and the turn of a loop `i`."""
    if isinstance(value, list):
        return "[" + ", ".join(render(part) for part in value) + "]"
    if isinstance(value, dict):
        return next(rule(value) for key, rule in RENDER.items() if key in value)
    return repr(value)


def render_index(index: Json) -> str:
    """Return the text between the brackets of `a[...]`."""
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
    """Return the function at this dotted path below `torch`."""
    return functools.reduce(getattr, path.split("."), torch)  # type: ignore[arg-type,return-value]


def _call(args: tuple[Json, ...], kwargs: Mapping[str, Json]) -> str:
    return ", ".join([*(render(arg) for arg in args), *(f"{key}={render(value)}" for key, value in kwargs.items())])


@dataclass(frozen=True)
class Form:
    """A way to call torch: `run(name, args, kwargs)` runs the call, `show(name, args, kwargs)` prints it from JSON.

    `least` is the number of positional arguments that the form needs. `around` is a function of `snippets` that makes
    the call. With `by_runner`, `run` gets the running program in place of the name."""

    run: Callable[[Any, list[Any], dict[str, Any]], Any]
    show: Callable[[str, tuple[Json, ...], Mapping[str, Json]], str]
    least: int = 0
    around: str = ""
    by_runner: bool = False


def made_by(around: str, least: int = 0) -> Form:
    """Return the form of calls that a function of `snippets` makes: `around(torch.name, ...)`."""
    return Form(
        lambda name, args, kwargs: getattr(snippets, around)(torch_function(name), *args, **kwargs),
        lambda name, args, kwargs: f"{around}(torch.{name}, {_call(args, kwargs)})",
        least,
        around,
    )


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
    lambda name, args, kwargs: getattr(snippets, name)(*args, **kwargs),
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
"""Effects of a row. In order: return a view, move bits unchanged, compute exactly on small whole numbers, compute with
rounding, change a tensor's metadata, return a Python value."""


@dataclass(frozen=True)
class Op:
    """A row of the step table.

    - `draw`: the rule that draws a step from the shadow's tensors, or returns None.
    - `call`: name of the function or method, if it differs from `name`.
    - `writes`: position of the argument that is written in place, or "out", or None.
    - `constant`: every element is written with the same value, so overlapping elements are harmless.
    - `pointwise`: an operand may be the same view as the written tensor.
    - `may_raise`: an error of torch CPU is a valid answer.
    - `weight`: relative frequency in draws.
    - `results`: number of results that get names; 0 for a tuple whose results the rule names.
    - `settled`: the call must not receive rounded values, since it may branch on them.
    - `fatal`: predicate on the arguments of calls that are never made, since torch CPU answers them by chance or ends
      the process.
    - `fits`: predicate on the first tensor of the step.
    - `uncounted`: torch CPU does not count the writes in version counters.
    - `needs`: the state without which a call has no meaning.
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
    uncounted: bool = False
    needs: str = ""

    @property
    def makes(self) -> int:
        """Number of results that get names if the rule has not named them."""
        return self.results if self.writes is None and self.effect not in (METADATA, QUERY) else 0

    @property
    def least(self) -> int:
        """Number of positional arguments that a call needs, so that the shadow can check it before torch runs it."""
        return max(self.form.least, self.writes + 1 if isinstance(self.writes, int) else 0)

    @property
    def snippet(self) -> str:
        """The function of `snippets` that the call needs; "" if it calls torch directly."""
        return (self.call or self.name) if self.form is DEFINED else self.form.around

    def run(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call torch."""
        return self.form.run(self.call or self.name, args, kwargs)

    def show(self, step: Step) -> str:
        """Return the call as Python."""
        return self.form.show(self.call or self.name, step.args, step.kwargs)

    def line(self, step: Step, call: str = "") -> str:
        """Return a line of Python that assigns the results of the call. `call` replaces the text of the call."""
        assigned = f"{', '.join(step.out)}{' = ' if self.results else ', = '}" if step.out else ""
        return assigned + (call or self.show(step))


IMPORTS = {
    **{
        rf"\b{module}\.": f"import {module}"
        for module in ("contextlib", "copy", "functools", "gc", "io", "threading", "types", "warnings")
    },
    r"\btree_map\(": "from torch.utils._pytree import tree_leaves, tree_map",
    r"\(TorchDispatchMode\)": "from torch.utils._python_dispatch import TorchDispatchMode",
}
"""Import lines that functions of `snippets` need, by the pattern of their use."""


VALUES = {
    "RECORDERS": snippets.recorders,
    "OBJECTS": snippets.objects,
    "GRADIENT_FUNCTIONS": snippets.gradient_functions,
}
"""Values of `snippets` that its functions use, each with the function that makes it."""


def _function(name: str) -> Callable[..., Any]:
    """Return the Python function of this name in `snippets`; of a custom operator, its implementation."""
    return inspect.unwrap(implementation(getattr(snippets, name)))


def snippet_sources(names: Iterable[str]) -> list[str]:
    """Return the sources of these functions of `snippets`, and of the functions that they call, each once.

    Their import lines come first."""
    sources: dict[str, str] = {}
    for name in names:
        function = _function(name)
        for needed in (*function.__code__.co_names, name):
            if needed in VALUES:
                source = f"{inspect.getsource(VALUES[needed])}\n\n{needed} = {VALUES[needed].__name__}()"
                sources[needed] = source
            elif inspect.isfunction(getattr(snippets, needed, None)) or needed == name:
                sources[needed] = inspect.getsource(_function(needed)).rstrip()
    texts = list(sources.values())
    imports = [line for used, line in IMPORTS.items() if any(re.search(used, text) for text in texts)]
    return ["\n".join(imports), *texts] if imports else texts
