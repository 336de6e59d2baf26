"""Kernel counts on `tiny` are facts about a program: no cache, order, other process or processor changes them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

import conformance.backend as backend
from conformance.engine.loading import load_target
from tests.targets.count_kernels import CASES, count_kernels

ROOT = Path(__file__).parents[2]
NARROW = "x86-64-v2"
"""A processor without AVX, for the compiler's -march."""


def start_counting(order: str, cache: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a process that counts the kernels of `CASES` in an order, with its kernels cached in a file."""
    command = [sys.executable, "-m", "tests.targets.count_kernels", order]
    variables = {**os.environ, "CACHEDB": str(cache), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)


def read_counts(process: subprocess.Popen[str]) -> dict[str, int]:
    """Wait for the process, and return the counts that it printed."""
    printed, _ = process.communicate()
    assert process.returncode == 0
    return dict(json.loads(printed))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache file, which the fixture `counts` fills."""
    return tmp_path_factory.mktemp("kernels") / "filled.db"


@pytest.fixture(scope="module")
def counts(cache: Path) -> Mapping[str, int]:
    """The counts in a new process with an empty cache."""
    assert not cache.exists()
    return read_counts(start_counting("forwards", cache))


@pytest.fixture
def busy_processors() -> Iterator[None]:
    """Two busy processes for each processor, until the test ends."""
    loop = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(loop) for _ in range(2 * (os.cpu_count() or 1))]
    yield
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("order", ["backwards", "twice"])
def test_filled_cache_and_order_do_not_change_counts(order: str, counts: Mapping[str, int], cache: Path) -> None:
    """With the cache of an earlier process, in the opposite order, and after the same cases in the same process.
    Regression test: `householder_product` took 102 or 104 kernels, since a known call waits in the queue."""
    assert read_counts(start_counting(order, cache)) == counts


def test_described_calls_change_counts_unless_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the target does not forget the calls that earlier cases have described."""
    cases = [case for case in CASES if case.op in ("ormqr", "linalg.householder_product")]
    tiny = load_target("tiny")
    counts = count_kernels(cases, tiny)
    assert count_kernels(cases, tiny) == counts
    monkeypatch.setattr(backend, "forget_calls", lambda: None)
    assert count_kernels(cases[::-1], tiny) != counts


def test_writes_of_earlier_subjects_are_not_counted() -> None:
    """A tensor that an earlier subject wrote, and that is still alive and not computed, is nobody else's kernel."""
    tiny = load_target("tiny")
    add = [case for case in CASES if case.op == "add"]
    counts = count_kernels(add, tiny)
    kept = torch.arange(6.0).to("tiny")
    kept.mul_(3).add_(1)
    assert count_kernels(add, tiny) == counts
    assert kept.tolist() == [1, 4, 7, 10, 13, 16]


@pytest.mark.slow
def test_two_processes_with_one_cache_agree(counts: Mapping[str, int], tmp_path: Path) -> None:
    """Two workers fill one cache file at the same time, in opposite orders."""
    both = [start_counting(order, tmp_path / "shared.db") for order in ("forwards", "backwards")]
    assert [read_counts(process) for process in both] == [counts, counts]


@pytest.mark.slow
@pytest.mark.usefixtures("busy_processors")
def test_load_does_not_change_counts(counts: Mapping[str, int], tmp_path: Path) -> None:
    """An empty cache, while other processes take the processors."""
    assert read_counts(start_counting("forwards", tmp_path / "empty.db")) == counts


@pytest.mark.slow
def test_processor_does_not_change_counts(counts: Mapping[str, int], tmp_path: Path) -> None:
    """The compiler generates code for an older processor, with an empty cache."""
    compiler = backend.ensure_compiler()
    assert compiler is not None
    narrow = tmp_path / "narrow-cc"
    # The last -march counts, after tinygrad's -march=native.
    narrow.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {shlex.quote(compiler.path)} "$@" -march={NARROW}\n'
    )
    narrow.chmod(0o755)
    assert read_counts(start_counting("forwards", tmp_path / "narrow.db", CC=str(narrow))) == counts
    assert (tmp_path / "calls").stat().st_size  # the compiler was asked
