"""Findings that also fail without the compiler or the device: PyTorch's own bugs, which do not fail the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.declare.declaration import read
from conformance.engine.loading import describe_target, load_target
from conformance.program.calls import judge_program
from conformance.program.model import Input, Program, Storage, dump
from conformance.program.steps.op import Step, tensor
from conformance.record import result as model
from conformance.record.result import NOT_RUN, SHOWS, WITHOUT_BACKEND, Outcome
from conformance.report import html, machine
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.plan import Plan
from conformance.run.campaign.results import run_of
from conformance.run.failing_program import FailingProgram
from conformance.run.messages import Death, ExitReason
from conformance.run.shrink_program import SAME, died_elsewhere, elsewhere
from conformance.sources.fuzzing.command import main
from conformance.sources.fuzzing.drawn import DrawnPrograms
from conformance.targets.compiler import DEFAULT

SPEC = "compile:negates_relu,import=tests.planted.lying_compilers"
STORAGES = (Storage("float64", 1), Storage("float32", 3))
SCALAR, VECTOR = Input("a", 0, "float64", (), ()), Input("b", 1, "float32", (3,), (1,))
WRITE = Step("add_", (tensor("a"), 1))
RELU = Step("relu", (tensor("b"),), out=("c",))
OF_TORCH = Program(STORAGES[:1], (SCALAR,), (WRITE,))
"""Bug of PyTorch: a compiled write to a 0-d float64 is lost (docs/findings.md)."""
OWN = Program((STORAGES[1],), (replace(VECTOR, storage=0),), (RELU,))
BOTH = Program(STORAGES, (SCALAR, VECTOR), (WRITE, RELU))


def failing(program: Program, number: int = 0, kind: str = "FAIL") -> FailingProgram:
    """The backend's finding in a program."""
    verdict = judge_program(program, load_target(SPEC), locate=False)
    return FailingProgram(
        "value / a",
        kind,
        number,
        program=program,
        mismatches=verdict.mismatches,
        bad_step=1,
        property="value",
        op=program.steps[-1].op,
    )


SHARED = (Input("a", 0, "float32", (), ()), Input("b", 0, "float32", (), ()))
CELLS = Storage("float32", 1), Storage("float32", 1, [2.0])
REFUSED = Step("add_", (tensor("c"), 0), raises="RuntimeError")
VIEW = Step("getitem", (tensor("b"), {"ellipsis": 0}), out=("d",))
MERGED = Program(CELLS, (*SHARED, Input("c", 1, "float32", (2,), (0,))), (REFUSED, VIEW, WRITE))
"""Bug of AOTAutograd: two inputs share a storage, one is written, and a view of the other is of the wrong memory.
`aot_eager` ends its graph at the refused write and runs the rest as it stands."""
INVERSE, READ = Step("op_db:linalg.inv", (tensor("c"),), out=("d",)), Step("op_db:neg", (tensor("b"),), out=("e",))
TOKEN = Program(CELLS, (*SHARED, Input("c", 1, "float32", (1, 1), (1, 1))), (INVERSE, WRITE, READ))
"""Bug of AOTAutograd: it calls the graph with one input too few, which each backend says in other words."""


