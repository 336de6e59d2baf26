"""Which torch is installed, which ones this package was tested with, and what is said to hold for which.

Defines `installed`, `minor`, `baselines`, `holds`, `specifier` and `check`. The key insight: all that was
learnt about torch (an op's name, what is known to fail, a baseline) was learnt about some minor version, and must say
which. The version is read from the installed package's metadata, so that a process which only plans and reports need
not import torch, and anew in each process, so that another package may replace torch at any time.
"""

from __future__ import annotations

import functools
import os
import warnings
from importlib import metadata
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from conformance.core.errors import TargetError, UserError

OLDEST, NEWEST = "2.9", "2.15"
"""The minor versions of torch between which the harness is tested (`nox -s versions`)."""


BASELINES = Path("reports/baseline")
WARNED = "CONFORMANCE_WARNED_OF_TORCH"
"""The environment variable by which the processes started from here know that the warning was given."""


@functools.cache
def installed(package: str = "torch") -> Version:
    """The release that is installed, without a local part such as +cpu; of a nightly build the release to come.

    Raises UserError where the package is not installed."""
    try:
        return Version(Version(metadata.version(package)).base_version)
    except metadata.PackageNotFoundError:
        raise UserError(f"{package} is not installed; run `pip install {package}`") from None


def minor(version: Version | None = None) -> str:
    """The minor version, such as "2.13", of the installed torch if no other is given."""
    return "{}.{}".format(*(version or installed()).release[:2])


def baselines(torch: str = "") -> Path:
    """The folder of the baselines made with a minor version of torch: of this release of torch, such as "2.13.0+cpu",
    or of the installed one."""
    return BASELINES / f"torch-{minor(Version(torch) if torch else None)}"


def specifier(text: str) -> SpecifierSet:
    """A PEP 440 specifier of releases, such as ">=2.14" or "==2.13.*". Raises ValueError where it is none, or empty."""
    try:
        made = SpecifierSet(text)
    except InvalidSpecifier:
        made = SpecifierSet()
    if not made:
        raise ValueError(f"{text!r} is no specifier of versions, such as '>=2.14' or '==2.13.*'")
    return made


def holds(text: str, version: Version | None = None) -> bool:
    """Whether a specifier has the version in it, that of the installed torch if no other is given; the empty one has
    every version. Raises ValueError."""
    return not text or specifier(text).contains(version or installed())


def check() -> None:
    """Warn of a torch newer than those tested, once in all processes. Raises TargetError for one that is older."""
    found = installed()
    if Version(minor(found)) < Version(OLDEST):
        raise TargetError(f"torch {found} is too old: `pip install 'torch>={OLDEST}'`")
    if Version(minor(found)) > Version(NEWEST) and os.environ.get(WARNED) != str(found):
        os.environ[WARNED] = str(found)
        warnings.warn(
            f"torch {found} is newer than {NEWEST}, the newest that this package was tested with",
            UserWarning,
            stacklevel=2,
        )
