"""Schedules by graph: a second process schedules no graph of an earlier process, and computes the same values."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tinygrad.dtype import ConstFloat, Invalid, dtypes
from tinygrad.uop import Ops

import conformance.backend
from conformance.backend.runtime import disk_cache, schedule_cache, scheduler
from conformance.backend.runtime.stats import reset_stats, stats
from tests.run_script import Standalone

PROGRAM = """
import contextlib, json, sys
import torch
import conformance.backend
from conformance.backend.runtime import scheduler
from tinygrad.helpers import Context

made = []
transform = scheduler.transform_to_call
scheduler.transform_to_call = lambda sink: made.append(sink) or transform(sink)

def program(number=2.5, dtype="float32", device="tiny", **settings):
    conformance.backend.reset_stats(), made.clear()
    x = torch.linspace(1, 2, 30).to(getattr(torch, dtype)).reshape(6, 5).to(device)
    with Context(**settings):
        x.t()[1:4, ::2].mul_(number)  # a write; a reduction that is read twice; an index; what stores on its way
        y = (x - x.sum(0)) / x.sum()
        z = torch.linalg.cholesky((x[:2, :2] @ x[:2, :2].t()) + 9)
        found = [x.cpu(), y.cpu(), x.cumsum(0)[torch.tensor([2, 0])].cpu(), z.cpu()]
    stats = conformance.backend.stats()
    return {"transformed": len(made), "values": [t.tolist() for t in found],
            **{k: stats[k] for k in ("kernels", "schedules", "scheduled", "loaded")}}

print(json.dumps([program(**way) for way in json.loads(sys.argv[1])]))
"""

COMPILED = """
import json
import torch
import conformance.backend
from conformance.backend.torch_api import compile as backend

@torch.compile(backend=backend.tiny)
def step(a, b):
    a.add_(1).mul_(2)
    return a + b

a, b = torch.ones(2).to("tiny"), torch.full((2,), 2.0).to("tiny")
values = [step(a, b).tolist() for _ in range(3)]
stats = conformance.backend.stats()
print(json.dumps({"values": values, "scheduled": stats["scheduled"], "loaded": stats["loaded"]}))
"""


def command(*ways: dict[str, Any]) -> list[str]:
    """Return the command line of a process that runs the program in these ways, one after the other."""
    return [sys.executable, "-c", PROGRAM, json.dumps(ways or [{}])]


Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def run(standalone: Standalone) -> Run:
    """Runner of a fresh process, which has not imported tinygrad. It returns values and counters for each of the given
    ways, or for one way by default."""

    def run(cache: Path, *ways: dict[str, Any], **settings: str) -> list[dict[str, Any]]:
        environment = {"CACHEDB": str(cache), "TINY_DEVICES": "2", **settings}
        done = standalone(PROGRAM, words=[json.dumps(ways or [{}])], environment=environment)
        assert done.returncode == 0, done.stderr
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        assert all(a["transformed"] == a["scheduled"] for a in answers)
        return answers

    return run


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, run: Run) -> tuple[Path, dict[str, Any]]:
    """A cache that a first process has filled, and the result of that process."""
    cache = tmp_path_factory.mktemp("schedules") / "cache.db"
    (first,) = run(cache)
    assert first["scheduled"] > 3
    return cache, first


def copied(cache: Path, folder: Path) -> Path:
    """Return a copy of a cache, which the test may damage."""
    copy = folder / "cache.db"
    with sqlite3.connect(cache) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    return copy


def table(connection: sqlite3.Connection, name: str) -> str:
    """Return the full name of a table, which contains tinygrad's version."""
    (full_name,) = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE ?", (f"{name}%",)).fetchone()
    return f"'{full_name}'"


