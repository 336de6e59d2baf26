"""A finding in PyTorch's form, and the mechanical checks of it: each planted omission is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.report import issue
from conformance.report.__main__ import main
from conformance.report.pytorch_issue import (
    ABLATION,
    FLOAT64,
    MEASURED,
    Packet,
    find_faults,
    of_finding,
    render,
    search_words,
)
from scripts.pages import ROOT

WHOLE = Packet(
    "a sum is lost", "value", "Inductor", "import torch\nprint(torch.compile(f)(x))", "0.0", "Text.", "1.0", "0.0",
    dict.fromkeys(ABLATION, "1.0"), "1.0", ("torch 2.15.0",), ("sum", "Inductor"), "nothing found",
)  # fmt: skip
DRAWN = "torch.compile(f)(torch.rand(2))"


class TestFaults:
    def test_a_whole_packet_can_be_filed(self) -> None:
        """Nothing is asked for, also with random numbers drawn by torch's own kernels."""
        assert find_faults(WHOLE) == []
        assert find_faults(replace(WHOLE, code=f"torch._inductor.config.fallback_random = True\n{DRAWN}")) == []

    @pytest.mark.parametrize(
        ("change", "fault"),
        [
            ({"code": ""}, "there is no script"),
            ({"code": "x = 1\n" * 26}, "the script has 26 lines; at most 25"),
            ({"code": "assert torch.allclose(a, b, rtol=1e-9)"}, "the script has tolerances of its own"),
            ({"reference": ""}, "no float64 reference is printed"),
            ({"code": "print(x.max(0).indices)"}, "the claim is about indices of a maximum or minimum"),
            ({"title": "argmin is wrong"}, "the claim is about indices of a maximum or minimum"),
            ({"code": DRAWN}, "random numbers without fallback_random"),
            ({"ablation": {"eager": "1.0", "inductor": "0.0"}}, "the ablation lacks aot_eager"),
            ({"versions": ()}, "no version shows it"),
            ({"known": ""}, "no earlier report was searched for"),
            ({"prints": "", "expected": ""}, "the answers of both sides are not stated"),
        ],
    )
    def test_an_omission_is_named(self, change: dict[str, object], fault: str) -> None:
        """Each thing that a maintainer asks for is missed by its own check."""
        assert find_faults(replace(WHOLE, **change)) == [fault]  # type: ignore[arg-type]

    def test_only_compilers_need_an_ablation(self) -> None:
        """A report about an eager kernel has no compiler to switch off, and an error no float64 reference."""
        assert find_faults(replace(WHOLE, layer="torch CPU", ablation={})) == []
        assert find_faults(replace(WHOLE, kind="error", reference="")) == []

    def test_only_inductor_needs_its_own_option(self) -> None:
        """Another compiler has no fallback_random."""
        code = 'torch.compile(f, backend="openvino")(torch.rand(2))'
        assert find_faults(replace(WHOLE, layer="openvino", code=code)) == []
        assert find_faults(replace(WHOLE, code=code)) == ["random numbers without fallback_random"]

    def test_the_dtype_of_indices_can_be_wrong(self) -> None:
        """Ties decide which index is right, and not its dtype."""
        assert find_faults(replace(WHOLE, kind="metadata", code="print(x.max(0).indices.dtype)")) == []


