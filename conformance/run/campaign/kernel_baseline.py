"""Baseline of judged measurements by target and program: a program that takes more kernels than before is a finding.

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
from conformance.record.names import MEASURED
from conformance.record.result import write_atomic

SCHEMA = 1
BASELINE = versions.baselines() / "programs.json"


def read_baseline(path: Path, target: str) -> Mapping[str, Mapping[str, int]]:
    """The counts of each program by digest and measure; empty if this target was never counted.

    Raises ProgramError with one sentence if the file is missing, damaged or older."""
    result: dict[str, dict[str, int]] = {}
    for measure, targets in _read(path).items():
        for program, count in targets.get(profiles.identity(target), {}).items():
            result.setdefault(program, {})[measure] = count
    return result


def _read(path: Path) -> dict[str, dict[str, dict[str, int]]]:
    """The counts by measure, target and program."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"it has schema {data['schema']!r}, and this version reads schema {SCHEMA}")
        return {
            name: {target: {key: int(count) for key, count in counts.items()} for target, counts in data[name].items()}
            for name in MEASURED
        }
    except FileNotFoundError:
        raise ProgramError(f"{path} does not exist: --record-kernels writes it") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProgramError(
            f"{path}: cannot be read as a baseline of programs ({type(error).__name__}: {error}); "
            "--record-kernels writes one"
        ) from error


def write_baseline(path: Path, target: str, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Replace this target's counts in the file. Counts of other targets stay."""
    every = _read(path) if path.exists() else {name: {} for name in MEASURED}
    for name, targets in every.items():
        own = {key: measured[name] for key, measured in sorted(counts.items()) if name in measured}
        targets[profiles.identity(target)] = own
    write_atomic(path, json.dumps({"schema": SCHEMA, **every}, indent=1) + "\n")
