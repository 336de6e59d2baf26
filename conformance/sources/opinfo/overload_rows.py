"""Arguments for aten overloads whose schema types are not enough: sizes that must agree, indices, weights.

Defines `ROWS`: for each overload a function of `t` that returns the positional arguments. `t(2, 3)` is a tensor of that
size in the tested dtype; `ints(…)` are int64, and `host(…)` are int64 on the CPU for operators that require it. An out=
or in-place overload takes the arguments of the functional one, so it needs no row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.standalone.moving import MARKER

Make = Callable[..., torch.Tensor]


def ints(*values: int) -> torch.Tensor:
    """Return a vector of int64."""
    return torch.tensor(values, device=MARKER)


def host(*values: int) -> torch.Tensor:
    """Return a vector of int64 that stays on the CPU, for lengths of rows."""
    return torch.tensor(values)


def ones(*values: float) -> torch.Tensor:
    """Return a vector of float32."""
    return torch.tensor(values, device=MARKER)


def _cell(t: Make, gates: int) -> tuple[Any, ...]:
    """Return input, state, and the weights and biases of a recurrent cell with 3 inputs and 4 units."""
    return t(2, 3), t(2, 4), t(gates * 4, 3), t(gates * 4, 4), t(gates * 4), t(gates * 4)


def _layer(t: Make, gates: int, states: Any) -> tuple[Any, ...]:
    """Return arguments of a recurrent layer over 5 steps of 2 rows: input, states, parameters, has_biases, num_layers,
    dropout, train, bidirectional, batch_first.
    """
    weights = [t(gates * 4, 3), t(gates * 4, 4), t(gates * 4), t(gates * 4)]
    return t(5, 2, 3), states, weights, True, 1, 0.0, False, False, False


def _attention(t: Make) -> tuple[Any, ...]:
    """Return a query, a key and a value of 5 rows, with 2 heads of 4 columns."""
    return t(1, 2, 5, 4), t(1, 2, 5, 4), t(1, 2, 5, 4)


def _attended(t: Make) -> tuple[Any, ...]:
    """Return the arguments of the gradient of attention: its result's gradient, its arguments and its results."""
    inputs = _attention(t)
    with torch.no_grad():
        outputs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*(tensor.cpu() for tensor in inputs))
    return t(1, 2, 5, 4), *inputs, *(output.to(inputs[0].device) for output in outputs), 0.0, False


def _packed(t: Make, gates: int, states: Any) -> tuple[Any, ...]:
    """Return the same over packed rows of 3 and 2 steps: data, batch_sizes, states, parameters and the other
    arguments.
    """
    _, _, weights, *rest = _layer(t, gates, states)
    return t(5, 3), host(2, 2, 1), states, weights, *rest[:-1]


