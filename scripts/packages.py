"""Operators of published packages: environments, check files, findings, and the tables of docs/findings.md.

    python -m scripts.packages              write docs/packages/packages.csv and findings.csv
    python -m scripts.packages --check      exit code 1 when one of them is stale
    python -m scripts.packages --run NAME   run the check file of a package, then the scripts of its findings

`requirements/packages.toml` lists the packages. `--run` installs one into a separate environment, `.nox/package-NAME/`.
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from scripts import findings
from scripts.findings import Finding, Script
from scripts.pages import ROOT, write

LIST, TABLES = Path("requirements/packages.toml"), Path("docs/packages")


@dataclass(frozen=True)
class Package:
    """A package: its name in findings, the requirements with and without their dependencies, the environment variables,
    and the file with its operators. `cuda` says that its wheel links libraries of CUDA. `page` is a page of docs/ whose
    transcripts need the package."""

    name: str
    layer: str
    checks: str
    packages: Sequence[str] = ()
    alone: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cuda: bool = False
    page: str = ""

    @property
    def version(self) -> str:
        """The version of the package itself."""
        return [*self.packages, *self.alone][0].partition("==")[2]

    def operators(self, root: Path = ROOT) -> int:
        """Return the number of tests in the check file, one for each operator."""
        nodes = ast.parse((root / self.checks).read_text(encoding="utf-8")).body
        return sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in nodes)


def read_all(root: Path = ROOT) -> dict[str, Package]:
    """Return the packages by name."""
    data = tomllib.loads((root / LIST).read_text(encoding="utf-8"))
    return {name: Package(name, **row) for name, row in data.items()}


def install(package: Package, root: Path = ROOT) -> tuple[Path, dict[str, str]]:
    """Return the Python of the package's environment, and the environment variables of its programs. The environment is
    made at the first call, and again if a requirement has changed. Raises CalledProcessError."""
    folder = (root / ".nox" / f"package-{package.name}").resolve()
    python, stamp, stand_ins = folder / "bin" / "python", folder / "installed", folder / "stand-ins"
    constraints = root / "requirements" / "constraints.txt"
    torch = next(line for line in constraints.read_text().splitlines() if line.startswith("torch=="))
    wanted = json.dumps([torch, *package.packages, *package.alone])
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not stamp.exists() or stamp.read_text() != wanted:
            _do(sys.executable, "-m", "virtualenv", "--quiet", "--clear", str(folder))
            pip = [str(python), "-m", "pip", "install", "--quiet"]
            _do(*pip, "--constraint", str(constraints), torch, "pytest", "--editable", str(root))
            if package.packages:
                _do(*pip, torch, *package.packages)
            if package.alone:
                _do(*pip, "--no-deps", *package.alone)
            if package.cuda:
                _do(sys.executable, str(root / "scripts" / "cuda_stand_ins.py"), str(python), str(stand_ins))
            stamp.write_text(wanted)
    paths = {"LD_LIBRARY_PATH": str(stand_ins)} if package.cuda else {}
    return python, {**os.environ, "OMP_NUM_THREADS": "1", **paths, **package.environment}


def _do(*command: str) -> None:
    subprocess.run(command, check=True)


def output(script: Script, package: Package, root: Path = ROOT) -> str:
    """Return the lines that a script of a finding prints in the package's environment. Raises CalledProcessError."""
    python, environment = install(package, root)
    command = [str(python), "-W", "ignore", "-"]
    ran = subprocess.run(command, input=script.code, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return ran.stdout


def run(package: Package, root: Path = ROOT) -> int:
    """Run the check file, the scripts and the transcripts. Return 1 if an operator has another difference, or if one of
    the others prints other lines."""
    python, environment = install(package, root)
    command = [str(python), "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "--tb=line", package.checks]
    code = subprocess.run(command, check=False, cwd=root, env=environment).returncode
    if package.page:
        command = [str(python), str(root / "scripts" / "transcripts.py"), str(root / package.page)]
        code = subprocess.run(command, check=False, cwd=root, env=environment).returncode or code
    for finding in of_package(package, root):
        for script in finding.scripts:
            said = output(script, package, root)
            if said.split() != script.prints.split():
                print(f"{finding.name} prints other lines:\n{said}", file=sys.stderr)
                code = code or 1
    return code


def of_package(package: Package, root: Path = ROOT) -> list[Finding]:
    """Return the findings of a package."""
    return [finding for finding in findings.read_all(root / findings.FOLDER) if finding.layer == package.layer]


def tables(root: Path = ROOT) -> dict[str, str]:
    """Return the text of each table by the name of its file."""
    counts: list[list[object]] = [["package", "version", "operators", "findings", "of these known upstream"]]
    rows: list[list[object]] = [["package", "operators", "finding", "expected", "got", "upstream"]]
    for package in read_all(root).values():
        own = of_package(package, root)
        known = sum(bool(finding.issues) for finding in own)
        counts.append([package.layer, package.version, package.operators(root), len(own), known])
        for finding in own:
            rows.append(
                [
                    package.layer,
                    ", ".join(finding.operators),
                    finding.title,
                    finding.expected,
                    finding.got,
                    findings.links(finding),
                ]
            )
    return {"packages.csv": _csv(counts), "findings.csv": _csv(rows)}


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write or check the tables, or run packages. Returns 1 for a stale table or a new difference."""
    known = read_all(root)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="report a stale table, and write nothing")
    parser.add_argument("--run", metavar="NAME", nargs="+", choices=sorted(known), help="one or more of %(choices)s")
    options = parser.parse_args(arguments)
    if options.run:
        return max([run(known[name], root) for name in options.run])
    stale = 0
    for name, text in tables(root).items():
        path = root / TABLES / name
        if options.check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            print(f"{TABLES / name} is stale; run python -m scripts.packages", file=sys.stderr)
            stale = 1
        elif not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, text)
    return stale


if __name__ == "__main__":
    sys.exit(main())
