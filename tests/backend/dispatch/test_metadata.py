"""The cache of metadata is keyed by the relevant settings of torch."""

from __future__ import annotations

import gc
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch.nn import functional as F

import conformance.backend  # noqa: F401 - registers the device
from conformance.backend.torch_api.compile import _Compiled
from tests.backend.agreement import DEVICES


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Restore torch's settings after each test."""
    yield
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)


OF_INTEGERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "division": lambda x: x / x,
    "product with a number": lambda x: x * 0.5,
    "root": lambda x: x.sqrt(),
    "exponential": torch.exp,
    "softmax": lambda x: x.float().softmax(0) * x,
    "where": lambda x: torch.where(x > 1, x, 0.5),
    "out=": lambda x: torch.div(x, x, out=torch.empty(3, dtype=torch.float64, device=x.device)),
}


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_integers_become_the_default_dtype(name: str) -> None:
    """a / a of integers follows the default dtype. It formerly stayed float32 once it had been cached."""
    dtypes = {}
    for device in DEVICES:
        x = torch.tensor([1, 2, 3]).to(device)
        dtypes[device] = []
        for default in (torch.float32, torch.float64, torch.float16, torch.float32):
            torch.set_default_dtype(default)
            dtypes[device].append(OF_INTEGERS[name](x).dtype)
    assert dtypes["tiny"] == dtypes["cpu"]


@pytest.mark.parametrize("size", [3, 30000])
def test_the_dtype_of_a_result_depends_on_numbers(size: int) -> None:
    """Equal tensors with numbers of another type promote otherwise, also where only a few elements were tried."""
    for device in DEVICES:
        x = torch.ones(size, dtype=torch.int64).to(device)
        dtypes = [(x * number).dtype for number in (2, 2.5, 2j, True)] + [(x * y.to(device)).dtype for y in TWO]
        assert dtypes == [torch.int64, torch.float32, torch.complex64, torch.int64, torch.int64, torch.float32]


TWO = torch.ones(1, dtype=torch.int32), torch.ones(())


def test_a_trial_keeps_no_argument_alive() -> None:
    """The trial of a gather from one element is refused with an index of ones. The refusal holds no argument: a value
    that stays alive costs a kernel."""
    x, index = torch.ones(1, 1, 1, device="tiny"), torch.zeros(1, 1, 1, dtype=torch.int64, device="tiny")
    gone = weakref.ref(x)
    gc.disable()
    try:
        torch.gather(x, 2, index)
        del x
        assert gone() is None
    finally:
        gc.enable()


def test_a_refusal_depends_on_determinism() -> None:
    """A call that was accepted before is refused if algorithms must be deterministic, as on the CPU."""
    for device in DEVICES:
        x = torch.arange(16.0).reshape(1, 1, 4, 4).to(device)
        pooled, places = F.max_pool2d(x, 2, return_indices=True)
        expected = F.max_unpool2d(pooled, places, 2).cpu()
        torch.use_deterministic_algorithms(True)
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            F.max_unpool2d(pooled, places, 2)
        torch.use_deterministic_algorithms(False)
        assert torch.equal(F.max_unpool2d(pooled, places, 2).cpu(), expected)


NOT_DETERMINISTIC: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "functional": lambda x: x.put(x[:2].long(), x[:2]),
    "in place": lambda x: x.clone().put_(x[:2].long(), x[:2]),
    "max_unpool2d": lambda x: F.max_unpool2d(x.reshape(1, 1, 2, 2), x.long().reshape(1, 1, 2, 2), 2),
}


