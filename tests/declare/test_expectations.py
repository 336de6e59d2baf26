"""Declared failures of op_db cases: strict in both directions, and updated from a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.declare.declaration import CASES, Declaration, Scope, check, read
from conformance.declare.expectations import WORDS, due, expected, judged, update, without_cases
from conformance.record import result as model
from conformance.record.result import Failure, Finding, Outcome, ProgramStats, Result, Run
from conformance.sources.init import expectations as command
from conformance.sources.opinfo import plan


def result(op: str, outcome: Outcome, *oracles: str, dtype: str = "float32", samples: int = 1) -> Result:
    failures = tuple(Failure(oracle, "result", "1", "2") for oracle in oracles)
    return Result(op, dtype, "forward", "as_sampled", outcome, samples=samples, failures=failures)


def entry(op: str, *oracles: str, dtype: tuple[str, ...] = (), samples: int = 0) -> Declaration:
    return Declaration(Scope(op=(op,), dtype=dtype, samples=samples), oracles or ("*",), "a reason")


def apply(results: list[Result], declarations: list[Declaration]) -> list[Result]:
    return [judged(result, declarations) for result in results]


class TestMended:
    """Entries whose case passes."""

    def test_it_says_how_to_take_it_out(self, tmp_path: Path) -> None:
        """The reason has the file, the line, the remedy and the option that applies it."""
        path = tmp_path / "some.toml"
        path.write_text("# known\n[[declare]]\nscope = {op = 'add'}\nproperty = '*'\nreason = 'so'\n")
        (passed,) = apply([result("add", Outcome.PASS)], read(path))
        assert (passed.outcome, passed.reason) == (
            Outcome.XPASS,
            f"{path}, line 2 declares it, and it passed: delete or narrow that [[declare]] entry, or let the same "
            "command with --update-expectations do so (its reason: so)",
        )


class TestTorch:
    """Entries for some versions of torch only."""

    HELD, OTHER = "torch = '>=2.9'", "torch = '<2.9'"

    def file(self, folder: Path, line: str) -> Path:
        path = folder / "some.toml"
        path.write_text(
            f"[[declare]]\nscope = {{op = 'add'}}\nproperty = 'value'\n{line}\nreason = 'so'\n"
            f"[[declare]]\nscope = {{step = 'copy_', programs = 5}}\nproperty = '*'\n{line}\nreason = 'so'\n"
        )
        return path

    @pytest.mark.parametrize(("line", "outcome"), [(HELD, Outcome.XPASS), (OTHER, Outcome.PASS)])
    def test_a_pass(self, tmp_path: Path, line: str, outcome: Outcome) -> None:
        """If the specifier matches, a pass is XPASS; otherwise the entry does not apply."""
        assert apply([result("add", Outcome.PASS)], read(self.file(tmp_path, line)))[0].outcome is outcome

    @pytest.mark.parametrize(("line", "outcome"), [(HELD, Outcome.XFAIL), (OTHER, Outcome.FAIL)])
    def test_a_failure(self, tmp_path: Path, line: str, outcome: Outcome) -> None:
        """If the specifier does not match, the entry excuses nothing."""
        assert apply([result("add", Outcome.FAIL, "value")], read(self.file(tmp_path, line)))[0].outcome is outcome

    @pytest.mark.parametrize(("line", "owed"), [(HELD, True), (OTHER, False)])
    def test_a_finding(self, tmp_path: Path, line: str, owed: bool) -> None:
        """The same rule applies to findings of programs."""
        (_, known) = read(self.file(tmp_path, line))
        failure = Result("copy_", "", "program", "", Outcome.FAIL, finding=Finding("value / copy_"))
        assert (known.covers(failure), due(known, drawn_run())) == (owed, owed)

    def test_an_update_keeps_what_speaks_of_another(self, tmp_path: Path) -> None:
        """A run with another torch version leaves the entry unchanged, in memory and in the file."""
        path = self.file(tmp_path, self.OTHER)
        kept, done = update(read(path), Run("tiny", [result("add", Outcome.PASS)], drawn=ProgramStats((0,), 10)), "")
        assert (kept, done) == (read(path), [])
        assert all('torch = "<2.9"' in one.toml() for one in kept)

    def test_narrowed_it_speaks_of_the_same(self, tmp_path: Path) -> None:
        """A narrowed entry keeps its versions."""
        path = self.file(tmp_path, self.HELD)
        results = [result("add", Outcome.PASS), result("add", Outcome.FAIL, "value", dtype="int64")]
        (kept, _), _ = update(read(path), Run("tiny", results), "")
        assert (kept.scope.dtype, kept.torch) == (("int64",), ">=2.9")


def drawn_run() -> Run:
    """A complete campaign of ten programs of seed 0."""
    return Run("tiny", [], drawn=ProgramStats(seeds=[0], programs=10))


class TestApply:
    """Declared failures, and declared failures that pass."""

    @pytest.mark.parametrize(
        ("actual", "declared", "outcome"),
        [
            (result("add", Outcome.FAIL, "stride"), entry("add", "stride"), Outcome.XFAIL),
            (result("add", Outcome.FAIL, "stride"), entry("a*"), Outcome.XFAIL),
            (result("add", Outcome.FAIL, "stride", "value"), entry("add", "stride"), Outcome.FAIL),
            (result("add", Outcome.PASS), entry("add", "stride"), Outcome.XPASS),
            (result("add", Outcome.PASS), entry("sub", "stride"), Outcome.PASS),
            (result("add", Outcome.PASS), entry("add", "stride", dtype=("int64",)), Outcome.PASS),
            (result("add", Outcome.CRASH, "crash"), entry("add", "value"), Outcome.CRASH),
            (result("add", Outcome.CRASH, "crash"), entry("add", "crash"), Outcome.XFAIL),
            (result("add", Outcome.SKIP), entry("add", "not compared"), Outcome.SKIP),
            (result("add", Outcome.SKIP), entry("add", "value"), Outcome.SKIP),
        ],
    )
    def test_outcome(self, actual: Result, declared: Declaration, outcome: Outcome) -> None:
        """An entry excuses exactly the oracles that it names, and requires them to fail."""
        assert apply([actual], [declared])[0].outcome is outcome

    def test_every_entry_must_be_met(self) -> None:
        """If one oracle of two entries fails and the other passes, the result is XPASS."""
        declared = [entry("add", "stride"), entry("add", "value")]
        assert apply([result("add", Outcome.FAIL, "stride")], declared)[0].outcome is Outcome.XPASS

    @pytest.mark.parametrize(("compared", "outcome"), [(8, Outcome.PASS), (9, Outcome.XPASS)])
    def test_a_shorter_run_need_not_fail(self, compared: int, outcome: Outcome) -> None:
        """An entry with `samples = 9` may pass in eight samples, but not in nine. It excuses a failure in both."""
        declared = entry("add", "value", samples=9)
        assert apply([result("add", Outcome.PASS, samples=compared)], [declared])[0].outcome is outcome
        assert apply([result("add", Outcome.FAIL, "value", samples=compared)], [declared])[0].outcome is Outcome.XFAIL

    def test_the_reason_is_shown(self) -> None:
        """The result of a declared failure has the entry's reason and place."""
        known = replace(entry("add", "value"), file="t.toml", line=3)
        (judged,) = apply([result("add", Outcome.FAIL, "value")], [known])
        assert (judged.reason, judged.declared) == ("a reason", "t.toml, line 3")

    def test_the_declarations_of_the_package_name_no_path_of_the_machine(self, tmp_path: Path) -> None:
        """Results with their places are the same on every machine."""
        assert {one.file for one in expected(tmp_path / "none.toml")} == {"conformance/declare/nothing_to_compare.toml"}


