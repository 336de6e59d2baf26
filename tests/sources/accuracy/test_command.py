"""`conformance accuracy`: it finds every inexact op and no other, and survives a crash of its device."""

from __future__ import annotations

import itertools
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from conformance.declare.profile import load
from conformance.engine.loading import describe_target
from conformance.record import result as model
from conformance.record.accuracy import Accuracy
from conformance.record.result import SHOWS, Failure, Run
from conformance.run.scripts import confirm
from conformance.sources.accuracy import script as scripts
from conformance.sources.accuracy import table
from conformance.sources.accuracy.__main__ import main
from conformance.sources.accuracy.measure import MeasuredAnswer

PLANTED = "class:tests.planted.inaccurate.Inaccurate"
SCHEMA = Path(model.__file__).with_name("result.schema.json")


def outcomes(folder: Path) -> dict[str, str]:
    """The outcome of each case, by op and direction."""
    return {f"{r.name} {r.variant}": str(r.outcome) for r in model.load(folder / "accuracy.json").results}


class TestCommand:
    def test_planted_faults_are_found(self, tmp_path, capsys):
        """A float32 sum of squares in batch_norm, an exp with an error of 20 ulp, and a crash are findings; exact ops
        pass. The report, the summary and the JSON have the table."""
        names = ("exp", "sigmoid", "nn.functional.batch_norm without weights", "nn.functional.group_norm", "softmax")
        chosen = [word for name in names for word in ("--op", name)]
        words = ["--target", PLANTED, *chosen, "--variant", "forward", "--check-scripts", "0"]
        code = main([*words, "--reports", f"{tmp_path}"])
        assert code == 1
        assert outcomes(tmp_path) == {
            "exp forward": "FAIL",
            "sigmoid forward": "CRASH",
            "nn.functional.batch_norm without weights forward": "FAIL",
            "nn.functional.group_norm forward": "PASS",
            "softmax forward": "PASS",
        }
        run = model.load(tmp_path / "accuracy.json")
        exp = next(result for result in run.results if result.name == "exp")
        assert 19 < exp.accuracy.target < 42 and exp.accuracy.cpu < 1
        assert exp.oracles == ("accuracy",)
        jsonschema.validate(json.loads((tmp_path / "accuracy.json").read_text()), json.loads(SCHEMA.read_text()))
        for name in ("accuracy.html", "accuracy-summary.md"):
            assert "usual numbers" in (tmp_path / name).read_text() or "all exponents" in (tmp_path / name).read_text()
        said = capsys.readouterr().out
        assert said.splitlines()[-1] == "2 passed, 3 failed, 0 skipped"
        assert "operators beyond torch.testing's tolerances" in said
        proposed = tomllib.loads((tmp_path / "accuracy-tolerances.toml").read_text())["tolerance"]
        # torch CPU's own error of softmax is near the tolerance, and beyond it on a CPU without AVX-512
        assert {*itertools.chain(*(entry["op"] for entry in proposed))} - {"softmax"} == {
            "exp",
            "nn.functional.batch_norm",
        }

    def test_proposed_tolerances_are_those_of_a_profile(self, tmp_path):
        """The proposal for exp, which is off by 20 ulp, can be copied into a profile."""
        assert main(["--target", PLANTED, *"--op exp --variant forward --reports".split(), f"{tmp_path}"]) == 1
        profile = tmp_path / "p.toml"
        profile.write_text('[target]\nkind = "cpu"\n\n' + (tmp_path / "accuracy-tolerances.toml").read_text())
        [entry] = load(profile).tolerances
        assert (entry.op, entry.dtype, entry.reason) == (
            ("exp",),
            ("float32",),
            "not yet explained: measured by conformance accuracy",
        )
        assert 40 * 2**-23 <= entry.rtol <= 1e-5

    def test_torch_cpu_has_no_finding(self, tmp_path):
        """Torch CPU has the errors of torch CPU, forward and in gradients."""
        chosen = [word for name in ("exp", "lgamma", "mean", "atan2") for word in ("--op", name)]
        assert main(["--target", "cpu", *chosen, "--reports", f"{tmp_path}"]) == 0
        measured = model.load(tmp_path / "accuracy.json").errors
        assert len(measured) == 8
        assert all(r.accuracy.target == r.accuracy.cpu and r.accuracy.points for r in measured)

    @pytest.mark.slow
    @pytest.mark.timeout(3_600)
    def test_tiny_has_no_finding(self, tmp_path):
        """Every op of the table, forward and in gradients, is within 4 times torch CPU's error on the tiny device."""
        assert main(["--target", "tiny", "-n", "2", "--reports", f"{tmp_path}"]) == 0
        assert len(model.load(tmp_path / "accuracy.json").errors) > 480

    def test_what_a_profile_declares_lacking(self, tmp_path, capsys):
        """An op that the target's profile declares lacking does not run, and the output counts it."""
        profile = tmp_path / "conformance.toml"
        profile.write_text(
            '[target]\nkind = "device"\nname = "cpu"\n\n[[declare]]\nscope = {operator = "aten::exp", op = "exp"}\n'
            'property = "unsupported"\nreason = "no kernel"\n'
        )
        words = ["--target", f"{profile}", "--op", "exp", "--op", "sqrt", "--variant", "forward"]
        assert main([*words, "--reports", f"{tmp_path}"]) == 0
        assert outcomes(tmp_path) == {"sqrt forward": "PASS"}
        assert "1 cases of ops that the profile declares lacking" in capsys.readouterr().out

    def test_metadata_has_no_errors(self, capsys):
        """A target without values is rejected in one sentence."""
        assert main(["--target", "meta", "--op", "exp"]) == 2
        assert "has no values" in capsys.readouterr().err

    def test_bad_names(self, capsys):
        """An op outside the table and an unknown dtype give one sentence, with the reason why an op has no row."""
        for words, said in (
            (["--op", "expp"], "did you mean exp"),
            (["--op", "linalg.eig"], "no unique answer"),
            (["--dtype", "int8"], "unknown dtype 'int8'"),
            (["--dtype", "float64", "--op", "mean"], "only elementary functions"),
        ):
            assert main(["--target", "cpu", *words]) == 2
            assert said in capsys.readouterr().err

    def test_resume(self, tmp_path):
        """`--resume` goes on behind the first failure, after a run that ended there. The journal stays until the run is
        whole, and belongs to one selection."""
        words = ["--target", PLANTED, "--op", "exp", "--op", "softmax", "--variant", "forward", "--check-scripts", "0"]
        words += ["--reports", f"{tmp_path}"]
        assert main([*words, "--stop-at-first-failure"]) == 1
        assert outcomes(tmp_path) == {"exp forward": "FAIL"}
        journal = tmp_path / "accuracy-progress.jsonl"
        _, line = journal.read_text().splitlines()
        assert main([*words, "--op", "mean", "--resume"]) == 2
        assert main([*words, "--resume"]) == 1
        assert outcomes(tmp_path) == {"exp forward": "FAIL", "softmax forward": "PASS"}
        exp = next(result for result in model.load(tmp_path / "accuracy.json").results if result.name == "exp")
        assert exp.seconds == json.loads(line)["result"]["seconds"], "it ran once"
        assert not journal.exists()

    def test_no_time(self, tmp_path, capsys):
        """A run whose time is over at once says so. Regression test: "nothing was measured in 0 cases"."""
        assert main(["--target", "cpu", "--op", "exp", "--minutes", "0.0001", "--reports", str(tmp_path)]) == 2
        said = capsys.readouterr()
        assert "the time was over before the first case had ended" in said.err
        assert "Not judged: 2 of 2 cases of accuracy (--minutes).\n" in said.out

    def test_declared_findings(self, tmp_path):
        """A declared finding is XFAIL and the run passes; a declared one that does not show is XPASS and fails the
        run."""
        declared, reports = tmp_path / "known.toml", tmp_path / "reports"
        words = ["--target", PLANTED, "--variant", "forward", "--reports", f"{reports}"]
        words += ["--expectations", f"{declared}", "--check-scripts", "0"]
        assert main([*words, "--op", "exp", "--update-expectations"]) == 0
        assert outcomes(reports) == {"exp forward": "XFAIL"}
        entry = '[[declare]]\nscope = {op = "expm1"}\nproperty = "accuracy"\nreason = "planted, says this entry"\n'
        declared.write_text(f"{declared.read_text()}\n{entry}")
        assert main([*words, "--op", "exp", "--op", "expm1"]) == 1
        assert outcomes(reports) == {"exp forward": "XFAIL", "expm1 forward": "XPASS"}

    @pytest.mark.parametrize(
        ("entry", "said"),
        [
            ('scope = {op = "expp"}\nproperty = "*"', "unknown op 'expp'; did you mean exp"),
            ('scope = {op = "exp"}\nproperty = ["acuracy"]', "did you mean accuracy"),
            ('scope = {op = "exp", layout = "clean"}\nproperty = "*"', "unknown layout 'clean'"),
        ],
    )
    def test_a_declaration_of_nothing(self, entry, said, tmp_path, capsys):
        """An entry that matches nothing is rejected. Regression test: a typo in the file silently declared nothing."""
        declared = tmp_path / "known.toml"
        declared.write_text(f'[[declare]]\n{entry}\nreason = "a typo"\n')
        assert main(["--target", "cpu", "--op", "exp", "--expectations", f"{declared}"]) == 2
        assert said in capsys.readouterr().err


