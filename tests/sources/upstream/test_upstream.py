"""`conformance upstream`: each planted fault of a file of tests is caught, and no test is lost."""

from __future__ import annotations

import json
import sys
import unittest
from pathlib import Path

import jsonschema
import pytest

from conformance.record import result as model
from conformance.record.causes import causes_of
from conformance.record.errors import TargetError, UsageError
from conformance.record.merge import merge
from conformance.record.missing_ops import DECLARED
from conformance.record.names import UPSTREAM
from conformance.record.result import SHOWS, Outcome, Result, Run
from conformance.sources.upstream import tasks
from conformance.sources.upstream.__main__ import _dtypes_of, judged, main, why_none
from conformance.sources.upstream.table import LOADING, TESTS, DeviceTest, TestFile, files_of, test_of
from conformance.standalone.device_tests import FAILED, PASSED, SKIPPED, run_device_test, without_device_name
from conformance.standalone.torch_compat import device_type_tests
from tests.patience import stretched
from tests.planted import device_tests

SCHEMA = Path(model.__file__).with_name("result.schema.json")
PROFILE = """
[target]
kind = "device"
name = "toy"
import = "tests.planted.toy_device"

[environment]
TOY_FAULTS = "relu"

[[declare]]
scope = {feature = "set_"}
property = "unsupported"
reason = "by the probe"

[[declare]]
scope = {dtype = "float4_e2m1fn_x2"}
property = "unsupported"
reason = "by the probe"

[[declare]]
scope = {operator = "aten::sort", op = "sort"}
property = "unsupported"
reason = "no kernel"

[[declare]]
scope = {operator = "aten::geqrf", op = "geqrf"}
property = "unsupported"
reason = "no kernel"
"""
MODE = "device:cpu,import=tests.planted.lying_modes,call=stateful"
CLASS = f"{device_tests.NAME}.TestPlanted"


def results(folder: Path) -> dict[str, Result]:
    found = model.load(folder / "upstream.json").results
    return {result.id.removeprefix(f"{CLASS}.").removesuffix("::test::upstream"): result for result in found}


def words(folder: Path, target: str, tests: Path, *more: str) -> list[str]:
    return ["--target", target, "--tests", f"{tests}", "--reports", f"{folder}", "--check-scripts", "0", *more]


class TestTable:
    def test_a_test_is_named_without_its_device(self) -> None:
        """The names of a test on two devices are one case, which knows its name on each."""
        for kind in ("tiny", "cpu"):
            group = f"TestTorch{kind.upper()}"
            case = test_of("/x/test_torch.py", kind, group, f"test_add_{kind}_float32_int64")
            assert (case.op, case.dtype, case.family) == (
                "test_torch.TestTorch.test_add",
                "float32_int64",
                "test_torch",
            )
            assert case.on(kind) == (group, f"test_add_{kind}_float32_int64")
        assert [*_dtypes_of("float8_e4m3fnuz_int64")] == ["float8_e4m3fnuz", "int64"] and [*_dtypes_of("")] == []

    def test_a_checkout_stands_for_its_files_of_device_tests(self, tmp_path: Path) -> None:
        folder = tmp_path / "test"
        folder.mkdir()
        device_tests.write(folder)
        (folder / "test_other.py").write_text("x = 1\n")
        assert [file.name for file in files_of([tmp_path])] == [device_tests.NAME]
        (folder / f"{device_tests.NAME}.py").unlink()
        with pytest.raises(UsageError, match=r"no file test_.* there calls instantiate_device_type_tests"):
            files_of([tmp_path])

    def test_files_that_cannot_be_used(self, tmp_path: Path) -> None:
        """No file, a missing one, and two of one name are one sentence each."""
        (tmp_path / "a").mkdir()
        one, other = device_tests.write(tmp_path), device_tests.write(tmp_path / "a")
        for paths, said in (
            ([], "no tests are named"),
            ([tmp_path / "b.py"], "there is no such file"),
            ([one, other], "have the same name"),
        ):
            with pytest.raises(UsageError, match=said):
                files_of(paths)


