"""Training with PyTorch Lightning on tiny."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.slow
pl = pytest.importorskip("lightning.pytorch")

from conformance.backend.lightning import TinyAccelerator, TinyStrategy  # noqa: E402 - needs Lightning


class Classifier(pl.LightningModule):  # type: ignore[misc]
    """Two layers, which note the device and the loss of each step."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
        self.steps: list[tuple[str, float]] = []

    def training_step(self, batch, number):
        """Return the loss of a batch."""
        points, labels = batch
        loss = functional.cross_entropy(self.net(points), labels)
        self.steps.append((loss.device.type, loss.item()))
        return loss

    def validation_step(self, batch, number):
        """Log the share of right labels."""
        points, labels = batch
        self.log("right", (self.net(points).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), 1e-2)


def trained(**options):
    """Return the steps of two epochs with these options of the trainer, and the share of right labels."""
    torch.manual_seed(0)
    points = torch.randn(64, 8)
    pairs = torch.utils.data.TensorDataset(points, (points.sum(1) > 0).long())
    batches, model = torch.utils.data.DataLoader(pairs, 16), Classifier()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(max_epochs=2, **quiet, **options)
    trainer.fit(model, batches, batches)
    return model.steps, float(trainer.callback_metrics["right"])


def test_trains_as_on_the_cpu():
    """`TinyStrategy` trains on tiny: the losses and the metric are those of the CPU."""
    (ours, right), (theirs, expected) = trained(strategy=TinyStrategy()), trained(accelerator="cpu")
    assert {device for device, _ in ours} == {"tiny"}
    assert len(ours) == len(theirs) == 8
    assert [loss for _, loss in ours] == pytest.approx([loss for _, loss in theirs], rel=1e-5)
    assert right == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accelerator": TinyAccelerator()}, r"the strategy trains on cpu, not on tiny:0: use .*TinyStrategy\(\)"),
        ({"strategy": TinyStrategy(), "devices": 2}, "there is one device tiny, not 2: use devices=1"),
    ],
)
def test_never_trains_elsewhere(options, said):
    """The accelerator alone, with which Lightning trains on the CPU and says nothing, and two devices are refused."""
    with pytest.raises(ValueError, match=said):
        trained(**options)
