"""Resuming: a killed campaign loses no finding and continues where it stopped; running out of memory is a finding."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from conformance.sources.fuzzing.command import main
from tests.patience import stretched, wait_until
from tests.run import signals
from tests.run.campaign.saved import fuzz_result
from tests.run.process_tree import alive

FAULT = "mutant:every third write is lost"


def command(reports: Path, *words: str) -> list[str]:
    return [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "conformance.fuzz",
        "--target",
        FAULT,
        "--programs",
        "160",
        "--without",
        "op_db",
        "--reports",
        str(reports),
        *words,
    ]


def progress(reports: Path) -> dict:
    path = reports / "fuzz-progress.json"
    return json.loads(path.read_text()) if path.exists() else {"following": 0, "unfinished": []}


def wait_for(reports: Path, first: int) -> None:
    wait_until(lambda: progress(reports)["following"] >= first, f"{first} programs are noted")


def children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def workers(pid: int) -> list[int]:
    """The campaign's workers: forks of the only process that it spawned."""
    spawned = [each for each in children(pid) if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]
    return [worker for server in spawned for worker in children(server)]


def summary(reports: Path) -> tuple[object, ...]:
    """The parts of a result that do not depend on kills: programs, coverage, and each finding's programs."""
    done = fuzz_result(reports)
    saved = [json.loads(path.read_text()) for path in sorted((reports / "failures").glob("*.json"))]
    return (
        done["programs"],
        done["failing_programs"],
        done["cells"],
        sorted((finding["signature"], finding["numbers"]) for finding in saved),
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[object, ...]:
    reports = tmp_path_factory.mktemp("undisturbed")
    assert subprocess.run(command(reports), capture_output=True, check=False).returncode == 1
    return summary(reports)


@pytest.mark.slow
class TestResume:
    def test_a_killed_campaign_goes_on_and_loses_nothing(self, tmp_path, undisturbed):
        """A campaign killed with -9 at two moments, and resumed, has the same programs, coverage and failing programs
        as an undisturbed one."""
        for first in (40, 100):
            running = subprocess.Popen(
                command(tmp_path, "--resume"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            wait_for(tmp_path, first)
            assert running.poll() is None, "it ended before it could be killed"
            running.send_signal(signal.SIGKILL)
            running.wait()
        saved = len(list((tmp_path / "failures").glob("*.json")))
        assert saved
        assert subprocess.run(command(tmp_path, "--resume"), capture_output=True, check=False).returncode == 1
        programs, failing, cells, groups = summary(tmp_path)
        assert (programs, failing, cells) == undisturbed[:3]
        assert {n for _, numbers in groups for n in numbers} == {n for _, numbers in undisturbed[3] for n in numbers}

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
    def test_a_killed_worker_loses_nothing(self, tmp_path, undisturbed):
        """After kill -9 of the worker, its current program is a finding, every other finding exists, and all programs
        ran."""
        running = subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(tmp_path, 40)
        killed = workers(running.pid)
        for child in killed:
            os.kill(child, signal.SIGKILL)
        running.wait(timeout=stretched(100))
        assert killed
        programs, _, _, groups = summary(tmp_path)
        assert programs == undisturbed[0]
        plain = {name: numbers for name, numbers in groups if not name.startswith("crash")}
        lost = {number for name, numbers in undisturbed[3] for number in numbers} - {
            number for numbers in plain.values() for number in numbers
        }
        assert len(lost) <= 1, "only the program that the worker was killed in may be a crash instead"

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
    def test_a_worker_ends_when_its_campaign_is_killed(self, tmp_path):
        """A worker whose campaign was killed starts no further program. Regression test: the worker continued and wrote
        into the files of the resumed campaign."""
        running = subprocess.Popen(
            command(tmp_path, "--programs", "100000"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        wait_for(tmp_path, 20)
        started = workers(running.pid)
        while not list(tmp_path.glob("conformance-*/*.note")):
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
        running.wait()
        for worker in started:
            wait_until(lambda: not alive(worker), "the worker has ended")  # noqa: B023 - called before the next turn
        assert started

    @pytest.mark.usefixtures("sigint_heeded")
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_stopped_campaign_reports(self, number, code, tmp_path, undisturbed):
        """After Ctrl-C or SIGTERM, even repeated, the report has the findings so far, and `--resume` completes the
        campaign."""
        running = subprocess.Popen(command(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(tmp_path, 40)
        signals.send(running, (number, signal.SIGTERM, signal.SIGINT))
        _, said = running.communicate(timeout=stretched(100))
        assert running.returncode == code, said
        assert said.count("\n") == 1
        done = fuzz_result(tmp_path)
        assert not done["complete"]
        assert done["programs"] < 160
        assert (tmp_path / "fuzz.html").exists()
        assert subprocess.run(command(tmp_path, "--resume"), capture_output=True, check=False).returncode == 1
        assert summary(tmp_path)[:3] == undisturbed[:3]

    def test_another_campaign_is_not_resumed(self, tmp_path, capsys):
        """Resuming with other options or a damaged file gives one sentence and exit code 2."""
        words = ("--target", "cpu", "--programs", "5", "--reports", str(tmp_path))
        assert main(words) == 0
        assert main([*words, "--resume", "--seed", "1"]) == 2
        assert "another campaign" in capsys.readouterr().err
        (tmp_path / "fuzz-progress.json").write_text("{")
        assert main([*words, "--resume"]) == 2
        assert "run without --resume" in capsys.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA limits memory on Linux only")
class TestMemory:
    @pytest.mark.parametrize("act", ["bytearray(3 << 30)", "torch.zeros(3 << 30, dtype=torch.uint8)"])
    def test_out_of_memory_is_a_finding_and_the_campaign_goes_on(self, act, tmp_path, monkeypatch):
        """A step that exceeds the worker's memory is a finding of kind MEMORY. It shrinks to that step, and every
        program runs."""
        (tmp_path / "hungry_target.py").write_text(
            textwrap.dedent(f"""
            import torch
            from conformance.selftest.mutants import MutantTarget, Planted
            from conformance.selftest.faults import Fault

            class Hungry(MutantTarget):
                def __init__(self, argument=""):
                    super().__init__("zero_ clears the storage")
                    self.mode = Planted(Fault("unfold", lambda call: ({act}, call.run())[1], "test"))
        """)
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        words = (
            "--target",
            "class:hungry_target.Hungry",
            "--programs",
            "30",
            "--only",
            "setitem",
            "--memory",
            "2",
            "--reports",
            str(tmp_path),
        )
        assert main(words) == 1
        done = fuzz_result(tmp_path)
        assert done["programs"] == 30
        [finding] = done["findings"]
        assert (finding["kind"], finding["signature"], finding["steps"]) == ("MEMORY", "memory / unfold", 1)


class TestCorpus:
    def test_the_programs_of_a_folder_run_first(self, tmp_path, capsys):
        """Programs of the corpus find a fault without drawn programs, and their numbers are below 0."""
        corpus = Path(__file__).parents[3] / "conformance" / "program" / "corpus"
        words = ("--target", "mutant:diagonal is stale", "--programs", "0", "--check-scripts", "0")
        words += ("--reports", str(tmp_path))
        assert main([*words, "--corpus", str(corpus)]) == 1
        done = fuzz_result(tmp_path)
        assert done["programs"] == len(list(corpus.glob("*.json")))
        assert all(finding["number"] < 0 for finding in done["findings"])
        (tmp_path / "empty").mkdir()
        assert main([*words, "--corpus", str(tmp_path / "empty")]) == 2
        assert "no program" in capsys.readouterr().err
