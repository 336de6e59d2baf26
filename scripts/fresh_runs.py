"""Runs both commands of the README in fresh clones, in the ways that users and CI run them, and prints a table.

    python -m scripts.fresh_runs busy no-stdin --times 2

A command passes on a quiet machine in a terminal and fails elsewhere for reasons that no test sees: a cache that was
filled, a time limit, a signal that `nohup` ignores, a locale. Each run has an empty cache and a temporary folder of its
own. A run of both commands takes about a quarter of an hour; the logs stay in `reports/fresh/`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "reports" / "fresh"
SESSIONS = ("conformance", "tests")
BUSY = 4
DEFAULT_SIGNALS = ("env", "--default-signal=INT,HUP")
"""This script may itself run under `nohup` or in the background, where these signals are ignored."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)|^  (\S+: \d+ -> \d+)$", re.MULTILINE)
"""The line of a failed test, or of a kernel count that rose."""


@dataclass(frozen=True)
class Way:
    """A way of running a command: shell words before it, its environment, and what runs beside it."""

    means: str
    before: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    busy: int = 0
    copies: int = 1
    prefix: tuple[str, ...] = ()


WAYS = {
    "plain": Way("alone, standard input from /dev/null"),
    "busy": Way(f"beside {BUSY} busy processes", busy=BUSY),
    "copy": Way("beside a second copy of itself", copies=2),
    "sigint-ignored": Way("SIGINT ignored", "trap '' INT; "),
    "no-stdin": Way("standard input closed", "exec <&-; "),
    "nohup": Way("under nohup", prefix=("nohup",)),
    "locale": Way("LC_ALL=C, TZ=Asia/Kolkata", environment={"LC_ALL": "C", "TZ": "Asia/Kolkata"}),
}


class Row(NamedTuple):
    """The outcome of one run."""

    way: str
    session: str
    code: int
    minutes: float
    failed: tuple[str, ...]

    def __str__(self) -> str:
        failed = ", ".join(self.failed) or "-"
        return f"| {self.way} | `nox -s {self.session}` | {self.code} | {self.minutes:.1f} | {failed} |"


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes that compute, until the block ends."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def read_command(session: str) -> str:
    """Return the line of the README that runs a nox session."""
    lines = (ROOT / "README.md").read_text().splitlines()
    [command] = [line for line in lines if line.endswith(f"&& .venv/bin/nox -s {session}")]
    return command


def start_run(way: Way, session: str, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the command of a session in a fresh clone below `folder`, with empty caches."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "clone")], check=True)
    for name in ("cache", "tmp"):
        (folder / name).mkdir()
    pip = os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")  # downloads are no results
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder / "tmp"), "PIP_CACHE_DIR": pip}
    environment = {k: v for k, v in os.environ.items() if k not in ("CACHEDB", "TORCHINDUCTOR_CACHE_DIR")}
    with log.open("wb") as out:
        return subprocess.Popen(
            [*DEFAULT_SIGNALS, *way.prefix, "bash", "-euo", "pipefail", "-c", way.before + read_command(session)],
            cwd=folder / "clone",
            env={**environment, **own, **way.environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def run_in(name: str, session: str, number: int) -> list[Row]:
    """Run a session in a way; return the outcome of each copy."""
    way, rows = WAYS[name], []
    with ExitStack() as stack:
        stack.enter_context(busy_processes(way.busy))
        begun, running = time.monotonic(), []
        for copy in range(way.copies):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fresh-", ignore_cleanup_errors=True)))
            log = LOGS / f"{name}-{session}-{number}-{copy}.log"
            running.append((start_run(way, session, folder, log), log))
        for process, log in running:
            code = process.wait()
            said = log.read_text(errors="replace")
            failed = tuple(dict.fromkeys(first or second for first, second in FAILED.findall(said)))
            rows.append(Row(name, session, code, (time.monotonic() - begun) / 60, failed if code else ()))
    return rows


def main() -> int:
    """Run, print each row when it is there; the exit code is 1 if a run failed."""
    described = "; ".join(f"{name}: {way.means}" for name, way in WAYS.items())
    parser = argparse.ArgumentParser("python -m scripts.fresh_runs", description=f"The ways: {described}.")
    parser.add_argument("way", nargs="*", metavar="WAY", help=f"{', '.join(WAYS)} (default: all)")
    parser.add_argument("--session", action="append", choices=SESSIONS, help="only this command (default: both)")
    parser.add_argument("--times", type=int, default=1, help="how often each (default: %(default)s)")
    args = parser.parse_args()
    unknown = [name for name in args.way if name not in WAYS]
    if unknown:
        parser.error(f"no way is called {unknown[0]!r}: choose from {', '.join(WAYS)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    print("| way | command | exit code | minutes | failed |\n|---|---|---|---|---|", flush=True)
    worst = 0
    for number in range(args.times):
        for name in args.way or WAYS:
            for session in args.session or SESSIONS:
                for row in run_in(name, session, number):
                    print(row, flush=True)
                    worst = worst or int(row.code != 0)
    return worst


if __name__ == "__main__":
    sys.exit(main())
