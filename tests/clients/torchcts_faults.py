"""The planted faults that TorchCTS's hand-written suites find: `python tests/clients/torchcts_faults.py`.

A test can find a fault only in an op that it calls on the device. Each test therefore runs once with a mode that
records its calls. It then runs again under every fault of those ops that no test has found yet. A test finds a fault if
it fails with the fault and passes without it, both before and after. The fault acts only on the device: reference
values computed on the CPU and transfers between the two stay right.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.selftest.faults import FUNCTION, Fault, OperatorCall
from conformance.selftest.mutants import EVERY, NO_FAULT
from conformance.standalone.moving import map_tensors
from conformance.standalone.torch_compat import TorchDispatchMode
from tests.clients import torchcts_run

SUITES = ("strides", "errors", "dtypes", "stress", "rng", "autograd", "operators", "training")
SLOW_S = 3.0
"""Time in seconds above which a test is not run under faults."""
JOURNAL, DEVICE = "TORCHCTS_FAULTS_JOURNAL", "tiny"


def _on_device(args: Any, kwargs: Any) -> bool:
    """Return whether a call computes on the device: all of its tensors are on the device, and the call moves none."""
    kinds: set[str] = set()
    map_tensors((args, kwargs), lambda t: kinds.add(t.device.type))
    named = kwargs.get("device")
    if named is not None:
        kinds.add(torch.device(named).type)
    return kinds == {DEVICE}


class _Dispatch(TorchDispatchMode):
    def __init__(self, fault: Fault, seen: set[str]) -> None:
        super().__init__()
        self.fault, self.ops, self.seen, self.memory = fault, frozenset(fault.ops.split()), seen, {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if not _on_device(args, kwargs):
            return func(*args, **kwargs)
        self.seen.add(name)
        self.seen.update({"out="} if "out" in kwargs else ())
        if not self.ops or name in self.ops:
            return self.fault.act(OperatorCall(func, args, kwargs, self.memory))
        return func(*args, **kwargs)


class _Function(torch.overrides.TorchFunctionMode):
    def __init__(self, fault: Fault, seen: set[str]) -> None:
        super().__init__()
        self.fault, self.ops, self.seen, self.memory = fault, frozenset(fault.ops.split()), seen, {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self.seen.add(f"{FUNCTION} {name}")
        if name in self.ops and _on_device(args, kwargs):
            return self.fault.act(OperatorCall(func, args, kwargs, self.memory))
        return func(*args, **kwargs)


def _can_show(name: str, fault: Fault, seen: set[str]) -> bool:
    names = fault.ops.split()
    if not names:
        return "out=" in seen or "out=" not in name
    return any((f"{FUNCTION} {name}" if fault.level == FUNCTION else name) in seen for name in names)


class FaultPlugin:
    """A plugin that runs each test under the remaining faults, and writes each event into the journal as one line."""

    def __init__(self, journal: Path) -> None:
        self.journal, self.left, self.done = journal, dict(EVERY), set[str]()
        for line in journal.read_text().splitlines() if journal.exists() else []:
            kind, test, fault = json.loads(line)
            self.done.add(test)
            if kind in ("found", "started"):  # a fault that was started and has no end has ended the process
                self.left.pop(fault, None)
            elif kind == "survived":
                self.left[fault] = EVERY[fault]

    def note(self, kind: str, test: str, fault: str = "") -> None:
        """Write one line to disk before an action that may end the process."""
        with self.journal.open("a") as file:
            file.write(json.dumps([kind, test, fault]) + "\n")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Exclude the tests in the journal after the process has ended and started again."""
        items[:] = [item for item in items if item.nodeid not in self.done]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool:
        """Run the test under each remaining fault, in place of the single call."""
        names = pyfuncitem._fixtureinfo.argnames
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        test, seen = pyfuncitem.nodeid, set[str]()

        def passes(fault: Fault) -> bool:
            mode = _Function(fault, seen) if fault.level == FUNCTION else _Dispatch(fault, seen)
            try:
                with mode:
                    pyfuncitem.obj(**arguments)
            except (Exception, pytest.fail.Exception):
                return False
            return True

        self.note("test", test)
        began = time.perf_counter()
        with _Function(NO_FAULT, seen):
            if not passes(NO_FAULT):
                return True
        if time.perf_counter() - began > SLOW_S:
            self.note("slow", test)
            return True
        for name, fault in list(self.left.items()):
            if not _can_show(name, fault, seen):
                continue
            self.note("started", test, name)
            if not passes(fault) and passes(NO_FAULT):
                self.note("found", test, name)
                del self.left[name]
            else:
                self.note("survived", test, name)
        return True


def pytest_configure(config: Any) -> None:
    """Register the plugin, with `-p tests.clients.torchcts_faults`."""
    config.pluginmanager.register(FaultPlugin(Path(os.environ[JOURNAL])))


def run(suite: str, journal: Path, until: float) -> str:
    """Run one suite under the faults. Restart it after each end of its process until it is complete or the time is
    over."""
    package = torchcts_run.install()
    before = -1
    while time.monotonic() < until:
        if before == journal.stat().st_size:
            return "not whole: it ended before another test began"
        before = journal.stat().st_size
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            options = torchcts_run.options(package, suite, DEVICE, folder)
            path = os.pathsep.join((str(package), str(torchcts_run.ROOT), os.environ.get("PYTHONPATH", "")))
            environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", JOURNAL: str(journal)}
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "pytest", "-p", "tests.clients.torchcts_faults", *options],
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    check=False,
                    timeout=max(until - time.monotonic(), 1),
                )
            except subprocess.TimeoutExpired:
                return "not whole: the time was over"
            if done.returncode in (0, 1, 5):
                return "whole"
    return "not whole: the time was over"


def read(journal: Path) -> tuple[dict[str, str], Counter[str]]:
    """Return the test that found each found fault, and the number of tests run under each fault."""
    tests: dict[str, str] = {}
    tried: Counter[str] = Counter()
    last = ["", "", ""]
    for line in journal.read_text().splitlines():
        kind, test, fault = json.loads(line)
        if kind == "found":
            tests[fault] = test
        elif kind == "started":
            tried[fault] += 1
        if last[0] == "started" and kind == "test":
            tests.setdefault(last[2], f"{last[1]} (ended the process)")
        last = [kind, test, fault]
    return tests, tried


def main() -> int:
    """Run the suites, and print the test that found each fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", nargs="*", default=list(SUITES))
    parser.add_argument("--journal", type=Path, default=Path("torchcts_faults.jsonl"), help="kept, and gone on with")
    parser.add_argument("--minutes", type=float, default=40)
    args = parser.parse_args()
    journal, until = args.journal.resolve(), time.monotonic() + 60 * args.minutes
    journal.touch()
    for suite in args.suite:
        print(f"{suite}: {run(suite, journal, until)}", flush=True)
    tests, tried = read(journal)
    for name in EVERY:
        looked = f"not in {tried[name]} tests" if tried[name] else "no test calls it"
        print(f"| {name} | {tests.get(name, looked)} |")
    print(f"{len(tests)} of {len(EVERY)} found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
