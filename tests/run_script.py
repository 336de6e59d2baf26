"""Scripts in forks of one process that has imported torch and nothing of this package.

Importing torch and shutting it down take some seconds, longer than most scripts run. A fork starts with torch and with
the modules that the first call of torch.compile imports, and skips the shutdown.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

SERVER = """
import json, os, runpy, signal, sys, traceback
import torch, torch._dynamo, torch._functorch.aot_autograd
for line in sys.stdin:
    path, folder, out, err, words, environment = json.loads(line)
    if not (child := os.fork()):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, if the tests run under nohup
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        for number, name in ((1, out), (2, err)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(folder)
        os.environ.update(environment)
        sys.argv[1:] = words
        sys.path[0] = os.path.dirname(path)
        code = 1
        try:
            runpy.run_path(path, run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 255)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Standalone:
    """Runner that takes the text or the file of a script and runs it as `python FILE WORDS` would. Use as a context
    manager."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def __enter__(self) -> Self:
        words = [sys.executable, "-W", "ignore", "-c", SERVER]
        self.server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *raised: object) -> None:
        self.server.communicate()

    def __call__(
        self,
        script: str | Path,
        folder: Path | None = None,
        words: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Return the exit code and the output of the script. It runs in `folder`, by default in an empty one.
        `environment` is added to the environment of the server process, which has already imported torch."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.count += 1
        mine = self.folder / str(self.count)
        mine.mkdir()
        out, err, path = mine / "stdout", mine / "stderr", mine / "files" / "script.py"
        path.parent.mkdir()
        if isinstance(script, Path):
            path = script
        else:
            path.write_text(script)
        request = [str(path), str(folder or mine / "files"), str(out), str(err), list(words), dict(environment or {})]
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        code = int(self.server.stdout.readline())
        return subprocess.CompletedProcess(request, code, out.read_text(), err.read_text())
