"""Profiles: a round trip is exact; a misspelt word gives one sentence with file, line and nearest name."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conformance.declare import profile as profiles
from conformance.declare.declaration import UNSUPPORTED, Declaration, Scope
from conformance.declare.profile import Profile
from conformance.engine.loading import describe_target, load_target
from conformance.program.steps.table import OPS
from conformance.program.unsupported import check_declarations, unsupported_steps
from conformance.record.errors import TargetError

PLAIN = """[target]
kind = "device"
name = "cpu"

[environment]
CONFORMANCE_ODD = "1"

[limits]
seconds = 30

[[declare]]
scope = {feature = "set_"}
property = "unsupported"
reason = "so"

[[declare]]
scope = {dtype = ["float16", "bfloat16"]}
property = "unsupported"
reason = "so"

[[declare]]
scope = {operator = "aten::neg.out", op = "neg", step = ["neg", "neg_"]}
property = "unsupported"
reason = "so"
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CONFORMANCE_ODD", raising=False)
    path = tmp_path / "odd.toml"
    path.write_text(PLAIN)
    return path


class TestRead:
    def test_it_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        """A round trip keeps every entry of a profile, with characters that TOML escapes and a list on several
        lines."""
        scopes = (
            Scope(feature=("set_",)),
            Scope(dtype=("bool",)),
            Scope(operator=("aten::a",), op=("x", "y")),
            Scope(operator=("aten::b",), step=tuple(f"a_long_name_{letter}" for letter in "abcdefghijk")),
        )
        missing = tuple(Declaration(scope, (UNSUPPORTED,), 'he said "no" \x7f') for scope in scopes)
        profile = Profile("device", "odd", {"import": "m", "call": "f.g"}, {"A": "1=2"}, missing, 1.5)
        path = tmp_path / "p.toml"
        path.write_text(profiles.dumps(profile, ["about it"]))
        read = profiles.load(path)
        assert [entry.line for entry in read.declarations] == [
            at for at, line in enumerate(path.read_text().splitlines(), 1) if line == "[[declare]]"
        ]
        assert read == dataclasses.replace(profile, file=path)
        assert read.spec == "device:odd,import=m,call=f.g"

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("seconds = 30", "second = 30", "line 9: unknown key 'second'; did you mean seconds?"),
            (
                "[limits]",
                "[limit]",
                "line 8: only [target] and [environment] and [limits] and [[tolerance]] and [[declare]] entries",
            ),
            ('kind = "device"', 'kind = "devise"', "line 1: there is no kind of target 'devise'; did you mean device?"),
            ('"float16", ', '"float61", ', "line 16: unknown dtype 'float61'; did you mean float"),
            ('name = "cpu"', "", "line 1: a target of kind 'device' needs a 'name'"),
            ("seconds = 30", "seconds = 0", "line 8: 'seconds' must be a number above 0"),
            ('operator = "aten::neg.out", ', "", "line 21: an 'operator' needs the 'op' or 'step' that are not run"),
            (', op = "neg", step = ["neg", "neg_"]', "", "line 21: an 'operator' needs the 'op' or 'step'"),
            (
                'feature = "set_"',
                'feature = "set_", programs = 3',
                "line 11: 'programs' is no part of the scope of parts",
            ),
            ('"unsupported"\nreason', '"value"\nreason', "is no part of the scope of cases of op_db"),
            (
                '{feature = "set_"}\nproperty = "unsupported"',
                '{op = "add"}\nproperty = "value"',
                "line 11: declarations of cases of op_db do not belong in this file, which is about parts",
            ),
            (
                "[[declare]]\nscope = {f",
                "[[lacking]]\nscope = {f",
                "line 11: 'lacking' is a former form: write the profile",
            ),
            (
                'name = "cpu"',
                'name = "cpu"\nlacks = ["set_"]',
                "line 4: 'lacks' is a former form: write the profile again, with conformance init --force",
            ),
            ("[target]", "[[target]]", "'target' must be written as [target]"),
            ('"1"', "1", "line 5: 'CONFORMANCE_ODD' must be a non-empty string"),
            ("[limits]", "[limits", "is not valid TOML"),
            (PLAIN, "", "has no [target] table"),
            ('{feature = "set_"', '{feature = "set"', "line 11: unknown feature 'set'; did you mean set_?"),
            ('"neg_"]', '"negg_"]', "line 21: unknown step 'negg_'; did you mean neg_"),
            ('"neg", "neg_"]', '"neg", "neg*"]', "line 21: unknown step 'neg*'"),
            (
                'dtype = ["float16"',
                'feature = "set_", dtype = ["float16"',
                "line 16: unsupported / set_ / float16 / bfloat16 is declared twice",
            ),
        ],
    )
    def test_a_typo_is_one_sentence(self, written: Path, old: str, new: str, said: str) -> None:
        """A typo is rejected; otherwise it would silently declare something else."""
        assert old in PLAIN
        written.write_text(PLAIN.replace(old, new))
        with pytest.raises(TargetError) as caught:
            check_declarations(describe_target(str(written)))
        assert said in str(caught.value)
        assert str(written) in str(caught.value) and "\n" not in str(caught.value)

    def test_no_file_says_how_to_write_one(self) -> None:
        with pytest.raises(TargetError, match=r"there is no profile missing.toml: write it with conformance init"):
            describe_target("missing.toml")


