"""Kernels of a training step of published models on tiny, compared with the same networks in plain tinygrad.

    python benchmarks/published.py [--model GPT2LMHeadModel]

The models are rows of `tests/clients/models.py`, without dropout; they need transformers, which is in the extra
`clients`. Below, each model is written again in tinygrad, as a function of the model's own weights. It must give torch
CPU's loss, so that both count the same network. The measured step is the third: loss, gradients and SGD with momentum.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from tests.clients.models import MODELS, Model, network

HEADS, IGNORED, STEPS, MOMENTUM = 2, -100, 3, 0.9
Weights = dict[str, Any]  # tinygrad tensors by the name of the parameter


def norm(w: Weights, name: str, x: Any, eps: float) -> Any:
    """Layer norm with weights."""
    return x.layernorm(eps=eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(w: Weights, name: str, x: Any) -> Any:
    """Product with a weight of shape (out, in), plus the bias if there is one."""
    return x.linear(w[f"{name}.weight"].transpose(), w.get(f"{name}.bias"))


def embedded(weight: Any, numbers: Any) -> Any:
    """Rows of a table, read by tinygrad's own layer."""
    from tinygrad import nn

    layer = nn.Embedding(*weight.shape)
    layer.weight = weight
    return layer(numbers)


def attended(parts: Iterable[Any], causal: bool) -> Any:
    """Attention of queries, keys and values of shape (batch, length, width), with the heads side by side."""
    q, k, v = parts
    heads = [t.reshape(*t.shape[:2], -1, q.shape[-1] // HEADS).transpose(1, 2) for t in (q, k, v)]
    shared = heads[1].shape[1] != HEADS
    mixed = heads[0].scaled_dot_product_attention(*heads[1:], is_causal=causal, enable_gqa=shared)
    return mixed.transpose(1, 2).reshape(*q.shape)


def shifted(logits: Any, labels: Any) -> Any:
    """Cross-entropy with the next token."""
    following = labels.pad(((0, 0), (0, 1)), value=IGNORED)[:, 1:]
    return logits.flatten(0, 1).sparse_categorical_crossentropy(following.flatten(), ignore_index=IGNORED)


def gpt2(w: Weights, x: Any, y: Any) -> Any:
    """Loss of GPT2LMHeadModel."""
    from tinygrad import Tensor

    def product(name: str, h: Any) -> Any:  # the model's weights have shape (in, out)
        return h.linear(w[f"{name}.weight"], w[f"{name}.bias"])

    h = embedded(w["transformer.wte.weight"], x)
    h = h + embedded(w["transformer.wpe.weight"], Tensor.arange(x.shape[1]).unsqueeze(0))
    for i in range(2):
        at = f"transformer.h.{i}"
        parts = product(f"{at}.attn.c_attn", norm(w, f"{at}.ln_1", h, 1e-5)).chunk(3, dim=-1)
        h = h + product(f"{at}.attn.c_proj", attended(parts, causal=True))
        wide = product(f"{at}.mlp.c_fc", norm(w, f"{at}.ln_2", h, 1e-5)).gelu()
        h = h + product(f"{at}.mlp.c_proj", wide)
    h = norm(w, "transformer.ln_f", h, 1e-5)
    return shifted(h.linear(w["transformer.wte.weight"].transpose()), y)


def llama(w: Weights, x: Any, y: Any) -> Any:
    """Loss of LlamaForCausalLM."""
    from tinygrad import Tensor

    width, length = w["model.embed_tokens.weight"].shape[1] // HEADS, x.shape[1]
    speeds = 10_000.0 ** (-Tensor.arange(0, width, 2).float() / width)
    angles = (Tensor.arange(length).float().unsqueeze(1) * speeds).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()

    def scaled(name: str, h: Any) -> Any:
        return h * (h.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w[f"{name}.weight"]

    def turned(t: Any) -> Any:
        heads = t.reshape(*t.shape[:2], -1, width).transpose(1, 2)
        first, second = heads.chunk(2, dim=-1)
        return (heads * cos + (-second).cat(first, dim=-1) * sin).transpose(1, 2).reshape(*t.shape)

    h = embedded(w["model.embed_tokens.weight"], x)
    for i in range(2):
        at = f"model.layers.{i}"
        normed = scaled(f"{at}.input_layernorm", h)
        q, k, v = (linear(w, f"{at}.self_attn.{part}_proj", normed) for part in "qkv")
        h = h + linear(w, f"{at}.self_attn.o_proj", attended((turned(q), turned(k), v), causal=True))
        normed = scaled(f"{at}.post_attention_layernorm", h)
        wide = linear(w, f"{at}.mlp.gate_proj", normed).silu() * linear(w, f"{at}.mlp.up_proj", normed)
        h = h + linear(w, f"{at}.mlp.down_proj", wide)
    return shifted(linear(w, "lm_head", scaled("model.norm", h)), y)


def bert(w: Weights, x: Any, y: Any) -> Any:
    """Loss of BertForMaskedLM."""
    from tinygrad import Tensor

    def named(part: str) -> Any:
        return w[f"bert.embeddings.{part}_embeddings.weight"]

    h = embedded(named("word"), x) + embedded(named("token_type"), Tensor.zeros_like(x))
    h = h + embedded(named("position"), Tensor.arange(x.shape[1]).unsqueeze(0))
    h = norm(w, "bert.embeddings.LayerNorm", h, 1e-12)
    for i in range(2):
        at = f"bert.encoder.layer.{i}"
        parts = (linear(w, f"{at}.attention.self.{part}", h) for part in ("query", "key", "value"))
        seen = linear(w, f"{at}.attention.output.dense", attended(parts, causal=False))
        h = norm(w, f"{at}.attention.output.LayerNorm", seen + h, 1e-12)
        wide = exact_gelu(linear(w, f"{at}.intermediate.dense", h))
        h = norm(w, f"{at}.output.LayerNorm", linear(w, f"{at}.output.dense", wide) + h, 1e-12)
    h = exact_gelu(linear(w, "cls.predictions.transform.dense", h))
    h = norm(w, "cls.predictions.transform.LayerNorm", h, 1e-12)
    logits = h.linear(named("word").transpose(), w["cls.predictions.bias"])
    return logits.flatten(0, 1).sparse_categorical_crossentropy(y.flatten(), ignore_index=IGNORED)


def exact_gelu(x: Any) -> Any:
    """GELU by the error function, the default of torch."""
    return x * 0.5 * (1 + (x / 2**0.5).erf())


def vit(w: Weights, x: Any, y: Any) -> Any:
    """Loss of ViTForImageClassification."""
    patches = "vit.embeddings.patch_embeddings.projection"
    h = x.conv2d(w[f"{patches}.weight"], w[f"{patches}.bias"], stride=4).flatten(2).transpose(1, 2)
    h = w["vit.embeddings.cls_token"].expand(h.shape[0], -1, -1).cat(h, dim=1) + w["vit.embeddings.position_embeddings"]
    for i in range(2):
        at = f"vit.layers.{i}"
        normed = norm(w, f"{at}.layernorm_before", h, 1e-12)
        parts = (linear(w, f"{at}.attention.{part}_proj", normed) for part in "qkv")
        h = h + linear(w, f"{at}.attention.o_proj", attended(parts, causal=False))
        wide = exact_gelu(linear(w, f"{at}.mlp.fc1", norm(w, f"{at}.layernorm_after", h, 1e-12)))
        h = h + linear(w, f"{at}.mlp.fc2", wide)
    return linear(w, "classifier", norm(w, "vit.layernorm", h, 1e-12)[:, 0]).sparse_categorical_crossentropy(y)


def resnet(w: Weights, x: Any, y: Any) -> Any:
    """Loss of ResNetForImageClassification; the step also updates the running statistics."""
    from tinygrad import nn

    def block(name: str, h: Any, stride: int = 1, active: bool = True) -> Any:
        weight = w[f"{name}.convolution.weight"]
        layer = w.setdefault(f"{name}.layer", nn.BatchNorm(weight.shape[0]))
        layer.weight, layer.bias = w[f"{name}.normalization.weight"], w[f"{name}.normalization.bias"]
        h = layer(h.conv2d(weight, stride=stride, padding=weight.shape[-1] // 2))
        return h.relu() if active else h

    h = block("resnet.embedder.embedder", x, 2).max_pool2d(3, 2, padding=1)
    for stage in range(2):
        at, stride = f"resnet.encoder.stages.{stage}.layers.0", 1 + stage
        rest = block(f"{at}.shortcut", h, stride, active=False) if stage else h
        h = (block(f"{at}.layer.1", block(f"{at}.layer.0", h, stride), active=False) + rest).relu()
    return linear(w, "classifier.1", h.mean((2, 3))).sparse_categorical_crossentropy(y)


def t5(w: Weights, x: Any, y: Any) -> Any:
    """Loss of T5ForConditionalGeneration: attention without a scale, plus a bias for the distance of two tokens."""
    from tinygrad import Tensor

    length = x.shape[1]
    ahead = Tensor.arange(length).unsqueeze(0) - Tensor.arange(length).unsqueeze(1)

    def scaled(name: str, h: Any) -> Any:
        return h * (h.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w[f"{name}.weight"]

    def seen(name: str, h: Any, memory: Any, bias: Any) -> Any:
        parts = (linear(w, f"{name}.{part}", t) for part, t in (("q", h), ("k", memory), ("v", memory)))
        q, k, v = (t.reshape(*t.shape[:2], HEADS, -1).transpose(1, 2) for t in parts)
        mixed = (q @ k.transpose(-1, -2) + bias).softmax(-1) @ v
        return linear(w, f"{name}.o", mixed.transpose(1, 2).reshape(*h.shape))

    def distances(side: str, buckets: Any) -> Any:  # each distance below 8 tokens has a separate bucket
        table = w[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        return embedded(table, buckets).permute(2, 0, 1).unsqueeze(0)

    def fed(name: str, h: Any) -> Any:
        wide = linear(w, f"{name}.DenseReluDense.wi", scaled(f"{name}.layer_norm", h)).relu()
        return h + linear(w, f"{name}.DenseReluDense.wo", wide)

    at, h = "encoder.block.0", embedded(w["shared.weight"], x)
    normed = scaled(f"{at}.layer.0.layer_norm", h)
    bias = distances("encoder", (ahead > 0) * 16 + ahead.abs())
    h = fed(f"{at}.layer.1", h + seen(f"{at}.layer.0.SelfAttention", normed, normed, bias))
    memory = scaled("encoder.final_layer_norm", h)
    at, tokens = "decoder.block.0", y.pad(((0, 0), (1, 0)))[:, :-1]
    h = embedded(w["shared.weight"], (tokens == IGNORED).where(0, tokens))
    normed = scaled(f"{at}.layer.0.layer_norm", h)
    bias = distances("decoder", (-ahead).maximum(0)) + (ahead > 0).where(-float("inf"), 0.0)
    h = h + seen(f"{at}.layer.0.SelfAttention", normed, normed, bias)
    h = h + seen(f"{at}.layer.1.EncDecAttention", scaled(f"{at}.layer.1.layer_norm", h), memory, 0)
    h = scaled("decoder.final_layer_norm", fed(f"{at}.layer.2", h)) * h.shape[-1] ** -0.5
    logits = h.linear(w["shared.weight"].transpose())
    return logits.flatten(0, 1).sparse_categorical_crossentropy(y.flatten(), ignore_index=IGNORED)


def swin(w: Weights, x: Any, y: Any) -> Any:
    """Loss of SwinForImageClassification, with windows of 4 by 4."""
    from tinygrad import Tensor

    side = 4
    at = Tensor.arange(side * side)
    down, right = (t.unsqueeze(1) - t.unsqueeze(0) + side - 1 for t in (at // side, at % side))
    pairs = down * (2 * side - 1) + right

    def windows(h: Any) -> Any:  # (batch, height, width, channels) to (batch, windows, 16, channels)
        b, n, m, c = h.shape
        return h.reshape(b, n // side, side, m // side, side, c).transpose(2, 3).reshape(b, -1, side * side, c)

    def whole(t: Any, b: int, n: int, c: int) -> Any:
        return t.reshape(b, n // side, n // side, side, side, c).transpose(2, 3).reshape(b, n, n, c)

    def block(name: str, h: Any, shift: int) -> Any:
        b, n, _, c = h.shape
        normed = norm(w, f"{name}.layernorm_before", h, 1e-5)
        if shift:
            normed = normed.roll((-shift, -shift), (1, 2))
        parts = (linear(w, f"{name}.attention.{part}_proj", windows(normed)) for part in "qkv")
        q, k, v = (t.reshape(*t.shape[:3], HEADS, -1).transpose(2, 3) for t in parts)
        table = w[f"{name}.attention.relative_position_bias.relative_position_bias_table"]
        scores = q @ k.transpose(-1, -2) * (c // HEADS) ** -0.5 + embedded(table, pairs).permute(2, 0, 1)
        if shift:  # elements that are apart before the roll do not attend to each other
            line = Tensor.arange(n)
            parts_of = (line >= n - side).int() + (line >= n - shift).int()
            region = windows((parts_of.unsqueeze(1) * 3 + parts_of.unsqueeze(0)).reshape(1, n, n, 1)).squeeze(-1)
            apart = region.unsqueeze(-1) != region.unsqueeze(-2)
            scores = scores + apart.where(-100.0, 0.0).unsqueeze(2)
        mixed = (scores.softmax(-1) @ v).transpose(2, 3).reshape(b, -1, side * side, c)
        mixed = whole(linear(w, f"{name}.attention.o_proj", mixed), b, n, c)
        h = h + (mixed.roll((shift, shift), (1, 2)) if shift else mixed)
        wide = exact_gelu(linear(w, f"{name}.mlp.fc1", norm(w, f"{name}.layernorm_after", h, 1e-5)))
        return h + linear(w, f"{name}.mlp.fc2", wide)

    patches = "swin.embeddings.patch_embeddings.projection"
    h = x.conv2d(w[f"{patches}.weight"], w[f"{patches}.bias"]).permute(0, 2, 3, 1)
    h = norm(w, "swin.embeddings.norm", h, 1e-5)
    for i, shift in enumerate((0, side // 2)):
        h = block(f"swin.encoder.layers.0.blocks.{i}", h, shift)
    merged = Tensor.cat(*(h[:, row::2, column::2] for column in range(2) for row in range(2)), dim=-1)
    h = linear(
        w, "swin.encoder.layers.0.downsample.reduction", norm(w, "swin.encoder.layers.0.downsample.norm", merged, 1e-5)
    )
    h = norm(w, "swin.layernorm", block("swin.encoder.layers.1.blocks.0", h, 0), 1e-5)
    return linear(w, "classifier", h.mean((1, 2))).sparse_categorical_crossentropy(y)


NETS: dict[str, Callable[[Weights, Any, Any], Any]] = {
    "GPT2LMHeadModel": gpt2, "LlamaForCausalLM": llama, "BertForMaskedLM": bert,
    "T5ForConditionalGeneration": t5, "ViTForImageClassification": vit, "ResNetForImageClassification": resnet,
    "SwinForImageClassification": swin,
}  # fmt: skip


def model(name: str) -> Model:
    """Row of the table of models."""
    return next(m for m in MODELS if m.name == f"transformers.{name}")


def plain(name: str) -> int:
    """Kernels of a step in plain tinygrad. AssertionError if its loss is not torch CPU's, or tinygrad is patched."""
    from conformance.targets.tinygrad_upstream import choose_compiler

    choose_compiler()  # only the compiler: tinygrad is not patched
    from tinygrad import Tensor, nn
    from tinygrad.helpers import Context, GlobalCounters

    net, (x, y) = network(model(name), "cpu", dropout=False).train(), list(model(name).inputs().values())
    wanted = float(model(name).loss(net(**model(name).inputs())))
    weights: Weights = {k: Tensor(v.detach().numpy().copy()).realize() for k, v in net.named_parameters()}
    data = [Tensor(t.numpy()).realize() for t in (x, y)]
    optimizer = nn.optim.SGD(list(weights.values()), model(name).lr, MOMENTUM)
    count = 0
    for step in range(STEPS):
        before = GlobalCounters.kernel_count
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = NETS[name](weights, *data).backward()
            loss.realize(*optimizer.schedule_step())
        count = GlobalCounters.kernel_count - before
        value = float(loss.item())
        assert step or abs(value - wanted) < 1e-4 * abs(wanted), f"{name}: {value} is not torch CPU's {wanted}"
    patched = [module for module in sys.modules if "tinygrad_patches" in module]
    assert not patched, f"this is not plain tinygrad: {patched[0]} is loaded"
    return count


def ours(name: str, compiled: bool) -> int:
    """Kernels of a step on tiny."""
    from tests.clients.model_runs import train

    return train(model(name), "tiny", compile=compiled, dropout=False, measure=True).kernels


WAYS: dict[str, Callable[[str], int]] = {
    "tinygrad": plain, "tiny": lambda name: ours(name, False), "tiny compiled": lambda name: ours(name, True)
}  # fmt: skip


def main() -> None:
    """Print the table; each figure comes from a separate process."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", action="append", choices=[*NETS], help="may be repeated (default: all)")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(WAYS[args.one[0]](args.one[1]))
        return
    if importlib.util.find_spec("transformers") is None:
        parser.error("transformers is not installed: pip install 'transformers>=5.20'")
    table = Table("model", *WAYS, "tiny to tinygrad", title="Kernels of a training step")
    for name in args.model or NETS:
        counts = []
        for way in WAYS:
            command = [sys.executable, "-W", "ignore", __file__, "--one", way, name]
            # Without DEV tiny computes on the CPU, but plain tinygrad on any GPU or OpenCL driver that it finds.
            device = {**os.environ, "DEV": os.environ.get("DEV") or "CPU"}
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=device)
            counts.append(int(done.stdout.split()[-1]))
        table.add_row(name, *map(str, counts), f"{counts[1] / counts[0]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
