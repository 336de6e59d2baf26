"""The command `conformance record`: write the distinct operator calls of a script's model to a file, without data.

The script runs under the recorder (`recorder.py`), and so do its backward and its optimizer. `conformance models
--calls FILE` runs the file on a target.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from conformance.record.command_line import Parser
from conformance.record.errors import ReportError, UsageError
from conformance.record.result import counted
from conformance.report.escape import escape_control_characters, exit_code_of
from conformance.run.command_end import end_command
from conformance.run.user_script import run_script

SUFFIXES = (".json", ".json.gz")
LISTED = 8
"""Number of reasons for excluded calls that the command prints."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 2 for bad usage and for a script that fails. No file is written then."""
    options = Parser("conformance record", add_help=False)
    options.add_argument("-o", "--output", type=Path, default=Path("calls.json"), metavar="FILE",
                         help="the file, which may end with .json.gz (default: calls.json)")  # fmt: skip
    options.add_argument("--name", help="the name of the model (default: that of the script)")
    parser = Parser(
        "conformance record",
        description="Run a script, and write the distinct operator calls of its model: sizes, strides, "
        "dtypes and arguments, but no data.",
        parents=[options],
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT.py", help="a script that runs a model on a CPU")
    rest = parser.add_argument("arguments", nargs="...", metavar="ARGUMENT",
                               help="its arguments; unknown options and words after -- are its own")  # fmt: skip
    rest.required = False  # argparse would name it as missing beside the script
    words, own = [*(sys.argv[1:] if arguments is None else arguments)], list[str]()
    if "--" in words:  # argparse would drop it behind the script
        at = words.index("--")
        words, own = words[:at], words[at + 1 :]
        if not options.parse_known_args(words)[1]:  # only options of the command precede it, so the script follows
            words, own = [*words, "--", *own[:1]], own[1:]
    args = parser.parse_args(words)
    args, first = options.parse_known_args(args.arguments, args)
    return exit_code_of(parser.prog, lambda: record(args, [*first, *own]))


def record(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Record the script of the options, with these arguments, and print a summary. Raises UserError."""
    script, output = args.script, args.output
    if not script.is_file():
        raise UsageError(f"{script}: there is no such file; give the path of a Python script")
    if not output.name.endswith(SUFFIXES):
        raise UsageError(f"{output} ends with neither {' nor '.join(SUFFIXES)}: name the file so")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise UsageError(f"{output} cannot be written: its folder does not exist, or it is a folder")
    from conformance.sources.models.recorder import CallRecorder

    # torch warns of it when the recorder switches oneDNN off, and no user can act on it.
    warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
    recorder, name = CallRecorder(), args.name or script.stem
    with recorder.model(name):
        if said := run_script(script, words):
            raise UsageError(f"{said}; nothing was written")
    calls = recorder.checked()
    if not calls.calls:
        raise UsageError(f"{script} calls no operator that can be recorded, so nothing was written")
    try:
        calls.save(output)
    except ReportError as error:
        raise UsageError(str(error).replace("--reports", "-o")) from None
    total = calls.made[name]
    print(f"{output}: {counted(len(calls.calls), 'distinct call')} of {counted(total, 'call')} of {name}")
    for reason, count in calls.excluded.most_common(LISTED):
        print(f"not recorded, {count}: {escape_control_characters(reason)}")
    return 0


if __name__ == "__main__":
    end_command(main())
