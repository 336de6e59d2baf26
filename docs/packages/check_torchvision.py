"""Operators of torchvision against slow versions in plain torch: `pytest docs/packages/torchvision.py`."""

from __future__ import annotations

import cmath
import itertools
import math

import torch
import torchvision
from torch import Tensor

import conformance

ops = torch.ops.torchvision
BOXES = {"a": "float32[n, 4] in 0..20", "b": "float32[m, 4] in 0..20", "sizes": {"n": "0..1025", "m": "0..40"}}
IMAGES = {"b": "1..3", "c": "1..9", "h": "1..33", "w": "1..33", "k": "0..9"}
ROIS = {"rois": "float32/float64[k, 5] in 0..b-1", "spatial_scale": "float in 0..9"}
POOLED = {"pooled_height": "int in 1..4", "pooled_width": "int in 1..4"}


def area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def overlap(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a, b = a[:, None], b[None]
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    return shared, area(a) + area(b) - shared


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    if dets.dim() != 2 or dets.size(1) != 4 or scores.shape != dets.shape[:1] or dets.dtype != scores.dtype:
        raise ValueError("boxes [n, 4] and scores [n]")
    shared, union = overlap(dets, dets)
    too_near, kept = shared / union > iou_threshold, []
    for at in scores.sort(descending=True, stable=True).indices.tolist():
        if not any(bool(too_near[at, other]) for other in kept):
            kept.append(at)
    return torch.tensor(kept, dtype=torch.int64)


def corners(points: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Weights [..., size] of the pixels of an axis at these points; 0 outside."""
    at = points.clamp(0, max(size - 1, 0))
    pixels = torch.arange(size, dtype=points.dtype)
    weight = (1 - (at[..., None] - pixels).abs()).clamp(min=0)
    return weight * ((points >= -1) & (points <= size))[..., None]


def averaged(start: Tensor, length: Tensor, bins: int, sampling_ratio: int, size: int) -> list[Tensor]:
    """Mean weights [bins, size] of the pixels in each bin of an axis, for one region."""
    step = length / bins
    count = sampling_ratio if sampling_ratio > 0 else int(torch.ceil(step))
    points = start + step * (torch.arange(bins)[:, None] + (torch.arange(max(count, 1)) + 0.5) / max(count, 1))
    return corners(points, size).mean(1) if count else torch.zeros(bins, size, dtype=points.dtype)


INSIDE = {"specials": "interpolation weights of 0 make nan of infinities in the reference only"}


def regions(input: Tensor, rois: Tensor, scale: float, height: int, width: int, ratio: int, aligned: bool) -> Tensor:
    """Averages [k, c, height, width] of each region."""
    if rois.dtype != input.dtype or not input.is_floating_point():
        raise ValueError("rois have the dtype of the input")
    made = input.new_zeros(len(rois), input.size(1), height, width)
    for k, roi in enumerate(rois.detach()):
        box = roi[1:] * scale - (0.5 if aligned else 0)
        size = box[2:] - box[:2] if aligned else (box[2:] - box[:2]).clamp(min=1)
        rows = averaged(box[1], size[1], height, ratio, input.size(2))
        columns = averaged(box[0], size[0], width, ratio, input.size(3))
        made[k] = torch.einsum("chw,ih,jw->cij", input[int(roi[0])], rows, columns)
    return made


def roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    return regions(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)


def pixels(start: float, length: float, bins: int, size: int) -> list[range]:
    """The pixels of each bin of an axis."""
    step = length / bins
    ends = [(math.floor(k * step) + start, math.ceil((k + 1) * step) + start) for k in range(bins)]
    return [range(*(int(min(max(end, 0), size)) for end in each)) for each in ends]


def rounded(number: Tensor) -> float:
    """The nearest whole number, and of two the one further from 0."""
    return math.copysign(math.floor(abs(float(number)) + 0.5), float(number))


def roi_pool(input, rois, spatial_scale, pooled_height, pooled_width):
    if rois.dtype != input.dtype:
        raise ValueError("rois have the dtype of the input")
    height, width = input.shape[2:]
    made = input.new_zeros(len(rois), input.size(1), pooled_height, pooled_width)
    argmax = torch.full(made.shape, -1, dtype=torch.int32)
    for k, roi in enumerate(rois.detach()):
        left, top, right, bottom = (rounded(one * spatial_scale) for one in roi[1:])
        rows = pixels(top, max(bottom - top + 1, 1), pooled_height, height)
        columns = pixels(left, max(right - left + 1, 1), pooled_width, width)
        for i, j in itertools.product(range(pooled_height), range(pooled_width)):
            if rows[i] and columns[j]:
                part = input[int(roi[0]), :, rows[i].start : rows[i].stop, columns[j].start : columns[j].stop]
                made[k, :, i, j], at = part.flatten(1).max(1)
                y, x = rows[i].start + at // len(columns[j]), columns[j].start + at % len(columns[j])
                argmax[k, :, i, j] = (y * width + x).int()
    return made, argmax


def grouped(input: Tensor, rois: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """An empty result of a position-sensitive operator, and the channel that each element reads."""
    if rois.dtype != input.dtype or input.size(1) % (height * width):
        raise ValueError("channels are a multiple of the bins")
    channels = torch.arange(input.size(1), dtype=torch.int32).view(-1, height, width)
    return input.new_zeros(len(rois), *channels.shape), channels.expand(len(rois), -1, -1, -1)


def ps_roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio):
    made, channels = grouped(input, rois, pooled_height, pooled_width)
    for k, roi in enumerate(rois.detach()):
        box = roi[1:] * spatial_scale - 0.5
        rows = averaged(box[1], box[3] - box[1], pooled_height, sampling_ratio, input.size(2))
        columns = averaged(box[0], box[2] - box[0], pooled_width, sampling_ratio, input.size(3))
        image = input[int(roi[0])].reshape(-1, pooled_height, pooled_width, *input.shape[2:])
        made[k] = torch.einsum("cijhw,ih,jw->cij", image, rows, columns)
    return made, channels


def ps_roi_pool(input, rois, spatial_scale, pooled_height, pooled_width):
    made, channels = grouped(input, rois, pooled_height, pooled_width)
    height, width = input.shape[2:]
    for k, roi in enumerate(rois.detach()):
        left, top, right, bottom = (rounded(one * spatial_scale) for one in roi[1:])
        rows = pixels(top, max(bottom - top, 1), pooled_height, height)
        columns = pixels(left, max(right - left, 1), pooled_width, width)
        for i, j in itertools.product(range(pooled_height), range(pooled_width)):
            if rows[i] and columns[j]:
                part = input[int(roi[0])].reshape(-1, pooled_height, pooled_width, height, width)[:, i, j]
                part = part[:, rows[i].start : rows[i].stop, columns[j].start : columns[j].stop]
                made[k, :, i, j] = part.mean((1, 2))
    return made, channels


def deform_conv2d(input, offset, weight, bias=None, padding=0, mask=None):
    if offset.dtype != input.dtype or weight.dtype != input.dtype:
        raise ValueError("one dtype")
    (b, _, h, w), (kh, kw) = input.shape, weight.shape[2:]
    rows, columns = h + 2 * padding - kh + 1, w + 2 * padding - kw + 1
    if rows < 1 or columns < 1 or offset.shape != (b, 2 * kh * kw, rows, columns):
        raise ValueError("no result")
    parts = []
    for k, (i, j) in enumerate(itertools.product(range(kh), range(kw))):
        y = torch.arange(rows)[:, None] + i - padding + offset[:, 2 * k]
        x = torch.arange(columns) + j - padding + offset[:, 2 * k + 1]
        part = torch.einsum("bchw,bijh,bijw->bcij", input, near(y, h), near(x, w))
        parts.append(part if mask is None else part * mask[:, k, None])
    made = torch.einsum("kbcij,ock->boij", torch.stack(parts), weight.flatten(2))
    return made if bias is None else made + bias[:, None, None]


def near(points: Tensor, size: int) -> Tensor:
    """Weights [..., size] of the pixels of an axis next to these points."""
    return (1 - (points[..., None] - torch.arange(size, dtype=points.dtype)).abs()).clamp(min=0)


def iou(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    shared, union = overlap(boxes1, boxes2)
    return shared / union


def hull(a: Tensor, b: Tensor) -> Tensor:
    """Sides [n, m, 2] of the smallest box around two boxes."""
    a, b = a[:, None], b[None]
    return torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])


def rotated_corners(box: list[float]) -> list[complex]:
    x, y, w, h, degrees = box
    turn = cmath.rect(1, -math.radians(degrees))
    return [complex(x, y) + complex(dx * w / 2, dy * h / 2) * turn for dx, dy in ((-1, -1), (1, -1), (1, 1), (-1, 1))]


def cut(polygon: list[complex], a: complex, b: complex) -> list[complex]:
    """The part of a polygon on the left of the line through two points."""
    side = [((b - a).conjugate() * (one - a)).imag for one in polygon]
    made = []
    for k, one in enumerate(polygon):
        last = k - 1
        if side[k] * side[last] < 0:
            made.append(polygon[last] + (one - polygon[last]) * side[last] / (side[last] - side[k]))
        if side[k] >= 0:
            made.append(one)
    return made


def surface(polygon: list[complex]) -> float:
    return abs(sum((a.conjugate() * b).imag for a, b in zip(polygon, polygon[1:] + polygon[:1]))) / 2


def box_iou_rotated(boxes1, boxes2):
    if boxes1.dtype != boxes2.dtype:
        raise ValueError("one dtype")
    made = torch.zeros(len(boxes1), len(boxes2))
    for (i, a), (j, b) in itertools.product(enumerate(boxes1.tolist()), enumerate(boxes2.tolist())):
        polygon, other = rotated_corners(a), rotated_corners(b)
        for k in range(4):
            polygon = cut(polygon, other[k - 1], other[k])
        shared = surface(polygon)
        made[i, j] = shared / (a[2] * a[3] + b[2] * b[3] - shared)
    return made


def test_nms():
    inputs = {"dets": "float32/float64[n, 4] in 0..20", "scores": "float32/float64[n] in 0..1"}
    conformance.check(
        ops.nms, reference=nms, inputs={**inputs, "iou_threshold": "float in 0..1", "sizes": {"n": "0..100"}}
    )


def test_roi_align():
    inputs = {
        "input": "float32/float64[b, c, h, w]",
        **ROIS,
        **POOLED,
        "sampling_ratio": "-1 | 1 | 2",
        "aligned": "False | True",
        "sizes": IMAGES,
    }
    conformance.check(ops.roi_align, reference=roi_align, inputs=inputs, exclude=INSIDE)


def test_roi_pool():
    conformance.check(
        ops.roi_pool,
        reference=roi_pool,
        inputs={"input": "float32/float64[b, c, h, w]", **ROIS, **POOLED, "sizes": IMAGES},
        exclude=INSIDE,
    )


GROUPED = {"input": "float32/float64[b, 6*c, h, w]", **ROIS, "pooled_height": 2, "pooled_width": 3, "sizes": IMAGES}


def test_ps_roi_align():
    # With a sampling ratio of -1, regions without an area are nan: torchvision-ps-roi-align-nan.
    conformance.check(
        ops.ps_roi_align, reference=ps_roi_align, inputs={**GROUPED, "sampling_ratio": "1 | 2"}, exclude=INSIDE
    )


def test_ps_roi_pool():
    known = dict.fromkeys(("values", "layouts", "blocks", "gradients"), "torchvision-ps-roi-pool-edge")
    conformance.check(ops.ps_roi_pool, reference=ps_roi_pool, inputs=GROUPED, exclude={**INSIDE, **known})


def test_deform_conv2d():
    conformance.check(
        torchvision.ops.deform_conv2d,
        reference=deform_conv2d,
        inputs={
            "input": "float32/float64[b, c, h+1, w+2]",
            "offset": "float32/float64[b, 12, h, w] in -2..2",
            "weight": "float32/float64[o, c, 2, 3]",
            "bias": "None | float32/float64[o]",
            "padding": 0,
            "mask": "None | float32/float64[b, 6, h, w]",
            "sizes": {"b": "1..3", "c": "1..5", "h": "1..17", "w": "1..17", "o": "1..5"},
        },
        exclude=INSIDE,
    )


PAIRS = {"boxes1": "float32[n, 4] in 0..9", "boxes2": "float32[m, 4] in 0..9", "sizes": {"n": "0..130", "m": "0..130"}}


def test_box_iou():
    conformance.check(torchvision.ops.box_iou, reference=iou, inputs=PAIRS)


def test_box_iou_of_integers():
    def of_integers(boxes1, boxes2):
        return iou(boxes1.long(), boxes2.long())

    inputs = {**PAIRS, "boxes1": "uint8/int16[n, 4] in 0..99", "boxes2": "uint8/int16[m, 4] in 0..99"}
    known = dict.fromkeys(("values", "layouts", "blocks"), "torchvision-box-iou-bytes")
    conformance.check(torchvision.ops.box_iou, reference=of_integers, inputs=inputs, exclude=known)


def test_generalized_box_iou():
    def generalized(boxes1, boxes2):
        shared, union = overlap(boxes1, boxes2)
        around = hull(boxes1, boxes2).clamp(min=0).prod(-1)
        return shared / union - (around - union) / around

    conformance.check(torchvision.ops.generalized_box_iou, reference=generalized, inputs=PAIRS)


def test_distance_box_iou():
    def distance(boxes1, boxes2, eps=1e-7):
        diagonal = hull(boxes1, boxes2).clamp(min=0).square().sum(-1) + eps
        centers = [(boxes[:, :2] + boxes[:, 2:]) / 2 for boxes in (boxes1, boxes2)]
        return iou(boxes1, boxes2) - (centers[0][:, None] - centers[1]).square().sum(-1) / diagonal

    conformance.check(torchvision.ops.distance_box_iou, reference=distance, inputs=PAIRS)


def test_box_iou_rotated():
    conformance.check(
        ops.box_iou_rotated,
        reference=box_iou_rotated,
        inputs={
            "boxes1": "float32/float64[n, 5] in 1..9",
            "boxes2": "float32/float64[m, 5] in 1..9",
            "sizes": {"n": "1..9", "m": "1..9"},
        },
    )


def test_masks_to_boxes():
    def boxes(masks):
        made = torch.zeros(len(masks), 4)
        for k, mask in enumerate(masks):
            at = mask.nonzero()
            if len(at):
                made[k] = torch.cat([at.amin(0).flip(0), at.amax(0).flip(0)]).float()
        return made

    conformance.check(
        torchvision.ops.masks_to_boxes,
        reference=boxes,
        inputs={"masks": "bool[n, h, w] | uint8[n, h, w] in 0..1", "sizes": {"n": "0..9", "h": "1..33", "w": "1..33"}},
    )


def test_sigmoid_focal_loss():
    def focal(inputs, targets, alpha=0.25, gamma=2, reduction="none"):
        p = inputs.sigmoid()
        right = p * targets + (1 - p) * (1 - targets)
        entropy = torch.nn.functional.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
        loss = (alpha * targets + (1 - alpha) * (1 - targets)) * entropy * (1 - right) ** gamma
        return {"none": loss, "mean": loss.mean(), "sum": loss.sum()}[reduction]

    conformance.check(
        torchvision.ops.sigmoid_focal_loss,
        reference=focal,
        inputs={
            "inputs": "float32[n, m]",
            "targets": "float32[n, m] in 0..1",
            "alpha": "0.25 | 0.5",
            "gamma": "2 | 1",
            "reduction": '"none" | "mean" | "sum"',
            "sizes": {"n": "0..70", "m": "0..130"},
        },
        exclude={"dynamic": "pytorch#185715"},
    )
