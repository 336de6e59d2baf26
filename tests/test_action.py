"""`action.yml` and the template of docs/recipes/ci/: valid, consistent, and their shell steps do what they say.

The steps run in bash as on GitHub (`scripts/workflow.py`), with stand-ins for `python` and `conformance` that note
their words. The whole way with the real commands is a slow test.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from conformance.declare import profile as profiles
from conformance.declare.declaration import CASES, FINDINGS, read
from scripts.workflow import Machine, defaults, fill, holds

ROOT = Path(__file__).parent.parent
FILE = ROOT / "action.yml"
ACTION = yaml.safe_load(FILE.read_text())
TEMPLATE = ROOT / "docs" / "recipes" / "ci"
WORKFLOW = TEMPLATE / ".github" / "workflows" / "conformance.yml"
[JOB] = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
[USE] = [step for step in JOB["steps"] if step.get("uses", "").startswith("OWNER/")]

PYTHON = """#!/bin/sh
printf '%s\\n' "python" "$@" >> "$WORDS"
case "$*" in *importlib*) echo 2.13;; esac
"""
COMMAND = """#!/bin/sh
printf '%s\\n' "conformance" "$@" >> "$WORDS"
if [ "$1" = test ]; then
  mkdir -p reports; echo "$CODE" > reports/opinfo.json; echo "a page" > reports/conformance.html
  [ -f reports/baseline/kept ] && echo compared >> "$WORDS"
  exit "$CODE"
fi
mkdir -p reports/baseline; echo kept > reports/baseline/kept
"""


def check_schema(kind: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "action.yml"
    path.write_text(text)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.github-{kind}", str(path)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


class TestSchema:
    @pytest.mark.parametrize(("kind", "file"), [("actions", FILE), ("workflows", WORKFLOW)], ids=["action", "template"])
    def test_is_what_github_takes(self, kind: str, file: Path, tmp_path: Path) -> None:
        """The files conform to the published schemas."""
        checked = check_schema(kind, file.read_text(), tmp_path)
        assert checked.returncode == 0, checked.stdout

    def test_a_mistake_is_seen(self, tmp_path: Path) -> None:
        """A shell step without its shell violates the schema of an action."""
        assert check_schema("actions", FILE.read_text().replace("shell: bash", "", 1), tmp_path).returncode == 1


class TestConsistency:
    def test_every_input_is_used_and_declared(self) -> None:
        used = {*re.findall(r"\binputs\.([\w-]+)", FILE.read_text())}
        assert used == {*ACTION["inputs"]}

    def test_every_reference_to_a_step_is_to_an_output(self) -> None:
        """A misspelt id or output would be an empty string on GitHub."""
        steps = {step["id"]: step for step in ACTION["runs"]["steps"] if "id" in step}
        references = re.findall(r"steps\.([\w-]+)\.outputs\.([\w-]+)", FILE.read_text())
        assert len(references) > 4
        for step, output in references:
            own = re.findall(r'echo "([\w-]+)=', steps[step].get("run", "")) or ["artifact-url"]
            assert output in own

    def test_no_input_is_pasted_into_a_shell(self) -> None:
        """Inputs reach the shell as variables, so that a target with a quote cannot run a command."""
        assert not any("${{" in step.get("run", "") for step in ACTION["runs"]["steps"])

    def test_every_option_exists(self) -> None:
        said = subprocess.run(
            [sys.executable, "-m", "conformance", "test", "--help"],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
        ).stdout
        words = [step.get("run", "") for step in ACTION["runs"]["steps"] if step.get("id") == "run"]
        options = {*re.findall(r"--[a-z][a-z-]*", " ".join(words))}
        assert {"--minutes", "--target"} <= options
        assert options <= {*re.findall(r"--[a-z][a-z-]*", said)}

    def test_the_page_has_every_input(self) -> None:
        """docs/ci.md describes each input and output."""
        page = (ROOT / "docs" / "ci.md").read_text()
        assert [name for name in (*ACTION["inputs"], *ACTION["outputs"]) if f"`{name}`" not in page] == []


class Job:
    """A workspace with stand-ins for the commands."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.words, stubs = folder, folder / "words", folder / "stubs"
        stubs.mkdir()
        for name, text in (("python", PYTHON), ("conformance", COMMAND)):
            (stubs / name).write_text(text)
            (stubs / name).chmod(0o755)
        self.path = f"{stubs}{os.pathsep}{os.environ['PATH']}"

    def run(self, code: int = 0, ref: str = "main", number: str = "1", **inputs: str) -> tuple[int, Machine]:
        """Run the action in a new checkout on a branch, where the command ends with this exit code."""
        workspace = self.folder / f"checkout-{number}"
        workspace.mkdir()
        self.words.write_text("")
        github = {"action_path": "/the action", "run_id": number, "run_attempt": "1", "ref_name": ref}
        machine = Machine(
            workspace,
            self.folder / "store",
            {**github, "event.repository.default_branch": "main"},
            {"PATH": self.path, "WORDS": str(self.words), "CODE": str(code)},
        )
        given = {key.replace("_", "-"): value for key, value in inputs.items()}
        return machine.run_steps(ACTION["runs"]["steps"], defaults(ACTION, given), {}), machine

    @property
    def said(self) -> list[str]:
        """The words of all commands."""
        return self.words.read_text().splitlines()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


