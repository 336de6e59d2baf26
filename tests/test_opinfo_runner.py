"""The OpInfo run: that what is right passes, that each planted fault is reported as what it is, and that bad usage and
interruption lose nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conformance.opinfo import plan
from conformance.report import model
from conformance.report.model import Outcome, Result, Run

PLANTED = Path(__file__).parent / "planted"
ROOT = Path(__file__).parent.parent


def environment(tmp_path: Path) -> dict[str, str]:
    path = os.pathsep.join([str(PLANTED), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "PLANTED_MARK": str(tmp_path / "flaky"), "COLUMNS": "120"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "conformance.opinfo_runner", *arguments]


def execute(words: list[str], tmp_path: Path, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, capture_output=True, text=True, env=environment(tmp_path), cwd=tmp_path, timeout=timeout, check=False
    )


def runner(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command with its reports in `tmp_path`."""
    words = command(*arguments, "--reports", str(tmp_path / "reports"))
    return subprocess.run(
        words, capture_output=True, text=True, env=environment(tmp_path), cwd=tmp_path, timeout=280, check=False
    )


def case(name: str, variant: str = "forward", layout: str = "as_sampled", dtype: str = "float32") -> plan.Case:
    return plan.Case(name, "", "unary", dtype, variant, layout, samples=4)


def select(*catalog: plan.Entry, shard: tuple[int, int] = (1, 1), **chosen: Any) -> list[plan.Case]:
    return plan.select(catalog, [plan.Selection(**chosen)], shard)


@pytest.fixture(scope="module")
def cpu() -> Any:
    from conformance.target import load_target

    return load_target("cpu")


@pytest.fixture(scope="module")
def planted() -> Any:
    sys.path.insert(0, str(PLANTED))
    try:
        from conformance.target import load_target

        yield load_target("planted")
    finally:
        sys.path.remove(str(PLANTED))


def run_case(target: Any, *arguments: Any, **named: Any) -> Result:
    from conformance.opinfo.case import run_case

    return run_case(case(*arguments, **named), target)


class TestRight:
    """Torch CPU against itself."""

    @pytest.mark.parametrize("variant", [name for name in plan.VARIANTS if name != "error_inputs"])
    def test_every_variant_passes(self, cpu: Any, variant: str) -> None:
        """Each variant of an op that has all of them agrees with itself."""
        result = run_case(cpu, "cumsum", variant)
        assert (result.outcome, result.failures) == (Outcome.PASS, ())
        assert result.samples >= 3

    @pytest.mark.parametrize("layout", plan.LAYOUTS)
    @pytest.mark.parametrize("name", ["add", "index_select", "nn.functional.conv2d"])
    def test_every_layout_passes(self, cpu: Any, name: str, layout: str) -> None:
        """Inputs in any layout give the same results on both sides."""
        assert run_case(cpu, name, layout=layout).outcome is Outcome.PASS

    def test_error_inputs_pass(self, cpu: Any) -> None:
        """An input that must raise raises the same, and is counted as compared."""
        result = run_case(cpu, "gather", "error_inputs")
        assert result.outcome is Outcome.PASS
        assert result.samples > 0

    @pytest.mark.parametrize(
        "name", ["empty", "empty_like", "new_empty", "randn", "nn.functional.dropout", "to_sparse"]
    )
    def test_without_defined_or_fixed_value(self, cpu: Any, name: str) -> None:
        """Uninitialized memory is compared by metadata, random numbers by seed, sparse results by their parts."""
        assert run_case(cpu, name).outcome is Outcome.PASS

    def test_gradient_without_memory(self, cpu: Any) -> None:
        """The gradient of sgn, which has no memory, can be compared without a crash."""
        assert run_case(cpu, "sgn", "backward").outcome is Outcome.PASS


