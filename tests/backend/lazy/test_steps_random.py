"""Steps that recur among states nearly alike: what is read is what torch CPU has, whichever of them are replayed.

A program has two steps, each a few calls and then a look, and runs them in a random order. Between them it holds,
aliases, clones, drops, looks at and overwrites what they use, so that a step often meets another state than the one it
was recorded in: a step that is remembered by too little of its state gives a wrong number here. All numbers are exact
in float32, so answers are compared bit by bit.
"""

from __future__ import annotations

import random

import pytest
import torch

from conformance.backend.lazy import steps
from conformance.backend.runtime.counters import COUNTERS

STATE, TEMPORARY = 3, 2
TURNS = 24
FRESH = ("add", "scale", "flip", "full", "rows", "padded")
IN_PLACE = ("row_", "scale_", "add_", "copy_", "fill_", "max_out")
BETWEEN = (
    "hold", "gone", "alias", "clone", "transpose", "turned", "same", "data", "zeros", "part", "fill", "release", "look",
)  # fmt: skip
NUMBERS = [sign * 2.0**k for sign in (1, -1) for k in range(-3, 4)]
Tensors = list[torch.Tensor]
Call = tuple[str, int, int, int]
Disturbance = tuple[str, int, int]


pytestmark = pytest.mark.usefixtures("queue")


class Program:
    """One program, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.side = self.random.choice((3, 64))  # 64 x 64 floats are written into the buffer that they were read from
        step = [self.call() for _ in range(self.random.randint(2, 5))]
        self.steps = [step, self.twin(step)]
        # A few disturbances that recur, so that there are steps recorded after each.
        before, after = [[self.disturbance() for _ in range(2)] for _ in range(2)]
        self.order = [
            (self.random.random() < 0.3, self.random.random() < 0.2, self.rarely(before), self.rarely(after))
            for _ in range(TURNS)
        ]

    def call(self) -> Call:
        """A kind of call, a target, and two operands: state, or temporaries of the step."""
        kind = self.random.choice((*FRESH, *IN_PLACE))
        target = STATE + self.random.randrange(TEMPORARY) if kind in FRESH else self.random.randrange(STATE)
        return kind, target, self.operand(), self.operand()

    def twin(self, step: list[Call]) -> list[Call]:
        """The same calls, one of them with another operand."""
        i = self.random.randrange(len(step))
        kind, target, _, b = step[i]
        return [*step[:i], (kind, target, self.operand(), b), *step[i + 1 :]]

    def operand(self) -> int:
        """A tensor that is read, more often a temporary one."""
        return self.random.choice((*range(STATE), *range(STATE, STATE + TEMPORARY), *range(STATE, STATE + TEMPORARY)))

    def disturbance(self) -> Disturbance:
        """What may happen before or after the look."""
        return self.random.choice(BETWEEN), self.random.randrange(STATE + TEMPORARY), self.random.randrange(STATE)

    def rarely(self, kinds: list[Disturbance]) -> Disturbance:
        """One of them, or mostly none."""
        return self.random.choice(kinds) if self.random.random() < 0.3 else ("", 0, 0)

    def run(self, device: str) -> list[object]:
        """All that the program looks at."""
        numbers = random.Random(0)
        n = self.side
        x = [(torch.arange(float(n * n)).reshape(n, n) % 7 + i).to(device) for i in range(STATE)]
        x += x[:1] * TEMPORARY
        held: Tensors = []
        seen: list[object] = []
        for step, look, before, after in self.order:
            for call in self.steps[step]:
                try:
                    self.apply(x, *call, numbers.choice(NUMBERS))
                except RuntimeError as error:  # a write to a part of what it reads
                    seen.append(str(error))
            written = list(dict.fromkeys([call[1] for call in self.steps[step]]))
            self.disturb(x, held, seen, *before, device)
            seen.append(x[written[look % len(written)]].tolist())
            self.disturb(x, held, seen, *after, device)
            x[STATE:] = x[:1] * TEMPORARY  # the step's own results are gone
        return [*seen, [t.tolist() for t in (*x, *held)]]

    def disturb(self, x: Tensors, held: Tensors, seen: list[object], kind: str, i: int, j: int, device: str) -> None:
        """Change what the next call, or the next look, meets."""
        n = self.side
        if kind == "hold":
            held.append(x[i])
        elif kind == "gone":
            x[STATE:] = x[:1] * TEMPORARY
        elif kind == "alias":
            x[j] = x[i].view(n, n) if x[i].is_contiguous() else x[i]
        elif kind == "clone":
            x[j] = x[i].clone()
        elif kind == "transpose":
            x[j] = x[i].t()
        elif kind == "turned":  # the elements lie transposed
            x[j] = (x[i].t() * 2).t()
        elif kind == "same":
            x[j] = x[i]
        elif kind == "data":
            x[j] = (torch.arange(float(n * n)).reshape(n, n) % 5).to(device)
        elif kind == "zeros":
            x[j] = torch.zeros(n, n, device=device)
        elif kind == "part":
            x[j][0] = 3.0
        elif kind == "fill":
            x[j].fill_(2.0)
        elif kind == "look":
            seen.append(x[i].tolist())
        elif kind == "release":
            seen += [t.tolist() for t in held]
            held.clear()

    def apply(self, x: Tensors, kind: str, i: int, j: int, k: int, number: float) -> None:
        """Make one call; `number` is other data for the same kernel."""
        if kind == "add":
            x[i] = x[j] + x[k]
        elif kind == "scale":
            x[i] = x[j] * number
        elif kind == "flip":
            x[i] = x[j].flip(0)
        elif kind == "full":
            x[i] = torch.full_like(x[j], number)
        elif kind in ("rows", "padded"):  # an index is looked at, and the queue computes it
            index = (x[k][0] > 1).long()
            if kind == "padded":  # by a write in place
                index = torch.nn.functional.pad(index, (1, 0))[:-1].contiguous()
            x[i] = x[j].index_select(0, index)
        elif kind == "row_":
            x[i][1].sub_(x[j][0] + 0)
        elif kind == "scale_":
            x[i].mul_(number)
        elif kind == "add_":
            x[i].add_(x[j] + 0)
        elif kind == "fill_":
            x[i].fill_(number)
        elif kind == "copy_":
            x[i].copy_(x[j] + 0)
        else:
            torch.maximum(x[j] + 0, x[k] + 0, out=x[i])


def wrong(seed: int) -> bool:
    """Whether a program reads something else on tiny than on torch CPU."""
    steps.reset_state()
    program = Program(seed)
    return program.run("tiny") != program.run("cpu")


@pytest.mark.parametrize("seed", range(10))
def test_what_is_read_is_right(seed: int) -> None:
    assert not wrong(seed)


def test_steps_are_replayed() -> None:
    """Else the programs above would test nothing."""
    before = COUNTERS.replayed
    assert not any(wrong(seed) for seed in range(10))
    assert COUNTERS.replayed - before > 20


@pytest.mark.slow
def test_what_is_read_is_right_in_many_programs() -> None:
    assert [seed for seed in range(10, 400) if wrong(seed)] == []
