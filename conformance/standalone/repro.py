"""The judge of known bugs: does a repro show its bug on a target?

    def inputs():                      # a program of the index of reported bugs
        return [torch.rand(4, 16)]

    def program(x):
        x[1:] = x[:-1].clone()

`judge_program` runs such a program on torch CPU and on the target, and compares all that a caller can see.
`judge_script` runs the script of a finding, and compares its lines with those that it prints where the bug shows. Saved
scripts carry both functions. The functions need only torch.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

SHOWN = "shown"
NOT_SHOWN = "not shown"
CANNOT_RUN = "cannot run"
"""The verdicts about a repro. Each is a statement of its own, so that a script can carry it."""

BACKENDS = ("eager", "aot_eager", "inductor")
"""Backends of torch that a repro names, each with all that the one before it does."""

Verdict = tuple[str, str, str]
"""The verdict, and torch CPU's answer and the target's as text; for `CANNOT_RUN` the reason, and nothing."""


class RaisedCall:
    """A call that raised. All are equal: what counts is that the other side raised too."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RaisedCall)

    def __repr__(self) -> str:
        return self.text

    __hash__ = None  # type: ignore[assignment]


def judge_program(
    names: Mapping[str, Any],
    kind: str,
    transform: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    device: Any = "cpu",
    values: bool = True,
) -> Verdict:
    """Compare a repro's program on a target and on torch CPU, and return the verdict. `names` holds `program`, and
    `inputs` or `calls`; for a bug of torch CPU itself, `control` makes the same call with arguments that torch computes
    rightly. `kind` is the bug's. Without `values`, a target has only metadata to compare.

    A target that raises does not show a wrong value: it cannot run the repro."""
    program, control = names["program"], names.get("control")
    run = transform(program) if transform else program
    expected = answers_to(control or program, calls_of(names) if control is None else [[]], names)
    with default_device(device):
        actual = answers_to(run, calls_on(names, device) if control is None else [[]], names)
    if same(expected, actual, values):
        return NOT_SHOWN, "", ""
    # A call that raises has one answer, and another call has two.
    want, got = next((pair for pair in zip(expected, actual) if not same(*pair, values)), (expected, actual))
    if isinstance(got, RaisedCall) and (kind != "error" or got.text.startswith("NotImplementedError")):
        return CANNOT_RUN, got.text, ""
    if str(device) != "cpu" and not same(expected, answers_to(control or program, calls_of(names), names, 1), values):
        return CANNOT_RUN, "the repro draws random numbers, which differ on a device", ""
    return SHOWN, shorten(want), shorten(got)


def judge_script(
    code: str, prints: str, compiled: str = "", options: Mapping[str, Any] | None = None, device: Any = "cpu"
) -> Verdict:
    """Run the script of a finding with tensors on `device`, or with the backend `compiled`, and return the verdict.
    `prints` is what it prints where the bug shows, and `options` are further arguments of torch.compile."""
    printed, error = output_of(code, compiled, options or {}, device)
    lines, stated = ([*map(str.rstrip, without_device(text).strip().splitlines())] for text in (printed, prints))
    if lines == stated and not error:
        return SHOWN, "other lines", shorten(" / ".join(lines))
    lacks = re.search(r"NotImplementedError|Could not run|not implemented", printed)
    if error or (lacks and lacks[0] not in prints):
        return CANNOT_RUN, error or "a call is not implemented", ""
    if str(device) != "cpu" and re.search(r"\brand(n|int|perm)?\(|dropout|bernoulli|\.uniform_|\.normal_", code):
        return CANNOT_RUN, "the repro draws random numbers, which differ on a device", ""
    return NOT_SHOWN, shorten(" / ".join(stated)), shorten(" / ".join(lines))


def named_backend(code: str) -> str:
    """Return the backend that a target replaces in a script: of those that its calls of torch.compile name, the one
    that does the most, since a finding compares it with the others; "" for a script without such a call."""
    calls = [match.end() for match in re.finditer(r"torch\.compile\b", code)]
    names = [*re.findall(r"backend=[\"'](\w+)[\"']", code), *["inductor"] * (len(calls) > code.count("backend="))]
    known = [name for name in BACKENDS if name in names] if calls else []
    return known[-1] if known else ""