class TestPlanted:
    """Each fault is reported by the oracle whose business it is, and by no more than it must."""

    @pytest.mark.parametrize(
        ("name", "oracles"),
        [
            ("add", {"value"}),
            ("sub", {"stride", "contiguity"}),
            ("mul", {"storage_offset"}),
            ("floor", {"dtype"}),
            ("view_as", {"alias"}),
            ("cos", {"value", "storage"}),
            ("exp", {"error"}),
            ("tan", {"error"}),
        ],
    )
    def test_fault_is_named(self, planted: Any, name: str, oracles: set[str]) -> None:
        """The oracles that fail are those of the fault."""
        result = run_case(planted, name)
        assert result.outcome is Outcome.FAIL
        assert set(result.oracles) == oracles
        assert result.failed > 0

    def test_returning_the_input_is_an_alias(self, planted: Any) -> None:
        """A result that shares the input's storage is reported even where the values would agree."""
        assert "alias" in run_case(planted, "expm1").oracles

    def test_not_implemented_is_never_a_pass(self, planted: Any) -> None:
        """Also not where the CPU raises: the error inputs of an op that the target lacks fail."""
        from conformance.opinfo.catalog import find

        assert find(case("exp")).name == "exp"
        failure = run_case(planted, "exp").failures[0]
        assert "not implemented is never a pass" in failure.detail

    def test_what_is_left_alone_passes(self, planted: Any) -> None:
        """The faults do not spread."""
        assert run_case(planted, "sin").outcome is Outcome.PASS

    def test_script_shows_the_fault(self, planted: Any) -> None:
        """The failure's script runs alone and prints both answers."""
        script = run_case(planted, "add").failures[0].script
        assert "import conformance" not in script
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("---") == 2

    def test_memory_is_a_crash(self, planted: Any) -> None:
        """A target that cannot get its memory has crashed; it did not merely raise."""
        import resource

        before = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (16 << 30, before[1]))
        try:
            result = run_case(planted, "erf")
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)
        assert (result.outcome, result.oracles[0]) == (Outcome.CRASH, "memory")

    def test_values_and_layouts_for_the_report(self, planted: Any) -> None:
        """A value mismatch carries the elements that differ, a stride mismatch both geometries."""
        value, stride = run_case(planted, "add").failures[0], run_case(planted, "sub").failures[0]
        assert any(bad for *_, bad in value.values)
        assert stride.layouts["expected"]["stride"] != stride.layouts["actual"]["stride"]


