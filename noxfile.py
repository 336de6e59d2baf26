"""Sessions of this repository; `nox -l` lists them.

Most sessions share one environment, because torch alone takes most of a gigabyte; `docs`, `backends`, `versions` and
`replaced` create their own. The shared one is created on first use under `.nox/` and updated when `pyproject.toml` or
the constraints change. Plain pip installs into it, whatever installer nox itself came with, since other installers may
resolve to another torch than the pinned one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nox
from filelock import FileLock
from nox.command import CommandFailed

nox.needs_version = ">=2025.5"
nox.options.sessions = ["lint", "tests"]
nox.options.reuse_venv = "yes"

ROOT = Path(__file__).parent
CONSTRAINTS = Path("requirements/constraints.txt")
EXTRAS = "tiny,test,lint"

# Versions that `nox -s versions` tests by default, and the first torch that `tiny` can be registered with.
VERSIONS = ("2.9.1", "2.12.1", "2.13.0", "2.14.1", "2.15.0", "tinygrad")
OLDEST_FOR_TINY = (2, 13)

# Presets of `nox -s conformance`; the suites of op_db cases are in conformance/sources/opinfo/plan.py.
FULL, QUICK = {"programs": "300", "suite": "main"}, {"programs": "30", "suite": "quick"}


def environment(session: nox.Session) -> str:
    """Return the Python of the shared environment, with this checkout and the pinned versions."""
    folder = session.cache_dir.resolve().parent / f"conformance-py{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    contents = b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", CONSTRAINTS))
    wanted, stamp = hashlib.sha256(contents).hexdigest(), folder / "installed"
    with FileLock(f"{folder}.lock"):  # sessions in two terminals create it once
        if not python.exists():
            # Not the standard library's venv, which Debian ships without pip; virtualenv comes with nox.
            session.run_install(sys.executable, "-m", "virtualenv", "--quiet", "--clear", str(folder), external=True)
        if not stamp.exists() or stamp.read_text() != wanted:
            install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS)]
            session.run_install(*install, pinned("torch"), "--editable", f".[{EXTRAS}]", external=True)
            stamp.write_text(wanted)
    session.env.update({"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"})  # the sessions' processes use all cores
    session.env["PYTHONDONTWRITEBYTECODE"] = ""  # hundreds of processes import the package; each would compile it
    return str(python)


def pinned(package: str) -> str:
    """Return the line of the constraints file for a package, like `torch==2.13.0`."""
    lines = (ROOT / CONSTRAINTS).read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


def python(session: nox.Session, *command: str) -> None:
    """Run the shared environment's Python."""
    session.run(environment(session), *command, external=True)


@nox.session(python=False)
def tests(session: nox.Session) -> None:
    """The fast tests, on three processes. Options go to pytest."""
    browser(session)
    # For two cores: a fifth of the time, a test waits for processes that it has started or for a time limit.
    python(session, "-m", "pytest", "-n", "3", *session.posargs)


def browser(session: nox.Session) -> None:
    """Provide a Chromium for the tests of the report's page: the one on the PATH, or Debian's if this process runs as
    root.
    """
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    if any(map(shutil.which, names)):
        return
    if shutil.which("apt-get") and os.geteuid() == 0:
        session.env["DEBIAN_FRONTEND"] = "noninteractive"
        for words in (["update", "-qq"], ["install", "-qq", "--yes", "--no-install-recommends", "chromium"]):
            # 100: apt's own code for an unavailable package; the warning below reports it.
            session.run("apt-get", *words, external=True, success_codes=[0, 100], silent=True)
    if not any(map(shutil.which, names)):
        session.warn("No browser can be had (`apt-get install chromium`): the tests of the report's page are skipped.")


