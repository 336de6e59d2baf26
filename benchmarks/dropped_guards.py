"""Guards of Dynamo that are dropped, and the number of programs until a further call shows it.

    python benchmarks/dropped_guards.py [--target compile:aot_eager] [--programs 1000] [--seed 0] [--minutes 5]

Each row drops one kind of guard, or one part of TENSOR_MATCH. The programs are the short ones of a campaign with a
changed call. A program counts only if the target is right on it with all guards, and only for the kinds that it
installs. "not found" is a gap of the generator within the limits, or a guard that another one makes needless.
"not installed" is a kind of other programs.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch._dynamo import guards

from conformance.engine.loading import describe_target, load_target
from conformance.program.calls import change_of, judge_program
from conformance.program.unsupported import unsupported_reason, unsupported_steps
from conformance.sources.fuzzing.drawing import Drawing
from conformance.sources.fuzzing.further_calls import with_calls

PARTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype": lambda t: t.dtype,
    "shape": lambda t: tuple(t.size()),
    "stride": lambda t: (t.dim(), tuple(t.stride())),
    "requires_grad": lambda t: t.requires_grad,
    "dispatch keys": lambda t: str(torch._C._dispatch_keys(t)),
}
"""The parts of TENSOR_MATCH that can be dropped. The shape without its rank is part of the shape."""

KINDS = tuple(name for name, method in vars(guards.GuardBuilder).items() if name.isupper() and callable(method))
UNGUARDED = {"values", "offset"}
"""Changes of a call that no guard checks."""

LONGEST = 8
"""Largest number of steps of a program. Longer ones take as much time for each guard as many short ones."""

INSTALLERS = ("install_no_tensor_aliasing_guard", "install_storage_overlapping_guard")


TOGETHER = {
    "global state": ("GLOBAL_STATE", "GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "TORCH_FUNCTION_STATE"),
    "aliasing": ("DUPLICATE_INPUT", *INSTALLERS),
}
"""Kinds that check the same facts, so that no program shows one of them alone. A further row drops all of them."""


def _tensor_match(dropped: str) -> Callable[..., None]:
    """Return a TENSOR_MATCH that checks every part but one."""
    kept = [part for name, part in PARTS.items() if name != dropped]
    if dropped == "requires_grad":  # the dispatch keys follow it
        kept.remove(PARTS["dispatch keys"])
    if dropped in ("shape", "stride"):
        kept.remove(PARTS["stride" if dropped == "shape" else "shape"])
        kept += [] if dropped == "shape" else [lambda t: tuple(t.size())]

    def install(self: Any, guard: Any, value: Any = None) -> None:
        value = value() if isinstance(value, guards.TensorWeakRef) else value
        value = value if value is not None else self.get(guard)
        wanted, manager = [part(value) for part in kept], self.get_guard_manager(guard)
        self.no_tensor_aliasing_names.append(self.arg_ref(guard))
        self.no_tensor_aliasing_guard_managers.append(manager)
        manager.add_lambda_guard(
            lambda t: isinstance(t, torch.Tensor) and [part(t) for part in kept] == wanted, [f"without {dropped}"], None
        )

    return install


def _faults() -> dict[str, Callable[[], Any]]:
    """Return the context managers that drop a guard, by its name."""
    builder = guards.GuardBuilder
    faults = {f"TENSOR_MATCH: {part}": _patched(builder, "TENSOR_MATCH", _tensor_match(part)) for part in PARTS}
    whole = (name for name in KINDS if name != "TENSOR_MATCH")
    faults |= {name: _patched(builder, name, lambda *args, **kwargs: None) for name in whole}
    faults |= {name: _patched(guards, name, lambda *args, **kwargs: None) for name in INSTALLERS}
    return faults | {name: _all([faults[kind] for kind in kinds]) for name, kinds in TOGETHER.items()}


def _all(some: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    def together() -> ExitStack:
        with ExitStack() as stack:
            for fault in some:
                stack.enter_context(fault())
            return stack.pop_all()

    return together


def _kinds(name: str) -> Set[str]:
    """The kinds of guards that a row drops."""
    return {*TOGETHER.get(name, (name.partition(":")[0],))}


def _patched(owner: Any, name: str, other: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, other)


@contextmanager
def dropped(fault: Callable[[], Any]) -> Iterator[None]:
    """Context without a kind of guard."""
    with ExitStack() as stack:
        stack.enter_context(fault())
        yield


@contextmanager
def recorded() -> Iterator[set[str]]:
    """Context that yields the kinds of guards that are installed in it."""
    installed = set[str]()

    def recording(name: str, install: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            installed.add(name)
            return install(*args, **kwargs)

        return call

    owners = [(guards.GuardBuilder, name) for name in KINDS] + [(guards, name) for name in INSTALLERS]
    with ExitStack() as stack:
        for owner, name in owners:
            stack.enter_context(mock.patch.object(owner, name, recording(name, getattr(owner, name))))
        yield installed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="compile:aot_eager")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=5.0)
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    target, until = load_target(args.target), time.monotonic() + 60 * args.minutes
    drawing = Drawing(without=unsupported_steps(describe_target(args.target).facts), compiled=target.facts.compiles)
    shown: dict[str, tuple[int, str]] = {}
    faults, tried, seen = _faults(), 0, set[str]()
    for number in range(args.programs):
        left = [name for name in faults if name not in shown]
        if not left or time.monotonic() > until:
            break
        program = drawing.numbered(args.seed, number)
        if unsupported_reason(program, target.facts):
            continue
        program = with_calls(program, args.seed, number, target)
        changed = {change_of(program, at) for at in range(1, len(program.calls) + 1)} - UNGUARDED
        if not changed or len(program.steps) > LONGEST:
            continue
        with recorded() as installed:
            if not judge_program(program, target, locate=False).passed:
                continue
        tried, seen = number + 1, seen | installed
        for name in left:
            if not _kinds(name) & installed:
                continue
            with dropped(faults[name]):
                verdict = judge_program(program, target, locate=False)
            if verdict.call:
                shown[name] = number + 1, f"{verdict.change}: {verdict.mismatches[0].oracle}"
    some = [name for name in faults if _kinds(name) & seen]
    print(
        f"{len(shown)} of {len(some)} dropped guards found in {tried} programs of seed {args.seed} on {args.target}\n"
    )
    print("| guard | programs | change and oracle |\n|---|---|---|")
    for name in faults:
        print("| {} | {} | {} |".format(name, *shown.get(name, ("not found" if name in some else "not installed", ""))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