class TestSkip:
    """A sample that cannot be compared."""

    def test_a_whole_case_must_be_declared(self, cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """A case without a sample fails, until the expectations declare the skip."""
        from conformance.expectations import Expectation, apply
        from conformance.opinfo import case as module

        monkeypatch.setattr(module, "samples", lambda *_: iter(()))
        result = run_case(cpu, "sin")
        assert (result.outcome, result.oracles, result.samples) == (Outcome.FAIL, ("skip",), 0)
        assert "no sample" in result.failures[0].detail
        entry = Expectation("sin", ("*",), ("*",), ("*",), ("skip",), "has no samples")
        assert apply([result], [entry])[0].outcome is Outcome.SKIP

    def test_what_the_target_declares_is_skipped(self, cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """A dtype that the target says beforehand that it does not hold is a skip, and no failure."""
        monkeypatch.setattr(cpu, "dtypes", frozenset())
        assert run_case(cpu, "sin").outcome is Outcome.SKIP

    def test_undeclared_skip_fails(self, cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """An input that cannot be moved fails by the oracle `skip`, also beside samples that pass, until declared."""
        import torch

        from conformance.expectations import Expectation, apply
        from conformance.opinfo import case as module
        from conformance.opinfo.sampling import Sample

        opaque = torch.ones(2, 2).to_mkldnn()
        drawn = [Sample(0, torch.ones(2), (), {}), Sample(1, opaque, (), {})]
        monkeypatch.setattr(module, "samples", lambda *_: iter(drawn))
        result = run_case(cpu, "sin")
        assert (result.outcome, result.oracles, result.samples) == (Outcome.FAIL, ("skip",), 1)
        assert Run("cpu", [result]).exit_code() == 1
        entry = Expectation("sin", ("*",), ("*",), ("*",), ("skip",), "opaque tensors cannot be looked at")
        (declared,) = apply([result], [entry])
        assert (declared.outcome, Run("cpu", [declared]).exit_code()) == (Outcome.SKIP, 0)
        (passed,) = apply([result.replace(outcome=Outcome.PASS, failures=())], [entry])
        assert passed.outcome is Outcome.XPASS


class TestSampling:
    """Where inputs lie and how they are laid out."""

    def test_indices_that_opinfo_keeps_stay(self, cpu: Any) -> None:
        """The indices of tensor_split are made without a device, so they stay on the CPU; the input does not."""
        from conformance.opinfo.catalog import find
        from conformance.opinfo.sampling import samples, send
        from conformance.target import Target

        class Meta(Target):
            name = "meta"

            def upload(self, flats: Any) -> Any:
                return [flat.to("meta") for flat in flats]

        import torch

        sample = next(samples(find(case("tensor_split")), "forward", torch.float32, "as_sampled", 1))
        sent = send(Meta(), sample.tree, sample.kept)
        assert (sent["input"].device.type, sent["args"][0].device.type) == ("meta", "cpu")

    @pytest.mark.parametrize("name", ["add", "nn.functional.dropout", "normal"])
    def test_samples_are_opinfos_own(self, cpu: Any, name: str) -> None:
        """Seeding by ourselves draws what OpInfo's iterator draws when it seeds."""
        import torch

        from conformance.opinfo import catalog
        from conformance.opinfo.sampling import samples

        op = catalog.find(case(name))
        ours = samples(op, "forward", torch.float32, "as_sampled", 5)
        for sample, theirs in zip(ours, op.sample_inputs("cpu", torch.float32), strict=False):
            torch.testing.assert_close((sample.input, sample.args), (theirs.input, theirs.args), rtol=0, atol=0)

    def test_one_sample_by_its_index(self, tmp_path: Path) -> None:
        """PYTORCH_OPINFO_SAMPLE_INPUT_INDEX runs that sample and no other."""
        code = (
            "import torch; from conformance.target import load_target; load_target('cpu')\n"
            "from conformance.opinfo import catalog, plan; from conformance.opinfo.sampling import samples\n"
            "op = catalog.find(plan.Case('add', '', 'binary', 'float32', 'forward', 'as_sampled'))\n"
            "drawn = list(samples(op, 'forward', torch.float32, 'as_sampled', None))\n"
            "print([sample.index for sample in drawn], drawn[0].input.sum().item())"
        )
        said = []
        for chosen in ({}, {"PYTORCH_OPINFO_SAMPLE_INPUT_INDEX": "0"}, {"PYTORCH_OPINFO_SAMPLE_INPUT_INDEX": "3"}):
            words = {**environment(tmp_path), **chosen}
            said.append(subprocess.check_output([sys.executable, "-c", code], env=words, text=True).strip())
        assert [line.partition("]")[0] for line in said[1:]] == ["[0", "[3"]
        assert said[0].startswith("[0, 1, 2")
        assert said[0].partition("]")[2] == said[1].partition("]")[2] != said[2].partition("]")[2]

    @pytest.mark.parametrize("layout", [name for name in plan.LAYOUTS if name not in ("as_sampled", "expanded")])
    def test_layouts_keep_values(self, layout: str) -> None:
        """A layout changes strides or offset, never size or values."""
        import torch

        from conformance.opinfo.sampling import laid_out

        for shape in ((), (0, 3), (4,), (2, 1, 3), (2, 3, 4, 5)):
            values = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
            result = laid_out(values, layout)
            assert torch.equal(result, values)
        assert (result.stride(), result.storage_offset()) != (values.stride(), values.storage_offset())


class TestPlan:
    """Names only."""

    CATALOG = (
        plan.Entry(
            "add",
            "",
            "binary",
            frozenset({"float32", "int64"}),
            frozenset({"float32"}),
            frozenset({"forward", "backward"}),
        ),
        plan.Entry("linalg.pinv", "hermitian", "linalg", frozenset({"float32"}), frozenset(), frozenset({"forward"})),
    )

    def test_oracles_are_the_oracle_modules(self) -> None:
        """The planner's list, which avoids torch, is that of the oracles."""
        from conformance.target import ORACLES

        assert plan.ORACLES == ORACLES

    def test_dtypes_are_torch_dtypes(self) -> None:
        """Each dtype that can be asked for exists."""
        import torch

        assert all(isinstance(getattr(torch, name), torch.dtype) for name in plan.DTYPES)

    def test_only_what_exists_is_planned(self) -> None:
        """An op is planned for the dtypes and variants that its OpInfo has."""
        cases = select(*self.CATALOG, dtypes=("float32", "int64"), variants=("forward", "backward"))
        assert [c.id for c in cases] == [
            "add::float32::forward::as_sampled",
            "add::int64::forward::as_sampled",
            "add::float32::backward::as_sampled",
            "linalg.pinv.hermitian::float32::forward::as_sampled",
        ]

    @pytest.mark.parametrize("name", plan.SUITES)
    def test_suites_name_what_exists(self, name: str) -> None:
        """Each dtype, variant and layout of a suite can be asked for."""
        for selection in plan.SUITES[name]:
            for part, known in (("dtypes", plan.DTYPES), ("variants", plan.VARIANTS), ("layouts", plan.LAYOUTS)):
                assert set(getattr(selection, part)) <= set(known)

    def test_the_main_suite(self) -> None:
        """Forward in three dtypes, in place and backward in one; a case that two selections name is planned once."""
        cases = plan.select(self.CATALOG, [*plan.SUITES["main"], plan.Selection(samples=3)])
        assert [(c.id.partition("::as")[0], c.samples) for c in cases] == [
            ("add::float32::forward", 20),
            ("linalg.pinv.hermitian::float32::forward", 20),
            ("add::int64::forward", 6),
            ("add::float32::backward", 4),
        ]

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            ("--suite mian", "unknown suite 'mian'; choose from main, quick"),
            ("--suite main --dtype bool", "--suite main chooses dtypes itself"),
        ],
    )
    def test_bad_suite(self, words: str, text: str) -> None:
        """A suite that does not exist, or is asked to be another one, is bad usage."""
        from conformance.opinfo_runner import parser

        with pytest.raises(plan.UsageError, match=text):
            plan.asked(parser().parse_args(words.split()))

    def test_fewer_ops_of_a_suite(self) -> None:
        """--op and --samples narrow every part of a suite."""
        from conformance.opinfo_runner import parser

        chosen = plan.asked(parser().parse_args("--suite main --op add --samples all".split()))
        assert {(each.ops, each.samples) for each in chosen} == {(("add",), None)}

    def test_the_longest_case_begins_first(self) -> None:
        """By the times of an earlier run; a case that it had not counts as usual."""
        cases = [case(name) for name in ("sin", "cos", "tan", "exp")]
        seconds = {case("sin").id: 1.0, case("cos").id: 9.0, case("tan").id: 2.0}
        assert [c.op for c in plan.longest_first(cases, seconds)] == ["cos", "exp", "tan", "sin"]

    def test_shards_are_a_partition(self) -> None:
        """The shards together are the whole plan, and no case is in two."""
        whole = select(*self.CATALOG, dtypes=("float32", "int64"))
        shards = [select(*self.CATALOG, dtypes=("float32", "int64"), shard=(i, 2)) for i in (1, 2)]
        assert sorted(c.id for shard in shards for c in shard) == sorted(c.id for c in whole)

    @pytest.mark.parametrize("glob", ["ad", "linalg.pin"])
    def test_a_typo_names_what_is_near(self, glob: str) -> None:
        """An op that does not exist is refused with the nearest names."""
        with pytest.raises(plan.UsageError, match=r"no op .* matches .*did you mean"):
            select(*self.CATALOG, ops=(glob,))

    def test_nothing_planned_is_an_error(self) -> None:
        """A choice that leaves no case is bad usage, never an empty pass."""
        with pytest.raises(plan.UsageError, match="no op among those chosen supports"):
            select(*self.CATALOG, ops=("linalg*",), dtypes=("int64",))


class TestCommand:
    """The command, its workers, its files and its exit codes."""

    def test_crash_and_hang_end_to_end(self, tmp_path: Path) -> None:
        """A crash and a hang are each that op's outcome and no other's, and the page shows foreign text as text."""
        outcomes = {"add": "FAIL", "sin": "PASS", "atan": "CRASH", "acosh": "TIMEOUT", "tan": "FAIL"}
        run, done = self.planted(tmp_path, outcomes, "--timeout", "5")
        crash = next(r for r in run.results if r.name == "atan").failures[0]
        assert (crash.oracle, crash.where, "SIGSEGV" in crash.actual) == ("crash", "the target", True)
        assert "op_db" in crash.script
        assert done.stdout.splitlines()[-1] == "1 passed, 4 failed, 0 skipped"
        page = (tmp_path / "reports" / "conformance.html").read_text()
        assert "<script>alert(1)" not in page
        assert "\x1b" not in page

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_every_death_end_to_end(self, tmp_path: Path) -> None:
        """An exit and a memory explosion are crashes; what passes when it is run again is flaky."""
        outcomes = {"asinh": "CRASH", "erf": "CRASH", "sinh": "FLAKY", "add": "FAIL", "sin": "PASS"}
        self.planted(tmp_path, outcomes, "--memory", "12", "--rerun-failures", "1")

    def planted(
        self, tmp_path: Path, outcomes: dict[str, str], *options: str
    ) -> tuple[Run, subprocess.CompletedProcess[str]]:
        words = [word for op in outcomes for word in ("--op", op)]
        done = runner(tmp_path, "--target", "planted", *words, "--samples", "2", *options)
        assert done.returncode == 1, done.stderr
        run = model.load(tmp_path / "reports" / "opinfo.json")
        assert {r.name: str(r.outcome) for r in run.results} == outcomes
        return run, done

    def test_nothing_unexpected(self, tmp_path: Path) -> None:
        """Exit code 0, and every form of the report is there."""
        done = runner(tmp_path, "--target", "cpu", "--op", "sin", "--samples", "2")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 passed, 0 failed, 0 skipped"), done.stderr
        names = {path.name for path in (tmp_path / "reports").iterdir()}
        written = {"opinfo.json", "opinfo.xml", "opinfo.ctrf.json", "opinfo-summary.md", "conformance.html"}
        assert names == written | {"history.sqlite"}

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--dtype", "float31"], "unknown dtype 'float31'; did you mean float32"),
            (["--variant", "forwards"], "did you mean forward"),
            (["--samples", "0"], "--samples '0'"),
            (["--shard", "3/2"], "--shard '3/2'"),
            (["-n", "0"], "-n must be at least 1"),
            (["--target", "nope"], "unknown target 'nope'"),
            (["--baseline", "missing.json"], "missing.json does not exist"),
        ],
    )
    def test_bad_usage(self, tmp_path: Path, arguments: list[str], text: str) -> None:
        """One sentence that says what is wrong, exit code 2, nothing written."""
        done = runner(tmp_path, "--target", "cpu", *arguments)
        assert done.returncode == 2
        assert text in done.stderr
        assert "Traceback" not in done.stderr
        assert not list((tmp_path / "reports").glob("*")) if (tmp_path / "reports").exists() else True

    @pytest.mark.slow
    def test_a_death_between_cases_is_nobodys(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A worker that dies after its case loses no result; the cases that are left go to new workers."""
        from conformance.opinfo.isolation import Pool

        monkeypatch.syspath_prepend(str(PLANTED))
        monkeypatch.setenv("PLANTED_MARK", str(tmp_path / "died"))
        with Pool("planted", 1, 60, 12 << 30) as pool:
            catalog, _ = pool.catalog()
            first, *rest = select(*catalog, ops=("asin", "sin", "cosh", "sign"), samples=1)
            assert [r.outcome for r in pool.run([first])] == [Outcome.PASS]
            time.sleep(3)
            assert [r.outcome for r in pool.run(rest)] == [Outcome.PASS] * 3

    def test_a_target_that_ends_its_process(self, tmp_path: Path) -> None:
        """A target whose loading kills the process is one sentence, not a pool that starts workers for ever."""
        done = runner(tmp_path, "--target", "dying")
        assert done.returncode == 2
        assert "ends the process that loads it" in done.stderr

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("reports/baseline/cpu.json.gz", "no gzip", "cpu.json.gz cannot be read"),
            ("reports/expectations/cpu.toml", "[[expect]]\nop = 3\n", "cpu.toml, line 1: an entry needs"),
            (
                "reports/expectations/cpu.toml",
                "a = 1\n= 2\n",
                "cpu.toml is not valid TOML: Invalid statement (at line 2",
            ),
            ("reports/history.sqlite", "no database " * 99, "history.sqlite is no usable history"),
            ("kernels.json", "{\n}}", "kernels.json, line 2: not valid JSON"),
        ],
    )
    def test_damaged_files(self, tmp_path: Path, name: str, text: str, said: str) -> None:
        """A damaged file is named before anything runs, exit code 2, and it is left as it was."""
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        words = ["--kernels", str(path)] if path.name == "kernels.json" else []
        done = execute(command("--target", "cpu", "--op", "sin", *words), tmp_path, 60)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert path.read_text() == text

    def test_no_room_for_results(self, tmp_path: Path) -> None:
        """A disk that is full while results come in is one sentence."""
        from conformance.opinfo_runner import _Journal

        journal = _Journal(tmp_path)
        journal.file = open("/dev/full", "w")  # noqa: SIM115 - closed by the journal
        with pytest.raises(model.ReportError, match=r"jsonl cannot be written \(No space left on device\)"), journal:
            journal.add(Result("x", "float32", "forward", "as_sampled", Outcome.PASS))

    def test_a_regression_fails(self, tmp_path: Path) -> None:
        """Against a baseline of fewer kernels the run fails; accepted knowingly it passes, and so does the next."""
        words = command("--target", "planted", "--op", "sin", "--samples", "2")
        assert execute([*words, "--update-baseline"], tmp_path).returncode == 0
        path = tmp_path / "reports" / "baseline" / "planted.json.gz"
        baseline = model.load(path)
        baseline.results.append(baseline.results[0].replace(op="sinc"))
        model.save(baseline, path)
        gone = execute(words, tmp_path)
        assert (gone.returncode, "gone (1)" in gone.stdout) == (1, True)
        assert gone.stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
        narrower = execute([*words, "--dtype", "float64"], tmp_path)
        assert (narrower.returncode, "2 cases of the baseline were not asked for" in narrower.stdout) == (0, True)

    def test_unknown_op(self, tmp_path: Path) -> None:
        """A misspelt op is refused with its neighbours once op_db is known."""
        done = runner(tmp_path, "--target", "cpu", "--op", "soft_max")
        assert done.returncode == 2
        assert "did you mean" in done.stderr

    def test_unwritable_reports(self, tmp_path: Path) -> None:
        """A reports folder that is a file is said at once, before anything runs."""
        (tmp_path / "taken").write_text("")
        words = command("--target", "cpu", "--reports", str(tmp_path / "taken"))
        done = execute(words, tmp_path, 60)
        assert done.returncode == 2
        assert "choose another with --reports" in done.stderr

    def test_interrupt_keeps_results(self, tmp_path: Path) -> None:
        """Ctrl-C, however often: exit code 130, and what was found is in the JSON and on the page."""
        words = command("--target", "planted", "--op", "sin", "--op", "acosh", "--reports", str(tmp_path / "reports"))
        process = subprocess.Popen(words, env=environment(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and not any(p.stat().st_size for p in (tmp_path / "reports").glob("*.jsonl")):
            time.sleep(0.2)
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
            time.sleep(0.1)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130, output
        run = model.load(tmp_path / "reports" / "opinfo.json")
        assert not run.complete
        assert [(r.name, r.outcome) for r in run.results] in ([("sin", Outcome.PASS)], [("acosh", Outcome.PASS)])
        assert "interrupted" in (tmp_path / "reports" / "conformance.html").read_text()

    def test_nothing_compared_fails(self) -> None:
        """A run whose cases were all skipped is a failed run."""
        skipped = Result("x", "float32", "out", "as_sampled", Outcome.SKIP, reason="nothing to give to out")
        assert Run("cpu", [skipped]).exit_code() == 1
        assert Run("cpu", []).exit_code() == 1

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("variant", plan.VARIANTS)
    def test_cpu_against_itself(self, tmp_path: Path, variant: str) -> None:
        """All of op_db agrees with itself: whatever fails here is a fault of the harness."""
        words = command(
            "--target", "cpu", "--variant", variant, "--samples", "5", "-n", "2", "--reports", str(tmp_path)
        )
        done = execute(words, tmp_path, 580)
        assert done.returncode == 0, done.stdout[-3000:]
