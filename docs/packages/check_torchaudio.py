"""Operators of torchaudio against slow versions in plain torch: `pytest docs/packages/check_torchaudio.py`."""

from __future__ import annotations

import itertools

import torch
import torchaudio.functional as audio
from torch import Tensor
from torch.nn import functional as nn

import conformance

LFILTER = {
    **dict.fromkeys(("compile", "dynamic"), "torchaudio-lfilter-compile"),
    "autocast": "torchaudio-lfilter-autocast",
}
CONTIGUOUS = dict.fromkeys(("layouts", "gradients"), "the operator says that its input must be contiguous")
SUMS = {"specials": "infinities cancel in the operator's sum, and not in the reference's"}
WAVES = {
    "waveform": "float32[n] | float32[c, n] | float32[b, c, n]",
    "sizes": {"b": "1..3", "c": "1..3", "n": "1..130"},
}


def filtered(wave: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Difference equation along the last dimension of wave [..., time]."""
    inputs, outputs = [*wave.unbind(-1)], list[Tensor]()
    for at in range(len(inputs)):
        total = sum((b[k] * inputs[at - k] for k in range(len(b)) if k <= at), torch.zeros_like(inputs[0]))
        total = total - sum((a[k] * outputs[at - k] for k in range(1, len(a)) if k <= at), torch.zeros_like(inputs[0]))
        outputs.append(total / a[0])
    return torch.stack(outputs, -1) if outputs else wave.clone()


def test_lfilter():
    def lfilter(waveform, a_coeffs, b_coeffs, clamp=True, batching=True):
        if a_coeffs.shape != b_coeffs.shape:
            raise ValueError("a and b have one shape")
        if not batching:
            waveform = torch.stack([waveform] * len(a_coeffs), -2)
        if waveform.size(-2) != len(a_coeffs):
            raise ValueError("one filter for each channel")
        rows = [filtered(waveform[..., c, :], a_coeffs[c], b_coeffs[c]) for c in range(len(a_coeffs))]
        made = torch.stack(rows, -2)
        return made.clamp(-1, 1) if clamp else made

    conformance.check(
        audio.lfilter,
        reference=lfilter,
        inputs={
            "waveform": "float32[b, c, n] in -1..1",
            "a_coeffs": "float32[c, k] in 1..2",
            "b_coeffs": "float32[c, k] in 0..1",
            "clamp": "False | True",
            "batching": "True",
            "sizes": {"b": "1..3", "c": "1..3", "n": "1..17", "k": "2..4"},
        },
        exclude=LFILTER,
    )


def test_overdrive():
    def overdrive(waveform, gain=20, colour=20):
        temp = waveform * 10 ** (gain / 20) + colour / 200
        temp = torch.where(temp < -1, -2 / 3, torch.where(temp > 1, 2 / 3, temp - temp**3 / 3))
        last_in, last_out, made = torch.zeros_like(temp[..., 0]), torch.zeros_like(temp[..., 0]), []
        for at in range(temp.size(-1)):
            last_out = temp[..., at] - last_in + 0.995 * last_out
            last_in = temp[..., at]
            made.append(waveform[..., at] * 0.5 + last_out * 0.75)
        return torch.stack(made, -1).clamp(-1, 1)

    conformance.check(
        audio.overdrive,
        reference=overdrive,
        inputs={**WAVES, "gain": "float in 0..30", "colour": "float in 0..100"},
        exclude={
            "layouts": "torchaudio-overdrive-strides",
            "gradients": "torchaudio-overdrive-gradient",
            **dict.fromkeys(("compile", "dynamic"), "torchaudio-lfilter-compile"),
        },
    )


def test_dcshift():
    def dcshift(waveform, shift, limiter_gain=None):
        if limiter_gain is None or shift == 0:
            return (waveform + shift).clamp(-1, 1)
        threshold = 1.0 - (abs(shift) - limiter_gain)
        if shift > 0:
            peak = (waveform - threshold) * limiter_gain / (1 - threshold) + threshold + shift
            return torch.where(waveform > threshold, peak.clamp(max=threshold), (waveform + shift).clamp(-1, 1))
        peak = (waveform + threshold) * limiter_gain / (1 - threshold) - threshold + shift
        return torch.where(waveform < -threshold, peak.clamp(min=-threshold), (waveform + shift).clamp(-1, 1))

    conformance.check(
        audio.dcshift,
        reference=dcshift,
        inputs={**WAVES, "shift": "float in -1..1", "limiter_gain": "None | 0.05"},
        exclude=dict.fromkeys(("aliasing", "mutation", "compile", "dynamic"), "torchaudio-dcshift-in-place"),
    )


def test_rnnt_loss():
    def rnnt_loss(logits, targets, logit_lengths, target_lengths, blank=-1, reduction="mean"):
        if targets.dtype is not torch.int32 or targets.shape != (len(logits), logits.size(2) - 1):
            raise ValueError("targets are int32 [batch, states - 1]")
        blank, logs, costs = blank % logits.size(-1), logits.log_softmax(-1), []
        for one, target in zip(logs, targets.long()):
            frames, states = one.size(0), len(target) + 1
            rows: list[Tensor] = []
            for t, u in itertools.product(range(frames), range(states)):
                ways = [rows[-states] + one[t - 1, u, blank]] if t else []
                ways += [rows[-1] + one[t, u - 1, target[u - 1]]] if u else []
                rows.append(torch.logsumexp(torch.stack(ways), 0) if ways else one.new_zeros(()))
            costs.append(-rows[-1] - one[-1, -1, blank])
        losses = torch.stack(costs)
        return {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]

    def operator(logits, targets, logit_lengths, target_lengths, blank=-1, reduction="mean"):
        b, t, u, _ = logits.shape
        lengths = torch.full((b,), t, dtype=torch.int32), torch.full((b,), u - 1, dtype=torch.int32)
        return audio.rnnt_loss(logits, targets, *lengths, blank=blank, reduction=reduction)

    conformance.check(
        operator,
        reference=rnnt_loss,
        inputs={
            "logits": "float32[b, t, u+1, c]",
            "targets": "int32[b, u] in 0..c-2",
            "logit_lengths": "None",
            "target_lengths": "None",
            "reduction": '"mean" | "sum" | "none"',
            "sizes": {"b": "1..3", "t": "1..9", "u": "1..5", "c": "2..33"},
        },
        exclude={**CONTIGUOUS, **dict.fromkeys(("compile", "dynamic"), "torchaudio-rnnt-loss-compile")},
    )


def test_forced_align():
    def forced_align(log_probs, targets, blank=0):
        if len(log_probs) != 1 or not targets.numel():
            raise ValueError("a batch of 1")
        if blank in targets or int(targets.max()) >= log_probs.size(-1):
            raise ValueError("targets are labels")
        (one,), (target,) = log_probs, targets.tolist()
        labels = [blank, *(label for each in target for label in (each, blank))]
        if one.size(0) < len(target) + sum(a == b for a, b in zip(target, target[1:])):
            raise ValueError("too few frames")
        best: list[tuple[float, list[int]]] = []
        for t, row in enumerate(one.tolist()):
            step = []
            for s, label in enumerate(labels):
                if t == 0:
                    ways = [(0.0, [])] if s < 2 else []
                else:
                    ways = [best[s]] + ([best[s - 1]] if s else [])
                    ways += [best[s - 2]] if s > 1 and label != blank and label != labels[s - 2] else []
                score, path = max(ways, key=lambda way: way[0], default=(-torch.inf, []))
                step.append((score + row[label], [*path, label]))
            best = step
        path = torch.tensor([max(best[-2:], key=lambda way: way[0])[1]], dtype=targets.dtype)
        return path, one.gather(1, path[0, :, None].long())[None, :, 0]

    def operator(log_probs, targets, blank=0):
        return audio.forced_align(log_probs, targets, blank=blank)

    conformance.check(
        operator,
        reference=forced_align,
        inputs={
            "log_probs": "float32/float64[1, t, c] in -9..0",
            "targets": "int32/int64[1, l] in 1..c-1",
            "sizes": {"t": "1..33", "c": "2..17", "l": "1..5"},
        },
        exclude=CONTIGUOUS,
    )


def test_sliding_window_cmn():
    def cmn(specgram, cmn_window=600, min_cmn_window=100, center=False):
        frames, rows = specgram.size(-2), []
        for t in range(frames):
            start, end = (t - cmn_window // 2, t - cmn_window // 2 + cmn_window) if center else (t - cmn_window, t + 1)
            start, end = (0, end - start) if start < 0 else (start, end)
            if not center and end > t:
                end = max(t + 1, min_cmn_window)
            if end > frames:
                start, end = max(start - (end - frames), 0), frames
            rows.append(specgram[..., t, :] - specgram[..., start:end, :].mean(-2))
        return torch.stack(rows, -2)

    conformance.check(
        audio.sliding_window_cmn,
        reference=cmn,
        inputs={
            "specgram": "float32[n, m] | float32[c, n, m]",
            "cmn_window": "600 | 5",
            "min_cmn_window": "100 | 3",
            "center": "False | True",
            "sizes": {"c": "1..3", "n": "1..33", "m": "1..33"},
        },
        exclude={
            **SUMS,
            **dict.fromkeys(("compile", "dynamic"), "a compiler unrolls the loop over all frames"),
            "layouts": "torchaudio-overdrive-strides",
            "shape": "torchaudio-cmn-one-frame",
            "vmap": "it writes into tensors of its own, which vmap refuses",
        },
    )


def test_compute_deltas():
    def deltas(specgram, win_length=5):
        n = (win_length - 1) // 2
        at = torch.arange(specgram.size(-1))
        total = sum(
            k * (specgram[..., (at + k).clamp(max=len(at) - 1)] - specgram[..., (at - k).clamp(min=0)])
            for k in range(1, n + 1)
        )
        return total / (2 * sum(k * k for k in range(1, n + 1)))

    conformance.check(
        audio.compute_deltas,
        reference=deltas,
        inputs={
            "specgram": "float32[n, m] | float32[c, n, m]",
            "win_length": "3 | 5 | 6",
            "sizes": {"c": "1..3", "n": "1..33", "m": "1..130"},
        },
        exclude=SUMS,
    )


def test_amplitude_to_db():
    def decibels(x, multiplier, amin, db_multiplier, top_db=None):
        made = multiplier * x.clamp(min=amin).log10() - multiplier * db_multiplier
        if top_db is None:
            return made
        least = made.amax(tuple(range(max(made.dim() - 3, 0), made.dim())), keepdim=True) - top_db
        return torch.maximum(made, least)

    conformance.check(
        audio.amplitude_to_DB,
        reference=decibels,
        inputs={
            "x": "float32[n, m] in 0..9 | float32[c, n, m] in 0..9 | float32[b, c, n, m] in 0..9",
            "multiplier": "10.0 | 20.0",
            "amin": 1e-10,
            "db_multiplier": "0.0 | 1.0",
            "top_db": "None | 8.0",
            "sizes": {"b": "1..3", "c": "1..3", "n": "1..33", "m": "1..33"},
        },
    )


def test_mu_law():
    def encoded(x, quantization_channels):
        mu = quantization_channels - 1.0
        made = x.sign() * torch.log1p(mu * x.abs()) / torch.log1p(torch.tensor(mu, dtype=x.dtype))
        return ((made + 1) / 2 * mu + 0.5).to(torch.int64)

    conformance.check(
        audio.mu_law_encoding,
        reference=encoded,
        inputs={
            "x": "float32/float64[n, m] in -1..1",
            "quantization_channels": "256 | 16",
            "sizes": {"n": "1..9", "m": "1..130"},
        },
    )


def full(x: Tensor, y: Tensor, mode: str = "full") -> Tensor:
    """Convolution along the last dimension."""
    n, m = x.size(-1), y.size(-1)
    rows = [x[..., k, None] * y for k in range(n)]
    made = sum(nn.pad(row, (k, n - 1 - k)) for k, row in enumerate(rows))
    if mode == "full":
        return made
    length = max(n, m) - min(n, m) + 1 if mode == "valid" else n
    start = (n + m - 1 - length) // 2
    return made[..., start : start + length]


CONVOLVED = {
    "x": "float32[b, n] | float32[b, c, n]",
    "y": "float32[b, m] | float32[b, 1, m]",
    "mode": '"full" | "full" | "valid" | "valid" | "same" | "same"',
    "sizes": {"b": "1..4", "c": "1..4", "n": "1..65", "m": "1..65"},
}


def test_convolve():
    conformance.check(audio.convolve, reference=full, inputs=CONVOLVED)


def test_fftconvolve():
    conformance.check(audio.fftconvolve, reference=full, inputs=CONVOLVED, exclude=SUMS)


def test_preemphasis():
    def preemphasis(waveform, coeff=0.97):
        return waveform - coeff * nn.pad(waveform, (1, 0))[..., :-1]

    conformance.check(audio.preemphasis, reference=preemphasis, inputs={**WAVES, "coeff": "float in 0..1"})


def test_deemphasis():
    def deemphasis(waveform, coeff=0.97):
        return filtered(waveform, torch.tensor([1.0, -coeff]), torch.tensor([1.0])).clamp(-1, 1)

    conformance.check(
        audio.deemphasis, reference=deemphasis, inputs={**WAVES, "coeff": "float in 0..1"}, exclude={**LFILTER, **SUMS}
    )


def test_add_noise():
    def add_noise(waveform, noise, snr, lengths=None):
        mask = 1 if lengths is None else (torch.arange(waveform.size(-1)) < lengths[..., None]).to(waveform.dtype)
        energy = [(one * mask).square().sum(-1) for one in (waveform, noise)]
        return waveform + (energy[0] / energy[1] * 10 ** (-snr / 10)).sqrt()[..., None] * noise

    conformance.check(
        audio.add_noise,
        reference=add_noise,
        inputs={
            "waveform": "float32[b, n]",
            "noise": "float32[b, n]",
            "snr": "float32[b] in -9..9",
            "lengths": "None | int64[b] in 1..n",
            "sizes": {"b": "1..5", "n": "1..130"},
        },
        exclude={"mixed": "the sum cancels, so rounding decides"},
    )


def test_apply_beamforming():
    def beamformed(beamform_weights, specgram):
        return torch.einsum("...fc,...cft->...ft", beamform_weights.conj(), specgram)

    conformance.check(
        audio.apply_beamforming,
        reference=beamformed,
        inputs={
            "beamform_weights": "complex64[f, c] | complex64[b, f, c]",
            "specgram": "complex64[c, f, t] | complex64[b, c, f, t]",
            "sizes": {"b": "1..3", "f": "1..9", "c": "1..5", "t": "1..33"},
        },
    )
