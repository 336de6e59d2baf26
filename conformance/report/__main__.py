"""Reports from the command line: `conformance report diff A B`, `html FILE`, `merge FILE...`, `baseline FILE`.

Reads files that `conformance.opinfo_runner`, `conformance.fuzz`, `conformance accuracy` and `conformance sizes` wrote.
Runs no op.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from conformance.declare import profile as profiles
from conformance.record import result as model
from conformance.record import versions
from conformance.record.command_line import Parser
from conformance.record.errors import ReportError
from conformance.record.files import write_atomic
from conformance.record.merge import merge
from conformance.record.models import MODELS
from conformance.record.result import TABLES, Result, Run
from conformance.record.shortfall import add_up
from conformance.report import compare, history, html, issue, machine, pytorch_issue, services, summary
from conformance.report.escape import escape_control_characters, exit_code_of

HISTORY = "history.sqlite"
FUZZ = "fuzz.json"
ACCURACY = "accuracy.json"
FORMS = (pytorch_issue.FORM, services.RELAY, services.ALLURE)
PAGES = {"opinfo": "conformance.html"} | {stem: f"{stem}.html" for stem in ("fuzz", MODELS, *TABLES)}
"""The page of each kind of run, by the stem of the run's other files."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. The exit code of `diff` and `merge` follows the exit rule; 2 for bad usage."""
    parser = Parser("conformance report", description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    differ = commands.add_parser("diff", help="what changed from run A to run B")
    differ.add_argument("before", type=Path, metavar="A")
    differ.add_argument("after", type=Path, metavar="B")
    pager = commands.add_parser("html", help="the HTML page of a run, of op_db or of the fuzzer")
    pager.add_argument("run", type=Path, metavar="FILE")
    merger = commands.add_parser("merge", help="join the shards of a run, or campaigns, and write all forms")
    merger.add_argument("runs", type=Path, nargs="+", metavar="FILE")
    merger.add_argument("--reports", type=Path, default=Path("reports"), metavar="DIR", help="where to write")
    summarizer = commands.add_parser("summary", help="the GitHub job summary of a run, in Markdown")
    summarizer.add_argument("run", type=Path, metavar="FILE")
    issuer = commands.add_parser("issue", help="a finding as an issue that is ready to be filed, in Markdown")
    issuer.add_argument("finding", metavar="FINDING", help="a finding's JSON under reports/failures/, or a case's id")
    issuer.add_argument("--run", type=Path, default=issue.RUN, metavar="FILE", help=f"where the case failed (default: "
                        f"{issue.RUN})")  # fmt: skip
    former = commands.add_parser("form", help="a run or a finding in the form of another project; also --form NAME")
    former.add_argument("name", choices=FORMS, metavar="NAME", help=f"one of {', '.join(FORMS)}")
    former.add_argument("what", nargs="+", metavar="FINDING|FILE", help="for pytorch-issue a file of docs/findings/, "
                        "a finding's JSON under reports/failures/, or a case's id; for the others result "
                        "files")  # fmt: skip
    former.add_argument("--artifact-url", default="", metavar="URL", help="relay: where the whole results are")
    former.add_argument("-o", "--output", type=Path, metavar="PATH", help="where to write: a folder for "
                        "allure (default: allure-results), and for the others a file (default: print)")  # fmt: skip
    former.add_argument("--run", type=Path, default=issue.RUN, metavar="FILE", help=f"where the case failed (default: "
                        f"{issue.RUN})")  # fmt: skip
    accepter = commands.add_parser(
        "baseline", help="accept a run of op_db as the baseline of its target, for later runs"
    )
    accepter.add_argument("run", type=Path, metavar="FILE")
    for command in (pager, merger, summarizer):
        command.add_argument("--baseline", type=Path, metavar="FILE", help="a run to compare with")
    for command in (pager, summarizer):
        command.add_argument("--fuzz", type=Path, nargs="+", metavar="JSON", help="default: fuzz.json beside FILE, if "
                             "it is of the same target")  # fmt: skip
    pager.add_argument("-o", "--output", type=Path, metavar="HTML", help="default: conformance.html beside a run, "
                         "fuzz.html beside a fuzz.json")  # fmt: skip
    words = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(
        [{"--issue": "issue", "--form": "form"}.get(word, word) for word in words[:1]] + [*words[1:]]
    )
    return exit_code_of(parser.prog, lambda: _COMMANDS[options.command](options))


def baseline_for(target: str, torch: str = "") -> Path:
    """The file of a target's baseline for this torch version; without one, for the installed version."""
    return versions.baselines(torch) / f"{profiles.file_name(target)}.json.gz"


def accept_run(run: Run, file: Path) -> None:
    """Write a run as the baseline `file`. Results that an earlier baseline has of further cases stay, since a run may
    be a shard, or have had too little time for them. Raises ReportError for a damaged file."""
    new = {result.id for result in run.results}
    earlier = load_of_kind(file, "opinfo") if file.exists() else None
    rest = [result for result in earlier.results if result.id not in new] if earlier else []
    model.save(model.slim(replace(run, results=[*run.results, *rest])), file)


def _accept(options: argparse.Namespace) -> int:
    run = load_of_kind(options.run, "opinfo")
    if not (run.complete and run.compared):
        raise ReportError(f"{options.run} is an interrupted run, or compared nothing; accept a whole one.")
    file = baseline_for(run.title, run.environment.get("torch", ""))
    accept_run(run, file)
    print(file)
    return 0


def _diff(options: argparse.Namespace) -> int:
    after = model.load(options.after)
    difference = compare.diff(load_of_kind(options.before, kind_of(after)), after)
    print(compare.text(difference))
    return model.exit_code(difference.regressions, compared=1)


def _html(options: argparse.Namespace) -> int:
    folder, run, fuzz = options.run.parent, *_results_of(options)
    output = options.output or folder / PAGES[kind_of(run)]
    trends = [] if run.drawn else history.trends(folder / HISTORY, run)
    write_atomic(output, html.render(run, _baseline(options, run), fuzz, trends, measured=_measured(folder, run)))
    print(output)
    return 0


def _issue(options: argparse.Namespace) -> int:
    print(issue.issue(options.finding, options.run), end="")
    return 0


def _form(options: argparse.Namespace) -> int:
    """Print a form, or write the files of one. Returns 1 if it lacks what the other project asks for."""
    if options.name != pytorch_issue.FORM:
        runs = [model.load(path) for path in options.what]
        if options.name == services.RELAY:
            _put(services.relay(runs, options.artifact_url), options.output)
        else:
            folder = options.output or Path("allure-results")
            print(f"{folder}: {services.write_allure(runs, folder)} files")
        return 0
    if len(options.what) > 1:
        raise ReportError(f"{pytorch_issue.FORM} is about one finding, and {len(options.what)} are named.")
    text, lacks = pytorch_issue.fill_form(options.what[0], options.run)
    _put(text, options.output)
    for fault in lacks:
        print(f"conformance report: {escape_control_characters(fault)}", file=sys.stderr)
    return int(bool(lacks))


def _put(text: str, file: Path | None) -> None:
    """Write a text into a file and print its name, or print the text without one. Raises ReportError."""
    if file is not None:
        write_atomic(file, text)
    print(text if file is None else file, end="" if file is None else "\n")


def _summary(options: argparse.Namespace) -> int:
    run, fuzz = _results_of(options)
    baseline = _baseline(options, run)
    print(machine.markdown(run, compare.diff(baseline, run) if baseline else None, fuzz), end="")
    return 0


def _merge(options: argparse.Namespace) -> int:
    runs = [model.load(path) for path in options.runs]
    campaigns, parts = [run for run in runs if run.drawn], [run for run in runs if not run.drawn]
    if not parts:
        merged, fuzz = merge(campaigns), None
    else:
        merged = merge(parts)
        folders = {options.reports, *(path.parent for path in options.runs)}
        fuzz = merge(campaigns) if campaigns else _campaigns(folders, merged)
        _refuse_other(fuzz, merged)
    usual = baseline_for(merged.title, merged.environment.get("torch", ""))
    baseline = _baseline(options, merged) or (model.load(usual) if parts and usual.exists() else None)
    _write(merged, options.reports, baseline, fuzz)
    regressions = compare.diff(baseline, merged).regressions if baseline else 0
    print(options.reports / PAGES[kind_of(merged)])
    for note in merged.notes:
        print(f"conformance report: {escape_control_characters(note)}", file=sys.stderr)
    for verdict in summary.verdicts(fuzz or merged):
        if verdict.half == "fuzz":
            print(escape_control_characters(verdict.sentence))
    if said := summary.shortfall(merged, fuzz):
        print(escape_control_characters(said))
    for known in summary.known_cases(merged):
        print(escape_control_characters(known))
    print(model.summary_line(merged, regressions))
    return model.worst([merged.exit_code(regressions), *([fuzz.exit_code()] if fuzz else [])])


def load_of_kind(path: Path, kind: str) -> Run:
    """Return the run in a file, to compare with a run of this kind. Raises ReportError for a run of another kind, which
    has no result in common with it."""
    run = model.load(path)
    if kind_of(run) != kind:
        raise ReportError(f"{path} is a result of the kind {kind_of(run)}; give one of the kind {kind} to compare.")
    return run


def kind_of(run: Run) -> str:
    """Return the kind of a run, which is the stem of its files: opinfo, fuzz, models, or the name of a table."""
    if run.table or run.models:
        return run.table or MODELS
    return "opinfo" if run.cases or not run.drawn else "fuzz"


def _measured(folder: Path, run: Run) -> Sequence[Result]:
    """The measured errors to show with a run: its own, or errors of the same target from its folder. If the file cannot
    be read, the run gets a note."""
    path = folder / ACCURACY
    if run.table or not path.exists():
        return run.errors
    try:
        beside = model.load(path)
    except ReportError as error:
        run.notes.append(f"Without the measured errors: {error}")
        return []
    return beside.errors if beside.title == run.title else []


def _results_of(options: argparse.Namespace) -> tuple[Run, Run | None]:
    """The run in FILE, and the campaign to show with it: the joined campaigns of --fuzz, or the one in the folder.
    Raises ReportError."""
    run = model.load(options.run)
    if run.drawn and options.fuzz:
        raise ReportError(f"{options.run} is a campaign itself; --fuzz needs a run of op_db as FILE.")
    if run.drawn or not options.fuzz:
        return run, None if run.drawn else _beside(options.run.parent, run)
    fuzz = merge(map(_campaign, options.fuzz))
    _refuse_other(fuzz, run)
    return run, fuzz


def _refuse_other(fuzz: Run | None, run: Run) -> None:
    if fuzz and fuzz.title != run.title:
        raise ReportError(f"the campaign is on {fuzz.title!r} and the run on {run.title!r}; leave one out.")


def _campaign(path: Path) -> Run:
    """The campaign in a file. Raises ReportError if the file holds another kind of run."""
    run = model.load(path)
    if not run.drawn:
        raise ReportError(f"{path} is no campaign's result; give a {FUZZ} that conformance.fuzz wrote.")
    return run


def _beside(folder: Path, run: Run) -> Run | None:
    """The campaign in the folder of a run. If it is on another target, the result is None and the run gets a note.
    Raises ReportError for a damaged file."""
    path = folder / FUZZ
    fuzz = _campaign(path) if path.exists() else None
    if fuzz and fuzz.title != run.title:
        run.notes.append(f"Without the campaign of {path}: it is on {fuzz.title!r}, another target.")
        return None
    return fuzz


def _campaigns(folders: Iterable[Path], run: Run) -> Run | None:
    """The campaigns in these folders, joined. If one cannot be read, the run gets a note."""
    campaigns = []
    for folder in sorted({folder.resolve(): folder for folder in folders}.values()):
        try:
            campaigns.append(_beside(folder, run))
        except ReportError as error:
            run.notes.append(f"Without the fuzzer's results: {error}")
    known = [fuzz for fuzz in campaigns if fuzz]
    return merge(known) if known else None


def _baseline(options: argparse.Namespace, run: Run) -> Run | None:
    return load_of_kind(options.baseline, kind_of(run)) if options.baseline else None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process writes reports into the folder, so that all files there are of one run."""
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


def write(run: Run, folder: Path, baseline: Run | None, accepted: bool = False) -> str:
    """Write all reports of a run into `folder` and return the job summary. A run of op_db includes the campaign in the
    folder, and is added to its history. An `accepted` run becomes the baseline. Raises ReportError."""
    return _write(run, folder, baseline, _campaigns([folder], run) if kind_of(run) == "opinfo" else None, accepted)


def write_together(runs: Sequence[Run], folder: Path, changes: compare.Diff | None = None) -> str:
    """Write one page for the runs of several sources on one target, with the changes of op_db since its baseline, and
    return the job summary. Raises ReportError."""
    drawn, parts = [run for run in runs if run.drawn], [run for run in runs if not run.drawn]
    fuzz = merge(drawn) if drawn else None
    whole = fuzz or runs[0]
    if parts:
        short = add_up(row for run in parts for row in run.not_judged)
        whole = replace(parts[0], results=[result for run in parts for result in run.results], not_judged=short)
    with _alone(folder):
        text = machine.markdown(whole, changes, fuzz if parts else None)
        page = html.render(whole, None, fuzz if parts else None, difference=changes, measured=whole.errors)
        write_atomic(folder / PAGES["opinfo"], page)
    return text


def _write(run: Run, folder: Path, baseline: Run | None, fuzz: Run | None, accepted: bool = False) -> str:
    collects = gc.isenabled()
    gc.disable()  # the collector need not scan the results while the reports allocate text
    try:
        with _alone(folder):
            return _write_forms(run, folder, baseline, fuzz, accepted)
    finally:
        if collects:
            gc.enable()


def _write_forms(run: Run, folder: Path, baseline: Run | None, fuzz: Run | None, accepted: bool) -> str:
    stem = kind_of(run)
    run.results.sort(key=model.severity if run.drawn else lambda result: (0, 0, result.id))
    difference = compare.diff(baseline, run, accepted) if baseline else None
    model.save(run, folder / f"{stem}.json")
    write_atomic(folder / f"{stem}.xml", machine.junit(run, difference))
    write_atomic(folder / f"{stem}.ctrf.json", machine.ctrf(run, difference))
    measured, trends = _measured(folder, run), list[history.Trend]()
    try:
        # An interrupted run would show as a drop in the trend.
        if run.complete and run.compared:
            history.append(folder / HISTORY, run)
        trends = [] if run.drawn else history.trends(folder / HISTORY, run)
    except ReportError as error:
        run.notes.append(f"Without history: {error}")
    text = machine.markdown(run, difference, fuzz)
    write_atomic(folder / f"{stem}-summary.md", text)
    write_atomic(folder / PAGES[stem], html.render(run, baseline, fuzz, trends, difference, measured))
    return text


_COMMANDS = {"diff": _diff, "html": _html, "merge": _merge, "summary": _summary, "issue": _issue, "form": _form,
             "baseline": _accept}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
