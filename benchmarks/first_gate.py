"""From an empty folder to a job of CI that gates: the minutes, and the lines that a person types.

    python -m benchmarks.first_gate --torch-index file:///a/mirror

types the lines of docs/ci.md (`TYPED`) in a new folder, and runs the job of the template there as GitHub does
(`scripts/workflow.py`): a new virtual environment, the installation, the test. Then it commits nothing and runs the job
again, which compares with the first run, and once more with a fault in the backend, which must turn the job red. The
last printed line is a JSON object. With `--here` nothing is installed, and this environment runs the commands.

What it cannot measure is GitHub: waiting for a machine, the transfer of the repositories, and the line `git push`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from scripts.workflow import SHELL, Machine, defaults

ROOT = Path(__file__).resolve().parent.parent
TYPED = (
    "git clone --quiet --depth 1 {address} conformance",
    "cp -r conformance/docs/recipes/ci toy",
    "cd toy",
    "sed -i s,OWNER/NAME,me/conformance, .github/workflows/conformance.yml",
    "git init --quiet --initial-branch main",
    "git add --all",
    'git commit --quiet --message "A backend, tested by conformance"',
    "git push --quiet --set-upstream {own} main",
)
"""The lines, for the address of conformance and that of a new, empty repository."""

FAULT = (
    "        if node.target is torch.nn.functional.gelu",
    """\
        if node.target in (torch.abs, torch.Tensor.abs):
            node.target = torch.neg
        if node.target is torch.nn.functional.gelu""",
)
"""What the third run changes in the backend."""


def main() -> None:
    """Type, run the job three times, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="the empty folder (default: a temporary one)")
    parser.add_argument("--torch-index", help="in place of the action's default, a mirror for example")
    parser.add_argument("--here", action="store_true", help="install nothing; this environment runs the commands")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary) / "empty").resolve()
        folder.mkdir(parents=True)
        print(json.dumps(measure(folder, args.torch_index, args.here)))


def measure(folder: Path, index: str | None, here: bool) -> dict[str, Any]:
    """Return the figures: exit codes, minutes, typed lines, and whether the second run was compared with the first."""
    begin = time.monotonic()
    own = folder.with_name(f"{folder.name}-own.git")
    subprocess.run(["git", "init", "--quiet", "--bare", str(own)], check=True)
    names = {"address": f"file://{ROOT}", "own": str(own)}
    who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER")
           for key, value in (("NAME", "me"), ("EMAIL", "me@example.org"))}  # fmt: skip
    lines = "\n".join(line.format(**names) for line in TYPED)
    subprocess.run([*SHELL, lines], check=True, cwd=folder, env={**os.environ, **who})
    typed = time.monotonic()
    checkout, action = folder / "toy", yaml.safe_load((ROOT / "action.yml").read_text())
    runs = [_run_job(checkout, folder.with_name(f"{folder.name}-ci"), action, index, here, 1)]
    green = time.monotonic()
    runs.append(_run_job(checkout, folder.with_name(f"{folder.name}-ci"), action, index, here, 2))
    backend = checkout / "toy_backend.py"
    text = backend.read_text()
    if FAULT[0] not in text:
        raise SystemExit("the template's backend has changed, so the fault cannot be planted")
    backend.write_text(text.replace(*FAULT))
    runs.append(_run_job(checkout, folder.with_name(f"{folder.name}-ci"), action, index, here, 3))
    codes, said = [code for code, _ in runs], [said for _, said in runs]
    return {
        "typed lines": len(TYPED),
        "minutes to the first green job": round((green - begin) / 60, 1),
        "of it typing commands": round((typed - begin) / 60, 1),
        "first": codes[0],
        "again": codes[1],
        "with a fault": codes[2],
        "compared with the baseline": "since the baseline" in said[1],
        "annotations of the fault": said[2].count("::error"),
    }


def _run_job(
    checkout: Path, store: Path, action: dict[str, Any], index: str | None, here: bool, number: int
) -> tuple[int, str]:
    """Run the template's job, and return its exit code and what it printed."""
    [job] = yaml.safe_load((checkout / ".github/workflows/conformance.yml").read_text())["jobs"].values()
    place = store / f"machine-{number}"
    github = {"action_path": str(ROOT), "run_id": str(number), "run_attempt": "1", "ref_name": "main"}
    github["event.repository.default_branch"] = "main"
    inner = Machine(checkout, store, github)

    def set_up_python(arguments: dict[str, str]) -> dict[str, str]:
        if here:
            commands = _write_commands(place)
        else:
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
            commands = place / "bin"
        inner.environment = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
        return {}

    def test(arguments: dict[str, str]) -> dict[str, str]:
        given = {**arguments, **({"torch-index": index} if index else {})}
        code = inner.run_steps(action["runs"]["steps"], defaults(action, given), {})
        if code:
            raise subprocess.CalledProcessError(code, "the action")
        return inner.outputs(action)

    actions = {"actions/setup-python": set_up_python, "me/conformance": test}
    code = Machine(checkout, store, github, actions=actions).run_steps(job["steps"], {}, {})
    said = "".join(step.said for step in inner.runs)
    print(said, f"job {number}: exit code {code}", sep="\n", file=sys.stderr, flush=True)
    return code, said


def _write_commands(folder: Path) -> Path:
    """Write `python` and `conformance` that use this environment, and do not install."""
    folder.mkdir(parents=True)
    run = f"PYTHONPATH={ROOT} exec {sys.executable}"
    (folder / "python").write_text(f'#!/bin/sh\nif [ "$2" = pip ]; then exit 0; fi\n{run} "$@"\n')
    (folder / "conformance").write_text(f'#!/bin/sh\n{run} -m conformance "$@"\n')
    for name in ("python", "conformance"):
        (folder / name).chmod(0o755)
    return folder


if __name__ == "__main__":
    main()
