"""The nox sessions: each has one line in `nox -l`, and the main job's options reach the right commands."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.engine.loading import describe_target

nox = pytest.importorskip("nox", reason="nox runs the suite; without it there is no session to test")

ROOT = Path(__file__).parent.parent
SESSIONS = (
    "tests",
    "slow",
    "conformance",
    "arguments",
    "lint",
    "docs",
    "backends",
    "packages",
    "versions",
    "replaced",
    "bench",
    "mutants",
)


@pytest.fixture(scope="module")
def noxfile():
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Session(SimpleNamespace):
    """Recorder of the commands that a session would run. Commands that contain `failing` fail."""

    def __init__(self, *posargs: str, failing: str = "nothing", code: int = 1):
        super().__init__(posargs=list(posargs), ran=[], said=[], failing=failing, code=code, env={})

    def run(self, *command: str, **_: object) -> None:
        self.ran.append(list(command))

    def run_install(self, *command: str, **_: object) -> None:
        self.run(*command)

    def warn(self, message: str) -> None:
        self.said.append(message)

    def log(self, message: str) -> None:
        self.said.append(message)

    def error(self, message: str) -> None:
        raise RuntimeError(message)


@pytest.fixture
def record(noxfile, monkeypatch):
    """Replace the running of commands by recording them."""

    def python(session, *command):
        session.ran.append(list(command))
        if session.failing in command:
            raise noxfile.CommandFailed(return_code=session.code)

    monkeypatch.setattr(noxfile, "python", python)


class TestList:
    def test_every_session_has_one_line(self):
        """`nox -l` lists each session with one sentence."""
        command = [sys.executable, "-m", "nox", "-l"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        lines = {line.split()[1]: line for line in listed.stdout.splitlines() if line[:2] in ("* ", "- ")}
        assert set(lines) == set(SESSIONS)
        assert all(" -> " in line and line.endswith(".") for line in lines.values())

    def test_the_default_is_quick(self, noxfile):
        """A bare `nox` lints and runs the fast tests."""
        assert noxfile.nox.options.sessions == ["lint", "tests"]


class TestPinned:
    def test_torch_is_one_exact_version(self, noxfile):
        """The installer gets one exact version of torch, so that it never has to choose a build from a range."""
        assert noxfile.pinned("torch") == "torch==2.13.0"


class TestBrowser:
    """The session installs a browser, or reports that it cannot."""

    @pytest.mark.parametrize(("user", "tries_apt"), [(0, True), (1000, False)])
    def test_none_to_be_had(self, noxfile, monkeypatch, user, tries_apt):
        """As root the session tries apt-get. If there is still no browser, the session says so and continues."""
        monkeypatch.setattr(noxfile.shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
        monkeypatch.setattr(noxfile.os, "geteuid", lambda: user)
        noxfile.browser(session := Session())
        assert bool(session.ran) is tries_apt
        assert "No browser can be had" in session.said[-1]

    def test_one_is_there(self, noxfile, monkeypatch):
        """A Chrome on the PATH is enough."""
        monkeypatch.setattr(noxfile.shutil, "which", lambda name: "/bin/it" if name == "google-chrome" else None)
        noxfile.browser(session := Session())
        assert (session.ran, session.said) == ([], [])


@pytest.mark.usefixtures("record")
class TestConformance:
    def options(self, session: Session) -> dict[str, list[str]]:
        return {command[1]: command[2:] for command in session.ran if "tiny:REPLAYED" not in command}

    def test_runs_both_halves_and_says_where_the_report_is(self, noxfile):
        """Without options the session runs the workloads' kernels, the fuzzer with seed 0 and op_db, all on tiny."""
        noxfile.conformance(session := Session())
        assert session.ran[0] == ["benchmarks/kernel_counts.py", "--json", "reports/kernels.json"]
        ran = self.options(session)
        assert list(ran)[1:] == ["conformance.fuzz", "conformance.opinfo_runner"]
        assert ran["conformance.fuzz"][:4] == ["--target", "tiny", "-n", "2"]
        assert value(ran["conformance.opinfo_runner"], "--suite") == "main"
        assert value(ran["conformance.opinfo_runner"], "--workloads") == "reports/kernels.json"
        assert str(noxfile.ROOT / "reports" / "conformance.html") in session.said[-1]

    def test_the_programs_run_again_replayed(self, noxfile):
        """The fuzzer's programs and two samples of each case run again on tiny:REPLAYED, with a separate report."""
        noxfile.conformance(session := Session("--seed", "4", "--shard", "1/4"))
        fuzz, opinfo = [command for command in session.ran if "tiny:REPLAYED" in command]
        assert (value(fuzz, "--seed"), value(fuzz, "--programs")) == ("4", "300")
        assert (value(opinfo, "--suite"), value(opinfo, "--samples"), value(opinfo, "--shard")) == ("main", "2", "1/4")
        assert {value(command, "--reports") for command in (fuzz, opinfo)} == {"reports/replayed"}

    def test_another_target_has_no_workloads(self, noxfile):
        """Kernel budgets and replay run only for tiny."""
        noxfile.conformance(session := Session("--target", "cpu"))
        assert list(self.options(session)) == ["conformance.fuzz", "conformance.opinfo_runner"]
        assert not any("--workloads" in command or "tiny:REPLAYED" in command for command in session.ran)

    def test_quick_is_less_of_both(self, noxfile):
        """--quick draws fewer programs and runs a smaller suite."""
        noxfile.conformance(full := Session())
        noxfile.conformance(quick := Session("--quick"))
        programs = [int(value(self.options(session)["conformance.fuzz"], "--programs")) for session in (full, quick)]
        assert programs[0] > programs[1] > 0
        suites = [value(self.options(session)["conformance.opinfo_runner"], "--suite") for session in (full, quick)]
        assert suites == ["main", "quick"]

    def test_options_reach_the_command_that_has_them(self, noxfile):
        """--target goes to both commands, --programs to the fuzzer, --op and --dtype to op_db. Explicit options
        override --quick."""
        words = "--quick --target cpu --programs 7 --op add --op mul --dtype float64,bool --samples 3 --seed 5".split()
        noxfile.conformance(session := Session(*words))
        fuzz, opinfo = self.options(session).values()
        assert " ".join(fuzz) == "--target cpu -n 2 --seed 5 --programs 7 --corpus conformance/program/corpus"
        assert " ".join(opinfo) == "--target cpu -n 2 --dtype float64,bool --op add --op mul --samples 3"

    def test_the_baseline_is_updated_knowingly(self, noxfile):
        """Only --update-baseline accepts the findings of a run."""
        for words, expected in ((["--update-baseline"], True), ([], False)):
            noxfile.conformance(session := Session("--quick", *words))
            assert ("--update-baseline" in session.ran[-1]) is expected
            assert ("--record-kernels" in self.options(session)["conformance.fuzz"]) is expected

    def test_a_failing_half_does_not_stop_the_other(self, noxfile):
        """When the fuzzer finds something, op_db still runs. The session then fails and names the failed half."""
        session = Session(failing="conformance.fuzz")
        with pytest.raises(RuntimeError, match=r"failed: conformance\.fuzz$"):
            noxfile.conformance(session)
        assert list(self.options(session))[1:] == ["conformance.fuzz", "conformance.opinfo_runner"]

    @pytest.mark.parametrize("code", [2, 130, 143])
    def test_the_exit_code_is_the_halves(self, noxfile, code):
        """The session exits with the half's own code if nothing was compared or after Ctrl-C. nox itself would exit
        with 1."""
        session = Session("--target", "cpu", failing="conformance.fuzz", code=code)
        with pytest.raises(SystemExit) as ended:
            noxfile.conformance(session)
        assert (ended.value.code, len(session.ran)) == (code, 2)
        assert session.said[-1] == "failed: conformance.fuzz"

    def test_an_unknown_option_is_bad_usage(self, noxfile, capsys):
        """A misspelt option starts nothing and exits with 2."""
        session = Session("--program", "7", "--sedd", "1")
        with pytest.raises(SystemExit, match="2"):
            noxfile.conformance(session)
        assert session.ran == []
        assert "--sedd" in capsys.readouterr().err


