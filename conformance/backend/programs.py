"""Compiled kernels kept on disk whole, so that a kernel which any process has compiled costs no code generation.

Defines `install`, which puts `Programs` in the place of tinygrad's table of programs, and `generate` before it.

The key insight: tinygrad keeps a kernel's binary by its source, and to learn the source it must rewrite the kernel's
graph in Python, which takes four fifths of the time of a fresh kernel. Its own table of whole programs is keyed by the
content of the graph and all settings that matter, but ends with the process; written to tinygrad's cache file, with
what else a program depends on in the key, it does not.
Must not know what the kernels compute.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import tinygrad
from tinygrad import codegen
from tinygrad.engine import realize
from tinygrad.helpers import Context, diskcache_get, diskcache_put
from tinygrad.uop.ops import UOp

from . import mends
from .engine import COUNTERS

TABLE = "conformance_programs"


@functools.cache
def _makers() -> str:
    """What turns a graph into a program: tinygrad's code, bindings of drivers aside, and our mends of its tables."""
    package = Path(tinygrad.__file__).parent
    modules = [path for path in package.rglob("*.py") if "autogen" not in path.parts]
    digest = hashlib.sha256(Path(mends.__file__).read_bytes())
    for path in sorted(modules):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _place(key: tuple[Any, ...]) -> str:
    """Where a program lies in the cache: by graph, renderer, target, settings, and by what made it."""
    graph, renderer, *rest = key
    made_by = (renderer.__module__, renderer.__qualname__, os.environ.get("CC"), _makers())
    parts = (graph.hex(), [str(x) for x in rest], made_by)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class Programs(dict[tuple[Any, ...], UOp]):
    """tinygrad's table of programs, with tinygrad's cache file behind it (which CACHELEVEL=0 turns off)."""

    def get(self, key: Any, default: Any = None) -> Any:
        """The program of a key, from this process or from the file."""
        known = super().get(key)
        if known is None:
            stored = diskcache_get(TABLE, _place(key))
            if stored is None:
                return default
            known = pickle.loads(stored)
            super().__setitem__(key, known)
        return known

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def __setitem__(self, key: tuple[Any, ...], program: UOp) -> None:
        if super().get(key) is program:
            return
        super().__setitem__(key, program)
        diskcache_put(TABLE, _place(key), pickle.dumps(program))


_generate = codegen.do_to_program


def generate(graph: UOp, renderer: Any) -> UOp:
    """A kernel's program. Where tinygrad's optimizer breaks the graph it is generated as it stands, and counted.

    tinygrad 0.14 fails in its vectorizer on some graphs of writes to several views ("bad reshape: () -> (6, 6)").
    """
    try:
        return _generate(graph, renderer)
    except Exception:
        with Context(NOOPT=1):
            program = _generate(graph, renderer)  # what fails here too is an error
        COUNTERS.unoptimized += 1
        return program


def install() -> None:
    """Use the table in the whole process."""
    codegen.do_to_program = generate
    programs = Programs(codegen.to_program_cache)
    codegen.to_program_cache = realize.to_program_cache = programs  # type: ignore[attr-defined]
