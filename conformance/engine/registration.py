"""Options in a target's spec, `NAME,import=MODULE,call=FUNCTION,...`, and loading of the modules that they name.

A module that registers a device or a compiler is third-party code, which may raise or print anything. Both kinds of
module share the sentence that reports a failure.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Mapping

import torch

from conformance.record.error_text import text_of
from conformance.record.errors import TargetError
from conformance.record.names import nearest
from conformance.standalone import torch_compat


def options(target: str, argument: str, known: Collection[str], form: str) -> tuple[str, dict[str, str]]:
    """Return the name before the first comma, and the options after it. Raises TargetError with the `form` to write."""
    name, *parts = argument.split(",")
    settings = dict(part.partition("=")[::2] for part in parts)
    for key, value in settings.items():
        if key not in known or not value:
            problem = f"its option {key!r} has no value" if key in known else f"it has no option {key!r}"
            raise TargetError(f"target '{target}:{argument}' is not understood ({problem}): write {form}")
    if not name:
        raise TargetError(f"target '{target}:{argument}' is not understood: write {form}")
    return name, settings


def features_of(option: str) -> frozenset[str]:
    """Return the features that the value of `without=` names, such as set_+views; `nothing` is none."""
    return frozenset(option.split("+")) - {"nothing"}


def setup(module: str, function: str, environment: Mapping[str, str]) -> str:
    """Return the lines of a script that set the environment variables, import the module and call its function."""
    lines = ["import os"] if environment else []
    lines += [f"os.environ[{key!r}] = {value!r}" for key, value in environment.items()]
    lines += [f"import {module}"] if module else []
    lines += [f"{module}.{function}()"] if function else []
    return "".join(f"{line}\n" for line in lines)


def register(module: str, function: str, registered: str) -> None:
    """Import the module, also from the current folder, and call its function (a dotted name), which should register
    `registered`. Raises TargetError with the last line of the module's own error."""
    if not module:
        return
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # the installed command does not search it by default
    called = ""
    try:
        member = importlib.import_module(module)
        called = f" and calling its {function}()" if function else ""
        for part in function.split(".") if function else ():
            if not hasattr(member, part):
                raise TargetError(
                    f"module {module!r}, which should register {registered}, has no function {function!r}"
                    f"{nearest(part, vars(member))}"
                )
            member = getattr(member, part)
        if function:
            made = member()  # type: ignore[operator]
            if torch_compat.is_idle_mode(made):
                raise TargetError(
                    f"{module}.{function}() returns a {type(made).__name__} that is not active, so torch CPU would be "
                    f"compared with itself: let {function}() enter it, by its __enter__()"
                )
    except TargetError:
        raise
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {text_of(error)}".strip().splitlines()[-1:])
        kind = "" if reason.startswith(type(error).__name__) else f"{type(error).__name__}: "
        raise TargetError(
            f"importing module {module!r}{called}, which should register {registered}, fails: {kind}{reason}"
        ) from error


def opened(name: str, module: str, function: str, spec: str) -> torch.device:
    """Create one tensor on the device of this name, which `module` may have registered, and return the device. Raises
    TargetError, which names the `spec` to write."""
    call = "" if function else "; a module may also want a call, call=FUNCTION"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        known = ", ".join(torch_compat.device_names())
        write = f"write {spec},import=MODULE, where MODULE registers it"
        hint = f" after the import: it knows {known}{call}" if module else f": {write}, or choose from {known}"
        raise TargetError(f"torch knows no device {name!r}{hint}") from error
    try:
        torch.empty(1, device=device)
    except Exception as error:  # a third-party backend may raise anything
        reason = f"{type(error).__name__}: {text_of(error)}".partition("\n")[0]
        hint = "; its module may also want a call, call=FUNCTION" if module and not function else ""
        raise TargetError(f"torch has no usable device {name!r} here: {reason}{hint}") from error
    return device