def value(options: list[str], name: str) -> str:
    return options[options.index(name) + 1]


class TestBackends:
    """Each backend of the table runs in a separate environment."""

    @pytest.fixture
    def known(self, noxfile):
        return noxfile.nox.project.load_toml(ROOT / "requirements" / "backends.toml")

    def test_the_table(self, known):
        """Every target is valid, every torch is one exact version, and each backend has results and a file of bugs."""
        page = (ROOT / "docs" / "backends.md").read_text()
        for name, backend in known.items():
            assert ("profile" in backend) != ("target" in backend), name
            target = ROOT / backend["profile"] if "profile" in backend else backend["target"]
            assert describe_target(str(target).format(checkout="/nowhere")), name
            assert sum(package.startswith("torch==") for package in backend["packages"]) == 1, name
            assert {*backend} <= {"packages", "debian", "environment", "checkout", "target", "profile", "options"}
            assert f"| {name} |" in page, name
            bugs = tomllib.loads((ROOT / "docs" / "backends" / f"{name}.toml").read_text())
            assert {"versions", "setup", "code"} <= {*bugs} and compile(bugs["code"], name, "exec"), name

    def test_commands(self, noxfile, tmp_path, monkeypatch):
        """The session builds the environment and runs the three commands with the backend's target, variables and
        options."""
        monkeypatch.setattr(noxfile, "missing_from_debian", lambda packages: ["pocl-opencl-icd"] if packages else [])
        session = Session("iree", "opencl", "--minutes", "2")
        session.cache_dir = tmp_path / ".nox" / ".cache"
        (tmp_path / ".nox" / "backend-iree").mkdir(parents=True)
        (tmp_path / ".nox" / "backend-opencl").mkdir()
        noxfile.backends(session)
        runs = [command for command in session.ran if "--target" in command]
        assert [(command[2], "--dtype" in command) for command in runs] == [
            ("conformance.fuzz", True),
            ("conformance.opinfo_runner", True),
            ("conformance.sources.models", False),
            ("conformance.fuzz", False),
            ("conformance.opinfo_runner", True),
            ("conformance.sources.models", False),
        ]
        assert all(str(ROOT / "profiles" / "iree.toml") in command for command in runs[:3])
        installed = next(command for command in session.ran if "torch-opencl==0.1.0.dev23" in command)
        assert installed[-4:] == ["torch==2.12.1", "torch-opencl==0.1.0.dev23", "--editable", "."]
        assert "opencl needs what is not installed here: apt-get install pocl-opencl-icd" in session.said


