"""`device="tiny"` while the second device is current. Formerly tensors whose index C++ fills in went to the first
device."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import conformance.backend  # noqa: F401 - registers the device


@pytest.fixture(autouse=True)
def _two_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TINY_DEVICES", "2")
    yield
    monkeypatch.setenv("TINY_DEVICES", "2")
    torch.tiny.set_device(0)


def _loaded() -> torch.Tensor:
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    tensor: torch.Tensor = torch.load(file, map_location="tiny")
    return tensor


PAIRS = [[1.0], [2.0, 3.0]]
MAKERS: dict[str, Callable[[], Any]] = {
    "to a name": lambda: torch.ones(2).to("tiny"),
    "to a device": lambda: torch.ones(2).to(torch.device("tiny")),
    "to by keyword": lambda: torch.ones(2).to(device="tiny"),
    "from the first": lambda: torch.ones(2, device="tiny:0").to("tiny"),
    "tensor": lambda: torch.tensor([1.0], device="tiny"),
    "as_tensor": lambda: torch.as_tensor([1.0], device="tiny"),
    "randperm": lambda: torch.randperm(3, device="tiny"),
    "ones": lambda: torch.ones(2, device="tiny"),
    "module": lambda: torch.nn.Linear(1, 1).to("tiny").weight,
    "load": _loaded,
    "jagged": lambda: torch.nested.nested_tensor(PAIRS, layout=torch.jagged, device="tiny").values(),
    "legacy": lambda: torch.tiny.FloatTensor([1.0]),
    "sparse": lambda: torch.sparse_coo_tensor([[0]], [1.0], (2,), device="tiny"),  # formerly an assertion in C++
    "storage": lambda: torch.UntypedStorage(4, device="tiny"),
    "stream": lambda: torch.Stream(device="tiny"),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("where", [1, "tiny:1"])
def test_the_current_device(name: str, where: int | str) -> None:
    with torch.tiny.device(where):
        assert MAKERS[name]().device == torch.device("tiny:1")
    assert MAKERS[name]().device == torch.device("tiny:0")


def test_a_named_index_is_kept() -> None:
    torch.tiny.set_device(1)
    assert torch.ones(2).to("tiny:0").device.index == torch.tensor([1], device="tiny:0").device.index == 0
    assert torch.ones(2).to("cpu").device.type == "cpu"


@pytest.mark.parametrize("outer", [True, False])
def test_the_default_device(outer: bool) -> None:
    """The default device works if it is set before or after the current device. torch's mode for it must be below all
    other modes."""
    contexts = [torch.device("tiny"), torch.tiny.device(1)]
    first, second = contexts if outer else contexts[::-1]
    with first, second:
        assert torch.tensor([1]).device == torch.ones(1).device == torch.device("tiny:1")
    assert torch.tensor([1]).device == torch.device("cpu")


def test_the_default_device_is_left_first() -> None:
    try:
        torch.set_default_device("tiny")
        torch.tiny.set_device(1)
        assert torch.tensor([1]).device == torch.device("tiny:1")
    finally:
        torch.set_default_device(None)
    assert torch.tensor([1]).device == torch.device("cpu")
    assert torch.tensor([1], device="tiny").device == torch.device("tiny:1")


def test_contexts_in_each_other() -> None:
    with torch.tiny.device(1):
        with torch.tiny.device(0):
            assert torch.tensor([1], device="tiny").device.index == 0
        with torch.tiny.device("tiny"):  # formerly selected the first device
            assert torch.tensor([1], device="tiny").device.index == torch.tiny.current_device() == 1
        with torch.tiny.stream(torch.tiny.Stream(0)):
            assert torch.tiny.current_device() == 0
        assert torch.tensor([1], device="tiny").device.index == 1
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_device_of_another_kind() -> None:
    """A device of another type is refused. It was formerly treated as the first device."""
    with pytest.raises(ValueError, match="expected a tiny device, but got cpu"):
        torch.tiny.device("cpu")


@pytest.mark.parametrize("count", ["x", "", "0", "-1", "1.5"])
def test_a_count_that_is_none(monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    monkeypatch.setenv("TINY_DEVICES", count)
    with pytest.raises(RuntimeError, match="tiny: TINY_DEVICES is how many devices there are, a number from 1 on, not"):
        torch.tiny.device_count()
