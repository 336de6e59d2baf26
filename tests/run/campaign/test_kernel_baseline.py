"""Kernel counts against the baseline: an increase is a finding; programs without a recorded count are not compared."""

from __future__ import annotations

import random
import textwrap
from pathlib import Path

import pytest

from conformance.engine.loading import describe_target, load_target
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage, digest, dump, read_program
from conformance.program.steps.op import Step, tensor
from conformance.program.unsupported import unsupported_names
from conformance.run.campaign.drawing_counts import Tally
from conformance.run.campaign.kernel_baseline import BASELINE, read_baseline, write_baseline
from conformance.sources.fuzzing import arguments
from conformance.sources.fuzzing.command import main
from conformance.sources.fuzzing.drawing import Drawing
from tests.run.campaign.saved import fuzz_result

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "conformance" / "program" / "corpus"
TRACKED = ROOT / BASELINE
TWO_READS = Program(
    (Storage("float32", 6),),
    (Input("a", 0, "float32", (2, 3), (3, 1)),),
    (
        Step("add", (tensor("a"), 1), out=("b",)),
        Step("mul", (tensor("b"), 2), out=("c",)),
        Step("add_", (tensor("b"), tensor("c"))),
    ),
)


@pytest.fixture
def wasteful(tmp_path, monkeypatch) -> str:
    """Spec of a `tiny` target that runs one kernel too many."""
    (tmp_path / "wasteful.py").write_text(
        textwrap.dedent("""
        from dataclasses import replace
        import torch
        from conformance.targets.tiny import TinyTarget

        class Wasteful(TinyTarget):
            def __init__(self, argument=""):
                super().__init__(argument)
                self.facts = replace(self.facts, siblings=())

            def download(self, flats):
                torch.arange(3.).to(self.device).add(1).cpu()
                return super().download(flats)
    """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "class:wasteful.Wasteful"


@pytest.fixture
def recorded(tmp_path, wasteful) -> Path:
    """Baseline with the kernel count of `tiny` for one program, stored for both `tiny` and the wasteful target."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "two.json").write_text(dump(TWO_READS))
    kernels = judge_program(TWO_READS, load_target("tiny")).measured.counts["kernels"]
    for target in ("tiny", wasteful):
        write_baseline(tmp_path / "kernels.json", target, {digest(TWO_READS): {"kernels": kernels}})
    return tmp_path / "kernels.json"


class TestRise:
    @pytest.mark.slow
    def test_a_campaign_finds_it(self, recorded, wasteful, tmp_path, capsys):
        """A count above the baseline but within the ops of torch CPU is a finding of the oracle `kernels`."""
        words = ["--programs", "0", "--corpus", str(tmp_path / "programs"), "--kernels", str(recorded)]
        assert main(["--target", wasteful, *words, "--reports", str(tmp_path / "found")]) == 1
        [finding] = fuzz_result(tmp_path / "found")["findings"]
        assert finding["kind"] == "FAIL"
        assert (finding["mismatch"].oracle, finding["mismatch"].where) == ("kernels", "the whole run")
        assert "more kernels than in the baseline" in finding["mismatch"].detail
        assert "programs compared with the baseline: 1" in capsys.readouterr().out

    @pytest.mark.slow
    def test_a_replay_finds_it(self, recorded, wasteful, tmp_path, capsys):
        """`--replay FOLDER` and `--replay FILE` report the increase too."""
        for path in (tmp_path / "programs", tmp_path / "programs" / "two.json"):
            words = ["--kernels", str(recorded), "--replay", str(path), "--reports", str(tmp_path)]
            assert main(["--target", wasteful, *words]) == 1
            assert "more kernels than in the baseline" in capsys.readouterr().out
            assert main(["--target", "tiny", *words]) == 0


class TestFile:
    def test_the_tracked_one_covers_the_corpus_and_seed_0(self):
        """The tracked baseline covers the corpus and seed 0; otherwise nothing would be compared. `python -m
        conformance.fuzz --programs 300 --corpus conformance/program/corpus --record-kernels` regenerates it."""
        known = read_baseline(TRACKED, "tiny")
        programs = [read_program(path) for path in CORPUS.glob("*.json")]
        traits = unsupported_names(describe_target("tiny").facts, "trait")
        for number in range(20):
            source = random.Random(f"0:{number}:arguments").randint
            programs.append(arguments.extended(Drawing().numbered(0, number), source, traits, Tally()))
        assert [program.note or program for program in programs if digest(program) not in known] == []
        assert len(known) >= 300

    def test_a_note_does_not_matter(self):
        """The digest covers only the executed parts of a program."""
        assert digest(TWO_READS) == digest(Program.from_json({**TWO_READS.to_json(), "note": "another"}))
        assert digest(TWO_READS) != digest(TWO_READS.with_steps(TWO_READS.steps[:2]))

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            '{"schema": 0, "kernels": {}}',
            '{"schema": 1}',
            '{"schema": 1, "kernels": {"tiny": {"a": "b"}}}',
        ],
    )
    def test_a_damaged_one_is_one_sentence(self, text, tmp_path, capsys):
        """A damaged baseline gives exit code 2 and one sentence that names the file, and the file stays unchanged."""
        file = tmp_path / "kernels.json"
        file.write_text(text)
        assert main(["--target", "tiny", "--programs", "1", "--kernels", str(file), "--reports", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert str(file) in said
        assert said.count("\n") == 1
        assert file.read_text() == text

    @pytest.mark.slow
    def test_a_campaign_records(self, recorded, wasteful, tmp_path, capsys):
        """`--record-kernels` saves the counts of this target and keeps the other targets' counts. A program without a
        recorded count is not compared."""
        words = ["--target", "tiny", "--programs", "1", "--kernels", str(recorded), "--reports", str(tmp_path)]
        assert main(words) == 0
        assert "programs compared with the baseline: 0" in capsys.readouterr().out
        assert main([*words, "--record-kernels"]) == 0
        assert read_baseline(recorded, wasteful).keys() == {digest(TWO_READS)}
        assert read_baseline(recorded, "tiny").keys() == {digest(Drawing().numbered(0, 0))}