class TestVersions:
    """Environments for other releases of torch."""

    def install_commands(self, noxfile, monkeypatch, tmp_path, version: str) -> list[list[str]]:
        monkeypatch.setattr(noxfile.nox.project, "load_toml", lambda _: PROJECT)
        session = Session(version)
        monkeypatch.setattr(session, "run", lambda *command, **_: session.ran.append(list(command)))
        python = noxfile.other_environment(session, version, tmp_path)
        assert python == str(tmp_path / "bin" / "python")
        return [command for command in session.ran if "install" in command]

    @pytest.mark.parametrize(
        ("version", "extras"), [("2.9.1", "test"), ("2.13.0", "tiny,test"), ("2.15.0", "tiny,test")]
    )
    def test_a_release_of_torch(self, noxfile, monkeypatch, tmp_path, version, extras):
        """The requested torch is installed with all other constraints, and with tinygrad where the device runs."""
        (install,) = self.install_commands(noxfile, monkeypatch, tmp_path, version)
        assert install[-3:] == [f"torch=={version}", "--editable", f".[{extras}]"]
        constraints = Path(value(install, "--constraint")).read_text()
        assert "numpy==" in constraints
        assert "torch==" not in constraints

    def test_the_newest_tinygrad(self, noxfile, monkeypatch, tmp_path):
        """The pinned torch is installed with the newest tinygrad, even beyond the package's own range."""
        first, second = self.install_commands(noxfile, monkeypatch, tmp_path, "tinygrad")
        assert first[-3:] == [noxfile.pinned("torch"), "--editable", ".[tiny,test]"]
        assert second[-2:] == ["--upgrade", "tinygrad"]

    def test_is_made_once(self, noxfile, monkeypatch, tmp_path):
        """A second run installs nothing."""
        assert self.install_commands(noxfile, monkeypatch, tmp_path, "2.9.1")
        assert not self.install_commands(noxfile, monkeypatch, tmp_path, "2.9.1")

    def test_one_that_fails_does_not_stop_the_others(self, noxfile, monkeypatch, tmp_path):
        """Each version has a result, and the session names those versions which failed."""
        session = Session("2.9.1", "2.15.0", failing="check")
        session.cache_dir = tmp_path / "cache"
        monkeypatch.setattr(noxfile, "other_environment", lambda session, version, folder: version)

        def run(*command, **_):
            session.ran.append(command[-1])
            if command[-1] == "2.9.1":
                raise noxfile.CommandFailed(return_code=1)

        monkeypatch.setattr(session, "run", run)
        with pytest.raises(RuntimeError, match=r"failed: 2\.9\.1$"):
            noxfile.versions(session)
        assert session.ran == ["2.9.1", "2.15.0"]

    def test_a_suite_on_a_version(self, noxfile, tmp_path, monkeypatch):
        """`--suite` reaches the check of each version."""
        session = Session("2.15.0", "--suite", "main")
        session.cache_dir = tmp_path / "cache"
        monkeypatch.setattr(noxfile, "other_environment", lambda session, version, folder: version)
        noxfile.versions(session)
        assert [command[-3:] for command in session.ran] == [["2.15.0", "--suite", "main"]]


PROJECT = {"project": {"dependencies": ["torch>=2.9"], "optional-dependencies": {"tiny": ["tinygrad"]}}}
