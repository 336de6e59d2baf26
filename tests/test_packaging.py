"""The metadata of the package, the `conformance` command, the README and `.ci/run` agree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import conformance
from conformance.program.recorded import RECORDED
from conformance.record.usage import DATA
from conformance.sources.repros.table import FOLDERS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
CONSTRAINTS = (ROOT / "requirements" / "constraints.txt").read_text()


def run(*command: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, **options)


def requirements() -> list[str]:
    """Return every requirement of the package and its extras."""
    extras = PROJECT["project"]["optional-dependencies"].values()
    return [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]


class TestDistribution:
    """The distribution is torch-conformance, since PyPI's `conformance` is another project."""

    def test_its_name(self):
        assert PROJECT["project"]["name"] == "torch-conformance"

    def test_no_text_tells_to_install_the_other_project(self):
        """Neither a message nor a page names an extra of `conformance`, or installs it."""
        other = re.compile(r"(?<![\w-])conformance\[|pip install ['\"]?conformance(?![\w./-])|[\"']conformance @ ")
        tracked = run("git", "ls-files", "*.py", "*.md", "*.toml", "*.yml", "*.yaml", "*.sh").stdout.split()
        texts = {name: (ROOT / name).read_text() for name in tracked if name != "tests/test_packaging.py"}
        assert len(texts) > 300
        assert [name for name, text in texts.items() if other.search(text)] == []

    def test_another_package_in_front_is_told_in_one_sentence(self, tmp_path):
        """The command does not run a stranger's code."""
        (tmp_path / "conformance").mkdir()
        (tmp_path / "conformance" / "__init__.py").write_text("print('a stranger')")
        code = "import sys, torch_conformance; sys.exit(torch_conformance.main())"
        said = subprocess.run(
            [sys.executable, "-c", code],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        )
        assert (said.returncode, said.stdout) == (2, "")
        assert said.stderr.count("\n") == 1
        assert f"found before that of torch-conformance: {tmp_path / 'conformance' / '__init__.py'}" in said.stderr

    @pytest.mark.parametrize("file", [RECORDED, DATA])
    def test_data_files_are_in_the_wheel(self, file):
        """The wheel takes each file below `only-include` that git does not ignore, the findings, and excludes none."""
        wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
        path = file.relative_to(ROOT)
        assert {*wheel} == {"only-include", "force-include"}
        assert path.parts[0] in wheel["only-include"]
        assert run("git", "ls-files", str(path)).stdout.strip() == str(path)
        assert run("git", "check-ignore", "--no-index", str(path)).returncode == 1

    def test_the_findings_are_in_the_wheel(self):
        """`conformance repros` reads them from the folder to which the wheel copies them."""
        (places,) = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].items()
        assert [ROOT / place for place in places] == [*reversed(FOLDERS)]
        assert len([*FOLDERS[1].glob("*.toml")]) > 100

    def test_the_command_runs_where_there_is_none(self):
        code = "import sys, torch_conformance; sys.argv = ['conformance', '--help']; sys.exit(torch_conformance.main())"
        said = run(sys.executable, "-c", code)
        assert (said.returncode, said.stderr) == (0, "")
        assert "usage: conformance JOB" in said.stdout


class TestMetadata:
    def test_the_version_is_said_once(self):
        """pyproject.toml reads the version from the package, and the changelog's newest entry has the same version."""
        assert "version" in PROJECT["project"]["dynamic"]
        newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
        assert newest.group(1) == conformance.__version__

    @pytest.mark.parametrize("requirement", requirements())
    def test_every_requirement_is_pinned_within_its_range(self, requirement):
        """The constraints pin each direct dependency to one exact version within its range."""
        from packaging.requirements import Requirement

        wanted = Requirement(requirement)
        pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", CONSTRAINTS, re.MULTILINE))
        assert wanted.specifier.contains(pins[wanted.name])

    def test_torch_is_pinned_without_a_local_version(self):
        """`torch==2.13.0` also accepts a local CPU build of that release; `==2.13.0+cpu` would exist in one place
        only."""
        assert re.search(r"^torch==\d+\.\d+\.\d+$", CONSTRAINTS, re.MULTILINE)

    def test_importing_the_package_imports_no_torch(self):
        """The package imports no torch, because a target must register its device before torch's test machinery is
        imported."""
        code = "import sys, conformance, conformance.__main__; print('torch' in sys.modules, 'tinygrad' in sys.modules)"
        assert run(sys.executable, "-c", code).stdout.split() == ["False", "False"]

    def test_an_unknown_name_is_an_attribute_error(self):
        """A misspelt name raises AttributeError despite the lazy names."""
        with pytest.raises(AttributeError, match="no attribute 'programme'"):
            _ = conformance.programme


