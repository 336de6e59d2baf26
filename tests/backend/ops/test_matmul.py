"""Matrix products."""

from __future__ import annotations

import pytest
import torch
from tinygrad.device import Buffer

from conformance import backend, kernels
from conformance.backend.ops import matmul


def test_short_products_that_cancel():
    """Large products whose sum is small come out as the CPU's, which does not round each product before it is added."""
    a = torch.tensor([[1000.1, 999.7, -1000.3, 1.0]])
    b = torch.tensor([[1.7], [0.9], [2.5994], [3.3]])
    exact = (a.double() @ b.double()).float()
    assert torch.equal((a.to("tiny") @ b.to("tiny")).cpu(), exact)  # one rounding, of the sum


def test_a_batch_of_products_that_cancels():
    """`addbmm` of op_db adds 25 products, of which a thousandth of the largest is left: with each product rounded to
    float32 it was off by 1.7e-5, and the CPU by 6e-6."""
    torch.manual_seed(0)
    rows = torch.randn(1, 24) * 8
    columns = torch.randn(24, 1) * 8
    rest = -(rows.double() @ columns.double())  # the 25th product leaves next to nothing
    a = torch.cat([rows, torch.ones(1, 1)], 1)
    b = torch.cat([columns, rest.float()])
    true = (a.double() @ b.double()).item()
    assert abs((a.to("tiny") @ b.to("tiny")).item() - true) <= 1e-12 * abs(rest.item())


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.view_as(x)])
def test_a_sum_into_its_own_first_operand(view):
    """`torch.addmm(x, a, b, out=x)` adds to x; it went to the CPU, as where a factor is written."""
    results = []
    for device in ("cpu", "tiny"):
        x = torch.arange(4.0, device=device).view(2, 2)
        a = torch.tensor([[1.0, 2], [3, 4]], device=device)
        with backend.no_fallback():
            torch.addmm(view(x), a, a, out=x)
        results.append(x.cpu())
    assert torch.equal(results[0], results[1])


def test_a_product_into_its_own_factor_is_the_cpus():
    """What lies in a factor while it is overwritten is for the CPU's kernel to say."""
    x = torch.ones(2, 2, device="tiny")
    with pytest.raises(backend.FallbackError), backend.no_fallback():
        torch.addmm(torch.zeros(2, 2, device="tiny"), x, x, out=x)


def test_a_costly_factor_is_computed_once_for_all_who_read_it():
    """A layer's two gradients read the same value, in different order; it was stored twice."""
    torch.manual_seed(0)
    a, b, c = (torch.randn(6, 6).to("tiny") for _ in range(3))
    with kernels.count() as k:
        costly = torch.sinh(a)
        (costly @ b + costly.t() @ c).cpu()
    assert k.kernels == 2  # it, and the sum of the two products


def test_costly_factors_share_memory(monkeypatch):
    """What is stored on the way to a result gives its memory to what follows; each had its own until all was done."""
    made = []
    allocate = Buffer.allocate

    def counted(self, *args, **kwargs):
        made.append(self.nbytes if self._base is None else 0)
        return allocate(self, *args, **kwargs)

    x, w = torch.ones(64, 64).to("tiny"), torch.ones(64, 64).to("tiny")
    monkeypatch.setattr(Buffer, "allocate", counted)
    for _ in range(10):
        x = torch.sinh(x @ w * 0.01)
    x.cpu()
    assert sum(made) <= 5 * x.nbytes  # the result, a product and its sinh, and the like of the next


def test_a_costly_factor_is_kept_for_who_reads_it_later():
    """What a schedule stored on its way was forgotten though a lazy value still read it, and computed once more."""
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
        """Groups of rows, of columns and of what is summed over; offsets out of order mean what slices mean."""
        expected = torch._grouped_mm(*factors, _offsets(*ends))
        with backend.no_fallback():
            found = torch._grouped_mm(*(x.to("tiny") for x in factors), _offsets(*ends).to("tiny"))
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found.cpu(), expected)

    def test_an_operand_that_torch_refuses_is_the_cpus_error(self):
        """Its meta kernel refuses float32, and so says nothing of what the CPU refuses."""
        for a, b in [(self.ROWS[0][:, :3], self.ROWS[1]), (self.ROWS[0].double(), self.ROWS[1].double())]:
            said = []
            for device in ("cpu", "tiny"):
                with pytest.raises(RuntimeError) as error:
                    torch._grouped_mm(a.to(device), b.to(device), _offsets(1, 3, 6).to(device))
                said.append(str(error.value))
            assert said[0] == said[1]

    def test_other_groups_need_no_other_kernels(self):
        """torch's loop makes each group's length a shape: Mixtral compiled 48 kernels at every step of training."""
        a, b, c = (x.to("tiny") for x in _factors((6, 16), (3, 16, 8), (6, 8)))
        for number, ends in enumerate([(1, 3, 6), (2, 5, 6), (4, 4, 6)]):
            offsets = _offsets(*ends).to("tiny")
            before = backend.stats()
            torch._grouped_mm(a, b, offsets).cpu()
            torch._grouped_mm(a.t(), c, offsets).cpu()
            after = backend.stats()
            assert number == 0 or all(after[kind] == before[kind] for kind in ("scheduled", "loaded"))


class TestTrilinear:
    """A bilinear layer was one write into a slice for each of its outputs: with 16 of them in float16 its gradients
    raised an error of tinygrad's scheduler, and in float32 took 20 s to compile."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_a_layer_and_its_gradients(self, dtype: torch.dtype) -> None:
        a, b, weight = (t.to(dtype) for t in _factors((3, 4, 5), (3, 4, 6), (16, 5, 6)))
        found = []
        for device in ("cpu", "tiny"):
            inputs = [t.clone().to(device).requires_grad_() for t in (a, b, weight)]
            result = torch.nn.functional.bilinear(*inputs)
            found.append([result, *torch.autograd.grad(result, inputs, torch.ones_like(result))])
        for expected, other in zip(*found, strict=True):
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
        """Their sum is taken in float32 and rounded once."""
        monkeypatch.setattr(matmul, "TURNS", 3)
        a, b, c = _factors((2, 4), (2, 4), (2, 4))
        words = ([], [], [], [1], 1)
        exact = torch._trilinear(*(t.half().double() for t in (a, b, c)), *words)
        found = torch._trilinear(*(t.half().to("tiny") for t in (a, b, c)), *words)
        torch.testing.assert_close(found.cpu(), exact.half())
