"""The command `conformance upstream`: PyTorch's own device-type tests, from the user's checkout, on a target.

Defines `Upstream`, the source of its cases. A file makes its tests only when it is loaded with the device, so workers
list them before any runs.
"""

from __future__ import annotations

import argparse
import fnmatch
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from conformance.declare import expectations
from conformance.declare.declaration import CASES, check, read, refuse, unknown
from conformance.record.errors import UsageError, UserError
from conformance.record.names import DTYPES, TEST_FILES, UPSTREAM, nearest
from conformance.record.result import UNEXPECTED, Outcome, Result, Run
from conformance.record.sentences import sentence
from conformance.run import options
from conformance.run.case_source import AGAIN, Job, JobPool, JobSource, expectations_file
from conformance.run.cases import CaseRun
from conformance.run.messages import Limits, Task
from conformance.run.session import Session, usual
from conformance.run.session import main as run_command
from conformance.sources.upstream import tasks
from conformance.sources.upstream.table import LOADING, MAKES_TESTS, TESTS, DeviceTest, TestFile, files_of

FLAGS = ("target", "tests", "op", "dtype", "shard", *AGAIN, "minutes", *options.LIMITS, "strict", "check-scripts",
         "reports", *options.DECLARED, *options.PLACE)  # fmt: skip
WITHOUT_DEVICE = "cpu"
"""Target on which a failing test runs again: one that fails there in the same way is not the device's."""
REASONS = 8
"""Number of reasons of skips that the terminal shows."""


class TestPool(JobPool):
    """Workers that list and run tests."""

    __test__ = False
    preload = ("torch", "torch._dynamo")
    """Not op_db, which imports PyTorch's tests: these note the name of the device when they are imported."""

    def list_tests(self, files: Sequence[TestFile]) -> list[DeviceTest]:
        """Return the tests of the files, file by file. A file that cannot be loaded is one case, which loads it again
        and says why."""
        found: dict[str, list[DeviceTest]] = {}
        listing = [Task(file.name, tasks.listed, (self.target, file)) for file in files]
        for task, answer in self.results(listing, lambda task, death: death):
            if isinstance(answer, UserError):
                raise answer
            found[task.name] = answer if isinstance(answer, list) else [DeviceTest(task.args[1].path, variant=LOADING)]
        return [case for file in files for case in found[file.name]]


class Upstream(JobSource):
    """The source of PyTorch's own tests."""

    title = "PyTorch's own tests"
    stem, usual = UPSTREAM, Limits(unit=120.0, memory=8.0, recycle=5000)
    job, pool = Job(tasks.describe_environment, tasks.run, tasks.MODULES), TestPool
    listed, variants = 20, (TESTS, LOADING)

    def prepare(self, session: Session) -> None:
        """Find the files, and read the declarations. Which tests there are is known only when they are loaded."""
        args = session.args
        self.tests, self.lacking, self.planned = files_of(args.tests), 0, 0
        self.patterns, self.dtypes = args.op, args.dtype or []
        self.part, self.parts = args.shard
        named = [f"{file.name} {file.digest}" for file in self.tests]
        self.selection = [*named, *(f"--op {name}" for name in args.op), *(f"--dtype {name}" for name in self.dtypes)]
        self.selection += [f"shard {self.part}/{self.parts}"] * (self.parts > 1)  # last, where `merge` looks for it
        self.file = expectations.file_of(args, expectations_file(self.stem, session.spec))
        self.expected = read(self.file)
        refuse(check(self.expected, CASES, {"variant": self.variants, "layout": (UPSTREAM,)}))

    def files(self, args: argparse.Namespace) -> Iterable[Path | None]:
        """See `Source.files`."""
        return [Path(file.path) for file in files_of(args.tests)]

    def execute(self, session: Session, seconds: float) -> Run:
        """See `JobSource.execute`. The page's commands name the files."""
        run = super().execute(session, seconds)
        run.environment[TEST_FILES] = shlex.join(file.path for file in self.tests)
        return run

    def _run(self, running: CaseRun) -> None:
        """List the tests, run the chosen ones, and run those that fail on torch CPU."""
        chosen, target = running.options, running.target
        with self.pool(chosen.place, target, chosen.limits, chosen.jobs, self.job) as pool:
            assert isinstance(pool, TestPool)
            running.result.environment, held = pool.ask_first(self.job.describe_environment, target)
            cases = self._listed(pool)
            self._check(cases)
            wanted = [case for case in cases if held is None or {*_dtypes_of(case.dtype)} <= {*held}]
            if unheld := len(cases) - len(wanted):
                running.result.notes.append(f"{unheld} tests of dtypes that the target does not hold were left out.")
            wanted = wanted[self.part - 1 :: self.parts]
            self.planned = len(wanted)
            running.begin(wanted)
            stopped = running.run(pool)
        if not stopped and target != WITHOUT_DEVICE:
            running.mark_torch_bugs(
                WITHOUT_DEVICE, lambda layer, jobs: self.pool(chosen.place, layer, chosen.limits, jobs, self.job)
            )

    def _listed(self, pool: TestPool) -> list[DeviceTest]:
        """Return the chosen tests of all shards, and a case for each file that cannot be loaded. Raises UsageError if
        there is no test for the device, or none with a name of `--op`."""
        every = pool.list_tests(self.tests)
        if not every:
            raise UsageError(f"--tests makes no test for the device: {why_none(self.tests)}")
        names = {case.op for case in every}
        loaded = all(case.variant == TESTS for case in every)
        for pattern in self.patterns if loaded else ():
            if not fnmatch.filter(names, pattern):
                raise UsageError(f"no test has the name {pattern!r}{nearest(pattern, names)}")
        chosen = [
            case
            for case in every
            if case.variant == LOADING or (_matches(case.op, self.patterns) and _matches(case.dtype, self.dtypes))
        ]
        if not chosen:
            raise UsageError(f"none of the {len(every)} tests is of the dtypes {', '.join(self.dtypes)}")
        return chosen

    def _check(self, cases: Sequence[DeviceTest]) -> None:
        """Refuse declarations of tests that a file of this run does not have, and of unknown dtypes."""
        files, names = {case.family for case in cases}, {case.op for case in cases}
        mine = [one for one in self.expected if any(name.partition(".")[0] in files for name in one.scope.op)]
        if not self.patterns and not self.dtypes:
            refuse(unknown(mine, {"op": names}))
        refuse(unknown(mine, {"dtype": {*DTYPES, *(case.dtype for case in cases)}}))

    def worst(self, run: Run) -> Sequence[Result]:
        """See `JobSource.worst`."""
        return [result for result in run.results if result.outcome in UNEXPECTED]

    def line(self, result: Result) -> str:
        """See `JobSource.line`."""
        return f"{result.id}: {sentence(result.failures[0]) if result.failures else result.reason}"

    def summarize(self, session: Session, run: Run) -> None:
        """Print the failures, the reasons of skips, and how many tests were judged."""
        for result in self.worst(run)[: self.listed]:
            session.print(self.line(result))
        reasons = Counter(result.reason for result in run.results if result.outcome is Outcome.SKIP)
        for reason, count in reasons.most_common(REASONS):
            session.print(f"skipped, {count}: {reason}")
        session.print(judged(run, self.planned))


