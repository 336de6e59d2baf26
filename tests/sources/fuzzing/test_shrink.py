"""A finding survives a failure of the harness during shrinking."""

from __future__ import annotations

import textwrap

from conformance.sources.fuzzing.command import main
from tests.run.campaign.saved import fuzz_result


def test_a_finding_that_cannot_be_shrunk_is_kept(tmp_path, monkeypatch):
    """The campaign ends normally, and the finding contains the reason why it is not smaller."""
    (tmp_path / "odd_target.py").write_text(
        textwrap.dedent("""
        import inspect
        from conformance.selftest.mutants import MutantTarget

        class Odd(MutantTarget):
            stated = MutantTarget.facts

            def __init__(self, argument=""):
                super().__init__("transpose is stale")

            @property
            def facts(self):
                if any(frame.function == "shrink" for frame in inspect.stack()):
                    raise RuntimeError("an odd program")
                return self.stated

            @facts.setter
            def facts(self, stated):
                self.stated = stated
    """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["--target", "class:odd_target.Odd", "--programs", "8", "--without", "op_db", "--check-scripts", "0"]
    assert main([*words, "--reports", str(tmp_path)]) == 1
    findings = fuzz_result(tmp_path)["findings"]
    assert findings
    assert {finding["elsewhere"]["shrinking"] for finding in findings} == {"failed: RuntimeError: an odd program"}