class TestCommand:
    def test_help_lists_the_jobs(self):
        """Without a job, the command lists the jobs."""
        said = run(sys.executable, "-m", "conformance")
        assert said.returncode == 0
        assert all(f"  {job}" in said.stdout for job in ("fuzz", "opinfo", "report", "expectations"))

    def test_an_unknown_job_is_one_sentence(self):
        """A misspelt job names the valid ones on stderr, with exit code 2."""
        said = run(sys.executable, "-m", "conformance", "fuz")
        assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)
        assert "'fuz'" in said.stderr
        assert "fuzz" in said.stderr

    @pytest.mark.parametrize("job", ["fuzz", "opinfo", "report", "expectations"])
    def test_a_job_gets_its_options(self, job):
        """`conformance JOB --help` prints the job's own help."""
        said = run(sys.executable, "-m", "conformance", job, "--help")
        assert said.returncode == 0, said.stderr
        assert said.stdout.startswith("usage: ")


class TestReadme:
    def commands(self) -> list[str]:
        return re.findall(r"^.*&& \.venv/bin/nox -s .*$", README, re.MULTILINE)

    def test_the_commands_come_in_order(self):
        """The commands are: install and test a device; then the main job and the tests, each of which installs nox."""
        first, nox = (block.splitlines() for block in re.findall(r"```sh\n(.*?)\n```", README, re.DOTALL))
        assert [line.split(" --")[0] for line in first] == ["pip install .", "conformance test"]
        assert nox == self.commands()
        assert [command.split()[-1] for command in nox] == ["conformance", "tests"]
        assert all("pip install nox &&" in command for command in nox)

    def test_ci_runs_the_same_commands(self, tmp_path):
        """`.ci/run` takes its commands from the README and adds nothing to them. Regression test: it ran the main job
        with --quick, so a kernel count of the whole job failed for every new user, and in no check."""
        called = ci_run(tmp_path, README)
        assert [line for line in called if line.startswith("+")] == [f"+ {command}" for command in self.commands()]

    def test_ci_gives_each_command_empty_caches(self, tmp_path):
        """Each command gets a cache folder and a temporary folder of its own, which are removed afterwards."""
        called = [line.split() for line in ci_run(tmp_path, README) if line.startswith("nox in")]
        assert [line[-1] for line in called] == ["conformance", "tests"]
        folders = [Path(folder) for line in called for folder in line[2:4]]
        assert len({*folders}) == 4
        assert not any(folder.exists() for folder in folders)

    def test_ci_fails_without_a_command_in_the_readme(self, tmp_path):
        """A README without the test command fails the check instead of passing without tests."""
        with pytest.raises(subprocess.CalledProcessError):
            ci_run(tmp_path, README.replace("nox -s tests", "tox"))

    def test_ci_runs_the_tests_after_a_failure(self, tmp_path):
        """If the main job fails, the tests still run, so that one run shows every failure."""
        with pytest.raises(subprocess.CalledProcessError) as failure:
            ci_run(tmp_path, README, "conformance")
        assert failure.value.stdout.count("nox in") == 2
        assert "failed: conformance" in failure.value.stderr

    @pytest.mark.parametrize("failing", ["tests", "conformance"])
    def test_ci_fails_when_either_fails(self, tmp_path, failing):
        """The check fails if either command fails."""
        with pytest.raises(subprocess.CalledProcessError):
            ci_run(tmp_path, README, failing)

    def test_links_lead_somewhere(self):
        """Every relative link in the README and the docs, except in code, names a file of this repository."""
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests" / "README.md"]:
            prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
            for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", prose):
                assert (page.parent / target).exists(), f"{page.name}: {target}"

    def test_the_examples_for_contributors_exist(self):
        """Every file or folder that CONTRIBUTING.md names as an example is there."""
        text = (ROOT / "CONTRIBUTING.md").read_text()
        paths = re.findall(r"`((?:conformance|tests|docs|reports)/[^`]*)`", text)
        assert len(paths) > 5
        assert [path for path in paths if not (ROOT / path).exists()] == []


def ci_run(folder: Path, readme: str, failing: str = "") -> list[str]:
    """Return the lines that `.ci/run` prints in a copy with stub commands, where nox fails for one session."""
    (folder / ".ci").mkdir()
    (folder / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    (folder / "README.md").write_text(readme)
    (folder / ".venv" / "bin").mkdir(parents=True)
    for stub in (folder / "python3", folder / ".venv" / "bin" / "pip", folder / ".venv" / "bin" / "nox"):
        said = f'[ "{stub.name}" != nox ] || echo nox in "$XDG_CACHE_HOME" "$TMPDIR" "$@"'
        stub.write_text(f'#!/bin/sh\n{said}\ncase "$*" in "-s {failing or "none"}"*) exit 1;; esac\n')
        stub.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "CI": "true", "HOME": str(folder)}
    said = run("bash", str(folder / ".ci" / "run"), env=environment, stdin=subprocess.DEVNULL)
    said.check_returncode()
    return said.stdout.splitlines()
