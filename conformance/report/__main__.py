"""Reports from the command line: `python -m conformance.report diff A B`, `html FILE`, `merge FILE...`, `summary FILE`.

Reads what `conformance.opinfo_runner` wrote; runs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.report import compare, history, html, machine, model
from conformance.report.model import ReportError
from conformance.report.pipe import reader_gone

HISTORY = "history.sqlite"
BASELINES = Path("reports/baseline")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit code 1 when `diff` or `merge` finds a regression or a merged run failed, 2 on bad usage."""
    parser = argparse.ArgumentParser(prog="python -m conformance.report", description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    differ = commands.add_parser("diff", help="what changed from run A to run B")
    differ.add_argument("before", type=Path, metavar="A")
    differ.add_argument("after", type=Path, metavar="B")
    pager = commands.add_parser("html", help="the HTML page of a run")
    pager.add_argument("run", type=Path, metavar="FILE")
    merger = commands.add_parser("merge", help="join the shards of one run, and write all its forms")
    merger.add_argument("runs", type=Path, nargs="+", metavar="FILE")
    merger.add_argument("--reports", type=Path, default=Path("reports"), metavar="DIR", help="where to write")
    summarizer = commands.add_parser("summary", help="the GitHub job summary of a run, in Markdown")
    summarizer.add_argument("run", type=Path, metavar="FILE")
    for command in (pager, merger, summarizer):
        command.add_argument("--baseline", type=Path, metavar="FILE", help="a run to compare with")
    pager.add_argument("-o", "--output", type=Path, metavar="HTML", help="default: conformance.html beside FILE")
    pager.add_argument("--fuzz", type=Path, metavar="JSON", help="default: fuzz.json beside FILE, if there is one")
    options = parser.parse_args(arguments)
    try:
        code = _COMMANDS[options.command](options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return reader_gone()
    except ReportError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2


def baseline_for(target: str) -> Path:
    """Where a target's baseline is kept."""
    return BASELINES / f"{model.file_name(target)}.json.gz"


def _diff(options: argparse.Namespace) -> int:
    difference = compare.diff(model.load(options.before), model.load(options.after))
    print(compare.text(difference))
    return int(difference.regressions > 0)


def _html(options: argparse.Namespace) -> int:
    fuzz = html.load_fuzz(options.fuzz or options.run.parent / "fuzz.json")
    output = options.output or options.run.parent / "conformance.html"
    run = model.load(options.run)
    trends = history.trends(options.run.parent / HISTORY, run)
    model.write_atomic(output, html.render(run, _baseline(options), fuzz, trends))
    print(output)
    return 0


def _merge(options: argparse.Namespace) -> int:
    merged = model.merge([model.load(path) for path in options.runs])
    usual = baseline_for(merged.target)
    baseline = _baseline(options) or (model.load(usual) if usual.exists() else None)
    write(merged, options.reports, baseline)
    regressions = compare.diff(baseline, merged).regressions if baseline else 0
    print(options.reports / "conformance.html")
    for note in merged.notes:
        print(f"report: {note}", file=sys.stderr)
    print(model.summary_line(merged))
    return max(merged.exit_code(), int(not merged.complete), int(regressions > 0))


def _summary(options: argparse.Namespace) -> int:
    run, baseline = model.load(options.run), _baseline(options)
    print(machine.markdown(run, compare.diff(baseline, run) if baseline else None), end="")
    return 0


def _baseline(options: argparse.Namespace) -> model.Run | None:
    return model.load(options.baseline) if options.baseline else None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process writes its forms into the folder, so that all of them are of one run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ReportError(f"{folder} cannot be written ({error.strerror}); choose another --reports.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write(run: model.Run, folder: Path, baseline: model.Run | None) -> str:
    """Write all forms of a run into `folder`, add it to the history there, and return the job summary. Raises
    ReportError."""
    gc.freeze()  # the results are no garbage: nothing need look at them again and again while text is made of them
    try:
        with _alone(folder):
            return _write(run, folder, baseline)
    finally:
        gc.unfreeze()


def _write(run: model.Run, folder: Path, baseline: model.Run | None) -> str:
    run.results.sort(key=lambda result: result.id)
    model.save(run, folder / "opinfo.json")
    model.write_atomic(folder / "opinfo.xml", machine.junit(run))
    model.write_atomic(folder / "opinfo.ctrf.json", machine.ctrf(run))
    trends: list[history.Trend] = []
    try:
        # An interrupted run would draw a fall that is none.
        if run.complete and run.compared:
            history.append(folder / HISTORY, run)
        trends = history.trends(folder / HISTORY, run)
    except ReportError as error:
        run.notes.append(f"Without history: {error}")
    difference = compare.diff(baseline, run) if baseline else None
    summary = machine.markdown(run, difference)
    model.write_atomic(folder / "opinfo-summary.md", summary)
    try:
        fuzz = html.load_fuzz(folder / "fuzz.json")
    except ReportError as error:
        run.notes.append(f"Without the fuzzer's results: {error}")
        fuzz = None
    model.write_atomic(folder / "conformance.html", html.render(run, baseline, fuzz, trends, difference))
    return summary


_COMMANDS = {"diff": _diff, "html": _html, "merge": _merge, "summary": _summary}

if __name__ == "__main__":
    sys.exit(main())
