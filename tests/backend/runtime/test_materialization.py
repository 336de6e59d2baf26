"""Parts of a graph that are materialized: their readers and their lifetime."""

from __future__ import annotations

import gc

import pytest
import torch
from tinygrad.helpers import GlobalCounters
from torch import nn

from conformance.backend import kernels
from conformance.backend.lazy import flush
from conformance.backend.lazy.storage import lazy_storage
from conformance.backend.runtime import materialization


def test_all_read_what_is_stored_for_one() -> None:
    """All readers use the stored value of a product. Formerly earlier holders of the value computed it again."""
    x, w = torch.randn(64, 64).to("tiny"), torch.randn(64, 64).to("tiny")
    with kernels.count() as k:
        p = torch.sinh(x @ w)  # stored by the next product
        torch.cat([p @ w, p.t() * 3]).sum().item()
    assert k.kernels == 3  # formerly 4: the sum of products under the sinh was stored too, for its two readers
    first = lazy_storage(torch.sinh(x)).base_value()
    values, new = materialization.read_by_all([materialization.materialize(first), first * 3])
    assert values[1].src[0] is values[0]
    assert not any(node is first for node in new)  # the part itself is computed as before


def test_a_value_is_read_from_its_part_within_another() -> None:
    """If one part is inside the value of another, both readers of the inner value read it as a part."""
    a = flush.flat(lazy_storage(torch.randn(8).to("tiny")))
    inner = a * 2
    outer = materialization.materialize(materialization.materialize(inner) + 1)
    (one, two), _ = materialization.read_by_all([outer * inner, inner])
    assert two is materialization.materialize(inner)
    assert set(one.src) == {outer, two}


class TestKeeping:
    """Values that a schedule computes too, because they would otherwise keep much larger parts alive."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(materialization, "KEPT_BYTES", 1 << 10)

    def test_a_sum_that_the_graph_holds(self) -> None:
        """A small sum inside the graph is computed with it. Values outside the graph stay lazy."""
        a = flush.flat(lazy_storage(torch.randn(1 << 10).to("tiny")))
        part = materialization.materialize(a.exp())
        total = (part * 2).sum()
        assert materialization.computed_along([total + 1], [total, (part * 3).sum(), a.sum()]) == [0]

    def test_not_one_as_large_as_its_part(self) -> None:
        """A value as large as its part stays lazy, because keeping the part costs no more."""
        a = flush.flat(lazy_storage(torch.randn(1 << 10).to("tiny")))
        value = materialization.materialize(a.exp()) * 2
        assert materialization.computed_along([value + 1], [value]) == []

    def test_not_a_part_itself(self) -> None:
        """A part itself stays lazy. layer_norm keeps a part for its gradient: the fuzzer found a KeyError."""
        a = flush.flat(lazy_storage(torch.randn(1 << 10).to("tiny")))
        part = materialization.materialize(a.exp())
        assert materialization.computed_along([part * 2], [part]) == []
        x = torch.arange(3.0).to("tiny").requires_grad_()
        y = nn.functional.layer_norm(x, [3])
        torch.testing.assert_close(y.cpu(), nn.functional.layer_norm(torch.arange(3.0), [3]))

    @pytest.mark.slow
    def test_gradients_hold_no_activations(self) -> None:
        """Gradients keep no activations. Formerly lazy gradients kept all intermediate values of the step: twice its
        memory."""
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).to("tiny")
        x = torch.randn(256, 8).to("tiny")
        optimizer = torch.optim.Adam(net.parameters())
        held = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()
            gc.collect()
            held.append(GlobalCounters.mem_used)
        parameters = sum(p.nbytes for p in net.parameters())
        assert held[2] - held[1] < parameters
        before = GlobalCounters.mem_used
        gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        optimizer.zero_grad()
        gc.collect()
        assert before - GlobalCounters.mem_used <= 2 * parameters
        assert all(g.isfinite().all() for g in gradients)