def judged(run: Run, planned: int) -> str:
    """Return how many of the planned tests have which outcome, and the share that was judged. A run that a signal or a
    failure stopped has no shortfall, and its tests without a result are not judged either. The tests of a file that
    cannot be loaded are not known: its one case counts as none."""
    unloaded = [result.family for result in run.results if result.variant == LOADING]
    tests = [result for result in run.results if result.variant == TESTS]  # not entries that are stale
    planned -= len(unloaded)
    counts = Counter(result.outcome for result in tests)
    dead, lost = counts[Outcome.CRASH] + counts[Outcome.TIMEOUT], planned - len(tests)
    failed = counts[Outcome.FAIL] + counts[Outcome.FLAKY] + counts[Outcome.XPASS]
    words = [
        f"{counts[Outcome.PASS]} passed", f"{failed} failed",
        f"{counts[Outcome.XFAIL]} declared or also without the device", f"{counts[Outcome.SKIP]} skipped by the test",
        f"{dead} ended or hung their process", f"{lost} not run",
    ]  # fmt: skip
    share = 100 * len(tests) / planned if planned else 0.0
    unknown_tests = f"; not counted, since they cannot be loaded: {', '.join(unloaded)}" if unloaded else ""
    return f"{planned} tests of PyTorch: {', '.join(words)}; {share:.1f} % judged{unknown_tests}"


def why_none(files: Sequence[TestFile]) -> str:
    """Return why files that can be loaded make no test for a device."""
    without = [Path(file.path).name for file in files if not file.makes_tests]
    if not without:
        return "the files name other devices (`only_for`), or have no test"
    there = "" if len(without) == len(files) else "; the other files name other devices (`only_for`)"
    return f"there are no device-type tests in {', '.join(without)} (no {MAKES_TESTS[:-1]}){there}"


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _dtypes_of(name: str) -> Iterator[str]:
    """Yield the dtypes of a test, whose names are joined by _ and may have one."""
    left = name
    while left:
        first = next((dtype for dtype in sorted(DTYPES, key=len, reverse=True) if left.startswith(dtype)), left)
        yield first
        left = left.removeprefix(first).removeprefix("_")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    about = (
        "Run PyTorch's own device-type tests, from a checkout of yours, on a target: each test with a limit, in worker "
        "processes that a crash does not end. A test that fails on torch CPU in the same way is not the target's."
    )
    defaults = usual(Upstream.usual, UPSTREAM, dtype="all")
    parser = options.parser(f"conformance {UPSTREAM}", about, FLAGS, defaults)
    return run_command(parser, arguments, lambda args: [Upstream()])


if __name__ == "__main__":
    sys.exit(main())