class TestTarget:
    def test_it_is_the_device_without_what_it_lacks(self, written: Path) -> None:
        """Features, dtypes and steps come from the profile, and no probe runs."""
        target = load_target(str(written))
        assert target.device.type == "cpu" and target.spec == str(written) and not target.facts.probed
        assert (
            target.facts.lacks == {"set_"}
            and target.facts.dtypes
            and not target.facts.dtypes & {torch.float16, torch.bfloat16}
            and torch.bool in target.facts.dtypes
        )
        assert {"neg", "neg_", "set_view_"} <= {*unsupported_steps(target.facts)} and "abs" in OPS
        assert torch.equal(target.send(torch.ones(3)[1:]), torch.ones(2))
        assert target.script() == "import os\nos.environ['CONFORMANCE_ODD'] = '1'\nDEVICE = 'cpu'"

    def test_variables_are_set_before_the_import(self, tmp_path: Path) -> None:
        """Variables are set in this process and in processes started later, without an import of torch."""
        (tmp_path / "wants.py").write_text("import os\nassert os.environ['ODD'] == '1', 'too late'\n")
        (tmp_path / "conformance.toml").write_text(
            '[target]\nname = "cpu"\nimport = "wants"\n[environment]\nODD = "1"\n'
        )
        code = (
            "import sys; from conformance.run.probe import resolve; from conformance.run.messages import Limits\n"
            "assert resolve('conformance.toml', Limits())[1] is None and 'torch' not in sys.modules\n"
            "from conformance.engine.loading import load_target; print(load_target('conformance.toml').device)"
        )
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.stdout == "cpu\n", ran.stderr

    def test_a_target_has_one_name(self, written: Path) -> None:
        """The identity of a target is its spec without a probe's additions. Regression test: a target had another name
        after a probe, and another with a profile."""
        written.write_text(PLAIN.replace('name = "cpu"', 'name = "odd"\nimport = "odd_backend"'))
        spec = "device:odd,import=odd_backend"
        names = [profiles.identity(name) for name in (spec, f"{spec},without=data+set_", str(written))]
        assert names == [spec] * 3 and profiles.identity("tiny:LLVM") == "tiny:LLVM"
        with pytest.raises(TargetError, match="there is no profile"):
            profiles.identity("none.toml")

    def test_files_are_named_by_the_target(self, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Expectations and baselines of profiles/xla.toml have the name xla. Those of conformance.toml have the name of
        the target."""
        assert profiles.file_name("profiles/xla.toml") == "xla"
        monkeypatch.chdir(written.parent)
        written.rename("conformance.toml")
        assert profiles.file_name("device:cpu,without=data") == profiles.file_name("conformance.toml") == "device-cpu"

    def test_what_to_delete(self, written: Path) -> None:
        profile = profiles.load(written)
        assert profile.remedy("step", "neg_") == f"{written}, line 21: delete 'neg_' from that [[declare]] entry"
        assert profile.remedy("feature", "set_") == f"{written}, line 11: delete that [[declare]] entry"


class TestCommands:
    def test_the_usual_target_is_the_profile_in_the_folder(
        self, written: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(written.parent)
        monkeypatch.setattr(profiles, "TINY_NEEDS", "json")  # as if the device of this package were installed
        assert profiles.usual(None) == "tiny"
        monkeypatch.setattr(profiles, "TINY_NEEDS", "no_such_module")
        with pytest.raises(
            TargetError, match=r"no target is named, .* --target, as device:NAME,import=MODULE"
        ) as error:
            profiles.usual(None)
        assert "tinygrad" not in str(error.value)
        written.rename("conformance.toml")
        assert profiles.usual(None) == "conformance.toml"
        assert profiles.usual("cpu") == "cpu"

    def test_limits(self, written: Path) -> None:
        """An option overrides the profile's limit, and the profile overrides the default."""
        assert profiles.limit(str(written), "seconds", None, 60) == 30
        assert profiles.limit(str(written), "seconds", 5, 60) == 5
        assert profiles.limit(str(written), "memory", None, 8) == 8
        assert profiles.limit("cpu", "seconds", None, 60) == 60
