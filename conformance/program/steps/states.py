"""What a step can run under: the table of global states, each entered for one step and left again.

Defines `STATES` and `within`. The key insight: a device that remembers an answer has to remember under which global
state it was given, so a state is entered around single steps of a program, and the same call is made inside and outside
of it in turn: a remembered answer is then wrong in the very program that taught it. A state is the Python expression
that a script shows, and a run evaluates that expression, so the two cannot disagree; a context manager's exit sets back
what was there, whatever the step raised.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from conformance.program.steps import definitions


@dataclass(frozen=True)
class State:
    """A global state: the expression that enters it, of a context manager, or of a function that calls what it is given
    (`wraps`). `suits` are the steps whose answers it changes, from inputs of this `dtype`; `only` are those of which
    torch promises something in it (all where it is empty), `never` those that have no one meaning in it: torch CPU
    (2.13) itself has two answers, one where a dispatch mode looks on, or the default device is another thread's.
    `compiled`: torch.compile takes it into a graph; others are for devices only. `rounds`: the same calls in float64
    are made outside of it."""

    text: str
    suits: tuple[str, ...] = ()
    dtype: str = "float32"
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    wraps: bool = False
    compiled: bool = False
    rounds: bool = False


RECORDED = ("mul.recorded",)
DTYPED = ("true_divide.state", "sqrt.state", "sigmoid.state", "add.state", "mul.state", "where.state", "full.state",
          "arange.state", "linspace.state", "tensor.state")  # fmt: skip
PLACED = ("full.here", "arange.here", "tensor.here")
CAST = ("mm.state", "matmul.state", "nn.functional.linear.state")
WRITES = ("add_", "augment", "sub_")
"""What is written twice differs from what is written once."""
FILLED = ("empty.state", "empty_like.state", "new_empty.state")

STATES: dict[str, State] = {
    "no_grad": State("torch.no_grad()", RECORDED, compiled=True),
    "enable_grad": State("torch.enable_grad()", RECORDED, compiled=True),
    "inference_mode": State("torch.inference_mode()", RECORDED, never=("fill_diagonal_",)),
    "default_dtype:float64": State("default_dtype(torch.float64)", DTYPED, "int64", rounds=True),
    "default_dtype:float16": State("default_dtype(torch.float16)", DTYPED, "int64", rounds=True),
    "default_dtype:bfloat16": State("default_dtype(torch.bfloat16)", DTYPED, "int64", rounds=True),
    "default_device": State("default_device(device)", (*PLACED, "new_tensors_lie")),
    "autocast:bfloat16": State(
        "torch.autocast(torch.device(device).type, torch.bfloat16)", CAST, only=CAST, rounds=True
    ),
    "deterministic": State("deterministic()", FILLED),
    "flush_denormal": State("flush_denormal()", ("subnormals",)),
    "threads:1": State("threads(1)", ("sum.state",)),
    "threads:2": State("threads(2)", ("sum.state",)),
    "function_mode": State("function_mode()", WRITES),
    "dispatch_mode": State("dispatch_mode()", WRITES),
    "vmap": State("in_vmap", WRITES, wraps=True),
    "vjp": State("in_vjp", RECORDED, wraps=True),
    "thread": State("in_thread", WRITES, never=PLACED, wraps=True),
}
"""By the name that a step's `under` has; what follows a colon is the argument."""


def within(names: Sequence[str], device: torch.device | str, call: Callable[[], Any]) -> Any:
    """What the call gives under these states, the first the outermost. Raises what the call raises."""
    if not names:
        return call()
    made = eval(_compiled(STATES[names[0]].text), {**_scope(), "device": device})  # noqa: S307 - the table's own text
    if STATES[names[0]].wraps:
        return made(lambda: within(names[1:], device, call))
    with made:
        return within(names[1:], device, call)


def promises(name: str, op: str) -> bool:
    """Whether torch promises something of this step under the state."""
    state = STATES[name]
    return op not in state.never and (not state.only or op in state.only)


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """The states as a script can show them: contexts, and within them a function that is given the call."""
    return tuple(sorted(dict.fromkeys(names), key=lambda name: STATES[name].wraps))


def defined_by(names: Iterable[str]) -> list[str]:
    """The functions of `definitions` that enter these states."""
    called = (re.match(r"\w+", STATES[name].text) for name in names)
    return [match[0] for match in called if match and hasattr(definitions, match[0]) and match[0] != "torch"]


@functools.cache
def _compiled(text: str) -> CodeType:
    return compile(text, "<state>", "eval")


@functools.cache
def _scope() -> dict[str, Any]:
    return {"torch": torch, **{name: getattr(definitions, name) for name in defined_by(STATES)}}


def shown(names: Sequence[str]) -> tuple[str, str]:
    """The states as Python: the managers of a `with`, and the function around the call; "" without one."""
    managers = ", ".join(STATES[name].text for name in names if not STATES[name].wraps)
    return managers, next((STATES[name].text for name in names if STATES[name].wraps), "")


def fault_of(names: Sequence[str]) -> str:
    """What is wrong with these states of a step, or the empty string."""
    unknown = [name for name in names if name not in STATES]
    if unknown:
        return f"the unknown state {unknown[0]!r}"
    if tuple(names) != ordered(names) or sum(STATES[name].wraps for name in names) > 1:
        return f"the states {', '.join(names)}, of which one that takes a call must stand alone and last"
    return ""