@pytest.mark.parametrize("name", NOT_DETERMINISTIC)
def test_a_warning_that_a_call_is_not_deterministic(name: str) -> None:
    """With `warn_only`, each call warns once, as on the CPU. The meta kernel of `put_` does not warn, so that formerly
    the device did not either; and in place two warnings came."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    counts = []
    for device in DEVICES:
        x = torch.arange(4.0).to(device)
        for _ in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                NOT_DETERMINISTIC[name](x).cpu()
            counts.append(len([one for one in caught if "deterministic implementation" in str(one.message)]))
    assert counts == [1, 1, 1, 1]


def test_a_compiled_graph_is_recorded_for_each_default_dtype() -> None:
    """A graph is recorded for each default dtype. Formerly a float32 division of integers was replayed under
    float64."""

    class Quotient(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (x / x,)

    graph = _Compiled(torch.fx.symbolic_trace(Quotient()))
    x = torch.tensor([1, 2]).to("tiny")
    for default in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(default)
        assert graph(x)[0].dtype == default


@pytest.mark.parametrize("mkldnn", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_large_convolutions_have_the_strides_of_the_cpu(dims: int, mkldnn: bool) -> None:
    """Results and gradients of convolutions that are too large for a trial have the CPU's strides, for channels-last
    images and filters. Formerly they had the meta kernel's, which are contiguous if only the filters, or an image of
    few channels, are channels-last."""
    side = {1: 5000, 2: 64, 3: 16}[dims]
    inverse = [0, dims + 1, *range(1, dims + 1)]

    def ordered(size: Sequence[int], last: bool) -> torch.Tensor:
        return torch.ones(size[0], *size[2:], size[1]).permute(inverse) if last else torch.ones(size)

    with torch.backends.mkldnn.flags(enabled=mkldnn):
        for rows, kernel, step, groups, transposed in (
            (2, 3, 1, 1, False), (1, 3, 2, 1, False), (2, 1, 1, 1, False), (2, 3, 1, 4, False), (1, 3, 2, 1, True),
            (2, 1, 1, 4, True),
        ):  # fmt: skip
            for image, filters, above in itertools.product((False, True), repeat=3):
                channels = (4, 8 // groups) if transposed else (8, 4 // groups)
                weight = ordered([*channels, *[kernel] * dims], filters)
                x = ordered([rows, 4, *[side] * dims], image)
                numbers = [step] * dims, [1] * dims, [1] * dims, transposed, [0] * dims, groups
                want = torch.ops.aten.convolution.default(x, weight, None, *numbers)
                got = torch.ops.aten.convolution.default(x.to("tiny"), weight.to("tiny"), None, *numbers)
                assert got.stride() == want.stride()
                grad = ordered(want.size(), above)
                call = torch.ops.aten.convolution_backward.default
                wants, gots = (
                    call(*(t.to(d) for t in (grad, x, weight)), [8], *numbers, [True] * 3) for d in ("cpu", "tiny")
                )
                for one, other in zip(gots, wants, strict=True):
                    pairs = zip(one.stride(), other.stride(), other.size(), strict=True)
                    assert all(stride == expected for stride, expected, length in pairs if length > 1)


ORDERED: dict[str, Callable[..., torch.Tensor]] = {
    "hardtanh_backward": lambda x, y: torch.ops.aten.hardtanh_backward.default(x, y, -1.0, 1.0),
    "native_batch_norm_backward": lambda x, y: torch.ops.aten.native_batch_norm_backward.default(
        x, y, *[torch.ones(40, device=x.device)] * 5, True, 1e-5, [True, True, True]
    )[0],
    "_fft_c2c": lambda x, y: torch.ops.aten._fft_c2c.default(x + 0j, [1, 2], 0, True),
    "_fft_c2c of another dimension": lambda x, y: torch.ops.aten._fft_c2c.default(x + 0j, [0, 3], 0, True),
}


@pytest.mark.parametrize("name", ORDERED)
def test_large_results_have_the_order_of_dimensions_of_the_cpu(name: str) -> None:
    """Results that are too large for a trial have the CPU's order of dimensions, from a trial on few elements. Formerly
    it was the meta kernel's, which takes the order of another operand."""
    operands = torch.ones(2, 40, 20, 20), torch.ones(2, 20, 20, 40).permute(0, 3, 1, 2)
    for x, y in itertools.product(operands, repeat=2):
        want, got = (ORDERED[name](x.to(device), y.to(device)) for device in DEVICES)
        assert got.stride() == want.stride()
