"""Targets that allow one instance per process, missing backends, coverage steering, and the pytest example of the
docs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from conformance.engine.loading import describe_target, load_target
from conformance.program.model import Input, Program, Storage
from conformance.program.steps.op import Step
from conformance.record.errors import TargetError
from conformance.record.finding import INVALID
from conformance.run.failing_program import FailingProgram
from conformance.run.shrink_program import elsewhere
from conformance.sources.fuzzing.command import main
from conformance.sources.fuzzing.drawing import Drawing, Tally
from tests.run.campaign.saved import fuzz_result

ROOT = Path(__file__).parents[3]
PLANTED = ROOT / "tests" / "planted"


class TestRenderers:
    def test_relatives_are_the_others(self):
        """The siblings of `tiny` are the other renderers."""
        assert describe_target("tiny").facts.siblings == ("tiny:X86", "tiny:LLVM", "tiny:PYTHON")
        assert describe_target("tiny:X86").facts.siblings == ("tiny:CLANG", "tiny:LLVM", "tiny:PYTHON")
        assert describe_target("tiny:replayed").facts.siblings == ("tiny",)

    def test_an_unknown_renderer_is_one_sentence(self, tmp_path, capsys):
        """An unknown renderer gives exit code 2 and the list of renderers."""
        assert main(["--target", "tiny:NONE", "--reports", str(tmp_path)]) == 2
        assert "CLANG, X86, LLVM, PYTHON" in capsys.readouterr().err

    def test_a_program_without_a_meaning_is_not_judged_there_either(self):
        """A fault of the drawing is a finding too. Regression test: the siblings cannot judge it, and that ended the
        campaign."""
        wrong = Program(
            (Storage("float32", 2),),
            (Input("a", 0, "float32", (2,), (1,)),),
            (Step("neg", ({"t": "a"},), raises="RuntimeError"),),
        )
        invalid = FailingProgram("invalid / neg", INVALID, 0, program=wrong)
        assert elsewhere("cpu", invalid, 10).startswith("cannot be judged: step 1 (neg) declares RuntimeError")

    def test_a_finding_is_run_on_its_relatives(self, tmp_path, monkeypatch):
        """The saved finding records the answer of each sibling. Regression test: a sibling whose process ended while it
        loaded counted as one that crashes in the program."""
        (tmp_path / "related.py").write_text(
            "from conformance.engine.target import TargetFacts\n"
            "from conformance.selftest.mutants import MutantTarget\n\n"
            "OTHERS = 'cpu', 'mutant:flip forgets the last dim', 'mutant:nonsense', 'class:tasks.Dies'\n\n\n"
            "class Faulty(MutantTarget):\n"
            "    facts = TargetFacts(siblings=OTHERS)\n\n"
            "    def __init__(self, argument=''):\n"
            "        super().__init__('flip forgets the last dim')\n"
        )
        for folder in (tmp_path, PLANTED):
            monkeypatch.syspath_prepend(str(folder))
        words = ["--target", "class:related.Faulty", "--programs", "0", "--corpus", str(tmp_path / "corpus")]
        (tmp_path / "corpus").mkdir()
        (tmp_path / "corpus" / "flip.json").write_text(
            json.dumps(
                {
                    "schema": 1,
                    "storages": [{"dtype": "float32", "size": 4, "values": "arange"}],
                    "inputs": [
                        {
                            "name": "a",
                            "storage": 0,
                            "dtype": "float32",
                            "size": [4],
                            "stride": [1],
                            "offset": 0,
                            "requires_grad": False,
                        }
                    ],
                    "steps": [{"op": "flip", "args": [{"t": "a"}, [0]], "out": ["b"]}],
                }
            )
        )
        assert main([*words, "--check-scripts", "0", "--reports", str(tmp_path)]) == 1
        [finding] = fuzz_result(tmp_path)["findings"]
        assert finding["elsewhere"]["cpu"] == "agrees"
        assert finding["elsewhere"]["mutant:flip forgets the last dim"] == "fails in the same way (value)"
        assert finding["elsewhere"]["mutant:nonsense"].startswith("cannot be used: there is no fault")
        assert finding["elsewhere"]["class:tasks.Dies"].startswith("cannot be used: target 'class:tasks.Dies' ends the")


class TestUpstream:
    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("tinygrad-upstream", "write tinygrad-upstream:PATH"),
            ("tinygrad-upstream:/no/such/place", "/no/such/place is no checkout of tinygrad"),
        ],
    )
    def test_a_missing_checkout_is_one_sentence(self, spec, message, tmp_path, capsys):
        """A missing checkout gives one sentence and exit code 2."""
        assert main(["--target", spec, "--reports", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err

    def test_a_backend_that_cannot_be_built_is_one_sentence(self, tmp_path):
        """Any error from the checkout's backend becomes the reason in one sentence."""
        backend = tmp_path / "extra" / "torch_backend"
        backend.mkdir(parents=True)
        (backend / "backend.py").write_text("raise RuntimeError('Ninja is required')")
        code = (
            f"from conformance.record.errors import TargetError\nfrom conformance.engine.loading import load_target\n"
            f"try:\n    load_target('tinygrad-upstream:{tmp_path}')\n"
            f"except TargetError as error:\n    print(error)\n"
        )
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        assert "cannot be built or used" in said.stdout
        assert "Ninja is required" in said.stdout


