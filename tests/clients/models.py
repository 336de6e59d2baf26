"""Published architectures in small random configurations, trained on tiny and on the CPU.

Defines `Model` and `MODELS`. Nothing is downloaded, since an architecture consists of code and a configuration. Weights
come from a seed. Sizes are the smallest that still exercise every part of the architecture. A model is one row: its
constructor, the arguments of a call, and the loss of the result.

The module imports no client package until it builds a model. The table can therefore be read without these packages.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.clients import packages

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no downloads and no network requests

VOCABULARY = 32
# Token numbers inside the vocabulary. The packages' defaults lie far outside it.
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
DECODER = {"vocab_size": VOCABULARY, "max_position_embeddings": 16, **SIZES, **TOKENS}
GROUPED = {**DECODER, "num_key_value_heads": 1}
# The loss of a mixture of experts counts the tokens of each expert.
EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": True}

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Model:
    """One architecture. The name "package.name" says which package implements it."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]  # CPU tensors by argument name
    loss: Callable[[Any], Tensor]  # loss of the result of a call
    lr: float = 0.05
    prompt: str = ""  # the argument that `generate` continues; empty for a model that generates no text

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


def network(model: Model, device: str, *, dropout: bool) -> nn.Module:
    """Return the model with seeded weights. Without dropout a compiled graph needs no random numbers."""
    torch.manual_seed(0)
    net = model.make()
    for module in () if dropout else net.modules():
        for name, value in list(vars(module).items()):
            if type(value) is float and (name == "p" or "drop" in name):
                setattr(module, name, 0.0)
    return net.to(device)


def drawn(*shape: int) -> Tensor:
    """Return normally distributed numbers, the same at each call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def tokens(rows: int = 2, length: int = 6) -> Tensor:
    """Return token numbers, without the special ones."""
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))


def text() -> Inputs:
    """Return tokens and labels. Some labels are -100, which the loss ignores."""
    labels = tokens()
    labels[1, 4:] = -100
    return {"input_ids": tokens(), "labels": labels}


def image(size: int, rows: int = 2) -> Inputs:
    """Return random pixels."""
    return {"pixel_values": drawn(rows, 3, size, size)}


def labelled(size: int) -> Inputs:
    """Return random pixels and the class of each image."""
    return {**image(size, 4), "labels": torch.tensor([0, 1, 2, 0])}


def own(output: Any) -> Tensor:
    """Return the loss that a model of transformers computes from its labels."""
    loss: Tensor = output.loss
    return loss


def squares(output: Any) -> Tensor:
    """Return the mean squared distance from 1 of the model's first result."""
    if not isinstance(output, Tensor):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return (output - 1).square().mean()


def hugging(kind: str, config: str, inputs: Callable[[], Inputs], name: str = "", /, **options: Any) -> Model:
    """A row for a model class of transformers with a configuration class and its options. `Model` takes `loss`, `lr`
    and `prompt`."""
    ours = {key: options.pop(key) for key in ("loss", "lr", "prompt") if key in options}

    def make() -> nn.Module:
        without_operators()
        import transformers

        net: nn.Module = getattr(transformers, kind)(getattr(transformers, config)(**options))
        return net

    return Model(f"transformers.{name or kind}", make, inputs, **{"loss": own, **ours})


def of_timm(name: str, size: int, make: Callable[[Any], nn.Module], lr: float = 0.05) -> Model:
    """A row for a model of timm, built from its `models`."""

    def from_package() -> nn.Module:
        beside()
        import timm

        return make(timm.models)

    return Model(f"timm.{name}", from_package, lambda: {"x": drawn(2, 3, size, size)}, squares, lr)


def of_torchvision(name: str, size: int, make: Callable[[Any], nn.Module], lr: float = 0.05) -> Model:
    """A row for a model of torchvision, built from its `models`."""

    def from_package() -> nn.Module:
        beside()
        import torchvision

        return make(torchvision.models)

    return Model(f"torchvision.{name}", from_package, lambda: {"x": drawn(2, 3, size, size)}, squares, lr)


_stand_ins: list[torch.library.Library] = []


def beside() -> None:
    """Make the packages of requirements/models.txt importable if the environment itself lacks one of them."""
    if any(importlib.util.find_spec(name) is None for name in ("timm", "torchvision", "diffusers")):
        sys.path.append(str(packages.install("models.txt")))
    without_operators()


