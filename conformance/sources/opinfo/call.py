"""One call of a sample of op_db: the subject of the executor and of the judge.

Defines `SampleCall`. `VARIANTS` in `variants.py` makes the calls of a sample. A call is a function of inputs that may
lie anywhere, so the CPU and the target make the same call. Its terms are what OpInfo states about the results:
tolerances, undefined values, free signs and phases, the text of an error. `undefined.toml` states which answers on
special values are open, and `engine/judge.py` applies all of them.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from conformance.engine.aten_ops import Tagged
from conformance.engine.executor import AnsweredCall, Execution, Transform
from conformance.engine.judge import OneAnswer, Terms
from conformance.engine.loading import reference
from conformance.engine.rounding import Float64Reference
from conformance.engine.rules import CHOICE, Arguments
from conformance.engine.target import Target
from conformance.record.names import CHANGED, DIFFERENTIATED, TIERS
from conformance.sources.opinfo import catalog, seeding, undefined
from conformance.sources.opinfo.plan import Case
from conformance.sources.opinfo.sampling import Sample
from conformance.standalone.moving import (
    MARKER,
    leaves,
    map_leaves,
    moved,
    observable,
    storage_key,
    taken_apart,
    tensors,
)
from conformance.standalone.observation import Observation, observe
from conformance.standalone.oracles import Mismatch, compare
from conformance.standalone.rounding import widened
from conformance.standalone.torch_compat import DRAWS_NUMBERS

Apply = Callable[[Callable[..., Any]], Callable[..., Any]]
"""The target's transform, or the identity."""


class Draws:
    """Tangents and cotangents of a call, drawn on the CPU from the seed, in the dtype of the tensor that they belong
    to. Under `repeated`, a run gets those of the last run, since other dtypes would draw other numbers.
    """

    def __init__(self) -> None:
        self.last: list[torch.Tensor] = []
        self.replayed: Iterator[torch.Tensor] | None = None

    def start(self) -> None:
        """Begin a run of the call."""
        self.last = self.last if self.replayed else []

    def __call__(self, like: torch.Tensor) -> torch.Tensor:
        if self.replayed:
            return next(self.replayed).to(like.dtype)
        self.last.append(torch.randn(like.shape, dtype=like.dtype))
        return self.last[-1].to(like.device)

    @contextlib.contextmanager
    def repeated(self) -> Iterator[None]:
        """Context in which runs of the call draw nothing and get the last run's tensors."""
        self.replayed = iter(self.last)
        try:
            yield
        finally:
            self.replayed = None