def output_of(code: str, compiled: str, options: Mapping[str, Any], device: Any) -> tuple[str, str]:
    """Run a script in this process, and return what it prints, and the error that ended it, if any."""
    replaced, plain = named_backend(code), torch.compile

    def compile_with(model: Any = None, *, backend: Any = "inductor", **given: Any) -> Any:
        if backend == replaced:
            backend, given = compiled, {**options, **given}
        return plain(model, backend=backend, **given)

    name = "<repro>"
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)  # for tracebacks and inspect.getsource
    text, error = io.StringIO(), ""
    try:
        torch.compile = compile_with if compiled else plain
        with contextlib.redirect_stdout(text), default_device(device):
            exec(compile(code, name, "exec", dont_inherit=True), {"__name__": "__main__"})  # noqa: S102 - a known text
    except Exception as raised:
        error = f"{type(raised).__name__}: {str(raised).strip()[:500]}"
    finally:
        torch.compile = plain
    return text.getvalue(), error


@contextlib.contextmanager
def default_device(device: Any) -> Iterator[None]:
    """Create tensors on this device inside the block, unless a call names another one. The CPU needs no mode, which a
    compiler might see."""
    with torch.device(device) if str(device) != "cpu" else contextlib.nullcontext():
        yield


def without_device(text: str) -> str:
    """Return printed tensors without the name of their device."""
    return re.sub(r", device='[^']*'", "", text)


def calls_of(names: Mapping[str, Any]) -> list[list[Any]]:
    """Return the inputs of each call of a repro."""
    torch.manual_seed(0)
    result: list[list[Any]] = names["calls"]() if "calls" in names else [names["inputs"]() if "inputs" in names else []]
    return result


def calls_on(names: Mapping[str, Any], device: Any) -> list[list[Any]]:
    """Return the inputs of each call on a device: made there, so that they share memory as on the CPU, unless the
    device draws other random numbers. Then they are moved."""
    on_cpu = calls_of(names)
    if str(device) == "cpu":
        return on_cpu
    with default_device(device), contextlib.suppress(Exception):
        there = calls_of(names)
        if same([[*map(kept, row)] for row in there], [[*map(kept, row)] for row in on_cpu]):
            return there
    return [[move_input(value, device) for value in row] for row in on_cpu]


def move_input(value: Any, device: Any) -> Any:
    """Return an input on a device, as a leaf if it requires a gradient."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to(device).requires_grad_(value.requires_grad)


def answers_to(
    function: Callable[..., Any], calls: list[list[Any]], names: Mapping[str, Any], seed: int = 0
) -> list[Any]:
    """Return the result, the inputs and the state after each call, then again after the caller has written to the
    results; a call that raises as `RaisedCall`."""
    seen: list[Any] = []
    torch.manual_seed(seed)
    for inputs in calls:
        try:
            result = function(*inputs)
        except Exception as error:
            seen.append(RaisedCall(f"{type(error).__name__}: {str(error).strip()[:500]}"))
            continue
        state = names["state"]() if "state" in names else None
        results = [value for value in (result if isinstance(result, tuple) else (result,)) if value is not None]
        tensors = [result for result in results if isinstance(result, torch.Tensor)]
        seen.append([kept(value) for value in [*results, *inputs, state]])
        for one in tensors:
            if one.dtype.is_floating_point and not one.requires_grad:
                with contextlib.suppress(RuntimeError):  # elements of an expanded result share memory
                    one.add_(1)
        seen.append([kept(tensor) for tensor in inputs])
    return seen


def kept(value: Any) -> Any:
    """Return a copy of a tensor on the CPU with its strides, and any other value as it is. Strides of dimensions of
    length 1 have no meaning (pytorch#77553), and a device may choose others."""
    if not isinstance(value, torch.Tensor):
        return value
    copy = value.detach().clone()
    strides = tuple(stride if size != 1 else 1 for stride, size in zip(value.stride(), value.shape))
    return copy if copy.device.type == "meta" else copy.cpu(), strides


def same(value: Any, other: Any, values: bool = True) -> bool:
    """Whether two answers agree: tensors within a tolerance, or without `values` in dtype and shape only."""
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        if (value.dtype, value.shape) != (other.dtype, other.shape) or not values:
            return (value.dtype, value.shape) == (other.dtype, other.shape)
        rtol = 1e-2 if value.dtype in (torch.float16, torch.bfloat16) else 1e-3
        return torch.allclose(value, other, rtol, 1e-5, equal_nan=True)
    if isinstance(value, (list, tuple)) and type(value) is type(other) and len(value) == len(other):
        return all(same(a, b, values) for a, b in zip(value, other))
    return type(value) is type(other) and bool(value == other)


def shorten(value: Any) -> str:
    """Return a value as one line of at most 300 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 300 else f"{text[:296]} ..."
