"""Compiled kernels kept on disk whole, so that a kernel which any process has compiled costs no code generation.

Defines `PROGRAMS`, which takes the place of tinygrad's table of programs, and `generate`, which takes that of its code
generation; importing this module puts both in place.

The key insight: tinygrad keeps a kernel's binary by its source, and to learn the source it must rewrite the kernel's
graph in Python, which takes four fifths of the time of a fresh kernel. Its own table of whole programs is keyed by the
content of the graph and all settings that matter, but ends with the process; written to tinygrad's cache file, with
what else a program depends on in the key, it does not.
Must not know what the kernels compute.
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
from . import disk_cache
from .counters import COUNTERS
from .progress import PROGRESS

TABLE = "conformance_programs"
Key = tuple[Any, ...]
SHORT = 16_384
"""Turns of a kernel's loops, of all loops together, up to which they are not unrolled: some 20 us.

Unrolled graphs are what code generation and clang work through: without, the 333 kernels of 60 drawn programs take two
thirds of the time to make (`python benchmarks/fuzz_speed.py --targets tiny`).
"""


def _place(key: Key) -> str:
    """Where a program lies in the cache: by graph, renderer, target and settings."""
    graph, renderer, *rest = key
    return disk_cache.place(graph.hex(), renderer.__module__, renderer.__qualname__, [str(x) for x in rest])


class Programs(dict[Key, UOp]):
    """tinygrad's table of programs, with tinygrad's cache file behind it (which CACHELEVEL=0 turns off)."""

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
        """The program that lies at a place, in this process or in the file."""
        if place not in self._at:
            row = disk_cache.read(TABLE, place)
            if row is None:
                return None
            self._note(place, pickle.loads(row))
        return self._at[place]

    def place(self, program: UOp) -> str | None:
        """Where a program lies, None where it lies in this process only."""
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


PROGRAMS = Programs(codegen.to_program_cache)
_GENERATE = Patch(
    "tinygrad.codegen:do_to_program",
    "The optimizer's vectorizer fails on some graphs of writes to several views ('bad reshape: () -> (6, 6)').",
    "tests/backend/test_behaviours.py::test_a_graph_that_tinygrads_vectorizer_breaks_is_computed",
)
_generate = _GENERATE.original


def is_short(graph: UOp, renderer: Any) -> bool:
    """Whether a kernel runs for so few turns of its loops that unrolling them costs more than it can ever save.

    Only on the CPU: elsewhere the optimizer is also what spreads a kernel over the processor's lanes.
    """
    if renderer.target.device != "CPU":
        return False
    return math.prod(int(u.vmax) + 1 for u in graph.toposort() if u.op is Ops.RANGE) <= SHORT


def generate(graph: UOp, renderer: Any) -> UOp:
    """A kernel's program. A short one is generated as it stands, without unrolled loops.

    Where tinygrad's optimizer breaks the graph it is generated as it stands, too, and counted.

    tinygrad 0.14 fails in its vectorizer on some graphs of writes to several views ("bad reshape: () -> (6, 6)"). Code
    that does not compile is no such failure: it says that the renderer wrote something else than was meant, and C may
    take the same expression, written once more, for another one (`- -x` and `--x`).
    """
    start = time.perf_counter()
    try:
        with Context(NOOPT=int(bool(NOOPT) or is_short(graph, renderer))):
            program = _generate(graph, renderer)
    except CompileError:
        raise
    except Exception:
        with Context(NOOPT=1):
            program = _generate(graph, renderer)  # what fails here too is an error
        COUNTERS.unoptimized += 1
    PROGRESS.add(time.perf_counter() - start)
    return _ready(program)


def _ready(program: UOp) -> UOp:
    """A program without the graph and the instructions that it was made of: running it takes its parameters only."""
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