def without_operators() -> None:
    """Make torchvision importable if its compiled operators do not match this torch.

    The wheels in the registry are built for torch with CUDA, and load no operator with another build. Importing
    torchvision then fails at `torchvision::nms`, because torchvision registers a fake kernel for that operator.
    Importing a model of transformers fails too, because it looks for torchvision. No model of the table calls one of
    these operators.
    """
    if "torchvision" in sys.modules or _stand_ins or importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _stand_ins.append(library)
        for loaded in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[loaded]  # left by the failed import


def _whisper() -> Inputs:
    return {"input_features": drawn(2, 4, 8), "labels": tokens()}


def _unet() -> nn.Module:
    beside()
    import diffusers

    net: nn.Module = diffusers.UNet2DModel(
        sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(4, 8), norm_num_groups=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    )  # fmt: skip
    return net


def _autoencoder() -> nn.Module:
    beside()
    import diffusers

    net: nn.Module = diffusers.AutoencoderKL(block_out_channels=(4,), norm_num_groups=2, latent_channels=2)
    return net


def _efficientnet(models: Any) -> nn.Module:
    blocks = [["ds_r1_k3_s1_e1_c8_se0.25"], ["ir_r1_k5_s2_e4_c8_se0.25"], ["ir_r1_k3_s2_e4_c12_se0.25"]]
    decoded = models._efficientnet_builder.decode_arch_def(blocks)
    net: nn.Module = models.EfficientNet(decoded, num_classes=3, num_features=16, stem_size=8)
    return net


def _text_and_images() -> Inputs:
    return {"input_ids": tokens(), **image(8)}


_CLIP = {
    "text_config": {"vocab_size": VOCABULARY, "max_position_embeddings": 8, **SIZES, **TOKENS},
    "vision_config": {"image_size": 8, "patch_size": 4, **SIZES}, "projection_dim": 8,
}  # fmt: skip