class TestElsewhere:
    """Whether a finding is the same without the backend."""

    @pytest.mark.parametrize(("program", "answer"), [(OF_TORCH, f"{SAME} (value)"), (OWN, "agrees")])
    def test_one_bug(self, program: Program, answer: str) -> None:
        """PyTorch's own bug fails in the same way through AOTAutograd alone, but not through Dynamo alone."""
        finding = failing(program)
        assert finding.mismatches
        assert elsewhere("compile:aot_eager", finding, 60) == answer
        assert elsewhere("compile:eager", finding, 60) == "agrees"

    def test_both_in_one_program(self) -> None:
        """A PyTorch bug in the same program does not excuse the backend's bug."""
        assert elsewhere("compile:aot_eager", failing(BOTH), 60) == "fails (value)"

    def test_another_answer(self) -> None:
        """The same tensor and oracle with another answer is another bug."""
        finding = failing(OF_TORCH)
        other = replace(finding.mismatches[0], actual="[7.0]")
        changed = replace(finding, mismatches=(other, *finding.mismatches[1:]))
        assert elsewhere("compile:aot_eager", changed, 60) == "fails (value)"

    def test_a_bug_that_only_default_settings_show(self) -> None:
        """Regression test: on a right backend such a bug of AOTAutograd was the backend's, since `aot_eager` has other
        settings."""
        finding = failing(MERGED)
        assert [mismatch.oracle for mismatch in finding.mismatches] == ["error"]
        assert elsewhere("compile:aot_eager", finding, 60) == "agrees"
        assert elsewhere(DEFAULT, finding, 60) == f"{SAME} (error)"

    def test_an_error_in_other_words(self) -> None:
        """Regression test: one input too few is a StopIteration of `aot_eager` and a TypeError of another backend."""
        finding = failing(TOKEN)
        assert "tangents_token" in finding.mismatches[0].detail
        assert elsewhere("compile:aot_eager", finding, 60) == f"{SAME} (error)"
        assert elsewhere("compile:eager", finding, 60) == "agrees"

    def test_a_flaky_one(self) -> None:
        """A FLAKY finding has not failed again on the target, so its failure cannot be compared."""
        assert elsewhere("compile:aot_eager", failing(OF_TORCH, kind="FLAKY"), 60) == "fails (value)"

    def test_deaths(self) -> None:
        """Deaths count as equal if both have the same signal, or both run out of time."""
        killed = Death(ExitReason.CRASH, "killed its process with SIGSEGV")
        hung = Death(ExitReason.TIMEOUT, "gave no answer")
        crash = replace(failing(OF_TORCH, kind="CRASH"), said=killed.said)
        assert died_elsewhere(crash, killed) == f"{SAME} (crash)"
        assert died_elsewhere(replace(crash, said="killed its process with SIGABRT"), killed) == "fails (crash)"
        assert died_elsewhere(crash, hung) == "runs too long"
        assert died_elsewhere(replace(crash, kind="TIMEOUT"), hung) == f"{SAME} (timeout)"


class TestSiblings:
    @pytest.mark.parametrize(
        ("spec", "siblings", "excused"),
        [
            (SPEC, ("compile:eager", "compile:aot_eager", DEFAULT), True),
            (
                "compile:tiny,dynamic=yes",
                ("compile:eager,dynamic=yes", "compile:aot_eager,dynamic=yes", f"{DEFAULT},dynamic=yes"),
                True,
            ),
            ("compile:eager", (), False),
            ("aot_eager", ("compile:eager",), False),
            ("inductor", ("compile:eager", "compile:aot_eager"), False),
            ("tiny:X86", ("tiny:CLANG", "tiny:LLVM", "tiny:PYTHON"), False),
            ("device:cpu,import=tests.planted.lying_modes,call=nothing", ("passthrough",), True),
            ("passthrough:subclass", (), False),
            ("device:cuda", (), False),
            ("passthrough", (), False),
        ],
    )
    def test_of_torch_nothing_is_excused(self, spec: str, siblings: tuple[str, ...], excused: bool) -> None:
        """Findings of torch's own backends are never excused; only the layer is named."""
        target = describe_target(spec)
        assert target.facts.siblings == siblings
        forms = (*siblings, "passthrough:subclass") if siblings == ("passthrough",) else siblings
        assert target.facts.without_backend == (forms if excused else ())

    def test_only_a_subclass_has_bugs_for_subclasses(self) -> None:
        """A device that is a mode has plain tensors, so what only a subclass shows is the device's own."""
        target = load_target("device:cpu,import=tests.planted.lying_modes,call=nothing")
        assert [target.is_like(spec) for spec in target.facts.without_backend] == [True, False]


