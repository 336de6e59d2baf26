"""A harness that fails while it shrinks keeps the finding."""

from __future__ import annotations

import json
import textwrap

from conformance.fuzzing.command import main


def test_a_finding_that_cannot_be_shrunk_is_kept(tmp_path, monkeypatch):
    """The campaign ends as it should, and the finding says why it is not smaller."""
    (tmp_path / "odd_target.py").write_text(
        textwrap.dedent("""
        import inspect
        from conformance.selftest.mutants import MutantTarget

        class Odd(MutantTarget):
            def __init__(self, argument=""):
                super().__init__("transpose is stale")

            @property
            def oracles(self):
                if any(frame.function == "shrink" for frame in inspect.stack()):
                    raise RuntimeError("an odd program")
                return self.judged

            @oracles.setter
            def oracles(self, judged):
                self.judged = judged
    """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["--target", "class:odd_target.Odd", "--programs", "20", "--reports", str(tmp_path)]) == 1
    findings = json.loads((tmp_path / "fuzz.json").read_text())["findings"]
    assert findings
    assert {one["elsewhere"]["shrinking"] for one in findings} == {"failed: RuntimeError: an odd program"}
