"""The executor: the only code that runs a subject on a target and applies the target's transform.

Defines `Subject` (such as a program), `Running` (a subject in progress), `Execution` (the outcome of a run) and
`Executor`. One place decides whether a target moves tensors, transforms functions or interprets metadata. So no subject
can be compared with itself: the executor rejects a transform that returns its function unchanged, and distinguishes
samples that reached the compiler from those which did not.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from conformance.engine.target import Capture, Target
from conformance.record.errors import DeviceLost, TargetError, UserError
from conformance.record.measurements import UNMEASURED, Measurements, growth
from conformance.standalone.device import is_lost
from conformance.standalone.input_layout import LayoutUnavailable
from conformance.standalone.moving import send_tree, tensors
from conformance.standalone.observation import Observation, Raised
from conformance.standalone.torch_compat import leave_forward_ad

Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
Watch = Callable[[int, bool], None]
"""Callback that receives the number of a step before it runs, and whether the step may build kernels for the first
time."""


def no_watch(number: int, builds: bool) -> None:
    """Do nothing; the default of each `Watch`."""


_RUN: weakref.WeakKeyDictionary[Target, set[Hashable]] = weakref.WeakKeyDictionary()
"""The signatures of all steps that each target has run in this process."""


class Running(Protocol):
    """A subject in progress on one side, with its inputs already moved."""

    @property
    def count(self) -> int:
        """Number of steps; a transformed function is one step."""

    def signature(self, number: int) -> Hashable:
        """Key that distinguishes the kernels of two steps: the step's op, and the dtypes and ranks of its operands."""

    def advance(self, number: int) -> None:
        """Run step `number`, starting at 1. Raises StepFailed, or an error that the step raises and the subject does
        not declare."""

    def observe(self, target: Target) -> Observation:
        """Return everything observable now."""

    @property
    def outcome(self) -> Any:
        """The subject's return value, still on the target."""


class Subject(Protocol):
    """The unit that is run: inputs, and calls on them."""

    def inputs(self) -> tuple[Any, Collection[int]]:
        """Return the tree of inputs on the CPU, and the storage keys of the inputs that stay on the CPU."""

    def begin(self, inputs: Any, target: Target, transform: Transform | None) -> Running:
        """Start the subject on inputs that are on the target. With `transform`, the subject's function is passed
        through it."""


class HarnessFault(Exception):
    """A fault of the harness within a run, which is no answer of either side; the original error is the cause."""


