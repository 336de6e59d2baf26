"""Models of the `transformers` package in small random configurations, trained on tiny as on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded: configurations are here, weights are random
transformers = pytest.importorskip("transformers", reason="the extra `clients` is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VOCABULARY = 32
# Token numbers that the vocabulary has; the packages' defaults lie far outside it.
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=8, n_embd=8, n_layer=2, n_head=2, **TOKENS)
    return transformers.GPT2LMHeadModel(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=8, **SIZES, **TOKENS)
    return transformers.BertForMaskedLM(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=8, num_key_value_heads=1, **SIZES, **TOKENS
    )
    return transformers.LlamaForCausalLM(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


@pytest.mark.parametrize(("make", "lr"), [(gpt2, 0.1), (bert, 0.1), (llama, 0.1), (t5, 0.001)])
def test_language_model(agree: Callable[..., None], make: Callable[[], nn.Module], lr: float) -> None:
    """Next, masked or translated tokens: embeddings, attention, normalization, cross-entropy with ignored labels."""

    def loss(model: Any, tokens: Tensor, labels: Tensor) -> Tensor:
        return model(input_ids=tokens, labels=labels).loss

    tokens = torch.randint(3, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    labels[1, 4:] = -100
    agree(make, loss, (tokens, labels), lr=lr)


def vit() -> nn.Module:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=8, patch_size=4, num_labels=3, **SIZES)
    )


def resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3
    )
    return transformers.ResNetForImageClassification(config)


@pytest.mark.parametrize(("make", "size"), [(vit, 8), (resnet, 16)])
def test_image_classifier(agree: Callable[..., None], make: Callable[[], nn.Module], size: int) -> None:
    """Patches or convolutions, batch normalization and pooling, down to three classes."""

    def loss(model: Any, pixels: Tensor, labels: Tensor) -> Tensor:
        return model(pixel_values=pixels, labels=labels).loss

    pixels = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    agree(make, loss, (pixels, torch.tensor([0, 1, 2, 0])), lr=0.01)
