"""Attention over ragged batches: `scaled_dot_product_attention` of nested tensors in the jagged layout.

Defines `install`. torch's function uses either CUDA kernels or nested tensors in the strided layout; the device has
neither. Padded queries, keys and values with a mask of the existing rows are equivalent, and their operators can be
differentiated any number of times. A causal mask, which torch's CPU refuses, is one more mask.

This module must not depend on how nested tensors are padded: torch's own operators do that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..runtime import torch_compat
from .replacements import replace_on_first_use


def install() -> None:
    """Serve attention of jagged tensors on tiny; other devices keep torch's function."""
    for module in ("sdpa", "ops"):
        replace_on_first_use(f"torch.nested._internal.{module}:jagged_scaled_dot_product_attention", _serving)


def _serving(original: Callable[..., Any]) -> Callable[..., Any]:
    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        """torch.nn.functional.scaled_dot_product_attention of (B, heads, ragged, E) or (B, ragged, E)."""
        served = attn_mask is None and query.dim() in (3, 4)
        for x in (query, key, value):
            nested = isinstance(x, torch_compat.NestedTensor) and x.device.type == "tiny"
            served = served and nested and x._ragged_idx == x.dim() - 2 == query.dim() - 2
        if not served:
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        query, key, value, _ = torch_compat.jagged_attention_in_autocast(query, key, value, None)
        torch_compat.check_jagged_attention(query, key, value, None, dropout_p, is_causal, scale)
        q, k, v = (_padded(x) for x in (query, key, value))
        mask = _rows(k.size(-2), key).unsqueeze(-2)
        if query.dim() == 4:
            mask = mask.unsqueeze(-2)
        if is_causal:
            mask = mask & torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).tril()
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, mask, dropout_p, scale=scale, enable_gqa=enable_gqa
        )
        return _jagged(out, query)

    return attention


def _rows_first(x: Any) -> Any:
    return x.transpose(1, 2) if x.dim() == 4 else x


def _padded(x: Any) -> torch.Tensor:
    """(B, heads, longest, E), or (B, longest, E), of a nested tensor: its rows, then zeros."""
    rows = _rows_first(x)
    rows = rows if rows.is_contiguous() else rows.contiguous()
    rows._get_max_seqlen()  # otherwise torch pads to the total number of rows
    padded: torch.Tensor = _rows_first(rows.to_padded_tensor(0.0))
    return padded


def _rows(longest: int, x: Any) -> torch.Tensor:
    """(B, longest): true at the existing rows of a nested tensor."""
    lengths = x.offsets().diff() if x.lengths() is None else x.lengths()
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(-1)


def _jagged(padded: torch.Tensor, like: Any) -> Any:
    """The rows of a padded result as a nested tensor, as ragged as the query."""
    rows = _rows_first(like)
    rows = rows if rows.is_contiguous() else rows.contiguous()
    nested = torch_compat.nested_from_padded(
        _rows_first(padded).contiguous(), offsets=rows.offsets(), ragged_idx=1, sum_S=rows.values().size(0),
        min_seqlen=rows._maybe_min_seqlen, max_seqlen=rows._maybe_max_seqlen,
    )  # fmt: skip
    return _rows_first(nested)
