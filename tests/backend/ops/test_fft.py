"""Fourier transforms: lengths, real and imaginary parts, and kernels."""

from __future__ import annotations

import pytest
import torch

from conformance.backend import kernels
from conformance.backend.ops import fft


def agree(function, x):
    """Check a transform of x on tiny against float64 on the CPU. Return the number of kernels."""
    there = x.to("tiny")
    with kernels.count() as k:
        mine = function(there).cpu()
    exact = function(x.to(torch.complex128 if x.is_complex() else torch.float64))
    torch.testing.assert_close(mine, exact.to(mine.dtype))
    return k.kernels


class TestTransforms:
    """Transforms agree with torch CPU."""

    @pytest.mark.parametrize("n", [1, 2, 7, fft.DIRECT, fft.DIRECT + 2, 53, 60, 2 * 53, 49 * 49])
    def test_lengths(self, n):
        """Direct lengths, primes, one split and two splits agree, forwards and backwards, for complex and real
        numbers."""
        torch.manual_seed(0)
        x = torch.randn(2, n, dtype=torch.complex64)
        for function in (torch.fft.fft, torch.fft.ifft):
            agree(function, x)
        for function in (torch.fft.fft, torch.fft.rfft, torch.fft.ihfft):
            agree(function, x.real)
        for count in (2 * n - 1, 2 * n):
            agree(lambda z, count=count: torch.fft.irfft(z, count), x)

    def test_parts_of_views(self):
        """Conjugate, transposed and strided inputs agree."""
        x = torch.randn(6, 10, dtype=torch.complex64)
        for view in (lambda x: x.conj(), lambda x: x.mT, lambda x: x[:, ::2], lambda x: x.imag):
            agree(lambda x, view=view: torch.fft.fft2(view(x)), x)

    def test_a_kernel_for_each_stage(self):
        """A stage is one kernel, including real and imaginary part, cast and norm. Formerly each part had a separate
        kernel."""
        x = torch.randn(3, 8, 9)
        assert agree(torch.fft.rfft, x) == 1
        assert agree(lambda x: torch.fft.fftn(x, norm="ortho"), x) == 3
        assert agree(torch.fft.fft, torch.randn(2, 100)) == 2
