"""Messages on stderr during a long first compilation, which formerly looked like a hang."""

from __future__ import annotations

import contextlib
import io
import random

import pytest
import torch

import conformance.backend  # noqa: F401 - registers the device
import conformance.backend as backend
from conformance.backend.runtime import program_cache, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(seconds: list[float], stream: io.StringIO) -> list[str]:
    """Return the lines on stderr while kernels compile for these times in seconds."""
    counted = progress.Progress()
    with contextlib.redirect_stderr(stream):
        for time in seconds:
            counted.add(time)
    return stream.getvalue().splitlines()


@pytest.fixture(autouse=True)
def _not_turned_off(monkeypatch):
    monkeypatch.delenv(progress.SETTING, raising=False)


def test_lines_come_as_the_time_doubles():
    """Lines appear at 5, 10 and 20 seconds, with the totals since the process started."""
    lines = said([1.0] * 22, Terminal())
    assert [line.split(",")[0] for line in lines] == [f"tiny: {n} kernels compiled in {n} s" for n in (5, 10, 20)]


def test_none_below_five_seconds():
    assert said([4.9], Terminal()) == []


def test_none_where_it_is_turned_off(monkeypatch):
    monkeypatch.setenv(progress.SETTING, "0")
    assert said([100], Terminal()) == []


def test_none_where_nobody_looks():
    """A log file or a pipe gets no lines."""
    assert said([100], io.StringIO()) == []


def test_a_fresh_kernel_is_told_of(monkeypatch):
    """A new kernel is counted, and a kernel compiled before is not."""
    backend.reset_state()  # a number that has changed before is data, and its kernel is old
    x, number = torch.arange(5.0).to("tiny"), random.random()
    x.sum().item()  # the device compiles some kernels when it is opened
    counted = progress.Progress()
    monkeypatch.setattr(program_cache, "PROGRESS", counted)
    (x * number).sum().item()
    assert counted.kernels == 1
    assert counted.seconds > 0
    (x * number).sum().item()
    assert counted.kernels == 1
