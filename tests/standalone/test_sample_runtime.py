"""Samples of op_db in saved scripts."""

from __future__ import annotations

import pytest
import torch

from conformance.standalone.sample_runtime import moved


class TestMoved:
    @pytest.mark.parametrize("layout", ["", "gaps", "offset", "transposed"])
    def test_each_tensor_keeps_its_values(self, layout: str) -> None:
        """Regression test: the storage of one laid-out tensor was freed, and the next tensor, whose storage got the
        same address, received its values."""
        moves = moved({str(at): torch.tensor(float(at)) for at in range(100)}, "cpu", layout)
        assert [float(move) for move in moves.values()] == [*map(float, range(100))]

    def test_a_shared_storage_stays_shared(self) -> None:
        base = torch.arange(4.0)
        moves = moved({"a": base[:2], "b": base[1:]}, "cpu")
        moves["a"][1] = 9
        assert float(moves["b"][0]) == 9
        assert base.tolist() == [0, 1, 2, 3]
