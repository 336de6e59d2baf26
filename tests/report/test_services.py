"""The forms of services: the inputs of PyTorch's relay, and Allure's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from conformance.record import result as model
from conformance.record.result import Outcome, Run
from conformance.report import __main__ as command
from conformance.report import services
from tests.report.runs import failed, fuzz_json, result, run

FOLDER = Path(__file__).parent


def validate(name: str, data: Any) -> None:
    jsonschema.Draft7Validator(json.loads((FOLDER / f"{name}.schema.json").read_text())).validate(data)


def each_outcome() -> Run:
    """A run with a result of each outcome."""
    return run(*(result(f"op{outcome}", outcome) for outcome in Outcome), failed("bad"))


class TestRelay:
    def relay(self, *runs: Run, **more: str) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(services.relay(runs, **more))
        validate("relay", data)
        return data

    def test_counts_and_failures(self) -> None:
        """What fails the run is failed, what is declared is skipped, and the page's address is passed on."""
        data = self.relay(each_outcome(), artifact_url="https://example.org/page")
        assert data["test-results"] == {"passed": 1, "failed": 6, "skipped": 2}
        assert len(data["failed-tests-detail"]) == 6
        assert (data["conclusion"], data["artifact-url"]) == ("failure", "https://example.org/page")
        assert data["environment"]["target"] == each_outcome().title
        assert self.relay(run(result()))["conclusion"] == "success"

    def test_nothing_compared_is_no_success(self) -> None:
        assert self.relay(run())["conclusion"] == "failure"

    def test_a_campaign_beside_a_run(self, tmp_path: Path) -> None:
        """The findings of programs are failures, next to those of op_db."""
        (tmp_path / "fuzz.json").write_text(json.dumps(fuzz_json()))
        data = self.relay(run(result()), model.load(tmp_path / "fuzz.json"))
        assert data["test-results"] == {"passed": 2, "failed": 1, "skipped": 0}

    def test_limits(self) -> None:
        """At most 1,000 failures are sent, though all are counted; texts are cut by bytes, within no character."""
        many = run(*(failed(f"op{number}") for number in range(1200)))
        data = self.relay(many)
        assert (data["test-results"]["failed"], len(data["failed-tests-detail"])) == (1200, 1000)
        assert services.cut_bytes("äöü", 5) == "äö" and services.cut_bytes("\ud800x", 100) == "\\ud800x"

    def test_hostile_texts(self, hostile: Run) -> None:
        """Control characters of a device's texts do not reach the service, and each text keeps its limit in bytes."""
        for failure in self.relay(hostile)["failed-tests-detail"]:
            assert len(failure["message"].encode()) <= 1024
            assert failure["name"].isprintable() and "\x1b" not in failure["message"]


class TestAllure:
    def files(self, *runs: Run) -> dict[str, str]:
        files = dict(services.allure(runs))
        for name, text in files.items():
            if name.endswith("-result.json"):
                validate("allure", json.loads(text))
        return files

    def statuses(self, *runs: Run) -> dict[str, str]:
        found = [json.loads(text) for name, text in self.files(*runs).items() if name.endswith("-result.json")]
        return {each["name"].partition("::")[0]: each["status"] for each in found}

    def test_statuses(self) -> None:
        """A crash is broken and not failed, and a declared failure is skipped as known."""
        found = self.statuses(each_outcome())
        assert found["opPASS"] == "passed" and found["opCRASH"] == found["opTIMEOUT"] == "broken"
        assert found["opXFAIL"] == found["opSKIP"] == "skipped"
        assert found["opFAIL"] == found["opXPASS"] == found["opFLAKY"] == "failed"

    def test_history_joins_runs_and_files_do_not_collide(self) -> None:
        """The same case of another run has the same history and another file."""
        first, second = run(result("a"), started="2026-11-01T00:00:00+00:00"), run(
            result("a"), started="2026-11-02T00:00:00+00:00"
        )  # fmt: skip
        files = self.files(first, second)
        found = [json.loads(text) for name, text in files.items() if name.endswith("-result.json")]
        assert len({each["uuid"] for each in found}) == 2 and len({each["historyId"] for each in found}) == 1

    def test_the_script_is_attached(self) -> None:
        broken = failed("a")
        script = broken.replace(failures=(model.Failure("value", "result", "1", "2", script="print(1)\n"),))
        files = self.files(run(script))
        [attached] = [name for name in files if name.endswith("-attachment.py")]
        assert files[attached] == "print(1)\n"

    def test_hostile_texts(self, hostile: Run) -> None:
        assert "environment.properties" in self.files(hostile)


class TestCommand:
    @pytest.fixture
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.chdir(tmp_path)
        model.save(each_outcome(), tmp_path / "opinfo.json")
        return "opinfo.json"

    def test_relay(self, file: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["--form", "relay", file, "--artifact-url", "https://example.org/a"]) == 0
        validate("relay", json.loads(capsys.readouterr().out))

    def test_relay_into_a_file(self, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The file has what would be printed; a place that cannot be written is one sentence, and nothing is left."""
        assert command.main(["--form", "relay", file]) == 0
        printed = capsys.readouterr().out
        assert command.main(["--form", "relay", file, "-o", "new/relay.json"]) == 0
        assert (tmp_path / "new/relay.json").read_text() == printed and capsys.readouterr().out == "new/relay.json\n"
        assert command.main(["--form", "relay", file, "-o", "new"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert {path.name for path in tmp_path.iterdir()} == {file, "new"}

    def test_allure(self, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["--form", "allure", file, "-o", "there"]) == 0
        assert len([*(tmp_path / "there").glob("*-result.json")]) == len(each_outcome().results)
        assert capsys.readouterr().out == f"there: {len([*(tmp_path / 'there').iterdir()])} files\n"

    def test_bad_use(self, file: str, capsys: pytest.CaptureFixture[str]) -> None:
        """A missing file, and two findings for one issue, are one sentence."""
        for words in (["relay", "none.json"], ["pytorch-issue", "a", "b"]):
            assert command.main(["--form", *words]) == 2
            assert capsys.readouterr().err.count("\n") == 1
