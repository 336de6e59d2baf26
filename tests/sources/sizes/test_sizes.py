"""`conformance sizes`: it finds faults that small samples do not show, and no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from conformance.engine.loading import describe_target
from conformance.record import result as model
from conformance.record.errors import UsageError
from conformance.record.footprint import ALLOWANCE, Footprint, allowed
from conformance.record.result import SHOWS, Failure, Outcome, Run
from conformance.run.scripts import confirm
from conformance.sources.accuracy.outcomes import Raises, Unmeasured
from conformance.sources.sizes import script as scripts
from conformance.sources.sizes import tasks
from conformance.sources.sizes.__main__ import main
from conformance.sources.sizes.measure import measure, on_cpu
from conformance.sources.sizes.table import SCALES, SizesCase, SizesRow, families, load, select
from conformance.standalone import sizes as calls
from conformance.targets.cpu import CpuTarget
from tests.planted.oversized import OversizedTarget

PLANTED = "class:tests.planted.oversized.OversizedTarget"
HUNGRY = "class:tests.planted.oversized.HungryTarget"
SCHEMA = Path(model.__file__).with_name("result.schema.json")


def failures_of(name: str, target: Any, scale: str = "small", variant: str = "forward") -> tuple[Failure, ...]:
    """Findings of a row on a target."""
    (case,) = select([name], [], [], [variant], scale)
    return tasks.judge_measured(case, target.script(), measure(case, target)).failures


def outcomes(folder: Path) -> dict[str, str]:
    return {result.name: str(result.outcome) for result in model.load(folder / "sizes.json").results}


def code_of(script: str) -> int:
    """The exit code of a script that runs in this process."""
    code = compile(script, "script", "exec", dont_inherit=True)  # without this module's `annotations`
    with pytest.raises(SystemExit) as ended:
        exec(code, {"__name__": "__main__"})  # noqa: S102 - our own
    return int(ended.value.code or 0)


class TestTable:
    def test_rows(self):
        """Each row is a valid program of its inputs with known sizes only, and names are unique."""
        for row in load():
            compile(f"{row.program()}\n{row.input_lines()}", row.name, "exec")
            assert row.sizes("large").keys() == row.sizes("small").keys() <= SCALES["large"].keys()
            assert hasattr(torch, row.dtype)
        assert len({row.name for row in load()}) == len(load())
        assert families() == ["networks", "reductions", "bytes", "elements", "many"]

    def test_sizes_are_beyond_int32(self):
        """The large scale has more elements than an int32 can count, a million addends and a hundred thousand
        tensors."""
        large = SCALES["large"]
        assert large["BYTES"] > 2**31 and large["MILLION"] >= 10**6 and large["MANY"] >= 10**5

    @pytest.mark.parametrize("words", [(["clonee"], [], []), ([], ["byte"], []), ([], [], ["int9"])])
    def test_misspelt(self, words):
        """An unknown name is rejected in one sentence with the nearest existing one."""
        with pytest.raises(UsageError, match="did you mean"):
            select(*words, ["forward"], "small")
        with pytest.raises(UsageError, match="no row among those"):
            select(["clone"], [], [], ["backward"], "small")


class TestScript:
    @pytest.mark.parametrize("spec", ["device:some,import=some_backend", "aot_eager"])
    def test_of_any_row_is_25_lines(self, spec):
        """The inputs and the call are within the first 25 lines; functions that compare come after."""
        for row in load():
            text = scripts.standalone(SizesCase(row, "forward"), describe_target(spec).script(), "a finding")
            compile(text, row.name, "exec")
            assert len(text.partition(scripts.MARKER)[0].splitlines()) <= 25, text


class TestRule:
    def test_three_times_what_is_held(self):
        """The limit is the larger of three times the held bytes and torch CPU's peak, plus an allowance for any
        call."""
        held = 2**31
        assert allowed(held, 0) == 3 * held + ALLOWANCE and allowed(held, 8 * held) == 8 * held + ALLOWANCE
        assert Footprint(held, 3 * held, 0, 1, 1).excess < 1 < Footprint(held, 4 * held, 0, 1, 1).excess


class TestCalls:
    def test_pattern(self):
        """The numbers count up to 250 and start again."""
        assert calls.pattern(600).tolist() == [number % 251 for number in range(600)]
        assert calls.pattern(3, torch.int64).dtype is torch.int64

    def test_peak(self):
        """The peak includes memory freed before the measurement; results that remain are not counted twice."""
        side = calls.measured(lambda x: (x + 1).sum() and x, {"x": torch.ones(2**24)}, False, {})
        assert 60 << 20 < side.peak < 130 << 20
        assert side.inputs == 2**26 and side.results == 0 and abs(side.stays) < 32 << 20

    def test_many_small_tensors_hold_objects(self):
        """The objects of small tensors count as held memory, because torch CPU needs them too."""
        side = calls.measured(lambda: [torch.full((3,), n) for n in range(50_000)], {}, False, {})
        assert side.held > 10 * side.results

    @pytest.mark.parametrize("at", [0, calls.CHUNK - 1, calls.CHUNK, 2 * calls.CHUNK + 2])
    def test_each_element_counts(self, at):
        """One wrong element is a difference at any position. The failure names the first or last element, and otherwise
        the chunk."""
        x = calls.pattern(2 * calls.CHUNK + 3)
        want = calls.read(x, None)
        x[at] += 1
        ((oracle, _, _, _, detail),) = calls.differing_chunks("result", want, calls.read(x, None))
        assert oracle == "value" and f"first elements {at // calls.CHUNK * calls.CHUNK} to" in detail
        assert ("element" in detail.split(";")[0]) == (at not in (calls.CHUNK - 1, calls.CHUNK)) or "chunks" in detail

    def test_rounded(self):
        """Errors are in ulp of the largest element; nan has the largest possible error."""
        exact = torch.tensor([1.0, 100.0], dtype=torch.float64)
        off = calls.read((exact + torch.tensor([0, 2.0**-17])).float(), exact)
        assert off.error == 1 and off.worst == (1, 100.0, 100 + 2.0**-17)
        assert calls.read(torch.tensor([float("nan"), 100.0]), exact).error == calls.NO_NUMBER


class TestPlanted:
    @pytest.mark.timeout(300)  # each script imports torch, twice
    @pytest.mark.parametrize(
        ("name", "oracle"),
        [
            ("clone", "memory"),
            pytest.param("eq", "value", marks=pytest.mark.slow),
            pytest.param("sum", "accuracy", marks=pytest.mark.slow),
            ("flip", ""),
            pytest.param("mean", "", marks=pytest.mark.slow),
        ],
    )
    def test_found(self, name, oracle):
        """Five times the memory, wrong elements near the end and an inexact sum are findings, and no other difference
        is. The script shows it on the target, and not on torch CPU."""
        failures = failures_of(name, OversizedTarget())
        assert [failure.oracle for failure in failures] == [oracle] * bool(oracle)
        if failures:
            script = failures[0].script
            assert code_of(script) == 1
            assert code_of(script.replace("with MODE:", "if True:")) == 0

    @pytest.mark.slow
    def test_an_error_is_shown_alone(self):
        """The script of a call that raises only on the target reports the error."""
        (case,) = select(["clone"], [], [], ["forward"], "small")
        result = tasks.run("class:tests.planted.oversized.RefusingTarget", case)
        (failure,) = result.failures
        assert failure.actual.startswith("RuntimeError: no kernel for the tensor at ")
        script = f"import sys\nsys.path.append({str(Path(__file__).parents[3])!r})\n{failure.script}"
        refusing = Run("refusing", [result.replace(failures=(replace(failure, script=script),))])
        confirm(refusing, 60.0, 60.0, 1)
        assert [result.alone for result in refusing.results] == [SHOWS]

    @pytest.mark.slow
    def test_torch_cpu_has_no_finding(self):
        """Torch CPU agrees with itself, forward and in gradients."""
        for variant in ("forward", "backward"):
            assert not failures_of("sum of columns", CpuTarget(), variant=variant)

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    @pytest.mark.parametrize(("name", "oracle"), [("clone", "memory"), ("eq", "value"), ("sum", "accuracy")])
    def test_found_at_true_size(self, name, oracle):
        """The command finds the same faults beyond 2^31 elements."""
        assert [failure.oracle for failure in failures_of(name, OversizedTarget(), "large")] == [oracle]


class TestErrors:
    def test_raises(self):
        """An exception on the target is a finding, with the oracle `memory` if memory ran out. If torch CPU raises, the
        case cannot be measured."""
        row = SizesRow("a row", "bytes", "x.no_such_method()", "uint8", inputs={"x": "torch.ones(3)"})
        with pytest.raises(Unmeasured, match="no_such_method"):
            on_cpu(SizesCase(row, "forward", "small"))

        class Raising(CpuTarget):
            def upload(self, flats: Any) -> Any:
                raise RuntimeError("can't allocate memory: you tried to allocate 17 bytes")

        (case,) = select(["clone"], [], [], ["forward"], "small")
        with pytest.raises(Raises) as error:
            measure(case, Raising())
        assert error.value.oracle == "memory"


class TestHarness:
    """Faults of the harness are not findings about a device. Regression test: 78 of 95 findings on a foreign device
    were."""

    def test_a_device_that_cannot_be_waited_for(self, tmp_path, monkeypatch):
        """torch raises "Backend doesn't support synchronizing all streams" for a device without streams."""
        monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "planted"))
        words = ["--target", "device:foreign,import=foreign_device,call=whole", "--scale", "small"]
        assert main([*words, "--op", "flip", "--op", "sum of columns", "--reports", f"{tmp_path}"]) == 0
        assert outcomes(tmp_path) == {"flip": "PASS", "sum of columns": "PASS"}

    @pytest.mark.slow
    @pytest.mark.timeout(120)
    def test_its_own_limit_of_memory(self, tmp_path, capsys):
        """A call whose limit exceeds the worker's memory is not measured. A call that runs out of memory within that
        limit is a finding, like any peak above it."""
        words = ["--target", HUNGRY, "--scale", "small", "--op", "clone", "--op", "flip", "--op", "eq"]
        words += ["--check-scripts", "0"]
        main([*words, "--memory", "0.55", "--reports", f"{tmp_path}"])
        assert outcomes(tmp_path) == {"clone": "SKIP", "flip": "SKIP", "eq": "PASS"}
        reasons = {result.name: result.reason for result in model.load(tmp_path / "sizes.json").results}
        assert all(reasons[name].startswith("needs more than --memory 0.55") for name in ("clone", "flip"))
        assert "2 cases were not measured, since each needs more than --memory 0.55 GiB." in capsys.readouterr().out
        assert main([*words, "--memory", "2", "--reports", f"{tmp_path}"]) == 1
        assert outcomes(tmp_path) == {"clone": "FAIL", "flip": "CRASH", "eq": "PASS"}


class TestCommand:
    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_report(self, tmp_path, capsys, monkeypatch):
        """The findings decide the exit code, and the report's files have the table; a declared finding passes. The
        script of each is run."""
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
        words = ["--target", PLANTED, "--scale", "small", "--op", "clone", "--op", "flip", "--reports", f"{tmp_path}"]
        declared = tmp_path / "known.toml"
        declared.touch()
        words += ["--expectations", f"{declared}"]
        assert main(words) == 1
        assert outcomes(tmp_path) == {"clone": "FAIL", "flip": "PASS"}
        assert model.load(tmp_path / "sizes.json").results[0].alone == SHOWS
        jsonschema.validate(json.loads((tmp_path / "sizes.json").read_text()), json.loads(SCHEMA.read_text()))
        assert "<h2>Sizes</h2>" in (tmp_path / "sizes.html").read_text()
        assert "| `clone uint8 forward` | " in (tmp_path / "sizes-summary.md").read_text()
        assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"
        assert main([*words, "--update-expectations"]) == 0
        assert outcomes(tmp_path) == {"clone": "XFAIL", "flip": "PASS"}
        assert model.load(tmp_path / "sizes.json").results[0].alone == SHOWS

    def test_a_declaration_of_nothing(self, tmp_path, capsys):
        """An entry for an unknown row is rejected. Regression test: a typo in the file silently declared nothing."""
        declared = tmp_path / "known.toml"
        declared.write_text('[[declare]]\nscope = {op = "cloone"}\nproperty = "*"\nreason = "a typo"\n')
        assert main(["--target", "cpu", "--expectations", f"{declared}"]) == 2
        assert "unknown op 'cloone'; did you mean clone" in capsys.readouterr().err

    def test_bad_words(self, capsys):
        """An unknown scale or variant gives one sentence."""
        for words, said in ((["--scale", "huge"], "unknown scale"), (["--variant", "sideways"], "unknown variant")):
            assert main(["--target", "cpu", *words]) == 2
            assert said in capsys.readouterr().err

    def test_outcome_of_a_death(self):
        """A case keeps its description, so that a worker's death can be its result."""
        (case,) = select(["clone"], [], [], ["forward"], "large")
        assert case.id == "clone::uint8::forward::sizes" and case.result(Outcome.CRASH).family == "bytes"

    def test_a_missing_file_of_declarations(self, tmp_path, capsys):
        """A missing file of declarations is rejected. Regression test: a misspelt path silently declared nothing."""
        assert main(["--target", "cpu", "--expectations", f"{tmp_path / 'missing.toml'}"]) == 2
        assert "missing.toml: there is no such file; correct the path, or add" in capsys.readouterr().err
