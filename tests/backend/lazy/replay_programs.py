"""Programs of two steps that differ in exactly one property, aimed at the key of replayed steps.

Defines `Program`, which a seed and a difference determine, and `DIFFERENCES`.

A step prepares operands, runs a few calls and reads tensors. A program runs a step until it is replayed, then its twin,
and then both by turns. If the key lacks the property in which they differ, the twin replays the computation of the
step. All numbers are exact in float32, so results on two devices are equal in every bit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

# Slots of tensors: a parameter that all steps share, operands that each step prepares, and the step's results.
PARAMETER, OPERANDS, RESULTS = 0, (1, 2), (3, 4)
ORDER = "0000101101"
CHANGING = math.nan  # in the place of a number that differs from turn to turn
FRESH = ("add", "scale", "flip", "rows")
IN_PLACE = ("add_", "scale_", "row_", "copy_", "fill_", "max_out")

Event = tuple[str, int]
Call = tuple[str, int, int, int, float]


@dataclass(frozen=True)
class Step:
    """One step of a program."""

    side: int  # operands have this many rows and columns
    events: tuple[Event, ...]  # the history of an operand before the step's calls
    calls: tuple[Call, ...]  # kind, target, two operands, number
    read: tuple[int, ...]
    held: tuple[int, ...] = ()  # slots whose tensors stay alive after the step
    setting: str = ""
    settled: bool = False  # whether the histories are lazy values when the calls begin, instead of queued calls


class Seen:
    """All observations of a program."""

    def __init__(self, count: Callable[[], int]) -> None:
        self.values: list[str] = []
        self.counts: list[int] = []
        self.count, self.start = count, count()

    def read(self, tensors: Iterable[torch.Tensor]) -> None:
        """Read tensors one by one: their metadata, and their values with the signs of zeros."""
        for t in tensors:
            self.values.append(f"{t.dtype} {t.stride()} {t.tolist()}")
            self.counts.append(self.count() - self.start)


class Program:
    """The program of a seed and a difference."""

    def __init__(self, difference: str, seed: int) -> None:
        self.random = draw = random.Random(f"{difference} {seed}")
        side = draw.choice((4, 64))  # 64 x 64 floats are written into the buffer that the call reads
        events = tuple((draw.choice(HISTORIES), i) for i in OPERANDS if draw.random() < 0.1)
        step = Step(side, events, self.calls(), draw.choice(((PARAMETER,), OPERANDS)), settled=draw.random() < 0.5)
        self.steps = DIFFERENCES[difference](step, draw)

    def calls(self) -> tuple[Call, ...]:
        """Draw calls whose results all reach the parameter: the first reads both operands, the last writes it."""
        draw, last, other = self.random, *RESULTS
        calls: list[Call] = [("add", last, *OPERANDS, 0.0)]
        for _ in range(draw.randint(1, 2)):
            kind, operand, number = draw.choice((*FRESH, *IN_PLACE)), draw.choice(OPERANDS), draw.choice((0.5, 2.0))
            if kind in IN_PLACE:
                calls.append((kind, operand, last, 3 - operand, number))
                kind = "add"
            calls.append((kind, other, last, operand, number))
            last, other = other, last
        return (*calls, ("add_", PARAMETER, last, last, 0.0))

    def run(self, device: str, count: Callable[[], int] = int) -> tuple[list[str], list[int]]:
        """Run the program, and return all values that it reads, and `count` after each read."""
        parameter = data(self.steps[0].side, 0, device)
        held: list[torch.Tensor] = []
        seen = Seen(count)
        for turn, which in enumerate(ORDER):
            step = self.steps[int(which)]
            with configured(step.setting):
                run_step(step, parameter, turn, device, held, seen)
            if turn % 2:
                seen.read(held)
                held.clear()
        seen.read([parameter, *held])
        return seen.values, seen.counts


def run_step(step: Step, parameter: torch.Tensor, turn: int, device: str, held: list[torch.Tensor], seen: Seen) -> None:
    """Run one step; append its results to `seen`, and the tensors to keep to `held`."""
    x = [parameter, *[data(step.side, turn + i, device) for i in OPERANDS]]
    x += [x[1], x[2]]
    for name, i in step.events:
        happen(name, x, i, held, device)
    if step.settled:
        settle(device)
    for call in step.calls:
        try:
            apply(x, *call[:4], 1.0 + turn if call[4] is CHANGING else call[4])
        except (RuntimeError, IndexError) as error:
            seen.values.append(str(error))
    held += [x[i] for i in step.held]
    read = [x[i] for i in step.read]
    x.clear()
    seen.read(read)


def data(side: int, start: int, device: str) -> torch.Tensor:
    """A square of small whole numbers."""
    return ((torch.arange(float(side * side)).reshape(side, side) + start) % 5 - 1).to(device)


def settle(device: str) -> None:
    """Turn the queued calls into lazy values: an operator that does not wait in the queue reads a tensor."""
    torch.nextafter(torch.ones(2).to(device), torch.ones(2).to(device))


def happen(name: str, x: list[torch.Tensor], i: int, held: list[torch.Tensor], device: str) -> None:
    """Let the tensor in slot `i` have a history."""
    t, n = x[i], x[i].shape[0]
    other = x[3 - i] if i in OPERANDS else x[1]
    if name == "dtype":
        x[i] = t.to(torch.int32)
    elif name == "bits":
        x[i] = t.cpu().clone().view(torch.int32).to(device).view(torch.float32)
    elif name == "columns":
        x[i] = t.t()
    elif name == "turned":  # columns in memory, the same view
        x[i] = (t.t() * 2).t()
    elif name == "offset":
        x[i] = torch.cat([t, t[:1]])[1:]
    elif name == "second":
        x[i] = torch.cat([t, t])[::2]
    elif name == "head":  # a part of a number
        held.append(torch.full((n + 1, n), 2.0, device=device))
        x[i] = held[-1][:n]
        settle(device)
    elif name == "number":
        x[i] = torch.full((n, n), 2.0, device=device)
        held.append(x[i])
        settle(device)
    elif name == "number of another dtype":
        x[i] = torch.full((n, n // 2), 2.0, dtype=torch.float64, device=device).view(torch.float32)
        held.append(x[i])
        settle(device)
    elif name in ("zero", "negative zero"):
        x[i] = torch.full((n, n), 0.0 if name == "zero" else -0.0, device=device)
        settle(device)
    elif name in ("filled buffer", "filled number"):  # a number that replaced a buffer, or another number
        if name == "filled number":
            x[i] = torch.zeros(n, n, device=device)
        x[i].mul_(2)
        settle(device)
        x[i].fill_(2.0)
        settle(device)
    elif name == "lazy":
        x[i] = torch.nextafter(t, t)
    elif name == "lazy of another":
        x[i] = torch.nextafter(other, other)
    elif name in ("lazy rows", "lazy columns"):  # one graph, and two orders in memory
        out = torch.empty(n, n, device=device)
        x[i] = torch.nextafter(t, t, out=out) if name == "lazy rows" else torch.nextafter(t, t, out=out.t()).t()
    elif name == "lazy sum":
        x[i] = torch.nextafter(t + other, t)
    elif name == "result":
        x[i] = t * 2
    elif name == "settled result":
        x[i] = t * 2
        settle(device)
    elif name == "same":
        x[i] = other
    elif name == "view":
        x[i] = other.view(n, n) if other.is_contiguous() else other
    elif name == "turned view":
        x[i] = other.t()
    elif name in ("clone", "own clone"):  # on the device it shares the buffer with the other operand, or with no tensor
        settle(device)
        x[i] = (other if name == "clone" else data(n, 3, device)).clone()
        x[i].tolist()
    elif name in ("computed clone", "own computed clone"):
        x[3 - i] = torch.nextafter(other, other)
        x[i] = (x[3 - i] if name == "computed clone" else torch.nextafter(x[3 - i] + 1, t)).clone()
        settle(device)
        x[3 - i].tolist()
    elif name in ("part", "other part"):
        t[int(name == "part")] = 3.0
        settle(device)
    elif name == "loop":
        for k in range(2):
            t[k] = torch.nextafter(other[k], other[k])
    elif name == "written":
        t.mul_(2)
    elif name == "dirty":
        t.mul_(2)
        settle(device)
    elif name in ("replaced buffer", "replaced number"):
        x[i] = t if name == "replaced buffer" else torch.zeros(n, n, device=device)
        torch.nextafter(other, other, out=x[i])
    elif name == "reader":
        held.append(torch.nextafter(t, t))
    elif name == "queued reader":
        held.append(t * 4)
    elif name in ("sum beside", "product beside"):  # lazy values that contain the sum or the product of both operands
        value = t + other if name == "sum beside" else t * other
        held += [value, value * data(n, 3, device)]
        settle(device)
    elif name == "copy":
        settle(device)
        held.append(t.clone())
        held[-1].tolist()
    elif name in ("another dirty", "another result"):
        held.append(data(n, 1, device))
        if name == "another dirty":
            held[-1].mul_(2)
        else:
            held[-1] = held[-1] * 2
        settle(device)
    elif name == "another loop":
        held.append(data(n, 1, device))
        happen("loop", [t, held[-1], t], 1, [], device)
    elif name == "look":
        t.tolist()
    else:
        raise ValueError(f"no history {name!r}")


HISTORIES = (
    "columns", "turned", "offset", "number", "lazy", "result", "written", "dirty", "part", "clone", "reader", "copy",
)  # fmt: skip
"""Histories that the steps of any program may have."""


def apply(x: list[torch.Tensor], kind: str, i: int, j: int, k: int, number: float) -> None:
    """Run one call."""
    if kind == "add":
        x[i] = x[j] + x[k]
    elif kind == "scale":
        x[i] = x[j] * number
    elif kind == "product":
        x[i] = x[j] * x[k]
    elif kind == "index":  # computed by the queue, whose calls before read its old content
        index = (x[k][0] > 1).long()
        old = index * 2
        index.add_(1)
        x[i] = x[j].index_select(0, index) + old
    elif kind == "flip":
        x[i] = x[j].flip(0)
    elif kind == "head":
        x[i] = x[j][: int(number)] * 2
    elif kind == "next_rows_":  # rows of the same memory are refused
        x[i][1:].add_(x[j][:-1])
    elif kind == "rows":  # an index that the queue computes and the device checks
        x[i] = x[j].index_select(0, (x[k][0] > 1).long())
    elif kind == "ratio":
        x[i] = x[j].to(torch.int32) / 2
    elif kind == "row_":
        x[i][1].sub_(x[j][0] + 0)
    elif kind == "scale_":
        x[i].mul_(number)
    elif kind == "add_":
        x[i].add_(x[j] + 0)
    elif kind == "copy_":
        x[i].copy_(x[j] + 0)
    elif kind == "fill_":
        x[i].fill_(number)
    elif kind == "max_out":
        torch.maximum(x[j] + 0, x[k] + 0, out=x[i])
    else:
        raise ValueError(f"no call {kind!r}")


@contextmanager
def configured(setting: str) -> Iterator[None]:
    """Run the block under a setting of torch."""
    before = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    try:
        if setting == "float64":
            torch.set_default_dtype(torch.float64)
        elif setting == "deterministic":
            torch.use_deterministic_algorithms(True)
        with torch.set_grad_enabled(setting != "no_grad"):
            yield
    finally:
        torch.set_default_dtype(before[0])
        torch.use_deterministic_algorithms(before[1])


Difference = Callable[[Step, random.Random], tuple[Step, Step]]
"""Makes two steps that differ in one property from a drawn one."""


ALL = (PARAMETER, *OPERANDS)


def _history(
    name: str, instead: str = "", of: Sequence[int] = OPERANDS, hold: Sequence[tuple[int, ...]] = ()
) -> Difference:
    """Steps in which a tensor has the history `name`; in the first, it has the history `instead`.

    The tensor is drawn from the slots `of`, and the tensors that stay alive from `hold`.
    """

    def differ(step: Step, draw: random.Random) -> tuple[Step, Step]:
        i = draw.choice(of)
        step = replace(step, held=draw.choice(hold or ((), (i,), (RESULTS[0],))))
        first = replace(step, events=(*step.events, (instead, i))) if instead else step
        return first, replace(step, events=(*step.events, (name, i)))

    return differ


def _large(difference: Difference) -> Difference:
    """Steps over tensors that are written into the buffers that a call reads."""
    return lambda step, draw: difference(replace(step, side=64), draw)


def _reader(step: Step, draw: random.Random) -> tuple[Step, Step]:
    return tuple(replace(step, events=(*step.events, ("reader", i))) for i in (1, PARAMETER))  # type: ignore[return-value]


ALWAYS: tuple[Call, ...] = (("scale_", 1, 3, 2, 2.0), ("add", 3, 3, 1, 0.0))
"""Calls with an operand and a target to change."""


def _beside(step: Step, draw: random.Random) -> tuple[Step, Step]:
    """Steps that read the sum of both operands, beside lazy values that contain their product or their sum."""
    calls = (("add", RESULTS[0], *OPERANDS, 0.0),)
    step = replace(step, side=4, calls=calls, read=(RESULTS[0],))
    return tuple(replace(step, events=((f"{name} beside", 1),)) for name in ("product", "sum"))  # type: ignore[return-value]


def _changed(change: Callable[[Call, random.Random], Call]) -> Difference:
    """Steps that differ in one call."""

    def differ(step: Step, draw: random.Random) -> tuple[Step, Step]:
        step = replace(step, calls=(step.calls[0], *ALWAYS, *step.calls[1:]))
        changed = [i for i, call in enumerate(step.calls) if i and change(call, draw) != call]
        at = draw.choice(changed)
        return step, replace(step, calls=(*step.calls[:at], change(step.calls[at], draw), *step.calls[at + 1 :]))

    return differ


def _operand(call: Call, draw: random.Random) -> Call:
    return (*call[:3], 3 - call[3], call[4]) if call[0] == "add" and call[3] in OPERANDS else call


def _target(call: Call, draw: random.Random) -> Call:
    return (call[0], 3 - call[1], *call[2:]) if call[1] in OPERANDS else call


def _number(one: float, other: float) -> Difference:
    """Steps with a product by one number or the other."""

    def differ(step: Step, draw: random.Random) -> tuple[Step, Step]:
        target = draw.choice((*OPERANDS, PARAMETER))
        first, twin = (
            replace(step, calls=(("scale_", target, 1, 1, number), *step.calls), read=(PARAMETER, 1))
            for number in (one, other)
        )
        return first, twin

    return differ


def _changing(step: Step, draw: random.Random) -> tuple[Step, Step]:
    """Steps with a product by a number that differs from turn to turn, which becomes data."""
    calls = (("scale_", 1, 1, 1, CHANGING), *step.calls)
    return replace(step, calls=calls), replace(step, calls=(*calls, ("scale_", 2, 2, 2, 2.0)), read=(PARAMETER, 2))


def _kind(step: Step, draw: random.Random) -> tuple[Step, Step]:
    """Steps with a product or a sum."""
    first, twin = ((kind, RESULTS[1], 1, 2, 0.0) for kind in ("add", "product"))
    return tuple(replace(step, calls=(*step.calls, call), held=(RESULTS[1],)) for call in (first, twin))  # type: ignore[return-value]


def _rows(step: Step, draw: random.Random) -> tuple[Step, Step]:
    """Steps with an index that an earlier call reads and that a later call computes."""
    calls = (*step.calls, ("index", RESULTS[1], 1, 2, 0.0))
    return replace(step, calls=calls, read=(PARAMETER, RESULTS[1])), replace(step, calls=calls, held=(RESULTS[1],))


def _head(step: Step, draw: random.Random) -> tuple[Step, Step]:
    """Steps with a product of the first two or three rows."""
    heads = [("head", RESULTS[1], 1, 1, rows) for rows in (3.0, 2.0)]
    return tuple(replace(step, calls=(*step.calls, head), read=(PARAMETER, RESULTS[1])) for head in heads)  # type: ignore[return-value]


def _overlap(step: Step, draw: random.Random) -> tuple[Step, Step]:
    """Steps that add to rows those of another tensor, or of the same one, which torch refuses."""
    step = replace(step, events=(), read=(PARAMETER, 1))
    sums = [("next_rows_", 1, j, j, 0.0) for j in (2, 1)]
    return tuple(replace(step, calls=(*step.calls, add)) for add in sums)  # type: ignore[return-value]


def _held(step: Step, draw: random.Random) -> tuple[Step, Step]:
    return step, replace(step, held=(draw.choice((*RESULTS, *OPERANDS)),))


def _read(step: Step, draw: random.Random) -> tuple[Step, Step]:
    read = draw.choice(((PARAMETER, RESULTS[0]), (PARAMETER, 1), (1, RESULTS[1])))
    return replace(step, read=read), replace(step, read=read[::-1])


def _setting(name: str) -> Difference:
    """Steps under torch's usual settings and under another one; both divide integers, and read the result."""

    def differ(step: Step, draw: random.Random) -> tuple[Step, Step]:
        step = replace(step, calls=(*step.calls, ("ratio", RESULTS[1], 1, 1, 2.0)), read=(PARAMETER, RESULTS[1]))
        return step, replace(step, setting=name)

    return differ


