"""Matrix products: rounding, overlap, shared factors, grouped and trilinear forms."""

from __future__ import annotations

import pytest
import torch
from tinygrad.device import Buffer

from conformance import backend
from conformance.backend import kernels
from conformance.backend.ops import matmul


def test_short_products_that_cancel():
    """Large products with a small sum agree with the CPU, which does not round each product before the addition."""
    a = torch.tensor([[1000.1, 999.7, -1000.3, 1.0]])
    b = torch.tensor([[1.7], [0.9], [2.5994], [3.3]])
    exact = (a.double() @ b.double()).float()
    assert torch.equal((a.to("tiny") @ b.to("tiny")).cpu(), exact)  # one rounding, of the sum


def test_a_batch_of_products_that_cancels():
    """Products are not rounded before the addition. In `addbmm` of op_db, 25 products cancel to a thousandth of the
    largest. With products rounded to float32 the error was 1.7e-5, and the CPU's 6e-6."""
    torch.manual_seed(0)
    rows = torch.randn(1, 24) * 8
    columns = torch.randn(24, 1) * 8
    rest = -(rows.double() @ columns.double())  # the 25th product cancels nearly all of the sum
    a = torch.cat([rows, torch.ones(1, 1)], 1)
    b = torch.cat([columns, rest.float()])
    true = (a.double() @ b.double()).item()
    assert abs((a.to("tiny") @ b.to("tiny")).item() - true) <= 1e-12 * abs(rest.item())


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.view_as(x)])
def test_a_sum_into_its_own_first_operand(view):
    """`torch.addmm(x, a, b, out=x)` adds to x on the device. It formerly fell back to the CPU, as a product into a
    factor does."""
    results = []
    for device in ("cpu", "tiny"):
        x = torch.arange(4.0, device=device).view(2, 2)
        a = torch.tensor([[1.0, 2], [3, 4]], device=device)
        with backend.no_fallback():
            torch.addmm(view(x), a, a, out=x)
        results.append(x.cpu())
    assert torch.equal(results[0], results[1])


def test_a_product_into_its_own_factor_is_the_cpus():
    """A product into its own factor falls back. Only the CPU kernel defines the values that it reads while it
    writes."""
    x = torch.ones(2, 2, device="tiny")
    with pytest.raises(backend.FallbackError), backend.no_fallback():
        torch.addmm(torch.zeros(2, 2, device="tiny"), x, x, out=x)


def test_a_costly_factor_is_computed_once_for_all_who_read_it():
    """Two gradients of a layer that read the same value in different order share it. It was formerly stored twice."""
    torch.manual_seed(0)
    a, b, c = (torch.randn(6, 6).to("tiny") for _ in range(3))
    with kernels.count() as k:
        costly = torch.sinh(a)
        (costly @ b + costly.t() @ c).cpu()
    assert k.kernels == 2  # the shared value, and the sum of the two products


def test_costly_factors_share_memory(monkeypatch):
    """Intermediate values release their memory to later ones. Formerly each kept a separate buffer until the end."""
    sizes = []
    allocate = Buffer.allocate

    def counted(self, *args, **kwargs):
        sizes.append(self.nbytes if self._base is None else 0)
        return allocate(self, *args, **kwargs)

    x, w = torch.ones(64, 64).to("tiny"), torch.ones(64, 64).to("tiny")
    monkeypatch.setattr(Buffer, "allocate", counted)
    for _ in range(10):
        x = torch.sinh(x @ w * 0.01)
    x.cpu()
    assert sum(sizes) <= 5 * x.nbytes  # the result, a product and its sinh, and the same for the next iteration


def test_a_costly_factor_is_kept_for_who_reads_it_later():
    """A flush keeps an intermediate value that a lazy value still reads. Formerly it was dropped and computed again."""
    a, b = (torch.randn(6, 6).to("tiny") for _ in range(2))
    costly = torch.sinh(a)
    now, later = costly @ b, b @ costly
    now.cpu()
    with kernels.count() as k:
        later.cpu()
    assert k.kernels == 1


def _offsets(*ends: int) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.int32)