class TestUpdate:
    """Updates of declarations from a run."""

    def test_update_makes_the_run_pass(self) -> None:
        """After an update, the same results have nothing unexpected, and a second update changes nothing."""
        results = [
            result("add", Outcome.FAIL, "stride"),
            result("add", Outcome.FAIL, "stride", dtype="int64"),
            result("sub", Outcome.CRASH, "crash"),
            result("mul", Outcome.PASS),
        ]
        entries, done = update([entry("m*", "value")], Run("t", results), "a reason")
        assert Run("t", apply(results, entries)).exit_code() == 0
        assert {e.scope.op for e in entries} == {("add",), ("sub",)}
        assert next(e for e in entries if e.scope.op == ("add",)).scope.dtype == ("float32", "int64")
        assert any(line.startswith("removed: value / m*") for line in done)
        assert update(entries, Run("t", apply(results, entries)), "")[0] == entries

    def test_a_glob_is_narrowed(self) -> None:
        """If a part of a glob passes, the failing part stays declared with the same reason."""
        results = [result("add", Outcome.FAIL, "value"), result("addmm", Outcome.PASS)]
        entries, _ = update([entry("add*", "value")], Run("t", results), "")
        assert [(e.scope.op, e.reason) for e in entries] == [(("add",), "a reason")]

    def test_from_how_many_samples_on(self) -> None:
        """A failure of a later sample, or of the kernel count of all samples, is declared from that number of samples
        on. A shorter run that passes keeps the entry."""
        late = result("add", Outcome.FAIL, "value", samples=20)
        late = late.replace(failures=(Failure("value", "", "", "", sample=7),))
        many = result("sort", Outcome.FAIL, "kernels", samples=20)
        entries, _ = update([], Run("t", [late, many]), "")
        assert [(e.scope.op, e.scope.samples) for e in entries] == [(("add",), 8), (("sort",), 20)]
        short = [result(name, Outcome.PASS, samples=5) for name in ("add", "sort")]
        assert update(entries, Run("t", short), "")[0] == entries

    def test_what_was_not_run_stays(self) -> None:
        """A run of a few ops removes no entries of others."""
        declared = [entry("linalg.*", "value")]
        assert update(declared, Run("t", [result("add", Outcome.PASS)]), "")[0] == declared