class TestRun:
    """Reports of PyTorch's own bugs."""

    def campaign(self, **options: bool) -> Campaign:
        of_torch, own = replace(failing(OF_TORCH), layer="compile:aot_eager"), failing(OWN, 1)
        elsewhere = {"compile:eager": "agrees", "compile:aot_eager": SAME}
        of_torch = replace(of_torch, numbers=frozenset({0, 2}), shrunk=True, elsewhere=elsewhere)
        own = replace(own, shrunk=True, elsewhere={**elsewhere, "compile:aot_eager": "agrees"})
        running = Campaign(Plan(DrawnPrograms(), SPEC, **options))
        running.findings.known = [of_torch, own]
        running.result.done = 10
        return running

    def test_they_are_apart_in_every_form(self) -> None:
        """They come after the backend's own findings, even if more programs show them."""
        run = run_of(self.campaign())
        own, of_torch = run.listed
        assert (own.outcome, own.layer) == (Outcome.FAIL, "")
        assert (of_torch.outcome, of_torch.layer) == (Outcome.XFAIL, "compile:aot_eager")
        assert model.summary_line(run) == "7 passed, 1 failed, 0 skipped"
        markdown, page = machine.markdown(run, None), html.render(run)
        for text in (markdown, page):
            before, heading, after = text.partition(f">{WITHOUT_BACKEND.capitalize()}<" if text is page else "### Also")
            assert heading and "value / relu" in before and "value / add" in after
        assert run.exit_code() == 1
        assert model.run_from_json(model.run_to_json(run), "here").listed[1].layer == "compile:aot_eager"

    def test_they_alone_do_not_fail_a_run(self) -> None:
        """PyTorch's own bugs alone fail a run only with the option that requests it."""
        campaign = self.campaign()
        del campaign.findings.known[1]
        assert run_of(campaign).exit_code() == 0
        strict = self.campaign(fail_on_torch_bugs=True)
        del strict.findings.known[1]
        assert run_of(strict).exit_code() == 1
        assert run_of(strict).listed[0].layer == "compile:aot_eager"


