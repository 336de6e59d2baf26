"""PyTorch's device-type tests on a device: make the tests of a file for it, and run one.

    base = choose_test_device("toy")  # before a file is loaded
    configure_tests(base, None, {"sort": "it has no kernel"})
    module = load_test_file("/pytorch/test/test_torch.py")
    run_device_test(module, "TestTorchDeviceTypeTOY", "test_add_toy_float32")  # ("passed", "", "")

`instantiate_device_type_tests` makes a class of tests for each class in torch's list `device_type_test_bases`. The list
has PyTorch's own class for the CPU, for CUDA, and for a renamed PrivateUse1 whose module says that it is available. Any
other device gets a class here, in the form that PyTorch documents for `TORCH_TEST_DEVICES`. Saved scripts carry the
functions. They need only torch.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import linecache
import os
import re
import sys
import unittest
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

import torch

from conformance.standalone.torch_compat import device_type_tests, renamed_backend

PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"
"""The verdicts about a test. Each is a statement of its own, so that a script can carry it."""

NO_SUCH_TEST = "there is no such test"

HOW_TO_RUN = "To execute this test, run"
"""What PyTorch writes below a message, with the name of the device's class."""
ADDRESS = re.compile(r"0x[0-9a-f]{4,}")
"""An address in a message, which differs from run to run."""


def choose_test_device(device: str) -> Any:
    """Let the files that are loaded from now on make tests for this device only, and return the class of its tests."""
    bases = device_type_tests()[1]
    kind = torch.device(device).type
    own = {base.device_type: base for base in bases}
    base = own.get(kind) or (own.get("privateuse1") if kind == renamed_backend() else None) or class_of_tests(device)
    if base.device_type == "privateuse1":
        base.setUpClass()  # names the classes after the device; else only those behind the first one have its name
    bases[:] = [base]
    return base


def configure_tests(
    base: Any,
    allowed: Collection[str] | None,
    left_out: Mapping[str, str],
    lacking: Collection[str] = (),
    exclusions: Mapping[str, Any] | None = None,
) -> None:
    """Configure the tests of a device by PyTorch's own `set_test_configs`: only the OpInfos `allowed` are tested (None:
    all), those of `left_out` are skipped with their reasons, and so are the dtypes `lacking` of the allowed ones.
    `exclusions` names further tests by class. Raises RuntimeError for a torch that does not have it."""
    if not hasattr(base, "set_test_configs"):
        raise RuntimeError(f"torch {torch.__version__} has no set_test_configs: take torch 2.13 or a newer one")
    decorate_info = device_type_tests()[2]
    skips = {name: [decorate_info(unittest.skip(reason))] for name, reason in left_out.items()}
    dtypes = [getattr(torch, name) for name in lacking if hasattr(torch, name)]
    for name in allowed or () if dtypes else ():
        skip = decorate_info(unittest.skip("the device does not hold the dtype"), dtypes=dtypes)
        skips.setdefault(name, []).append(skip)
    base.set_test_configs(op_allowlist=allowed, op_overrides=skips, test_exclusions=exclusions)


def class_of_tests(device: str) -> Any:
    """Return a class of tests for a device that PyTorch has none for."""
    primary = str(torch.zeros(1, device=device).device)

    class TargetTestBase(device_type_tests()[0]):  # type: ignore[misc]
        device_type = torch.device(device).type

        @classmethod
        def get_primary_device(cls):  # type: ignore[no-untyped-def]
            return primary

    return TargetTestBase


@functools.cache
def load_test_file(path: str) -> ModuleType:
    """Return the module of a test file, loaded once per process. Its folder comes first in the path, as if the file
    were run. Any exception of the file passes."""
    folder, name = os.path.dirname(path), os.path.basename(path).removesuffix(".py")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # as for each file that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a test may pickle its classes
    spec.loader.exec_module(module)
    return module


def list_device_tests(module: ModuleType, kind: str) -> list[tuple[str, str]]:
    """Return the class and the name of each test that the module has made for a kind of device. A file may make tests
    for the lazy device, too, which nobody chose (`include_lazy`)."""
    base, loader = device_type_tests()[0], unittest.TestLoader()
    found = []
    for name, value in vars(module).items():
        own = isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
        if own and value.device_type == kind:
            found += [(name, test) for test in loader.getTestCaseNames(value)]
    return found


class VerdictOfTest(unittest.TestResult):
    """The verdict on one test, and the message and the place of its first failure."""

    def __init__(self) -> None:
        super().__init__()
        self.verdict, self.message, self.place = PASSED, "", ""

    def addSkip(self, test: Any, reason: str) -> None:
        if self.verdict == PASSED:
            self.verdict, self.message = SKIPPED, reason

    def addError(self, test: Any, err: Any) -> None:
        kind, error, trace = err
        if kind.__name__ == "Skipped" and not issubclass(kind, Exception):  # a file may skip by pytest
            return self.addSkip(test, str(error))
        if not issubclass(kind, (Exception, SystemExit)):  # a limit of time, not an answer of the test
            raise error
        if self.verdict != FAILED:
            message = f"{kind.__name__}: {error}"
            self.verdict, self.message, self.place = FAILED, message, place_in_test(trace, inspect.getfile(type(test)))
        return None

    addFailure = addError

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addError(test, err)

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.verdict, self.message = FAILED, "it should fail, by its decorator, and passes"


def place_in_test(trace: Any, tests: str) -> str:
    """Return the innermost line of an error's traceback in the folder of a file of tests, for example
    `test_torch.py, line 7: self.assertEqual(x, y)`."""
    place = ""
    while trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        if os.path.dirname(file) == os.path.dirname(tests):
            place = f"{os.path.basename(file)}, line {line}: {linecache.getline(file, line).strip()}"
        trace = trace.tb_next
    return place


def run_device_test(module: ModuleType, name: str, test: str) -> tuple[str, str, str]:
    """Run one test with the fixtures of its class and module. Return the verdict, and the message and the place of a
    failure, or the reason of a skip."""
    made = getattr(module, name, None)
    if made is None or not hasattr(made, test):
        return FAILED, NO_SUCH_TEST, ""
    result = VerdictOfTest()
    unittest.TestSuite([made(test)]).run(result)
    return result.verdict, result.message, result.place


def without_device_name(text: str, device: str) -> str:
    """Return a message in the words of any device, so that the messages of two devices can be compared."""
    kind = device.partition(":")[0]
    named = re.sub(rf"\b{kind}(:\d+)?\b|(?<=_){kind}(?=_|\b)", "DEVICE", text.partition(HOW_TO_RUN)[0].rstrip())
    return ADDRESS.sub("0x...", named)


def judge_device_test(path: str, name: str, test: str, device: str) -> tuple[str, str, str]:
    """Load a file of tests and run one, and return as `run_device_test` does, in the words of any device."""
    base = choose_test_device(device)
    verdict, message, place = run_device_test(load_test_file(path), f"{name}{base.device_type.upper()}", test)
    return verdict, without_device_name(message, device), place
