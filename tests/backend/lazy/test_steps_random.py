"""Random programs with recurring steps among similar states: every value read equals torch CPU's.

A program has two steps, each a few calls followed by a read, and runs them in a random order. Between them it keeps,
aliases, clones, drops, reads and overwrites the operands. A step therefore often meets another state than the recorded
one, and a key with too little of the state gives a wrong number. All numbers are exact in float32, so results are
compared bit by bit.
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
    """A program drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.side = self.random.choice((3, 64))  # 64 x 64 floats are written into the buffer that the call reads
        step = [self.call() for _ in range(self.random.randint(2, 5))]
        self.steps = [step, self.twin(step)]
        # A few recurring disturbances, so that steps are recorded after each of them.
        before, after = [[self.disturbance() for _ in range(2)] for _ in range(2)]
        self.order = [
            (self.random.random() < 0.3, self.random.random() < 0.2, self.rarely(before), self.rarely(after))
            for _ in range(TURNS)
        ]

    def call(self) -> Call:
        """Draw a kind of call, a target, and two operands: state, or temporaries of the step."""
        kind = self.random.choice((*FRESH, *IN_PLACE))
        target = STATE + self.random.randrange(TEMPORARY) if kind in FRESH else self.random.randrange(STATE)
        return kind, target, self.operand(), self.operand()

    def twin(self, step: list[Call]) -> list[Call]:
        """Return the same calls, one of them with another operand."""
        i = self.random.randrange(len(step))
        kind, target, _, b = step[i]
        return [*step[:i], (kind, target, self.operand(), b), *step[i + 1 :]]

    def operand(self) -> int:
        """Draw a tensor to read, more often a temporary one."""
        return self.random.choice((*range(STATE), *range(STATE, STATE + TEMPORARY), *range(STATE, STATE + TEMPORARY)))

    def disturbance(self) -> Disturbance:
        """Draw a disturbance before or after the read."""
        return self.random.choice(BETWEEN), self.random.randrange(STATE + TEMPORARY), self.random.randrange(STATE)

    def rarely(self, kinds: list[Disturbance]) -> Disturbance:
        """Draw one of the disturbances, or more often none."""
        return self.random.choice(kinds) if self.random.random() < 0.3 else ("", 0, 0)

    def run(self, device: str) -> list[object]:
        """Return all values that the program reads."""
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
                except RuntimeError as error:  # a write to a part of the input
                    seen.append(str(error))
            written = list(dict.fromkeys([call[1] for call in self.steps[step]]))
            self.disturb(x, held, seen, *before, device)
            seen.append(x[written[look % len(written)]].tolist())
            self.disturb(x, held, seen, *after, device)
            x[STATE:] = x[:1] * TEMPORARY  # drop the results of the step
        return [*seen, [t.tolist() for t in (*x, *held)]]

    def disturb(self, x: Tensors, held: Tensors, seen: list[object], kind: str, i: int, j: int, device: str) -> None:
        """Change the state that the next call or read meets."""
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
        elif kind == "turned":  # transposed in memory
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
        """Run one call; `number` is different data for the same kernel."""
        if kind == "add":
            x[i] = x[j] + x[k]
        elif kind == "scale":
            x[i] = x[j] * number
        elif kind == "flip":
            x[i] = x[j].flip(0)
        elif kind == "full":
            x[i] = torch.full_like(x[j], number)
        elif kind in ("rows", "padded"):  # an index that the queue computes and the device checks
            index = (x[k][0] > 1).long()
            if kind == "padded":  # with an in-place write
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
    """Return whether a program reads another value on tiny than on torch CPU."""
    steps.reset_state()
    program = Program(seed)
    return program.run("tiny") != program.run("cpu")


@pytest.mark.parametrize("seed", range(10))
def test_what_is_read_is_right(seed: int) -> None:
    assert not wrong(seed)


def test_steps_are_replayed() -> None:
    """The programs above replay steps; otherwise they would test nothing."""
    before = COUNTERS.replayed
    assert not any(wrong(seed) for seed in range(10))
    assert COUNTERS.replayed - before > 20


@pytest.mark.slow
def test_what_is_read_is_right_in_many_programs() -> None:
    assert [seed for seed in range(10, 400) if wrong(seed)] == []
