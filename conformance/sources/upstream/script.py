"""Standalone script of a failing test: the device, the path of the test's file, and the judge of the run."""

from __future__ import annotations

from conformance.record.names import DEVICE_TEST
from conformance.sources.upstream.table import DeviceTest
from conformance.standalone.script import carried, defined, inert, load

MARKER = "# Does the test fail? Exit code 1 where it does, else 0."


def standalone(case: DeviceTest, setup: str, kind: str) -> str:
    """Return the script. `setup` is the target's `script()`, and `kind` the kind of its device."""
    group, name = case.group, case.on(kind)[1]
    loading = load(setup, early=False)
    head = f'"""{inert(f"{case.op} fails, a test of PyTorch")}"""\n{loading.head}\n{loading.late}'
    own = f"{head}\n\nTESTS = {case.path!r}"
    main = [
        "def main():",
        f"    verdict, message, place = judge_device_test(TESTS, {group!r}, {name!r}, DEVICE)",
        '    if verdict != "failed":',
        '        print("no difference here:", verdict, message)',
        "        return False",
        f"    print('{DEVICE_TEST} of {case.before}: expected to pass, got', message)",
        "    print(place)",
        "    return True",
    ]
    rest = carried(("judge_device_test", "end_script"), frozenset(defined(own)))
    return "\n".join([own, "", MARKER, rest, "", *main, "", "end_script(main)", ""])
