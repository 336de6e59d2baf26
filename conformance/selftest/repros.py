"""The repro of a reported bug as a process: does the bug show on the installed torch?

Defines `script` and `ends_as`. A repro is code of the index (`record/upstream.toml`) that defines `program` and
`inputs`. Its answers on the target are compared with eager PyTorch. `calls` in place of `inputs` makes several calls of
one compiled function, `state` returns further facts, and `dynamic` compiles with dynamic shapes. On torch CPU there is
no other side: `control` is the same call with arguments that torch computes rightly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import torch

from conformance.engine.layers import Layered, part_named
from conformance.engine.loading import load_target
from conformance.record.upstream import Bug
from conformance.run.script_process import Forks, run_alone

LIMIT = 120.0
"""Time of a repro in seconds, with the import of torch and with compilation."""

SHOWS, AGREES = 11, 10
"""Exit codes of a repro. A negative code is a crash, and any other is an error of the repro itself."""


def script(bug: Bug, part: str = "", fixed: bool = False) -> str:
    """Return the repro as a script. `part` names a part of the compiler that is switched off. `fixed` runs the side
    that must not show the bug in place of the target: eager PyTorch, or the control."""
    spec = "" if fixed else bug.targets[0]
    return (
        f"import torch\n{bug.repro.strip()}\n\nfrom conformance.selftest.repros import shows\n"
        f"raise SystemExit(shows(globals(), {spec!r}, {part!r}))\n"
    )


def runs(bug: Bug, part: str = "", fixed: bool = False, forks: Forks | None = None) -> bool:
    """Run the repro in a process and return whether the bug shows. Raises AssertionError with its last lines if it
    neither shows nor agrees."""
    ended = run_alone(script(bug, part, fixed), LIMIT, forks=forks)
    if ended.code is not None and ended.code < 0 and bug.property == "crash":
        return True
    assert ended.code in (SHOWS, AGREES), f"{bug.name} ends with {ended.code}: {' / '.join(ended.last)}"
    return ended.code == SHOWS


def shows(names: Mapping[str, Any], spec: str, part: str = "") -> int:
    """Compare both sides of a repro, given its names, and return the exit code. An empty `spec` is the fixed side."""
    warnings.simplefilter("ignore")
    program, control = names["program"], names.get("control")
    if control is not None:
        seen = _answers(control, [[]], names)
        return _code(_same(seen, _answers(program if spec else control, [[]], names)))
    seen = _answers(program, _calls(names), names)
    if not spec:
        return _code(_same(seen, _answers(program, _calls(names), names)))
    target = load_target(spec)
    with ExitStack() as stack:
        if part:
            assert isinstance(target, Layered)  # the index names parts of compilers only
            stack.enter_context(target.switched_off(*part_named(part)))
        other = target.transform(program) if target.facts.transforms_program else program
        inputs = _calls(names)
        if target.device.type != "cpu":
            inputs = [[tensor.to(target.device) for tensor in row] for row in inputs]
        return _code(_same(seen, _answers(other, inputs, names), values="value" in target.facts.oracles))


def _code(same: bool) -> int:
    return AGREES if same else SHOWS


def _calls(names: Mapping[str, Any]) -> list[list[Any]]:
    torch.manual_seed(0)
    result: list[list[Any]] = names["calls"]() if "calls" in names else [names["inputs"]()]
    return result


def _answers(function: Callable[..., Any], calls: list[list[Any]], names: Mapping[str, Any]) -> list[Any]:
    """The result, the inputs and the state after each call, then again after the caller has written to the results; an
    error as its mere presence."""
    seen: list[Any] = []
    torch.manual_seed(0)
    for inputs in calls:
        try:
            result = function(*inputs)
        except Exception:
            seen.append("an error")
            continue
        state = names["state"]() if "state" in names else None
        results = [value for value in (result if isinstance(result, tuple) else (result,)) if value is not None]
        tensors = [result for result in results if isinstance(result, torch.Tensor)]
        seen.append([_kept(value) for value in [*results, *inputs, state]])
        for one in tensors:
            if one.dtype.is_floating_point and not one.requires_grad:
                with suppress(RuntimeError):  # elements of an expanded result share memory
                    one.add_(1)
        seen.append([_kept(tensor) for tensor in inputs])
    return seen


def _kept(value: Any) -> Any:
    return (value.detach().clone(), value.stride()) if isinstance(value, torch.Tensor) else value


def _same(value: Any, other: Any, values: bool = True) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        if (value.dtype, value.shape) != (other.dtype, other.shape) or not values:
            return (value.dtype, value.shape) == (other.dtype, other.shape)
        rtol = 1e-2 if value.dtype in (torch.float16, torch.bfloat16) else 1e-3
        return torch.allclose(value, other, rtol, 1e-5, equal_nan=True)
    if isinstance(value, (list, tuple)) and type(value) is type(other) and len(value) == len(other):
        return all(_same(a, b, values) for a, b in zip(value, other, strict=True))
    return type(value) is type(other) and bool(value == other)
