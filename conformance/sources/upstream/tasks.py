"""The tasks of `conformance upstream`: list the tests of a file, and run one of them.

The process that collects results refers to these functions by name without importing torch. Each function therefore
imports its dependencies itself.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from conformance.record.errors import TargetError
from conformance.record.names import DEVICE_TEST
from conformance.record.result import LONGEST_TEXT, Failure, Outcome, Result
from conformance.run.messages import COMPILING
from conformance.run.worker import environment, loaded, step, unit
from conformance.sources.upstream.table import LOADING, DeviceTest, TestFile, test_of

if TYPE_CHECKING:
    from conformance.engine.target import Target

MODULES = (__name__, "conformance.sources.upstream.script", "conformance.standalone.device_tests")
LOADS = "loading the file"
RUNS = "the test"
"""Steps of a worker. Loading a file makes all of its tests, for up to a minute: it has the limit of compiling."""
TO_PASS = "to pass"
DECLARED_LACKING = "declared lacking: "
"""First words of the reason of a test that fails for want of an operator that the profile declares."""


def describe_environment(target: str) -> tuple[dict[str, str], tuple[str, ...] | None]:
    """Return the target's environment, and the dtypes that it holds (None: all). Raises TargetError for a target that
    PyTorch's tests cannot reach."""
    under_test = loaded(target)
    facts = under_test.facts
    if facts.transforms_program or not facts.shows_values:
        raise TargetError(
            f"target {target!r} is no device with values: PyTorch's device-type tests make tensors on a device, and "
            "call nothing else; choose device:NAME, tiny, or cpu"
        )
    if not made_as_moved(under_test):
        raise TargetError(
            f"target {target!r} moves tensors by a function of its own, which PyTorch's tests do not call: they would "
            f"test plain {under_test.device.type}; choose the device itself, device:NAME"
        )
    held = facts.dtypes
    said = environment(target) | {"class of the tests": prepare(target)}
    return said, None if held is None else tuple(str(dtype).removeprefix("torch.") for dtype in held)


def made_as_moved(target: Target) -> bool:
    """Whether a tensor that is made on the device is like one that is moved there."""
    import torch

    from conformance.standalone.device import Device

    with target.entered():
        made, moved = torch.ones(1, device=target.device), target.upload([torch.ones(1)])[0]
    same = type(made) is type(moved) and made.device.type == moved.device.type
    return same and (made.device.type != "cpu" or type(target).upload is Device.upload)


@functools.cache
def prepare(target: str) -> str:
    """Let files make tests for the target, once per process. Return the name of the class of its tests."""
    from conformance.standalone.device_tests import choose_test_device, configure_tests

    under_test, skips = loaded(target), left_out(target)
    with under_test.entered():
        base = choose_test_device(str(under_test.device))
    if skips and hasattr(base, "set_test_configs"):  # else these tests fail, and the error names a declared operator
        configure_tests(base, None, skips)
    return str(base.__name__)


def left_out(target: str) -> Mapping[str, str]:
    """Return the OpInfos whose tests are skipped, since the profile declares an operator lacking, with the reason."""
    profile = loaded(target).facts.profile
    if profile is None:
        return {}
    return {name: f"{DECLARED_LACKING}{entry.where}" for name, entry in profile.unsupported("op").items()}


def listed(target: str, file: TestFile) -> list[DeviceTest]:
    """Return the tests that a file makes for the target. Any exception of the file passes."""
    from conformance.standalone.device_tests import list_device_tests, load_test_file

    prepare(target)
    under_test = loaded(target)
    kind = under_test.device.type
    with unit(file.name), under_test.entered(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step(LOADS, COMPILING)
        return [test_of(file.path, kind, *named) for named in list_device_tests(load_test_file(file.path), kind)]


def run(target: str, case: DeviceTest) -> Result:
    """Return the result of a test: SKIP, with its reason, if the test skips itself."""
    from conformance.standalone.device_tests import FAILED, PASSED, load_test_file, run_device_test, without_device_name

    if case.variant == LOADING:
        return load_again(target, case)

    prepare(target)
    under_test, begin = loaded(target), time.perf_counter()
    device, lacking = str(under_test.device), declared_operators(target)
    # Recorded instead of printed: a test that records warnings itself sees none of those that a filter ignores.
    with unit(case.id), under_test.entered(), under_test.active(), warnings.catch_warnings(record=True):
        warnings.simplefilter("default")  # as unittest does
        step(LOADS, COMPILING)
        module = load_test_file(case.path)
        under_test.reset_state()
        step(RUNS)
        verdict, message, place = run_device_test(module, *case.on(under_test.device.type))
    seconds = time.perf_counter() - begin
    if verdict == PASSED:
        return case.result(Outcome.PASS, samples=1, seconds=seconds)
    if verdict != FAILED:
        return case.result(Outcome.SKIP, skipped=1, reason=" ".join(message.split())[:300], seconds=seconds)
    failure = failure_of(case, without_device_name(message, device), place)
    operator = missing_operator(message)
    if operator in lacking:
        why = f"{DECLARED_LACKING}{operator}, {lacking[operator]}"
        return case.result(
            Outcome.XFAIL, samples=1, failed=1, failures=(failure,), reason=why, declared=lacking[operator],
            seconds=seconds,
        )  # fmt: skip
    from conformance.sources.upstream.script import standalone

    script = standalone(case, under_test.script(), under_test.device.type)
    failures = (failure if not script else Failure(**{**vars(failure), "script": script}),)
    return case.result(Outcome.FAIL, samples=1, failed=1, failures=failures, seconds=seconds)


def load_again(target: str, case: DeviceTest) -> Result:
    """Return the result of a file that could not be loaded when its tests were listed. A package that is not installed
    is not the target's. Nothing is compared, so that a run of this file alone is not green."""
    from conformance.standalone.device_tests import without_device_name

    try:
        listed(target, TestFile(case.path))
    except ModuleNotFoundError as error:
        return case.result(Outcome.SKIP, skipped=1, reason=f"{case.family}.py cannot be loaded: {error}")
    except Exception as error:
        message = without_device_name(f"{type(error).__name__}: {error}", str(loaded(target).device))
    else:
        message = "it could be loaded only the second time, so its tests are not known"
    return case.result(Outcome.FAIL, failures=(failure_of(case, message, ""),))


def failure_of(case: DeviceTest, message: str, place: str) -> Failure:
    """Return the failure of a test with this message, in the words of any device."""
    first, _, rest = message.strip().partition("\n")
    detail = "\n".join(filter(None, (place, rest.strip())))
    return Failure(
        DEVICE_TEST, case.before or case.op, TO_PASS, first[:LONGEST_TEXT], detail[:LONGEST_TEXT], call=case.call
    )


def declared_operators(target: str) -> Mapping[str, str]:
    """Return the operators that the profile declares lacking, with the place of each declaration."""
    profile = loaded(target).facts.profile
    operators = profile.unsupported("operator") if profile is not None else {}
    return MappingProxyType({name: entry.where for name, entry in operators.items()})


def missing_operator(message: str) -> str:
    """Return the operator that a not-implemented error names; "" for any other message."""
    from conformance.engine.attempt import NOT_IMPLEMENTED, named

    return named(message) if NOT_IMPLEMENTED.search(message) or message.startswith("NotImplementedError") else ""
