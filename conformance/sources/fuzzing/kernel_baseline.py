"""Baseline of kernel counts by target and program: a program that takes more kernels than before is a finding.

The key insight: a program is data, so its digest identifies it. The corpus and the first numbered programs of a seed
are the same on every machine. A program without a recorded count is compared only with the number of torch CPU's ops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from conformance.declare import profile as profiles
from conformance.program.model import ProgramError
from conformance.record import versions
from conformance.record.result import write_atomic

SCHEMA = 1
BASELINE = versions.baselines() / "programs.json"


def read_baseline(path: Path, target: str) -> Mapping[str, int]:
    """The kernel count of each program by digest; empty if this target was never counted.

    Raises ProgramError with one sentence if the file is missing, damaged or older."""
    return _read(path).get(profiles.identity(target), {})


def _read(path: Path) -> dict[str, dict[str, int]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"it has schema {data['schema']!r}, and this version reads schema {SCHEMA}")
        return {
            str(target): {str(key): int(kernels) for key, kernels in counts.items()}
            for target, counts in data["kernels"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProgramError(
            f"{path}: cannot be read as a baseline of kernels ({type(error).__name__}: {error}); "
            "--record-kernels writes one"
        ) from error


def write_baseline(path: Path, target: str, counts: Mapping[str, int]) -> None:
    """Replace this target's counts in the file. Counts of other targets stay."""
    every = {**(_read(path) if path.exists() else {}), profiles.identity(target): dict(sorted(counts.items()))}
    write_atomic(path, json.dumps({"schema": SCHEMA, "kernels": every}, indent=1) + "\n")
