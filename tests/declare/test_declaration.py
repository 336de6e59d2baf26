"""The file of declarations: a round trip is exact; every mistake is one sentence with file, line and nearest word."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.declare import profile as profiles
from conformance.declare.declaration import CASES, FINDINGS, Declaration, Scope, check, dumps, literal, read
from conformance.record.errors import ReportError

CASE = Declaration(Scope(op=("add",)), ("value",), "a reason")
ADD = '[[declare]]\nscope = {op = "add"}\nproperty = "value"\nreason = "r"\n'
COPY = '[[declare]]\nscope = {step = "copy_", programs = 3}\nproperty = "value"\nreason = "r"\n'


class TestRead:
    """Reading and writing of files."""

    def test_round_trip(self, tmp_path: Path) -> None:
        """A file survives writing and reading, with any characters in the reason and lists longer than a line."""
        many = tuple(f"an_operator_with_a_long_name_{number}" for number in range(9))
        written = [
            Declaration(
                Scope(op=('a"\\*',), dtype=("float32", "int64"), samples=3), ("value", "grad"), 'x\n"\\\x7f\u2028'
            ),
            Declaration(Scope(op=many, variant=("out",)), ("not compared",), "r", "https://e", ">=2.9", "2099-12-31"),
            Declaration(Scope(step=("view",), programs=9, seed=0, options="--steps 1..2"), ("aliasing",), "r"),
            Declaration(Scope(pattern=(literal("raises [a*]"),), program=("saved",)), ("*",), "r"),
        ]
        (tmp_path / "t.toml").write_text(dumps(written, "# a head"))
        assert set(read(tmp_path / "t.toml")) == set(written)
        assert [one.line for one in read(tmp_path / "t.toml")] == [
            at for at, line in enumerate((tmp_path / "t.toml").read_text().splitlines(), 1) if line == "[[declare]]"
        ]

    def test_no_file_is_no_declaration(self, tmp_path: Path) -> None:
        """A target without a file has no declared failures."""
        assert read(tmp_path / "none.toml") == []

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[[declare]\n", "line 1"),
            (ADD.replace('reason = "r"\n', ""), "line 1: an entry needs a non-empty 'reason'."),
            (ADD.replace('"r"', '" "'), "an entry needs a non-empty 'reason'."),
            (ADD.replace("property", "proprety"), "line 3: unknown key 'proprety'; did you mean property?"),
            (ADD.replace("{op", '{dtypes = ["x"], op'), "line 2: unknown key 'dtypes'; did you mean dtype?"),
            (ADD.replace("{op", "{dtype = [], op"), "line 1: 'dtype' must be a name or a non-empty list of names."),
            (ADD.replace('"value"', "[3]"), "line 1: 'property' must be a name or a non-empty list of names."),
            (ADD.replace("{op", '{samples = "9", op'), "line 1: 'samples' must be a whole number, 1 or more."),
            (ADD.replace('{op = "add"}', "{}"), "line 1: an entry needs a 'scope'"),
            (ADD.replace('"value"', '"strides"'), "cases of op_db have no property 'strides'; did you mean stride"),
            (ADD.replace("op = ", "dtype = "), "line 1: the scope of cases of op_db needs an 'op'."),
            (ADD.replace("{op", '{step = "view", op'), "'step' is no part of the scope of cases of op_db; findings of "
             "drawn programs need 'programs'"),
            (ADD.replace('"value"', '"aliasing"'), "cases of op_db have no property 'aliasing'"),
            ("[other]\n", r"line 1: only \[\[declare\]\] entries belong in this file, not 'other'"),
            ("\n[[declared]]\n", "line 2: only .* not 'declared'; did you mean declare?"),
            ("declare = 3\n", r"'declare' must be written as \[\[declare\]\] entries."),
            (COPY.replace("3", "0"), "'programs' must be a whole number, 1 or more."),
            (COPY.replace("3", '3, seed = "0"'), "'seed' must be a whole number, 0 or more."),
            (COPY.replace("3", "3, options = 1"), "'options' must be a string."),
            (COPY.replace("step", "stpe"), "line 2: unknown key 'stpe'; did you mean step"),
            (COPY.replace('"value"', '"valeu"'), "findings of drawn programs have no property 'valeu'; did you mean "
             "value"),
            (COPY.replace("{step", '{dtype = "bool", step'), "'dtype' is no part of the scope of findings of drawn"),
            (ADD + "torch = '2.14'\n", "line 1: 'torch': '2.14' is no specifier of versions, such as"),
            (ADD + "torch = 'newer'\n", "line 1: 'torch': 'newer' is no specifier of versions, such as"),
            (ADD + "torch = ''\n", "line 1: an entry needs a non-empty 'torch'."),
            (ADD + "until = 'soon'\n", "line 1: 'until' must be a date .2027-01-31., or a version of torch"),
            ('\n[[expect]]\nop = "add"\n', r"line 2: 'expect' is a former form: write \[\[declare\]\] with scope"),
            ("[[finding]]\nprograms = 3\n", r"line 1: 'finding' is a former form: write \[\[declare\]\] with scope"),
        ],
    )  # fmt: skip
    def test_a_mistake_is_one_sentence(self, tmp_path: Path, text: str, message: str) -> None:
        """The sentence has the file, the line, and the nearest known word."""
        (tmp_path / "t.toml").write_text(text)
        with pytest.raises(ReportError, match=message) as raised:
            read(tmp_path / "t.toml")
        assert "t.toml" in str(raised.value) and "\n" not in str(raised.value)


class TestUntil:
    """Declarations with an end."""

    EARLIER = (datetime.date.today() - datetime.timedelta(2)).isoformat()

    @pytest.mark.parametrize("until", [EARLIER, "2.9"])
    def test_a_passed_one_is_refused(self, tmp_path: Path, until: str) -> None:
        """After that day, or with that version of torch, the user has to look at the declaration again."""
        (tmp_path / "t.toml").write_text(f"{ADD}until = '{until}'\n")
        with pytest.raises(ReportError, match=rf"line 1: the entry was valid until {until}, which has passed: delete"):
            read(tmp_path / "t.toml")

    @pytest.mark.parametrize("until", ["2099-01-01", "99.1", datetime.datetime.now(datetime.UTC).date().isoformat()])
    def test_one_that_lasts(self, tmp_path: Path, until: str) -> None:
        (tmp_path / "t.toml").write_text(f"{ADD}until = '{until}'\n")
        assert [one.until for one in read(tmp_path / "t.toml")] == [until]


class TestCheck:
    """Subjects declared twice, and names of findings that do not exist."""

    @pytest.mark.parametrize(
        ("other", "twice"),
        [
            (CASE, True),
            (replace(CASE, scope=Scope(op=("sub", "add"))), True),
            (replace(CASE, property=("grad", "value")), True),
            (replace(CASE, property=("grad",)), False),
            (replace(CASE, scope=Scope(op=("add",), dtype=("int64",))), False),
            (replace(CASE, torch="<2.9"), False),
        ],
    )
    def test_declared_twice(self, other: Declaration, twice: bool) -> None:
        """One of two entries for the same cases and property would stay unnoticed."""
        problems = check([CASE, other], CASES, {})
        assert [problem.partition(": ")[2] for problem in problems] == [f"{other} is declared twice."] * twice

    def test_entries_for_versions_of_torch(self) -> None:
        """Two entries with disjoint versions are not duplicates."""
        assert check([replace(CASE, torch=torch) for torch in (">=2.9", "<2.9")], CASES, {}) == []

    def test_findings(self) -> None:
        """Unknown names and duplicate entries are reported, for findings only if they are asked for."""
        known = Declaration(Scope(step=("copy_",), programs=300, seed=0), ("value",), "a reason")
        entries = [replace(known, scope=replace(known.scope, step=("copi_",))), known, known]
        problems = check(entries, FINDINGS, {"step": ("copy_", "view")})
        assert ["unknown step 'copi_'; did you mean copy_" in problems[0], len(problems)] == [True, 2]
        assert "declared twice" in problems[1]
        assert check(entries, CASES, {"step": ("view",)}) == []


ROOT = Path(__file__).parent.parent.parent
SHOWN = [
    pytest.param(block, id=f"{page.name}:{number}")
    for page in sorted(ROOT.glob("docs/**/*.md"))
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL), 1)
    if "[[declare]]" in block
]


class TestDocumentation:
    """The files that the documentation shows."""

    def test_there_are_some(self) -> None:
        assert SHOWN

    @pytest.mark.parametrize("block", SHOWN)
    def test_is_valid(self, block: str, tmp_path: Path) -> None:
        """Each block is a file of expectations, or a profile."""
        (tmp_path / "t.toml").write_text(block)
        assert profiles.load(tmp_path / "t.toml") if "[target]" in block else read(tmp_path / "t.toml")
