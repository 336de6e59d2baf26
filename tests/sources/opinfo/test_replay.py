"""Replay of one case or sample: the script, both answers, and one sentence for an unknown id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.record import result as model
from conformance.record.errors import UsageError
from conformance.record.result import Failure, Outcome, Result, Run
from conformance.sources.opinfo.replay import ONE_SAMPLE, replay, selection_of

if TYPE_CHECKING:
    from .conftest import Command

ADD = Result("add", "float32", "forward", "as_sampled", Outcome.PASS, samples=7)
FAILED = ADD.replace(
    outcome=Outcome.FAIL, failures=(Failure("value", "result", "1", "\x1b[31m2", sample=3, script='"""it"""\n'),)
)


def ran(result: Result, seen: list | None = None):
    """A `run` function that returns this result."""

    def run(target, selections):
        import os

        if seen is not None:
            seen.append((target, selections[0].ops, os.environ.get(ONE_SAMPLE)))
        return Run(target, [result.replace(op="other"), result])

    return run


class TestReplay:
    def test_both_answers_and_the_script(self, capsys):
        """A failing case prints its script and mismatch like a program, and the exit code is 1."""
        assert replay([ADD.id], "mine", ran(FAILED)) == 1
        said = capsys.readouterr().out
        assert said == '"""it"""\n# value of result in sample 3: expected 1, got ?[31m2\n'

    def test_what_agrees_says_so(self, capsys):
        """An agreement gives one sentence and exit code 0."""
        assert replay([ADD.id], None, ran(ADD)) == 0
        assert capsys.readouterr().out == f"{ADD.id}: tiny agrees with torch CPU on all 7 samples\n"

    def test_one_sample(self, capsys):
        """The OpInfo yields only the requested sample, and all samples again afterwards."""
        seen: list = []
        assert replay([f"{ADD.id}#3"], "mine", ran(ADD, seen)) == 0
        assert replay([ADD.id], "mine", ran(ADD, seen)) == 0
        assert seen == [("mine", ("add",), "3"), ("mine", ("add",), None)]
        assert "agrees with torch CPU on sample 3\n" in capsys.readouterr().out

    def test_a_result_file_names_the_target(self, tmp_path, capsys):
        """A result file supplies the target; an id outside the file is rejected with similar ids."""
        path = tmp_path / "opinfo.json"
        model.save(Run("theirs", [FAILED]), path)
        seen: list = []
        replay([str(path), f"{ADD.id}#3"], None, ran(ADD, seen))
        assert seen[0][0] == "theirs"
        with pytest.raises(UsageError, match=r"opinfo.json has no case .*did you mean add::float32"):
            replay([str(path), "ad::float32::forward::as_sampled"], None, ran(ADD))

    @pytest.mark.parametrize(
        ("word", "message"),
        [
            ("add", "'add' is no case id: write OP::DTYPE::VARIANT::LAYOUT"),
            ("add::float31::forward::as_sampled", "did you mean float32"),
            ("add::float32::forwards::as_sampled", "did you mean forward"),
            ("add::float32::forward::gap", "did you mean gaps"),
        ],
    )
    def test_what_is_no_id(self, word, message):
        """A malformed id gives one sentence with the nearest names."""
        with pytest.raises(UsageError, match=message):
            selection_of(word, "")

    def test_nothing_compared(self):
        """A skipped case is reported as such, never as an agreement."""
        with pytest.raises(UsageError, match="nothing was compared, since it is so"):
            replay([ADD.id], "mine", ran(ADD.replace(outcome=Outcome.SKIP, reason="it is so")))

    def test_end_to_end(self, command: Command) -> None:
        """The command replays a planted fault. A name outside op_db gives one sentence and exit code 2."""
        done = command("--target", "planted", "--replay", "add::float32::forward::transposed#2")
        assert done.returncode == 1, done.stderr
        assert "result = torch.add(a, a)" in done.stdout
        assert "# value of result in sample 2: expected" in done.stdout
        wrong = command("--target", "cpu", "--replay", "soft_max::float32::forward::as_sampled#2")
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
        assert "did you mean" in wrong.stderr
