"""Decompositions of the attention kernels that CUDA has by names of their own, and of their gradients; and of the fused
layers that `torch.nn` calls in evaluation.

`_flash_attention_forward` and `_efficient_attention_forward` compute the same two matrix products. A causal mask, a
window and the lengths of ragged sequences become one boolean mask of (sequences, queries, keys). The dropout mask is a
hash of a seed and of the position, so the backward pass recomputes it instead of storing it.

Causal masks and windows of flash attention end at the last key (FlashAttention's README); those of efficient attention
follow its mask type. `scaled_dot_product_attention` does not use these kernels on this device.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ..dispatch.registry import decomposition

LSE_ALIGNMENT = 32  # efficient attention pads the queries of its logsumexp to a multiple of this, with inf
UPPER_LEFT, LOWER_RIGHT = 1, 2  # where the diagonal of efficient attention's causal masks begins, by its mask type
BITS = 24  # of a uniform number that dropout compares


class Sequences(NamedTuple):
    """Rows of each ragged sequence in a tensor of (rows, heads, D)."""

    place: torch.Tensor  # int64 (sequences, longest): the row; any row behind the end of a sequence
    owner: torch.Tensor  # int64 (rows,): the place of a row in (sequences * longest)

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """(sequences, longest, heads, D) of (rows, heads, D)."""
        return rows.index_select(0, self.place.flatten()).unflatten(0, self.place.shape)

    def ragged(self, padded: torch.Tensor) -> torch.Tensor:
        """(rows, ...) of (sequences, longest, ...)."""
        return padded.flatten(0, 1).index_select(0, self.owner)


def _sequences(ends: torch.Tensor, rows: int, longest: int) -> Sequences:
    """The rows for offsets (sequences + 1,). The last offset is the number of rows that belong to a sequence."""
    ends = ends.long()
    place = ends[:-1, None] + torch.arange(longest, device=ends.device)
    row = torch.arange(rows, device=ends.device)
    # Rows after the last sequence belong to no sequence; they are treated as rows of the last one.
    owner = torch.bucketize(row, ends[1:], right=True).clamp(max=ends.numel() - 2)
    inside = (row - ends.index_select(0, owner)).clamp(0, longest - 1)
    return Sequences(place.clamp(max=rows - 1), owner * longest + inside)


class Problem:
    """One call's queries, keys and values, in (B, heads, rows, D) of the dtype in which it is computed."""

    def __init__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float | None,
        ends: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None), longest: tuple[int, int] = (0, 0),
        lengths: torch.Tensor | None = None, bias: torch.Tensor | None = None, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        """`query` (B, rows, heads, D), or (rows, heads, D) where `ends` gives offsets; `lengths` (B,): keys that count
        of each sequence; `bias` is added to the scores (B, heads, queries, keys)."""
        self.inputs = (query, key, value)
        self.dtype = torch.promote_types(query.dtype, torch.float32)
        self.rows_of_queries, self.rows_of_keys = (
            None if end is None else _sequences(end, x.size(0), most)
            for end, x, most in zip(ends, (query, key), longest, strict=True)
        )
        self.group = query.size(-2) // max(key.size(-2), 1)  # queries' heads to each head of the keys
        self.query = self._heads_first(query, self.rows_of_queries)
        self.key, self.value = (
            self._heads_first(x, self.rows_of_keys).repeat_interleave(self.group, 1) for x in (key, value)
        )
        self.scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
        self.dropout = dropout
        self.bias = None if bias is None else bias.to(self.dtype)
        self.counts = (self._counts(ends[0], self.query), self._counts(ends[1], self.key))
        if lengths is not None:
            self.counts = (self.counts[0], lengths.long().view(-1, 1, 1))

    def _heads_first(self, x: torch.Tensor, rows: Sequences | None) -> torch.Tensor:
        return (x if rows is None else rows.padded(x)).transpose(1, 2).to(self.dtype)

    def _counts(self, ends: torch.Tensor | None, padded: torch.Tensor) -> torch.Tensor:
        """(sequences or 1, 1, 1): rows that there are."""
        if ends is None:
            return torch.full((1, 1, 1), padded.size(-2), device=padded.device)
        return ends.long().diff().view(-1, 1, 1)

    def seen(self, before: int | None, after: int | None, lower_right: bool = True) -> torch.Tensor:
        """(sequences or 1, 1, queries, keys): which keys a query sees, of those up to so many `before` and `after` its
        own place (None: all), which counts from the first key or so that the last query is at the last one."""
        queries, keys = self.counts
        i = torch.arange(self.query.size(-2), device=self.query.device).view(-1, 1)
        j = torch.arange(self.key.size(-2), device=self.query.device)
        seen = (i < queries) & (j < keys)
        at = i + (keys - queries) if lower_right else i
        if before is not None:
            seen = seen & (j >= at - before)
        if after is not None:
            seen = seen & (j <= at + after)
        return seen.unsqueeze(1)

    def scores(self, seen: torch.Tensor) -> torch.Tensor:
        """(B, heads, queries, keys): -inf where a query does not see the key."""
        scores = self.query @ self.key.transpose(-1, -2) * self.scale
        if self.bias is not None:
            scores = scores + self.bias
        return scores.masked_fill(seen.logical_not(), -math.inf)

    def kept(self, seed: torch.Tensor) -> torch.Tensor | float:
        """What weights are multiplied with by dropout: 0, or what keeps their mean; the same for the same seed."""
        if not self.dropout:
            return 1.0
        shape = (*self.query.shape[:3], self.key.size(-2))
        uniform = _hashed(seed.view(torch.int64), math.prod(shape)).view(shape)
        below = round((1 - self.dropout) * (1 << BITS))
        return (uniform < below).to(self.dtype) / (1 - self.dropout if self.dropout < 1 else 1)

    def forward(self, seen: torch.Tensor, seed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """((B, queries, heads, D of the values), logsumexp (B, heads, queries)); 0 and inf where nothing is seen."""
        scores = self.scores(seen)
        blind = seen.any(-1, keepdim=True).logical_not()
        highest = scores.amax(-1, keepdim=True).masked_fill(blind, 0.0)
        weights = (scores - highest).exp()
        total = weights.sum(-1, keepdim=True)
        out = (weights * self.kept(seed)) @ self.value / total.masked_fill(blind, 1.0)
        logsumexp = (highest + total.log()).masked_fill(blind, math.inf)
        return out.transpose(1, 2), logsumexp.squeeze(-1)

    def backward(
        self, seen: torch.Tensor, seed: torch.Tensor, grad: torch.Tensor, out: torch.Tensor, logsumexp: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of the query, key and value, as they were given, and of the scores; `grad` and `out` are (B,
        queries, heads, D), or ragged as the query; `logsumexp` is (B, heads, queries)."""
        grad, out = (self._heads_first(x, self.rows_of_queries) for x in (grad, out))
        # Of rows that a mask hides whole logsumexp is inf, and so the weights are 0.
        weights = (self.scores(seen) - logsumexp.to(self.dtype).unsqueeze(-1)).exp()
        kept = self.kept(seed)
        of_value = (weights * kept).transpose(-1, -2) @ grad
        of_weights = (grad @ self.value.transpose(-1, -2)) * kept
        of_scores = weights * (of_weights - (grad * out).sum(-1, keepdim=True))
        of_query = of_scores @ self.key * self.scale
        of_key = of_scores.transpose(-1, -2) @ self.query * self.scale
        grads = (
            self._in_form_of(of_query, self.inputs[0], self.rows_of_queries, 1),
            self._in_form_of(of_key, self.inputs[1], self.rows_of_keys, self.group),
            self._in_form_of(of_value, self.inputs[2], self.rows_of_keys, self.group),
        )
        return *grads, of_scores

    @staticmethod
    def _in_form_of(grad: torch.Tensor, like: torch.Tensor, rows: Sequences | None, group: int) -> torch.Tensor:
        """A gradient (B, heads, rows, D) in the shape, dtype and strides of its tensor."""
        if group > 1:
            grad = grad.unflatten(1, (-1, group)).sum(2)
        grad = grad.transpose(1, 2)
        return torch.empty_like(like).copy_(grad if rows is None else rows.ragged(grad))


def _hashed(seed: torch.Tensor, count: int) -> torch.Tensor:
    """int64 (count,): uniform numbers of BITS bits, by the finalizer of splitmix64 (Steele, Lea and Flood, 2014)."""
    x = (torch.arange(1, count + 1, device=seed.device) * -0x61C8864680B583EB) + seed
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15
    return _shifted(x ^ _shifted(x, 31), 64 - BITS)


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """int64 shifted right with zeros coming in."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _seed(x: torch.Tensor, dropout: float) -> torch.Tensor:
    """An int64 scalar on the device, drawn from its generator where there is dropout."""
    if not dropout:
        return torch.zeros((), dtype=torch.int64, device=x.device)
    return torch.randint(1 << 62, (), dtype=torch.int64, device=x.device)


def _unknown(**options: object) -> None:
    """Raise NotImplementedError that names the arguments which are not supported."""
    if named := [name for name, value in options.items() if value is not None and value is not False]:
        raise NotImplementedError(f"tiny: attention is not computed with {', '.join(named)}; leave it out")


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    scale: float | None, before: int | None, after: int | None, lengths: torch.Tensor | None,
) -> tuple[Problem, torch.Tensor]:  # fmt: skip
    """The problem, and what its queries see."""
    problem = Problem(
        query, key, value, scale=scale, ends=(cum_seq_q, cum_seq_k), longest=(max_q, max_k), lengths=lengths,
        dropout=dropout_p,
    )  # fmt: skip
    before, after = (None if side is None or side < 0 else side for side in (before, after))
    return problem, problem.seen(before, 0 if is_causal else after)


@decomposition("_flash_attention_forward")
def flash_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    return_debug_mask: bool, *, scale: float | None = None, window_size_left: int | None = None,
    window_size_right: int | None = None, seqused_k: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None, block_table: torch.Tensor | None = None, num_splits: int | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Of (B, rows, heads, D): the result as the query, logsumexp (B, heads, queries), the seed (uint64, 2), two of no
    meaning. Of ragged sequences (rows, heads, D), with offsets, logsumexp is (heads, rows). A causal mask ends at the
    last key. NotImplementedError for slopes, block tables and the debug mask."""
    _unknown(alibi_slopes=alibi_slopes, block_table=block_table, return_debug_mask=return_debug_mask)
    problem, seen = _flash(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, scale,
                           window_size_left, window_size_right, seqused_k)  # fmt: skip
    seed = _seed(query, dropout_p)
    out, logsumexp = problem.forward(seen, seed)
    if (rows := problem.rows_of_queries) is not None:
        out, logsumexp = rows.ragged(out), rows.ragged(logsumexp.transpose(1, 2)).t().contiguous()
    state = torch.stack((seed, torch.zeros_like(seed))).view(torch.uint64)
    unused = torch.zeros((), dtype=torch.int64, device=query.device).view(torch.uint64)
    result = torch.empty_like(query).copy_(out)
    return result, logsumexp.float(), state, unused, query.new_empty(0)


@decomposition("_flash_attention_backward")
def flash_backward(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
    logsumexp: torch.Tensor, cum_seq_q: torch.Tensor | None, cum_seq_k: torch.Tensor | None, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, rng_state: torch.Tensor, unused: torch.Tensor, *, scale: float | None = None,
    window_size_left: int | None = None, window_size_right: int | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The gradients of the query, key and value."""
    problem, seen = _flash(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, scale,
                           window_size_left, window_size_right, None)  # fmt: skip
    if (rows := problem.rows_of_queries) is not None:
        logsumexp = rows.padded(logsumexp.t().unsqueeze(-1)).squeeze(-1).transpose(1, 2)
    return problem.backward(seen, rng_state.view(torch.int64)[0], grad_out, out, logsumexp)[:3]


@decomposition("_scaled_dot_product_flash_attention_for_cpu")
def flash_for_cpu(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Of (B, heads, rows, D): the result as the query, and logsumexp (B, heads, queries), 0 where a mask hides all.

    A causal mask begins at the first key. torch's own decomposition returns the weights in place of logsumexp.
    """
    if dropout_p:
        raise RuntimeError("scaled_dot_product_attention_flash_attention: Currently do not support dropout > 0")
    visible, bias = attn_mask, None
    if attn_mask is not None and attn_mask.dtype is not torch.bool:
        visible = attn_mask != -math.inf
        bias = attn_mask.masked_fill(~visible, 0.0)
    problem = Problem(*(x.transpose(1, 2) for x in (query, key, value)), scale=scale, bias=bias)
    seen = problem.seen(None, 0 if is_causal else None, lower_right=False)
    seen = seen if visible is None else seen & visible
    out, logsumexp = problem.forward(seen, _seed(query, 0.0))
    hidden = seen.any(-1).logical_not()
    logsumexp = logsumexp.masked_fill(hidden, 0.0).transpose(1, 2).contiguous().transpose(1, 2)
    return torch.empty_like(query).copy_(out.transpose(1, 2)), logsumexp


def _efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None, longest: tuple[int, int], dropout_p: float,
    custom_mask_type: int, scale: float | None, lengths: torch.Tensor | None,
) -> tuple[Problem, torch.Tensor]:  # fmt: skip
    """The problem, and what its queries see; ragged sequences are (1, rows, heads, D)."""
    inputs = (x if cu_seqlens_q is None else x.squeeze(0) for x in (query, key, value))
    problem = Problem(
        *inputs, scale=scale, ends=(cu_seqlens_q, cu_seqlens_k), longest=longest, lengths=lengths, bias=bias,
        dropout=dropout_p,
    )  # fmt: skip
    after = 0 if custom_mask_type in (UPPER_LEFT, LOWER_RIGHT) else None
    return problem, problem.seen(None, after, custom_mask_type == LOWER_RIGHT)


@decomposition("_efficient_attention_forward")
def efficient_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None, max_seqlen_q: int | None,
    max_seqlen_k: int | None, dropout_p: float, custom_mask_type: int, compute_log_sumexp: bool = False, *,
    scale: float | None = None, seqlen_k: torch.Tensor | None = None, window_size: int | None = None,
) -> tuple[torch.Tensor | int, ...]:  # fmt: skip
    """Of (B, rows, heads, D): the result (B, rows, heads, D of the values), logsumexp (B, heads, queries rounded up to
    LSE_ALIGNMENT, or 0 where it is not asked for), a seed and an offset (int64), the longest sequences. Ragged
    sequences are (1, rows, heads, D) with offsets. NotImplementedError for a window."""
    _unknown(window_size=window_size)
    longest = (query.size(1) if max_seqlen_q is None else max_seqlen_q,
               key.size(1) if max_seqlen_k is None else max_seqlen_k)  # fmt: skip
    problem, seen = _efficient(query, key, value, bias, cu_seqlens_q, cu_seqlens_k, longest, dropout_p,
                               custom_mask_type, scale, seqlen_k)  # fmt: skip
    seed = _seed(query, dropout_p)
    out, logsumexp = problem.forward(seen, seed)
    if problem.rows_of_queries is not None:
        out = problem.rows_of_queries.ragged(out).unsqueeze(0)
    missing = -logsumexp.size(-1) % LSE_ALIGNMENT
    padded = torch.nn.functional.pad(logsumexp.float(), (0, missing), value=math.inf)
    result = out.to(query.dtype).contiguous()
    return (
        result,
        padded if compute_log_sumexp else padded[..., :0].contiguous(),
        seed,
        torch.zeros_like(seed),
        *longest,
    )


@decomposition("_efficient_attention_backward")
def efficient_backward(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor, cu_seqlens_q: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None, max_seqlen_q: int,
    max_seqlen_k: int, logsumexp: torch.Tensor, dropout_p: float, philox_seed: torch.Tensor,
    philox_offset: torch.Tensor, custom_mask_type: int, bias_requires_grad: bool, *, scale: float | None = None,
    num_splits_key: int | None = None, window_size: int | None = None, shared_storage_dqdkdv: bool = False,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """The gradients of the query, key, value and bias; None of a bias that needs none."""
    _unknown(window_size=window_size, shared_storage_dqdkdv=shared_storage_dqdkdv)
    longest = (max_seqlen_q, max_seqlen_k)
    problem, seen = _efficient(query, key, value, bias, cu_seqlens_q, cu_seqlens_k, longest, dropout_p,
                               custom_mask_type, scale, None)  # fmt: skip
    if cu_seqlens_q is not None:
        grad_out, out = grad_out.squeeze(0), out.squeeze(0)
    logsumexp = logsumexp[..., : problem.query.size(-2)]
    *grads, of_scores = problem.backward(seen, philox_seed, grad_out, out, logsumexp)
    of_bias = None
    if bias is not None and bias_requires_grad:
        of_bias = torch.empty_like(bias).copy_(of_scores.sum_to_size(bias.shape))
    return *(grad.view_as(x) for grad, x in zip(grads, (query, key, value), strict=True)), of_bias


SQUARE, OF_KEYS = 0, 1  # mask types: (queries, keys), (B, keys); any other has the shape of the scores


@decomposition("_masked_softmax")
def masked_softmax(
    self: torch.Tensor, mask: torch.Tensor, dim: int | None = None, mask_type: int | None = None
) -> torch.Tensor:
    """Softmax over the elements where the boolean mask is False; nan where it hides all."""
    if mask.dtype is not torch.bool:
        raise RuntimeError("Mask should be a boolean tensor")
    if mask_type == OF_KEYS:
        mask = mask[:, None, None, :]
    return self.masked_fill(mask, -math.inf).softmax(-1 if dim is None else dim)


@decomposition("_native_multi_head_attention")
def multi_head_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, embed_dim: int, num_head: int,
    qkv_weight: torch.Tensor, qkv_bias: torch.Tensor, proj_weight: torch.Tensor, proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Of (B, rows, embed_dim): the projected result, and the weights (B, queries, keys), or (B, heads, queries, keys)
    of each head."""
    if any(x.is_nested for x in (query, key, value)):
        raise NotImplementedError("nested tensors")
    if not query.shape == key.shape == value.shape:
        raise RuntimeError("expected `query`/`key`/`value` shapes to match")
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    projected = (torch.nn.functional.linear(*of) for of in zip((query, key, value), weights, biases, strict=True))
    q, k, v = (x.unflatten(-1, (num_head, -1)).transpose(1, 2) for x in projected)
    scores = (q / math.sqrt(embed_dim // num_head)) @ k.transpose(-2, -1)
    seen = scores.softmax(-1) if mask is None else masked_softmax(scores, mask.bool(), -1, mask_type)
    result = torch.nn.functional.linear((seen @ v).transpose(1, 2).flatten(-2), proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, seen.mean(1) if average_attn_weights else seen


@decomposition("_transformer_encoder_layer_fwd")
def encoder_layer(
    src: torch.Tensor, embed_dim: int, num_heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor, proj_bias: torch.Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: torch.Tensor, norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor, ffn_bias_1: torch.Tensor, ffn_weight_2: torch.Tensor, ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None, mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """`nn.TransformerEncoderLayer` of (B, rows, embed_dim): attention and a network of two layers, each added to its
    input, with a layer norm before (`norm_first`) or after."""
    linear, activation = torch.nn.functional.linear, torch.nn.functional.gelu if use_gelu else torch.relu

    def attend(x: torch.Tensor) -> torch.Tensor:
        attention = x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, False
        return multi_head_attention(*attention, mask_type)[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        return linear(activation(linear(x, ffn_weight_1, ffn_bias_1)), ffn_weight_2, ffn_bias_2)

    x = src
    for part, weight, bias in (attend, norm_weight_1, norm_bias_1), (feed, norm_weight_2, norm_bias_2):
        x = x + part(torch.nn.functional.layer_norm(x, (embed_dim,), weight, bias, eps) if norm_first else x)
        x = x if norm_first else torch.nn.functional.layer_norm(x, (embed_dim,), weight, bias, eps)
    return x
