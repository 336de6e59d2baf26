"""A fuzz campaign as the report sees it: what is read, refused, joined and said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.core.errors import ReportError
from conformance.report import campaign as fuzz
from conformance.report.campaign import Found
from tests.report.runs import HOSTILE, campaign, fuzz_json

AXES = {"families": ["views", "writes"], "layouts": ["contiguous", "gaps", "empty"], "dtypes": ["float32", "bool"]}


class TestLoad:
    """`load`."""

    def test_what_the_fuzzer_wrote(self, tmp_path: Path) -> None:
        """All of it, with whose bug a finding is and why steps were not run; axes and ends where it names them."""
        (tmp_path / "fuzz.json").write_text(json.dumps(fuzz_json(axes=AXES, complete=False)))
        read = fuzz.load(tmp_path / "fuzz.json")
        [found] = read.findings
        assert (read.target, read.seeds, read.programs, read.failing) == ("tiny", (3,), 300, 26)
        assert found.elsewhere == {"tiny:clang": "agrees"}
        assert read.avoided == {"write through overlapping memory": 3}
        assert read.cells["writes", "gaps", "bool"] == 3
        assert (read.layouts, read.complete) == (("contiguous", "gaps", "empty"), False)
        assert fuzz.from_json(fuzz_json(), "f").layouts == ()

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            ([], "no fuzz campaign"),
            ({"results": []}, "no fuzz campaign"),
            ({"kind": "conformance.opinfo", "schema": 1}, "no fuzz campaign"),
            (fuzz_json(schema=2), "schema 2"),
            ({"kind": "fuzz", "schema": 1}, "target"),
            (fuzz_json(cells={"writes": {"gaps": 3}}), "damaged"),
            (fuzz_json(cells={"writes": {"gaps": {"bool": "<b>"}}}), "damaged"),
            (fuzz_json(programs=True), "damaged"),
            (fuzz_json(findings=["a finding"]), "damaged"),
            (fuzz_json(findings=[{"signature": HOSTILE}]), "damaged"),
            (fuzz_json(findings=[{"signature": HOSTILE, "count": "many"}]), "damaged"),
            (fuzz_json(axes=["gaps"]), "damaged"),
        ],
    )
    def test_something_else(self, data: Any, words: str) -> None:
        """Whatever is not a campaign of this schema is refused in one sentence. Any dict was once taken for one."""
        with pytest.raises(ReportError, match=words) as refused:
            fuzz.from_json(data, "a.json")
        assert str(refused.value).startswith("a.json ")
        assert "\n" not in str(refused.value)


class TestVerdict:
    """`Campaign.verdict`."""

    def test_all_is_well(self) -> None:
        """Only when programs were compared, all of them agreed, and the campaign came to its end."""
        assert campaign().verdict() == (True, "No finding in 300 drawn programs.")
        unsupported_reason = campaign(unsupported={"autograd": 299})
        assert unsupported_reason.verdict() == (True, "No finding in 1 drawn program; the target leaves out 299 more.")
        assert campaign(unsupported={"autograd": 300}).verdict() == (False, "No drawn program was compared.")
        assert campaign(complete=False).verdict() == (False, "The fuzz campaign was interrupted after 300 programs.")

    def test_findings(self) -> None:
        """All failing programs count, and how many bugs they come to."""
        made = campaign(Found("a", count=25), Found("b"))
        assert made.verdict() == (False, "26 of 300 drawn programs fail: 2 distinct findings.")
        assert made.exit_code() == 1


class TestJoin:
    """`join`."""

    def test_shards(self) -> None:
        """Counts are added, and a finding of both is one, with the shorter program."""
        one = campaign(Found("a", count=2, steps=5), cells={("w", "gaps", "bool"): 1}, families=("w",), command="it")
        two = campaign(Found("b"), Found("a", count=3, steps=2), cells={("w", "gaps", "bool"): 2}, seeds=(4,))
        both = fuzz.join([one, two])
        assert both is not None
        assert (both.programs, both.seeds, both.command, both.families) == (600, (0, 4), "", ("w",))
        assert both.findings == (Found("a", count=5, steps=2), Found("b"))
        assert both.cells == {("w", "gaps", "bool"): 3}
        assert fuzz.join([one]) is one
        assert fuzz.join([]) is None

    def test_an_interrupted_one(self) -> None:
        """It is not hidden by the others."""
        both = fuzz.join([campaign(), campaign(complete=False)])
        assert both is not None
        assert not both.complete

    def test_other_targets(self) -> None:
        """They are not one campaign."""
        with pytest.raises(ReportError, match="cpu, tiny"):
            fuzz.join([campaign(), campaign(target="cpu")])
