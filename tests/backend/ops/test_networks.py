"""Products, convolutions, pools, normalizations, resampling and recurrent cells beyond the samples of OpInfo."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp
from torch.nn import functional as F

from conformance import backend
from conformance.backend import kernels
from conformance.backend.ops import rnn
from conformance.backend.ops.upsample import MODES, transpose

NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def both(f, *xs, **tolerance):
    """Compare values and strides of `f` on the device and on the CPU."""
    actual, expected = f(*[x.to("tiny") for x in xs]), f(*xs)
    for a, e in zip(torch.utils._pytree.tree_leaves(actual), torch.utils._pytree.tree_leaves(expected), strict=True):
        assert a.stride() == e.stride()
        torch.testing.assert_close(a.cpu(), e, equal_nan=True, **tolerance)


def gradients(f, *xs):
    """Compare the gradients of the sum of f's squares on the device and on the CPU."""

    def grads(*leaves):
        leaves = [x.detach().requires_grad_() for x in leaves]
        return torch.autograd.grad(f(*leaves).square().sum(), leaves)

    both(grads, *[x.double() for x in xs])  # in float64, so that rounding neither hides nor imitates a wrong formula


class TestProducts:
    def test_beta_zero_ignores_nan(self):
        """With beta 0 the added matrix is not read. With alpha 0 the product still spreads nan."""
        a, bad = torch.randn(2, 3), torch.full((2, 2), NAN)
        both(lambda x, y: torch.addmm(x, y, y.t(), beta=0), bad, a)
        both(lambda x, y: torch.addr(x, y[0, :2], y[:, 0], alpha=0), torch.ones(2, 2), torch.full((2, 3), INF))

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64])
    def test_integers_wrap(self, dtype):
        """Integer products wrap in the operands' dtype."""
        x = torch.randint(0, 100, (4, 5)).to(dtype)
        both(lambda a: a @ a.t(), x)

    def test_nothing_to_sum(self):
        """A product over an empty dimension is zero."""
        both(lambda a, b: a @ b, torch.ones(2, 0), torch.ones(0, 3))


