"""A campaign's findings as results: the parts of a signature, outcomes, and campaigns with known findings."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from conformance.declare.declaration import read
from conformance.record import result as model
from conformance.record.finding import CRASH, FAIL, FLAKY, INVALID, MEMORY, Signature, from_title
from conformance.record.result import Outcome
from conformance.run.campaign.results import parts, replayed, result_of
from conformance.run.failing_program import FailingProgram
from conformance.run.pool import LocalPool
from conformance.run.shrinking import LocalShrinker
from conformance.sources.fuzzing.command import main

FAULT = "mutant:slice drops the offset"


class TestParts:
    """Tests of `Signature.read`."""

    @pytest.mark.parametrize(
        "signature",
        [
            Signature("value", "add_", "gaps"),
            Signature("stride", "view"),
            Signature("value", "only together, up to arithmetic"),
            Signature("error", "", error="RuntimeError: size mismatch"),
            Signature("error", "only together", error="KeyError: x"),
            Signature("error", "the move of the inputs", error="NotImplementedError"),
            Signature("error", "copy", error="no error"),
        ],
    )
    def test_the_text_tells_the_parts(self, signature: Signature) -> None:
        """Every text that `Signature` produces parses back into its parts."""
        assert Signature.read(str(signature), FAIL) == signature

    @pytest.mark.parametrize(
        ("text", "kind", "oracle", "step"),
        [
            ("crash / unfold", CRASH, "crash", "unfold"),
            ("memory / the observation", MEMORY, "memory", "the observation"),
            ("flaky / crash / unfold", FLAKY, "crash", "unfold"),
            ("flaky / value / add_ / gaps", FLAKY, "value", "add_"),
        ],
    )
    def test_deaths_and_flaky_ones(self, text: str, kind: str, oracle: str, step: str) -> None:
        """The first word gives the kind."""
        finding = from_title(text)
        assert (finding.kind, finding.parts.oracle, finding.parts.op) == (kind, oracle, step)

    def test_words_that_parts_can_be(self) -> None:
        """The step names include the positions that are not steps."""
        assert {"the move of the inputs", "only together, up to arithmetic", "copy_"} <= {*parts()["step"]}


class TestResults:
    """Tests of `result_of` and `replayed`."""

    @pytest.mark.parametrize(
        ("kind", "group", "outcome"),
        [
            (CRASH, "crash / add", Outcome.CRASH), (MEMORY, "memory / add", Outcome.CRASH),
            (FLAKY, "flaky / crash / add", Outcome.FLAKY), (INVALID, "invalid / no meaning", Outcome.FAIL),
        ],
    )  # fmt: skip
    def test_outcomes(self, kind: str, group: str, outcome: Outcome) -> None:
        """A crash or a hang has a failure that describes the end of its process."""
        result = result_of(FailingProgram(group, kind, 3), "a script")
        assert (result.outcome, result.id, result.failures[0].script) == (outcome, f"program::{group}", "a script")

    def test_replayed_programs_are_grouped(self) -> None:
        """Two saved programs with one signature become one finding with a count of two."""
        findings = [FailingProgram("crash / add", CRASH, -1, saved=(name,)) for name in "ab"]
        run = replayed("tiny", findings, ["a", "b", "c"], 1)
        (one,) = [result.finding for result in run.results]
        assert one is not None
        assert (one.count, one.saved, run.exit_code()) == (2, ("a", "b"), 1)
        assert replayed("tiny", [], ["a"], 1).exit_code() == 2


class TestCampaign:
    """End-to-end tests with a planted fault."""

    def fuzz(self, folder: Path, target: str, *words: str) -> int:
        (folder / "t.toml").touch()
        file = ["--expectations", str(folder / "t.toml"), "--reports", str(folder / "reports")]
        return main(["--target", target, "--programs", "30", "--only", "view", "--check-scripts", "0", *file, *words])

    def test_its_seconds_are_those_of_the_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The seconds begin before the first worker starts and end after the last finding is shrunk. Regression test:
        the page showed the seconds of drawing only."""
        moments: list[float] = []
        for owner, name in ((LocalPool, "__init__"), (LocalShrinker, "confirm")):
            original = getattr(owner, name)

            def noted(*args: Any, _original: Any = original, **options: Any) -> Any:
                moments.append(time.monotonic())
                return _original(*args, **options)

            monkeypatch.setattr(owner, name, noted)
        began = time.monotonic()
        self.fuzz(tmp_path, FAULT)
        whole = time.monotonic() - began
        assert moments[-1] - moments[0] <= model.load(tmp_path / "reports" / "fuzz.json").seconds <= whole

    def test_each_finding_says_when_it_was_found(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A finding has the seconds from the campaign's begin to its first program, in the result and in the text."""
        self.fuzz(tmp_path, FAULT)
        run = model.load(tmp_path / "reports" / "fuzz.json")
        times = [result.finding.seconds for result in run.findings if result.finding]
        assert times and all(time is not None and 0 < time <= run.seconds for time in times)
        assert "found after " in capsys.readouterr().out

    def test_declared_then_green_then_mended(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A campaign's findings can be declared. The next run is green and counts them, and a declared finding that no
        longer shows fails the run. After a change of the drawing, declarations do not apply."""
        assert self.fuzz(tmp_path, FAULT) == 1
        before = tmp_path / "reports" / "fuzz.json"
        earlier = tmp_path / "earlier.json"
        earlier.write_bytes(before.read_bytes())
        assert self.fuzz(tmp_path, FAULT, "--update-expectations") == 0
        capsys.readouterr()
        assert self.fuzz(tmp_path, FAULT, "--baseline", str(earlier)) == 0
        known = sum(result.outcome is Outcome.XFAIL for result in model.load(before).results)
        assert 0 < len(read(tmp_path / "t.toml")) <= known
        said = capsys.readouterr().out
        assert f"{known} known finding" in said
        assert "not yet explained" in said
        run = model.load(before)
        assert {result.outcome for result in run.results} == {Outcome.XFAIL}
        assert self.fuzz(tmp_path, "cpu", "--baseline", str(earlier)) == 1
        said = capsys.readouterr().out
        assert "fixed (" in said
        assert "XPASS declared:" in said
        assert self.fuzz(tmp_path, "cpu", "--steps", "1..3") == 0
        assert self.fuzz(tmp_path, "cpu", "--seed", "1") == 0

    def test_a_replayed_corpus(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Known findings of saved programs stay known in a replay. A declared program that agrees again fails the
        run."""
        program = (
            Path(__file__).parents[3] / "conformance" / "program" / "corpus" / "view-of-a-permuted-slice-written.json"
        )
        (tmp_path / "corpus").mkdir()
        (tmp_path / "corpus" / "saved.json").write_text(json.dumps(json.loads(program.read_text())))
        words = ("--replay", str(tmp_path / "corpus"))
        assert self.fuzz(tmp_path, FAULT, *words) == 1
        (tmp_path / "t.toml").write_text(
            '[[declare]]\nscope = {program = "saved"}\nproperty = "*"\nreason = "a known bug"\n'
        )
        capsys.readouterr()
        assert self.fuzz(tmp_path, FAULT, *words) == 0
        said = capsys.readouterr().out
        assert "XFAIL saved\n     a known bug" in said
        assert "1 known finding in 1 program, declared in" in said
        assert self.fuzz(tmp_path, "cpu", *words) == 1
        message = (
            f"{tmp_path / 't.toml'}, line 1 declares it, and no program showed it: delete or narrow that [[declare]]"
        )
        assert message in capsys.readouterr().out

    def test_a_typo_stops_before_anything_runs(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """An unknown key gives one sentence with file, line and the nearest key, and exit code 2."""
        (tmp_path / "t.toml").write_text('[[declare]]\nscope = {programs = 3}\nreason = "r"\nproprety = "value"\n')
        assert self.fuzz(tmp_path, "cpu") == 2
        message = f"conformance fuzz: {tmp_path / 't.toml'}, line 4: unknown key 'proprety'; did you mean property?\n"
        assert capsys.readouterr().err == message
        assert not (tmp_path / "reports" / "fuzz.json").exists()

    def test_a_misspelt_oracle_is_refused(self, tmp_path, capsys):
        """An unknown oracle gives one sentence with the nearest name. Regression test: an entry with an oracle that
        does not exist was treated as a finding that no longer showed."""
        (tmp_path / "t.toml").write_text('[[declare]]\nscope = {programs = 3}\nproperty = "valeu"\nreason = "r"\n')
        assert self.fuzz(tmp_path, "cpu") == 2
        message = (
            f"{tmp_path / 't.toml'}, line 1: findings of drawn programs have no property 'valeu'; did you mean value?"
        )
        assert message in capsys.readouterr().err
        assert not (tmp_path / "reports" / "fuzz.json").exists()
