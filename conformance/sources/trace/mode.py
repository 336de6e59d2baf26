"""The dispatch mode of a trace: it judges each operator that the device runs.

Defines `Options` and `Tracing`. The mode lies below autograd and autocast, so it sees the aten operators of the forward
pass, of the backward pass and of the optimizer. Inside its handler, no further call is traced.
"""

from __future__ import annotations

import contextlib
import fnmatch
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from conformance.declare.probed import TrialAnswer
from conformance.engine.executor import Execution
from conformance.engine.loading import load_target
from conformance.engine.probe import trial
from conformance.engine.target import Target
from conformance.record.error_text import text_of
from conformance.sources.trace.call import CopiedCall, TracedCall, fetched, traced_call
from conformance.sources.trace.divergence import Divergence, name_in_run
from conformance.sources.trace.faults import Faults
from conformance.sources.trace.references import READS_WORKSPACE, WORKSPACE
from conformance.sources.trace.saved_run import RunWriter, SavedRun
from conformance.sources.trace.source_lines import Places, Site, SourceLine, is_of_user
from conformance.standalone.modes import without_modes
from conformance.standalone.observation import Observation, Raised
from conformance.standalone.oracles import Mismatch
from conformance.standalone.torch_compat import TorchDispatchMode, in_compiled_backward

OWN = {"tiny": "tiny", "cpu": "cpu"}
"""Targets of the harness by the type of their device. Other devices are `device:TYPE`."""

OVERLOAD = type(torch.ops.aten.add.Tensor)
"""Type of an operator; higher-order operators have another one."""

NEEDED = ("set_", "as_strided", "storages")
"""Features of a device on which reading its tensors depends."""


BOTH_RAISE = "both raise"
"""Why a call was not judged that says nothing against the device."""


@dataclass(frozen=True)
class Options:
    """Selection of calls: every n-th call of an operator in a phase, operators by patterns, and training steps from
    the first to the last, counted from 1. With `divergence`, the run is also compared with a free run of torch CPU,
    with `against` also with this saved run; `save` is the file to which the results of the selected calls are saved.
    With `nonfinite`, calls are not compared with torch CPU, but searched for nan and inf out of finite inputs."""

    every: int = 1
    operators: tuple[str, ...] = ()
    steps: tuple[int, int] | None = None
    divergence: bool = False
    nonfinite: bool = False
    save: Path | None = None
    against: Path | None = None


@dataclass
class CallCounts:
    """Numbers of calls of one operator in one phase."""

    seen: int = 0
    judged: int = 0
    arbitrated: int = 0
    tolerated: int = 0
    unjudged: Counter[str] = field(default_factory=Counter)

    def judge(self, call: CopiedCall, want: Execution, got: Execution, target: Target) -> list[Mismatch]:
        """Judge a call, count it, and return its differences."""
        judgement = call.judged(want, got, target)
        self.judged += 1
        self.arbitrated += judgement.arbitrated
        self.tolerated += judgement.tolerated
        return judgement.mismatches