ROWS: dict[str, Callable[[Make], tuple[Any, ...]]] = {
    # matrices
    "_addmm_activation": lambda t: (t(2, 4), t(2, 3), t(3, 4)),
    "_int_mm": lambda t: (t(32, 16).to(torch.int8), t(16, 8).to(torch.int8)),
    "chain_matmul": lambda t: ([t(2, 3), t(3, 4), t(4, 2)],),
    "matrix_exp_backward": lambda t: (t(3, 3), t(3, 3)),
    "linalg_cond.p_str": lambda t: (t(3, 3) + 4 * torch.eye(3), "fro"),
    "frobenius_norm.dim": lambda t: (t(2, 3, 4), [1, 2]),
    "nuclear_norm.dim": lambda t: (t(2, 3, 4), [1, 2]),
    "slogdet": lambda t: (t(3, 3) + 4 * torch.eye(3),),
    "norm.ScalarOpt_dtype": lambda t: (t(3, 4), 2),
    "norm.ScalarOpt_dim_dtype": lambda t: (t(3, 4), 2, [1]),
    "_weight_norm": lambda t: (t(3, 4), t(3, 1) + 1),
    "_weight_norm_interface": lambda t: (t(3, 4), t(3, 1) + 1),
    "_weight_norm_interface_backward": lambda t: (t(3, 4), t(3, 4), t(3, 1), t(3, 1) + 1, 0),
    # convolutions, pooling, resampling
    "conv_tbc": lambda t: (t(5, 2, 3), t(2, 3, 4), t(4)),
    "_convolution.deprecated": lambda t: (
        t(1, 2, 5), t(3, 2, 2), None, [1], [0], [1], False, [0], 1, False, False, False
    ),
    "_convolution": lambda t: (t(1, 2, 5), t(3, 2, 2), None, [1], [0], [1], False, [0], 1, False, False, False, True),
    "_convolution_double_backward": lambda t: (
        t(1, 2, 5), t(3, 2, 2), t(3), t(1, 3, 4), t(3, 2, 2), t(1, 2, 5), [1], [0], [1], False, [0], 1, [True] * 3
    ),
    "slow_conv3d": lambda t: (t(1, 2, 3, 3, 3), t(2, 2, 2, 2, 2), [2, 2, 2]),
    "slow_conv3d_forward": lambda t: (t(1, 2, 3, 3, 3), t(2, 2, 2, 2, 2), [2, 2, 2], None, [1] * 3, [0] * 3),
    "slow_conv_dilated2d": lambda t: (t(1, 2, 5, 5), t(3, 2, 2, 2), [2, 2], None, [1, 1], [0, 0], [2, 2]),
    "slow_conv_dilated3d": lambda t: (t(1, 2, 4, 4, 4), t(3, 2, 2, 2, 2), [2] * 3, None, [1] * 3, [0] * 3, [2] * 3),
    "slow_conv_transpose2d": lambda t: (t(1, 2, 3, 3), t(2, 3, 2, 2), [2, 2], None, [2, 2]),
    "slow_conv_transpose3d": lambda t: (t(1, 2, 3, 3, 3), t(2, 3, 2, 2, 2), [2] * 3, None, [2] * 3),
    "thnn_conv2d": lambda t: (t(1, 2, 5, 5), t(3, 2, 2, 2), [2, 2]),
    "_slow_conv2d_forward": lambda t: (t(1, 2, 5, 5), t(3, 2, 2, 2), [2, 2], None, [1, 1], [0, 0]),
    "_slow_conv2d_backward.output_mask": lambda t: (
        t(1, 3, 4, 4), t(1, 2, 5, 5), t(3, 2, 2, 2), [2, 2], [1, 1], [0, 0], [True] * 3
    ),
    "adaptive_avg_pool1d": lambda t: (t(2, 3, 7), [3]),
    "affine_grid_generator": lambda t: (t(2, 2, 3), [2, 3, 4, 5], True),
    "affine_grid_generator_backward": lambda t: (t(2, 4, 5, 2), [2, 3, 4, 5], False),
    "_grid_sampler_2d_cpu_fallback": lambda t: (t(1, 2, 4, 4), t(1, 3, 3, 2) - 1, 0, 0, False),
    "_grid_sampler_2d_cpu_fallback_backward": lambda t: (t(1, 2, 3, 3), t(1, 2, 4, 4), t(1, 3, 3, 2) - 1, 0, 0, False),
    "_upsample_bicubic2d_aa": lambda t: (t(1, 2, 6, 6), [3, 4], False),
    "_upsample_bicubic2d_aa.vec": lambda t: (t(1, 2, 6, 6), [3, 4], False, None),
    "_upsample_bicubic2d_aa_backward": lambda t: (t(1, 2, 3, 4), [3, 4], [1, 2, 6, 6], False),
    "_upsample_lanczos2d_aa": lambda t: (t(1, 2, 6, 6), [3, 4], False),
    "_upsample_lanczos2d_aa.vec": lambda t: (t(1, 2, 6, 6), [3, 4], False, None),
    "_upsample_lanczos2d_aa_backward": lambda t: (t(1, 2, 3, 4), [3, 4], [1, 2, 6, 6], False),
    "upsample_bilinear2d.vec": lambda t: (t(1, 2, 3, 3), [5, 4], False, None),
    "upsample_nearest2d.vec": lambda t: (t(1, 2, 3, 3), None, [2.0, 1.5]),
    # normalization, activations, attention
    "batch_norm_update_stats": lambda t: (t(4, 3), t(3), t(3) + 1, 0.1),
    "_batch_norm_with_update_functional": lambda t: (t(4, 3), t(3), t(3), t(3), t(3) + 1, 0.1, 1e-5),
    "_native_batch_norm_legit_functional": lambda t: (t(4, 3), t(3), t(3), t(3), t(3) + 1, True, 0.1, 1e-5),
    "_batch_norm_impl_index_backward": lambda t: (
        0, t(4, 3), t(4, 3), t(3), t(3), t(3) + 1, t(3), t(3) + 1, True, 1e-5, [True] * 3, t(0)
    ),
    "_masked_softmax": lambda t: (t(2, 3), t(2, 3) > 1, 1),
    "_masked_softmax_backward": lambda t: (t(2, 3), t(2, 3), t(2, 3) > 1, 1),
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attended,
    "glu_jvp": lambda t: (t(2, 2), t(2, 4), t(2, 4), 1),
    "glu_backward_jvp": lambda t: (t(2, 4), t(2, 2), t(2, 4), t(2, 2), t(2, 4), 1),
    # recurrent layers
    "rnn_tanh_cell": lambda t: _cell(t, 1),
    "rnn_relu_cell": lambda t: _cell(t, 1),
    "gru_cell": lambda t: _cell(t, 3),
    "lstm_cell": lambda t: (t(2, 3), [t(2, 4), t(2, 4)], *_cell(t, 4)[2:]),
    "rnn_tanh.input": lambda t: _layer(t, 1, t(1, 2, 4)),
    "rnn_relu.input": lambda t: _layer(t, 1, t(1, 2, 4)),
    "gru.input": lambda t: _layer(t, 3, t(1, 2, 4)),
    "lstm.input": lambda t: _layer(t, 4, [t(1, 2, 4), t(1, 2, 4)]),
    "rnn_tanh.data": lambda t: _packed(t, 1, t(1, 2, 4)),
    "rnn_relu.data": lambda t: _packed(t, 1, t(1, 2, 4)),
    "gru.data": lambda t: _packed(t, 3, t(1, 2, 4)),
    "lstm.data": lambda t: _packed(t, 4, [t(1, 2, 4), t(1, 2, 4)]),
    "_thnn_differentiable_gru_cell_backward": lambda t: (t(2, 4), t(2, 12), t(2, 12), t(2, 4), t(12), t(12)),
    "_pack_padded_sequence_backward": lambda t: (t(5, 4), [3, 2, 4], host(2, 2, 1), False),
    "pad_sequence": lambda t: ([t(3, 2), t(2, 2)],),
    # indices
    "embedding_bag": lambda t: (t(5, 3), ints(1, 2, 4, 0), ints(0, 2)),
    "_embedding_bag_dense_backward": lambda t: (
        t(2, 3), ints(1, 2, 4, 0), ints(0, 0, 1, 1), ints(2, 2), ints(), 5, False, 0, None
    ),
    "_index_put_impl": lambda t: (t(4, 3), [ints(1, 3)], t(2, 3)),
    "select_backward": lambda t: (t(3), [2, 3], 0, 1),
    "unsafe_split_with_sizes": lambda t: (t(5, 2), [2, 3]),
    "bucketize.Scalar": lambda t: (2, ones(0.0, 1.0, 2.5)),
    "_reshape_copy": lambda t: (t(2, 3), [3, 2]),
    "_reshape_alias_copy": lambda t: (t(2, 3), [3, 2], [2, 1]),
    "_reshape_from_tensor": lambda t: (t(2, 3), ints(3, 2)),
    "_pad_enum": lambda t: (t(2, 3), [1, 1], 0, 1.0),
    "gradient.array": lambda t: (t(4, 4), [0, 1]),
    "gradient.tensorarrayint": lambda t: (t(4), [torch.arange(4.0) ** 2]),
    "div.Scalar_mode": lambda t: (t(2, 3), 2),
    "divide.Scalar_mode": lambda t: (t(2, 3), 2),
    "clamp": lambda t: (t(2, 3), 1, 2),
    "clip": lambda t: (t(2, 3), 1, 2),
    # optimizers on lists of tensors: float16 gradients are scaled, found_inf says whether one overflowed
    "_amp_update_scale": lambda t: (ones(1.0), ints(1).int(), ones(0.0), 2.0, 0.5, 3),
    "_amp_foreach_non_finite_check_and_unscale": lambda t: ([t(2, 3), t(3)], ones(0.0), ones(0.5)),
}  # fmt: skip
"""Arguments by overload. Overloads that need only the keyword arguments of optimizers have no row; those arguments are
drawn by type.
"""
