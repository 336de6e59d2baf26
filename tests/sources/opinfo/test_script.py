"""Standalone scripts of op_db samples, in every variant: each shows its planted difference and no other."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.engine.target import Target
from conformance.record import names
from conformance.sources.opinfo import plan
from conformance.standalone.script import own_part

LYING = """
from torch.overrides import TorchFunctionMode


class Lying(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result


DEVICE, MODE = 'cpu', Lying()
"""
HONEST = "DEVICE = 'cpu'"
TRANSFORM = """DEVICE = 'lying'

def transform(function):
    def wrong(*given):
        made = function(*given)
        return {name: [value, 'and more'] for name, value in made.items()} if LIES else made
    return wrong
"""


class Honest(Target):
    """Torch CPU whose script applies a transform with an optional fault."""

    name = "honest"

    def __init__(self, setup: str) -> None:
        super().__init__()
        self.setup = setup

    def script(self) -> str:
        return self.setup


def case(name: str, variant: str, layout: str = "as_sampled") -> plan.Case:
    op, _, overload = name.partition("/")
    return plan.Case(op, overload, "", "float32", variant, layout)


def scripts(name: str, variant: str, layout: str, target: Target, count: int = 1) -> list[str]:
    """Scripts of the first samples of an op."""
    import torch

    from conformance.program.capture import Unwritable
    from conformance.sources.opinfo import catalog, script
    from conformance.sources.opinfo.sample_program import written
    from conformance.sources.opinfo.sampling import samples
    from conformance.sources.opinfo.variants import trials_of

    one = case(name, variant, layout)
    op = catalog.find(one)
    texts = []
    for sample in samples(op, variant, torch.float32, layout, count):
        for trial in trials_of(one, sample, target):
            program = None
            with contextlib.suppress(Unwritable):
                program, _ = written(trial)
            texts.append(script.standalone(trial, "a finding", None, program, sparse=name == "to_sparse"))
    return texts


def printed(texts: list[str], tmp_path: Path) -> list[str]:
    """Output of each script, all run in one process that never imports this package."""
    for number, text in enumerate(texts):
        (tmp_path / f"script_{number:03}.py").write_text(text)
    runner = (
        "import pathlib\n"
        "for path in sorted(pathlib.Path('.').glob('script_*.py')):\n"
        "    print('=====', path)\n"
        "    try:\n"
        "        exec(compile(path.read_text(), path, 'exec'), {'__name__': '__main__'})\n"
        "    except SystemExit as end:\n"
        "        print('ended', int(end.code))\n"
        "import sys\nassert not any(name.startswith('conformance') for name in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", runner], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split("=====")[1:]


OPS = {
    "forward": (
        "add",
        "cumsum",
        "linalg.svd",
        "to_sparse",
        "sort",
        "index_select",
        "nn.functional.conv2d",
        "masked.sum",
    ),
    "method": ("add", "t", "cumsum"),
    "inplace": ("add", "cumsum", "masked_fill"),
    "out": ("add", "sort", "cumsum"),
    "backward": ("mul", "linalg.svd", "cumsum", "sgn"),
    "forward_over_backward": ("mul", "cumsum"),
    "error_inputs": ("gather", "cat"),
    "reference_inputs": ("add", "cumsum"),
}
WITHOUT_RESULT = [("forward_over_backward", "cumsum")]
"""Calls without a result, in which a faulty transform has nothing to change: the gradient of a linear operator does not
depend on its input."""


class TestStandalone:
    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_every_variant_runs_alone(self, tmp_path: Path) -> None:
        """Scripts apply the transform to the call: a faulty transform exits with 1, a correct one with 0."""
        texts, shown = [], []
        for variant in OPS:
            for lies in (False, True):
                target = Honest(TRANSFORM.replace("LIES", str(lies)))
                layout = "as_sampled" if variant == "error_inputs" else "transposed"
                for name in OPS[variant]:
                    added = scripts(name, variant, layout, target)
                    assert added
                    texts += added
                    shown += [lies and (variant, name) not in WITHOUT_RESULT] * len(added)
        for text, marked, said in zip(texts, shown, printed(texts, tmp_path), strict=True):
            assert ("ended 1" in said, "no difference here" in said) == (marked, not marked), own_part(text) + said

    @pytest.mark.parametrize(
        "layout",
        ["gaps", *(pytest.param(name, marks=pytest.mark.slow) for name in ("expanded", "offset", "transposed"))],
    )
    def test_a_device_without_as_strided(self, layout: str, tmp_path: Path) -> None:
        """The script lays out its sample without `as_strided` if the device lacks it. Regression test: it used
        `as_strided` on any device."""
        import torch

        from conformance.standalone.input_layout import unfolded
        from conformance.standalone.sample_runtime import moved

        sparing = Honest(HONEST)
        sparing.facts = sparing.facts.without({"as_strided", "set_", "storages"})
        (text,) = scripts("lu_unpack", "forward", layout, sparing)  # a result of free sign, so no program holds it
        assert f"moved(given, device, layout={layout!r}, place=unfolded)" in text
        (said,) = printed([text], tmp_path)
        assert "ended 0" in said and "no difference here" in said
        assert "Error" not in said, "the same error on both sides is no difference either"
        tree = {"a": torch.rand(3, 4), "b": torch.rand(0, 2)}
        for one, two in zip(*(moved(tree, "cpu", layout, place=place).values() for place in (None, unfolded))):
            assert torch.equal(one, two) and (one.stride(), one.storage_offset()) == (
                two.stride(),
                two.storage_offset(),
            )

    def test_a_crash_is_written_down_without_torch(self) -> None:
        """The process that owns the workers writes the script of a crash without loading torch; the script compiles for
        every variant and layout."""
        code = (
            "import sys\nfrom conformance.record import names\nfrom conformance.sources.opinfo.plan import Case\n"
            "from conformance.sources.opinfo.sample_script import from_op_db\n"
            "for variant in names.VARIANTS:\n    for layout in names.LAYOUTS:\n"
            "        case = Case('add', '', '', 'float32', variant, layout)\n"
            "        compile(from_op_db(case, \"DEVICE = 'x'\", 3, 'CRASH: ' + '\"' * 3 + chr(27)), 'script', 'exec')\n"
            "assert 'torch' not in sys.modules"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    @pytest.mark.slow
    def test_a_crash_in_every_variant_runs_alone(self, tmp_path: Path) -> None:
        """A script that identifies its sample only by index runs, including tensors for out=."""
        from conformance.sources.opinfo.sample_script import from_op_db

        variants = dict.fromkeys(names.VARIANTS, "cumsum") | {"error_inputs": "gather"}
        texts = [from_op_db(case(op, variant, "gaps"), HONEST, 1, "CRASH") for variant, op in variants.items()]
        for said in printed(texts, tmp_path):
            assert "no difference here" in said
            assert "AttributeError" not in said
