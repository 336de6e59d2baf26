"""Standalone script of a known bug that a target shows: the repro, and the judge of the run.

The repro of the index stands as it is. That of a finding is text, since the script runs it with the target in place of
the CPU or of the compiler that it names.
"""

from __future__ import annotations

from conformance.record.names import REPRO
from conformance.sources.repros.table import ReproCase
from conformance.standalone.script import carried, defined, inert, load

MARKER = "# Does the bug show? Exit code 1 where it does, else 0."


def standalone(case: ReproCase, setup: str) -> str:
    """Return the script. `setup` is the target's `script()`."""
    known = defined(setup)
    compiles = "transform" in known
    device = "ON" if "ON" in known else repr("cpu") if compiles else "DEVICE"
    loading = load(setup, early=False)
    head = f'"""{inert(f"{case.op}: {case.repro.title}")}"""\n{loading.head}\n{loading.late}'
    if case.prints:
        own = "\n\n".join([head, f"CODE = {_quoted(case.code)}", f"PRINTS = {_quoted(case.prints)}"])
        compiled = "DEVICE" if compiles else repr("")
        call, root = f"judge_script(CODE, PRINTS, {compiled}, {{}}, {device})", "judge_script"
    else:
        own = "\n\n".join([head, case.code])
        transform = "transform" if compiles else "None"
        call, root = f"judge_program(globals(), {case.repro.kind!r}, {transform}, {device})", "judge_program"
    main = [
        "def main():",
        f"    verdict, expected, actual = {call}",
        '    if verdict != "shown":',
        '        print("no difference here:", verdict, expected)',
        "        return False",
        f"    print('{REPRO} of {case.op}: expected', expected + ', got', actual)",
        "    return True",
    ]
    rest = carried((root, "end_script"), frozenset(defined(own)))
    return "\n".join([own, "", MARKER, rest, "", *main, "", "end_script(main)", ""])


def _quoted(text: str) -> str:
    """Return a text as a literal of several lines."""
    return f"r'''\n{text}\n'''" if "'''" not in text and not text.endswith(("'", "\\")) else repr(text)