@dataclass(frozen=True)
class SampleCall(OneAnswer):
    """A call of a case's sample.

    `tree` holds the inputs on the CPU, by name. `run` makes the call on inputs that lie anywhere. The function under
    test goes through `apply`; code around it, such as drawing cotangents or running backward, does not. `source` is the
    function's name in a script, or None if it has no name. `note` distinguishes the calls of one sample.
    """

    case: Case
    sample: Sample
    tree: dict[str, Any]
    run: Callable[[dict[str, Any], Apply], Any]
    source: str | None
    note: str = ""
    drawn: Draws = field(default_factory=Draws)

    def on(self, tree: dict[str, Any]) -> SampleCall:
        """Return the same call on other inputs."""
        return replace(self, tree=tree)

    def inputs(self) -> tuple[dict[str, Any], set[int]]:
        """Return the inputs, and the storages of inputs that stay on the CPU."""
        return self.tree, self.sample.kept

    def begin(self, inputs: dict[str, Any], target: Target, transform: Transform | None) -> AnsweredCall:
        """Begin the call on inputs that lie on the target. The same seed is set on each side. A function without a
        name gets a unique key."""
        apply = transform or (lambda function: function)

        def call() -> Any:
            seeding.seed(target.device)
            return self.run(inputs, apply)

        return AnsweredCall((self.source or object(), self.note, self.run.__qualname__), inputs, call, self.tree)

    @property
    def process(self) -> Callable[[Any], Any] | None:
        """OpInfo's conversion of a result whose sign or phase is free; None if there is none, or if the definition of
        the result decides in its place. Gradients are taken of the converted result, and the definition knows none."""
        usual = self.case.variant not in (*DIFFERENTIATED, *TIERS, *CHANGED)
        return None if usual and CHOICE in undefined.rules_of(self.case) else self.sample.process

    @functools.cached_property
    def terms(self) -> Terms:
        """The terms of the call."""
        case, refused = self.case, self.case.variant == "error_inputs"
        return Terms(
            catalog.tolerances(catalog.find(case), getattr(torch, case.dtype)),
            rules=undefined.rules_of(case),
            undefined=self._undefined_parts(),
            # PyTorch does not define the content of an out= tensor after a refused call.
            oracles=frozenset({"error"}) if refused else None,
            process=self.process,
            message=(self.sample.error_regex or "") if refused else "",
        )

    def _undefined_parts(self) -> tuple[str, ...]:
        """Return the answers without a meaning: results without a defined value, and the storage of a result that the
        op allocated for an empty out=."""
        facts = ["storage"] if self.note == "out empty" else []
        facts = facts if catalog.has_value(catalog.find(self.case)) else ["value", "storage"]
        # A changed argument may leave an input undefined, too, such as the input of `resize_`.
        names = ("",) if self.case.variant in CHANGED and "value" in facts else ("result", "out")
        return tuple(f"{fact} of {name}" for fact in facts for name in names)

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the op draws random numbers; a device with its own generator draws other numbers than the CPU."""
        op, sample = catalog.find(self.case).op, self.sample
        tree = moved(sample.tree, reference().send, reference().device, sample.kept)
        with Tagged(DRAWS_NUMBERS) as seen:
            op(tree["input"], *tree["args"], **tree["kwargs"])
        return seen.seen

    @property
    def on_host(self) -> bool:
        """Whether the sample names the CPU, or all of its tensors stay there, or a changed argument is on the CPU."""
        sample, inputs = self.sample, tensors(self.tree)
        if sample.origin is not None and sample.origin.change.host:
            return True
        for leaf in leaves((sample.args, sample.kwargs)):
            if not isinstance(leaf, torch.Tensor) and (
                leaf == "cpu" or (isinstance(leaf, torch.device) and leaf != MARKER)
            ):
                return True
        kept = {
            id(tensor) for tensor in inputs if tensor.layout is torch.strided and storage_key(tensor) in sample.kept
        }
        return not inputs or (bool(kept) and len(kept) == len(inputs))

    def names_of_inputs(self) -> Collection[str]:
        """Return the names of the arguments, except `out`."""
        return self.sample.tree.keys()

    def arguments(self) -> Arguments:
        """Return the arguments of the call."""
        sample, strided = self.sample, [one for one in tensors(self.tree) if one.layout is torch.strided]
        return Arguments(self.case.op, sample.input, sample.args, sample.kwargs, strided)

    def in_float64(self, mismatches: Sequence[Mismatch], expected: Observation) -> Execution | None:
        """Return torch CPU's answer on the same inputs in float64 and complex128, or None if it has no answer there, or
        another one with another seed. Dtypes among the arguments are widened too; integer inputs stay unchanged."""
        named = [leaf.dtype if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves(self.tree)]
        if all(dtype == widened(dtype) for dtype in named if isinstance(dtype, torch.dtype)):
            return None
        try:
            first, again = (self._widened(seed) for seed in (seeding.SEED, seeding.SEED + 1))
        except Exception:  # says nothing about the target: the finding stands
            return None
        return None if compare(first.last, again.last, exact=True) else first

    def _widened(self, seed: int) -> Execution:
        wide = Float64Reference()
        # `kept` is not passed: tensors that OpInfo keeps on the CPU are widened too.
        tree = moved(self.tree, wide.send, wide.device)
        tree = map_leaves(tree, lambda leaf: widened(leaf) if isinstance(leaf, torch.dtype) else leaf)
        seeding.seed()
        torch.default_generator.manual_seed(seed)
        with self.drawn.repeated():
            outcome = self.run(tree, lambda function: function)
        seen = observe({"result": taken_apart(outcome)}, observable(tree, self.tree), target=wide)
        return Execution((seen,), outcome=outcome)


CLEAR = frozenset({"RuntimeError", "TypeError", "ValueError", "IndexError"})
"""Errors by which torch refuses a call. A device may check the arguments of a call in another order than torch CPU."""


def as_refused(call: SampleCall, expected: Observation, actual: Observation, mismatch: Mismatch) -> bool:
    """Whether the mismatch is about a call with a changed argument, which the target may refuse in its own way.

    The target must refuse what torch CPU refuses, by an error of a kind of `CLEAR`. It may refuse a tensor on another
    device, and copying a tensor without values is not implemented on any.
    """
    origin = call.sample.origin
    if origin is None or actual.error is None or mismatch.oracle != "error":
        return False
    if origin.change.variant == "kind_scalar" and re.search(r"(?i)\bdevice|on (the )?cpu\b", actual.error.text):
        return True  # torch's rules for tensors on two devices, which torch CPU cannot show
    there = not actual.error.not_implemented or origin.change.variant == "refused_device"
    return expected.error is not None and there and not CLEAR.isdisjoint(actual.error.ancestors)
