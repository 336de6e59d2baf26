"""The line of the user's code behind an operator call, and the phase of training that the call belongs to.

Defines `SourceLine`, `Places` and `Site`. In the forward pass the line is on the Python stack. In a backward pass it is
not, since autograd calls the operator. Then the line is that of the forward call that made the node: both have the same
sequence number.
"""

from __future__ import annotations

import linecache
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

from conformance.engine.target import Target
from conformance.run.user_script import is_of_user
from conformance.standalone.torch_compat import backward_node, sequence_number, sequence_number_of

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
PHASES = (FORWARD, BACKWARD, OPTIMIZER)

ENGINE = str(Path(torch.autograd.__file__).parent)
"""Folder of the functions that call the autograd engine."""

MOST_LINES = 100_000
"""Number of forward calls of a thread whose lines are kept."""


@dataclass(frozen=True, order=True)
class SourceLine:
    """A line of a file. `file` is empty if no line of the user's code is known."""

    file: str = ""
    line: int = 0

    @property
    def code(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}" if self.file else "an unknown line"


class Site(NamedTuple):
    """The line, the phase and the target of a call, and its number among the calls of its operator there."""

    place: SourceLine
    phase: str
    target: Target
    number: int = 1


class Places:
    """Finds the places of calls, and remembers those of forward calls."""

    def __init__(self) -> None:
        self.optimizing = 0
        """Number of optimizer steps in progress."""
        self._lines: dict[int, dict[int, SourceLine]] = {}

    def find(self, frame: FrameType | None) -> tuple[SourceLine, str]:
        """Return the place and the phase of a call whose innermost Python frame is `frame`."""
        node = backward_node()
        place = _on_stack(frame, inside_backward=node is not None)
        if node is not None:
            return place or self._forward(node), BACKWARD
        if self.optimizing:
            return place or SourceLine(), OPTIMIZER
        thread = self._lines.setdefault(threading.get_ident(), {})
        thread.setdefault(sequence_number() - 1, place or SourceLine())
        if len(thread) > MOST_LINES:
            del thread[next(iter(thread))]
        return place or SourceLine(), FORWARD

    def _forward(self, node: torch.autograd.graph.Node) -> SourceLine:
        """Return the place of the forward call that made a node."""
        number, here = sequence_number_of(node), threading.get_ident()
        others = [lines[number] for thread, lines in self._lines.items() if thread != here and number in lines]
        return others[0] if others else self._lines.get(here, {}).get(number, SourceLine())


def _on_stack(frame: FrameType | None, inside_backward: bool) -> SourceLine | None:
    """Return the innermost line of the user's code. In a backward pass, only lines above the call of the engine count:
    hooks, custom functions, and recomputed forward passes."""
    while frame is not None:
        file = frame.f_code.co_filename
        if inside_backward and file.startswith(ENGINE) and frame.f_code.co_name == "_engine_run_backward":
            return None
        if is_of_user(file):
            return SourceLine(file, frame.f_lineno)
        frame = frame.f_back
    return None
