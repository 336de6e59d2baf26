"""A user's script in this process: the same names and paths as under Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from conformance.run.user_script import run_script

SCRIPT = """
import json, sys
with open("seen.json", "w") as file:
    json.dump([__name__, __file__, sys.argv, sys.path[0]], file)
"""


class TestRunScript:
    def test_names_and_paths_are_those_of_python(self, tmp_path, monkeypatch):
        """`__name__`, `__file__`, `sys.argv` and `sys.path[0]` of a script in another folder. Regression test:
        `__file__` was relative."""
        monkeypatch.chdir(tmp_path)
        Path("folder").mkdir()
        script = Path("folder/train.py")
        script.write_text(SCRIPT)
        subprocess.run([sys.executable, str(script), "x"], check=True)
        right = json.loads(Path("seen.json").read_text())
        assert run_script(script, ["x"]) == ""
        assert json.loads(Path("seen.json").read_text()) == right
        assert right[1] == str(tmp_path / "folder/train.py")
