"""Pytest items of op_db: `pytest --pyargs conformance.sources.opinfo --target NAME -n auto`.

Defines the options, and the parameters of `test_op_db.test_op`. A case runs in a worker process of a pool, as in
`conformance.opinfo_runner`. A crash is therefore a failure of one item, and pytest, or an xdist worker, continues. This
process imports neither torch nor the target. As an entry point, every pytest in the environment loads this module, so
it does nothing unless the arguments name `conformance.sources.opinfo`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

POOL = pytest.StashKey[Any]()
EXPECTED = pytest.StashKey[Any]()
SUITE = "conformance.sources.opinfo"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Add the options here and not in `pytest_addoption`, since another suite may define its own `--target`."""
    if not any(word.replace("/", ".").startswith(SUITE) for word in args):
        return
    from conformance.run import options
    from conformance.sources.opinfo import plan

    group = parser.getgroup("conformance", "PyTorch's op_db against a target")
    group.addoption("--target", default="tiny", help="what is under test: tiny, cpu, device:NAME[,import=MODULE]")
    for name in plan.CASES:
        options.add_flag(group.addoption, name, plan.USUAL.get(name), plan.VALUES.get(name, ""))
    group.addoption("--case-timeout", type=float, default=120.0, metavar="S", help="seconds for one case")
    group.addoption("--case-memory", type=float, default=8.0, metavar="GIB", help="memory of a worker")
    group.addoption("--expectations", type=Path, metavar="FILE", help="default: reports/expectations/<target>.toml")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "case_timeout"):
        config.addinivalue_line("markers", "timeout: the pool limits the time of a case, not pytest-timeout")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "opinfo_case" not in metafunc.fixturenames:
        return
    from conformance.record.errors import UserError

    if not hasattr(metafunc.config.option, "case_timeout"):
        raise pytest.UsageError(f"op_db is run by its package: pytest --pyargs {SUITE} --target NAME")
    try:
        cases = _cases(metafunc.config)
    except UserError as error:
        raise pytest.UsageError(str(error)) from None
    metafunc.parametrize("opinfo_case", cases, ids=[case.id for case in cases])


def _cases(config: pytest.Config) -> list[Any]:
    from conformance.declare import expectations
    from conformance.declare import profile as profiles
    from conformance.run.messages import Limits
    from conformance.sources.opinfo import plan, pool

    args = config.option
    selections, shard = plan.selections_of(args), args.shard
    profile = profiles.of(args.target) or profiles.Profile()
    profile.activate()
    config.stash[EXPECTED] = expectations.expected(expectations.file_of(args, expectations.path_for(args.target)))
    config.stash[POOL] = pool.Cases(args.target, Limits(unit=args.case_timeout, memory=args.case_memory))
    catalog, _ = config.stash[POOL].catalog(beside=plan.asks_beside(selections))
    return plan.without(plan.select(catalog, selections, shard), profile.unsupported("op"))[0]


def pytest_report_teststatus(report: Any) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Report a failure that passed when it ran again as `flaky`; it fails the run."""
    if report.when == "call" and report.failed and ("outcome", "FLAKY") in report.user_properties:
        return "flaky", "K", ("FLAKY", {"yellow": True})
    return None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Exit with code 2 if nothing was compared, never with an empty pass. Under xdist only the controller has all
    reports.
    """
    if not hasattr(session.config.option, "case_timeout"):
        return
    from conformance.record.result import exit_code

    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput") or session.exitstatus != pytest.ExitCode.OK:
        return
    compared = ("passed", "failed", "xfailed", "flaky")
    if reporter.stats.get("skipped") and not any(reporter.stats.get(word) for word in compared):
        reporter.write_line("conformance: nothing was compared, so nothing passed.", red=True)
        session.exitstatus = exit_code(0, compared=0)


def pytest_unconfigure(config: pytest.Config) -> None:
    if POOL in config.stash:
        config.stash[POOL].close()
