"""The end of a script: its own exit code, also while a thread of torch still needs the interpreter.

For example, `backward` on a device runs on the thread `pt_autograd_0`. The thread wakes the main thread first, and then
destroys the graph's state, with a Python object in it (`torch.autograd.graph` stores the context of each backward
there). For that it waits for the GIL. If the main thread finalizes the interpreter meanwhile, Python before 3.14 ends
the waiting thread by `pthread_exit`, inside a C++ destructor, which must not be unwound: "terminate called without an
active exception", and the process ends with SIGABRT in place of its exit code. The thread cannot be waited for: it does
not tell when it is idle. So a script ends without finalizing the interpreter.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def end_script(main: Callable[[], object]) -> NoReturn:
    """Call `main`, and raise SystemExit with the exit code: the number that `main` returns, or 1 if it returns anything
    else that is true. Its own errors and exits pass, so that Python prints their tracebacks. If the script is the main
    module, the process then ends without finalizing the interpreter, except at Ctrl-C; a program that runs the script,
    such as pytest, goes on."""
    try:
        answer = main()
        raise SystemExit(answer if type(answer) is int else int(bool(answer)))
    except (Exception, SystemExit) as end:
        code = end.code if isinstance(end, SystemExit) else 1
        if owns_process():
            atexit.register(leave_process, code if isinstance(code, int) else int(code is not None), owns_process)
        raise


def leave_process(code: int, owned: Callable[[], bool]) -> None:
    """End the process, as its last exit function, if it is `owned`. Threads have been joined, and `finally` blocks have
    run."""
    if not owned():  # `runpy` made the script the main module for a while
        return
    atexit.unregister(leave_process)
    atexit._run_exitfuncs()  # those registered earlier, for example by a device that must be closed
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # a closed pipe or stream, which the interpreter reports
        return
    os._exit(code)


def owns_process() -> bool:
    """Whether the script is the main module, not a text that another program runs."""
    return vars(sys.modules["__main__"]) is globals()