class TestForm:
    def test_of_a_finding(self) -> None:
        """The form has the script, the answers, the reference, the ablation and the versions, in PyTorch's fields."""
        file = ROOT / "docs/findings/inductor-threshold-bound.toml"
        text = render(of_finding(file, {file.stem: {**dict.fromkeys(ABLATION, "x"), FLOAT64: "64"}}))
        fields = [line for line in text.splitlines() if line.startswith("### ")]
        assert fields == ["### 🐛 Describe the bug", "### Error logs", "### Versions"]
        assert "```python\nimport torch" in text and "`aot_eager`:\n\n```\nx\n```" in text and "```\n64\n```" in text
        assert "Seen with torch 2.13.0" in text and "Search for earlier reports: `" in text

    def test_of_a_reference(self) -> None:
        """Lines of the finding's own, in torch alone, stand in the issue with what they print."""
        text = render(of_finding(ROOT / "docs/findings/liger-relu-squared-nan.toml", {}))
        assert "In float64 and with torch alone,\n\n```python\nimport torch\n" in text
        assert "\n```\n\nprints\n\n```\nnan\n```\n" in text and "Ready: all checks pass." in text

    def test_of_a_search(self, tmp_path: Path) -> None:
        """A recorded search gives its words, its date and its result; without it, the search is what the form lacks."""
        text = (ROOT / "docs/findings/zeta-large.toml").read_text()
        before, _, after = text.partition("[searched]")
        file, measured = tmp_path / "zeta-large.toml", {"zeta-large": {FLOAT64: "64"}}
        file.write_text(before + "[[scripts]]" + after.partition("[[scripts]]")[2])
        assert find_faults(of_finding(file, measured)) == ["no earlier report was searched for"]
        record = '[searched]\nwords = "zeta nan"\ndate = "2026-01-02"\nfound = "nothing"\n\n[[scripts]]'
        file.write_text(before + record + after.partition("[[scripts]]")[2])
        packet = of_finding(file, measured)
        assert find_faults(packet) == [] and packet.words == ("zeta nan",)
        assert packet.known.startswith("Searched on 2026-01-02 in ") and packet.known.endswith("Found: nothing.")

    def test_outside_the_checkout(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What was measured is found beside the finding, in whatever folder the command runs."""
        monkeypatch.chdir(tmp_path)
        measured = json.loads((ROOT / MEASURED).read_text())
        name = next(name for name, facts in measured.items() if facts.keys() >= {*ABLATION})
        main(["--form", "pytorch-issue", str(ROOT / "docs/findings" / f"{name}.toml")])
        said = capsys.readouterr()
        assert "`aot_eager`:" in said.out and "the ablation lacks" not in said.err

    @pytest.mark.parametrize(
        ("wrong", "text", "layer", "words"),
        [
            ("value", "2.0", "Inductor", ("add_", "Inductor", "wrong result")),
            ("timeout", "no answer", "toy", ("add_", "hangs")),
            ("memory", "", "toy", ("add_", "memory")),
            ("error", "IndexError: a b c d e f g h 7\nmore", "toy", ("add_", "IndexError: a b c d e f g")),
        ],
    )
    def test_words_of_a_search(self, wrong: str, text: str, layer: str, words: tuple[str, ...]) -> None:
        """A finding of a run is searched for by its operator, and by its error or what is wrong."""
        found = issue.Issue("", "toy", "", [issue.Answer("", "", text)], "toy", "", "aten::add_", wrong)
        assert search_words(found, layer) == words

    def test_of_a_saved_finding(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A finding of a campaign is printed with its environment, and what it lacks makes the exit code 1."""
        monkeypatch.setattr(issue, "environment", lambda: "PyTorch version: 2.15.0")
        answer = {"oracle": "value", "where": "a", "expected": "[1.0]", "actual": "[2.0]", "detail": "1 of 1"}
        data = {"kind": "FAIL", "target": "inductor", "signature": "value / add_", "mismatches": [answer]}
        path = tmp_path / "one.json"
        path.write_text(json.dumps({**data, "program": {"steps": []}, "elsewhere": {"aot_eager": "not shown"}}))
        path.with_suffix(".py").write_text("import torch\nprint(torch.compile(f)(x))\n")
        assert main(["--form", "pytorch-issue", str(path), "-o", str(tmp_path / "one.md")]) == 1
        assert "Seen with torch 2.15.0" in (tmp_path / "one.md").read_text()
        assert capsys.readouterr().out == f"{tmp_path / 'one.md'}\n"
        assert main(["--form", "pytorch-issue", str(path)]) == 1
        said = capsys.readouterr()
        assert "Seen with torch 2.15.0" in said.out and "PyTorch version: 2.15.0" in said.out
        assert "Search for earlier reports: `add_ torch.compile wrong result`. Not searched yet." in said.out
        assert "conformance report: the ablation lacks eager, inductor" in said.err
        assert "conformance report: no earlier report was searched for" in said.err

    def test_no_finding(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A file that is no finding is one sentence and exit code 2."""
        (tmp_path / "x.toml").write_text("title = 1")
        assert main(["--form", "pytorch-issue", str(tmp_path / "x.toml")]) == 2
        assert "x.toml is no finding" in capsys.readouterr().err
        assert main(["--form", "pytorch-issue", "no.toml"]) == 2
        assert capsys.readouterr().err == (
            "conformance report: no.toml does not exist; give a file of docs/findings/.\n"
        )