class TestRunning:
    def test_verdicts(self) -> None:
        """A failure, an error in a subtest, SystemExit and an unexpected success fail; a skip is a skip."""

        class Inner(unittest.TestCase):
            def test_good(self) -> None:
                pass

            def test_bad(self) -> None:
                self.fail("bad")

            def test_exit(self) -> None:
                raise SystemExit(0)

            def test_sub(self) -> None:
                with self.subTest():
                    raise ValueError("sub")

            def test_skip(self) -> None:
                self.skipTest("why")

            def test_pytest_skip(self) -> None:
                pytest.skip("why")

            @unittest.expectedFailure
            def test_unexpected(self) -> None:
                pass

        self.Inner = Inner
        answers = {name: run_device_test(self, "Inner", f"test_{name}") for name in  # type: ignore[arg-type]
                   ("good", "bad", "exit", "sub", "skip", "pytest_skip", "unexpected", "absent")}  # fmt: skip
        assert {name: answer[0] for name, answer in answers.items()} == {
            "good": PASSED, "bad": FAILED, "exit": FAILED, "sub": FAILED, "skip": SKIPPED, "pytest_skip": SKIPPED,
            "unexpected": FAILED, "absent": FAILED,
        }  # fmt: skip
        assert answers["bad"][1] == "AssertionError: bad"
        assert answers["bad"][2].endswith('self.fail("bad")')
        assert answers["sub"][1] == "ValueError: sub" and answers["skip"][1] == answers["pytest_skip"][1] == "why"

    def test_a_limit_of_time_is_not_the_tests_answer(self) -> None:
        """unittest takes every exception for a test's; that of the alarm passes, so that the test is a TIMEOUT."""

        class Alarm(BaseException):
            pass

        class Inner(unittest.TestCase):
            def test_slow(self) -> None:
                raise Alarm

        self.Inner = Inner
        with pytest.raises(Alarm):
            run_device_test(self, "Inner", "test_slow")  # type: ignore[arg-type]

    def test_messages_of_two_devices_are_equal(self) -> None:
        text = "{0}:0 differs in test_add_{0}_float32 at 0x{1}, not_cpus\n\nTo execute this test, run\n  Test{0}"
        one, other = (without_device_name(text.format(*pair), pair[0]) for pair in (("toy", "7f00"), ("cpu", "8a11")))
        assert one == other == "DEVICE differs in test_add_DEVICE_float32 at 0x..., not_cpus"

    @pytest.mark.parametrize(
        ("target", "said"),
        [
            ("meta", "is no device with values"),
            ("functionalize", "is no device with values"),
            ("passthrough:subclass", "they would test plain cpu"),
        ],
    )
    def test_targets_that_the_tests_do_not_reach(self, target: str, said: str) -> None:
        """A test makes its tensors on a device. A target that only moves or transforms them would not be tested."""
        with pytest.raises(TargetError, match=said):
            tasks.describe_environment(target)

    def test_a_mode_is_a_device(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The tests run under the modes of a device that is one, and see its wrong answer."""
        file = tmp_path / "test_of_modes.py"
        file.write_text(
            "import torch\n"
            "from torch.testing._internal.common_device_type import instantiate_device_type_tests as make\n"
            "from torch.testing._internal.common_utils import TestCase\n"
            "class TestMode(TestCase):\n"
            "    def test_addcdiv(self, device):\n"
            "        ones = torch.ones(3, device=device)\n"
            "        self.assertEqual(ones.clone().addcdiv_(ones, ones), 2 * ones)\n"
            "make(TestMode, globals())\n"
        )
        every, bases, _ = device_type_tests()
        # PyTorch keeps these for the thread that imports its tests, which may be another one of this process.
        every._tls.precision, every._tls.rel_tol = every._precision, every._rel_tol  # type: ignore[attr-defined]
        monkeypatch.setattr(sys, "path", [*sys.path])
        for target, outcome in (("cpu", Outcome.PASS), (MODE, Outcome.FAIL)):
            before = [*bases]
            (case,) = tasks.listed(target, TestFile(str(file)))
            result = tasks.run(target, case)
            assert result.outcome is outcome, result.failures
            bases[:] = before

    def test_only_a_declared_operator_excuses(self) -> None:
        assert tasks.missing_operator("NotImplementedError: Could not run 'aten::geqrf' with") == "aten::geqrf"
        assert tasks.missing_operator("RuntimeError: aten::geqrf has a wrong shape") == ""

    def test_a_file_that_cannot_be_loaded(self, tmp_path: Path) -> None:
        """A package that is not there is a skip with the reason; any other error is a failure."""
        for text, outcome, said in (
            ("import no_such_package", Outcome.SKIP, "No module named 'no_such_package'"),
            ("1 / 0", Outcome.FAIL, "ZeroDivisionError: division by zero"),
        ):
            path = tmp_path / f"test_{outcome.lower()}.py"
            path.write_text(text)
            result = tasks.run("cpu", DeviceTest(str(path), variant="loading"))
            assert result.outcome is outcome
            assert said in (result.reason or result.failures[0].actual)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the planted file on the toy device."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "toy.toml").write_text(PROFILE)
    file = device_tests.write(folder)
    assert main(words(folder, f"{folder / 'toy.toml'}", file, "--limit", f"{stretched(5):g}", "-n", "2")) == 1
    return folder


class TestCommand:
    def test_each_planted_fault_is_caught(self, planted: Path) -> None:
        """A crash, an exit with code 0 and a hang cost one test each; what the profile declares is not a finding, and
        nothing is lost."""
        found = results(planted)
        assert {name.removeprefix("test_"): str(result.outcome) for name, result in found.items()} == {
            "add::float32": "PASS",
            "add::int64": "PASS",
            "number_number_1::": "PASS",
            "number_number_2::": "PASS",
            "relu::": "FAIL",
            "sub::": "FAIL",
            "op_neg::float32": "PASS",
            "op_sort::float32": "SKIP",
            "crash::": "CRASH",
            "exit::": "CRASH",
            "system_exit::": "FAIL",
            "hang::": "TIMEOUT",
            "wrong_everywhere::": "XFAIL",
            "lacking::": "XFAIL",
            "native::": "PASS",  # it skips a device that was renamed after PyTorch's tests had been imported
            "cuda::": "SKIP",
            "warning::": "PASS",  # formerly its own record of warnings was empty
            "expected::": "PASS",
            "unexpected::": "FAIL",
        }
        assert found["test_wrong_everywhere::"].layer == "cpu"
        assert found["test_lacking::"].declared.endswith("toy.toml, line 25") and not found["test_lacking::"].layer
        assert found["test_op_sort::float32"].reason.startswith("declared lacking: ")
        assert found["test_exit::"].failures[0].actual == "ended its process with exit code 0"
        assert "assertEqual(torch.relu" in found["test_relu::"].failures[0].detail

    def test_the_reports(self, planted: Path) -> None:
        """The result is of the schema, and the page and JUnit name the tests."""
        text = (planted / "upstream.json").read_text()
        jsonschema.validate(json.loads(text), json.loads(SCHEMA.read_text()))
        titles = {cause.title for cause in causes_of(results(planted).values())}
        assert {"crash in test_exit", "timeout in test_hang"} <= titles
        page = (planted / "upstream.html").read_text()
        assert "of the 17 tests that ran fail" in page and "tests that skip themselves on this device" in page
        assert "test_relu" in (planted / "upstream.xml").read_text()

    @pytest.mark.slow
    def test_a_stopped_run_goes_on(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The tests of the journal do not run again, and the scripts of failures show them."""
        file = device_tests.write(tmp_path)
        base = [
            word
            for word in words(tmp_path, "device:toy,import=tests.planted.toy_device", file)
            if word not in ("--check-scripts", "0")
        ]
        base += ["--op", "*test_sub", "--op", "*test_relu", "--op", "*test_add"]
        assert main([*base, "--stop-at-first-failure", "--check-scripts", "0"]) == 1
        done = len(results(tmp_path))
        assert 0 < done < 4
        out = capsys.readouterr().out
        assert out.startswith("4 tests of PyTorch: ") or "\n4 tests of PyTorch: " in out
        assert f"{4 - done} not run; {25 * done}.0 % judged" in out
        assert main([*base, "--resume"]) == 1
        found = results(tmp_path)
        assert len(found) == 4
        assert {name: result.alone for name, result in found.items() if result.alone} == {
            "test_relu::": SHOWS, "test_sub::": SHOWS,
        }  # fmt: skip
        out = capsys.readouterr().out
        assert "4 tests of PyTorch: 2 passed, 2 failed" in out and "0 not run; 100.0 % judged" in out

    def test_a_shard_is_a_part_of_the_tests(self, tmp_path: Path) -> None:
        """The second of two shards runs each second test, and `conformance report merge` misses the first one."""
        file = device_tests.write(tmp_path)
        assert main(words(tmp_path, "cpu", file, "--op", "*_number_*", "--op", "*_add", "--shard", "2/2")) == 0
        assert [*results(tmp_path)] == ["test_add::int64", "test_number_number_2::"]
        joined = merge([model.load(tmp_path / "upstream.json")])
        assert "Shard 1 of 2 is missing: its cases are not in this report." in joined.notes

    def test_files_without_tests_for_the_device(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """One sentence says which file makes no device-type tests, or that the files are for other devices."""
        plain, other = tmp_path / "notest.py", tmp_path / "test_other.py"
        plain.write_text("import unittest\nclass TestPlain(unittest.TestCase):\n    def test_one(self): pass\n")
        other.write_text(
            "from torch.testing._internal.common_device_type import instantiate_device_type_tests as make\n"
            "from torch.testing._internal.common_utils import TestCase\n"
            "class TestOther(TestCase):\n    def test_add(self, device): pass\n"
            "make(TestOther, globals(), only_for='cuda')\n"
        )
        assert main(words(tmp_path, "cpu", plain)) == 2
        said = capsys.readouterr().err
        assert "there are no device-type tests in notest.py (no instantiate_device_type_tests)" in said
        assert "other devices" not in said and said.count("\n") == 1
        for files, also in (([other], False), ([plain, other], True)):
            assert ("notest.py" in why_none(files_of(files))) is also
            assert "name other devices (`only_for`)" in why_none(files_of(files))

    def test_a_stopped_run_does_not_count_as_judged(self) -> None:
        """A signal and a failure that stop a run leave no shortfall; a stale entry of a profile is no test."""
        ran = [Result(f"test_x.{n}", "", TESTS, UPSTREAM, Outcome.PASS, samples=1) for n in range(2)]
        stale = Result("neg", "", DECLARED, UPSTREAM, Outcome.XPASS)
        for run in (Run("toy", results=ran, interrupted=2, complete=False), Run("toy", results=[*ran, stale])):
            assert judged(run, 8).endswith("0 ended or hung their process, 6 not run; 25.0 % judged")
            assert judged(run, 8).startswith("8 tests of PyTorch: 2 passed, 0 failed, ")
        assert judged(Run("toy", results=ran), 2).endswith("0 not run; 100.0 % judged")

    def test_a_file_that_cannot_be_loaded_is_not_judged(self) -> None:
        """Regression test: a file of PyTorch 2.6 that torch 2.13 cannot load was one test, of which 100 % was judged,
        since it cannot be loaded without the device either."""
        file = DeviceTest("test_torch.py", variant=LOADING).result(Outcome.XFAIL, reason="cpu")
        said = judged(Run("toy", results=[file]), 1)
        assert said.startswith("0 tests of PyTorch: 0 passed, 0 failed, 0 declared ")
        assert said.endswith("0.0 % judged; not counted, since they cannot be loaded: test_torch")

    def test_a_file_that_no_target_can_load_is_not_green(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Regression test: it failed on torch CPU, too, so the run of no test at all ended with exit code 0."""
        file = tmp_path / "test_older.py"
        file.write_text("from torch.testing._internal.common_cuda import a_name_of_an_older_torch\n")
        assert main(words(tmp_path, "passthrough", file)) == 2
        assert "0.0 % judged; not counted, since they cannot be loaded: test_older" in capsys.readouterr().out

    def test_unknown_test(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A misspelt name is one sentence with the nearest one."""
        file = tmp_path / "test_one.py"
        file.write_text(
            "from torch.testing._internal.common_device_type import instantiate_device_type_tests as make\n"
            "from torch.testing._internal.common_utils import TestCase\n"
            "class TestOne(TestCase):\n    def test_add(self, device): pass\n"
            "make(TestOne, globals())\n"
        )
        assert main(words(tmp_path, "cpu", file, "--op", "test_one.TestOne.test_ad")) == 2
        assert "did you mean test_one.TestOne.test_add" in capsys.readouterr().err