class Tracing(TorchDispatchMode):
    """The mode. `target` restricts it to the target's device; without one, it traces every device but the CPU, which is
    the reference. The search for nan and inf needs none, so it traces the CPU, too."""

    supports_higher_order_operators = True
    """See TorchDispatchMode: without this, operators of functions, such as `cond`, raise under the mode."""

    def __init__(self, target: Target | None, options: Options, progress: Callable[[Tracing], None]) -> None:
        super().__init__()
        self.options, self.progress, self.only = options, progress, target
        self.targets: dict[str, Target] = {target.device.type: target} if target is not None else {}
        self.faults, self.places = Faults(), Places()
        saved = SavedRun(options.against) if options.against else None
        self.divergence = Divergence(saved) if options.divergence or saved else None
        self.writer = RunWriter(options.save) if options.save else None
        self._calls = Counter[tuple[str, str, SourceLine]]()
        self.tallies: dict[tuple[str, str], CallCounts] = {}
        self.known_workspaces: set[tuple[Any, str]] = set()
        """Operators, with the spec of the target, whose workspace has the content of torch's own."""
        self.step = 1
        self._lock, self._state = threading.RLock(), threading.local()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """See TorchDispatchMode: without this, torch.compile does nothing under the mode."""
        return True

    @property
    def judged(self) -> int:
        """Number of judged calls."""
        return sum(tally.judged for tally in self.tallies.values())

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Trace nothing in this thread inside the block."""
        before, self._state.paused = getattr(self._state, "paused", False), True
        try:
            yield
        finally:
            self._state.paused = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(self._state, "paused", False):
            return func(*args, **kwargs)
        if func is torch.ops.aten.ones_like.default:
            with self.paused():
                self._note_loss(args[0], sys._getframe(1))
        device = self._device(args, kwargs)
        if device is None or in_compiled_backward():
            return func(*args, **kwargs)
        with self._lock, self.paused():
            self.faults.attach(self.outside)
            place, phase = self.places.find(sys._getframe(1))
            tally = self.tallies.setdefault((str(func), phase), CallCounts())
            judged = self.selects(str(func), tally)
            self._calls[str(func), phase, place] += 1
            if not isinstance(func, OVERLOAD):
                tally.unjudged["an operator of functions"] += judged
                return func(*args, **kwargs)
            if not judged and self.divergence is None:
                return func(*args, **kwargs)
            site = Site(place, phase, self.target(device), self._calls[str(func), phase, place])
            return self._traced(func, args, kwargs, site, tally, judged)

    def _traced(self, func: Any, args: Any, kwargs: dict[str, Any], site: Site, tally: CallCounts, judged: bool) -> Any:
        """Run a call on the device, judge it if it is selected, and return its result."""
        try:
            call = traced_call(func, args, kwargs, site.target)
        except Exception as error:  # a tensor without strides, or a device that cannot be read
            tally.unjudged[_line(error)] += 1
            return func(*args, **kwargs)
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            with contextlib.suppress(Exception):  # the script gets the device's error, whatever the judge does
                self._judge(call, Execution((Observation(error=Raised.of(error)),)), site, tally)
            raise
        try:
            if func in READS_WORKSPACE and (READS_WORKSPACE[func], site.target.spec) not in self.known_workspaces:
                raise NotImplementedError(f"{READS_WORKSPACE[func]} of the device stores a workspace of another form")
            got = call.by_device(args, kwargs, result, site.target)
            with without_modes():  # those of a device act on torch CPU, too
                if judged:
                    self._judge(call, got, site, tally)
                if self.divergence is not None:
                    self.divergence.follow(call, got, site, self.faults.in_order)
                if self.writer is not None and judged and not call.is_view:
                    for name in call.names_of_changes(got.last):
                        self.writer.add(name_in_run(call.name, site, name), got.last.tensors[name].value)
        except Exception as error:  # a dtype that torch CPU cannot compare must not end the script
            tally.unjudged[_line(error)] += 1
        return result

    def _judge(self, call: TracedCall, got: Execution, site: Site, tally: CallCounts) -> None:
        if self.options.nonfinite:
            tally.judged += 1
            if made := call.made_nonfinite(got):
                self.faults.add(call, site, made[0]).error = math.inf
            self.progress(self)
            return
        with _undisturbed(call):
            want = call.by_cpu()
        if want.last.error is not None:
            same = got.last.error is not None
            tally.unjudged[BOTH_RAISE if same else f"torch CPU raises {_line(want.last.error)}"] += 1
            return
        if call.func in READS_WORKSPACE.values() and stores_known_workspace(call, want, got, site.target):
            self.known_workspaces.add((call.func, site.target.spec))
        if mismatches := tally.judge(call, want, got, site.target):
            fault = self.faults.add(call, site, mismatches[0])
            self.faults.measure(fault, mismatches, want, got, call.tensors_of(got))
        self.progress(self)

    def selects(self, name: str, tally: CallCounts) -> bool:
        """Count a call, and return whether the options select it."""
        options = self.options
        tally.seen += 1
        if options.steps and not options.steps[0] <= self.step <= options.steps[1]:
            return False
        if options.operators and not any(fnmatch.fnmatch(name, pattern) for pattern in options.operators):
            return False
        return (tally.seen - 1) % options.every == 0

    def _device(self, args: Any, kwargs: Mapping[str, Any]) -> str | None:
        """Return the type of the traced device that a call uses; None for other calls."""
        for value in (*args, *kwargs.values()):
            for leaf in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(leaf, torch.Tensor) and self._traces(leaf.device.type) and not _is_fake(leaf):
                    return leaf.device.type
        device = kwargs.get("device")
        return device.type if isinstance(device, torch.device) and self._traces(device.type) else None

    def _traces(self, device: str) -> bool:
        if self.only is not None:
            return device in self.targets
        return device != "meta" and (device != "cpu" or self.options.nonfinite)

    def target(self, device: str) -> Target:
        """Return the target of a device of the script."""
        if device not in self.targets:
            self.targets[device] = loaded(OWN.get(device, f"device:{device}"))
        return self.targets[device]

    def outside(self, hook: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
        """Return a hook that runs outside of the trace."""

        def run(grad: torch.Tensor) -> None:
            with self.paused():
                hook(grad)

        return run

    def _note_loss(self, root: torch.Tensor, frame: Any) -> None:
        """Note the value of the root of a backward pass, for which autograd makes a gradient of one."""
        while frame is not None and not is_of_user(frame.f_code.co_filename):
            if frame.f_code.co_name == "_make_grads" and root.numel() == 1:
                self.faults.loss = float(root.detach().cpu().reshape(()).real)
                return
            frame = frame.f_back


def loaded(spec: str) -> Target:
    """Return the prepared target of a spec, with the features that its device lacks for reading tensors. Raises
    TargetError."""
    target = load_target(spec)
    if target.facts.probed:
        lacking = [name for name in NEEDED if trial(target, name).answer is not TrialAnswer.YES]
        target.facts = replace(target.facts.without(lacking), probed=False)
    return target


@contextlib.contextmanager
def _undisturbed(call: TracedCall) -> Iterator[None]:
    """Let torch CPU run a call without drawing from the script's generator, and without casts of its own."""
    with contextlib.ExitStack() as stack:
        if call.draws:
            stack.enter_context(torch.random.fork_rng(devices=[]))
        if torch.is_autocast_enabled("cpu"):
            stack.enter_context(torch.autocast("cpu", enabled=False))
        yield


WORKSPACE_TOLERANCE = 0.01
"""Difference of activations, which lie in [-1, 1], that is rounding: bfloat16 rounds by up to 0.004 there, and a gate
adds roundings of its own. It decides only whether the form of a workspace is known; the judge compares the results."""


def stores_known_workspace(call: TracedCall, want: Execution, got: Execution, target: Target) -> bool:
    """Whether the device's workspace has the content of the reference's, so that a cell that reads it can be judged.
    For example, a device that stores the gates in another order has a form of its own."""
    right, stored = (run.outcome[WORKSPACE[call.func]] for run in (want, got))
    stored = fetched(stored, target)
    return right.shape == stored.shape and bool(
        torch.isclose(right, stored, rtol=WORKSPACE_TOLERANCE, atol=WORKSPACE_TOLERANCE).all()
    )


def _is_fake(leaf: torch.Tensor) -> bool:
    return type(leaf) is not torch.Tensor and hasattr(leaf, "fake_mode")


def _line(error: Exception | Raised) -> str:
    kind, text = (error.kind, error.text) if isinstance(error, Raised) else (type(error).__name__, text_of(error))
    return f"{kind}: {' '.join(text.split())[:120]}"