class TestConvolution:
    @pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [(2, 1, 1, 2), (3, 2, 2, 1)])
    @pytest.mark.parametrize("transposed", [False, True])
    def test_gradients(self, stride, padding, dilation, groups, transposed):
        """Gradients of input, weight and bias agree if the stride does not divide the input."""
        conv = F.conv_transpose2d if transposed else F.conv2d
        x, bias = torch.randn(2, 4, 9, 8), torch.randn(4)
        weight = torch.randn(4, 4 // groups, 3, 2)
        gradients(
            lambda x, w, b: conv(x, w, b, stride=stride, padding=padding, dilation=dilation, groups=groups),
            x, weight, bias,
        )  # fmt: skip

    @pytest.mark.parametrize("rank", [1, 2])
    @pytest.mark.parametrize(("stride", "padding", "dilation"), [(2, 0, 1), (2, 1, 1), (3, 0, 2), (1, 0, 1)])
    def test_transposed_of_infinite_weights(self, rank, stride, padding, dilation):
        """Infinite weights affect only the outputs that the input reaches. Formerly the zeros around the input and
        between its elements turned them into nan.

        The test uses float64, because the CPU's library spreads the nan into another channel in float32.
        """
        conv = [F.conv_transpose1d, F.conv_transpose2d][rank - 1]
        x, weight = torch.randn(2, 3, *[4] * rank).double(), torch.randn(3, 2, *[3] * rank).double()
        weight.view(-1)[0], weight.view(-1)[-2], x.view(-1)[5] = math.inf, math.nan, -math.inf
        mine, theirs = (
            conv(x.to(d), weight.to(d), stride=stride, padding=padding, dilation=dilation).cpu()
            for d in ("tiny", "cpu")
        )
        torch.testing.assert_close(mine, theirs, equal_nan=True)

    def test_gradients_by_infinite_weights(self):
        """Infinite weights do not add nan to the gradient of a strided convolution, which is a transposed convolution
        with padded zeros."""
        x, weight = torch.randn(1, 2, 7, 7), torch.randn(3, 2, 3, 3)
        weight[0, 0, 0, 0] = math.inf
        grads = []
        for device in ("tiny", "cpu"):
            leaf = x.to(device, copy=True).requires_grad_()
            F.conv2d(leaf, weight.to(device), stride=2, padding=1).sum().backward()
            grads.append(leaf.grad.cpu())
        torch.testing.assert_close(*grads, equal_nan=True)

    def test_channels_last(self):
        """The result has the CPU's strides."""
        x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
        both(lambda x, w: F.conv2d(x, w, padding=1), x.double(), torch.randn(4, 3, 3, 3).double())

    def test_one_kernel(self):
        """A padded convolution with bias and relu is one kernel."""
        x, w, b = (torch.randn(s).to("tiny") for s in ((1, 2, 5, 5), (3, 2, 3, 3), (3,)))
        backend.reset_stats()
        F.conv2d(x, w, b, padding=1).relu().cpu()
        assert backend.stats()["kernels"] == 1


class TestPools:
    def test_nan_and_infinities(self):
        """The last nan of a window wins. In a window of -inf the first element inside wins, not the padding."""
        x = torch.randn(1, 1, 5, 5)
        x[0, 0, 0], x[0, 0, 1, 1], x[0, 0, 1, 2], x[0, 0, 3:] = -INF, NAN, NAN, -INF
        both(lambda x: F.max_pool2d(x, 3, 2, padding=1, return_indices=True), x)
        both(lambda x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True), x)

    @pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), [(3, 2, 1, 1), (2, 3, 1, 2)])
    def test_max_gradient(self, kernel, stride, padding, dilation):
        """Overlapping, gapped and dilated windows agree, with three kernels: for the maxima, the places and the
        gradient."""
        x = torch.randn(2, 2, 8, 7)
        gradients(lambda x: F.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode=True), x)
        leaf = x.to("tiny").requires_grad_()
        backend.reset_stats()
        torch.autograd.grad(F.max_pool2d(leaf, kernel, stride, padding, dilation).sum(), leaf)[0].cpu()
        assert backend.stats()["kernels"] == 3

    @pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (2, 3, 1)])
    @pytest.mark.parametrize("include", [False, True])
    def test_average_gradient(self, kernel, stride, padding, include):
        """Windows beyond the edge use the CPU's divisor."""
        gradients(lambda x: F.avg_pool2d(x, kernel, stride, padding, True, include), torch.randn(2, 2, 8, 7))


class TestNorms:
    def test_running_statistics(self):
        """Running statistics are updated in place and visible to every view. A training pass of batch norm takes 5
        kernels."""
        mean, var, x = torch.zeros(3), torch.ones(3), torch.randn(4, 3, 5)
        tiny_mean, tiny_var = mean.to("tiny"), var.to("tiny")
        view = tiny_mean[1:]
        backend.reset_stats()
        y = F.batch_norm(x.to("tiny"), tiny_mean, tiny_var, training=True)
        actual = y.cpu()
        assert backend.stats()["kernels"] == 5
        torch.testing.assert_close(actual, F.batch_norm(x, mean, var, training=True))
        torch.testing.assert_close(view.cpu(), mean[1:])
        torch.testing.assert_close(tiny_var.cpu(), var)

    def test_rounded_statistics(self):
        """bfloat16 statistics are rounded step by step and equal the CPU's bit by bit."""
        x = torch.randn(3, 2, 3, 4).mul(5).bfloat16()
        both(lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 0.5)[1:], x, rtol=0, atol=0)

    @pytest.mark.parametrize(("size", "stride"), [
        ((2, 4, 1, 1), (4, 1, 4, 4)), ((2, 1, 3, 3), (9, 1, 3, 1)), ((3, 2, 1, 5), (10, 1, 2, 2)),
        ((2, 4, 3, 2), (24, 1, 8, 4)), ((2, 3, 1, 2, 1), (6, 1, 6, 3, 12)), ((2, 4, 3, 2), (24, 6, 1, 3)),
    ])  # fmt: skip
    def test_strides(self, size, stride):
        """A result is channels-last only if the input is, and is not also contiguous, as on the CPU."""
        x, ones = torch.empty_strided(size, stride).normal_(), torch.ones(size[1])
        operands = [tensor.to("tiny") for tensor in (x, ones, ones, ones, ones)]
        assert operands[0].stride() == x.stride()
        words = (True, 0.1, 0.1)
        expected = torch.native_batch_norm(x, ones, ones, ones.clone(), ones.clone(), *words)[0]
        assert torch.native_batch_norm(*operands, *words)[0].stride() == expected.stride()

    def test_an_out_that_overlaps_the_input(self):
        """An overlapping out= is refused if torch CPU refuses it. The input itself may be the out=. The device formerly
        treated an out= over its input as separate memory. An out= that is shifted against the input has no defined
        answer: two threads of torch CPU race, and give one of two."""

        def run(device):
            base, stats = torch.arange(40.0, device=device), torch.zeros(2, 3, device=device)
            x = base[:24].view(2, 3, 4)
            words = (x, None, None, None, None, True, 0.1, 1e-5)
            out = base[:24].view(3, 2, 4).transpose(0, 1)
            with pytest.raises(RuntimeError, match="single memory location"):
                torch.native_batch_norm(*words, out=(out, stats[0], stats[1]))
            torch.native_batch_norm(*words, out=(x, stats[0], stats[1]))
            return base.cpu(), stats.cpu()

        torch.testing.assert_close(run("tiny"), run("cpu"))


