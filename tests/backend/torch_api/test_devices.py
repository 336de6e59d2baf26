"""The functions of torch.tiny about the device. Most functions that libraries call on torch.cuda were formerly
missing."""

from __future__ import annotations

import pickle

import pytest
import torch

import conformance.backend  # noqa: F401


class TestDevice:
    """Properties and capabilities."""

    def test_module_is_torchs(self) -> None:
        assert torch.get_device_module("tiny") is torch.get_device_module() is torch.tiny

    def test_properties(self) -> None:
        properties = torch.tiny.get_device_properties(0)
        assert properties.name == torch.tiny.get_device_name() == "tinygrad CPU"
        assert properties.total_memory > 1 << 20
        assert torch.tiny.get_device_capability() == (0, 0)

    def test_dtypes(self) -> None:
        assert torch.tiny.is_bf16_supported()
        assert not torch.tiny.is_bf16_supported(including_emulation=False)
        supported = torch.accelerator.get_device_capability()["supported_dtypes"]
        for dtype in supported:
            assert torch.zeros(2, device="tiny").to(dtype).dtype == dtype

    def test_what_is_not_there_is_said(self) -> None:
        """Functions of torch.cuda with a definite result exist. These names were formerly missing."""
        tiny = torch.tiny
        assert (tiny.is_tf32_supported(), tiny.get_arch_list(), tiny.host_memory_stats()) == (False, [], {})
        assert isinstance(tiny.stream(None), tiny.StreamContext)

    @pytest.mark.parametrize(
        "call",
        [
            lambda: torch.tiny.set_device(5), lambda: torch.tiny.get_device_properties("tiny:5"),
            lambda: torch.tiny.memory_allocated(5), lambda: torch.tiny.Stream(5), lambda: torch.tiny.get_rng_state(5),
        ],
    )  # fmt: skip
    def test_no_such_device(self, call) -> None:
        with pytest.raises(RuntimeError, match="no device tiny:5; TINY_DEVICES"):
            call()

    def test_a_device_of_another_kind(self) -> None:
        with pytest.raises(RuntimeError, match="expected a tiny device, but got cpu"):
            torch.tiny.get_device_name("cpu")

    @pytest.mark.parametrize(
        "name",
        [
            "memory_allocated", "max_memory_allocated", "memory_reserved", "memory_stats", "mem_get_info",
            "reset_peak_memory_stats", "current_stream", "default_stream", "synchronize", "get_device_properties",
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("where", [0, "tiny"])
    def test_the_device_by_name(self, name: str, where: int | str) -> None:
        """The functions take `device=` as torch.cuda's do. Functions of memory and `current_stream` formerly took it by
        position only."""
        function = getattr(torch.tiny, name)
        assert type(function(device=where)) is type(function(where)) is type(function())

    def test_context_managers(self) -> None:
        with torch.tiny.device(0), torch.tiny.device_of(torch.ones(1, device="tiny")), torch.tiny.device_of(3):
            assert torch.tiny.current_device() == 0


class TestAmp:
    """torch.tiny.amp."""

    def test_autocast_and_scaler(self) -> None:
        x = torch.ones(2, 2, device="tiny")
        with torch.tiny.amp.autocast(dtype=torch.bfloat16):
            assert (x @ x).dtype == torch.bfloat16
        scaler = torch.tiny.amp.GradScaler(init_scale=8.0)
        assert scaler.scale(x.sum()).item() == 32.0


class TestLegacyTypes:
    """torch.tiny.FloatTensor, which `x.type()` names, exists. It was formerly missing."""

    def test_instances(self) -> None:
        x = torch.ones(2, device="tiny")
        assert isinstance(x, torch.tiny.FloatTensor)
        assert not isinstance(x.cpu(), torch.tiny.FloatTensor)
        assert not isinstance(x, torch.tiny.LongTensor)

    def test_constructed(self) -> None:
        assert torch.tiny.LongTensor([3, 4]).tolist() == [3, 4]
        assert torch.tiny.HalfTensor(2, 3).shape == (2, 3)
        assert torch.tiny.FloatTensor(2, 3).type() == "torch.tiny.FloatTensor"

    @pytest.mark.parametrize("named", [lambda: "torch.tiny.HalfTensor", lambda: torch.tiny.HalfTensor])
    def test_conversion(self, named) -> None:
        converted = torch.ones(2).type(named())
        assert (converted.dtype, converted.device.type) == (torch.float16, "tiny")

    def test_default_tensor_type(self) -> None:
        try:
            torch.set_default_tensor_type("torch.tiny.DoubleTensor")
            assert torch.ones(2).type() == "torch.tiny.DoubleTensor"
            with pytest.raises(TypeError, match="only floating-point types"):
                torch.set_default_tensor_type(torch.tiny.LongTensor)
        finally:
            torch.set_default_tensor_type("torch.FloatTensor")
        assert torch.ones(2).type() == "torch.FloatTensor"


class TestLegacyStorages:
    """torch.tiny.FloatStorage, which `x.storage().type()` names, exists. It was formerly missing."""

    def test_instances(self) -> None:
        x = torch.ones(2, device="tiny").storage()
        assert isinstance(x, torch.tiny.FloatStorage)
        assert not isinstance(x, torch.tiny.LongStorage)
        assert not isinstance(x, torch.FloatStorage)
        assert not isinstance(torch.ones(2).storage(), torch.tiny.FloatStorage)

    @pytest.mark.parametrize(("argument", "expected"), [([3, 4], [3, 4]), (2, [0, 0])])
    def test_constructed(self, argument, expected) -> None:
        held = torch.tiny.LongStorage(argument)
        assert (held.device.type, held.dtype, held.tolist()) == ("tiny", torch.int64, expected)
        assert held.type() == "torch.tiny.LongStorage"

    def test_saved_and_loaded(self) -> None:
        loaded = pickle.loads(pickle.dumps(torch.tiny.HalfStorage([1, 2])))
        assert (loaded.device.type, loaded.dtype, loaded.tolist()) == ("tiny", torch.float16, [1.0, 2.0])
