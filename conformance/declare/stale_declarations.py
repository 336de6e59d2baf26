"""Contradictions between a probe and a profile: features and dtypes declared lacking that work, and the reverse.

Defines `stale_declarations`. A feature wrongly declared lacking silently costs oracles and steps. Therefore its
declaration is as strict as that of an operator: a feature that works fails the run. A missing feature that is not
declared makes programs fail anyway, so it is only reported. This module must not import torch.
"""

from __future__ import annotations

from conformance.declare.probed import Probe
from conformance.declare.profile import Profile
from conformance.record.names import DTYPES


def stale_declarations(profile: Profile, seen: Probe | None) -> tuple[dict[str, str], list[str]]:
    """Compare a profile with a probe of its device. The first result maps `feature NAME` or `dtype NAME` to a sentence
    with the line to change: the profile declares it lacking, but the probe shows that it works. The second lists
    sentences on missing or wrong features and dtypes that the profile does not declare, or on declarations that were
    not probed."""
    if seen is None:
        return {}, []
    if seen.unmade:
        said = [repr(what) for what, names in (("lacks", profile.lacks), ("dtypes", _left_out(profile))) if names]
        return {}, [f"{' and '.join(said)} of {profile.file} were not tried: {seen.unmade}."] if said else []
    return _there(profile, seen), _undeclared(profile, seen)


def _there(profile: Profile, seen: Probe) -> dict[str, str]:
    found = {
        f"feature {name}": f"declared lacking, and works: {profile.where('lacks', name)}: delete {name!r} from 'lacks'"
        for name in dict.fromkeys(profile.lacks)
        if name not in seen.lacks
    }
    for name in _left_out(profile):
        if name in seen.dtypes:
            told = f"{profile.where('dtypes')}: add {name!r} to 'dtypes'"
            found[f"dtype {name}"] = f"left out, and its values survive the way to the device and back: {told}"
    return found


def _undeclared(profile: Profile, seen: Probe) -> list[str]:
    lines = [
        f"{profile.where('lacks')}: the feature {row.name!r} is not in 'lacks', and the probe's answer is {row.answer}"
        f"{f' ({row.detail})' if row.detail else ''}: mend the device, or add {row.name!r}"
        for row in seen.rows
        if row.name in seen.lacks and row.name not in {*profile.lacks, *seen.declared}
    ]
    lost = [name for name in profile.dtypes or () if name not in seen.dtypes]
    return lines + [
        f"{profile.where('dtypes', name)}: values of {name} do not survive the way to the device and back: mend the "
        f"device, or delete {name!r} from 'dtypes'"
        for name in lost
    ]


def _left_out(profile: Profile) -> list[str]:
    return [name for name in DTYPES if profile.dtypes is not None and name not in profile.dtypes]
