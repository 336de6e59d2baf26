"""The operator under test: its parameters, its schema, and the lines of a script that reach it.

Defines `Operator`, `named`, and `by_finding_name`, the arguments by their names in findings. An operator is any
callable: a custom operator of `torch.library`, an operator below `torch.ops`, a function of an extension or of Triton,
or plain Python.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.record.error_text import text_of
from conformance.record.errors import UsageError
from conformance.record.names import nearest
from conformance.standalone.operator_checks import RESULT
from conformance.standalone.torch_compat import has_kernel

PARAMETER = inspect.Parameter

TAKEN = frozenset("sys torch DEVICE device inputs other_inputs new_inputs want got check main transform".split())
"""Names that a script uses for itself."""


def finding_name(argument: str) -> str:
    """Return the name of an argument in findings, which differs from the name of the results."""
    return f"argument {RESULT}" if argument == RESULT else argument


def by_finding_name(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by their names in findings."""
    return {finding_name(name): value for name, value in values.items()}


AUTOGRAD = ("Autograd", "AutogradCPU", "CompositeImplicitAutograd")
"""Dispatch keys of kernels with a derivative."""

PACKET, OVERLOAD = type(torch.ops.aten.add), type(torch.ops.aten.add.Tensor)
"""Types of an operator below `torch.ops`, and of one of its overloads."""