class TestScript:
    @pytest.mark.parametrize("spec", ["device:some,import=some_backend", "aot_eager"])
    def test_of_any_row_is_25_lines(self, spec):
        """The inputs, the call and both answers are within the first 25 lines; functions that compare come after."""
        setup, accuracy = describe_target(spec).script(), Accuracy("result", 9.0, 1.0, 9.0, 1.0)
        for row, variant in itertools.product(table.load()[0], ("forward", "backward")):
            case = table.AccuracyCase(row, "float32", variant)
            part = MeasuredAnswer(accuracy, "result", ("x",), 0, (1.0,) * len(row.arguments), (1.0, 0.0), 1.0, 2.0)
            text = scripts.standalone(case, setup, part, ["x"], Failure("accuracy", "result", "1", "2"))
            compile(text, row.name, "exec")
            assert len(text.partition(scripts.MARKER)[0].splitlines()) <= 25, text

    @pytest.mark.parametrize("name", ["exp", "nn.functional.batch_norm without weights"])
    def test_runs_alone(self, tmp_path, name, standalone, capsys):
        """A finding's script exits with 1 if the fault is present, and with 0 on torch CPU. The run says which of the
        two it saw: the planted target is torch CPU in a script."""
        words = ["--target", PLANTED, "--op", name, "--variant", "forward", "--reports", f"{tmp_path}"]
        assert main(words) == 1
        (result,) = model.load(tmp_path / "accuracy.json").results
        script = result.failures[0].script
        planted = script.replace(
            "got = answer", "from tests.planted.inaccurate import Inexact\n    with Inexact(): got = answer"
        )
        for text, code in ((script, 0), (planted, 1)):
            completed = standalone(text)
            assert completed.returncode == code, completed.stderr
            assert "the largest errors in ulp" in completed.stdout
        assert result.alone == "it finds no difference"
        assert f"{result.id}: does not reproduce alone: it finds no difference" in capsys.readouterr().out
        shows = f"import sys\nsys.path.append({str(Path(__file__).parents[3])!r})\n{planted}"
        again = Run("cpu", [result.replace(failures=(replace(result.failures[0], script=shows),))])
        confirm(again, 60.0, 60.0, 1)
        assert [shown.alone for shown in again.results] == [SHOWS]
