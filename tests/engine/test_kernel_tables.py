"""The dispatcher's tables for a key: Vulkan has no kernels in torch's own builds, and the CPU has nearly all."""

from __future__ import annotations

import pytest
import torch

from conformance.engine.attempt import named, not_implemented
from conformance.engine.kernel_tables import KernelKind, backend_key, kernel_of
from conformance.standalone import torch_compat
from conformance.standalone.observation import Raised


@pytest.mark.parametrize(
    ("operator", "key", "kernel"),
    [
        ("aten::add.out", "CPU", KernelKind.OWN),
        ("aten::add.out", "Vulkan", KernelKind.NONE),
        ("aten::add.Tensor", "Vulkan", KernelKind.NONE),
        ("aten::squeeze", "Vulkan", KernelKind.COMPOSITE),
        ("aten::matmul", "Vulkan", KernelKind.COMPOSITE),
        ("aten::no_such_operator", "Vulkan", None),
        ("aten::convolution_overrideable", "Vulkan", KernelKind.NONE),  # torch's only kernel for it raises
    ],
)
def test_kernel_of(operator: str, key: str, kernel: KernelKind | None) -> None:
    assert kernel_of(operator, key) is kernel


def test_a_structured_operator_runs_by_its_out_form() -> None:
    """A device that registers only add.out has no table entry for add.Tensor, but the functional and in-place forms run
    too."""
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("erfinv.out", lambda x, *, out: out, "Vulkan")
        assert kernel_of("aten::erfinv", "Vulkan") is KernelKind.STRUCTURED
        assert kernel_of("aten::erfinv_", "Vulkan") is KernelKind.STRUCTURED
    finally:
        library._destroy()
    assert kernel_of("aten::erfinv", "Vulkan") is KernelKind.NONE


@pytest.mark.parametrize(
    ("operator", "out"),
    [
        ("aten::add.Tensor", "aten::add.out"),
        ("aten::add_.Tensor", "aten::add.out"),
        ("aten::sum.dim_IntList", "aten::sum.IntList_out"),
        ("aten::sort.stable", "aten::sort.values_stable"),
        ("aten::view", ""),
    ],
)
def test_out_form(operator: str, out: str) -> None:
    assert torch_compat.out_form(operator) == out


def test_keys() -> None:
    """The tables give no answer for a wrapper on the meta device, or for torch CPU with a mode around it."""
    assert backend_key(torch.ones(1)) is None
    assert backend_key(torch.ones(1, device="meta")) == "Meta"


@pytest.mark.parametrize(
    ("error", "lacks", "operator"),
    [
        (NotImplementedError("Could not run 'aten::sum.IntList_out' with arguments"), True, "aten::sum.IntList_out"),
        (RuntimeError("Operator with name aten.prod.default has no lowering"), True, "aten::prod"),
        (RuntimeError("\"addmv\" not implemented for 'Bool'"), True, ""),
        (RuntimeError("as_strided: storage_offset is required"), False, ""),
        (ValueError("aten::add got the wrong shape"), False, "aten::add"),
    ],
)
def test_what_an_error_says(error: Exception, lacks: bool, operator: str) -> None:
    """An error message is evidence only, and never sufficient alone."""
    assert not_implemented(Raised.of(error)) is lacks
    assert named(str(error)) == operator
