"""`conformance init`: missing operators inferred from trials, and one sentence for each unusable device."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from conformance.declare import profile as profiles
from conformance.declare.declaration import UNSUPPORTED, Declaration, Scope
from conformance.program.steps import functions
from conformance.record.missing_ops import Attempt, AttemptOutcome
from conformance.run.execution_place import LOCAL
from conformance.run.messages import Limits
from conformance.run.placed_pool import PlacedPool
from conformance.run.profile_trials import LATE, MODULES, task, trials
from conformance.sources.fuzzing.shortest_program import program_with, subject_of
from conformance.sources.init import init, upstream_configs
from conformance.sources.init.__main__ import MOST_NAMED, main, sentences
from conformance.sources.opinfo.first_sample import call_of

ROOT = Path(__file__).parents[3]
PLANTED = ROOT / "tests" / "planted"
ODD = "device:cpu,import=odd_devices,call="


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder for a command in this process. Planted modules are importable, and `--env` lasts for one
    test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(PLANTED))
    before = dict(os.environ)
    yield tmp_path
    for name in {*os.environ} - {*before}:
        del os.environ[name]


class TestTrials:
    def test_each_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only a not-implemented error means that an operator is missing. A wrong error, a crash and a hang are
        findings, and the next trial still runs."""
        monkeypatch.syspath_prepend(str(PLANTED))
        spec = "class:planted.PlantedTarget"
        limits = Limits(unit=5, compiling=5, memory=4, grace=1)
        names = ("exp", "tan", "atan", "acosh", "log")
        with PlacedPool(LOCAL, spec, limits, 1, MODULES) as pool:
            tried = {t.name: t for t in trials(pool, [task(spec, call_of, name) for name in names], 100)}
        assert {name: trial.outcome for name, trial in tried.items()} == {
            "exp": AttemptOutcome.LACKING,
            "tan": AttemptOutcome.FAILS,
            "atan": AttemptOutcome.DIED,
            "acosh": AttemptOutcome.DIED,
            "log": AttemptOutcome.WORKS,
        }
        assert tried["exp"].operator == "aten::exp" and "has no kernel" in tried["exp"].said
        assert (
            tried["atan"].said == "killed its process with SIGSEGV" and "gave no answer in 5 s" in tried["acosh"].said
        )

    def test_the_operator_that_raises_is_to_blame(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The operator that raises is to blame. Regression test: on a device without `set_`, a convolution failed
        with an error that names no operator. The trial blamed `set_`, the last operator that the harness itself had
        called."""
        monkeypatch.syspath_prepend(str(PLANTED))
        spec = "device:foreign,import=foreign_device,call=without_convolution_and_set,without=set_"
        names = ("nn.functional.conv2d", "polar", "exp", "hash_tensor")
        with PlacedPool(LOCAL, spec, Limits(unit=60), 1, MODULES) as pool:
            tried = {t.name: t for t in trials(pool, [task(spec, call_of, name) for name in names], 100)}
        assert {name: (trial.outcome, trial.operator) for name, trial in tried.items()} == {
            "nn.functional.conv2d": (AttemptOutcome.LACKING, "aten::convolution_overrideable"),
            # the device's own kernel calls it
            "polar": (AttemptOutcome.LACKING, "aten::set_.source_Storage_storage_offset"),
            "exp": (AttemptOutcome.WORKS, ""),
            "hash_tensor": (AttemptOutcome.FAILS, ""),
        }

    def test_an_operator_that_works_alone_is_not_lacking(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An error may name an operator that works alone: the trial fails, and nothing is declared."""
        monkeypatch.syspath_prepend(str(PLANTED))
        spec = "class:planted.WrongNameTarget"
        with PlacedPool(LOCAL, spec, Limits(unit=60), 1, MODULES) as pool:
            (trial,) = trials(pool, [task(spec, call_of, "exp")], 100)
        assert (trial.outcome, trial.operator) == (
            AttemptOutcome.FAILS,
            "",
        ) and "aten::neg is not implemented" in trial.said

    def test_a_kernel_that_is_there_is_never_lacking(self) -> None:
        """A built-in kernel that raises NotImplementedError is not missing, because the dispatcher's tables have it."""
        from conformance.engine.attempt import without_kernel
        from conformance.engine.loading import load_target

        tiny = load_target("tiny")
        assert not without_kernel("aten::add.Tensor", tiny)
        assert without_kernel("aten::cudnn_convolution", tiny)

    @pytest.mark.slow
    def test_kernels_that_take_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Trials that run out of time are reported as not tried, so that nothing is declared about them."""
        monkeypatch.syspath_prepend(str(PLANTED))
        spec, names = "class:slow_device.SlowTarget", ("neg", "abs", "clone", "add_", "mul_", "exp", "tanh")
        with PlacedPool(LOCAL, spec, Limits(unit=60), 1, MODULES) as pool:
            pool.ask(os.getpid)  # the target is loaded
            tried = {t.name: t for t in trials(pool, [task(spec, subject_of, name) for name in names], 12)}
            # Regression test: a late result of an earlier trial was attributed to these trials and ended the command
            # with a KeyError.
            (late,) = trials(pool, [task(spec, subject_of, "sum")], 60)
        assert tried["neg"].outcome is AttemptOutcome.WORKS and tried["neg"].seconds > 5
        assert tried["tanh"] == Attempt("tanh", AttemptOutcome.UNTRIED, said=LATE)
        assert late.name == "sum" and late.outcome is AttemptOutcome.WORKS

    @pytest.mark.slow
    def test_every_step_has_a_program(self) -> None:
        """A step without a program could never be declared lacking. Steps that only topics of functions draw, which
        compilers alone are given, have none."""
        names, dtypes = {*init.OPS} - {op.name for op in functions.ROWS}, ("float32", "float16", "int64", "complex64")
        assert not [name for name in names if program_with(name, dtypes) is None]


@pytest.mark.slow
def test_what_was_tried_before_a_stop_is_written(tmp_path: Path) -> None:
    """A stopped command writes a profile and declares nothing from its trials. Regression test: a signal lost 25
    minutes of trials."""
    path = os.pathsep.join([str(PLANTED), str(ROOT)])
    words = [sys.executable, "-u", "-m", "conformance", "init", "--target", "class:slow_device.SlowTarget"]
    with subprocess.Popen(
        words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        next(line for line in run.stdout if " tried, 0 without a kernel" in line)
        run.terminate()
        rest = run.stdout.read()
    assert run.returncode == 128 + 15
    assert "trials interrupted, so nothing is declared of them" in rest
    assert profiles.load(tmp_path / "conformance.toml").name == "slow_device.SlowTarget"


class TestInvestigation:
    def test_what_did_not_work_is_named(self) -> None:
        """The command names each trial that failed, with its error, and each that was not made, with the reason.
        Regression test: it said "3 fail though they have one, 14 were not made", and no name."""
        trials = {
            "a": Attempt("a", AttemptOutcome.FAILS, said="RuntimeError: no such mode"),
            "b": Attempt("b", AttemptOutcome.UNTRIED, said="an earlier step fails"),
            "c": Attempt("c", AttemptOutcome.UNTRIED, said="an earlier step fails"),
            "d": Attempt("d", AttemptOutcome.UNTRIED, said=LATE),
        }
        investigation = init.Investigation("device:odd", trials={("steps", name): one for name, one in trials.items()})
        assert sentences(investigation)[1:] == [
            "fails, which is a finding: a: RuntimeError: no such mode",
            "not made, since an earlier step fails: b, c",
            "1 trial had no time, so nothing is declared of them: give more --minutes",
        ]
        many = {("steps", f"s{n}"): Attempt(f"s{n}", AttemptOutcome.FAILS, said="no") for n in range(MOST_NAMED + 2)}
        assert sentences(init.Investigation("device:odd", trials=many))[-1].startswith("and 2 more fail: ")

    def test_one_entry_an_operator(self) -> None:
        """Ops that need the same operator share one entry; failures and deaths have none."""
        investigation = init.Investigation("device:odd,import=m,call=f", trials={
            ("opinfos", "b"): Attempt("b", AttemptOutcome.LACKING, "aten::x", "no", 50),
            ("opinfos", "a"): Attempt("a", AttemptOutcome.LACKING, "aten::x", "no"),
            ("steps", "a"): Attempt("a", AttemptOutcome.LACKING, "aten::x", "no"),
            ("steps", "c"): Attempt("c", AttemptOutcome.FAILS, "aten::y", "no"),
            ("steps", "d"): Attempt("d", AttemptOutcome.DIED),
        })  # fmt: skip
        profile = investigation.profile({"A": "1"}, 8, Path("p.toml"))
        scope = Scope(operator=("aten::x",), op=("a", "b"), step=("a",))
        assert profile.declarations == (Declaration(scope, (UNSUPPORTED,), "no"),)
        assert profile.spec == "device:odd,import=m,call=f" and profile.environment == {"A": "1"}
        assert profile.seconds == 100  # twice the seconds of the slowest trial


class TestOddDevices:
    """Each device gives one sentence or does no harm, and no incomplete profile is written."""

    @pytest.mark.parametrize(
        ("target", "more", "said"),
        [
            ("device:cpu,import=broken_device", (), "ImportError: libodd.so.1: cannot open shared object file"),
            ("device:odd,import=odd_devices", (), "torch knows no device 'odd' after the import: it knows cpu, "),
            (f"{ODD}hang", (), "has no function 'hang'; did you mean hangs"),
            (f"{ODD}hangs", ("--starting", "4"), "did not load in "),
            pytest.param(
                f"{ODD}hangs_at_the_first_tensor", ("--starting", "8"), "did not load in ", marks=pytest.mark.slow
            ),
            (f"{ODD}ends_its_process", (), "ends the process that loads it"),
            (f"{ODD}wants_a_variable", (), "RuntimeError: set ODD_DEVICE=1"),
        ],
    )
    def test_one_that_cannot_be_loaded(
        self, folder: Path, target: str, more: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["--target", target, *more]) == 2
        last = capfd.readouterr().err.splitlines()[-1]
        assert last.startswith("conformance init: ") and said in last
        assert not list(folder.iterdir())

    @pytest.mark.parametrize(
        "call", [pytest.param("hangs_at_exit", marks=pytest.mark.slow), "prints_all_the_time", "wants_a_variable"]
    )
    def test_one_that_can(self, folder: Path, call: str, capfd: pytest.CaptureFixture[str]) -> None:
        """The command's output excludes the device's own, and a device that hangs at its exit delays nothing."""
        assert main(["--target", f"{ODD}{call}", "--env", "ODD_DEVICE=1", "--minutes", "0.01"]) == 0
        said = capfd.readouterr().out
        assert "what a device prints" not in said
        assert "had no time, so nothing is declared of them: give more --minutes" in said
        profile = profiles.load(folder / "conformance.toml")
        assert (
            profile.spec == f"{ODD}{call}"
            and profile.environment == {"ODD_DEVICE": "1"}
            and not profile.unsupported("feature")
        )
        assert "float32" in (profile.dtypes or ())

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--target", "cpu", "--output", "there.toml"), "there.toml is there already; give --force"),
            (("--target", "cpu", "--output", "it.txt"), "must end in .toml"),
            (("--target", "there.toml"), "is a profile; give the target itself"),
            # Regression test: this spec was treated as a probe's result: nothing was probed, and the profile listed no
            # features and dtypes.
            (("--target", "device:cpu,without=set_"), "which init finds out: leave out without="),
        ],
    )
    def test_bad_usage(
        self, folder: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """An existing profile stays unchanged."""
        (folder / "there.toml").write_text("old")
        code, out = main(words), capsys.readouterr()
        assert (code, out.out) == (2, "") and said in out.err
        assert len(out.err.splitlines()) == 1
        assert (folder / "there.toml").read_text() == "old"

    def test_an_environment_without_a_value(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["--target", "cpu", "--env", "A"])
        assert capsys.readouterr().err.endswith("--env: 'A' is not K=V: write for example DEBUG=1\n")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_whole_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch CPU lacks no operator of torch CPU."""
    investigation = init.investigate("device:cpu", Limits(memory=8), 2, 800, Console(quiet=True))
    assert (
        not investigation.of(AttemptOutcome.LACKING)
        and not investigation.of(AttemptOutcome.DIED)
        and not investigation.of(AttemptOutcome.FAILS)
    )
    assert len(investigation.of(AttemptOutcome.WORKS)) > 850


@pytest.mark.slow
def test_pytorchs_own_tests_know_what_is_lacking(tmp_path: Path) -> None:
    """The file of `init` runs PyTorch's tests without this package: of the operators that are allowed only, and without
    one that ended its process."""
    trials = {
        ("opinfos", "neg"): Attempt("neg", AttemptOutcome.WORKS),
        ("opinfos", "abs"): Attempt("abs", AttemptOutcome.DIED, said="killed its process with SIGSEGV"),
        ("opinfos", "sort"): Attempt("sort", AttemptOutcome.LACKING, "aten::sort", "no kernel"),
        ("steps", "exp_"): Attempt("exp_", AttemptOutcome.WORKS),
    }
    spec = "device:toy,import=tests.planted.toy_device"
    investigation = init.Investigation(spec, trials=trials)
    command = upstream_configs.file_for(tmp_path / "toy.toml")
    assert command.name == "toy_test_configs.py"
    command.write_text(
        upstream_configs.test_configs(investigation, {"TOY_FAULTS": ""}, "conformance init", command.name)
    )
    assert upstream_configs.test_configs(init.Investigation("compile:toy"), {}, "", "x.py") == ""
    tests = tmp_path / "test_ops_of_mine.py"
    tests.write_text(
        "import torch\n"
        "from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops\n"
        "from torch.testing._internal.common_methods_invocations import op_db\n"
        "from torch.testing._internal.common_utils import TestCase, run_tests\n"
        "FEW = [op for op in op_db if op.name in ('neg', 'abs', 'sort')]\n"
        "class TestMine(TestCase):\n"
        "    @ops(FEW, allowed_dtypes=(torch.float32,))\n"
        "    def test_op(self, device, dtype, op):\n"
        "        self.assertEqual(op.name, 'neg')\n"
        "instantiate_device_type_tests(TestMine, globals())\n"
        "run_tests()\n"
    )
    words = [sys.executable, str(command), str(tests), "-v"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment, timeout=120, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "test_op_neg_toy_float32" in done.stderr and "OK (skipped=1)" in done.stderr
    assert "killed its process with SIGSEGV" in done.stderr and "sort" not in done.stderr
