"""Loading of a `Target` from its spec (`tiny`, `device:cuda`, `class:MODULE.CLASS`); imports only the modules it names.

Any error in a target's own module becomes one sentence (`TargetError`), since the module is third-party code.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from dataclasses import fields, replace

import torch

from conformance.declare import profile as profiles
from conformance.declare.features import FEATURES
from conformance.declare.profile import Profile
from conformance.engine.facts import TargetFacts
from conformance.engine.target import Target
from conformance.record.error_text import text_of
from conformance.record.errors import TargetError
from conformance.record.names import (
    BUILTIN,
    ORACLES,
    RELATED_ORACLES,
    RELATIONS,
    SIGNIFICANT_STRIDE,
    nearest,
    without_relations,
)

ENTRY_POINTS = "conformance.targets"

FORMER = {
    **{fact.name: f"{fact.name}=..." for fact in fields(TargetFacts) if fact.name not in ("profile", "relations")},
    "unsupported": "declarations=(unsupported(reason, step=...),)",
    "draws_functions": "compiles=True",
}
"""Attributes that a target's class had before `facts`, each with the fact that replaces it."""


def load_target(spec: str) -> Target:
    """Load and prepare the target of a spec. The spec is `NAME` or `NAME:ARGUMENT`, for a target that is built in or
    registered under the entry points `conformance.targets`. It may also be `class:MODULE.CLASS`, for any subclass of
    Target that can be imported, or the path of a profile, `*.toml`.

    Raises TargetError with one sentence if there is no such target or it cannot be used.
    """
    target = describe_target(spec)
    try:
        target.prepare()
    except TargetError:
        raise
    except Exception as error:  # third-party code may raise anything
        raise TargetError(f"target {spec!r} cannot be prepared: {_reason(error)}") from error
    return target


@functools.cache
def reference() -> Target:
    """Return torch CPU, the reference."""
    return load_target("cpu")


def describe_target(spec: str) -> Target:
    """Return the target of this spec before its `prepare`. Its name and script are available, and no device is
    imported.

    Raises TargetError, also if a declaration of the class is not valid.
    """
    inner = without_relations(spec)
    if inner != spec:
        return _metamorphic(spec, describe_target(inner))
    profile = profiles.of(spec)
    if profile is not None:
        return _profiled(spec, profile)
    name, _, argument = spec.partition(":")
    if name == "class":
        path, argument = ":".join(argument.rsplit(".", 1)), ""
    else:
        path = BUILTIN.get(name) or _registered().get(name, "")
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        known = sorted({*BUILTIN, *_registered()})
        raise TargetError(
            f"unknown target {spec!r}{nearest(name, known) or ': choose one of ' + ', '.join(known)}; or write "
            f"class:MODULE.CLASS, or install a package that registers it under the entry points {ENTRY_POINTS!r}"
        )
    try:
        kind = getattr(importlib.import_module(module), attribute)
        if not (isinstance(kind, type) and issubclass(kind, Target)):
            raise TargetError(
                f"target {spec!r} is no target: {path!r} is not a subclass of conformance.engine.target.Target"
            )
        target = kind(argument)
        _check(spec, target)
    except TargetError:
        raise
    except Exception as error:  # third-party code may raise anything
        raise TargetError(f"target {spec!r} cannot be loaded from {path!r}: {_reason(error)}") from error
    target.spec = spec
    return target


def _profiled(spec: str, profile: Profile) -> Target:
    """Return the target that a profile names, with the profile's declarations applied."""
    profile.activate()
    target = describe_target(profile.spec)
    facts = target.facts.without(profile.unsupported("feature"))
    if profile.dtypes is not None:
        held = frozenset(getattr(torch, name) for name in profile.dtypes if hasattr(torch, name))
        facts = replace(facts, dtypes=held)
    declarations = (*facts.declarations, *profile.declarations)
    tolerances = (*facts.tolerances, *profile.tolerances)
    target.facts = replace(facts, declarations=declarations, tolerances=tolerances, profile=profile, probed=False)
    target.spec = spec
    return target


def _metamorphic(spec: str, target: Target) -> Target:
    """Return the target, judged by its answers to rewritten programs, whose strides and kernels differ."""
    oracles = target.facts.oracles & RELATED_ORACLES
    target.facts = replace(target.facts, relations=RELATIONS, oracles=oracles, siblings=(), without_backend=())
    target.spec = spec
    return target


def _registered() -> dict[str, str]:
    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {text_of(error)}".partition("\n")[0]


def _check(spec: str, target: Target) -> None:
    """Check the facts of a target, since a misspelt one would silently exclude something. `program/unsupported.py`
    checks the names in `declarations`."""
    for name, fact in FORMER.items():
        if hasattr(target, name):
            raise TargetError(
                f"target {spec!r}: {name!r} is a former attribute: write facts = TargetFacts({fact}), "
                "as docs/targets.md shows"
            )
    facts = target.facts
    if not isinstance(facts, TargetFacts):
        raise TargetError(f"target {spec!r} has the facts {facts!r}: write facts = TargetFacts(...)")
    if type(target).transform is not Target.transform and not facts.transforms_program:
        raise TargetError(
            f"target {spec!r} defines `transform`, which only runs with facts = TargetFacts(transforms_program=True): "
            "torch CPU would be compared with itself"
        )
    unfamiliar = sorted(facts.lacks - {*FEATURES})
    if unfamiliar:
        raise TargetError(
            f"target {spec!r} lacks the unknown feature {unfamiliar[0]!r}: choose from {', '.join(FEATURES)}"
        )
    unknown = [oracle for oracle in facts.oracles if oracle not in (*ORACLES, SIGNIFICANT_STRIDE)]
    if unknown or not facts.oracles:
        problem = f"the unknown oracle {unknown[0]!r}" if unknown else "no oracle, so nothing of it would be compared"
        raise TargetError(f"target {spec!r} names {problem}: choose from {', '.join((*ORACLES, SIGNIFICANT_STRIDE))}")
    for dtype in facts.dtypes or ():
        if not isinstance(dtype, torch.dtype):
            raise TargetError(
                f"target {spec!r} holds the dtype {dtype!r}, which is no torch.dtype: write for example torch.float32"
            )
