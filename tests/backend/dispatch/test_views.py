"""torch treats views that Python code creates like its own views."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import conformance.backend  # noqa: F401

View = Callable[[torch.Tensor], torch.Tensor]
VIEWS: dict[str, View] = {
    "imag": lambda t: t.imag,
    "view_as_real": torch.view_as_real,
    "dtype": lambda t: t.view(torch.float32),
    "view_as_complex": lambda t: torch.view_as_complex(torch.view_as_real(t)),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("created", [False, True], ids=["before the mode", "in the mode"])
def test_a_view_in_inference_mode(name: str, created: bool) -> None:
    """A view has the kind that torch CPU gives it: normal or inference tensor. Formerly torch refused to set the
    version counter of a view of a normal tensor."""
    seen = []
    for device in ("cpu", "tiny"):
        with torch.inference_mode(created):
            t = torch.tensor([1 + 2j, 3j]).to(device)
        with torch.inference_mode():
            view = VIEWS[name](t)
            view.mul_(2)
            seen.append((view.is_inference(), view.tolist(), t.tolist()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("size", "stride"),
    [((2, 3), (-1, 1)), ((1, 3), (-1, 1)), ((0, 3), (-1, 1)), ((2, -1), (1, 1)), ((2,), (1, 1)), ((2,), (2**62,)),
     ((2**40, 2**40), (2**40, 1)), ((3, 2), (1, 3)), ((3, 2), (0, 0)), ((), ())],
)  # fmt: skip
def test_empty_strided(size: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Strides that torch CPU refuses raise its error. A negative stride formerly ended the process."""
    seen: list[object] = []
    for device in ("cpu", "tiny"):
        try:
            tensor = torch.empty_strided(size, stride, device=device)
        except RuntimeError as error:
            seen.append((type(error), str(error).splitlines()[0]))
        else:
            seen.append((tensor.shape, tensor.stride(), tensor.dtype, tensor.untyped_storage().nbytes()))
    assert seen[0] == seen[1]


def test_empty_strided_has_the_default_dtype_of_the_call() -> None:
    """The dtype of equal calls follows torch's default."""
    seen = []
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            seen.append(torch.empty_strided((3,), (1,), device="tiny").dtype)
    finally:
        torch.set_default_dtype(torch.float32)
    assert seen == [torch.float32, torch.float64]