class TestResampling:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(("size", "count"), [(5, 5), (4, 9), (9, 4), (1, 3), (7, 1)])
    def test_transpose(self, mode, size, count):
        """The transposed table is the transposed matrix."""
        taps = MODES[mode](size, count, False, None, np.float64)
        matrix, back = np.zeros((count, size)), np.zeros((size, count))
        for table, out in ((taps, matrix), (transpose(taps, size), back)):
            np.add.at(out, (np.arange(len(out))[:, None], table.positions), table.weights)
        np.testing.assert_allclose(back, matrix.T)
        np.testing.assert_allclose(matrix.sum(1), 1)

    def test_nan_stays_in_its_region(self):
        """An average over regions without a nan does not read it."""
        x = torch.randn(1, 1, 7, 7)
        x[0, 0, 6, 6] = NAN
        both(lambda x: F.adaptive_avg_pool2d(x, (3, 2)), x)


class TestRecurrent:
    @pytest.mark.parametrize("kind", ["GRU", pytest.param("LSTM", marks=pytest.mark.slow)])
    def test_step(self, kind):
        """Two layers over three steps give the CPU's outputs and gradients without a fallback."""
        model = getattr(torch.nn, kind)(3, 4, 2).double()
        tiny = copy.deepcopy(model).to("tiny")
        x = torch.randn(3, 2, 3, dtype=torch.float64)
        with backend.no_fallback():
            out = tiny(x.to("tiny"))[0]
            out.square().sum().backward()
        expected = model(x)[0]
        expected.square().sum().backward()
        torch.testing.assert_close(out.detach().cpu(), expected.detach())
        for p, q in zip(model.parameters(), tiny.parameters(), strict=True):
            torch.testing.assert_close(q.grad.cpu(), p.grad)


