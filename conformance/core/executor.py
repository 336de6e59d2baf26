"""The executor: the only code that runs a subject on a target, and that applies what the target is.

Defines `Subject` (a drawn program, or one op_db sample), `Running` (a subject under way), `Execution` (what a run
showed) and `Executor`. The key insight: whether a target moves tensors, transforms functions or interprets metadata is
decided here, for both kinds of subject, so no subject can be compared with itself: a transform that gives its function
back is refused, and what never reached the compiler is told apart from what did."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from conformance.core.errors import TargetError, UserError
from conformance.core.input_layout import LayoutUnavailable
from conformance.core.moving import moved, tensors
from conformance.core.observation import Observation, Raised
from conformance.core.target import Capture, Target

Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
Watch = Callable[[int, bool], None]
"""Is told the number of a step before it runs, and whether kernels may be built in it for the first time."""

_RUN: weakref.WeakKeyDictionary[Target, set[Hashable]] = weakref.WeakKeyDictionary()
"""What each target has run in this process: the signatures of steps."""


class Running(Protocol):
    """A subject under way on one side, its inputs already there."""

    @property
    def count(self) -> int:
        """How many steps it has; a function that is transformed is one step."""

    def signature(self, number: int) -> Hashable:
        """What tells the kernels of a step from those of others: its op, and the dtypes and ranks that it works on."""

    def advance(self, number: int) -> None:
        """Run step `number`, from 1 on. Raises StepFailed, or what the step raises and the subject does not declare."""

    def observe(self, target: Target) -> Observation:
        """All that can be seen now."""

    @property
    def outcome(self) -> Any:
        """What it returned, as it lies on the target."""


class Subject(Protocol):
    """What is run: inputs, and calls on them."""

    def inputs(self) -> tuple[Any, Collection[int]]:
        """The tree of inputs on the CPU, and the storages of those that stay there."""

    def begin(self, inputs: Any, target: Target, transform: Transform | None) -> Running:
        """The subject on inputs that lie on the target. With `transform`, the function that it is goes through it."""


class StepFailed(Exception):
    """A step raised where none was expected; the original error is the cause."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__(f"step {number} ({name})")
        self.number = number


@dataclass(frozen=True)
class Execution:
    """What a run showed: one observation at the end, or one after each step.

    `failed_step` says where an error that no step declares came: 0 while the inputs moved, None while observing or
    without one; it is in the last observation. `capture` is what a compiler was handed; None without a transform."""

    observations: tuple[Observation, ...]
    failed_step: int | None = None
    capture: Capture | None = None
    outcome: Any = None
    inputs: Any = None
    """What it returned and its inputs, as they lie on the target."""
    unavailable: str = ""
    """The layout of an input that the device has no way to make; then nothing ran."""

    @property
    def last(self) -> Observation:
        """What was seen at the end."""
        return self.observations[-1]


class Executor:
    """Runs subjects on one target."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def run(
        self, subject: Subject, *, each: bool = False, count: bool = False, watch: Watch = lambda number, builds: None
    ) -> Execution:
        """Run a subject, and observe it at the end, or after each step when `each`.

        The target first forgets what earlier subjects taught it, so that kernels follow from the subject alone. `count`
        counts kernels, the observation's included. `watch` is told the number of each step before it runs, 0 for the
        move of the inputs and one more for the observation, and whether kernels may be built in it: in a step whose
        signature the target has not run before, and in the observation after one; of a compiler in every step, and of
        a lazy device, which fuses what it is given, in the observation too. Raises TargetError for a target that
        transforms nothing, and what is not understood of the subject.
        """
        target = self.target
        for _ in range(target.rehearsals):
            self._rehearse(subject, each)
        target.reset_state()
        seen: list[Observation] = []
        failed: int | None = 0
        outcome: Any = None
        inputs: Any = None
        news = _News(target)
        captured = contextlib.nullcontext() if not target.transforms_program else self._captured()
        counting = target.kernels() if count else contextlib.nullcontext()
        with target.entered(), captured as capture, counting as counted:
            try:
                tree, kept = subject.inputs()
                if target.device.type == "cpu":  # all inputs are where the target computes
                    kept = ()
                watch(0, news.of(("inputs", signature_of(tensors(tree)))))
                inputs = moved(tree, target.send, target.device, kept)
                failed = None
                running = subject.begin(inputs, target, self._transform(capture) if capture else None)
                for number in range(1, running.count + 1):
                    watch(number, news.of(running.signature(number)))
                    with target.active():
                        running.advance(number)
                    if each:
                        seen.append(running.observe(target))
                watch(running.count + 1, news.any)
                if not each or not running.count:
                    seen.append(running.observe(target))
                outcome = running.outcome
                watch(running.count + 1, False)
            except UserError:
                raise
            except LayoutUnavailable as error:
                return Execution((Observation(error=Raised.of(error)),), 0, unavailable=str(error))
            except StepFailed as error:
                failed = error.number
                seen.append(Observation(error=Raised.of(error.__cause__ or error)))
            except Exception as error:
                seen.append(Observation(error=Raised.of(error)))
        if counted is not None and counted.total is not None:
            seen[-1] = replace(seen[-1], kernels=counted.total)
        return Execution(tuple(seen), failed, capture, outcome, inputs)

    def _rehearse(self, subject: Subject, each: bool) -> None:
        """Run a subject for what the target learns of it; an error comes again in the run that counts."""
        target = self.target
        target.reset_state()
        with target.entered(), contextlib.suppress(Exception):
            tree, kept = subject.inputs()
            inputs = moved(tree, target.send, target.device, () if target.device.type == "cpu" else kept)
            running = subject.begin(inputs, target, None)
            for number in range(1, running.count + 1):
                with target.active():
                    running.advance(number)
                if each:
                    running.observe(target)
            running.observe(target)

    @contextlib.contextmanager
    def _captured(self) -> Any:
        """What the target says that its compiler was handed; otherwise whether the function was ever called."""
        with self.target.capture() as capture:
            yield capture if capture is not None else _Calls()

    def _transform(self, capture: Capture) -> Transform:
        def transform(function: Callable[..., Any]) -> Callable[..., Any]:
            given = capture.counting(function) if isinstance(capture, _Calls) else function
            made = self.target.transform(given)
            if made is given:
                raise TargetError(
                    f"target {self.target.spec!r} transforms nothing: its `transform` gave back the function given "
                    "to it, so torch CPU would be compared with itself"
                )
            return made

        return transform


class _News:
    """What is new to a target in a run: where its kernels may have to be built."""

    def __init__(self, target: Target) -> None:
        self.run = _RUN.setdefault(target, set())
        self.always = target.transforms_program or target.lazy
        self.any = target.lazy

    def of(self, signature: Hashable) -> bool:
        """Whether the target has not run this yet; from now on it has."""
        new = self.always or signature not in self.run
        self.run.add(signature)
        self.any = self.any or (new and not self.always)
        return new


def signature_of(given: Iterable[torch.Tensor]) -> tuple[tuple[torch.dtype, int], ...]:
    """The dtypes and ranks of tensors."""
    return tuple((tensor.dtype, tensor.dim()) for tensor in given)


class _Calls(Capture):
    """For a transform that says nothing of what it does: the calls of the function that it was given."""

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its calls counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.graphs, self.ops = self.graphs + 1, self.ops + 1
            return function(*args, **kwargs)

        return counted
