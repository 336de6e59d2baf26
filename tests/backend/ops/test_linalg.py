"""Factorizations of matrices, and solvers that use them."""

from __future__ import annotations

import warnings

import pytest
import torch

from conformance import backend
from conformance.backend import kernels
from conformance.backend.ops import linalg


def square(*shape: int) -> torch.Tensor:
    """Return well-conditioned matrices that need pivots."""
    torch.manual_seed(0)
    return torch.randn(shape) + torch.eye(shape[-1]).flip(0) * 3


class TestFactors:
    """LU and Cholesky."""

    @pytest.mark.parametrize("shape", [(1, 1), (4, 4), (2, 3, 5, 3), (3, 5), (2, 1, 3)])
    def test_lu(self, shape):
        """LU of tall and wide matrices and of single elements gives LAPACK's numbers, with pivots from 1."""
        a = torch.randn(shape)
        for mine, expected in zip(torch.linalg.lu_factor_ex(a.to("tiny")), torch.linalg.lu_factor_ex(a), strict=True):
            torch.testing.assert_close(mine.cpu(), expected)

    def test_info_of_a_singular_matrix(self):
        """`info` is the first zero pivot, counted from 1, and the column below it stays undivided."""
        a = torch.tensor([[4.0, 2, 8], [2, 1, 5], [1, 0.5, 3]])
        for mine, expected in zip(torch.linalg.lu_factor_ex(a.to("tiny")), torch.linalg.lu_factor_ex(a), strict=True):
            torch.testing.assert_close(mine.cpu(), expected)

    @pytest.mark.parametrize("upper", [False, True])
    def test_cholesky(self, upper):
        """Cholesky reads only one triangle. The other may have any content."""
        a = square(2, 4, 4)
        a = a @ a.mT + torch.ones(4, 4).tril(-1).mul(50).to(a) * (1 if upper else 0)
        a = a if upper else a + torch.ones(4, 4).triu(1) * 50
        expected = torch.linalg.cholesky(a, upper=upper)
        torch.testing.assert_close(torch.linalg.cholesky(a.to("tiny"), upper=upper).cpu(), expected)

    def test_a_factor_with_a_zero_on_its_diagonal_has_no_inverse(self):
        """cholesky_inverse raises for a zero on the diagonal. tiny formerly returned nan."""
        factor = torch.eye(3).index_fill(0, torch.tensor(1), 0.0)
        for device in ("cpu", "tiny"):
            with pytest.raises(torch.linalg.LinAlgError, match="diagonal element 2 is zero"):
                torch.cholesky_inverse(factor.to(device))

    def test_info_of_what_is_not_positive_definite(self):
        """`info` is the first minor that is not positive."""
        a = torch.diag(torch.tensor([1.0, 2.0, -1.0, -2.0]))
        info = torch.linalg.cholesky_ex(a.to("tiny")).info
        assert info.cpu().item() == torch.linalg.cholesky_ex(a).info.item() == 3

    def test_one_kernel(self):
        """A batch of any size is factored in one kernel. A matrix formerly took several kernels for each row."""
        a = square(7, 20, 20).to("tiny")
        with kernels.count() as k:
            torch.linalg.lu_factor_ex(a).pivots.cpu()
        assert k.kernels == 1