class TestSteering:
    def test_every_cell_is_aimed_at_once_before_any_again(self):
        """Every second program has an aim, and a seed visits each cell once before any cell again."""
        drawing = Drawing(only=("setitem",), dtypes=("float32", "int64"))
        count = len(drawing.cells)
        aims = [drawing.aim(7, number) for number in range(2 * count)]
        assert aims[::2] == [None] * count
        assert sorted(aims[1::2]) == sorted(drawing.cells)
        assert aims != [drawing.aim(8, number) for number in range(2 * count)]

    def test_more_cells_are_reached(self):
        """The same number of programs reaches at least a tenth more cells than without aims."""

        class Aimless(Drawing):
            def aim(self, seed, number):
                return None

        reached = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for drawing in (Drawing(without=("op_db",)), Aimless(without=("op_db",))):
                tally = Tally()
                for number in range(400):
                    drawing.numbered(5, number, tally)
                reached.append(len(tally.cells))
                turned_down = sum(tally.avoided.values())
                assert turned_down / (turned_down + tally.steps) < 0.05
        assert reached[0] > 1.1 * reached[1]


class TestDocumentedExample:
    def test_it_runs_under_pytest(self, tmp_path):
        """The pytest example of the docs page passes on the CPU and fails on a device with a fault. Hypothesis does not
        shrink the failing program, which would take longer than all examples.

        Regression test: where `CI` is set, Hypothesis ignores its seed, so an example that fails on a developer's
        machine passed there. Now it runs as there, where the examples are the same each time."""
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "checks.md").read_text(), re.DOTALL)
        [block] = [block for block in blocks if block.startswith("import pytest")]
        (tmp_path / "test_right.py").write_text(block)
        (tmp_path / "test_wrong.py").write_text(block.replace('"cpu"', repr("mutant:select is stale")))
        (tmp_path / "conftest.py").write_text(
            "from hypothesis import Phase, settings\n"
            "settings.register_profile('unshrunk', phases=[Phase.generate])\nsettings.load_profile('unshrunk')\n"
        )
        said = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider"],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=os.environ | {"CI": "true"},
        )
        test = "test_my_device_agrees_with_the_cpu"
        assert f"PASSED test_right.py::{test}" in said.stdout, said.stdout[-3000:]
        assert f"FAILED test_wrong.py::{test}" in said.stdout, said.stdout[-3000:]


class TestLoaded:
    def test_another_tinygrad_is_refused(self):
        """A process that has loaded one renderer rejects another."""
        code = (
            "import tinygrad\nfrom conformance.record.errors import TargetError\n"
            "from conformance.engine.loading import load_target\n"
            "try:\n    load_target('tiny:X86')\nexcept TargetError as error:\n    print(error)\n"
        )
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        assert "needs a process of its own" in said.stdout

    def test_unknown_targets_are_named(self):
        """An unknown target gives one sentence with the available targets."""
        with pytest.raises(TargetError, match="choose one of"):
            load_target("nonsense")
