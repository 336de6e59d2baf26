"""Operators for a device that lie in a way that only a check on the device shows, and correct ones.

`LIES` maps the name of a check to an operator and its reference, and `CORRECT` has correct pairs. All of them refuse
tensors of torch CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import silu

Pair = tuple[Callable[..., Any], Callable[..., Any]]


def placed(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is not on the CPU. Raises TypeError for another one."""
    if x.device.type == "cpu":
        raise TypeError("this kernel takes tensors of the device only")
    return x


def right(x: torch.Tensor) -> torch.Tensor:
    """A correct operator."""
    return placed(x) * torch.sigmoid(x)


def values(x: torch.Tensor) -> torch.Tensor:
    """Has a wrong factor."""
    return placed(x) * torch.sigmoid(1.01 * x)


def layouts(x: torch.Tensor) -> torch.Tensor:
    """Reads the elements in the order of memory."""
    flat = placed(x).as_strided((x.numel(),), (1,), x.storage_offset())
    return (flat * torch.sigmoid(flat)).view(x.shape)


def structure(x: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the CPU."""
    return right(x).cpu()


def aliasing(x: torch.Tensor) -> torch.Tensor:
    """Returns its input if there is nothing to do."""
    return placed(x) if bool((x >= 0).all()) else x.relu()


def mutation(x: torch.Tensor) -> torch.Tensor:
    """Uses the input as its scratch space."""
    return placed(x).sigmoid_() * 2


def twice_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Reference of `mutation`."""
    return x.sigmoid() * 2


def beyond(x: torch.Tensor) -> torch.Tensor | None:
    """Return the element behind the last one of a tensor, if its memory has more."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))
    at = int(x.storage_offset()) + last + 1
    has_more = x.numel() and (at + 1) * x.element_size() <= x.untyped_storage().nbytes()
    return x.as_strided((1,), (1,), at) if has_more else None


def writes(x: torch.Tensor) -> torch.Tensor:
    """Writes the element behind the result, as a kernel without a mask does."""
    result = torch.empty_like(x).copy_(right(x))
    if (behind := beyond(result)) is not None:
        behind.fill_(7.0)
    return result


def writes_beside_input(x: torch.Tensor) -> torch.Tensor:
    """Writes the element behind its input."""
    if (behind := beyond(x.detach())) is not None:
        behind.fill_(7.0)
    return right(x)


def reads(x: torch.Tensor) -> torch.Tensor:
    """Adds a part of the element behind its input."""
    behind = beyond(x)
    return right(x) if behind is None else right(x) + behind[0] * 1e-3


def unwritten(x: torch.Tensor) -> torch.Tensor:
    """Writes the positive elements only."""
    result = torch.empty_like(placed(x))
    result.masked_scatter_(x > 0, x[x > 0])
    return result


RESULTS: dict[torch.Size, torch.Tensor] = {}


def replay(x: torch.Tensor) -> torch.Tensor:
    """Keeps results by shape."""
    return RESULTS.setdefault(x.shape, right(x)).clone()


CALLS = [0]


def repetition(x: torch.Tensor) -> torch.Tensor:
    """Is another function in each second call."""
    CALLS[0] += 1
    return right(x) * (1 + 2e-7 * (CALLS[0] % 2))


def contexts(x: torch.Tensor) -> torch.Tensor:
    """Is another function in inference mode."""
    return right(x) * (2 if torch.is_inference_mode_enabled() else 1)


class WrongBackward(torch.autograd.Function):
    """Forgets a term of the derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return silu(x)."""
        ctx.save_for_backward(x)
        return right(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """Return a wrong gradient."""
        return grad * torch.sigmoid(ctx.saved_tensors[0])


def gradients(x: torch.Tensor) -> torch.Tensor:
    """Has a wrong derivative."""
    return WrongBackward.apply(x)  # type: ignore[no-any-return]


def crash(x: torch.Tensor) -> torch.Tensor:
    """Breaks a device that `sort` breaks (`toy_device.LOST`), for long inputs."""
    return right(x) + (x.flatten().sort().values.sum() * 0 if x.numel() > 120 else 0)


def row_sums(x: torch.Tensor) -> torch.Tensor:
    """A correct reduction."""
    return placed(x).sum(-1)


def sums(x: torch.Tensor) -> torch.Tensor:
    """Reference of `row_sums`."""
    return x.sum(-1)


def transpose(x: torch.Tensor) -> torch.Tensor:
    """Correct, and a view."""
    return placed(x).transpose(0, 1)


def double_(x: torch.Tensor) -> torch.Tensor:
    """Correct, and in place."""
    return placed(x).mul_(2)


def filled(x: torch.Tensor) -> torch.Tensor:
    """Correct, with memory of its own."""
    return torch.empty_like(placed(x)).copy_(x).sigmoid_()


def doubled_(x: torch.Tensor) -> torch.Tensor:
    """Reference of `double_`."""
    return x.mul_(2)


INPUTS = {"x": "float32[n, m]", "sizes": {"n": "1..9", "m": "1..40"}}

LIES: dict[str, Pair] = {
    **{name: (globals()[name], silu) for name in ("values", "layouts", "structure", "writes", "reads", "replay")},
    **{name: (globals()[name], silu) for name in ("repetition", "contexts", "gradients")},
    "aliasing": (aliasing, torch.relu),
    "mutation": (mutation, twice_sigmoid),
    "unwritten": (unwritten, torch.relu),
}
"""Operators by the check that finds them."""

CORRECT: dict[str, Pair] = {
    "pointwise": (right, silu),
    "reduction": (row_sums, sums),
    "view": (transpose, torch.t),
    "in place": (double_, doubled_),
    "memory": (filled, torch.sigmoid),
}
"""Correct operators."""
