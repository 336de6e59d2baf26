"""torch.nn's recurrent and attention modules, trained on tiny as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: nn.LSTM(5, 6, num_layers=2, batch_first=True, bidirectional=True), id="LSTM"),
        pytest.param(lambda: nn.GRU(5, 6, num_layers=2, dropout=0.2), id="GRU"),
        pytest.param(lambda: nn.RNN(5, 6), id="RNN"),
    ],
)
def test_recurrent(agree: Callable[..., None], make: Callable[[], nn.Module]) -> None:
    """Recurrent modules train on their outputs and their last states."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        output, last = model(x)
        return output.square().mean() + sum(state.sin().mean() for state in (last if type(last) is tuple else (last,)))

    agree(make, loss, (drawn(3, 4, 5),))


def test_attention(agree: Callable[..., None]) -> None:
    """MultiheadAttention trains with a causal mask and a padding mask, and with its averaged weights."""

    def loss(model: nn.Module, x: Tensor, causal: Tensor, padding: Tensor) -> Tensor:
        output, weights = model(x, x, x, attn_mask=causal, key_padding_mask=padding)
        return output.square().mean() + weights.square().sum()

    causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False] * 4, [False, False, False, True]])
    agree(lambda: nn.MultiheadAttention(8, 2, batch_first=True), loss, (drawn(2, 4, 8), causal, padding))


def test_transformer(agree: Callable[..., None]) -> None:
    """An encoder and a decoder train with dropout, cross-attention and a causal mask."""

    def make() -> nn.Module:
        return nn.Transformer(
            8, 2, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=16, dropout=0.1, batch_first=True
        )

    def loss(model: Any, source: Tensor, wanted: Tensor, causal: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(source, wanted, tgt_mask=causal, tgt_is_causal=True), wanted)

    causal = nn.Transformer.generate_square_subsequent_mask(3)
    agree(make, loss, (drawn(2, 4, 8), drawn(2, 3, 8), causal))
