"""Streams and events. `elapsed_time` and `synchronize` of an event formerly raised "Backend doesn't support"."""

from __future__ import annotations

import pytest
import torch

import conformance.backend as backend


class TestEvent:
    """`torch.Event(device="tiny")` and `torch.tiny.Event`."""

    @pytest.mark.parametrize("make", [lambda **k: torch.Event(device="tiny", **k), torch.tiny.Event])
    def test_what_was_asked_for_between_two_events_is_timed(self, make: type) -> None:
        """Calls between two events are computed and timed between them. A lazy device would compute them after both."""
        x = torch.rand(64, 64).to("tiny")
        start, end = make(enable_timing=True), make(enable_timing=True)
        start.record()
        before = backend.stats()["kernels"]
        y = x @ x
        end.record()
        assert backend.stats()["kernels"] > before
        end.synchronize()
        assert end.query()
        assert start.elapsed_time(end) > 0
        assert end.elapsed_time(start) < 0
        del y

    def test_an_event_without_timing_computes_nothing(self) -> None:
        y = torch.ones(3).to("tiny") * 3.5
        before = backend.stats()["kernels"]
        torch.Event(device="tiny").record()
        assert backend.stats()["kernels"] == before
        del y

    def test_elapsed_time_of_what_takes_none(self) -> None:
        event = torch.tiny.Event()
        event.record()
        with pytest.raises(RuntimeError, match="enable_timing=True"):
            event.elapsed_time(event)
        timed = torch.tiny.Event(enable_timing=True)
        with pytest.raises(RuntimeError, match="have been recorded"):
            timed.elapsed_time(timed)

    def test_timing_is_asked_for_first(self) -> None:
        """The first argument is `enable_timing`, as for torch.cuda.Event. It was formerly treated as a device."""
        start, end = torch.tiny.Event(True), torch.tiny.Event(True, False, False)
        start.record()
        end.record()
        assert start.elapsed_time(end) >= 0
        assert isinstance(torch.Event("tiny:0"), torch.tiny.Event)
        with pytest.raises(RuntimeError, match="no device tiny:5"):
            torch.tiny.Event(device="tiny:5")

    def test_events_of_other_devices_are_torchs(self) -> None:
        assert torch.Event(device="cpu").device == torch.device("cpu")
        assert isinstance(torch.tiny.Event(), torch.Event)


class TestStream:
    """All streams are one queue."""

    def test_streams_wait_record_and_synchronize(self) -> None:
        one, other = torch.Stream(device="tiny"), torch.tiny.Stream()
        with one:
            y = torch.ones(3, device="tiny") + 1
        event = one.record_event()
        other.wait_event(event)
        other.wait_stream(one)
        with torch.tiny.stream(other):
            z = y * 2
        other.synchronize()
        assert other.query()
        assert event.query()
        z.record_stream(other)  # formerly a fallback, and the CPU has no record_stream
        assert z.tolist() == [4.0] * 3

    def test_the_current_stream(self) -> None:
        """The current stream of torch.accelerator records an event of tiny. It formerly could not."""
        stream = torch.accelerator.current_stream()
        assert stream == torch.tiny.current_stream() == torch.tiny.default_stream()
        assert isinstance(stream, torch.Stream)
        assert stream.record_event(torch.tiny.Event()).query()
        torch.accelerator.set_stream(stream)

    def test_a_class_derived_from_torchs(self) -> None:
        """A class derived from torch.Stream creates its own instances. The device replaces torch.Stream by a class that
        creates tiny's streams."""

        class Mine(torch.Stream):
            pass

        assert type(Mine(device="tiny")) is Mine
        assert not isinstance(torch.tiny.Stream(), Mine)
