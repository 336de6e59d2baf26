"""Programs on disk: a second process generates no code for a kernel that the first has compiled."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tinygrad.device import CompileError
from tinygrad.helpers import NOOPT, Context

import conformance.backend  # noqa: F401 - registers the device
from conformance.backend.runtime import program_cache
from tests.standalone import Standalone

PROGRAM = """
import torch
import conformance.backend
from tinygrad import Device, codegen
conformance.backend.ensure_compiler()
Device["CPU"]  # compiles some programs of its own when it opens
made = []
generate = codegen.do_to_program
codegen.do_to_program = lambda *args: made.append(args) or generate(*args)
x = torch.arange(7.0).to("tiny")
assert ((x * 3.25 + 1).sum() - 75.25).item() == 0
print(len(made))
"""


def test_a_second_process_finds_the_programs_of_the_first(tmp_path: Path, standalone: Standalone) -> None:
    """The result is right both times; other settings, or no cache, mean other programs."""

    def generated(**settings: str) -> int:
        """How many kernels a fresh process, which has not imported tinygrad, generated code for."""
        done = standalone(PROGRAM, environment={"CACHEDB": str(tmp_path / "cache.db"), **settings})
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    first = generated()
    assert first > 0
    assert generated() == 0
    assert generated(NOOPT="1") == first
    assert generated(CACHELEVEL="0") == first


def test_a_second_thread_computes_too():
    """Its first new kernel was a sqlite3.ProgrammingError: the cache was open for the thread that came first."""
    x = torch.arange(7.0).to("tiny")
    x.add(random.random()).sum().item()
    factor, found = random.random(), []
    thread = threading.Thread(target=lambda: found.append((x * factor + factor).cumsum(0).cos().cpu()))
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], (torch.arange(7.0) * factor + factor).cumsum(0).cos())


@pytest.mark.parametrize(("error", "tries"), [(CompileError("expected ';'"), 1), (RuntimeError("bad reshape"), 2)])
def test_only_what_the_optimizer_breaks_is_generated_again(error, tries, monkeypatch):
    """`- -x` was written as `--x`: the kernel did not compile, or was wrong, and was generated again without a word."""
    made = []

    def fails(graph: object, renderer: object) -> None:
        made.append(graph)
        raise error

    monkeypatch.setattr(program_cache, "_generate", fails)
    monkeypatch.setattr(program_cache, "is_short", lambda graph, renderer: False)
    with pytest.raises(type(error)):
        program_cache.generate(None, None)
    assert len(made) == tries


@pytest.mark.skipif(os.environ.get("DEV", "CPU").partition(":")[0] != "CPU", reason="elsewhere all are optimized")
@pytest.mark.parametrize(("rows", "optimized"), [(17, False), (1700, True)])
def test_a_short_kernel_is_not_unrolled(rows, optimized, monkeypatch):
    """Unrolling them was a third of a first run's time."""
    settings = []

    def generated(graph: Any, renderer: Any) -> Any:
        settings.append(not NOOPT)
        return generate(graph, renderer)

    generate = program_cache._generate
    monkeypatch.setattr(program_cache, "_generate", generated)
    x = torch.arange(rows * 19.0).reshape(rows, 19)
    with Context(CACHELEVEL=0):  # the number may be an argument of a kernel that another process has made
        torch.testing.assert_close((x.to("tiny") * 0.3).sum(1).cpu(), (x * 0.3).sum(1))
    assert set(settings) == {optimized}
