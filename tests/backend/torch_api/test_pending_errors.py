"""Errors and interrupts that are raised while torch leaves the device."""

from __future__ import annotations

import textwrap

import pytest
import torch

from tests.run_script import Standalone


class Refusing(torch.Tensor):
    """A wrapper that refuses products after its first one."""

    products = 0

    @staticmethod
    def __new__(cls, inner, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=requires_grad
        )

    def __init__(self, inner, requires_grad=False):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mul.Tensor:
            if cls.products:
                raise KeyError("no more products")
            cls.products += 1
        return cls(func(*[x.inner if isinstance(x, cls) else x for x in args], **(kwargs or {})))


def test_an_error_of_a_subclass_is_raised(monkeypatch):
    """An error of a tensor subclass in a backward pass is raised as it is. Formerly the process ended, or the error was
    a SystemError without its text."""
    for _ in range(3):
        monkeypatch.setattr(Refusing, "products", 0)
        loss = (Refusing(torch.ones(3, device="tiny"), True) * Refusing(torch.ones(3, device="tiny"))).sum()
        with pytest.raises(KeyError, match="no more products"):
            loss.backward()
    x = torch.ones(3, device="tiny", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_an_interrupt_of_a_backward_pass_is_raised(standalone: Standalone, sigint_heeded):
    """Ctrl-C in a backward pass raises KeyboardInterrupt in the next line of Python, and never in a C++ function that
    may not throw, which ended the process. The hook sends the signal without a line of Python after it."""
    script = """
        import ctypes, functools, signal
        import torch, conformance.backend
        send = ctypes.PyDLL(None)["raise"]
        send.argtypes, send.restype = [ctypes.c_int, ctypes.py_object, ctypes.py_object], None
        for _ in range(3):
            x = torch.ones(3, device="tiny", requires_grad=True)
            y = x * 2
            y.grad_fn.register_hook(functools.partial(send, signal.SIGINT))
            try:
                (y * y).sum().backward()
            except KeyboardInterrupt:
                print("interrupted")
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """
    result = standalone(textwrap.dedent(script))
    assert result.stdout.split() == ["interrupted"] * 3 + ["True"], result.stderr
