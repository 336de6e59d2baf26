"""A campaign on Ray: same findings as one local worker, on any nodes, and after any process is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[client]>=2.50', as `nox -s slow` does")

from tests.run.clusters import SMALL, started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WORDS = ("--target", "mutant:copy_ into gaps is lost", "--programs", "160", "--only", "copy")


def command(reports: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "conformance", "fuzz", *WORDS, "--reports", str(reports), *more]


def run(reports: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(reports, *more), check=False, capture_output=True, text=True)


def findings(reports: Path) -> dict[str, Any]:
    """A campaign's findings by file: kind, signatures, failing programs and minimal program."""
    by_file = {}
    for path in (reports / "failures").glob("*.json"):
        one = json.loads(path.read_text())
        by_file[path.name] = [one[key] for key in ("kind", "signature", "signatures", "numbers", "program", "shrunk")]
    return by_file


def totals(reports: Path) -> dict[str, Any]:
    drawn: dict[str, Any] = json.loads((reports / "fuzz.json").read_text())["drawn"]
    return drawn


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of a campaign with one worker on this machine."""
    reports = tmp_path_factory.mktemp("local")
    done = run(reports)
    assert done.returncode == 1, done.stderr
    assert len(findings(reports)) >= 2
    return reports


@pytest.fixture(scope="module")
def three() -> Iterator[Any]:
    """Cluster of three nodes with one worker each."""
    with started(3) as cluster:
        yield cluster


def same(one: Path, other: Path) -> None:
    assert findings(one) == findings(other)
    assert totals(one) == totals(other)


class TestTheSameAnswers:
    def test_two_workers(self, undisturbed: Path, tmp_path: Path) -> None:
        """Two local processes give the same findings."""
        run(tmp_path, "-n", "2")
        same(undisturbed, tmp_path)

    def test_one_node(self, undisturbed: Path, tmp_path: Path) -> None:
        """A Ray instance that ends with the command gives the same findings."""
        done = run(tmp_path, "--pool", "ray", "-n", "2")
        assert done.returncode == 1, done.stderr
        same(undisturbed, tmp_path)

    def test_three_nodes(self, undisturbed: Path, tmp_path: Path, three: Any) -> None:
        """A cluster gives the same findings, in any order of completion."""
        done = run(tmp_path, "--pool", three.address, "-n", "3")
        assert done.returncode == 1, done.stderr
        same(undisturbed, tmp_path)

    def test_the_client(self, undisturbed: Path, tmp_path: Path, three: Any) -> None:
        """A machine outside the cluster, connected through ray://, gives the same findings."""
        done = run(tmp_path, "--pool", three.client, "-n", "2")
        assert done.returncode == 1, done.stderr
        same(undisturbed, tmp_path)

    def test_op_db(self) -> None:
        """The result files are equal byte for byte, failures included, except for times."""
        words = ["--programs", "0", "--samples", "6", "--op", "mul", "--op", "add*", "--op", "sort"]
        done = subprocess.run(
            [sys.executable, "scripts/same_answers.py", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("the same") == 4
        assert "'FAIL'" in done.stdout

    def test_faults(self, three: Any) -> None:
        """`conformance mutants` gives the same table on the cluster."""
        words = ["--fault", "select is stale", "--fault", "transpose is stale", "--programs", "300"]
        places = (["-n", "1"], ["-n", "2", "--pool", three.address])
        tables = []
        for place in places:
            line = [sys.executable, "-m", "conformance", "mutants", *words, *place]
            done = subprocess.run(line, check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert "2 of 2 found" in done.stdout
            tables.append(next(line for line in done.stdout.splitlines() if "2 of 2 found" in line))
        assert tables[0] == tables[1]


class TestWhatIsSent:
    def test_a_module_and_a_profile_to_the_node_with_the_device(self, tmp_path: Path, three: Any) -> None:
        """A profile and a module that exist only in the current folder reach the worker, which runs on the one node
        with the requested resource."""
        special = three.add_node(num_cpus=1, object_store_memory=SMALL, resources={"my_chip": 1})
        try:
            (tmp_path / "my_device.py").write_text("import os\n\nassert os.environ['MY_CHIP'] == 'on'\n")
            profile = '[target]\nkind = "device"\nname = "cpu"\nimport = "my_device"\n\n[environment]\nMY_CHIP = "on"\n'
            (tmp_path / "conformance.toml").write_text(profile)
            words = [
                "--op",
                "neg",
                "--dtype",
                "float32",
                "--samples",
                "1",
                "--per-worker",
                "CPU=1,my_chip=1",
                "--pool",
                three.address,
            ]
            line = [sys.executable, "-m", "conformance", "opinfo", *words, "--reports", str(tmp_path / "reports")]
            done = subprocess.run(line, check=False, capture_output=True, text=True, cwd=tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "1 passed, 0 failed" in done.stdout
        finally:
            three.remove_node(special)


class TestNothingLost:
    def stop(
        self, reports: Path, address: str, kill: Callable[[subprocess.Popen[str]], None]
    ) -> tuple[int, str, float]:
        """Start a campaign there and call `kill` after its first finding; return the exit code, the error output and
        the seconds from kill to end."""
        with subprocess.Popen(command(reports, "--pool", address, "-n", "2"), stderr=subprocess.PIPE, text=True) as it:
            while not any((reports / "failures").glob("*.json")):
                assert it.poll() is None, it.stderr.read() if it.stderr else ""
                time.sleep(0.05)
            kill(it)
            began = time.monotonic()
            _, said = it.communicate()
        return it.returncode, said, time.monotonic() - began

    def test_the_driver(self, undisturbed: Path, tmp_path: Path, three: Any) -> None:
        """After kill -9 of the driver, its findings are on this machine's disk, and `--resume` counts each once."""
        code, _, _ = self.stop(tmp_path, three.address, lambda it: os.kill(it.pid, signal.SIGKILL))
        assert code == -signal.SIGKILL
        assert any((tmp_path / "failures").glob("*.json"))
        done = run(tmp_path, "--pool", three.address, "-n", "2", "--resume")
        assert done.returncode == 1, done.stderr
        same(undisturbed, tmp_path)

    def test_the_head(self, undisturbed: Path, tmp_path: Path) -> None:
        """After kill -9 of the head and the nodes, the command ends with one sentence and exit code 2. `--resume`
        continues on another machine."""
        with started(2) as cluster:

            def kill(it: subprocess.Popen[str]) -> None:
                cluster.head_node.kill_gcs_server()
                for node in cluster.worker_nodes:
                    node.kill_raylet()

            code, said, seconds = self.stop(tmp_path, cluster.address, kill)
        assert code == 2, said
        assert "--resume goes on" in said
        print(f"the head: said after {seconds:.1f} s")
        assert run(tmp_path, "--resume").returncode == 1
        same(undisturbed, tmp_path)