class TestSteps:
    def test_a_green_run(self, job: Job) -> None:
        """The package of the action's own checkout is installed, the command runs, and its page is kept."""
        code, machine = job.run(target="device:x,import=y", install="-r needs.txt", arguments="--seed 3 --strict")
        assert code == 0
        assert job.said[:7] == ["python", "-m", "pip", "install", "/the action", "-r", "needs.txt"]
        words = job.said[job.said.index("conformance") :]
        assert words[:4] == ["conformance", "test", "--minutes", "10"]
        assert words[6:11] == ["--target", "device:x,import=y", "--seed", "3", "--strict"]
        outputs = machine.outputs(ACTION)
        assert outputs == {"exit-code": "0", "page": "https://example.org/artifacts/conformance"}
        assert (machine.store / "artifacts/conformance/conformance.html").exists()
        assert f"({outputs['page']})" in machine.summary.read_text()

    @pytest.mark.parametrize("wrong", [1, 2])
    def test_a_red_run(self, job: Job, wrong: int) -> None:
        """The job fails with the command's exit code. The page is kept, and the run is no baseline."""
        code, machine = job.run(wrong)
        assert code == wrong
        assert machine.outputs(ACTION)["exit-code"] == str(wrong)
        assert (machine.store / "artifacts/conformance/conformance.html").exists()
        assert machine.summary.read_text()
        assert not (machine.store / "caches").exists()

    def test_later_runs_are_compared_with_the_green_one(self, job: Job) -> None:
        """A pull request gets the baseline of the default branch, and does not replace it."""
        job.run()
        assert "compared" not in job.said
        _, machine = job.run(ref="7/merge", number="2")
        assert "compared" in job.said and "baseline" not in job.said
        assert [each.name for each in (machine.store / "caches").iterdir()] == ["conformance-Linux-torch-2.13-1-1"]

    def test_a_baseline_is_of_one_artifact_name(self, job: Job) -> None:
        """Jobs of a matrix do not take the baseline of another target."""
        job.run(artifact="one")
        job.run(number="2", artifact="two")
        assert "compared" not in job.said

    def test_without_the_cache(self, job: Job) -> None:
        _, machine = job.run(cache="false")
        assert not (machine.store / "caches").exists() and "baseline" not in job.said

    def test_an_installation_that_fails_ends_the_job(self, job: Job) -> None:
        """The command does not run, and no page is linked."""
        (job.folder / "stubs" / "python").write_text("#!/bin/sh\nexit 9\n")
        code, machine = job.run()
        assert code == 9
        assert "conformance" not in job.said and not machine.summary.exists()

    def test_a_target_is_one_word(self, job: Job) -> None:
        """Neither spaces nor quotes of an input are read by the shell."""
        hostile = """device:a b"; touch "$HOME"/pwned; '$(id)"""
        job.run(target=hostile)
        assert hostile in job.said

    def test_a_folder_of_a_larger_repository(self, job: Job) -> None:
        """The command runs in the working directory, and its reports there are kept."""
        (job.folder / "checkout-1" / "sub").mkdir(parents=True)
        job.folder = job.folder / "other"
        job.folder.mkdir()
        (job.folder / "checkout-1").mkdir()
        (job.folder / "checkout-1" / "sub").mkdir()
        workspace = job.folder / "checkout-1"
        machine = Machine(workspace, job.folder / "store", {}, {"PATH": job.path, "WORDS": str(job.words), "CODE": "0"})
        inputs = defaults(ACTION, {"working-directory": "sub"})
        assert machine.run_steps(ACTION["runs"]["steps"], inputs, {}) == 0
        assert (workspace / "sub/reports/conformance.html").exists()
        assert (machine.store / "artifacts/conformance/conformance.html").exists()