def _factors(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


class TestGroupedProducts:
    """torch._grouped_mm, which mixtures of experts call."""

    ROWS = _factors((6, 16), (3, 16, 8))
    COLUMNS = _factors((3, 8, 16), (16, 12))
    DEPTHS = _factors((8, 12), (12, 16))

    @pytest.mark.parametrize(
        ("factors", "ends"),
        [
            (ROWS, (1, 3, 6)), (ROWS, (3, 2, 6)), (ROWS, (-2, 3, 6)), (ROWS, (2, 4, 9)), (COLUMNS, (4, 8, 12)),
            (DEPTHS, (3, 3, 12)), (DEPTHS, (5, -4, 12)), (tuple(x.bfloat16() for x in ROWS), (0, 2, 6)),
        ],
    )  # fmt: skip
    def test_are_the_cpus(self, factors, ends):
        """Groups of rows, of columns and of the summed dimension agree. Offsets out of order mean the same as in
        slices."""
        expected = torch._grouped_mm(*factors, _offsets(*ends))
        with backend.no_fallback():
            actual = torch._grouped_mm(*(x.to("tiny") for x in factors), _offsets(*ends).to("tiny"))
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual.cpu(), expected)

    def test_an_operand_that_torch_refuses_is_the_cpus_error(self):
        """A refused operand raises the CPU's error. The meta kernel refuses float32 too, so its answer is not used."""
        for a, b in [(self.ROWS[0][:, :3], self.ROWS[1]), (self.ROWS[0].double(), self.ROWS[1].double())]:
            said = []
            for device in ("cpu", "tiny"):
                with pytest.raises(RuntimeError) as error:
                    torch._grouped_mm(a.to(device), b.to(device), _offsets(1, 3, 6).to(device))
                said.append(str(error.value))
            assert said[0] == said[1]

    def test_other_groups_need_no_other_kernels(self):
        """Other group sizes reuse the kernels. torch's loop makes each group's length a shape: Mixtral compiled 48
        kernels at every training step."""
        a, b, c = (x.to("tiny") for x in _factors((6, 16), (3, 16, 8), (6, 8)))
        for number, ends in enumerate([(1, 3, 6), (2, 5, 6), (4, 4, 6)]):
            offsets = _offsets(*ends).to("tiny")
            before = backend.stats()
            torch._grouped_mm(a, b, offsets).cpu()
            torch._grouped_mm(a.t(), c, offsets).cpu()
            after = backend.stats()
            assert number == 0 or all(after[kind] == before[kind] for kind in ("scheduled", "loaded"))


class TestTrilinear:
    """A bilinear layer compiles to few kernels. Formerly each output was one write into a slice: gradients of 16
    outputs raised a tinygrad scheduler error in float16, and took 20 s to compile in float32."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_a_layer_and_its_gradients(self, dtype: torch.dtype) -> None:
        a, b, weight = (t.to(dtype) for t in _factors((3, 4, 5), (3, 4, 6), (16, 5, 6)))
        results = []
        for device in ("cpu", "tiny"):
            inputs = [t.clone().to(device).requires_grad_() for t in (a, b, weight)]
            result = torch.nn.functional.bilinear(*inputs)
            results.append([result, *torch.autograd.grad(result, inputs, torch.ones_like(result))])
        for expected, other in zip(*results, strict=True):
            torch.testing.assert_close(other.cpu(), expected)

    def test_kernels(self) -> None:
        a, b, weight = (t.to("tiny") for t in _factors((3, 5), (3, 6), (16, 5, 6)))
        for dtype, most in ((torch.float32, 2), (torch.float16, 3)):
            inputs = [t.to(dtype) for t in (a, b, weight)]
            torch.nn.functional.bilinear(*inputs).cpu()
            before = backend.stats()["kernels"]
            torch.nn.functional.bilinear(*inputs).cpu()
            assert backend.stats()["kernels"] - before <= most

    def test_more_turns_than_are_rounded_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With more terms than are rounded separately, the sum is computed in float32 and rounded once."""
        monkeypatch.setattr(matmul, "TURNS", 3)
        a, b, c = _factors((2, 4), (2, 4), (2, 4))
        words = ([], [], [], [1], 1)
        exact = torch._trilinear(*(t.half().double() for t in (a, b, c)), *words)
        actual = torch._trilinear(*(t.half().to("tiny") for t in (a, b, c)), *words)
        torch.testing.assert_close(actual.cpu(), exact.half())

    def test_products_that_overflow_half_way(self) -> None:
        """In float32 the result is rounded once. Formerly a product of two factors was rounded, and inf * 0.5 was inf.
        In 16 bits the sum overflows in float32, as on torch CPU."""
        large = torch.tensor([[3e38, 1.0]])
        weight = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
        inputs = (large, torch.tensor([[0.25, 1.0]]), weight)
        result = torch.nn.functional.bilinear(*(t.to("tiny") for t in inputs))
        torch.testing.assert_close(result.cpu(), torch.tensor([[1.5e38]]))
        terms = (torch.full((1, 1), 1.0), torch.tensor([[3e38, 3e38, -3e38]]), torch.full((1, 1, 3), 2.0))
        halves = [t.to(torch.bfloat16) for t in terms]
        result = torch.nn.functional.bilinear(*(t.to("tiny") for t in halves))
        torch.testing.assert_close(result.cpu(), torch.nn.functional.bilinear(*halves), equal_nan=True)