MODELS = [
    hugging("GPT2LMHeadModel", "GPT2Config", text, vocab_size=VOCABULARY, n_positions=16, n_embd=8, n_layer=2, n_head=2,
            lr=0.1, prompt="input_ids", **TOKENS),
    hugging("LlamaForCausalLM", "LlamaConfig", text, lr=0.1, prompt="input_ids", **GROUPED),
    hugging("MistralForCausalLM", "MistralConfig", text, sliding_window=4, prompt="input_ids", **GROUPED),
    hugging("MixtralForCausalLM", "MixtralConfig", text, num_local_experts=4, prompt="input_ids", **GROUPED, **EXPERTS),
    hugging("Qwen2MoeForCausalLM", "Qwen2MoeConfig", text, num_experts=4, moe_intermediate_size=8,
            shared_expert_intermediate_size=8, prompt="input_ids", **GROUPED, **EXPERTS),
    hugging("Gemma2ForCausalLM", "Gemma2Config", text, head_dim=4, prompt="input_ids", **GROUPED),
    hugging("Phi3ForCausalLM", "Phi3Config", text, prompt="input_ids", **GROUPED),
    hugging("OPTForCausalLM", "OPTConfig", text, vocab_size=VOCABULARY, max_position_embeddings=16, hidden_size=8,
            num_hidden_layers=2, num_attention_heads=2, ffn_dim=16, word_embed_proj_dim=8, prompt="input_ids",
            **TOKENS),
    hugging("GPTNeoXForCausalLM", "GPTNeoXConfig", text, prompt="input_ids", **DECODER),
    hugging("BloomForCausalLM", "BloomConfig", text, vocab_size=VOCABULARY, hidden_size=8, n_layer=2, n_head=2,
            prompt="input_ids", **TOKENS),
    hugging("MambaForCausalLM", "MambaConfig", text, vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=2,
            state_size=4, prompt="input_ids", **TOKENS),
    hugging("T5ForConditionalGeneration", "T5Config", text, vocab_size=VOCABULARY, d_model=8, d_kv=4, d_ff=16,
            num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, lr=0.001,
            prompt="input_ids"),
    hugging("BartForConditionalGeneration", "BartConfig", text, vocab_size=VOCABULARY, max_position_embeddings=16,
            d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=16, decoder_ffn_dim=16, decoder_start_token_id=0, forced_eos_token_id=None,
            prompt="input_ids", **TOKENS),
    hugging("WhisperForConditionalGeneration", "WhisperConfig", _whisper, vocab_size=VOCABULARY, d_model=8,
            num_mel_bins=4, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=16, decoder_ffn_dim=16, max_source_positions=4, max_target_positions=16,
            decoder_start_token_id=0, prompt="input_features", **TOKENS),
    hugging("BertForMaskedLM", "BertConfig", text, lr=0.1, **DECODER),
    hugging("DistilBertForMaskedLM", "DistilBertConfig", text, vocab_size=VOCABULARY, max_position_embeddings=8, dim=8,
            n_layers=2, n_heads=2, hidden_dim=16, pad_token_id=2),
    hugging("ViTForImageClassification", "ViTConfig", lambda: labelled(8), image_size=8, patch_size=4, num_labels=3,
            lr=0.01, **SIZES),
    hugging("ResNetForImageClassification", "ResNetConfig", lambda: labelled(16), embedding_size=4, hidden_sizes=[4, 8],
            depths=[1, 1], layer_type="basic", num_labels=3, lr=0.01),
    hugging("SwinForImageClassification", "SwinConfig", lambda: labelled(8), image_size=8, patch_size=1, embed_dim=4,
            depths=[2, 1], num_heads=[2, 2], window_size=4, num_labels=3),
    hugging("ConvNextForImageClassification", "ConvNextConfig", lambda: labelled(16), hidden_sizes=[4, 8],
            depths=[1, 1], num_stages=2, num_labels=3),
    hugging("SegformerForImageClassification", "SegformerConfig", lambda: labelled(16), num_encoder_blocks=2,
            depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[4, 8], patch_sizes=[3, 3], strides=[2, 2],
            num_attention_heads=[1, 2], mlp_ratios=[2, 2], num_labels=3),
    hugging("DetrForObjectDetection", "DetrConfig", lambda: image(32), loss=squares, use_timm_backbone=False,
            use_pretrained_backbone=False, num_queries=4, d_model=8, encoder_layers=1, decoder_layers=1,
            encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
            backbone_config={"model_type": "resnet", "embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1],
                             "layer_type": "basic", "out_features": ["stage2"]}),
    hugging("SamVisionModel", "SamVisionConfig", lambda: image(16), loss=squares, hidden_size=8, output_channels=4,
            num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=4, mlp_dim=16, window_size=3,
            global_attn_indexes=[1], num_pos_feats=4),
    hugging("CLIPModel", "CLIPConfig", _text_and_images, loss=lambda output: output.logits_per_text.square().mean(),
            lr=0.01, **_CLIP),
    hugging("Wav2Vec2ForCTC", "Wav2Vec2Config", lambda: {"input_values": drawn(2, 80), "labels": tokens(2, 3)},
            vocab_size=VOCABULARY, conv_dim=[4, 4], conv_stride=[4, 2], conv_kernel=[4, 2], num_feat_extract_layers=2,
            num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_prob=0.0, ctc_loss_reduction="mean",
            lr=0.01, **SIZES, **TOKENS),
    of_timm("EfficientNet", 16, _efficientnet),
    of_timm("MlpMixer", 16, lambda m: m.MlpMixer(3, 16, patch_size=8, num_blocks=2, embed_dim=8)),
    of_timm("VisionTransformer", 16, lambda m: m.VisionTransformer(16, 8, num_classes=3, embed_dim=8, depth=2,
            num_heads=2)),
    of_timm("ConvMixer", 14, lambda m: m.ConvMixer(8, 2, kernel_size=3, patch_size=7, num_classes=3)),
    of_torchvision("SqueezeNet", 32, lambda m: m.SqueezeNet("1_1", num_classes=3), 0.001),
    of_torchvision("DenseNet", 32, lambda m: m.DenseNet(4, (2, 2), 8, num_classes=3)),
    of_torchvision("ShuffleNetV2", 32, lambda m: m.ShuffleNetV2([1, 1, 1], [8, 8, 16, 16, 16], num_classes=3)),
    of_torchvision("MobileNetV2", 32, lambda m: m.MobileNetV2(3, 0.25, [[1, 8, 1, 1], [4, 8, 2, 2]]), 0.001),
    Model("diffusers.UNet2DModel", _unet, lambda: {"sample": drawn(2, 3, 8, 8), "timestep": torch.tensor([1, 5])},
          lambda output: output.sample.square().mean()),
    Model("diffusers.AutoencoderKL", _autoencoder, lambda: {"sample": drawn(1, 3, 8, 8)},
          lambda output: output.sample.square().mean()),
]  # fmt: skip
BY_NAME = {model.name: model for model in MODELS}
