"""The installed version of torch, the tested versions, and the version specifiers of declarations.

Defines `installed`, `minor`, `baselines`, `holds`, `specifier` and `check`. Every recorded fact about torch (an op's
name, a known failure, a baseline) comes from some minor version, and must state it. The version is read from the
installed package's metadata, so a process that only plans and reports need not import torch. Each process reads it
anew, so torch can be replaced at any time.
"""

from __future__ import annotations

import functools
import os
import warnings
from importlib import metadata
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from conformance.record.errors import TargetError, UserError

OLDEST, NEWEST = "2.9", "2.15"
"""The oldest and newest tested minor versions of torch (`nox -s versions`)."""


BASELINES = Path("reports/baseline")
WARNED = "CONFORMANCE_WARNED_OF_TORCH"
"""Environment variable that tells processes started from here that the warning was already printed."""


@functools.cache
def installed(package: str = "torch") -> Version:
    """Return the installed release, without a local part such as +cpu. For a nightly build, it is the coming release.

    Raises UserError if the package is not installed.
    """
    try:
        return Version(Version(metadata.version(package)).base_version)
    except metadata.PackageNotFoundError:
        raise UserError(f"{package} is not installed; run `pip install {package}`") from None


def minor(version: Version | None = None) -> str:
    """Return the minor version, such as "2.13"; by default that of the installed torch."""
    return "{}.{}".format(*(version or installed()).release[:2])


def baselines(torch: str = "") -> Path:
    """Return the folder of the baselines for a minor version of torch: that of the given release, such as "2.13.0+cpu",
    or of the installed one."""
    return BASELINES / f"torch-{minor(Version(torch) if torch else None)}"


def specifier(text: str) -> SpecifierSet:
    """Parse a PEP 440 specifier of releases, such as ">=2.14" or "==2.13.*". Raises ValueError if it is invalid or
    empty."""
    try:
        result = SpecifierSet(text)
    except InvalidSpecifier:
        result = SpecifierSet()
    if not result:
        raise ValueError(f"{text!r} is no specifier of versions, such as '>=2.14' or '==2.13.*'")
    return result


def holds(text: str, version: Version | None = None) -> bool:
    """Whether a specifier includes the version, by default that of the installed torch. An empty specifier includes
    every version. Raises ValueError."""
    return not text or specifier(text).contains(version or installed())


def check() -> None:
    """Warn of a torch newer than those tested, once in all processes. Raises TargetError for an older one."""
    version = installed()
    if Version(minor(version)) < Version(OLDEST):
        raise TargetError(f"torch {version} is too old: `pip install 'torch>={OLDEST}'`")
    if Version(minor(version)) > Version(NEWEST) and os.environ.get(WARNED) != str(version):
        os.environ[WARNED] = str(version)
        warnings.warn(
            f"torch {version} is newer than {NEWEST}, the newest that this package was tested with",
            UserWarning,
            stacklevel=2,
        )
