"""What a probe says against a profile: features and dtypes that it leaves out and that are there, and the other way.

Defines `contradicted`. The key insight: a feature that is declared lacking in error costs oracles
and steps in silence, so that it is as strict a declaration as that of an operator: what works fails the run. What is
missing and undeclared fails programs anyhow, and is only said. This module must not import torch.
"""

from __future__ import annotations

from conformance.core.names import DTYPES
from conformance.core.probed import Probe
from conformance.core.profile import Profile


def contradicted(profile: Profile, seen: Probe | None) -> tuple[dict[str, str], list[str]]:
    """By `feature NAME` or `dtype NAME`: the sentence on what the profile leaves out and the probe finds, with the line
    to change; and sentences on what is missing or wrong though the profile does not say so, or what was not tried."""
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
