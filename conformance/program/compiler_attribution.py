"""Attribution for compilers: the layer of a wrong answer, and the smallest part of the layer without which it is right.

Defines `compiler_culprit`. A compiler is a stack of layers (`engine/layers.py`). The program runs on each, from outside
in; the first that is wrong has the bug. Its parts are then switched off: all of one kind, then half of them, and so on
to a single one. A run counts as mended only if the program passes. An error of a compiler that lacks a pass, or another
difference, is no evidence. `attribution.py` does the same for devices, by replacing operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformance.engine.layers import PARTS, SETTING, Layered
from conformance.program.calls import judge_trial
from conformance.program.trial import Trial
from conformance.program.verdict import Verdict
from conformance.record.finding import gist, in_layer
from conformance.record.patterns import SETTING as WITHOUT
from conformance.standalone.oracles import Mismatch

MOST_NAMED = 3
"""Largest number of parts that are named if no single one is to blame; beyond that, only their kind is."""


def compiler_culprit(trial: Trial, first: Mismatch) -> str:
    """Return the layer of a difference, with the part to blame if there is one: `AOTAutograd`, or
    `Inductor: pass remove_noop_ops`. Return "" if the program does not fail as `first` does."""
    layers = trial.target.layers() if isinstance(trial.target, Layered) else []
    if trial.program.restarts and layers and _shows(judge_trial(trial, locate=False), first):
        return in_layer(layers[-1][0], WITHOUT + "saved graphs")
    for name, layer in layers:
        on_layer = trial.on(layer)
        if _shows(judge_trial(on_layer, locate=False), first):
            return in_layer(name, _part(on_layer)) if isinstance(layer, Layered) else name
    return ""


def _part(trial: Trial) -> str:
    """The smallest part of the target, a layer, without which the program passes; "" if there is none."""
    layer = trial.target
    assert isinstance(layer, Layered)
    with layer.applied() as applied:
        judge_trial(trial, locate=False)
    for kind in PARTS:

        def mended(names: Sequence[str], kind: str = kind) -> bool:
            with layer.switched_off(kind, names):
                return judge_trial(trial, locate=False).passed

        names = list(dict.fromkeys(applied.get(kind, ())))
        if kind == SETTING:  # one at a time: settings together are another compiler
            alone = next((name for name in names if mended([name])), "")
            if alone:
                return WITHOUT + alone
        elif names and mended(names):
            smallest = _smallest(names, mended)
            return f"{kind} {' + '.join(smallest)}" if len(smallest) <= MOST_NAMED else f"{kind} (several)"
    return ""


def _smallest(names: Sequence[str], mended: Callable[[Sequence[str]], bool]) -> Sequence[str]:
    """Halve the names as long as one of the halves mends."""
    while len(names) > 1:
        half = len(names) // 2
        smaller = next((part for part in (names[:half], names[half:]) if mended(part)), None)
        if smaller is None:
            return names
        names = smaller
    return names


def _shows(verdict: Verdict, first: Mismatch) -> bool:
    """Whether a verdict has a difference like the first one: its oracle, for an error also its type and gist."""
    return any(mismatch.oracle == first.oracle and _error(mismatch) == _error(first) for mismatch in verdict.mismatches)


def _error(mismatch: Mismatch) -> tuple[str, ...]:
    return (mismatch.expected, mismatch.actual, gist(mismatch.detail)) if mismatch.oracle == "error" else ()