class TestSecondProcess:
    """A process that computes the graphs of another."""

    def test_schedules_nothing(self, filled: tuple[Path, dict[str, Any]], run: Run) -> None:
        """No graph is scheduled. Values and kernels equal the first process's."""
        cache, first = filled
        (second,) = run(cache)
        assert (second["scheduled"], second["loaded"]) == (0, first["scheduled"])
        for known in ("values", "kernels", "schedules"):
            assert second[known] == first[known]

    @pytest.mark.slow
    def test_of_other_graphs(self, filled: tuple[Path, dict[str, Any]], tmp_path: Path, run: Run) -> None:
        """Another number, dtype, device or setting makes another graph."""
        cache, first = filled
        ways = [{"number": 2.25}, {"dtype": "float64"}, {"device": "tiny:1"}, {"NO_MEMORY_PLANNER": 1}]
        afresh = run(tmp_path / "cache.db", *ways)
        copy = copied(cache, tmp_path)
        number, dtype, device, setting = others = run(copy, *ways)
        assert [o["values"] for o in others] == [a["values"] for a in afresh]
        assert number["values"] != first["values"]
        assert all(o["scheduled"] == first["scheduled"] for o in (dtype, device, setting))
        assert number["scheduled"] == 1  # the graph with the number; the other graphs read its result
        assert not any(o["scheduled"] for o in run(copy, {}, *ways))

    @pytest.mark.parametrize("variable", ["REDUCEOP_SPLIT_SIZE", "CACHELEVEL"])
    def test_under_other_variables(
        self, filled: tuple[Path, dict[str, Any]], variable: str, tmp_path: Path, run: Run
    ) -> None:
        """A variable that tinygrad reads during scheduling changes the key. CACHELEVEL=0 disables the cache."""
        cache, first = filled
        (other,) = run(copied(cache, tmp_path), **{variable: "0" if variable == "CACHELEVEL" else "20"})
        assert other["scheduled"] == first["scheduled"]

    def test_damaged_rows(self, filled: tuple[Path, dict[str, Any]], tmp_path: Path, run: Run) -> None:
        """Rows that were cut, emptied, overwritten, or changed in one byte are computed again. Their numbers are
        positions in memory, so a damaged row must never be used."""
        cache, first = filled
        copy = copied(cache, tmp_path)
        with sqlite3.connect(copy) as connection:
            for name in (table(connection, "conformance_schedules"), table(connection, "conformance_programs")):
                rows = connection.execute(f"SELECT key, val FROM {name}").fetchall()
                for i, (key, row) in enumerate(rows):
                    changed = bytearray(row)
                    changed[-20] ^= 1
                    damaged = [bytes(changed), row[: len(row) // 2], bytes(len(row)), None, "text"][i % 5]
                    connection.execute(f"UPDATE {name} SET val = ? WHERE key = ?", (damaged, key))
        (again,) = run(copy)
        assert (again["scheduled"], again["values"]) == (first["scheduled"], first["values"])
        (healed,) = run(copy)
        assert (healed["scheduled"], healed["values"]) == (0, first["values"])

    def test_a_program_that_is_gone(self, filled: tuple[Path, dict[str, Any]], tmp_path: Path, run: Run) -> None:
        """A schedule that names a missing program is computed again."""
        cache, first = filled
        copy = copied(cache, tmp_path)
        with sqlite3.connect(copy) as connection:
            connection.execute(f"DELETE FROM {table(connection, 'conformance_programs')}")
        (again,) = run(copy)
        assert (again["scheduled"], again["values"]) == (first["scheduled"], first["values"])

    @pytest.mark.slow
    def test_where_kernels_are_no_host_code(self, tmp_path: Path, run: Run) -> None:
        """The cache also works for a renderer whose kernels run through tinygrad's runtime, over views of buffers."""
        (first,) = run(tmp_path / "cache.db", DEV="PYTHON")
        (second,) = run(tmp_path / "cache.db", DEV="PYTHON")
        assert (first["loaded"], second["scheduled"]) == (0, 0)
        assert (second["values"], second["kernels"]) == (first["values"], first["kernels"])

    @pytest.mark.slow
    def test_compiled_graphs(self, tmp_path: Path) -> None:
        """Graphs of torch.compile are cached, with the stores into their inputs' buffers."""
        environment = {**os.environ, "CACHEDB": str(tmp_path / "cache.db")}
        outputs = []
        for _ in range(2):
            command = [sys.executable, "-W", "ignore", "-c", COMPILED]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            outputs.append(json.loads(done.stdout))
        first, second = outputs
        assert first["scheduled"] == second["loaded"] > 0
        assert second["scheduled"] == 0
        assert first["values"] == second["values"] == [[6.0, 6.0], [12.0, 12.0], [24.0, 24.0]]

    @pytest.mark.slow
    def test_two_at_once(self, tmp_path: Path, run: Run) -> None:
        """Processes that fill one cache at the same time do not disturb each other."""
        environment = {**os.environ, "CACHEDB": str(tmp_path / "cache.db")}
        both = [subprocess.Popen(command(), env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        values = [json.loads(process.communicate()[0])[0]["values"] for process in both]
        assert values[0] == values[1]
        assert run(tmp_path / "cache.db")[0]["scheduled"] == 0


class TestContent:
    """`content`: a graph's key as bytes."""

    def test_numbers(self) -> None:
        """Numbers that are equal in Python or tinygrad have different keys, because they make different kernels."""
        numbers = [0, 0.0, -0.0, False, 1, 1.0, True, ConstFloat(2.0), ConstFloat(float("nan"))]
        assert len({schedule_cache.content(((Ops.CONST, dtypes.float32, n),)) for n in numbers}) == len(numbers)
        assert schedule_cache.content(((Ops.CONST, dtypes.float32, ConstFloat(2.0)),)) == schedule_cache.content(
            ((Ops.CONST, dtypes.float32, 2.0),)
        )

    def test_what_has_no_content(self) -> None:
        """An object that is identified only by its address has no key."""
        assert schedule_cache.content(((Ops.CONST, dtypes.int32, object()),)) is None
        assert schedule_cache.content(((Ops.CONST, dtypes.int32, Invalid),)) is None


class TestMakers:
    """The key includes the code that makes a schedule."""

    def test_code_of_ours(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A change in a file that affects schedules changes the key."""
        before = disk_cache.place("a graph")
        assert disk_cache.place("a graph") == before != disk_cache.place("another")
        for room in ("runtime", "tinygrad_patches"):
            shutil.copytree(Path(disk_cache.__file__).parent.parent / room, tmp_path / room)

        def read_again() -> None:
            disk_cache._makers.cache_clear()
            disk_cache.made_by.cache_clear()

        monkeypatch.setattr(disk_cache, "__file__", str(tmp_path / "runtime" / "disk_cache.py"))
        read_again()
        assert disk_cache.place("a graph") == before
        (tmp_path / "tinygrad_patches" / "llvm.py").write_text("changed")
        read_again()
        try:
            assert disk_cache.place("a graph") != before
        finally:
            monkeypatch.undo()
            read_again()


class TestSameProcess:
    """Graphs that a process computes again."""

    def test_equal_calls_take_equal_kernels(self) -> None:
        """Equal calls take equal kernels, however often they ran. Formerly a cached schedule forgot its stored values:
        nine elements were sorted in 5, 5 and 7 kernels, a matrix inverted in 513, 513 and 747."""
        scheduler.SCHEDULES.clear()
        x, counts = torch.arange(9.0).sin(), []
        for origin in ("first", "memory", "disk", "memory"):
            if origin == "disk":
                scheduler.SCHEDULES.clear()
            reset_stats()
            values, indices = torch.sort(x.to("tiny"))
            for actual, wanted in zip((values, indices), torch.sort(x), strict=True):
                assert torch.equal(actual.cpu(), wanted)  # the second reads values stored for the first
            counts.append(stats()["kernels"])
            assert origin == "first" or stats()["scheduled"] == 0
        assert len(set(counts)) == 1

    def test_what_is_remembered_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The cache in memory is bounded and drops the oldest schedules first. A dropped schedule is computed again and
        stays right."""
        monkeypatch.setattr(schedule_cache, "KEPT", 40)
        scheduler.SCHEDULES.clear()
        for _ in range(2):
            for n in range(2, 7):
                assert (torch.arange(n).to("tiny") * n).sum().item() == n * sum(range(n))
                graphs = [of.graph for of in scheduler.SCHEDULES._known]
                assert 1 <= len(graphs) < 5
                assert sum(map(len, graphs)) == scheduler.SCHEDULES._nodes <= 40
        scheduler.SCHEDULES.clear()


def test_the_trace_says_where_a_schedule_was() -> None:
    """The trace names the origin of a schedule: new, in memory, or on disk."""
    from conformance.backend import kernels

    def origins() -> list[str]:
        with kernels.count() as counted:
            (torch.arange(11.0).to("tiny") * 1.0625).cpu()
        return [e.origin for _, e in counted.boundaries if hasattr(e, "origin")]

    scheduler.SCHEDULES.clear()
    origins()
    assert origins() == ["memory"]
    scheduler.SCHEDULES.clear()
    assert origins() == ["disk"]
    conformance.backend.realize()
