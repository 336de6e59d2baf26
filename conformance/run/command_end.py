"""The end of a command that runs a user's script in its own process: its exit code, as for a saved script.

For example, `conformance trace` and `conformance kernels` leave autograd's thread of the device behind.
`standalone/script_end.py` says why the interpreter must not be finalized while such a thread lives. Other commands run
programs in worker processes, which end without finalizing too.
"""

from __future__ import annotations

import atexit
import sys
from typing import NoReturn

from conformance.standalone.script_end import leave_process


def end_command(code: int) -> NoReturn:
    """Raise SystemExit with this code. If the process is the command's, it then ends without finalizing the
    interpreter."""
    atexit.register(leave_process, code, owns_process)
    raise SystemExit(code)


def owns_process() -> bool:
    """Whether the main module is a command: `python -m conformance...`, or the installed script `conformance`."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return main.__spec__.name.partition(".")[0] == "conformance"
    return getattr(getattr(main, "main", None), "__module__", "") == "torch_conformance"