@dataclass(frozen=True)
class Operator:
    """A callable. `overload` is its operator of the dispatcher, None for a plain function.
    `lines` import it in a script, and `text` is the expression that names it there."""

    function: Callable[..., Any]
    name: str
    overload: Any
    signature: inspect.Signature | None
    lines: tuple[str, ...]
    text: str

    @property
    def schema(self) -> Any:
        """The schema of the dispatcher; None for a plain function."""
        return None if self.overload is None else self.overload._schema

    @property
    def written(self) -> frozenset[str] | None:
        """The arguments that the schema declares as written, by their names in findings; None for a plain function,
        which declares nothing."""
        if self.schema is None:
            return None
        infos = ((argument.name, argument.alias_info) for argument in self.schema.arguments)
        return frozenset(finding_name(name) for name, info in infos if info is not None and info.is_write)

    @property
    def derivable(self) -> bool:
        """Whether autograd has a kernel for it. Without one, the gradients are those of the operators that its kernel
        calls, if any, and torch.compile has none."""
        return self.overload is None or any(has_kernel(self.overload.name(), key) for key in AUTOGRAD)

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments of a call by the names of the parameters; None if the operator does not take them."""
        if self.signature is None:
            return {**{f"arg{number}": value for number, value in enumerate(args)}, **kwargs}
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError:
            return None
        named, rest = {}, iter(self.signature.parameters.values())
        for number, value in enumerate(args):
            parameter = next(rest, None)
            plain = parameter is not None and parameter.kind is not PARAMETER.VAR_POSITIONAL
            named[parameter.name if parameter is not None and plain else f"arg{number}"] = value
        return {**named, **kwargs}


def operator_of(
    function: Callable[..., Any], near: str = "", text: str = "", role: str = "operator", taken: str = ""
) -> Operator:
    """Return the operator of a callable. `near` is a module in which it may have a name, and `text` its name below
    `torch`, if it has one. A callable that no import reaches is called by its `role` in scripts, and so is one whose
    name is `taken`. Raises UsageError if it cannot be called."""
    if not callable(function):
        raise UsageError(f"{function!r} is no operator: give a function, a custom operator, or torch.ops.LIBRARY.NAME")
    overload = _overload(function)
    lines, expression = ((), text) if text else _reached(function, overload, near, role, TAKEN | {taken})
    name = expression if expression.isidentifier() or "." in expression else getattr(function, "__name__", "operator")
    return Operator(function, name, overload, _signature(function, overload), lines, expression)


def with_parts(operator: Operator, names: Sequence[str], classes: Mapping[str, tuple[type, list[str]]]) -> Operator:
    """Return an operator of these arguments that passes dataclasses, made of some of them, to the given one: `classes`
    has the class and the fields of each argument. Without dataclasses, it is the given one."""
    if not classes:
        return operator
    inside = {field for _, fields in classes.values() for field in fields}
    whole = [name for name in names if name not in inside]

    def function(*parts: Any) -> Any:
        by_name = dict(zip(names, parts))
        built = {name: one(**{field: by_name[field] for field in fields}) for name, (one, fields) in classes.items()}
        return operator.function(**{name: by_name[name] for name in whole}, **built)

    made = [
        f"{name}={one.__qualname__}({', '.join(f'{field}={field}' for field in fields)})"
        for name, (one, fields) in classes.items()
    ]
    text = f"{operator.text.replace('.', '_')}_of_parts"
    lines = (
        *operator.lines,
        *dict.fromkeys(f"from {_importable(one.__module__)} import {one.__name__}" for one, _ in classes.values()),
        f"def {text}({', '.join(names)}):",
        f"    return {operator.text}({', '.join([*(f'{name}={name}' for name in whole), *made])})",
    )
    signature = inspect.Signature([PARAMETER(name, PARAMETER.POSITIONAL_OR_KEYWORD) for name in names])
    return Operator(function, operator.name, None, signature, lines, text)


def named(path: str) -> Callable[..., Any]:
    """Return the callable of `MODULE:NAME`, or of a path below `torch`. Raises UsageError."""
    module, colon, name = path.partition(":")
    if not colon:
        module, name = "torch", path.removeprefix("torch.")
    try:
        result: Any = importlib.import_module(module)
    except Exception as error:  # a module of the user may raise anything
        said = f"{type(error).__name__}: {text_of(error)}".strip().partition("\n")[0]
        raise UsageError(f"module {module!r} cannot be imported ({said}); run it by hand to see why") from None
    for part in name.split("."):
        if not hasattr(result, part):
            own = "" if colon else " (an operator of your own is MODULE:NAME)"
            raise UsageError(f"module {module!r} has no {name!r}{own}{nearest(part, dir(result))}")
        result = getattr(result, part)
    if not callable(result):
        raise UsageError(f"{path} is no function: it is a {type(result).__name__}")
    return result  # type: ignore[no-any-return]


def _overload(function: Any) -> Any:
    function = getattr(function, "_opoverload", function)  # of torch.library.custom_op
    if isinstance(function, PACKET):
        names = function.overloads()
        return getattr(function, "default" if "default" in names else names[0])
    return function if isinstance(function, OVERLOAD) else None


def _signature(function: Any, overload: Any) -> inspect.Signature | None:
    if overload is None:
        try:
            return inspect.signature(function)
        except (TypeError, ValueError):  # a function of C++ may have none
            return None
    parameters = []
    for argument in overload._schema.arguments:
        kind = PARAMETER.KEYWORD_ONLY if argument.kwarg_only else PARAMETER.POSITIONAL_OR_KEYWORD
        parameters.append(
            PARAMETER(
                argument.name, kind, default=argument.default_value if argument.has_default_value() else PARAMETER.empty
            )
        )
    usual = [parameter for parameter in parameters if parameter.kind is not PARAMETER.KEYWORD_ONLY]
    while any(a.default is not PARAMETER.empty and b.default is PARAMETER.empty for a, b in zip(usual, usual[1:])):
        usual = [argument.replace(default=PARAMETER.empty) for argument in usual]
    return inspect.Signature(
        [*usual, *(parameter for parameter in parameters if parameter.kind is PARAMETER.KEYWORD_ONLY)]
    )


def _reached(function: Any, overload: Any, near: str, role: str, taken: frozenset[str]) -> tuple[tuple[str, ...], str]:
    """Return the lines that import the function, and its expression."""
    inner = inspect.unwrap(getattr(function, "_init_fn", function))
    homes = [getattr(function, "__module__", ""), getattr(inner, "__module__", ""), near]
    for home in dict.fromkeys(name for name in homes if name and name in sys.modules):
        for name, value in vars(sys.modules[home]).items():
            if value is function and name.isidentifier():
                if home.partition(".")[0] == "torch":
                    return ((f"import {home}",) if home != "torch" else ()), f"{home}.{name}"
                text = f"{role}_" if name in taken else name
                return (f"from {_importable(home)} import {name}" + f" as {text}" * (text != name),), text
    if overload is not None and "<locals>" not in getattr(inner, "__qualname__", ""):
        home = near if inner is function else inner.__module__
        lines = (f"import {_importable(home)}  # registers the operator",) if home else ()
        return lines, "torch.ops." + overload._schema.name.replace("::", ".")
    name = getattr(inner, "__name__", "")
    if name.isidentifier() and inspect.isfunction(inner) and not inner.__closure__:
        try:
            source = textwrap.dedent(inspect.getsource(inner)).rstrip().splitlines()
        except (OSError, TypeError):
            source = []
        uses = names_used(inner)
        if source and not {*uses} & taken:
            written = (*_imports(inner, uses), *source)
            return (written, name) if name not in taken else ((*written, f"{role}_ = {name}"), f"{role}_")
    return (f"{role} = ...  # {getattr(function, '__qualname__', 'a callable')}, which no import reaches",), role


def names_used(function: Any) -> list[str]:
    """Return the names of its module that a function uses."""
    left, used = [function.__code__], set[str]()
    while left:
        code = left.pop()
        used |= {*code.co_names}
        left += [const for const in code.co_consts if inspect.iscode(const)]
    return sorted(name for name in used - {"torch"} if name in function.__globals__)


def _imports(function: Any, names: Sequence[str]) -> list[str]:
    """Return the line that imports names of a function's module."""
    return [f"from {_importable(function.__module__)} import {', '.join(names)}"] if names else []


def _importable(module: str) -> str:
    """Return the name under which another script imports a module."""
    file = getattr(sys.modules.get(module), "__file__", None) if module == "__main__" else None
    return file.rpartition("/")[2].removesuffix(".py") if file else module
