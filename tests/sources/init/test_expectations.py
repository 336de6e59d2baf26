"""The command `conformance expectations`: its flags, and files that do not exist."""

from __future__ import annotations

import pytest

from conformance.record import result as model
from conformance.record.result import Failure, Outcome, Result, Run
from conformance.sources.init.expectations import main


def test_flags_behind_the_subcommand(tmp_path, capsys):
    """`--target` and `--file` may stand behind the subcommand. Regression test: they were unknown there, though the
    message for a run of another target asks the user to add `--target`."""
    failed = Result("sin", "float32", "forward", "as_sampled", Outcome.FAIL, reason="value: wrong", samples=1)
    model.save(Run("cpu", [failed]), tmp_path / "opinfo.json")
    file = tmp_path / "declared.toml"
    assert main(["update", str(tmp_path / "opinfo.json"), "--file", str(file)]) == 2
    assert "is a run of target 'cpu'; add --target cpu." in capsys.readouterr().err
    assert main(["update", str(tmp_path / "opinfo.json"), "--target", "cpu", "--file", str(file)]) == 0
    assert '# Known failures of "cpu"' in file.read_text()


@pytest.mark.parametrize("words", [["check"], ["explain", "add"]])
def test_a_file_that_does_not_exist(words, tmp_path, capsys):
    """A named file that does not exist is refused. Regression test: it had "0 entries, every name exists"."""
    assert main(["--file", str(tmp_path / "none.toml"), *words]) == 2
    assert "none.toml does not exist; give the path of a file of declarations" in capsys.readouterr().err


def test_profile_in_the_folder_is_the_target(tmp_path, monkeypatch, capsys):
    """As for the commands that run. Regression test: `check` looked for the file of `tiny` beside the profile of a
    device, and said that there are no entries."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conformance.toml").write_text('[target]\nkind = "device"\nname = "cpu"\nimport = "toy"\n')
    wrong = Failure("value", "result", "1", "2")
    failed = Result("sin", "float32", "forward", "as_sampled", Outcome.FAIL, samples=1, failures=(wrong,))
    model.save(Run("device:cpu,import=toy", [failed]), tmp_path / "opinfo.json")
    assert main(["update", "opinfo.json"]) == 0
    assert capsys.readouterr().out.endswith("reports/expectations/device-cpu-import-toy.toml: 1 entry\n")
    assert main(["explain", "sin"]) == 0
    assert capsys.readouterr().out.endswith("1 entry for sin\n")


def test_one_entry(tmp_path, capsys):
    """A file of one entry has "1 entry". Regression test: it had "1 entries"."""
    wrong = Failure("value", "result", "1", "2")
    failed = Result("sin", "float32", "forward", "as_sampled", Outcome.FAIL, samples=1, failures=(wrong,))
    model.save(Run("cpu", [failed]), tmp_path / "opinfo.json")
    file = ["--target", "cpu", "--file", str(tmp_path / "declared.toml")]
    assert main(["update", str(tmp_path / "opinfo.json"), *file]) == 0
    assert capsys.readouterr().out.endswith("declared.toml: 1 entry\n")
    assert main(["explain", "sin", *file]) == 0
    assert capsys.readouterr().out.endswith("1 entry for sin\n")
