"""Cache of compiled kernels on disk: a kernel that any process has compiled needs no code generation.

Defines `PROGRAMS`, which replaces tinygrad's table of programs, and `generate`, which replaces its code generation.
Importing this module installs both.

tinygrad caches a kernel's binary by its source. To get the source, it must rewrite the kernel's graph in Python, which
takes four fifths of the time of a new kernel. Its table of whole programs is keyed by the content of the graph and all
relevant settings, but ends with the process. This module writes that table to tinygrad's cache file, and adds all other
dependencies of a program to the key.

This module must not depend on the computation of the kernels.
"""

from __future__ import annotations

import math
import pickle
import time
from typing import Any

from tinygrad import codegen
from tinygrad.device import CompileError
from tinygrad.helpers import NOOPT, Context
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from ..tinygrad_patches.patch import Patch
from . import compiler_process, disk_cache  # noqa: F401 - installs itself
from .counters import COUNTERS
from .progress import PROGRESS

TABLE = "conformance_programs"
Key = tuple[Any, ...]
SHORT = 16_384
"""Number of turns of a kernel's loops, of all loops together, below which they are not unrolled: some 20 us.

Unrolled graphs dominate the time of code generation and clang. Without unrolling, the 333 kernels of 60 drawn programs
take two thirds of the time to make (`python benchmarks/fuzz_speed.py --targets tiny`).
"""


def _place(key: Key) -> str:
    """The cache key of a program: graph, renderer, target and settings."""
    graph, renderer, *rest = key
    return disk_cache.place(graph.hex(), renderer.__module__, renderer.__qualname__, [str(x) for x in rest])


class ProgramTable(dict[Key, UOp]):
    """tinygrad's table of programs, backed by tinygrad's cache file (which CACHELEVEL=0 turns off)."""

    def __init__(self, known: dict[Key, UOp]) -> None:
        super().__init__(known)
        self._at: dict[str, UOp] = {}
        self._places: dict[UOp, str] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        """The program of a key, from this process or from the file."""
        known = super().get(key)
        if known is None:
            known = self.at(_place(key))
            if known is None:
                return default
            super().__setitem__(key, known)
        return known

    def at(self, place: str) -> UOp | None:
        """The program with a cache key, from this process or from the file."""
        if place not in self._at:
            row = disk_cache.read(TABLE, place)
            if row is None:
                return None
            self._note(place, pickle.loads(row))
        return self._at[place]

    def place(self, program: UOp) -> str | None:
        """The cache key of a program, None if it is not on disk."""
        return self._places.get(program) if disk_cache.enabled() else None

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def __setitem__(self, key: Key, program: UOp) -> None:
        if super().get(key) is program:
            return
        super().__setitem__(key, program)
        place = _place(key)
        self._note(place, program)
        disk_cache.write(TABLE, place, pickle.dumps(program))

    def _note(self, place: str, program: UOp) -> None:
        self._at[place], self._places[program] = program, place


PROGRAMS = ProgramTable(codegen.to_program_cache)
# By kernel that is about to be generated: the result of the first part of code generation, if `moving_sizes` needed it.
SIMPLIFIED: dict[UOp, UOp] = {}
_GENERATE = Patch(
    "tinygrad.codegen:do_to_program",
    "The optimizer's vectorizer fails on some graphs of writes to several views ('bad reshape: () -> (6, 6)').",
    "tests/backend/test_behaviours.py::test_a_graph_that_tinygrads_vectorizer_breaks_is_computed",
)
_generate = _GENERATE.original


def is_short(graph: UOp, renderer: Any) -> bool:
    """Whether a kernel runs so few loop turns that unrolling costs more than it can save.

    Only on the CPU: elsewhere the optimizer also distributes a kernel over the processor's lanes.
    """
    if renderer.target.device != "CPU":
        return False
    return count_turns(graph) <= SHORT


def count_turns(graph: UOp) -> int:
    """The number of turns of the innermost loops of a kernel: of each sum, and of each store."""
    turns = 0
    for node in graph.toposort():
        if node.op is Ops.REDUCE or node.op is Ops.STORE:
            turns += math.prod([int(r.vmax) + 1 for r in (node.src[0] if node.op is Ops.REDUCE else node).ranges])
    return turns


def generate(graph: UOp, renderer: Any) -> UOp:
    """A kernel's program. A short one is generated without unrolled loops.

    If tinygrad's optimizer fails, the kernel is generated unoptimized, and counted.

    tinygrad 0.14 fails in its vectorizer on some graphs of writes to several views ("bad reshape: () -> (6, 6)"). Code
    that does not compile is not such a failure: it means that the renderer wrote a different expression. A second
    attempt could then compile to another meaning in C (`- -x` and `--x`).
    """
    start = time.perf_counter()
    try:
        with Context(NOOPT=int(bool(NOOPT) or is_short(graph, renderer))):
            program = _generate(SIMPLIFIED.pop(graph, graph), renderer)
    except CompileError:
        raise
    except Exception:
        with Context(NOOPT=1):
            program = _generate(graph, renderer)  # a failure here is an error
        COUNTERS.unoptimized += 1
    PROGRESS.add(time.perf_counter() - start)
    return _ready(program)


def _ready(program: UOp) -> UOp:
    """A program without its graph and instructions: running it needs only its parameters."""
    graph, instructions, *code = program.src
    parameters = tuple(u for u in instructions.src if u.op is Ops.PARAM)
    return program.replace(src=(graph.replace(src=()), instructions.replace(src=parameters), *code))


_GENERATE.apply(generate)
for _site in ("tinygrad.codegen:to_program_cache", "tinygrad.engine.realize:to_program_cache"):
    Patch(
        _site,
        "The table of programs ends with the process.",
        "tests/backend/runtime/test_program_cache.py::test_a_second_process_finds_the_programs_of_the_first",
    ).apply(PROGRAMS)
