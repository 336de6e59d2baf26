"""Run a workflow or a composite action here, as GitHub does: its shell steps in bash, the usual actions as stand-ins.

Used by the tests of `action.yml` and by `benchmarks/first_gate.py`. For example, a step

    if: success() && inputs.cache == 'true'
    env: {TARGET: "${{ inputs.target }}"}
    run: conformance test --target "$TARGET"

runs with TARGET set, with GITHUB_OUTPUT and GITHUB_STEP_SUMMARY in files, and does not run after a step that failed.
Expressions are names of contexts, strings, `==`, `!=`, `&&`, `always()` and `success()`. Any other is refused.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKEN = re.compile(r"\s*(?:(always\(\)|success\(\))|'([^']*)'|([A-Za-z_][\w.-]*)|(==|!=|&&))")
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
"""How GitHub runs a step whose shell is bash."""


@dataclass
class StepRun:
    """A step that ran: its name, its exit code, its output, and what it wrote to GITHUB_OUTPUT."""

    name: str
    code: int
    said: str = ""
    outputs: dict[str, str] = field(default_factory=dict)


@dataclass
class Machine:
    """What steps run on: the user's checkout, the folder of caches, the folder of artifacts, and the `github` context.

    `actions` are further actions by the part of `uses` before the `@`: each takes the step's inputs and returns its
    outputs. `summary` is the page of the job."""

    workspace: Path
    store: Path
    github: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    actions: Mapping[str, Callable[[dict[str, str]], dict[str, str]]] = field(default_factory=dict)
    runs: list[StepRun] = field(default_factory=list)

    @property
    def summary(self) -> Path:
        """The file behind GITHUB_STEP_SUMMARY."""
        return self.store / "summary.md"

    def run_steps(self, steps: list[dict[str, Any]], inputs: Mapping[str, str], variables: Mapping[str, str]) -> int:
        """Run the steps of a job or of a composite action, and return 0 or the exit code of the first that failed.
        `variables` are the environment of the job."""
        self.store.mkdir(exist_ok=True, parents=True)
        names: dict[str, str] = {f"github.{key}": value for key, value in self.github.items()}
        names |= {f"inputs.{key}": value for key, value in inputs.items()} | {"runner.os": "Linux"}
        failed = 0
        for step in steps:
            name = str(step.get("name", step.get("uses", step.get("run", ""))))
            if not holds(step.get("if", "success()"), names, failed == 0):
                continue
            arguments = {key: fill(str(value), names) for key, value in step.get("with", {}).items()}
            if "uses" in step:
                done = self._use(name, str(step["uses"]).partition("@")[0], arguments)
            else:
                done = self._run(name, step, names, variables)
            self.runs.append(done)
            if step.get("id"):
                names |= {f"steps.{step['id']}.outputs.{key}": value for key, value in done.outputs.items()}
            failed = failed or done.code
        return failed

    def outputs(self, action: Mapping[str, Any]) -> dict[str, str]:
        """Return the outputs of a composite action whose steps ran last."""
        by_name = {step.name: step.outputs for step in self.runs}
        names = {
            f"steps.{step['id']}.outputs.{key}": value
            for step in action["runs"]["steps"]
            if step.get("id")
            for key, value in by_name.get(step["name"], {}).items()
        }
        return {key: fill(output["value"], names) for key, output in action.get("outputs", {}).items()}

    def _run(
        self, name: str, step: Mapping[str, Any], names: Mapping[str, str], variables: Mapping[str, str]
    ) -> StepRun:
        output = self.store / "output"
        output.write_text("")
        own = {key: fill(str(value), names) for key, value in step.get("env", {}).items()}
        files = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(self.summary), "GITHUB_ACTIONS": "true"}
        folder = self.workspace / fill(str(step.get("working-directory", ".")), names)
        done = subprocess.run(
            [*SHELL, fill(step["run"], names)],
            check=False,
            cwd=folder,
            env={**os.environ, **self.environment, **variables, **files, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = (line.partition("=") for line in output.read_text().splitlines())
        return StepRun(name, done.returncode, done.stdout, {key: value for key, _, value in lines})

    def _use(self, name: str, action: str, arguments: dict[str, str]) -> StepRun:
        known = {
            "actions/checkout": lambda arguments: {},
            "actions/cache/restore": self._restore,
            "actions/cache/save": self._save,
            "actions/upload-artifact": self._upload,
            **self.actions,
        }
        try:
            return StepRun(name, 0, outputs=known[action](arguments))
        except subprocess.CalledProcessError as error:
            return StepRun(name, error.returncode)

    def _restore(self, arguments: dict[str, str]) -> dict[str, str]:
        kept = self.store / "caches"
        newest = sorted(kept.glob(f"{arguments['restore-keys']}*"), key=lambda each: each.stat().st_mtime_ns)
        if newest:
            shutil.copytree(newest[-1], self.workspace / arguments["path"], dirs_exist_ok=True)
        return {"cache-matched-key": newest[-1].name if newest else ""}

    def _save(self, arguments: dict[str, str]) -> dict[str, str]:
        shutil.copytree(self.workspace / arguments["path"], self.store / "caches" / arguments["key"])
        return {}

    def _upload(self, arguments: dict[str, str]) -> dict[str, str]:
        source = self.workspace / arguments["path"]
        if not source.is_dir():
            return {}
        shutil.copytree(source, self.store / "artifacts" / arguments["name"], dirs_exist_ok=True)
        return {"artifact-url": f"https://example.org/artifacts/{arguments['name']}"}


def defaults(action: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """Return the inputs of an action, with its defaults. Raises KeyError for one that the action does not have, as
    GitHub warns of it and a misspelt input does nothing."""
    unknown = {*given} - {*action["inputs"]}
    if unknown:
        raise KeyError(f"the action has no input {', '.join(sorted(unknown))}")
    return {**{key: str(value.get("default", "")) for key, value in action["inputs"].items()}, **given}


def fill(text: str, names: Mapping[str, str]) -> str:
    """Return a text with each `${{ name }}` replaced. A name without a value is "", as on GitHub."""
    return re.sub(r"\$\{\{\s*([\w.-]+)\s*\}\}", lambda found: names.get(found[1], ""), text)


def holds(condition: str, names: Mapping[str, str], well: bool) -> bool:
    """Return whether the condition of a step holds. `well` says that no earlier step failed. As on GitHub, a condition
    without `always()` holds only then."""
    tokens, end = [], 0
    while end < len(condition.rstrip()):
        found = TOKEN.match(condition, end)
        if found is None:
            raise ValueError(f"not an expression that is understood here: {condition}")
        tokens.append(found)
        end = found.end()
    parts: list[list[re.Match[str]]] = [[]]
    for token in tokens:
        if token[4] == "&&":
            parts.append([])
        else:
            parts[-1].append(token)
    always = any(token[1] == "always()" for token in tokens)
    return (always or well) and all(_part_holds(part, names, condition) for part in parts)


def _part_holds(part: list[re.Match[str]], names: Mapping[str, str], condition: str) -> bool:
    value = lambda token: token[2] if token[2] is not None else names.get(token[3], "")  # noqa: E731
    if len(part) == 1 and part[0][1]:
        return True  # judged by the caller
    if len(part) == 3 and part[1][4] in ("==", "!=") and not (part[0][1] or part[2][1]):
        return (value(part[0]) == value(part[2])) is (part[1][4] == "==")
    raise ValueError(f"not an expression that is understood here: {condition}")
