"""New contents stored in the buffers of old ones: memory, order, and readers that must not see the store."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from conformance import programs
from conformance.backend import kernels
from conformance.backend.lazy import flush, storage
from conformance.backend.lazy.storage import lazy_storage
from conformance.backend.runtime import replay, scheduler
from conformance.engine.loading import load_target
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Step, tensor

QUIET = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow donor buffers of any size."""
    monkeypatch.setattr(storage, "DONOR_BYTES", 0)


def memory_of(t: torch.Tensor) -> int:
    """Return the identity of a realized tensor's buffer."""
    lazy = lazy_storage(t)
    flush.flush([lazy])
    return id(flush.flat(lazy).base.buffer)


def held(*numbers: Sequence[float]) -> list[torch.Tensor]:
    """Return realized tensors on the device."""
    tensors = [torch.tensor(x).to("tiny") for x in numbers]
    for t in tensors:
        memory_of(t)
    return tensors


def test_a_step_of_momentum() -> None:
    """Parameter and moment keep their buffers, with two kernels both in a new schedule and in a cached one."""
    m, p, g = held([0.0, 0.0], [1.0, 2.0], [0.5, -1.0])
    m2, p2, g2 = (t.cpu() for t in (m, p, g))
    places = memory_of(m), memory_of(p)
    for _ in range(4):
        for moment, parameter, gradient in ((m, p, g), (m2, p2, g2)):
            moment.mul_(0.9).add_(gradient)
            parameter.sub_(moment * 0.1)
        with kernels.count() as counted:
            torch.testing.assert_close(p.cpu(), p2)
        assert counted.kernels == 2
        torch.testing.assert_close(m.cpu(), m2)
        assert (memory_of(m), memory_of(p)) == places


def test_a_lazy_reader_keeps_what_it_read() -> None:
    """The store does not change a value computed from the old content, nor a copy that shares the buffer."""
    (a,) = held([1.0, 2.0, 3.0])
    doubled, copy, place = a * 2, a.clone(), memory_of(a)
    a.add_(1)
    assert a.tolist() == [2, 3, 4]
    assert memory_of(a) != place
    assert (doubled.tolist(), copy.tolist()) == ([2, 4, 6], [1, 2, 3])


def test_a_reader_of_the_new_content() -> None:
    """A value computed from the new content reads that content from the buffer later."""
    (a,) = held([1.0, 2.0, 3.0])
    place = memory_of(a)
    a.mul_(3)
    later = a + 1
    assert a.tolist() == [3, 6, 9]
    assert memory_of(a) == place
    assert later.tolist() == [4, 7, 10]


@pytest.mark.parametrize("way", [lambda a: a.flip(0), lambda a: a.roll(1), lambda a: a.cumsum(0), lambda a: a + a[1]])
def test_elements_read_elsewhere(way) -> None:
    """A kernel that reads elements at other positions must not write to its input."""
    (a,) = held([1.0, 2.0, 4.0, 8.0])
    expected = way(a.cpu())
    a.copy_(way(a))
    assert a.tolist() == expected.tolist()


def test_two_that_swap() -> None:
    """Two buffers exchange their contents correctly, although neither can be written first."""
    a, b = held([1.0, 2.0], [3.0, 4.0])
    x, y = a + 0.5, b + 0.5
    a.copy_(y)
    b.copy_(x)
    assert (a.tolist(), b.tolist()) == ([3.5, 4.5], [1.5, 2.5])


@pytest.mark.usefixtures("sigint_heeded")
def test_ctrl_c_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C waits until the step ends. Formerly an interrupt between two kernels left overwritten contents, and the
    step was computed again from them."""
    m, p, g = held([0.0, 0.0], [1.0, 2.0], [0.5, -1.0])

    def step() -> None:
        m.mul_(0.9).add_(g)
        p.sub_(m * 0.1)
        p.cpu()

    for _ in range(3):
        step()
    run = replay.Replay.run

    def interrupted(self: replay.Replay, *args: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return run(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(replay.Replay, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        step()
    monkeypatch.undo()
    m2, p2 = torch.zeros(2), torch.tensor([1.0, 2.0])
    for _ in range(4):
        m2.mul_(0.9).add_(torch.tensor([0.5, -1.0]))
        p2.sub_(m2 * 0.1)
    torch.testing.assert_close((m.cpu(), p.cpu()), (m2, p2))


def test_an_error_after_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that was stored before a run fails is the content. It is not computed from itself a second time."""
    (a,) = held([1.0, 2.0])
    realize = scheduler.realize

    def failing(*args: object) -> object:
        realize(*args)  # type: ignore[arg-type]
        raise MemoryError

    monkeypatch.setattr(scheduler, "realize", failing)
    a.add_(1)
    with pytest.raises(MemoryError):
        a.cpu()
    monkeypatch.undo()
    assert a.tolist() == [2, 3]


def test_a_part_that_a_scan_makes_contiguous() -> None:
    """Regression test: the scan reads its element through a view of the buffer, so the store of the write ran before
    `neg` had read the buffer. With the usual size of a donor, a view of 16 KB was enough."""
    steps = (
        Step("cumsum", (tensor("a"), 0), out=("b",)),
        Step("unfold", (tensor("a"), 0, 1, 1), out=("e",)),
        Step("neg", (tensor("a"),), out=("f",)),
        Step("fill_", (tensor("e"), 1)),
    )
    program = Program((Storage("float32", 4096),), (Input("a", 0, "float32", (), ()),), steps)
    verdict = judge_program(program, load_target("tiny"))
    assert not verdict.mismatches, "\n".join(map(str, verdict.mismatches))


@QUIET
@given(programs(steps=(2, 8)))
def test_drawn_programs(program: Program) -> None:
    """Random programs of views and writes are right when every buffer may be a donor."""
    verdict = judge_program(program, load_target("tiny"))
    assert not verdict.mismatches, "\n".join(map(str, verdict.mismatches))
