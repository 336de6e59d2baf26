"""Standalone script of a sizes finding: the call on torch CPU and on the target, judged as in the run.

The script carries the source of the functions that measure (`standalone/sizes.py`), so it reads the peak of its own
process in the same way. It needs as much memory as the call does.
"""

from __future__ import annotations

from conformance.sources.sizes.table import SizesCase
from conformance.standalone.script import carried, defined, inert

MARKER = "# What each side takes and gives: exit code 1 where the target's is not as it should be."


def standalone(case: SizesCase, setup: str, finding: str) -> str:
    """Return the script; its exit code is 1 if the target is wrong, else 0. `setup` is the target's `script()`, and
    `finding` a sentence about the finding.
    """
    row, known = case.row, defined(setup)
    backward = case.variant == "backward"
    run, device = ("transform(program)", "'cpu'") if "transform" in known else ("program", "DEVICE")
    names = ", ".join(row.sizes(case.scale))
    sizes = [f"{names} = {', '.join(map(str, row.sizes(case.scale).values()))}"] if names else []
    own = "\n\n".join(
        [
            f'"""{inert(finding)}"""\nimport torch\nimport torch.nn.functional as F\n{setup.strip()}',
            *sizes,
            row.input_lines(),
            row.program(),
        ]
    )
    exact = "{}" if row.exact else f"exact_answers(program, inputs(), {backward})"
    got = f"got = measured({run}, given, {backward}, exact)"
    main = [
        "global device",
        "device = 'cpu'",
        f"exact = {exact}",
        f"cpu = measured(program, inputs(), {backward}, exact)",
        f"device, given = {device}, inputs()",
        "given = tree_map(lambda x: x.to(device) if torch.is_tensor(x) else x, given)",
        "try:",
        *(["    with MODE:", f"        {got}"] if "MODE" in known else [f"    {got}"]),
        "except Exception as error:",
        "    print(f'error of the call: expected an answer, got {type(error).__name__}: {error}')",
        "    return True",
        "for name, side in ('torch CPU', cpu), ('target', got):",
        "    print(f'{name}: peak {side.peak >> 20} MiB, {side.held >> 20} MiB held, {side.seconds:.1f} s')",
        "found = faults(cpu, got)",
        "for fault in found:",
        "    print('{} of {}: expected {}, got {} ({})'.format(*fault))",
        "return found",
    ]
    of_inputs = ("pattern",) if "pattern" in row.input_lines() else ()
    roots = ("measured", "exact_answers", "faults", "tree_map", "end_script", *of_inputs)
    rest = carried(roots, frozenset(defined(own)))
    end = ["def main():", *(f"    {line}" for line in main), "", "end_script(main)"]
    return "\n".join([own, "", MARKER, rest, "", *end, ""])
