"""The text of a file of device-type tests, as PyTorch has them, with planted faults: `write(folder)`.

It is no module of tests itself: PyTorch's tests are made when the file is loaded with a device.
"""

from __future__ import annotations

from pathlib import Path

NAME = "test_planted"
TEXT = """
import os
import sys
import time
import unittest
import warnings

import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, onlyCUDA
from torch.testing._internal.common_device_type import onlyNativeDeviceTypes, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, parametrize

FEW = [op for op in op_db if op.name in ("neg", "sort")]


class TestPlanted(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_add(self, device, dtype):
        ones = torch.ones(3, device=device, dtype=dtype)
        self.assertEqual((ones + ones).cpu(), torch.full((3,), 2, dtype=dtype))

    @parametrize("number", [1, 2])
    def test_number(self, device, number):
        self.assertEqual(torch.full((2,), number).to(device).sum().item(), 2 * number)

    def test_relu(self, device):
        self.assertEqual(torch.relu(torch.tensor([-1.0, 2.0]).to(device)).cpu(), torch.tensor([0.0, 2.0]))

    def test_sub(self, device):
        for number in range(2):
            with self.subTest(number=number):
                self.assertTrue(number == 0 or device == "cpu")

    @ops(FEW, allowed_dtypes=(torch.float32,))
    def test_op(self, device, dtype, op):
        self.assertEqual(device, device)

    def test_crash(self, device):
        if device != "cpu":
            os.abort()

    def test_exit(self, device):
        if device != "cpu":
            os._exit(0)

    def test_system_exit(self, device):
        if device != "cpu":
            sys.exit(0)

    def test_hang(self, device):
        if device != "cpu":
            time.sleep(1000)

    def test_wrong_everywhere(self, device):
        self.assertEqual(torch.ones(2, device=device).cpu(), torch.zeros(2))

    def test_lacking(self, device):
        if device != "cpu":
            raise NotImplementedError("Could not run 'aten::geqrf' with arguments from the 'toy' backend.")

    @onlyNativeDeviceTypes
    def test_native(self, device):
        self.assertEqual(type(self).__mro__[1].__name__ == "CPUTestBase", device == "cpu")

    @onlyCUDA
    def test_cuda(self, device):
        raise AssertionError

    def test_warning(self, device):
        with warnings.catch_warnings(record=True) as caught:
            warnings.warn("planted")
        self.assertEqual(len(caught), 1)

    @unittest.expectedFailure
    def test_expected(self, device):
        raise AssertionError

    @unittest.expectedFailure
    def test_unexpected(self, device):
        if device == "cpu":
            raise AssertionError


class TestOther(TestCase):
    def test_of_another_device(self, device):
        raise AssertionError


class TestPlain(TestCase):
    def test_without_device(self):
        raise AssertionError


instantiate_device_type_tests(TestPlanted, globals())
instantiate_device_type_tests(TestOther, globals(), only_for="cuda")
"""


def write(folder: Path) -> Path:
    """Write the file and return its path."""
    path = folder / f"{NAME}.py"
    path.write_text(TEXT)
    return path
