"""The attention kernels that CUDA has by names of their own, against attention by its formula."""

from __future__ import annotations

import math

import pytest
import torch

import conformance.backend

pytestmark = pytest.mark.tiny

B, ROWS, KEYS, HEADS, D = 2, 5, 6, 3, 4


def drawn(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def formula(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result (B, rows, heads, D) and logsumexp (B, heads, rows) of attention."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    scores = q @ k.transpose(-1, -2) / math.sqrt(query.size(-1))
    scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2), scores.logsumexp(-1)


@pytest.fixture
def inputs() -> list[torch.Tensor]:
    return [drawn(B, ROWS, HEADS, D), drawn(B, KEYS, HEADS, D, seed=1), drawn(B, KEYS, HEADS, D, seed=2)]


def flash(*operands: torch.Tensor, causal: bool = False, ends: tuple = (None, None), longest=(ROWS, KEYS)) -> tuple:
    return torch.ops.aten._flash_attention_forward(*operands, *ends, *longest, 0.0, causal, False)


def efficient(*operands: torch.Tensor, bias: torch.Tensor | None = None, mask_type: int = 0) -> tuple:
    return torch.ops.aten._efficient_attention_forward(*operands, bias, None, None, None, None, 0.0, mask_type, True)


class TestForward:
    def test_flash(self, inputs):
        out, logsumexp, *_ = flash(*(x.to("tiny") for x in inputs))
        expected, of_scores = formula(*inputs)
        torch.testing.assert_close(out.cpu(), expected)
        torch.testing.assert_close(logsumexp.cpu(), of_scores)

    def test_a_causal_mask_of_flash_ends_at_the_last_key(self, inputs):
        out, *_ = flash(*(x.to("tiny") for x in inputs), causal=True)
        mask = torch.ones(ROWS, KEYS, dtype=torch.bool).tril(KEYS - ROWS)
        torch.testing.assert_close(out.cpu(), formula(*inputs, mask)[0])

    def test_ragged_sequences(self):
        """Sequences of 3 and 5 rows lie behind each other."""
        rows = [drawn(8, HEADS, D, seed=seed) for seed in range(3)]
        ends = torch.tensor([0, 3, 8], dtype=torch.int32)
        out, *_ = flash(*(x.to("tiny") for x in rows), ends=(ends.to("tiny"), ends.to("tiny")), longest=(5, 5))
        parts = [formula(*(x[None, a:b] for x in rows))[0][0] for a, b in ((0, 3), (3, 8))]
        torch.testing.assert_close(out.cpu(), torch.cat(parts))

    def test_efficient_with_a_bias(self, inputs):
        bias = drawn(B, HEADS, ROWS, KEYS, seed=3)
        out, logsumexp, *_ = efficient(*(x.to("tiny") for x in inputs), bias=bias.to("tiny"))
        q, k, v = (x.transpose(1, 2) for x in inputs)
        scores = q @ k.transpose(-1, -2) / math.sqrt(D) + bias
        torch.testing.assert_close(out.cpu(), (scores.softmax(-1) @ v).transpose(1, 2))
        assert logsumexp.shape == (B, HEADS, 32)  # rounded up, as on CUDA
        torch.testing.assert_close(logsumexp.cpu()[..., :ROWS], scores.logsumexp(-1))

    @pytest.mark.parametrize(("mask_type", "diagonal"), [(1, 0), (2, KEYS - ROWS)])
    def test_causal_masks_of_efficient(self, inputs, mask_type, diagonal):
        out, *_ = efficient(*(x.to("tiny") for x in inputs), mask_type=mask_type)
        mask = torch.ones(ROWS, KEYS, dtype=torch.bool).tril(diagonal)
        torch.testing.assert_close(out.cpu(), formula(*inputs, mask)[0])

    def test_the_result_has_the_dtype_of_the_query(self, inputs):
        out, logsumexp, *_ = flash(*(x.half().to("tiny") for x in inputs))
        assert (out.dtype, logsumexp.dtype) == (torch.float16, torch.float32)


class TestBackward:
    @pytest.mark.parametrize("kernel", [flash, efficient])
    def test_the_gradients_are_those_of_the_formula(self, inputs, kernel):
        here = [x.clone().requires_grad_() for x in inputs]
        there = [x.to("tiny").requires_grad_() for x in inputs]
        cotangent = drawn(B, ROWS, HEADS, D, seed=4)
        formula(*here)[0].backward(cotangent)
        kernel(*there)[0].backward(cotangent.to("tiny"))
        for one, two in zip(there, here, strict=True):
            torch.testing.assert_close(one.grad.cpu(), two.grad)

    def test_dropout_of_the_gradient_is_that_of_the_result(self, inputs):
        """The mask is drawn again from the seed: with values of ones, a dropped weight has no gradient."""
        query, key, _ = (x.to("tiny") for x in inputs)
        value = torch.ones(B, KEYS, HEADS, D, device="tiny").requires_grad_()
        out = torch.ops.aten._flash_attention_forward(query, key, value, None, None, ROWS, KEYS, 0.5, False, False)[0]
        out.sum().backward()
        # Both are sums of the kept weights: over the keys, and over the rows.
        torch.testing.assert_close(value.grad.cpu().sum((1, 3)), out.detach().cpu().sum((1, 3)))


class TestRefused:
    def test_what_the_formula_does_not_have(self, inputs):
        operands = [x.to("tiny") for x in inputs]
        with pytest.raises(NotImplementedError, match="alibi_slopes"):
            torch.ops.aten._flash_attention_forward(
                *operands, None, None, ROWS, KEYS, 0.0, False, False, alibi_slopes=torch.ones(HEADS, device="tiny")
            )


class TestFlashForCpu:
    """The CPU's flash attention. logsumexp was formerly the weights, and the gradient was computed from them."""

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"is_causal": True, "scale": 0.3},
            {"attn_mask": drawn(B, HEADS, ROWS, KEYS, seed=4).masked_fill(torch.eye(ROWS, KEYS).bool(), -math.inf)},
            {"attn_mask": torch.ones(ROWS, KEYS).tril(-1).log()},  # the first query sees no key
        ],
    )
    def test_results_and_gradients_are_the_cpus(self, options: dict) -> None:
        """The results have the CPU's values and strides, and the gradients the CPU's values."""
        shapes = (B, HEADS, ROWS, D), (B, HEADS, KEYS, D), (B, HEADS, KEYS, D)
        results = []
        for device in ("cpu", "tiny"):
            operands = [drawn(*shape, seed=i).to(device).requires_grad_() for i, shape in enumerate(shapes)]
            rest = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
            out, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*operands, **rest)
            gradients = torch.autograd.grad(out.square().sum(), operands)
            results.append([out.detach(), logsumexp.detach(), *gradients])
        for expected, actual in zip(*results, strict=True):
            torch.testing.assert_close(actual.cpu(), expected, atol=1e-5, rtol=1e-5)
        assert [x.stride() for x in results[1][:2]] == [x.stride() for x in results[0][:2]]

    def test_dropout_is_refused(self) -> None:
        x = torch.ones(1, 1, 2, 4, device="tiny")
        with pytest.raises(RuntimeError, match="do not support dropout > 0"):
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x, 0.5)