DIFFERENCES: dict[str, Difference] = {
    "operand": _changed(_operand),
    "target": _changed(_target),
    "graph of a call": _kind,
    "rows": _rows,
    "rows of an operand": _head,
    "overlap": _overlap,
    "number": _number(2.0, 0.5),
    "changing number": _changing,
    "sign of zero": _number(0.0, -0.0),
    "infinity": _number(2.0, math.inf),
    "holder": _held,
    "read": _read,
    "default dtype": _setting("float64"),
    "deterministic": _setting("deterministic"),
    "grad mode": _setting("no_grad"),
    "dtype": _history("dtype"),
    "dtype of the buffer": _history("bits", hold=(RESULTS,)),
    "strides": _history("columns"),
    "memory order": _history("turned"),
    "memory order of a lazy value": _history("lazy columns", "lazy rows"),
    "offset": _history("offset"),
    "every second row": _history("second"),
    "size of the storage": _history("head", "number"),
    "number or buffer": _history("number"),
    "which number": _history("zero", "number"),
    "dtype of a number": _history("number of another dtype", "number"),
    "sign of a zero that fills": _history("negative zero", "zero"),
    "lazy or buffer": _history("lazy"),
    "buffer of a lazy value": _history("lazy of another", "lazy"),
    "graph of a lazy value": _history("lazy sum", "lazy"),
    "same tensor": _history("same"),
    "view": _history("view"),
    "turned view": _history("turned view"),
    "shared buffer": _history("clone", "own clone"),
    "shared computed buffer": _history("computed clone", "own computed clone"),
    "pending write": _history("part", of=ALL),
    "pending loop": _history("loop", of=ALL),
    "written": _history("written", of=ALL),
    "which pending write": _history("other part", "part"),
    "dirty": _history("dirty", "settled result", hold=(OPERANDS,)),
    "donor of a number": _large(_history("filled number", "filled buffer", of=(PARAMETER,))),
    "donor of a lazy value": _large(_history("replaced number", "replaced buffer", of=(PARAMETER,))),
    "reader": _history("reader", of=ALL),
    "buffer of a reader": _large(_reader),
    "stored value beside": _beside,
    "queued reader": _history("queued reader", of=ALL),
    "copy": _large(_history("copy", of=ALL)),
    "another dirty storage": _history("another dirty", "another result"),
    "another loop": _history("another loop"),
    "read before": _history("look", of=ALL),
}
