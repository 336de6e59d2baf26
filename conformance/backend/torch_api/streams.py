"""`torch.tiny.Stream` and `Event`, and `torch.Event(device="tiny")`.

Defines them and the functions of `torch.tiny` about streams.

The device runs everything in program order, so every stream is the same queue and waiting is never needed. Events only
measure time. For that, recording an event computes all earlier lazy values, which would otherwise be computed after the
second event.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from ..lazy import calls, flush
from ..lazy.storage import LAZY
from ..runtime import torch_compat
from .devices import device as device_context
from .devices import index_of, set_device
from .replacements import replace_on_first_use

_NativeEvent: Any = torch_compat.Event
_NativeStream: Any = torch_compat.Stream


def synchronize(device: Any = None) -> None:
    """Compute all storages that were written in place and are not yet computed."""
    index_of(device)
    flush.flush([], why="realize")


class Stream(_NativeStream):  # type: ignore[misc]
    """A stream of a tiny device; all of them are one queue."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        index = index_of(device)
        kind = torch_compat.DeviceType.PrivateUse1.value  # by default torch uses the current device of C++
        result: Stream = _NativeStream.__new__(cls, stream_id=0, device_index=index, device_type=kind)
        return result

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority: there is one."""
        return 0, 0

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, by default a new one, and return it."""
        event = Event(device=self.device) if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """No effect: all work before the event has run."""


class Event(_NativeEvent):  # type: ignore[misc]
    """A point in program order.

    With `enable_timing`, recording it computes all lazy values, and stores the time. It has the arguments of
    `torch.cuda.Event`, with `enable_timing` first.
    """

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False,
        *, device: Any = None,
    ) -> Event:  # fmt: skip
        if interprocess:
            raise RuntimeError("tiny: an event cannot be shared between processes, since the device is in each of them")
        result: Event = _NativeEvent.__new__(
            cls, device=torch.device("tiny", index_of(device)), enable_timing=enable_timing
        )
        result._timed, result._at = enable_timing, None
        return result

    _timed: bool
    _at: float | None

    def record(self, stream: Any = None) -> None:
        """Mark this point; `stream` may be any stream of the device."""
        if self._timed:
            calls.settle()
            flush.flush([s for s in list(LAZY.values()) if s.is_lazy()], why="event")
        self._at = time.perf_counter()

    def query(self) -> bool:
        """True: all work before this point has run."""
        return True

    def synchronize(self) -> None:
        """No effect: all work before this point has run."""

    def wait(self, stream: Any = None) -> None:
        """No effect: later work runs later on every stream."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`. Raises RuntimeError unless both measure time and are
        recorded.
        """
        if not isinstance(end_event, Event) or not (self._timed and end_event._timed):
            raise RuntimeError("tiny: elapsed_time needs two events that were made with enable_timing=True")
        if self._at is None or end_event._at is None:
            raise RuntimeError("tiny: elapsed_time needs two events that have been recorded")
        return 1000 * (end_event._at - self._at)


def _of_any_device(name: str, native: Any, ours: Any) -> Any:
    """A subclass of the C type that makes our class for tiny devices; `isinstance` and `issubclass` test for the C
    type.

    torch's own methods accept only the C type itself, so our classes have methods of their own.
    """

    class OfAnyDevice(type(native)):  # type: ignore[misc]
        def __call__(cls, device: Any = None, *args: Any, **kwargs: Any) -> Any:
            if cls is not result:
                return super().__call__(*(() if device is None else (device,)), *args, **kwargs)
            named = torch.device(device) if isinstance(device, (str, torch.device)) else None
            unnamed = device is None and not args and "stream_id" not in kwargs
            if unnamed or (named is not None and named.type == "tiny"):
                return ours(*args, device=named, **kwargs)
            return native(*(() if device is None else (device,)), *args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, native) if cls is result else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, native) if cls is result else super().__subclasscheck__(subclass)

    result: Any = OfAnyDevice(name, (native,), {"__module__": "torch", "__doc__": native.__doc__, "__slots__": ()})
    return result


def install() -> None:
    """Make `torch.Event` and `torch.Stream` accept tiny devices, once the device is used."""
    replace_on_first_use("torch:Event", lambda native: _of_any_device("Event", native, Event))
    replace_on_first_use("torch:Stream", lambda native: _of_any_device("Stream", native, Stream))


def current_stream(device: Any = None) -> Stream:
    """The current stream, which is the only one."""
    return Stream(device)


def default_stream(device: Any = None) -> Stream:
    """The default stream, which is the only one."""
    return Stream(device)


def set_stream(stream: Any) -> None:
    """Make a stream's device the current one; None changes nothing."""
    if stream is not None:
        set_device(stream.device_index)


class StreamContext(device_context):
    """Context manager: within it a stream is the current one, which changes only the current device."""

    def __init__(self, stream: Any) -> None:
        super().__init__(None if stream is None else stream.device_index)
        self.stream = stream


def stream(stream: Any) -> StreamContext:
    """Context manager: within it this stream is the current one, which changes only the current device."""
    return StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """False: there are no graphs that capture streams; `torch.compile` records graphs."""
    return False


PUBLIC = (
    synchronize, Stream, Event, current_stream, default_stream, set_stream, stream, StreamContext,
    is_current_stream_capturing,
)  # fmt: skip