class TestFusedLayers:
    """The fused layers that `torch.nn` calls in evaluation, against torch CPU's kernels."""

    PADDING = torch.tensor([[False] * ROWS, [False] * (ROWS - 2) + [True] * 2])
    MASKS = (
        (None, None),
        (torch.ones(ROWS, ROWS).triu(1).bool(), 0),
        (PADDING, 1),
        (torch.rand(B, HEADS, ROWS, ROWS, generator=torch.Generator().manual_seed(0)) > 0.8, 2),
    )
    WIDTH = HEADS * D

    def same(self, op, *args, **kwargs):
        def on_device(x):
            return x.to("tiny") if isinstance(x, torch.Tensor) else x

        with conformance.backend.no_fallback():
            got = op(*map(on_device, args), **kwargs)
            got = [x if x is None else x.cpu() for x in (got if isinstance(got, tuple) else (got,))]
        want = op(*args, **kwargs)
        want = want if isinstance(want, tuple) else (want,)
        torch.testing.assert_close(got, list(want), equal_nan=True)
        assert [x if x is None else x.stride() for x in got] == [x if x is None else x.stride() for x in want]

    def projections(self):
        shapes = (3 * self.WIDTH, self.WIDTH), (3 * self.WIDTH,), (self.WIDTH, self.WIDTH), (self.WIDTH,)
        return [drawn(*shape, seed=seed) for seed, shape in enumerate(shapes)]

    @pytest.mark.parametrize(("mask", "kind"), MASKS)
    def test_masked_softmax(self, mask, kind):
        if mask is not None:
            self.same(torch.ops.aten._masked_softmax, drawn(B, HEADS, ROWS, ROWS), mask, -1, kind)
        everything = torch.ones(B, ROWS, dtype=torch.bool)
        self.same(torch.ops.aten._masked_softmax, drawn(B, HEADS, ROWS, ROWS), everything, -1, 1)

    @pytest.mark.parametrize(("mask", "kind"), MASKS)
    @pytest.mark.parametrize("weights", [(False, False), (True, True), (True, False)])
    def test_multi_head_attention(self, mask, kind, weights):
        x = drawn(B, ROWS, self.WIDTH, seed=9)
        sizes = self.WIDTH, HEADS
        self.same(
            torch.ops.aten._native_multi_head_attention, x, x, x, *sizes, *self.projections(), mask, *weights, kind
        )

    @pytest.mark.parametrize(("mask", "kind"), MASKS)
    @pytest.mark.parametrize(("gelu", "norm_first"), [(False, False), (True, True)])
    def test_encoder_layer(self, mask, kind, gelu, norm_first):
        norms = [drawn(self.WIDTH, seed=seed) for seed in range(4)]
        feeds = [drawn(*shape) for shape in ((7, self.WIDTH), (7,), (self.WIDTH, 7), (self.WIDTH,))]
        x = drawn(B, ROWS, self.WIDTH, seed=9)
        self.same(
            torch.ops.aten._transformer_encoder_layer_fwd,
            *(x, self.WIDTH, HEADS, *self.projections(), gelu, norm_first, 1e-5, *norms, *feeds, mask, kind),
        )

    def test_a_layer_in_evaluation_does_not_leave_the_device(self):
        layer = torch.nn.TransformerEncoderLayer(self.WIDTH, HEADS, 7, batch_first=True).eval()
        x = drawn(B, ROWS, self.WIDTH)
        with torch.no_grad(), conformance.backend.no_fallback():
            want = layer(x, src_key_padding_mask=self.PADDING)
            got = layer.to("tiny")(x.to("tiny"), src_key_padding_mask=self.PADDING.to("tiny"))
            torch.testing.assert_close(got.cpu(), want)