class TestStandIn:
    """The stand-in for GitHub refuses what it does not know."""

    def test_conditions(self) -> None:
        names = {"inputs.cache": "true", "a.b": "x"}
        assert holds("success() && inputs.cache == 'true'", names, True)
        assert not holds("success() && inputs.cache == 'true'", names, False)
        assert not holds("inputs.cache == 'true'", names, False)
        assert holds("always() && a.b != ''", names, False)
        assert not holds("always() && a.c != ''", names, True)

    @pytest.mark.parametrize("condition", ["failure()", "a.b || c.d", "!a.b", "a.b", "a == 'x' 'y'"])
    def test_another_condition_is_refused(self, condition: str) -> None:
        with pytest.raises(ValueError, match="not an expression"):
            holds(condition, {}, True)

    def test_names_without_a_value(self) -> None:
        assert fill("${{ a.b }}-${{ c }}", {"a.b": "x"}) == "x-"

    def test_an_unknown_input_is_refused(self) -> None:
        with pytest.raises(KeyError, match="no input tarjet"):
            defaults(ACTION, {"tarjet": "cpu"})

    def test_an_unknown_action_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(KeyError, match="someone/else"):
            Machine(tmp_path, tmp_path / "store").run_steps([{"uses": "someone/else@v1"}], {}, {})

    def test_the_shell_stops_at_the_first_failure(self, tmp_path: Path) -> None:
        """As on GitHub, and also inside of a pipe."""
        for text in ("false; true", "false | true"):
            assert Machine(tmp_path, tmp_path / "store").run_steps([{"run": text}], {}, {}) == 1


class TestTemplate:
    def test_its_inputs_exist(self) -> None:
        assert {*USE["with"]} <= {*ACTION["inputs"]}

    def test_its_job_ends(self) -> None:
        """The job's limit leaves the run its time, and some for the installation."""
        assert float(USE["with"]["minutes"]) + 10 <= JOB["timeout-minutes"] <= 60

    def test_its_versions_are_pinned(self) -> None:
        """torch is exact, the actions and the machine have a version, and the index has no CUDA."""
        lines = [line for line in (TEMPLATE / "requirements.txt").read_text().splitlines() if line[0] != "#"]
        constraints = (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
        assert lines and all("==" in line and line in constraints for line in lines)
        uses = [step["uses"] for step in [*JOB["steps"], *ACTION["runs"]["steps"]] if "uses" in step]
        assert all(re.search(r"@v\d", each) for each in uses)
        assert re.fullmatch(r"ubuntu-\d\d\.\d\d", JOB["runs-on"])
        assert ACTION["inputs"]["torch-index"]["default"].endswith("/whl/cpu")

    def test_its_profile_and_expectations_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The commands find the profile, and the declarations of its target, in the folder."""
        from conformance.declare.expectations import path_for

        monkeypatch.chdir(TEMPLATE)
        assert profiles.usual(None, None) == "conformance.toml"
        declared = read(path_for("conformance.toml"))
        assert {entry.subject for entry in declared} == {CASES, FINDINGS}
        assert "arguments" not in USE["with"]  # no seed was chosen for being green
        assert all("not yet explained" not in entry.reason for entry in declared)

    def test_git_takes_every_file(self) -> None:
        """No file of the template is ignored, here or in the user's repository."""
        files = [
            str(path.relative_to(ROOT)) for path in TEMPLATE.rglob("*") if path.is_file() and "pyc" not in path.name
        ]
        assert len(files) >= 6
        assert subprocess.run(["git", "check-ignore", *files], check=False, cwd=ROOT).returncode == 1

    @pytest.mark.slow
    def test_from_an_empty_folder_to_a_gate(self, tmp_path: Path) -> None:
        """The typed lines give a green job with the real commands, and a fault makes it red."""
        command = [sys.executable, "-m", "benchmarks.first_gate", "--folder", str(tmp_path / "empty"), "--here"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=1500)
        figures = json.loads(done.stdout.splitlines()[-1])
        assert (figures["first"], figures["again"], figures["with a fault"]) == (0, 0, 1)
        assert figures["typed lines"] <= 10
        assert figures["compared with the baseline"]
