"""The repository's workflows and the job that users paste are valid and consistent, and use only existing options."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
OURS = (WORKFLOWS / "conformance.yml").read_text()
NIGHTLY = (WORKFLOWS / "nightly.yml").read_text()
RECIPES = ROOT / "docs" / "recipes"
[PASTED] = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
BOTH = pytest.mark.parametrize("text", [OURS, NIGHTLY, PASTED], ids=["ours", "nightly", "pasted"])
OWN = pytest.mark.parametrize("text", [OURS, NIGHTLY], ids=["ours", "nightly"])


def jobs(text: str) -> dict:
    return yaml.safe_load(text)["jobs"]


def steps(text: str) -> list[dict]:
    return [step for job in jobs(text).values() for step in job["steps"]]


def check_schema(path: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


class TestSchema:
    @BOTH
    def test_is_what_github_takes(self, text, tmp_path):
        """The file conforms to the schema of GitHub workflows."""
        (tmp_path / "workflow.yml").write_text(text)
        checked = check_schema(tmp_path / "workflow.yml")
        assert checked.returncode == 0, checked.stdout

    def test_a_mistake_is_seen(self, tmp_path):
        """A misspelt key violates the schema."""
        (tmp_path / "workflow.yml").write_text(OURS.replace("runs-on", "run-on", 1))
        assert check_schema(tmp_path / "workflow.yml").returncode == 1


class TestJobs:
    def test_the_pasted_job_is_short(self):
        """A backend author pastes about fifteen lines below the two that name the workflow."""
        assert len(PASTED.partition("jobs:\n")[2].splitlines()) <= 15

    def test_what_the_pasted_job_needs(self):
        """The page names each repository variable that the job reads. The job takes torch's build for CPUs, and ends
        by itself. Regression test: it named no variable, downloaded CUDA, and a device that hung used up GitHub's six
        hours."""
        page = (ROOT / "docs" / "ci.md").read_text()
        variables = re.findall(r"\bvars\.(\w+)", PASTED)
        assert variables and all(f"repository variable `{name}`" in page for name in variables)
        assert yaml.safe_load(PASTED)["env"]["PIP_EXTRA_INDEX_URL"].endswith("/whl/cpu")
        assert all(job["timeout-minutes"] <= 120 for job in jobs(PASTED).values())

    def test_the_packages_of_the_pasted_job(self):
        """The page names exactly the packages that pip installs."""
        text = (ROOT / "docs" / "ci.md").read_text().partition("pip brings, with")[2].partition(";")[0]
        lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        names = [re.split("[<>=]", line)[0] for line in lines]
        assert re.findall("`([^`]*)`", text) == ["conformance", *names]

    @OWN
    def test_needs_name_jobs(self, text):
        """A job waits for jobs that exist."""
        assert {job["needs"] for job in jobs(text).values() if "needs" in job} <= set(jobs(text))

    @OWN
    def test_what_is_downloaded_was_uploaded(self, text):
        """The joining job's pattern matches the shards' artifact name."""
        names = [step["with"] for step in steps(text) if "artifact" in step.get("uses", "")]
        [pattern] = [each["pattern"] for each in names if "pattern" in each]
        assert any(each["name"].startswith(pattern.rstrip("*") + "$") for each in names if "name" in each)

    def test_one_workflow_runs_at_night(self):
        """Only the nightly workflow has a schedule. It replays the corpus of the package and the saved failures."""
        schedules = [path.name for path in WORKFLOWS.iterdir() if "\n  schedule:" in path.read_text()]
        assert schedules == ["nightly.yml"]
        replayed = [
            folder for step in steps(NIGHTLY) for folder in re.findall(r"--replay ([\w/]+)", step.get("run", ""))
        ]
        assert replayed == ["conformance/program/corpus", "corpus"]
        assert (ROOT / replayed[0]).is_dir()

    def test_the_whole_check_is_run(self):
        """The workflow runs `.ci/run`, which checks every change."""
        assert any(step.get("run") == ".ci/run" for step in steps(OURS))

    @BOTH
    def test_reports_are_kept_when_the_run_fails(self, text):
        """Reports are uploaded also when the run fails."""
        kept = [step for step in steps(text) if step.get("uses", "").startswith("actions/upload-artifact")]
        assert kept
        assert all(step.get("if") == "always()" for step in kept)


class TestCommands:
    @BOTH
    def test_every_option_exists(self, text):
        """Each `--option` in a step appears in the help of the step's command."""
        runs = [step["run"] for step in steps(text) if "run" in step]
        lines = [
            matched[0] for run in runs if (matched := re.search(r"(nox -s conformance|conformance [a-z]+ ).*", run))
        ]
        assert lines
        for line in lines:
            words = line.split(">>")[0].split()
            options = {word for word in words if re.fullmatch(r"--[a-z]+", word)}
            assert options <= set(re.findall(r"--[a-z]+", help_of(words))), line


def help_of(words: list[str]) -> str:
    """Return the help of `nox -s SESSION`, or of `conformance JOB` with its sub-command."""
    if words[0] == "nox":
        return printed(*words[:3], "--", "--help")
    return printed(*words[:2], *[word for word in words[2:3] if word.isalpha()], "--help")


@functools.cache
def printed(*line: str) -> str:
    return subprocess.run([sys.executable, "-m", *line], check=True, capture_output=True, text=True, cwd=ROOT).stdout


class TestRecipes:
    def test_slurm(self):
        """bash parses the script, and each option of its command exists."""
        script = RECIPES / "slurm.sh"
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
        self.check_options(script.read_text())

    def test_kuberay(self):
        """The file is a RayJob whose containers have an image and limits, and whose command has only existing
        options."""
        job = yaml.safe_load((RECIPES / "kuberay.yaml").read_text())
        assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
        cluster = job["spec"]["rayClusterSpec"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            [container] = group["template"]["spec"]["containers"]
            assert container["image"]
            assert set(container["resources"]["limits"]) == {"cpu", "memory"}
        self.check_options(job["spec"]["entrypoint"])

    def check_options(self, text):
        command = text.partition("conformance fuzz ")[2].partition("&")[0]
        options = set(re.findall(r"--[a-z][a-z-]*", command))
        assert {"--pool", "--reports"} <= options
        assert options <= set(re.findall(r"--[a-z][a-z-]*", help_of(["conformance", "fuzz"])))
