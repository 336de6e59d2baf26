"""The live page of a running campaign: it reads samples from disk, complete or not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.report import live
from conformance.report.live import CampaignState, Log, main, page, read

FIRST = CampaignState(1000.0, 0.0, 0, 0, 0, 2, 0)


def samples(count: int) -> list[CampaignState]:
    """Samples at ten programs and one cell per second; the second cause appears at 20 s, and none later."""
    return [
        replace(
            FIRST, at=1000 + 5.0 * k, seconds=5.0 * k, programs=50 * k, cells=5 * k, causes=min(k // 2, 2), deaths=k
        )
        for k in range(count)
    ]


class TestPage:
    def test_says_whether_it_still_finds(self) -> None:
        """The page has the rate, the coverage, the workers, the deaths, and the time since the last new cause."""
        said = page("cpu", samples(11), 1051.0)
        for text in ("<dd>500</dd>", "<dd>10.0</dd>", "<dd>30 s ago</dd>", "<dd>2</dd>", "distinct causes"):
            assert text in said
        assert said.count("<polyline") == 4
        assert 'http-equiv="refresh"' in said

    def test_many_samples_are_thinned(self) -> None:
        """A campaign of days has as many points per line as one of minutes."""
        said = page("cpu", samples(5000), 26000.0)
        assert max(line.count(",") for line in said.split('points="')[1:]) < 3 * live.POINTS

    def test_what_was_killed_is_told(self) -> None:
        """A minute without a sample and without an end suggests that the campaign was killed."""
        assert "was it killed?" in page("cpu", samples(3), 1100.0)
        assert "was it killed?" not in page("cpu", [replace(FIRST, ended=True)], 9000.0)

    def test_causes_are_named(self, tmp_path: Path) -> None:
        """The most frequent cause comes first, with its script. Invalid files are skipped, and names are escaped."""
        (tmp_path / "failures").mkdir()
        for file, op, numbers in (("a", "rare <b>", [1]), ("c", "often", [2, 5]), ("b", "often", [3])):
            saved = {"kind": "FAIL", "property": "value", "op": op, "number": numbers[0], "numbers": numbers}
            (tmp_path / "failures" / f"{file}.json").write_text(json.dumps(saved))
        (tmp_path / "failures" / "half.json").write_text('{"kind":')
        causes = live.causes(tmp_path / "failures")
        assert [(cause.name, cause.programs) for cause in causes] == [("value / often", 3), ("value / rare <b>", 1)]
        said = page("cpu", samples(3), 1010.0, causes)
        assert '<a href="failures/c.py">value / often</a>' in said
        assert "rare &lt;b&gt;" in said and "rare <b>" not in said
        assert "And 1 more." in page("cpu", samples(3), 1010.0, [causes[0]] * (live.SHOWN + 1))

    def test_a_name_is_text(self) -> None:
        """Markup in a target's name is escaped."""
        assert "<b>" not in page("<b>x</b>", samples(2), 1010.0)


class TestCommand:
    def test_ends_with_the_campaign(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The command writes the final page and skips an incomplete line."""
        log = Log(tmp_path, "cpu", afresh=True)
        for one in samples(3):
            log.add(one)
        log.add(replace(FIRST, ended=True))
        with open(tmp_path / live.NAME, "a") as file:
            file.write('{"at": 3')
        assert main(["--reports", str(tmp_path)]) == 0
        assert capsys.readouterr().out.strip() == str(tmp_path / live.PAGE)
        assert "has ended" in (tmp_path / live.PAGE).read_text()

    def test_goes_on(self, tmp_path: Path) -> None:
        """A resumed campaign appends to the samples; a new one replaces them."""
        Log(tmp_path, "cpu", afresh=True).add(FIRST)
        Log(tmp_path, "cpu", afresh=False).add(FIRST)
        assert read(tmp_path / live.NAME) == ("cpu", [FIRST, FIRST])
        Log(tmp_path, "cpu", afresh=True)
        assert read(tmp_path / live.NAME) == ("cpu", [])

    def test_nothing_to_watch(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A folder without a campaign gives one sentence and exit code 2."""
        assert main(["--reports", str(tmp_path)]) == 2
        assert "start one with conformance fuzz" in capsys.readouterr().err
