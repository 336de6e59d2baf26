"""Scripts in fresh processes: a fork of the server behaves as `python FILE` does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.run import processes, script_process
from conformance.run.script_process import LAST, Forks, run_alone


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """A server that forks scripts."""
    server = Forks()
    yield server
    assert server.fit  # a lost server would make the tests compare `python FILE` with itself
    server.close()


BUG = """
import torch
x = torch.ones(2)
print("value of x: expected 1, got", float(x.sum()))
raise SystemExit(bool(x.sum() > 1))
"""
MAIN = """
import sys, os, __main__, signal, inspect, threading, multiprocessing
def here(): pass
print(__name__, __main__.here is here, inspect.getsource(here), __doc__, __main__.__dict__ is globals())
print(os.path.basename(__file__), len(sys.argv), sys.argv[0] == __file__, sys.path[0] == os.path.dirname(__file__))
print(sys.path[1:], os.getcwd(), os.read(0, 1), "conformance" in sys.modules, os.environ.get("PYTHONHASHSEED"))
print(os.getsid(0) == os.getpid() == os.getpgid(0), signal.getsignal(signal.SIGINT))
print(threading.current_thread() is threading.main_thread(), multiprocessing.current_process().daemon)
"""
"""Facts that a script can see of its process."""

ENDS = {
    "difference": BUG,
    "no difference": "import torch",
    "main": MAIN,
    "current folder": "import sys; sys.path.append(''); import only_here; raise SystemExit(only_here.CODE)",
    "not in the current folder": "import only_here",
    "another folder on the path": "import beside",
    "exit with a text": "raise SystemExit('device x cannot be loaded')",
    "exit with code 117": "raise SystemExit(117)",
    "exception": "def f(): raise ValueError('not this')\nf()",
    "no module": "import no_such_module",
    "syntax error": "def",
    "warning": "import warnings; warnings.warn('seen'); print('end')",
    "exit function": "import atexit; atexit.register(print, 'value of c: expected 1, got 2')",
    "thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.3), print('late'))).start()",
    "crash": "import os, signal; print('before', flush=True); os.kill(os.getpid(), signal.SIGSEGV)",
    "crash at exit": "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGABRT)",
    "hang": "import time; print('before', flush=True); time.sleep(100)",
    "child": "import subprocess; subprocess.Popen(['sleep', '100']); print('after')",
    "endless": "while True: print('x' * 10_000)",
    "fork": "import os; pid = os.fork(); print(os.waitpid(pid, 0)[1] if pid else 'child', flush=True)",
    "autograd": "import torch; torch.ones(2, requires_grad=True).sum().backward(); print(torch.get_num_threads())",
    "compile": "import torch; print(torch.compile(torch.relu, backend='eager')(torch.ones(2)))",
    "pool": "import torch; print(torch.ones(300_000).exp().sum() > 1, torch.ones(300, 300).mm(torch.ones(300, 300)))",
}
"""Scripts by their end."""
WAITING = ("endless", "compile")
"""Scripts that take longest."""


@pytest.mark.skipif(not processes.can_fork(), reason="workers are no forks here")
class TestForks:
    @pytest.mark.parametrize(
        "name", [pytest.param(name, marks=pytest.mark.slow if name in WAITING else ()) for name in ENDS]
    )
    def test_as_python_does(self, name: str, forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A fork ends with the exit code and the output of `python FILE`, whatever this process has on its own path."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "only_here.py").write_text("CODE = 3")
        (tmp_path / "beside").mkdir()
        (tmp_path / "beside" / "beside.py").write_text("")
        monkeypatch.syspath_prepend(tmp_path / "beside")
        limit = 4.0 if name in ("hang", "endless") else 60.0
        alone, fork = (run_alone(ENDS[name], limit, forks=way) for way in (None, forks))
        folder = (r"/\S*/conformance-script-\w+", "FOLDER")
        for ended in alone, fork:
            ended.last = [script_process.re.sub(*folder, line) for line in ended.last]  # type: ignore[assignment]
        if name == "endless":
            assert alone.code is fork.code is None and len(fork.last) <= LAST
        else:
            assert fork == alone

    @pytest.mark.usefixtures("sigint_heeded")
    @pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler], ids=["ignored", "heeded"])
    def test_sigint(self, handler: Any, forks: Forks) -> None:
        """As `python FILE`, a fork ignores SIGINT if this process does, for example under `nohup`."""
        signal.signal(signal.SIGINT, handler)
        script = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
        said = [list(run_alone(script, 60, forks=way).last) for way in (None, forks)]
        assert said == [[str(handler is signal.SIG_IGN)]] * 2

    def test_nothing_is_left_of_an_earlier_script(self, forks: Forks) -> None:
        """A script sees nothing of another one: each is a fork of the server, which runs none."""
        sets = "import torch, builtins; builtins.seen = 1; torch.set_default_dtype(torch.float64)"
        sees = "import torch, builtins; print(hasattr(builtins, 'seen'), torch.get_default_dtype())"
        run_alone(sets, 60, forks=forks)
        assert run_alone(sees, 60, forks=forks).last[-1] == "False torch.float32"

    def test_torch_only(self, forks: Forks) -> None:
        """The server has loaded torch, and no device or compiler. For scripts that compile, it has loaded Dynamo."""
        names = "torch", "torch._dynamo", "tinygrad", "torch.testing._internal.common_methods_invocations"
        script = f"import sys; print([name in sys.modules for name in {names}])"
        assert run_alone(script, 60, forks=forks).last[-1] == "[True, False, False, False]"
        compiling = Forks(("torch._dynamo",))
        assert run_alone(script, 60, forks=compiling).last[-1] == "[True, True, False, False]"
        compiling.close()

    def test_what_is_killed(self, forks: Forks) -> None:
        """At the limit, the children of a fork end with it. Otherwise its output would stay open for longer than a test
        may take."""
        ended = run_alone("import subprocess; subprocess.run(['sleep', '1000'])", 1.0, forks=forks)
        assert ended.code is None

    def test_a_lost_server(self) -> None:
        """After the loss of the server, the current script counts as killed, and later ones run as `python FILE`."""
        forks, parent = Forks(), "import os; print(os.getppid())"
        server = int(run_alone(parent, 60, forks=forks).last[-1])
        kills = f"import os, time; os.kill({server}, {signal.SIGKILL}); time.sleep(100)"
        assert run_alone(kills, 60, forks=forks).code == -signal.SIGKILL
        assert int(run_alone(parent, 60, forks=forks).last[-1]) == os.getpid()
        assert not forks.fit
        forks.close()

    def test_where_forks_are_unsafe(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where workers are no forks, scripts are none either."""
        monkeypatch.setattr(script_process, "can_fork", lambda: False)
        forks = Forks()
        assert not forks.fit
        assert int(run_alone("import os; print(os.getppid())", 60, forks=forks).last[-1]) == os.getpid()
        forks.close()


def test_what_prints_without_end_is_ended() -> None:
    """Only the deciding lines of an endless output are stored."""
    ended = run_alone("while True: print('x' * 10_000)", 1.0)
    assert ended.code is None and len(ended.last) <= LAST
