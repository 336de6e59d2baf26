"""Declared findings of drawn programs: strict in both directions, and updated from a campaign."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from conformance.declare.declaration import Declaration, Scope, dumps, read
from conformance.declare.expectations import apply, update, warn_of_all_covering
from conformance.record import result as model
from conformance.record.patterns import NOT_ONE_BUG, NOT_SHRUNK
from conformance.record.program_stats import ProgramStats
from conformance.record.result import UNEXPLAINED, Outcome, Run
from conformance.sources.init import expectations as command
from tests.report.runs import campaign, fuzz_finding, result, run

ENTRY = Declaration(Scope(step=("copy_",), programs=300, seed=0), ("value",), "a reason")


def changed(entry: Declaration, **scope: Any) -> Declaration:
    """The declaration with another scope. Names become tuples."""
    names = {key: (value,) if isinstance(value, str) and key != "options" else value for key, value in scope.items()}
    property = names.pop("property", entry.property)
    return dataclasses.replace(entry, scope=dataclasses.replace(entry.scope, **names), property=property)


def outcomes(judged: Run) -> list[Outcome]:
    return [result.outcome for result in judged.results]


class TestApply:
    """Tests of `apply`."""

    def test_only_known_findings_are_green(self) -> None:
        """A declared finding is XFAIL with its reason, and the campaign passes."""
        judged = apply(campaign(fuzz_finding(count=3)), [ENTRY], "t.toml")
        assert (outcomes(judged), judged.results[0].reason, judged.expectations) == (
            [Outcome.XFAIL],
            "a reason",
            "t.toml",
        )
        assert (judged.exit_code(), model.summary_line(judged)) == (0, "297 passed, 0 failed, 0 skipped")

    @pytest.mark.parametrize(
        ("changes", "known"),
        [
            ({"step": "c*"}, True), ({"layout": "gaps"}, True), ({"layout": "[a-g]*"}, True), ({"kind": "FAIL"}, True),
            ({"first_wrong_step": "copy_"}, True), ({"step": "*"}, True),
            ({"property": "storage"}, False), ({"layout": "contiguous"}, False), ({"kind": "CRASH"}, False),
            ({"error": "Key*"}, False), ({"first_wrong_step": "add_"}, False), ({"program": "a-program"}, False),
        ],
    )  # fmt: skip
    def test_by_parts_of_the_signature(self, changes: dict[str, Any], known: bool) -> None:
        """Every part that an entry names must match, as a glob."""
        entry = changed(ENTRY, **changes)
        judged = apply(campaign(fuzz_finding(first_wrong_step="copy_")), [entry], "t.toml")
        assert (judged.results[0].outcome is Outcome.XFAIL) is known

    @pytest.mark.parametrize(
        ("cause", "oracle", "word", "known"),
        [
            ("aliasing", "value", "aliasing", True), ("aliasing", "value", "value", False),
            ("aliasing", "storage", "storage", True), ("aliasing", "storage", "alias", False),
            ("value", "grad", "value", True), ("", "value", "value", True), ("", "storage", "aliasing", False),
            ("aliasing", "value", "*", True),
        ],
    )  # fmt: skip
    def test_by_property(self, cause: str, oracle: str, word: str, known: bool) -> None:
        """The property is that of the cause. If the cause is unknown, it is the oracle. An oracle that is no property
        always matches."""
        entry = changed(ENTRY, property=(word,))
        judged = apply(campaign(fuzz_finding(f"{oracle} / copy_ / gaps", property=cause)), [entry], "t.toml")
        assert (judged.results[0].outcome is Outcome.XFAIL) is known

    @pytest.mark.parametrize(
        ("fuzz_run", "due"),
        [
            (campaign(), True),
            (campaign(drawn=ProgramStats((0,), 299)), False),
            (campaign(drawn=ProgramStats((0,), 343, corpus=("x",) * 44)), False),
            (campaign(drawn=ProgramStats((7,), 900)), False),
            (campaign(drawn=ProgramStats((0,), 900, options="--steps 1..2")), False),
            (campaign(complete=False), False),
            (campaign(environment={"selection": "seed 0; shard 1/2"}), False),
            (campaign(drawn=ProgramStats(programs=43, corpus=("a-program",))), False),
            (run(result()), False),
        ],
    )
    def test_what_ought_to_show_and_does_not(self, fuzz_run: Run, due: bool) -> None:
        """A missing finding is XPASS and fails the run, only in the drawing that showed it and from its number of
        programs on."""
        judged = apply(fuzz_run, [ENTRY], "t.toml")
        assert (Outcome.XPASS in outcomes(judged)) is due
        assert judged.exit_code() == int(due or not fuzz_run.complete)

    def test_any_seed(self) -> None:
        """Without a seed, the finding must show in any campaign with that number of programs."""
        entry = changed(ENTRY, seed=None)
        assert outcomes(apply(campaign(drawn=ProgramStats((7,), 300)), [entry], "f")) == [Outcome.XPASS]

    def test_a_saved_program(self) -> None:
        """An entry for a saved program matches that program only, and is due in every run of it."""
        entry = Declaration(Scope(program=("swap-*",)), ("*",), "a reason")
        replayed = ProgramStats(programs=2, corpus=("swap-rows", "other"))
        assert outcomes(apply(campaign(drawn=replayed), [entry], "f")) == [Outcome.XPASS]
        assert outcomes(apply(campaign(fuzz_finding(saved=("swap-rows",)), drawn=replayed), [entry], "f")) == [
            Outcome.XFAIL
        ]
        other = apply(campaign(fuzz_finding(saved=("other",)), drawn=replayed), [entry], "f")
        assert outcomes(other) == [Outcome.FAIL, Outcome.XPASS]
        assert outcomes(apply(campaign(), [entry], "f")) == []

    def test_a_fault_of_the_harness_is_never_declared(self) -> None:
        """A program without a defined meaning is a fault of the harness, so no entry excuses it."""
        entry = Declaration(Scope(programs=1), ("*",), "all")
        assert outcomes(apply(campaign(fuzz_finding("invalid / x", "INVALID")), [entry], "f"))[0] is Outcome.FAIL


class TestUpdate:
    """Tests of `update`."""

    def test_the_same_campaign_is_green_then(self, tmp_path: Path) -> None:
        """After an update, nothing is unexpected, a second update changes nothing, and the file reads back equal."""
        fuzz_run = campaign(
            fuzz_finding(count=3, first=12),
            fuzz_finding("crash / view", "CRASH", first=0),
            fuzz_finding("value / [a*]", saved=("s",)),
        )
        entries, done = update([changed(ENTRY, step="gone")], fuzz_run)
        assert done[0] == "removed: value / gone, which no program showed"
        assert len(done) == 4
        assert apply(fuzz_run, entries, "f").exit_code() == 0
        assert update(entries, fuzz_run) == (entries, [])
        assert [(entry.scope.programs, entry.scope.seed, entry.scope.program) for entry in entries] == [
            (13, 0, ()),
            (1, 0, ()),
            (0, None, ("s",)),
        ]
        assert all(entry.reason.startswith(UNEXPLAINED) for entry in entries)
        path = tmp_path / "t.toml"
        path.write_text(dumps(entries, "# t"))
        assert set(read(path)) == set(entries)

    def test_flaky_ones_are_not_added(self) -> None:
        """A flaky finding may not show again, so it is not declared."""
        assert update([], campaign(fuzz_finding("flaky / value / a", "FLAKY", first=0))) == ([], [])

    def test_other_campaigns_keep_an_entry(self) -> None:
        """A campaign with fewer programs or another seed removes no entry."""
        assert update([ENTRY], campaign(drawn=ProgramStats((1,), 900)))[0] == [ENTRY]


COPIES = "results are copies instead of views"


def copying(op: str, first: int | None = 0, **more: Any) -> model.Result:
    """A finding whose pattern occurs in several operators."""
    return fuzz_finding(f"alias / {op}", first=first, **{"property": "aliasing", "op": op, "pattern": COPIES, **more})


class TestPatterns:
    """One bug in many operators is one entry, by the pattern of its differences."""

    def test_one_entry_for_three_operators(self) -> None:
        """The entry has the lowest number of programs that shows one of the operators."""
        fuzz_run = campaign(copying("t", 30), copying("select", 12), copying("expand", 25))
        [entry], done = update([], fuzz_run)
        assert (entry.scope, entry.property) == (Scope(pattern=(COPIES,), programs=13, seed=0), ("*",))
        assert done == [f"added: {COPIES}"]
        assert apply(fuzz_run, [entry], "f").exit_code() == 0
        assert update([entry], fuzz_run) == ([entry], [])

    def test_it_covers_a_fourth_operator_and_no_other_pattern(self) -> None:
        """The entry covers a fourth operator. Otherwise a device that copies would need a new declaration for each
        seed."""
        [entry], _ = update([], campaign(copying("t"), copying("select"), copying("expand")))
        other = copying("split", pattern="results share memory with the wrong tensor")
        lost = fuzz_finding("value / add_", property="value", op="add_", pattern="value of add", first=3)
        judged = apply(campaign(copying("movedim"), other, lost), [entry], "f")
        assert outcomes(judged) == [Outcome.XFAIL, Outcome.FAIL, Outcome.FAIL]
        assert judged.exit_code() == 1

    def test_two_operators_are_two_entries(self) -> None:
        """Two operators are no pattern: each is declared by its cause, and a third is new."""
        entries, _ = update([], campaign(copying("t"), copying("select")))
        assert [(entry.scope.pattern, entry.scope.op) for entry in entries] == [((), ("t",)), ((), ("select",))]
        assert outcomes(apply(campaign(copying("expand")), entries, "f"))[0] is Outcome.FAIL

    def test_one_operator_in_three_findings(self) -> None:
        """The number of operators decides, not the number of findings."""
        fuzz_run = campaign(*(copying("t", property=wrong) for wrong in ("aliasing", "value", "metadata")))
        assert {entry.scope.pattern for entry in update([], fuzz_run)[0]} == {()}

    @pytest.mark.parametrize("name", sorted(NOT_ONE_BUG))
    def test_a_pattern_of_different_bugs(self, name: str) -> None:
        """One entry for all operators would hide a new bug whose wrong numbers look the same."""
        entries, _ = update([], campaign(*(copying(op, pattern=name) for op in ("exp", "log", "sin"))))
        assert [(entry.scope.pattern, entry.scope.op) for entry in entries] == [
            ((), (op,)) for op in ("exp", "log", "sin")
        ]

    def test_saved_programs_are_declared_one_by_one(self) -> None:
        """Each entry is due when its own program runs."""
        fuzz_run = campaign(*(copying(op, None, saved=(op,)) for op in ("t", "select", "expand")))
        assert [entry.scope.program for entry in update([], fuzz_run)[0]] == [("t",), ("select",), ("expand",)]

    def test_a_pattern_that_nothing_shows(self) -> None:
        """A pattern that no program shows is XPASS, and an update removes it."""
        entry = Declaration(Scope(pattern=(COPIES,), programs=100, seed=0), ("*",), "a reason")
        judged = apply(campaign(fuzz_finding("value / add_")), [entry], "t.toml")
        assert outcomes(judged) == [Outcome.FAIL, Outcome.XPASS]
        assert judged.results[1].finding is not None
        assert judged.results[1].finding.signature == f"declared: {COPIES}"
        assert update([entry], campaign())[1] == [f"removed: {COPIES}, which no program showed"]

    def test_a_file_keeps_it(self, tmp_path: Path) -> None:
        """The file keeps a pattern, even with the characters of a glob."""
        name = "raises KeyError: [a*] is no key?"
        fuzz_run = campaign(*(copying(op, pattern=name) for op in ("t", "select", "expand")))
        (tmp_path / "t.toml").write_text(dumps(update([], fuzz_run)[0], "# t"))
        known = read(tmp_path / "t.toml")
        assert apply(fuzz_run, known, "f").exit_code() == 0
        assert (
            outcomes(apply(campaign(copying("t", pattern="raises KeyError: a is no key.")), known, "f"))[0]
            is Outcome.FAIL
        )

    def test_what_is_not_shrunk_is_never_declared(self) -> None:
        """An unshrunk finding has no known cause, and an entry for it would cover other bugs. An exception is an
        unshrunk finding with the pattern of shrunk ones: their entry covers it."""
        late = [copying(op, pattern=NOT_SHRUNK.format("aliasing"), shrunk=False) for op in ("t", "select", "expand")]
        entries, done = update([], campaign(*late))
        assert entries == []
        assert done == [f"not added: aliasing / {op}, whose cause is not known until it is shrunk" for op in
                        ("t", "select", "expand")]  # fmt: skip
        entries, _ = update([], campaign(copying("t"), copying("select"), copying("expand", shrunk=False)))
        assert [entry.scope.pattern for entry in entries] == [(COPIES,)]


class TestCommand:
    """`conformance expectations` on findings."""

    def test_update_keeps_the_other_kind(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A campaign's update keeps the op cases, and a run's update keeps the findings."""
        path, file = tmp_path / "t.toml", ["--file", str(tmp_path / "t.toml")]
        path.write_text('[[declare]]\nscope = {op = "add"}\nproperty = "value"\nreason = "known"\n')
        model.save(campaign(fuzz_finding(first=4)), tmp_path / "fuzz.json")
        assert command.main([*file, "update", str(tmp_path / "fuzz.json"), "--reason", "why"]) == 0
        assert "added: value / copy_ / gaps" in capsys.readouterr().out
        model.save(run(result("sub", Outcome.PASS)), tmp_path / "opinfo.json")
        assert command.main([*file, "update", str(tmp_path / "opinfo.json")]) == 0
        assert [(entry.scope.op, entry.scope.step, entry.scope.programs, entry.reason) for entry in read(path)] == [
            (("add",), (), 0, "known"),
            ((), ("copy_",), 5, "why"),
        ]

    def test_explain(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """`explain` prints a signature's entries with their reason and the number of programs."""
        (tmp_path / "t.toml").write_text(dataclasses.replace(ENTRY, issue="https://example.org/1").toml())
        file = ["--file", str(tmp_path / "t.toml")]
        assert command.main([*file, "explain", "value / copy_ / gaps"]) == 0
        output = capsys.readouterr().out
        assert f'# {tmp_path / "t.toml"}, line 1\n[[declare]]\nscope = {{step = "copy_", programs = 300' in output
        assert 'reason = "a reason"' in output and "1 entry for value / copy_ / gaps" in output
        assert command.main([*file, "explain", "crash / copy_"]) == 0
        assert "0 entries for crash / copy_" in capsys.readouterr().out


class TestAllCovering:
    """Tests of `warn_of_all_covering`."""

    @pytest.mark.parametrize(
        ("scope", "warned"),
        [
            ({}, True),
            ({"op": "*"}, True),
            ({"op": ("*", "**"), "layout": "*"}, True),
            ({"op": "copy_*"}, False),
            ({"layout": "gaps"}, False),
            ({"property": ("value", "storage")}, False),
            ({"program": "swap-rows"}, False),
        ],
    )
    def test_which_declarations_cover_everything(self, scope: dict[str, Any], warned: bool) -> None:
        """Neither an operator, nor another part of a finding, nor a property is named."""
        entry = Declaration(Scope(programs=300), ("*",), "later", file="known.toml", line=4)
        entry = changed(entry, **scope)
        judged = apply(campaign(fuzz_finding(count=3)), [entry], "known.toml")
        said = warn_of_all_covering(judged, [entry])
        assert bool(said) is warned
        assert all("known.toml, line 4 covers every failure, and hides 1 finding in 3 programs that" in s for s in said)

    def test_what_another_entry_declares_is_not_hidden(self) -> None:
        """Findings with an entry of their own are not counted, and a run of cases says nothing of programs."""
        entry = Declaration(Scope(programs=300), ("*",), "later", file="known.toml", line=4)
        judged = apply(campaign(fuzz_finding(count=3)), [entry, ENTRY], "known.toml")
        assert "hides 0 findings in 0 programs" in warn_of_all_covering(judged, [entry, ENTRY])[0]
        assert not warn_of_all_covering(run(result("add")), [entry])

    def test_an_entry_about_cases_covers_no_finding(self) -> None:
        """`op = "*"` without `programs` is about op_db: findings fail the run, and the warning counts them. Regression
        test: it was silent, so its author could not tell why the run still failed."""
        entry = Declaration(Scope(op=("*",)), ("*",), "later", file="known.toml", line=4)
        judged = apply(campaign(fuzz_finding(count=3)), [entry], "known.toml")
        (said,) = warn_of_all_covering(judged, [entry])
        assert "no finding of a drawn program, so the run fails with 1 finding in 3 programs" in said
        assert (outcomes(judged), judged.exit_code(), judged.expectations) == ([Outcome.FAIL], 1, "known.toml")
        assert not warn_of_all_covering(apply(campaign(), [entry], "known.toml"), [entry])
