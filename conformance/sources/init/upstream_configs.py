"""The file by which PyTorch's own device-type tests know what a device lacks, in the form of `set_test_configs`.

    python conformance_test_configs.py pytorch/test/test_torch.py -v

runs a file of PyTorch's tests on the device, in one process, without this package. `conformance upstream` runs the same
tests in workers, and needs no such file: it reads the profile.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from conformance.engine.loading import describe_target
from conformance.record.missing_ops import AttemptOutcome
from conformance.record.names import DTYPES
from conformance.sources.init.init import Investigation
from conformance.standalone.script import carried, defined, inert

KINDS = ("device", "tiny")
"""Kinds of targets that are devices of torch."""

MAIN = '''
def configure():
    """Make the tests of files that are loaded from now on for this device only, with these settings."""
    configure_tests(choose_test_device(DEVICE), OP_ALLOWLIST, OP_OVERRIDES, DTYPES_LACKING, TEST_EXCLUSIONS)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("give a file of PyTorch's device-type tests, such as pytorch/test/test_torch.py")
    configure()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
'''


def file_for(profile: Path) -> Path:
    """Return the path of the file that belongs to a profile."""
    return profile.with_name(f"{profile.stem}_test_configs.py")


def test_configs(investigation: Investigation, environment: Mapping[str, str], command: str, name: str) -> str:
    """Return the text of the file of this name; "" for a target that is no device."""
    if investigation.spec.partition(":")[0] not in KINDS:
        return ""
    tried = {name: trial for (kind, name), trial in investigation.trials.items() if kind == "opinfos"}
    lacking = {name for name, trial in tried.items() if trial.outcome is AttemptOutcome.LACKING}
    allowed = sorted(name for name in tried if name not in lacking)
    died = {
        name: f"it {trial.said}: a finding, and the end of all tests of the process"
        for name, trial in sorted(tried.items())
        if trial.outcome is AttemptOutcome.DIED
    }
    probe = investigation.probe
    held = {*probe.dtypes} if probe is not None else None
    missing = [] if held is None else [name for name in DTYPES if name not in held]
    setup = describe_target(investigation.spec).script()
    variables = "".join(f"os.environ[{name!r}] = {value!r}\n" for name, value in environment.items())
    head = f'''"""What {investigation.spec} lacks, in the form of PyTorch's own device-type tests; written by
{inert(command)}.

    python {name} pytorch/test/test_torch.py -v

A test of yours may call `configure()` in place of that, before it loads a file of tests.
"""

import os
import runpy
import sys

import torch

{variables}{setup}

# The OpInfos whose tests run: all but those without a kernel of the device. None that fails is left out.
OP_ALLOWLIST = {_listed(allowed)}

# OpInfos that are skipped, and why.
OP_OVERRIDES = {_listed(died)}

# Dtypes that the device does not hold.
DTYPES_LACKING = {_listed(missing)}

# Further tests to leave out, by class: {{"TestTorchDeviceType": ["test_storage_error"], "TestOther": "*"}}.
TEST_EXCLUSIONS = {{}}
'''
    rest = carried(("choose_test_device", "configure_tests"), frozenset(defined(head)))
    return f"{head}\n{rest}\n{MAIN}"


test_configs.__test__ = False  # type: ignore[attr-defined]


def _listed(names: Mapping[str, str] | list[str]) -> str:
    """Return a list or a dictionary as Python, filled to lines of usual length."""
    if isinstance(names, Mapping):
        return (
            "{\n" + "".join(f"    {name!r}: {reason!r},\n" for name, reason in names.items()) + "}" if names else "{}"
        )
    text = textwrap.fill(", ".join(map(repr, names)), 110, initial_indent="    ", subsequent_indent="    ")
    return f"[\n{text},\n]" if names else "[]"