@nox.session(python=False)
def slow(session: nox.Session) -> None:
    """The tests that take minutes, with the client packages that they train, and Ray. Options go to pytest."""
    install = ["-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS), pinned("torch")]
    python(session, *install, "--editable", f".[{EXTRAS},clients,ray]")
    python(session, "-m", "pytest", "-n", "2", "-m", "slow", *session.posargs)


@nox.session(python=False)
def conformance(session: nox.Session) -> None:
    """The main job: fuzz a target and run op_db on it. `-- --help` lists the options, `-- --quick` is for CI."""
    parser = argparse.ArgumentParser("nox -s conformance --", description=conformance.__doc__)
    parser.add_argument("--quick", action="store_true", help="few programs, few ops, two samples each")
    parser.add_argument("--target", default="tiny", help="what is under test (default: %(default)s)")
    parser.add_argument("--seed", default="0", help="the fuzzer's seed (default: %(default)s)")
    parser.add_argument("--programs", help="how many programs to draw")
    parser.add_argument("--minutes", help="stop drawing programs after so many minutes")
    parser.add_argument("--op", action="append", default=[], help="only this op or glob; may be repeated")
    parser.add_argument("--dtype", help="only these dtypes of the ops, joined by commas")
    parser.add_argument("--variant", help="only these variants of the ops, joined by commas")
    parser.add_argument("--samples", help="OpInfo samples for each op")
    parser.add_argument("--shard", help="only part i/n of the ops, for a matrix of machines")
    parser.add_argument("--update-baseline", action="store_true", help="accept what this run finds, knowingly")
    parser.add_argument("-n", "--jobs", default="2", help="processes (default: %(default)s)")
    args = parser.parse_args(session.posargs)
    preset = QUICK if args.quick else FULL

    both = ["--target", args.target, "-n", args.jobs]
    fuzz = ["--seed", args.seed, "--programs", args.programs or preset["programs"]]
    fuzz += ["--minutes", args.minutes] if args.minutes else []
    replayed = ["--target", "tiny:REPLAYED", "-n", args.jobs, "--reports", "reports/replayed"]
    again = [*replayed, *fuzz]
    fuzz += ["--corpus", "conformance/program/corpus"]
    fuzz += ["--record-kernels"] if args.update_baseline else []
    cases = [] if args.dtype or args.variant else ["--suite", preset["suite"]]
    for name in ("dtype", "variant", "shard"):
        cases += [f"--{name}", getattr(args, name)] if getattr(args, name) else []
    cases += [word for op in args.op for word in ("--op", op)]
    opinfo = [*cases, "--samples", args.samples] if args.samples else cases
    opinfo = [*opinfo, "--update-baseline"] if args.update_baseline else opinfo

    failed: dict[str, int] = {}
    if args.target == "tiny" and not args.quick:
        counts = "reports/kernels.json"
        failed |= attempt(session, "benchmarks/kernel_counts.py", "--json", counts)
        opinfo = opinfo if failed else [*opinfo, "--workloads", counts]
    failed |= attempt(session, "-m", "conformance.fuzz", *both, *fuzz)
    if args.target == "tiny":
        failed |= attempt(session, "-m", "conformance.fuzz", *again)
    failed |= attempt(session, "-m", "conformance.opinfo_runner", *both, *opinfo)
    if args.target == "tiny" and not args.quick:
        # `tiny` runs each sample as in a new process; here its calls wait in the queue, as in a user's loop.
        few = ["--samples", args.samples or "2"]
        failed |= attempt(session, "-m", "conformance.opinfo_runner", *replayed, *cases, *few)
    session.log(f"Report: {ROOT / 'reports' / 'conformance.html'}")
    finish(session, failed)


def attempt(session: nox.Session, *command: str) -> dict[str, int]:
    """Run the shared environment's Python. If it fails, return its name and exit code, so that the next command still
    runs.
    """
    try:
        python(session, *command)
    except CommandFailed as failure:
        return {next(word for word in command if word != "-m"): failure.return_code or 1}
    return {}


def finish(session: nox.Session, failed: dict[str, int]) -> None:
    """End the session by the exit rule; nox itself exits with 1 for any failed session."""
    if not failed:
        return
    sys.path.append(str(ROOT))
    from conformance.record.result import worst

    text = f"failed: {', '.join(failed)}"
    if worst(failed.values()) == 1:
        session.error(text)
    session.warn(text)
    sys.exit(worst(failed.values()))


@nox.session(python=False, default=False)
def arguments(session: nox.Session) -> None:
    """Change each argument of each op in turn, on one target. Options go to the command."""
    python(session, "-m", "conformance.opinfo_runner", "--suite", "arguments", "-n", "2", *session.posargs)


@nox.session(python=False)
def lint(session: nox.Session) -> None:
    """Format, style, types, import cycles, and the allowed imports between folders."""
    python(session, "-m", "ruff", "format", "--diff", ".")
    python(session, "-m", "ruff", "check", ".")
    python(session, "-m", "mypy")
    python(session, "scripts/check_imports.py")


@nox.session(venv_backend="virtualenv", default=False)
def docs(session: nox.Session) -> None:
    """The documentation as HTML, warnings as errors, into `site/`."""
    extras = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    session.install("--quiet", "--constraint", str(CONSTRAINTS), *extras["docs"])
    session.run("python", "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "docs", "site")
    session.log(f"Pages: {ROOT / 'site' / 'index.html'}")


@nox.session(python=False, default=False)
def backends(session: nox.Session) -> None:
    """Third-party devices and compilers, each in a separate environment: fuzzing, op_db, and recorded models."""
    known = nox.project.load_toml(ROOT / "requirements" / "backends.toml")
    parser = argparse.ArgumentParser("nox -s backends --", description=backends.__doc__)
    parser.add_argument("name", nargs="+", choices=sorted(known), help="one or more of %(choices)s")
    parser.add_argument("--minutes", default="20", help="of fuzzing and of models (default: %(default)s)")
    parser.add_argument("--seed", default="0", help="the fuzzer's seed (default: %(default)s)")
    parser.add_argument("-n", "--jobs", default="1", help="processes (default: %(default)s)")
    args = parser.parse_args(session.posargs)
    failed: dict[str, int] = {}
    for name in args.name:
        backend = known[name]
        missing = missing_from_debian(backend.get("debian", []))
        if missing:
            session.warn(f"{name} needs what is not installed here: apt-get install {' '.join(missing)}")
        folder = session.cache_dir.resolve().parent / f"backend-{name}"
        target = ROOT / backend["profile"] if "profile" in backend else backend["target"]
        both = ["--target", str(target).format(checkout=folder / "checkout"), "-n", args.jobs]
        both += ["--reports", str(ROOT / "reports" / "backends" / name)]
        own = backend.get("options", [])
        try:
            other = backend_environment(session, backend, folder)
        except CommandFailed as failure:
            failed[name] = failure.return_code or 1
            continue
        environment = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **backend.get("environment", {})}
        fuzz = ["conformance.fuzz", "--seed", args.seed, "--minutes", args.minutes, *own]
        models = ["conformance.sources.models", "--minutes", args.minutes]
        for command in (fuzz, ["conformance.opinfo_runner", "--dtype", "float32", "--samples", "3"], models):
            try:
                session.run(other, "-m", *command, *both, env=environment, external=True)
            except CommandFailed as failure:
                failed[f"{name}: {command[0]}"] = failure.return_code or 1
        session.log(f"Report: {ROOT / 'reports' / 'backends' / name}; the environment is {folder}")
    finish(session, failed)


def missing_from_debian(packages: Sequence[str]) -> list[str]:
    """Return the Debian packages that are not installed, or none if there is no dpkg."""
    if not shutil.which("dpkg-query"):
        return []
    command = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\\n", *packages]
    installed = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()
    return [name for name in packages if f"{name} installed" not in installed]


def backend_environment(session: nox.Session, backend: dict[str, Any], folder: Path) -> str:
    """Return the Python of an environment with a backend, the torch that it needs, and the harness without `tiny`."""
    python, stamp = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"), folder / "installed"
    ours = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["dependencies"]
    wanted = json.dumps([backend["packages"], backend.get("checkout"), ours])
    if not stamp.exists() or stamp.read_text() != wanted:
        if not python.exists():
            session.run_install(sys.executable, "-m", "virtualenv", "--quiet", str(folder), external=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        session.run(*install, *backend["packages"], "--editable", ".", external=True)
        if "checkout" in backend:
            source, place = backend["checkout"], folder / "checkout"
            if not place.exists():
                session.run("git", "clone", "--quiet", source["repository"], str(place), external=True)
            session.run("git", "-C", str(place), "checkout", "--quiet", source["commit"], external=True)
        stamp.write_text(wanted)
    return str(python)


@nox.session(python=False, default=False)
def packages(session: nox.Session) -> None:
    """Operators of published packages, each package in a separate environment. The names go to scripts.packages."""
    python(session, "-m", "scripts.packages", "--run", *session.posargs)


@nox.session(python=False, default=False)
def versions(session: nox.Session) -> None:
    """Tests that depend on the version, on other releases of torch, or of `tinygrad` with the pinned torch."""
    parser = argparse.ArgumentParser("nox -s versions --", description=versions.__doc__)
    parser.add_argument("version", nargs="*", default=VERSIONS, help="releases of torch, or `tinygrad`")
    parser.add_argument("--suite", help="only this suite of op_db, on tiny")
    args = parser.parse_args(session.posargs)
    suite = ["--suite", args.suite] if args.suite else []
    failed: dict[str, int] = {}
    for version in args.version:
        folder = session.cache_dir.resolve().parent / re.sub(r"[^\w.-]+", "-", f"versions-{version}")
        try:
            other = other_environment(session, version, folder)
            session.run(sys.executable, "-m", "scripts.torch_versions", "check", other, *suite, external=True)
        except CommandFailed as failure:
            failed[version] = failure.return_code or 1
    session.log(f"Results: {ROOT / 'docs' / 'contributing.md'}; the environments under .nox/ take 5 GB each")
    finish(session, failed)


def other_environment(session: nox.Session, version: str, folder: Path) -> str:
    """Return the Python of an environment with this checkout and the requested version: a release of torch, or a
    requirement of tinygrad with the pinned torch. It is updated when our own requirements have changed.
    """
    python, stamp = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"), folder / "installed"
    of_tinygrad = version.startswith("tinygrad")
    torch = pinned("torch") if of_tinygrad else f"torch=={version}"
    extras = "test" if not of_tinygrad and release(version) < OLDEST_FOR_TINY else "tiny,test"
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    wanted = f"{torch} {version} {extras} {project['dependencies']} {project['optional-dependencies']}"
    if not stamp.exists() or stamp.read_text() != wanted:
        if not python.exists():
            session.run_install(sys.executable, "-m", "virtualenv", "--quiet", str(folder), external=True)
        others = folder / "constraints.txt"
        lines = (ROOT / CONSTRAINTS).read_text().splitlines()
        others.write_text("\n".join(line for line in lines if not line.startswith("torch==")) + "\n")
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        session.run(*install, "--constraint", str(others), torch, "--editable", f".[{extras}]", external=True)
        if of_tinygrad:  # also beyond our own range; pip only warns
            session.run(*install, "--upgrade", version, external=True)
        stamp.write_text(wanted)
    return str(python)


@nox.session(python=False, default=False)
def replaced(session: nox.Session) -> None:
    """Another package replaces torch under an installed conformance: timm, or the packages that are named."""
    folder = session.cache_dir.resolve().parent / "replaced"
    session.run_install(sys.executable, "-m", "virtualenv", "--quiet", "--clear", str(folder), external=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    session.run(*install, "--constraint", str(ROOT / CONSTRAINTS), pinned("torch"), f"{ROOT}[tiny]", external=True)
    environment = {"OMP_NUM_THREADS": "1", "CACHEDB": str(folder / "kernels.db")}
    seen = []
    for packages in ([], session.posargs or ["timm"]):
        if packages:
            session.run(*install, *packages, external=True)
        printed = session.run(str(python), "-c", "import torch; print(torch.__version__)", silent=True, external=True)
        seen.append(str(printed).strip())
        session.log(f"torch {seen[-1]}")
        for name, line in (("fuzz", "fuzz --seed 0 --programs 60"), ("opinfo", "opinfo_runner --suite quick")):
            words = ["-m", *f"conformance.{line}".split(), "--reports", "reports"]
            with session.chdir(folder):
                session.run(str(python), *words, env=environment, external=True)
            used = json.loads((folder / "reports" / f"{name}.json").read_text())["environment"]["torch"]
            if used != seen[-1]:
                session.error(f"the result names torch {used}, not {seen[-1]}")
    if seen[0] == seen[1]:
        session.error(f"torch was not replaced: it is {seen[0]} still")


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, such as (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


@nox.session(python=False, default=False)
def bench(session: nox.Session) -> None:
    """The benchmarks, one after the other, each with its table. Name the ones that need clients or much time."""
    apart = {"published", "planted_backends", "hlb_cifar10"}
    names = session.posargs or sorted({path.stem for path in (ROOT / "benchmarks").glob("*.py")} - apart)
    for name in names:
        python(session, f"benchmarks/{name}.py")


@nox.session(python=False, default=False)
def mutants(session: nox.Session) -> None:
    """The fuzzer's power: the programs until it finds each planted fault. Options go to the command."""
    python(session, "-m", "conformance.selftest", *session.posargs)
