"""The `conformance` command: one word for each job, equivalent to ``python -m conformance.<module>``.

Defines `main` and the table of jobs. A job runs as its own module would, so that spawned workers find it again by name.
Only the requested job is imported.
"""

from __future__ import annotations

import os
import runpy
import sys

from conformance import __version__

JOBS = {
    "test": ("conformance.sources.whole", "test a target completely within a time: one page, one exit code"),
    "init": ("conformance.sources.init", "find out what a target has and lacks, and write its profile"),
    "fuzz": ("conformance.fuzz", "run drawn view and in-place programs on a target and on torch CPU"),
    "opinfo": ("conformance.opinfo_runner", "run PyTorch's op_db on a target and on torch CPU"),
    "mutants": ("conformance.selftest", "measure how soon the fuzzer finds each planted fault"),
    "known-bugs": ("conformance.selftest.known_bugs", "measure which reported bugs of PyTorch a campaign finds"),
    "accuracy": ("conformance.sources.accuracy", "measure the errors of a target and of torch CPU, side by side"),
    "watch": ("conformance.report.live", "renew a page on a campaign while it runs"),
    "sizes": ("conformance.sources.sizes", "run calls of large sizes, and measure their memory beside torch CPU's"),
    "repros": ("conformance.sources.repros", "try every known bug of PyTorch on a target"),
    "modules": ("conformance.sources.modules", "run PyTorch's modules and optimizers on a target"),
    "upstream": ("conformance.sources.upstream", "run PyTorch's own device-type tests on a target"),
    "models": ("conformance.sources.models", "run the recorded operator calls of published models on a target"),
    "record": ("conformance.sources.models.record", "record the operator calls of a script's model"),
    "operator": ("conformance.sources.operator", "judge an operator of your own against a reference"),
    "trace": ("conformance.sources.trace", "run a script on its device, and name the operators that are wrong"),
    "report": ("conformance.report", "read, compare and merge the results of runs"),
    "kernels": ("conformance.backend.kernels", "run a script that uses tiny, and show its kernels by line"),
    "cache": (
        "conformance.backend.kernels.cache",
        "carry compiled kernels of tiny to another machine, and remove old ones",
    ),
    "expectations": ("conformance.sources.init.expectations", "show and update what is known to fail"),
}


def main() -> int:
    """Run the job that the first argument names, with the other arguments. Returns its exit code, 2 for an unknown job,
    and 130 at Ctrl-C.
    """
    job, arguments = (sys.argv[1] if len(sys.argv) > 1 else "--help"), sys.argv[2:]
    if job in ("-h", "--help"):
        print("usage: conformance JOB [options]        (conformance JOB --help says more)\n")
        for name, (_, purpose) in JOBS.items():
            print(f"  {name:<14}{purpose}")
        return 0
    if job == "--version":
        from conformance.record import versions
        from conformance.record.errors import UserError

        try:
            print(f"conformance {__version__}, torch {versions.installed()}")
        except UserError as error:
            print(f"conformance: {error}", file=sys.stderr)
            return 2
        return 0
    if job not in JOBS:
        from conformance.record.names import nearest

        hint = nearest(job, JOBS) or f"; choose one of {', '.join(JOBS)}"
        print(f"conformance: no job {job!r}{hint}", file=sys.stderr)
        return 2
    module, _ = JOBS[job]
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())  # as `python -m` does: a target's module may lie in the current folder
    sys.argv = [f"conformance {job}", *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ImportError as error:
        if error.name != "tinygrad":
            raise
        print(f"conformance {job}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"conformance {job}: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
