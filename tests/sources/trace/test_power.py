"""Wrong operators planted into tiny and into a compiler: the trace names them in GPT-2, ResNet and a diffusion UNet."""

from __future__ import annotations

import pytest
import torch

import conformance
from tests.sources.trace.models import MODELS
from tests.sources.trace.planting import lying, planted

pytestmark = pytest.mark.slow


def larger(value):
    """One percent larger."""
    return value * 1.01


def shifted(value):
    """Shifted by 0.001."""
    return value + 0.001


def opposite(value):
    """The other sign."""
    return -value


def rounded(value):
    """Rounded to 8 bits, as if the kernel computed in bfloat16."""
    from tinygrad.dtype import dtypes

    return value.cast(dtypes.bfloat16).cast(value.dtype)


def flushed(value):
    """Zero where the right value is smaller than 0.05."""
    return (value.abs() < 0.05).where(value * 0, value)


CASES = [
    ("gpt2", "addmm.default", rounded, {"aten.addmm.default forward"}),
    ("gpt2", "bmm.default", rounded, {"aten.bmm.default forward", "aten.bmm.default backward"}),
    ("gpt2", "_softmax.default", larger, {"aten._softmax.default forward"}),
    ("gpt2", "gelu.default", flushed, {"aten.gelu.default forward"}),
    ("gpt2", "_log_softmax.default", shifted, {"aten._log_softmax.default forward"}),
    ("gpt2", "nll_loss_forward.default", larger, {"aten.nll_loss_forward.default forward"}),
    ("gpt2", "masked_fill.Scalar", larger, {"aten.masked_fill.Scalar forward", "aten.masked_fill.Scalar backward"}),
    ("gpt2", "_log_softmax_backward_data.default", larger, {"aten._log_softmax_backward_data.default backward"}),
    ("gpt2", "native_layer_norm_backward.default", larger, {"aten.native_layer_norm_backward.default backward"}),
    ("gpt2", "gelu_backward.default", rounded, {"aten.gelu_backward.default backward"}),
    ("gpt2", "_softmax_backward_data.default", opposite, {"aten._softmax_backward_data.default backward"}),
    ("gpt2", "embedding_dense_backward.default", larger, {"aten.embedding_dense_backward.default backward"}),
    ("gpt2", "cat.default", rounded, {"aten.cat.default backward", "aten.stack.default forward"}),
    ("gpt2", "lerp.Scalar", larger, {"aten._foreach_lerp_.Scalar optimizer"}),
    ("resnet", "convolution.default", rounded, {"aten.convolution.default forward"}),
    ("resnet", "relu.default", shifted, {"aten.relu.default forward"}),
    ("resnet", "max_pool2d_with_indices.default", larger, {"aten.max_pool2d_with_indices.default forward"}),
    ("resnet", "mean.dim", larger, {"aten.mean.dim forward"}),
    ("resnet", "addmm.default", opposite, {"aten.addmm.default forward"}),
    ("resnet", "convolution_backward.default", larger, {"aten.convolution_backward.default backward"}),
    ("resnet", "threshold_backward.default", larger, {"aten.threshold_backward.default backward"}),
    ("resnet", "native_batch_norm_backward.default", rounded, {"aten.native_batch_norm_backward.default backward"}),
    ("resnet", "max_pool2d_with_indices_backward.default", larger,
     {"aten.max_pool2d_with_indices_backward.default backward"}),
    ("unet", "sin.default", shifted, {"aten.sin.default forward"}),
    ("unet", "silu.default", rounded, {"aten.silu.default forward"}),
    ("unet", "upsample_nearest2d.default", larger, {"aten.upsample_nearest2d.default forward"}),
    ("unet", "convolution.default", larger, {"aten.convolution.default forward"}),
    ("unet", "silu_backward.default", larger, {"aten.silu_backward.default backward"}),
    ("unet", "upsample_nearest2d_backward.default", rounded, {"aten.upsample_nearest2d_backward.default backward"}),
    ("unet", "native_group_norm_backward.default", larger, {"aten.native_group_norm_backward.default backward"}),
]  # fmt: skip
"""Model, overload whose value function is wrong, the change, and the operators and phases that are named."""


COMPILED = [
    ("gpt2", "gelu.default", {"torch.nn.functional.gelu forward"}),
    ("gpt2", "_softmax.default", {"Tensor.softmax forward", "Tensor.softmax backward"}),
    ("gpt2", "native_layer_norm_backward.default", {"torch.nn.functional.layer_norm backward"}),
    ("gpt2", "embedding_dense_backward.default", {"torch.nn.functional.embedding backward"}),
    ("resnet", "native_batch_norm_backward.default", {"torch.nn.functional.batch_norm backward"}),
    ("resnet", "convolution.default", {"torch.nn.functional.conv2d forward"}),
    ("resnet", "max_pool2d_with_indices_backward.default", {"torch.nn.functional.max_pool2d backward"}),
    ("unet", "native_group_norm.default", {"torch.nn.functional.group_norm forward"}),
    ("unet", "silu_backward.default", {"torch.nn.functional.silu backward"}),
]
"""Model, aten overload that the compiler gets wrong, and the functions and phases that are named."""


@pytest.mark.parametrize(("model", "name", "named"), COMPILED)
def test_an_operator_planted_into_a_compiler_is_named(model, name, named):
    """The trace of one step of a compiled model names the wrong function with its phase, and no other."""
    torch.compiler.reset()
    step = MODELS[model]("cpu", lambda net: torch.compile(net, backend=lying(name)))
    with conformance.trace() as trace:
        step()
    assert {f"{fault.name} {fault.phase}" for fault in trace.faults} == named, str(trace)
    assert all(fault.place.file.endswith("models.py") for fault in trace.faults)


@pytest.mark.tiny
@pytest.mark.parametrize(("model", "name", "change", "named"), CASES, ids=lambda one: getattr(one, "__name__", None))
def test_a_planted_operator_is_named(model, name, change, named):
    """The trace of one training step names the wrong operator with its phase, and no other."""
    import conformance.backend

    step = MODELS[model]("tiny")
    with planted(name, change), conformance.trace() as trace:
        step()
    assert {f"{fault.name} {fault.phase}" for fault in trace.faults} == named
    assert all(fault.place.file.endswith("models.py") for fault in trace.faults if fault.phase != "optimizer")
    gaps = "# No script: a result with empty places."
    assert all("torch.ops.aten." in fault.script or gaps in fault.script for fault in trace.faults)


@pytest.mark.tiny
@pytest.mark.parametrize("model", MODELS)
def test_tiny_is_right(model):
    """Two training steps on tiny have no wrong operator."""
    import conformance.backend

    step = MODELS[model]("tiny")
    with conformance.trace() as trace:
        step()
        step()
    assert not trace.faults, str(trace)
    assert sum(tally.judged for tally in trace.mode.tallies.values()) > 200
