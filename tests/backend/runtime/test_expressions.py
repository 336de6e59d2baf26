"""Predicates and measures of lazy values."""

from __future__ import annotations

import weakref

import pytest
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

import conformance.backend  # noqa: F401
from conformance.backend.runtime import expressions


def buffer() -> UOp:
    """A buffer of four numbers, without memory."""
    return UOp.new_buffer("CPU", 4, dtypes.float32)


class TestReadBy:
    def test_buffers_of_shared_and_own_parts(self) -> None:
        """Each value reads the buffers under it, whichever value was asked first."""
        a, b, c = buffer(), buffer(), buffer()
        shared = a * 2 + b
        one, two = shared + 1, shared * c
        assert expressions.read_by(one) == {a, b}
        assert expressions.read_by(two) == {a, b, c}
        assert expressions.read_by(shared) == {a, b}

    def test_numbers_read_nothing(self) -> None:
        assert not expressions.read_by(UOp.const(1.0, dtypes.float32).expand((4,)) + 2)

    def test_a_buffer_reads_itself(self) -> None:
        a = buffer()
        assert expressions.read_by(a) == {a}

    def test_the_result_of_a_kernel_reads_the_kernel(self) -> None:
        """What a kernel has stored depends on that kernel, not only on its buffer."""
        a, b = buffer(), buffer()
        stored = a.after(a.store(b + 1))
        assert expressions.read_by(stored * 2) >= {a, b, stored}

    def test_a_known_value_is_walked_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The buffers of values over one graph are found without walking that graph again."""
        deep = buffer()
        for _ in range(50):
            deep = deep * 3 + 1
        expressions.read_by(deep)
        walked: list[UOp] = []
        toposort = UOp.toposort

        def count(self: UOp, *args: object, **kwargs: object) -> dict[UOp, None]:
            nodes = toposort(self, *args, **kwargs)  # type: ignore[arg-type]
            walked.extend(nodes)
            return nodes

        monkeypatch.setattr(UOp, "toposort", count)
        expressions.read_by(deep + 2)
        assert len(walked) < 10

    def test_asking_keeps_no_value_alive(self) -> None:
        a = buffer()
        stored = a.after(a.store(a + 1))
        value = stored * 2
        expressions.read_by(value)
        gone = [weakref.ref(x) for x in (value, stored, a)]
        del a, stored, value
        assert [reference() for reference in gone] == [None] * 3
