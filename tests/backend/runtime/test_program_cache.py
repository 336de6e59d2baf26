"""Programs on disk: a second process generates no code for a kernel that an earlier process compiled."""

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
from tests.run_script import Standalone

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
    """The result is right both times. Other settings, or no cache, need code generation."""

    def generated(**settings: str) -> int:
        """Return the number of kernels that a fresh process, which has not imported tinygrad, generated code for."""
        done = standalone(PROGRAM, environment={"CACHEDB": str(tmp_path / "cache.db"), **settings})
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    first = generated()
    assert first > 0
    assert generated() == 0
    assert generated(NOOPT="1") == first
    assert generated(CACHELEVEL="0") == first


def test_a_second_thread_computes_too():
    """A second thread can compile a new kernel. Formerly it raised sqlite3.ProgrammingError, because the first thread
    had opened the cache."""
    x = torch.arange(7.0).to("tiny")
    x.add(random.random()).sum().item()
    factor, results = random.random(), []
    thread = threading.Thread(target=lambda: results.append((x * factor + factor).cumsum(0).cos().cpu()))
    thread.start()
    thread.join()
    torch.testing.assert_close(results[0], (torch.arange(7.0) * factor + factor).cumsum(0).cos())


@pytest.mark.parametrize(("error", "tries"), [(CompileError("expected ';'"), 1), (RuntimeError("bad reshape"), 2)])
def test_only_what_the_optimizer_breaks_is_generated_again(error, tries, monkeypatch):
    """Only an error of the optimizer leads to a second try without optimization. Formerly `- -x` became `--x`, and a
    kernel that did not compile was silently generated again."""
    graphs = []

    def fails(graph: object, renderer: object) -> None:
        graphs.append(graph)
        raise error

    monkeypatch.setattr(program_cache, "_generate", fails)
    monkeypatch.setattr(program_cache, "is_short", lambda graph, renderer: False)
    with pytest.raises(type(error)):
        program_cache.generate(None, None)
    assert len(graphs) == tries


@pytest.mark.skipif(os.environ.get("DEV", "CPU").partition(":")[0] != "CPU", reason="elsewhere all are optimized")
@pytest.mark.parametrize(("rows", "optimized"), [(17, False), (1700, True)])
def test_a_short_kernel_is_not_unrolled(rows, optimized, monkeypatch):
    """Short kernels are not unrolled, which took a third of the time of a first run."""
    settings = []

    def generated(graph: Any, renderer: Any) -> Any:
        settings.append(not NOOPT)
        return generate(graph, renderer)

    generate = program_cache._generate
    torch.tiny.synchronize()  # otherwise writes of earlier tests are computed along with this kernel
    monkeypatch.setattr(program_cache, "_generate", generated)
    x = torch.arange(rows * 19.0).reshape(rows, 19)
    with Context(CACHELEVEL=0):  # the number may be an argument of a cached kernel of another process
        torch.testing.assert_close((x.to("tiny") * 0.3).sum(1).cpu(), (x * 0.3).sum(1))
    assert set(settings) == {optimized}