@pytest.mark.parametrize("function", [torch.linalg.det, torch.logdet, lambda a: torch.linalg.slogdet(a)[1]])
@pytest.mark.parametrize("transposed", [False, True])
def test_gradient_of_a_determinant(function, transposed):
    """The gradient of a determinant is right for both layouts. For a contiguous matrix the LU is of the transpose, and
    the gradient formerly used the other one."""
    matrix = torch.eye(4) * 3 + torch.arange(16.0).view(4, 4) / 10
    grads = []
    for device in ("cpu", "tiny"):
        a = matrix.clone().to(device).requires_grad_()
        function(a.mT if transposed else a).backward()
        grads.append(a.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("padding", [(2, 3), (3, -2), (2, 1, -1, 3), (1, 2, 3, 1, 2, -1)])
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_pads_by_what_lies_within(mode, padding, dtype):
    """reflect and replicate take one kernel and have the CPU's strides. torch's decomposition used the strides of an
    index, which differ for a result without elements or with dimensions of size 1."""
    dims = len(padding) // 2
    x = torch.arange(12.0 * 5**dims).view(2, 6, *[5] * dims).to(dtype)
    turned = x.transpose(1, -1).contiguous().transpose(1, -1)
    for one in (x, x[:1], x[:0], turned, turned[:0], x[:, ::2]):
        both(lambda t: F.pad(t, padding, mode), one)
    pushed = x.to("tiny")
    with kernels.count() as k:
        F.pad(pushed, padding, mode).cpu()
    assert k.kernels == 1


def test_pads_that_the_cpu_refuses():
    """Pads beyond the mirror's end, sizes without elements, and mirrored bools are refused with the CPU's error."""
    for size, padding, dtype in (((1, 3), (3, 0), torch.float32), ((2, 0), (1, 1), torch.float32),
                                 ((1, 3), (1, 1), torch.bool), ((1, 3), (-2, -2), torch.int64)):  # fmt: skip
        messages = []
        for device in ("cpu", "tiny"):
            with pytest.raises((RuntimeError, NotImplementedError)) as raised:
                F.pad(torch.zeros(size, dtype=dtype, device=device), padding, "reflect")
            messages.append((raised.type, str(raised.value)))
        assert messages[0] == messages[1]


@pytest.mark.parametrize("padding", [(2, 3), (3, -2), (-1, 2), (2, 1, -1, 3), (1, 2, 3, 1, 2, 0)])
def test_gradient_of_reflecting_pads(padding):
    """The gradient of reflect is folded back in one kernel, also for negative pads. torch's decomposition gathered each
    of 3**d pieces separately."""
    dims, grads = len(padding) // 2, []
    for device in ("cpu", "tiny"):
        x = torch.arange(2.0 * 5**dims).view(1, 2, *[5] * dims).sin().to(device).requires_grad_()
        y = torch.nn.functional.pad(x, padding, "reflect")
        loss = (y * torch.arange(float(y.numel()), device=device).view(y.shape)).sum()
        with kernels.count() as k:
            loss.backward()
            grads.append(x.grad.cpu())
    assert k.kernels == 1
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("numbers", [{"dilation": 0}, {"padding": -1}, {"stride": 0}, {"stride": -1}])
@pytest.mark.parametrize("function", [F.conv1d, F.conv2d, F.conv3d, F.conv_transpose2d])
def test_convolution_of_numbers_that_make_no_sense(function, numbers):
    """Invalid numbers raise the CPU's error. Formerly the meta kernel accepted a dilation of 0 and a negative padding,
    and the device computed a result."""
    dims = int(function.__name__[-2])

    def error(device):
        x, weight = torch.ones((1, 2, *[5] * dims), device=device), torch.ones((2, 2, *[3] * dims), device=device)
        with pytest.raises(RuntimeError) as raised:
            function(x, weight, **numbers)
        return str(raised.value)

    assert error("tiny") == error("cpu")


def test_an_encoder_with_padding_in_eval_mode():
    """Positions without padding agree in eval mode. There the CPU uses a nested input, which the device does not
    support."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, 2).eval()
    x, padded = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = net(x, src_key_padding_mask=padded)
        actual = net.to("tiny")(x.to("tiny"), src_key_padding_mask=padded.to("tiny")).cpu()
    torch.testing.assert_close(actual[~padded], expected[~padded])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", [torch.nn.functional.huber_loss, torch.nn.functional.smooth_l1_loss])
def test_gradients_of_losses_of_16_bits(loss, dtype):
    """Gradients of losses in 16 bits are right. They were formerly 0: torch's decomposition for an out= tensor writes
    into a float32 copy."""
    gradients = []
    for device in ("cpu", "tiny"):
        x = torch.tensor([1.0, 2.0, 3.0, -4.0], dtype=dtype, device=device).requires_grad_()
        y = torch.tensor([2.0, 2.5, 1.0, -4.0], dtype=dtype, device=device).requires_grad_()
        loss(x, y, reduction="sum").backward()
        gradients.append([x.grad.tolist(), y.grad.tolist()])
    assert gradients[0] == gradients[1]
    assert gradients[1][0] == [-1.0, -0.5, 1.0, 0.0]


def test_padding_of_16_bits_into_out():
    """A padding writes into an out= tensor of 16 bits. Formerly torch's decomposition left it unchanged, as with the
    losses."""
    x = torch.arange(6.0, dtype=torch.bfloat16).reshape(1, 1, 6)
    out = torch.zeros(1, 1, 8, dtype=torch.bfloat16, device="tiny")
    torch.ops.aten.reflection_pad1d.out(x.to("tiny"), [1, 1], out=out)
    assert out.cpu().tolist() == torch.ops.aten.reflection_pad1d(x, [1, 1]).tolist()


def test_dropout_keeps_16_bits_in_its_gradient():
    """native_dropout_backward of float16 returns float16. It formerly returned float32, because it multiplied the mask
    first."""
    gradient, mask = torch.tensor([1.5, 2.0, 3.0]).half(), torch.tensor([True, False, True])
    answer = torch.ops.aten.native_dropout_backward(gradient.to("tiny"), mask.to("tiny"), 1.25)
    want = torch.ops.aten.native_dropout_backward(gradient, mask, 1.25)
    assert (answer.dtype, answer.tolist()) == (want.dtype, want.tolist())


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dropout_computes_nothing_on_the_cpu(dtype, p):
    """dropout draws only the mask on the CPU. Formerly each dropout copied the activations to the CPU and back."""
    x = torch.linspace(-3, 3, 12).to(dtype).reshape(3, 4).t()
    torch.manual_seed(0)
    want = torch.native_dropout(x, p, True)
    moved = x.to("tiny")
    before = backend.stats()["copies_out"]
    torch.manual_seed(0)
    actual = torch.native_dropout(moved, p, True)
    assert backend.stats()["copies_out"] == before
    for one, other in zip(actual, want, strict=True):
        assert (one.dtype, one.stride(), one.tolist()) == (other.dtype, other.stride(), other.tolist())


def test_convolutions_by_torch_itself():
    """`torch._convolution`, which traced modules call, works. Its hook for out-of-tree devices was formerly empty."""
    x, weight, bias = torch.randn(1, 2, 5), torch.randn(3, 2, 2), torch.randn(3)
    rest = ([1], [0], [1], False, [0], 1, False, False, False, False)
    grads = []
    for device in ("cpu", "tiny"):
        inputs = [each.to(device, copy=True).requires_grad_() for each in (x, weight, bias)]
        torch._convolution(*inputs, *rest).square().sum().backward()
        grads.append([each.grad.cpu() for each in inputs])
    torch.testing.assert_close(grads[1], grads[0])


def test_a_group_norm_of_a_channels_last_image_with_other_strides_of_one():
    """group_norm accepts a channels-last image with unusual strides. A compiled autoencoder of diffusers has one,
    because the view of FakeTensor gives other strides than torch's. The CPU kernel, which formerly checked the call,
    refuses it as not contiguous."""
    image = torch.arange(256.0).sin().reshape(1, 4, 8, 8)
    x = image.to("tiny").contiguous(memory_format=torch.channels_last).as_strided((1, 4, 8, 8), (4, 1, 32, 4))
    with pytest.raises(RuntimeError, match="contiguous"):
        torch.native_group_norm(x.cpu(), None, None, 1, 4, 64, 2, 1e-5)
    actual = torch.native_group_norm(x, None, None, 1, 4, 64, 2, 1e-5)[0]
    torch.testing.assert_close(actual.cpu(), torch.nn.functional.group_norm(image, 2))


def test_a_template_of_a_cell_builds_the_same_nodes() -> None:
    """A cell over other operands, built from its template, is the expression that the cell itself builds."""

    def operands(*sizes: tuple[int, ...]) -> list[UOp]:
        return [UOp.new_buffer("CPU", math.prod(size), dtypes.float32).reshape(size) for size in sizes]

    cells: list[tuple[Any, list[tuple[int, ...]], list[Any]]] = [
        (rnn.lstm, [(3, 16), (3, 16), (3, 4), (16,), (16,)], []),
        (rnn.lstm, [(3, 16), (3, 16), (3, 4)], [None, None]),
        (rnn.lstm_backward, [(3, 4), (3, 4), (3, 4), (3, 4), (3, 16)], [True]),
        (rnn.gru, [(3, 12), (3, 12), (3, 4), (12,), (12,)], []),
        (rnn.gru_backward, [(3, 4), (3, 20)], [False]),
    ]
    for compute, sizes, others in cells:
        for _ in range(2):  # the second time from the template of the first
            values = [*operands(*sizes), *others]
            for direct, built in zip(compute(*values), rnn.expressions_of(compute, values, {}), strict=True):
                assert (direct is None) == (built is None)
                assert direct is None or (direct[0] == built[0] and direct[1] is built[1])