class TestSolving:
    """Solvers that use a factor."""

    @pytest.mark.parametrize("left", [True, False])
    @pytest.mark.parametrize("k", [1, 3])
    def test_solve(self, left, k):
        """solve works from both sides, and broadcasts leading dimensions."""
        a, b = square(2, 1, 4, 4), torch.randn(3, 4, k) if left else torch.randn(3, k, 4)
        with backend.no_fallback():
            mine = torch.linalg.solve(a.to("tiny"), b.to("tiny"), left=left)
        torch.testing.assert_close(mine.cpu(), torch.linalg.solve(a, b, left=left))

    @pytest.mark.parametrize("upper", [True, False])
    @pytest.mark.parametrize("left", [True, False])
    @pytest.mark.parametrize("unit", [True, False])
    def test_triangles(self, upper, left, unit):
        """All eight combinations agree, and the solver ignores the other triangle."""
        a, b = square(4, 4), torch.randn(4, 4)
        a = a + torch.diag(torch.full((4,), 5.0))
        options = {"upper": upper, "left": left, "unitriangular": unit}
        spoiled = a + torch.full((4, 4), torch.nan).tril(-1).nan_to_num(nan=9.0) * (1 if upper else 0)
        mine = torch.linalg.solve_triangular(spoiled.to("tiny"), b.to("tiny"), **options)
        torch.testing.assert_close(mine.cpu(), torch.linalg.solve_triangular(spoiled, b, **options))

    def test_pivots_that_lapack_never_gives(self):
        """A pivot outside the matrix must not change other memory."""
        lu = square(3, 3).to("tiny")
        pivots = torch.tensor([1, 2**30, -7], dtype=torch.int32).to("tiny")
        solved = torch.linalg.lu_solve(lu, pivots, torch.ones(3, 1).to("tiny"))
        assert solved.cpu().shape == (3, 1)

    def test_large_matrices_are_the_cpus(self):
        """A large matrix falls back to the CPU and is counted, because LAPACK and two copies are faster."""
        n = round(linalg.MOST_STEPS ** (1 / 3)) + 1
        a = torch.eye(n).to("tiny") * 2
        before = backend.stats()["fallback"].get("aten.linalg_inv_ex.default", 0)
        torch.testing.assert_close(torch.linalg.inv_ex(a).inverse.cpu(), torch.eye(n) / 2)
        assert backend.stats()["fallback"]["aten.linalg_inv_ex.default"] == before + 1


SHAPES = [(3, 3), (2, 5, 3), (3, 5), (1, 1), (4, 1), (2, 1, 4)]


class TestReflections:
    """QR, and products with Q."""

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
    def test_qr(self, shape, mode):
        """QR of tall and wide matrices and of single elements gives LAPACK's signs."""
        a = torch.randn(shape, dtype=torch.float64)
        with backend.no_fallback():
            mine = torch.linalg.qr(a.to("tiny"), mode)
        for x, expected in zip(mine, torch.linalg.qr(a, mode), strict=True):
            torch.testing.assert_close(x.cpu(), expected)

    @pytest.mark.parametrize("left", [True, False])
    @pytest.mark.parametrize("transpose", [True, False])
    def test_products(self, left, transpose):
        """Products from reflectors and tau agree, from either side, with Q or its transpose."""
        a = torch.randn(2, 4, 3, dtype=torch.float64)
        other = torch.randn(2, *((4, 2) if left else (2, 4)), dtype=torch.float64)
        factors, there = torch.geqrf(a), torch.geqrf(a.to("tiny"))
        for mine, expected in zip(there, factors, strict=True):
            torch.testing.assert_close(mine.cpu(), expected)
            assert mine.stride() == expected.stride()
        mine = torch.ormqr(*there, other.to("tiny"), left, transpose)
        torch.testing.assert_close(mine.cpu(), torch.ormqr(*factors, other, left, transpose))
        mine = torch.linalg.householder_product(*there)
        torch.testing.assert_close(mine.cpu(), torch.linalg.householder_product(*factors))

    def test_a_column_of_zeros(self):
        """A column of zeros has no reflection: its tau is 0."""
        a = torch.zeros(3, 2)
        a[:, 1] = torch.tensor([1.0, 2, 2])
        for mine, expected in zip(torch.geqrf(a.to("tiny")), torch.geqrf(a), strict=True):
            torch.testing.assert_close(mine.cpu(), expected)


@pytest.mark.parametrize("name", ["cholesky_inverse", "ormqr", "linalg.householder_product", "linalg.solve_triangular"])
@pytest.mark.parametrize("size", [(0,), (2, 2), (3, 3)])
def test_strides_of_an_out_tensor(name, size):
    """LAPACK's operators lay an empty out= tensor out by columns. The device's kernels formerly laid it out by rows."""

    def outcome(device):
        a = torch.tensor([[4.0, 1, 0], [1, 5, 2], [0, 2, 6]], device=device)
        taus = torch.tensor([1.2, 1.5, 0.0], device=device)
        out = torch.zeros(size, device=device)
        if name == "cholesky_inverse":
            torch.cholesky_inverse(a, out=out)
        elif name == "ormqr":
            torch.ormqr(a, taus, a, out=out)
        elif name == "linalg.householder_product":
            torch.linalg.householder_product(a, taus, out=out)
        else:
            torch.linalg.solve_triangular(a, a, upper=True, out=out)
        return out.stride(), out.cpu()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about resizing a tensor that is not empty
        (strides, actual), (expected_strides, expected) = outcome("tiny"), outcome("cpu")
    assert strides == expected_strides
    torch.testing.assert_close(actual, expected)
