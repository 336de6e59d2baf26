"""Reports from the command line: `python -m conformance.report diff A B`, `html FILE`, `merge FILE...`, `summary FILE`.

Reads what `conformance.opinfo_runner` and `conformance.fuzz` wrote; runs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from conformance.core import result as model
from conformance.core.errors import ReportError
from conformance.report import campaign as fuzz
from conformance.report import compare, history, html, issue, machine
from conformance.report.campaign import Campaign
from conformance.report.escape import escape_control_characters
from conformance.report.pipe import reader_gone

HISTORY = "history.sqlite"
BASELINES = Path("reports/baseline")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit code 1 when `diff` or `merge` finds a regression, or a merged run or campaign failed, 2 on bad
    usage."""
    parser = argparse.ArgumentParser(prog="python -m conformance.report", description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    differ = commands.add_parser("diff", help="what changed from run A to run B")
    differ.add_argument("before", type=Path, metavar="A")
    differ.add_argument("after", type=Path, metavar="B")
    pager = commands.add_parser("html", help="the HTML page of a run, or of a fuzz campaign alone")
    pager.add_argument("run", type=Path, metavar="FILE")
    merger = commands.add_parser("merge", help="join the shards of one run, and write all its forms")
    merger.add_argument("runs", type=Path, nargs="+", metavar="FILE")
    merger.add_argument("--reports", type=Path, default=Path("reports"), metavar="DIR", help="where to write")
    summarizer = commands.add_parser("summary", help="the GitHub job summary of either, in Markdown")
    summarizer.add_argument("run", type=Path, metavar="FILE")
    issue.add_command(commands)
    for command in (pager, merger, summarizer):
        command.add_argument("--baseline", type=Path, metavar="FILE", help="a run to compare with")
    for command in (pager, summarizer):
        command.add_argument("--fuzz", type=Path, nargs="+", metavar="JSON", help="default: fuzz.json beside FILE, if "
                             "it is of the same target")  # fmt: skip
    pager.add_argument("-o", "--output", type=Path, metavar="HTML", help="default: conformance.html beside a run, "
                       "fuzz.html beside a campaign")  # fmt: skip
    options = parser.parse_args(issue.spelt_out(sys.argv[1:] if arguments is None else arguments))
    try:
        code = _COMMANDS[options.command](options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return reader_gone()
    except ReportError as error:
        print(f"report: {escape_control_characters(str(error))}", file=sys.stderr)
        return 2


def baseline_for(target: str) -> Path:
    """Where a target's baseline is kept."""
    return BASELINES / f"{model.file_name(target)}.json.gz"


def _diff(options: argparse.Namespace) -> int:
    difference = compare.diff(model.load(options.before), model.load(options.after))
    print(compare.text(difference))
    return int(difference.regressions > 0)


def _html(options: argparse.Namespace) -> int:
    folder, data = options.run.parent, model.read(options.run)
    if fuzz.is_campaign(data):
        output = options.output or folder / "fuzz.html"
        page = html.render_campaign(_only_campaign(data, options))
    else:
        output = options.output or folder / "conformance.html"
        run = model.run_from_json(data, str(options.run))
        trends = history.trends(folder / HISTORY, run)
        page = html.render(run, _baseline(options), _campaign(options, run), trends)
    model.write_atomic(output, page)
    print(output)
    return 0


def _merge(options: argparse.Namespace) -> int:
    merged = model.merge([model.load(path) for path in options.runs])
    usual = baseline_for(merged.target)
    baseline = _baseline(options) or (model.load(usual) if usual.exists() else None)
    campaign = _campaigns({options.reports, *(path.parent for path in options.runs)}, merged)
    _write(merged, options.reports, baseline, campaign)
    regressions = compare.diff(baseline, merged).regressions if baseline else 0
    print(options.reports / "conformance.html")
    for note in merged.notes:
        print(f"report: {escape_control_characters(note)}", file=sys.stderr)
    if campaign:
        print(campaign.verdict()[1])
    print(model.summary_line(merged))
    failed = merged.exit_code() or not merged.complete or regressions or (campaign and campaign.exit_code())
    return int(bool(failed))


def _summary(options: argparse.Namespace) -> int:
    data = model.read(options.run)
    if fuzz.is_campaign(data):
        print(machine.markdown_of_campaign(_only_campaign(data, options)), end="")
        return 0
    run, baseline = model.run_from_json(data, str(options.run)), _baseline(options)
    print(machine.markdown(run, compare.diff(baseline, run) if baseline else None, _campaign(options, run)), end="")
    return 0


def _only_campaign(data: object, options: argparse.Namespace) -> Campaign:
    """The campaign that FILE is. Raises ReportError when it is damaged, or is to be shown with what needs a run."""
    if options.baseline or options.fuzz:
        raise ReportError(f"{options.run} is a fuzz campaign; --baseline and --fuzz need a run as FILE.")
    return fuzz.from_json(data, str(options.run))


def _campaign(options: argparse.Namespace, run: model.Run) -> Campaign | None:
    """The campaign to show with a run: what --fuzz names, joined, or what lies beside it. Raises ReportError."""
    if not options.fuzz:
        return _beside(options.run.parent, run)
    campaign = fuzz.join(map(fuzz.load, options.fuzz))
    if campaign and campaign.target != run.target:
        raise ReportError(f"--fuzz is a campaign on {campaign.target!r} and the run of {run.target!r}; leave it out.")
    return campaign


def _beside(folder: Path, run: model.Run) -> Campaign | None:
    """The campaign in the folder of a run, when it is on the run's target; else a note in the run says that it is left
    out. Raises ReportError for a damaged file."""
    path = folder / fuzz.NAME
    campaign = fuzz.load(path) if path.exists() else None
    if campaign and campaign.target != run.target:
        run.notes.append(f"Without the campaign of {path}: it is on {campaign.target!r}, another target.")
        return None
    return campaign


def _campaigns(folders: Iterable[Path], run: model.Run) -> Campaign | None:
    """The campaigns in these folders, joined; what cannot be read is a note in the run, which is not lost for it."""
    found = []
    for folder in sorted({folder.resolve(): folder for folder in folders}.values()):
        try:
            found.append(_beside(folder, run))
        except ReportError as error:
            run.notes.append(f"Without the fuzzer's results: {error}")
    return fuzz.join(filter(None, found))


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
    """Write all forms of a run into `folder`, with the fuzz campaign that is there, add it to the history there, and
    return the job summary. Raises ReportError."""
    return _write(run, folder, baseline, _campaigns([folder], run))


def _write(run: model.Run, folder: Path, baseline: model.Run | None, campaign: Campaign | None) -> str:
    gc.freeze()  # the results are no garbage: nothing need look at them again and again while text is made of them
    try:
        with _alone(folder):
            return _write_forms(run, folder, baseline, campaign)
    finally:
        gc.unfreeze()


def _write_forms(run: model.Run, folder: Path, baseline: model.Run | None, campaign: Campaign | None) -> str:
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
    summary = machine.markdown(run, difference, campaign)
    model.write_atomic(folder / "opinfo-summary.md", summary)
    model.write_atomic(folder / "conformance.html", html.render(run, baseline, campaign, trends, difference))
    return summary


_COMMANDS = {"diff": _diff, "html": _html, "merge": _merge, "summary": _summary, "issue": issue.command}

if __name__ == "__main__":
    sys.exit(main())
