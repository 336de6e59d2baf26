"""Files sent from this machine to Ray's nodes: the harness, the target's profile and module, and a run's files.

Defines `runtime_env`. Installed packages, torch and the device above all, must be installed on every node. Files of the
current folder, which the user may be editing, are sent to the nodes. On a node they lie below one folder, under the
names that they have here, so a spec or a path means the same on both sides.
"""

from __future__ import annotations

import re
import shutil
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import conformance
from conformance.declare import profile as profiles
from conformance.record.errors import UsageError

UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc")


def runtime_env(spec: str, files: Iterable[Path] = ()) -> dict[str, Any]:
    """Return Ray's `runtime_env` for a target and the files that its tasks read. Raises UsageError for a file outside
    the current folder, and TargetError for a profile that cannot be read.
    """
    profile = profiles.of(spec)
    staged = Path(tempfile.mkdtemp(prefix="conformance-"))
    try:
        _stage(staged, spec, profile, files)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    environment: dict[str, Any] = {"working_dir": str(staged), "py_modules": [str(Path(conformance.__file__).parent)]}
    return {**environment, "env_vars": dict(profile.environment)} if profile is not None else environment


def _stage(staged: Path, spec: str, profile: profiles.Profile | None, files: Iterable[Path]) -> None:
    """Copy the profile, the files and the modules of the target into this folder."""
    here, own = Path.cwd(), [Path(spec)] if profile is not None else []
    for path in [*own, *files]:
        place = Path(path).resolve()
        if not place.is_relative_to(here):
            raise UsageError(
                f"{path} lies outside the current folder, from which the nodes of a cluster are given files"
            )
        _copy(place, staged / place.relative_to(here))
    for name in modules_of(profile.spec if profile is not None else spec):
        for place in _sources(name):
            _copy(place, staged / place.name)


def modules_of(spec: str) -> list[str]:
    """Return the packages that a target's spec names for import."""
    named = re.findall(r"(?:,import=|^class:)([A-Za-z_]\w*)", spec)
    return list(dict.fromkeys(named))


def _sources(name: str) -> Iterator[Path]:
    """Yield the file or folder of a module that is not installed."""
    spec = find_spec(name)
    origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")}
    if origin is None or any(origin.is_relative_to(folder) for folder in installed) or name == "conformance":
        return
    yield origin.parent if origin.name == "__init__.py" else origin


def _copy(place: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        shutil.copytree(place, to, ignore=UNWANTED, dirs_exist_ok=True)
    else:
        shutil.copyfile(place, to)
