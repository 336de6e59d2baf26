"""`conformance test`: one probe, all sources, one page and one exit code."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.record import result as model
from conformance.record.errors import TargetError
from conformance.record.shortfall import Shortfall
from conformance.run import session
from conformance.run.campaign.campaign import Campaign
from conformance.run.journal import NAME, Journal
from conformance.sources import whole
from conformance.sources.opinfo import plan, runner
from conformance.sources.opinfo.pool import Cases

LIE = "mutant:arithmetic results are contiguous"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Select few cases of op_db, so that a test needs no minute for them."""
    selection = plan.Selection(ops=("add", "t"), layouts=("as_sampled", "transposed"))
    monkeypatch.setitem(whole.PARTS, "opinfo", lambda: runner.OpDb(lambda held=None: (selection,)))


def run(tmp_path: Path, target: str, *words: str) -> int:
    return whole.main(["--target", target, "--minutes", "4", "--programs", "60", "--reports", str(tmp_path), *words])


class TestTest:
    def test_a_planted_fault(self, tmp_path: Path, few, capsys) -> None:
        """Both sources find the fault. One page shows both, and the exit code is 1."""
        assert run(tmp_path, LIE, "--check-scripts", "0") == 1
        text = capsys.readouterr().out
        first = text.index("FAIL add::float32::forward::transposed")
        assert first < text.index("4/4 cases")  # the command prints a confirmed finding before the summary
        cases, programs = (model.load(tmp_path / f"{name}.json") for name in ("opinfo", "fuzz"))
        assert {one.op for one in cases.unexpected} == {"add"}
        assert programs.unexpected and {one.failures[0].oracle for one in programs.unexpected} >= {"stride"}
        page = (tmp_path / "conformance.html").read_text()
        assert "add::float32::forward::transposed" in page and "drawn programs fail" in page
        assert text.rstrip().endswith(f"report: {tmp_path / 'conformance.html'}")

    def test_a_target_without_faults(self, tmp_path: Path, few, capsys) -> None:
        """Torch CPU passes, with op_db and programs compared."""
        assert run(tmp_path, "cpu", "--strict") == 0
        cases, programs = (model.load(tmp_path / f"{name}.json") for name in ("opinfo", "fuzz"))
        assert cases.compared and programs.drawn is not None and programs.drawn.compared
        out = capsys.readouterr().out
        assert "No finding in" in out and "Not judged" not in out

    def test_all(self, tmp_path: Path, few, monkeypatch) -> None:
        """`--all` also measures accuracy and sizes, and runs recorded models; the page has their tables."""
        from conformance.sources.accuracy.__main__ import AccuracyCases
        from conformance.sources.sizes.__main__ import SizesCases

        for source, ops in ((AccuracyCases, ["sin"]), (SizesCases, ["*small*"])):
            cases = source.cases

            def narrowed(self, args, cases=cases, ops=ops):
                args.op, args.scale = ops, "small"
                try:
                    return cases(self, args)
                except session.UserError:
                    args.op = []
                    chosen, words = cases(self, args)
                    return chosen[:1], words
                finally:
                    args.op = []

            monkeypatch.setattr(source, "cases", narrowed)
        assert run(tmp_path, "cpu", "--all") == 0
        page = (tmp_path / "conformance.html").read_text()
        assert 'id="models"' in page and 'id="coverage"' in page
        assert 'id="accuracy"' in page and 'id="sizes"' in page
        assert model.load(tmp_path / "accuracy.json").errors and model.load(tmp_path / "sizes.json").footprints

    def test_a_source_that_cannot_run(self, tmp_path: Path, few, monkeypatch, capsys) -> None:
        """It is one sentence and exit code 2, and the other sources run. Regression test: on macOS, where no memory is
        measured, `--all` ended before any program was drawn."""
        from conformance.run.case_source import JobSource

        def refuses(self, *_):
            raise TargetError("memory cannot be measured")

        monkeypatch.setattr(JobSource, "execute", refuses)
        assert run(tmp_path, "cpu", "--all") == 2
        out, errors = capsys.readouterr()
        assert "conformance test: sizes: memory cannot be measured\n" in errors
        assert "No finding in" in out and model.load(tmp_path / "fuzz.json").drawn.compared

    def test_no_time(self, tmp_path: Path, few, capsys) -> None:
        """A time that is over before anything is compared is exit code 2 and one sentence."""
        assert whole.main(["--target", "cpu", "--minutes", "0.0001", "--reports", str(tmp_path)]) == 2
        assert "nothing was compared" in capsys.readouterr().err

    @pytest.mark.parametrize(("words", "end", "code"), [((), ".", 0), (("--strict",), "; --strict makes this a", 1)])
    def test_too_little_time(self, tmp_path: Path, few, monkeypatch, capsys, words, end: str, code: int) -> None:
        """One sentence says what all parts did not judge, and only `--strict` makes it a failure."""
        every = Cases.run
        monkeypatch.setattr(Cases, "run", lambda self, *args: itertools.islice(every(self, *args), 3))
        monkeypatch.setattr(Campaign, "_enough", lambda self: self.result.done > 0)
        assert run(tmp_path, "cpu", *words) == code
        said = "Not judged: 1 of 4 cases of op_db (--minutes), 40 of 60 programs (--minutes)"
        out = capsys.readouterr().out
        assert out.count("Not judged") == 1 and f"{said}{end}" in out
        rows = [model.load(tmp_path / f"{name}.json").not_judged for name in ("opinfo", "fuzz")]
        assert rows == [[Shortfall("cases of op_db", 1, 4)], [Shortfall("programs", 40, 60)]]
        assert said in (tmp_path / "conformance.html").read_text()

    @pytest.mark.parametrize("resumable", [False, True])
    def test_the_journal_of_an_interrupted_run(self, tmp_path: Path, resumable: bool) -> None:
        """The journal stays only if the command has `--resume`. Regression test: `conformance test` left it."""
        source = runner.OpDb()
        source.journal = Journal(tmp_path, "opinfo", {})
        run = SimpleNamespace(resumable=resumable, args=SimpleNamespace(update_baseline=False))
        source.keep(run, model.Run("cpu", complete=False))  # type: ignore[arg-type]
        assert (tmp_path / NAME.format("opinfo")).exists() is resumable

    def test_the_order_of_the_sources(self) -> None:
        """Programs come last and take the time that the others leave."""

        def stems(**words: object) -> list[str]:
            args = SimpleNamespace(**{"all": False, "oracle": None, "only": [], **words})
            return [source.stem for source in whole.sources_of(args)]

        assert stems(all=True) == ["opinfo", "accuracy", "sizes", "models", "fuzz"]
        assert stems() == ["opinfo", "fuzz"]
        assert stems(only=["fuzz", "models"]) == ["models", "fuzz"]

    @pytest.mark.parametrize(
        ("function", "code", "expected"),
        [
            ("tanh_backward", 1, {("tanh", "backward")}),
            ("negative_cumsum", 1, {("cumsum", "refused_range")}),
            ("nothing", 0, set()),
        ],
    )
    def test_faults_beyond_forward(self, tmp_path: Path, monkeypatch, function: str, code: int, expected: set) -> None:
        """Gradients, out= and changed arguments are compared, too; what a mode without a fault fails is PyTorch's own.
        Regression test: op_db ran forward only, so a wrong `tanh_backward` passed 1,743 cases and 1,520 programs."""

        def few(held: object = None) -> tuple[plan.Selection, ...]:
            ops = ("tanh", "cumsum", "linalg.matrix_rank")
            return tuple(replace(selection, ops=ops) for selection in plan.plan_complete_test(held))

        monkeypatch.setitem(whole.PARTS, "opinfo", lambda: runner.OpDb(few))
        target = f"device:cpu,import=tests.planted.lying_modes,call={function}"
        assert run(tmp_path, target, "--only", "opinfo", "--check-scripts", "0") == code
        cases = model.load(tmp_path / "opinfo.json").cases
        assert {(one.op, one.variant) for one in cases if one.outcome in model.UNEXPECTED} == expected
        assert {one.op for one in cases if one.layer == "passthrough"} == {"linalg.matrix_rank"}

    def test_one_part(self, tmp_path: Path) -> None:
        """`--only` runs the parts that it names, and no other."""
        assert run(tmp_path, "cpu", "--only", "models") == 0
        assert model.load(tmp_path / "models.json").drawn.compared == 60
        assert not [*tmp_path.glob("fuzz*.json"), *tmp_path.glob("opinfo*.json")]

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (["--only", "model"], "unknown part 'model'; did you mean models?"),
            (["--only", "sizes", "--oracle", "metamorphic"], "which sizes needs: leave one of both out"),
            (["--all", "--oracle", "metamorphic"], "which accuracy needs: leave one of both out"),
            (["--all", "--only", "fuzz"], "--all runs every part, and --only names some: give one of both"),
        ],
    )
    def test_bad_usage(self, tmp_path: Path, words: list[str], text: str, capsys) -> None:
        """Each is one sentence, and exit code 2."""
        assert run(tmp_path, "cpu", *words) == 2
        assert text in capsys.readouterr().err