class TestCampaign:
    def test_of_a_device_in_python(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A mode has a wrong `cumsum`, which fails the run. Under every mode `linalg.pinv` is wrong for this tensor, so
        that is PyTorch's own. Regression test: it was a finding of a mode that passes each call on."""
        numbers = Storage("complex64", 2, [0, {"complex": ["-0.3918393850326538", "-0.39663222432136536"]}])
        of_torch = Program(
            (numbers,),
            (Input("a", 0, "complex64", (1, 2), (2, 1)),),
            (Step("op_db:linalg.pinv", (tensor("a"),), {"rtol": None}, ("b",)),),
        )
        own = Program(
            (STORAGES[1],), (replace(VECTOR, storage=0),), (Step("op_db:cumsum", (tensor("b"),), {"dim": -1}, ("c",)),)
        )
        (tmp_path / "corpus").mkdir()
        for name, program in (("own", own), ("torch", of_torch)):
            (tmp_path / "corpus" / f"{name}.json").write_text(dump(program))
        words = ["--target", "device:cpu,import=tests.planted.lying_modes,call=negative_cumsum", "--programs", "0"]
        assert main([*words, "--corpus", str(tmp_path / "corpus"), "--reports", str(tmp_path)]) == 1
        run = model.load(tmp_path / "fuzz.json")
        first, second = run.listed
        assert run.drawn is not None and run.drawn.smaller > 0 and run.drawn.shrinking > 0
        assert second.finding is not None and not second.finding.shrunk
        assert (first.outcome, first.layer, second.outcome, second.layer) == (
            Outcome.FAIL,
            "",
            Outcome.XFAIL,
            "passthrough",
        )
        assert "cumsum" in first.id and "pinv" in second.id
        said = capsys.readouterr().out
        assert "2 of 2 scripts show their headline" in said
        assert f"shrinking: {run.drawn.smaller:,} smaller programs, " in said
        assert "not shrunk: it is no bug of your backend" in said

    def test_of_a_device_of_subclasses(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The tensors of a device are a subclass of Tensor, and its `mul` adds one, which fails the run. That `out=`
        gives no wrapper another shape is PyTorch's own. Regression test: 14 of 60 programs failed on a right device."""
        monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "planted"))
        empty = Storage("float32", 0)
        inputs = (Input("a", 0, "float32", (0,), (1,)), Input("b", 1, "float32", (0, 1), (1, 1)))
        of_torch = Program((empty, empty), inputs, (Step("op_db.out:lgamma", (tensor("a"),), {"out": tensor("b")}),))
        own = Program(
            (STORAGES[1],), (replace(VECTOR, storage=0),), (Step("mul", (tensor("b"), tensor("b")), out=("c",)),)
        )
        (tmp_path / "corpus").mkdir()
        for name, program in (("own", own), ("torch", of_torch)):
            (tmp_path / "corpus" / f"{name}.json").write_text(dump(program))
        lacks = "storages+set_+data_ptr+strides+version"
        words = ["--target", f"device:guarded,import=guarded_device,without={lacks}", "--programs", "0"]
        words += ["--corpus", str(tmp_path / "corpus"), "--reports", str(tmp_path), "--check-scripts", "0"]
        assert main(words) == 1
        listed = [(result.op, result.outcome, result.layer) for result in model.load(tmp_path / "fuzz.json").listed]
        assert listed == [("mul", Outcome.FAIL, ""), ("op_db.out:lgamma", Outcome.XFAIL, "passthrough:subclass")]

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_from_end_to_end(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Two saved programs have one bug each: one finding fails the run, the other is listed separately. With
        declarations, both become XFAIL, and none is XPASS."""
        for name, program in (("own", OWN), ("torch", OF_TORCH)):
            (tmp_path / "corpus").mkdir(exist_ok=True)
            (tmp_path / "corpus" / f"{name}.json").write_text(dump(program))
        words = ["--target", SPEC, "--programs", "0", "--corpus", str(tmp_path / "corpus")]
        words += ["--reports", str(tmp_path / "reports")]
        assert main(words) == 1
        said = capsys.readouterr().out
        own, heading, of_torch = said.partition(f" {WITHOUT_BACKEND} ")
        assert heading and "value / relu" in own and "value / add_" in of_torch and "value / relu" not in of_torch
        assert "2 of 2 scripts show their headline" in said
        run = model.load(tmp_path / "reports" / "fuzz.json")
        assert [result.alone for result in run.listed] == [SHOWS, SHOWS]
        for saved in (tmp_path / "reports" / "failures").glob("*.json"):
            assert json.loads(saved.read_text())["alone"] == SHOWS
            assert f"# In a fresh process: {SHOWS}\n" in saved.with_suffix(".py").read_text()
        known = tmp_path / "known.toml"
        entry = '[[declare]]\nscope = {{program = "{}"}}\nproperty = "value"\nreason = "known"\n'
        known.write_text(entry.format("own") + entry.format("torch"))
        assert len(read(known)) == 2
        assert main([*words, "--expectations", str(known)]) == 0
        declared = model.load(tmp_path / "reports" / "fuzz.json")
        assert declared.counts() == {"XFAIL": 2}
        assert [result.alone for result in declared.listed] == [SHOWS, SHOWS]

    @pytest.mark.timeout(300)
    def test_bugs_of_one_cause_are_two_findings(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Findings of one cause stay separate if only one of them also fails without the backend. Regression test: they
        were one finding with one saved program. The backend loses the writes of `add_`, and PyTorch loses them for a
        0-d float64 only."""
        large = replace(VECTOR, storage=0, size=(3, 1), stride=(1, 1))
        write = Program((STORAGES[1],), (large,), (Step("add_", (tensor("b"), 1)),))
        (tmp_path / "corpus").mkdir()
        for name, program in (("own", write), ("torch", OF_TORCH)):
            (tmp_path / "corpus" / f"{name}.json").write_text(dump(program))
        words = ["--target", "compile:loses_add_,import=tests.planted.lying_compilers", "--programs", "0"]
        words += ["--corpus", str(tmp_path / "corpus"), "--reports", str(tmp_path), "--check-scripts", "0"]
        assert main(words) == 1
        own, of_torch = model.load(tmp_path / "fuzz.json").listed
        assert (own.id, own.outcome, own.layer) == ("program::value / add_", Outcome.FAIL, "")
        assert (of_torch.id, of_torch.outcome) == ("program::value / add_ (also without the backend)", Outcome.XFAIL)
        assert (own.alone, of_torch.alone) == (NOT_RUN, NOT_RUN)
        assert capsys.readouterr().out.splitlines().count(NOT_RUN) == 1
        for saved in (tmp_path / "failures").glob("*.json"):
            assert json.loads(saved.read_text())["alone"] == NOT_RUN
            assert f"# In a fresh process: {NOT_RUN}\n" in saved.with_suffix(".py").read_text()
