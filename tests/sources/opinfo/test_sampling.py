"""Sample inputs: their device and layout, and their equality with OpInfo's own samples."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

from conformance.record import names
from conformance.sources.opinfo import plan


def case(name: str, variant: str = "forward", samples: int | None = None) -> plan.Case:
    return plan.Case(name, "", "", "float32", variant, "as_sampled", samples)


class TestSampling:
    """Devices and layouts of inputs."""

    def test_indices_that_opinfo_keeps_stay(self, cpu: Any) -> None:
        """OpInfo creates the indices of tensor_split without a device argument, so they stay on the CPU; the input
        moves."""
        from conformance.engine.target import Target
        from conformance.sources.opinfo.catalog import find
        from conformance.sources.opinfo.sampling import samples
        from conformance.standalone.moving import send_tree

        class Meta(Target):
            name = "meta"

            def upload(self, flats: Any) -> Any:
                return [flat.to("meta") for flat in flats]

        import torch

        sample = next(samples(find(case("tensor_split")), "forward", torch.float32, "as_sampled", 1))
        sent = send_tree(sample.tree, Meta().send, torch.device("meta"), sample.kept)
        assert (sent["input"].device.type, sent["args"][0].device.type) == ("meta", "cpu")

    def test_an_accelerator_stands_for_the_target(self, cpu: Any, monkeypatch: Any) -> None:
        """With a GPU, OpInfo samples `zeros_like(x, device="cuda")`, whose reference was then on no CPU: fourteen
        operators failed in the harness itself."""
        import torch

        from conformance.sources.opinfo.catalog import find
        from conformance.sources.opinfo.sampling import samples
        from conformance.standalone.moving import MARKER

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        drawn = [*samples(find(case("zeros_like")), "forward", torch.float32, "as_sampled", None)]
        devices = [sample.kwargs["device"] for sample in drawn if "device" in sample.kwargs]
        assert devices.count(MARKER) > 1
        assert {*devices} == {MARKER, "cpu"}

    def test_a_meta_tensor_among_wrong_inputs(self, cpu: Any) -> None:
        """A meta tensor among error inputs is no failure. Regression test: gradient's error inputs contain a meta
        tensor, which cannot be moved, and the harness itself failed."""
        from conformance.sources.opinfo.case import run_case

        result = run_case(case("gradient", variant="error_inputs", samples=20), cpu)
        assert (str(result.outcome), result.failures) == ("PASS", ())

    @pytest.mark.parametrize("name", ["add", "nn.functional.dropout", "normal"])
    def test_samples_are_opinfos_own(self, cpu: Any, name: str) -> None:
        """The harness seeds the generator itself and gets the samples that OpInfo's iterator gets with its own seed."""
        import torch

        from conformance.sources.opinfo import catalog
        from conformance.sources.opinfo.sampling import samples

        op = catalog.find(case(name))
        ours = samples(op, "forward", torch.float32, "as_sampled", 5)
        for sample, theirs in zip(ours, op.sample_inputs("cpu", torch.float32), strict=False):
            torch.testing.assert_close((sample.input, sample.args), (theirs.input, theirs.args), rtol=0, atol=0)

    @pytest.mark.parametrize(
        ("name", "variant", "limit"),
        [("linalg.svd", "forward", 20), ("svd", "backward", 4), ("searchsorted", "forward", 6)],
    )
    def test_at_most_half_are_empty(self, cpu: Any, name: str, variant: str, limit: int) -> None:
        """Regression test: the first samples of these entries are empty, so their cases passed and compared nothing."""
        import torch

        from conformance.sources.opinfo.catalog import find
        from conformance.sources.opinfo.sampling import samples
        from conformance.standalone.moving import tensors

        drawn = list(samples(find(case(name)), variant, torch.float32, "as_sampled", limit))
        empty = [sample for sample in drawn if any(not tensor.numel() for tensor in tensors(sample.tree))]
        assert (len(drawn), len(empty)) == (limit, limit // 2)
        assert [sample.index for sample in drawn[: limit // 2]] == list(range(limit // 2))

    def test_empty_samples_without_others_are_taken(self, cpu: Any) -> None:
        """The empty ones come last if not enough others follow."""
        import torch

        from conformance.sources.opinfo.catalog import find
        from conformance.sources.opinfo.sampling import samples

        drawn = samples(find(case("sparse.sampled_addmm")), "backward", torch.float32, "as_sampled", 4)
        assert [sample.index for sample in drawn] == [0, 1, 7, 2]

    @pytest.mark.parametrize("variant", ["forward", "reference_inputs", "error_inputs"])
    def test_no_test_is_looked_for(self, cpu: Any, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """OpInfo's iterators do not inspect the stack. Regression test: they read the source of every frame to find a
        test, which took most of the time."""
        import torch

        from conformance.sources.opinfo.catalog import find
        from conformance.sources.opinfo.sampling import samples

        looked: list[str] = []
        monkeypatch.setattr(inspect, "stack", lambda *_: looked.append("looked") or [])
        assert list(samples(find(case("gather")), variant, torch.float32, "as_sampled", 2)) and not looked
        assert next(iter(find(case("gather")).sample_inputs("cpu", torch.float32))) and looked

    def test_one_sample_by_its_index(self, command: Any) -> None:
        """PYTORCH_OPINFO_SAMPLE_INPUT_INDEX selects one sample."""
        code = (
            "import torch; from conformance.engine.loading import load_target; load_target('cpu')\n"
            "from conformance.sources.opinfo import catalog, plan\n"
            "from conformance.sources.opinfo.sampling import samples\n"
            "op = catalog.find(plan.Case('add', '', 'binary', 'float32', 'forward', 'as_sampled'))\n"
            "drawn = list(samples(op, 'forward', torch.float32, 'as_sampled', None))\n"
            "said = [[sample.index, sample.input.sum().item()] for sample in drawn]\n"
        )
        everything: dict[str, Any] = {}
        exec(code, everything)  # noqa: S102 - the lines above, in a process where all are asked for
        environment = {**command.environment, "PYTORCH_OPINFO_SAMPLE_INPUT_INDEX": "3"}
        words = [sys.executable, "-c", f"{code}print(said)"]
        [[index, total]] = json.loads(subprocess.check_output(words, env=environment, text=True))
        assert [number for number, _ in everything["said"]] == list(range(len(everything["said"])))
        assert (index, total) == (3, everything["said"][3][1]) and total != everything["said"][0][1]

    @pytest.mark.parametrize("layout", [name for name in names.LAYOUTS if name not in ("as_sampled", "expanded")])
    def test_layouts_keep_values(self, layout: str) -> None:
        """A layout changes strides or offset, never size or values."""
        import torch

        from conformance.standalone.layouts import laid_out

        for shape in ((), (0, 3), (4,), (2, 1, 3), (2, 3, 4, 5)):
            values = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
            result = laid_out(values, layout)
            assert torch.equal(result, values)
        assert (result.stride(), result.storage_offset()) != (values.stride(), values.storage_offset())
