"""The device on which an operator runs: `prepared_device("cuda")` is the spec of its target.

A call of the operator runs in a fork of the user's process, and most devices refuse to work in a fork of a process that
has used them. So this process never uses the device, unless the target says that it survives a fork: it is loaded,
tried and probed in forks.
"""

from __future__ import annotations

import functools

from conformance.declare.features import FEATURES
from conformance.declare.probed import ProbedFeature, TrialAnswer
from conformance.engine.loading import describe_target, load_target
from conformance.engine.probe import TRIALS, trial
from conformance.engine.target import Target
from conformance.record.errors import TargetError, UsageError, UserError
from conformance.record.names import BUILTIN
from conformance.run.messages import Death
from conformance.sources.operator.forks import Send, forked
from conformance.standalone.torch_compat import device_names

MOVES = "moves"
"""The trial of a way to the device and back, without which nothing runs there."""

PREPARING = 60.0
"""Limit on loading a device, and on each trial of its features, in seconds."""


@functools.cache
def loaded(spec: str) -> Target:
    """Return a target, loaded once."""
    return load_target(spec)


def spec_of(name: str) -> str:
    """Return the spec of a target, or of the device of torch of this name. Raises UserError for an unknown one."""
    spec = name if name in BUILTIN or name.partition(":")[0] not in device_names() else f"device:{name}"
    target = describe_target(spec)
    if target.facts.transforms_program or not target.facts.shows_values:
        raise UsageError(f"device={name!r} is no device with values: name one, for example 'tiny' or 'cuda'")
    return spec


@functools.cache
def prepared_device(name: str) -> str:
    """Return the spec of a target, or of the device of torch of this name, on which operators can run in a fork of this
    process. The spec names the features that the device lacks. Raises UserError."""
    spec = spec_of(name)
    target = describe_target(spec)
    if target.facts.survives_fork:
        loaded(spec)
    lacks, fatal = set[str](), set[str]()
    while (ended := _try_device(spec, target.facts.probed, fatal, lacks)) is not None:
        if ended in ("", MOVES) or ended in fatal:
            raise TargetError(f"target {spec!r} ends a fork of this process when it is loaded")
        fatal.add(ended)
    return f"{spec},without={'+'.join(sorted(lacks)) or 'nothing'}" if target.facts.probed else spec


def _try_device(spec: str, probed: bool, fatal: set[str], lacks: set[str]) -> str | None:
    """Load a target in a fork, and try its features, except the `fatal` ones, if it is to be probed. Add the missing
    ones to `lacks`. Return the trial that ended the fork, "" for loading, and None if it survives. Raises UserError."""

    def work(send: Send) -> None:
        try:
            target = loaded(spec)
        except UserError as error:
            send(("error", str(error)))
            return
        for name in TRIALS if probed else ():
            send(("begins", name))
            row = ProbedFeature(name, TrialAnswer.DIED) if name in fatal else trial(target, name)
            if name == MOVES and row.answer is not TrialAnswer.YES:
                send(("error", f"target {spec!r} cannot hold inputs: {row.detail}"))
                return
            if name in FEATURES and row.answer is not TrialAnswer.YES:
                target.facts = target.facts.without({name})
                send(("lacks", name))

    current = ""
    for item in forked(work, PREPARING):
        if isinstance(item, Death):
            return current
        if isinstance(item, Exception):
            raise item
        kind, text = item
        if kind == "error":
            raise TargetError(text)
        current = text
        if kind == "lacks":
            lacks.add(text)
    return None
