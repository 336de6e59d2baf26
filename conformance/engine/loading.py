"""Loading of a `Target` from its spec (`tiny`, `device:cuda`, `class:MODULE.CLASS`); imports only the modules it names.

Any error in a target's own module becomes one sentence (`TargetError`), since the module is third-party code.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata

import torch

from conformance.declare import profile as profiles
from conformance.declare.profile import Profile
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
    if profile.dtypes is not None:
        target.dtypes = frozenset(getattr(torch, name) for name in profile.dtypes if hasattr(torch, name))
    target.declarations += profile.declarations
    target.without(frozenset(profile.unsupported("feature")))
    target.profile, target.probed, target.spec = profile, False, spec
    return target


def _metamorphic(spec: str, target: Target) -> Target:
    """Return the target, judged by its answers to rewritten programs, whose strides and kernels differ."""
    target.relations, target.spec = RELATIONS, spec
    target.oracles &= RELATED_ORACLES
    target.siblings = target.without_backend = ()
    return target


def _registered() -> dict[str, str]:
    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {text_of(error)}".partition("\n")[0]


def _check(spec: str, target: Target) -> None:
    """Check the oracles and dtypes that a target declares, since a misspelt one would silently exclude something.
    `program/unsupported.py` checks the names in `declarations`."""
    if not callable(target.unsupported):
        raise TargetError(
            f"target {spec!r}: 'unsupported' is a former form: write declarations = (unsupported(reason, step=...),), "
            "as docs/targets.md shows"
        )
    unknown = [oracle for oracle in target.oracles if oracle not in (*ORACLES, SIGNIFICANT_STRIDE)]
    if unknown or not target.oracles:
        problem = f"the unknown oracle {unknown[0]!r}" if unknown else "no oracle, so nothing of it would be compared"
        raise TargetError(f"target {spec!r} names {problem}: choose from {', '.join((*ORACLES, SIGNIFICANT_STRIDE))}")
    for dtype in target.dtypes or ():
        if not isinstance(dtype, torch.dtype):
            raise TargetError(
                f"target {spec!r} holds the dtype {dtype!r}, which is no torch.dtype: write for example torch.float32"
            )