class TestCheck:
    """Names that do not exist."""

    @pytest.mark.parametrize(
        ("declared", "message"),
        [
            (entry("ad"), "unknown op 'ad'; did you mean add"),
            (entry("add", dtype=("float31",)), "unknown dtype 'float31'"),
        ],
    )
    def test_unknown_names(self, declared: Declaration, message: str) -> None:
        """The error for a misspelt name has similar names."""
        (problem,) = check([declared], CASES, WORDS | {"op": ["add", "sub"]})
        assert message in problem

    def test_good_names(self) -> None:
        """Entries with existing names have no problems."""
        assert check([entry("a*", "value")], CASES, WORDS | {"op": ["add"]}) == []

    @pytest.mark.parametrize(
        ("variant", "dtype", "reported"),
        [
            ("forward", "int64", False), ("backward", "int64", True), ("inplace", "float32", True),
            ("error_inputs", "bool", True), ("*", "bool", True), ("backward", "*", False),
        ],
    )  # fmt: skip
    def test_support_that_went_away(self, variant: str, dtype: str, reported: bool) -> None:
        """An entry for an op without that variant and dtype covers no case and is reported."""
        op = plan.Entry("add", "", "binary", frozenset({"float32", "int64"}), frozenset({"float32"}),
                        frozenset({"forward", "backward"}))  # fmt: skip
        scope = Scope(op=("a*",), variant=(variant,), dtype=(dtype,))
        problems = without_cases([Declaration(scope, ("value",), "a reason", file="t.toml", line=7)], [op])
        assert [problem.startswith("t.toml, line 7: 'a*' has no case") for problem in problems] == [True] * reported

    @pytest.mark.slow
    def test_tracked_files_name_what_exists(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Every expectation in the repository names existing ops, dtypes and oracles."""
        for path in (Path(__file__).parent.parent.parent / "reports" / "expectations").glob("*.toml"):
            assert command.main(["--file", str(path), "check"]) == 0, capsys.readouterr().out


class TestCommand:
    """`conformance expectations`."""

    def test_update_and_explain(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """`update` writes the file from a run, and `explain` prints a case's entries."""
        model.save(Run("tiny", [result("add", Outcome.FAIL, "value")]), tmp_path / "run.json")
        file = ["--file", str(tmp_path / "t.toml")]
        assert command.main([*file, "update", str(tmp_path / "run.json"), "--reason", "why"]) == 0
        assert command.main([*file, "explain", "add::float32::forward::as_sampled"]) == 0
        output = capsys.readouterr().out
        assert "added: add::float32" in output
        assert "why" in output
        assert "1 entry" in output

    def test_explaining_an_op_that_does_not_exist(self, capsys: pytest.CaptureFixture[str]) -> None:
        """An unknown op is a usage error with similar names; an op without entries is not an error."""
        assert command.main(["explain", "mlu"]) == 2
        assert "did you mean lu, mul" in capsys.readouterr().err
        assert command.main(["explain", "mul"]) == 0

    def test_another_targets_run_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A run on cpu cannot update the expectations of tiny."""
        model.save(Run("cpu", [result("add", Outcome.PASS)]), tmp_path / "run.json")
        assert command.main(["--file", str(tmp_path / "t.toml"), "update", str(tmp_path / "run.json")]) == 2
        assert "add --target cpu" in capsys.readouterr().err
        assert not (tmp_path / "t.toml").exists()
