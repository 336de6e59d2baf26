"""Published architectures on tiny, eager and compiled: training and text generation agree with the CPU."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

import conformance
from conformance.sources.trace.source_lines import PHASES
from tests.clients import model_runs
from tests.clients.models import BY_NAME, MODELS, Model

slow = [pytest.mark.slow, pytest.mark.timeout(900)]


def each(models: list[Model]) -> list[object]:
    return [pytest.param(model, id=model.name, marks=slow) for model in models]


@pytest.fixture(autouse=True)
def _has_its_package(request: pytest.FixtureRequest) -> None:
    if "model" in request.fixturenames and find_spec("transformers") is None:
        pytest.skip("the extra `clients` is not installed")


@pytest.mark.parametrize("model", each(MODELS))
def test_training(model: Model) -> None:
    """The losses of three steps equal the CPU's, with dropout."""
    expected = model_runs.train(model, "cpu")
    assert len(set(expected.losses.tolist())) == model_runs.STEPS, "the steps do not change the loss"
    actual = model_runs.train(model, "tiny")
    assert actual.kernels > 0
    torch.testing.assert_close(actual.losses, expected.losses)


@pytest.mark.parametrize("model", each(MODELS))
def test_compiled_training(model: Model) -> None:
    """The losses of three compiled steps equal the eager CPU's."""
    expected = model_runs.train(model, "cpu")
    actual = model_runs.train(model, "tiny", compile=True)
    assert actual.kernels > 0
    torch.testing.assert_close(actual.losses, expected.losses)


@pytest.mark.parametrize("compile", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("model", each([model for model in MODELS if model.prompt]))
def test_generation(model: Model, compile: bool) -> None:
    """New tokens and their logits equal the CPU's, with a growing key-value cache."""
    words, logits = model_runs.generate(model, "cpu")
    tokens, token_logits = model_runs.generate(model, "tiny", compile=compile)
    assert torch.equal(tokens, words)
    torch.testing.assert_close(token_logits, logits)


UNTRACEABLE = {"transformers.BloomForCausalLM"}
"""Models with a custom autograd.Function, which torch.jit.trace refuses on every device."""


@pytest.mark.parametrize("model", each(MODELS))
def test_tracing(model: Model) -> None:
    """A model that torch.jit.trace captured, saved and loaded returns the results of the CPU's trace."""
    if model.name in UNTRACEABLE:
        for device in ("cpu", "tiny"):
            with pytest.raises(RuntimeError, match="Could not export Python function call"):
                model_runs.traced(model, device)
        return
    expected = model_runs.traced(model, "cpu")
    torch.testing.assert_close(model_runs.traced(model, "tiny"), expected)


@pytest.mark.parametrize("model", each(MODELS))
def test_traced_training(model: Model) -> None:
    """`conformance.trace` judges each call of a training step, optimizer included, and finds no wrong operator."""
    with conformance.trace(steps=(1, 1)) as found:
        model_runs.train(model, "tiny")
    phases = {phase for (_, phase), tally in found.mode.tallies.items() if tally.judged}
    assert phases == {*PHASES}
    assert not found.faults, str(found)


class TestTable:
    """docs/models.csv, checked without running a model."""

    def test_there_are_thirty(self) -> None:
        assert len(BY_NAME) == len(MODELS) >= 30

    def test_rows_are_of_models(self) -> None:
        """Every row of the file belongs to a model of the table, and writing no row changes nothing."""
        text = model_runs.TABLE.read_text()
        rows = model_runs.rows_of(text)
        assert rows
        assert set(rows) <= set(BY_NAME)
        assert model_runs.written(text, {}) == text

    def test_rows_are_replaced_in_order(self) -> None:
        """New rows are inserted in the order of the models, and other rows stay."""
        first, second = list(BY_NAME)[:2]
        table = model_runs.written(f"{model_runs.HEADER}\n", {second: f"{second},1"})
        table = model_runs.written(table, {first: f"{first},2"})
        assert table == f"{model_runs.HEADER}\n{first},2\n{second},1\n"

    def test_another_file_is_refused(self) -> None:
        """A file without the header is an error that names the header."""
        with pytest.raises(ValueError, match=r"models\.csv does not begin with the line 'model,"):
            model_runs.rows_of("a,b\n")
