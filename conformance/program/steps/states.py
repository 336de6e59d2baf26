"""The table of global states under which a step can run. Each is entered for one step and left again.

Defines `STATES` and `within`. A device that caches an answer must include the global state in the cache key. So a
program enters a state around single steps, and makes the same call inside and outside of it. A wrong cache hit then
shows in the program that filled the cache. A state is a Python expression. The script shows it and the run evaluates
it, so the two agree. The exit of the context manager restores the previous state, even if the step raises.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from conformance.program.steps import snippets


@dataclass(frozen=True)
class State:
    """A global state.

    - `text`: the expression of its context manager or, if `wraps`, of a function that runs a given call.
    - `suits`: the steps whose answers it changes, on inputs of this `dtype`.
    - `only`: the steps that torch defines under this state; empty means all.
    - `never`: the steps without a unique answer under this state. Either torch CPU (2.13) has two answers, one of them
      under a dispatch mode, or the default device belongs to another thread.
    - `compiled`: torch.compile traces it into a graph. The other states are for devices only.
    - `rounds`: the state selects a narrower dtype, so the float64 run makes the calls outside of it.
    - `drawn`: drawn programs have it. The others are for calls that are not drawn.
    - `whole`: the state is for a whole function of CPU tensors. On another device it has no effect, or another one.
    """

    text: str
    suits: tuple[str, ...] = ()
    dtype: str = "float32"
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    wraps: bool = False
    compiled: bool = False
    rounds: bool = False
    whole: bool = False
    drawn: bool = True


RECORDED = ("mul.recorded",)
DTYPED = ("true_divide.state", "sqrt.state", "sigmoid.state", "add.state", "mul.state", "where.state", "full.state",
          "arange.state", "linspace.state", "tensor.state")  # fmt: skip
PLACED = ("full.here", "arange.here", "tensor.here")
CAST = ("mm.state", "matmul.state", "nn.functional.linear.state")
WRITES = ("add_", "augment", "sub_")
"""Steps for which a second run changes the result."""
FILLED = ("empty.state", "empty_like.state", "new_empty.state")

STATES: dict[str, State] = {
    "no_grad": State("torch.no_grad()", RECORDED, compiled=True),
    "enable_grad": State("torch.enable_grad()", RECORDED, compiled=True),
    "inference_mode": State("torch.inference_mode()", RECORDED, never=("fill_diagonal_",)),
    "default_dtype:float64": State("default_dtype(torch.float64)", DTYPED, "int64", rounds=True),
    "default_dtype:float16": State("default_dtype(torch.float16)", DTYPED, "int64", rounds=True),
    "default_dtype:bfloat16": State("default_dtype(torch.bfloat16)", DTYPED, "int64", rounds=True),
    "seed:1234": State("seed(1234)", drawn=False),
    "seed:42": State("seed(42)", drawn=False),
    "default_device": State("default_device(device)", (*PLACED, "new_tensors_lie")),
    "autocast:bfloat16": State(
        "torch.autocast(torch.device(device).type, torch.bfloat16)", CAST, only=CAST, rounds=True
    ),
    "whole_autocast:bfloat16": State('torch.autocast("cpu", torch.bfloat16)', rounds=True, whole=True),
    "deterministic": State("deterministic()", FILLED),
    "flush_denormal": State("flush_denormal()", ("subnormals",)),
    "threads:1": State("threads(1)", ("sum.state",)),
    "threads:2": State("threads(2)", ("sum.state",)),
    "function_mode": State("function_mode()", WRITES),
    "dispatch_mode": State("dispatch_mode()", WRITES),
    "vmap": State("in_vmap", WRITES, wraps=True),
    "vjp": State("in_vjp", RECORDED, wraps=True),
    "thread": State("in_thread", WRITES, never=PLACED, wraps=True),
    **{f"object:{kind}": State(f"changed_object({kind!r})", whole=True) for kind in snippets.OBJECTS},
}
"""States by their name in a step's `under`. The part after a colon is the argument."""

OF_STEPS = {name: state for name, state in STATES.items() if state.drawn and not state.whole}
"""The states that are drawn around a single step."""

SEEDS = ("seed:1234", "seed:42")
"""States of a call that draws random numbers: the seed of op_db's samples, and the one that some entries set before
their call."""


def within(names: Sequence[str], device: torch.device | str, call: Callable[[], Any]) -> Any:
    """Return the result of the call under these states, outermost first. Errors of the call propagate."""
    if not names:
        return call()
    state = eval(_compiled(STATES[names[0]].text), {**_scope(), "device": device})  # noqa: S307 - the table's own text
    if STATES[names[0]].wraps:
        return state(lambda: within(names[1:], device, call))
    with state:
        return within(names[1:], device, call)


def promises(name: str, op: str) -> bool:
    """Return whether torch defines the step under this state."""
    state = STATES[name]
    return op not in state.never and (not state.only or op in state.only)


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return the states in the order of a script: context managers first, then a function that wraps the call."""
    return tuple(sorted(dict.fromkeys(names), key=lambda name: STATES[name].wraps))


def defined_by(names: Iterable[str]) -> list[str]:
    """Return the names of the functions of `snippets` that enter these states."""
    called = (re.match(r"\w+", STATES[name].text) for name in names)
    return [match[0] for match in called if match and hasattr(snippets, match[0]) and match[0] != "torch"]


@functools.cache
def _compiled(text: str) -> CodeType:
    return compile(text, "<state>", "eval")


@functools.cache
def _scope() -> dict[str, Any]:
    return {"torch": torch, **{name: getattr(snippets, name) for name in defined_by(STATES)}}


def shown(names: Sequence[str]) -> tuple[str, str]:
    """Return the states as Python: the managers of a `with`, and the function around the call; "" if there is none."""
    managers = ", ".join(STATES[name].text for name in names if not STATES[name].wraps)
    return managers, next((STATES[name].text for name in names if STATES[name].wraps), "")


def fault_of(names: Sequence[str]) -> str:
    """Return the fault in a step's states, or ""."""
    unknown = [name for name in names if name not in STATES]
    if unknown:
        return f"the unknown state {unknown[0]!r}"
    if tuple(names) != ordered(names) or sum(STATES[name].wraps for name in names) > 1:
        return f"the states {', '.join(names)}, of which one that takes a call must stand alone and last"
    return ""