class StepFailed(Exception):
    """A step raised unexpectedly; the original error is the cause."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__(f"step {number} ({name})")
        self.number = number


@dataclass(frozen=True)
class Execution:
    """The outcome of a run: one observation at the end, or one after each step.

    `failed_step` is the step of an error that no step declares: 0 while the inputs moved, None while observing or
    without such an error. The last observation holds the error. `capture` is the compiler's input; None if the target
    counts none.
    """

    observations: tuple[Observation, ...]
    failed_step: int | None = None
    capture: Capture | None = None
    outcome: Any = None
    inputs: Any = None
    """`outcome` is the return value and `inputs` are the moved inputs, both still on the target."""
    unavailable: str = ""
    """The layout of an input that the device cannot make. If it is set, nothing ran."""
    measured: Measurements = UNMEASURED

    @property
    def last(self) -> Observation:
        """The last observation of the run."""
        return self.observations[-1]


class Executor:
    """Runs subjects on one target."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def run(self, subject: Subject, *, stepwise: bool = False, watch: Watch = no_watch) -> Execution:
        """Run a subject, and observe it at the end, or after each step if `stepwise`.

        The target first forgets the state of earlier subjects, so kernels depend on the subject alone. The
        measurements include those of the moves and of the observation.

        `watch` receives the number of each step before it runs, and whether the step may build kernels. Number 0 is the
        move of the inputs; the last number plus one is the observation. A step may build kernels if the target has not
        run its signature before. With a compiler, every step may. On a lazy device the observation may, since the
        device fuses the steps before it.

        Raises TargetError for a target that transforms nothing, UserError from the subject, HarnessFault, and
        DeviceLost.
        """
        target = self.target
        target.reset_state()  # not between rehearsals, which teach the device the calls of the observed run
        for _ in range(target.facts.rehearsals):
            self._rehearse(subject, stepwise)
        seen: list[Observation] = []
        failed: int | None = 0
        outcome: Any = None
        inputs: Any = None
        news = _News(target)
        captured = self._captured() if target.facts.transforms_program else target.capture()
        capture: Any = None
        counters = target.counters()
        with contextlib.ExitStack() as stack:
            try:
                tree, kept = subject.inputs()  # before the target's modes, under which a factory has another result
                stack.enter_context(self._entered())
                capture = stack.enter_context(captured)
                if target.device.type == "cpu":  # the target computes on the CPU, so all inputs are already there
                    kept = ()
                watch(0, news.of(("inputs", signature_of(tensors(tree)))))
                inputs = send_tree(tree, target.send, target.device, kept)
                del tree  # memory that the call does not need
                failed = None
                transform = self._transform(capture) if capture and target.facts.transforms_program else None
                running = subject.begin(inputs, target, transform)
                for number in range(1, running.count + 1):
                    watch(number, news.of(_signature(running, number)))
                    with target.active():
                        running.advance(number)
                    if capture:
                        capture.after.append(capture.graphs)
                    if stepwise:
                        seen.append(running.observe(target))
                watch(running.count + 1, news.any)
                if not stepwise or not running.count:
                    seen.append(running.observe(target))
                outcome = running.outcome
                watch(running.count + 1, False)
            except (UserError, HarnessFault):
                raise
            except LayoutUnavailable as error:
                return Execution((Observation(error=Raised.of(error)),), 0, unavailable=str(error))
            except StepFailed as error:
                failed = error.number
                seen.append(Observation(error=Raised.of(error.__cause__ or error)))
            except Exception as error:
                seen.append(Observation(error=Raised.of(error)))
        measured = growth(counters, target.counters())  # without the calls of the check below
        raised = seen[-1].error if seen else None
        if raised is not None and target.device.type != "cpu" and is_lost(target):
            raise DeviceLost(f"{raised.kind}: {raised.text}".partition("\n")[0])
        return Execution(tuple(seen), failed, capture, outcome, inputs, measured=measured)

    def _rehearse(self, subject: Subject, stepwise: bool) -> None:
        """Run a subject only for its effect on the target's state. Ignores errors, which recur in the observed run."""
        target = self.target
        try:
            tree, kept = subject.inputs()
        except Exception:
            return
        with self._entered(), contextlib.suppress(Exception):
            inputs = send_tree(tree, target.send, target.device, () if target.device.type == "cpu" else kept)
            running = subject.begin(inputs, target, None)
            for number in range(1, running.count + 1):
                with target.active():
                    running.advance(number)
                if stepwise:
                    running.observe(target)
            running.observe(target)

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        """Context around all work of a run: the target's own, and no level of forward-mode AD is entered afterwards."""
        try:
            with self.target.entered():
                yield
        finally:
            leave_forward_ad()

    @contextlib.contextmanager
    def _captured(self) -> Any:
        """Yield the target's own capture; if it has none, count calls of the function."""
        with self.target.capture() as capture:
            yield capture if capture is not None else _Calls()

    def _transform(self, capture: Capture) -> Transform:
        def transform(function: Callable[..., Any]) -> Callable[..., Any]:
            counted = capture.counting(function) if isinstance(capture, _Calls) else function
            result = self.target.transform(counted)
            if result is counted:
                raise TargetError(
                    f"target {self.target.spec!r} transforms nothing: its `transform` gave back the function given "
                    "to it, so torch CPU would be compared with itself"
                )
            return result

        return transform


def _signature(running: Running, number: int) -> Hashable:
    """Return the signature of a step. Both sides would raise its error, and agree."""
    try:
        return running.signature(number)
    except Exception as error:
        raise HarnessFault(f"signature of step {number}: {type(error).__name__}: {error}") from error


class _News:
    """Tracks which steps are new to a target in a run, so that it may have to build kernels for them."""

    def __init__(self, target: Target) -> None:
        self.run = _RUN.setdefault(target, set())
        self.always = target.facts.transforms_program or target.facts.lazy
        self.any = target.facts.lazy

    def of(self, signature: Hashable) -> bool:
        """Whether the target has not run this signature yet; records it as run."""
        new = self.always or signature not in self.run
        self.run.add(signature)
        self.any = self.any or (new and not self.always)
        return new


def signature_of(tensors: Iterable[torch.Tensor]) -> tuple[tuple[torch.dtype, int], ...]:
    """Return the dtypes and ranks of tensors."""
    return tuple((tensor.dtype, tensor.dim()) for tensor in tensors)


class _Calls(Capture):
    """Capture for a transform that reports nothing: counts the calls of the function passed to it."""
