"""The operator under test: schema, parameters, and the lines of a script that reach it."""

from __future__ import annotations

import functools

import pytest
import torch

from conformance.record.errors import UsageError
from conformance.sources.operator.subject import named, operator_of
from tests.planted import kernels


def local_function(name):
    """A local function of this name."""

    def inputs(x):
        return x + 1

    def got(x):
        return x + 1

    def want(x):
        return x + 1

    def check(x):
        return x + 1

    def main(x):
        return x + 1

    return {"inputs": inputs, "got": got, "want": want, "check": check, "main": main}[name]


class TestOperatorOf:
    def test_a_custom_operator_has_a_schema(self):
        """The schema tells the parameters and the written arguments, and the module has a name for it."""
        operator = operator_of(kernels.right_scale_)
        assert list(operator.signature.parameters) == ["x", "by"] and operator.written == {"x"}
        assert (operator.lines, operator.text) == (("from tests.planted.kernels import right_scale_",), "right_scale_")

    def test_an_operator_below_torch_ops(self):
        """It is reached by its path, after the import of the module that registers it."""
        operator = operator_of(torch.ops.lies.version, "tests.planted.kernels")
        assert operator.lines == ("import tests.planted.kernels  # registers the operator",)
        assert operator.text == "torch.ops.lies.version" and operator.written == {"x"}
        assert operator_of(torch.ops.lies.version.default).schema.name == "lies::version"

    def test_a_plain_function_declares_nothing(self):
        """A plain function has no schema."""
        operator = operator_of(kernels.right_view)
        assert operator.schema is None and operator.written is None and operator.text == "right_view"

    def test_a_local_function_is_written_out(self):
        """A function that no import reaches, and that needs nothing from outside, is defined in the script."""

        def local(x):
            return x + 1

        operator = operator_of(local)
        assert operator.lines == ("def local(x):", "    return x + 1") and operator.text == "local"

    def test_a_local_function_with_names_of_its_module(self):
        """The names that it uses are imported from its module."""

        def local(x):
            return [kernels.right_view(one) for one in torch.unbind(x)]

        assert operator_of(local).lines[0] == f"from {__name__} import kernels"

    def test_two_functions_of_one_name(self):
        """A function whose name is taken is imported under another name."""
        operator = operator_of(kernels.right_view, taken="right_view")
        assert operator.lines == ("from tests.planted.kernels import right_view as operator_",)
        assert operator.text == "operator_"

    def test_a_kernel_without_a_derivative(self):
        """An operator without a kernel for autograd has no derivative; a plain function may have one."""
        assert not operator_of(torch.ops.lies.version, "tests.planted.kernels").derivable
        assert operator_of(kernels.right_view).derivable and operator_of(kernels.right_silu).derivable

    @pytest.mark.parametrize("name", ["inputs", "got", "want", "check", "main"])
    def test_a_name_that_scripts_use(self, name, monkeypatch):
        """A script has functions of these names. Regression test: they replaced a local operator `check`, and any
        operator `main`."""
        local = local_function(name)
        operator = operator_of(local)
        assert operator.lines[-1] == f"operator_ = {name}" and operator.text == "operator_"
        monkeypatch.setattr(kernels, name, local, raising=False)
        operator = operator_of(local, "tests.planted.kernels")
        assert operator.lines == (f"from tests.planted.kernels import {name} as operator_",)

    def test_a_local_function_that_uses_such_a_name(self, monkeypatch):
        """Its import would be replaced, so the script says that no import reaches it."""
        monkeypatch.setitem(globals(), "want", kernels.right_view)

        def local(x):
            return want(x)  # noqa: F821

        assert "no import reaches" in operator_of(local).lines[0]

    def test_a_closure_cannot_be_reached(self):
        """The script says so."""
        one = 1
        operator = operator_of(lambda x: x + one)
        assert "no import reaches" in operator.lines[0]

    def test_functions_of_cpp_have_no_signature(self):
        """Arguments are then named by their position."""
        assert operator_of(torch.add).bound((1, 2), {"alpha": 3}) == {"arg0": 1, "arg1": 2, "alpha": 3}

    def test_arguments_that_do_not_fit(self):
        """A call with other parameters is not bound."""
        operator = operator_of(kernels.right_scale_)
        assert operator.bound((1, 2), {}) == {"x": 1, "by": 2}
        assert operator.bound((1, 2, 3), {}) is None and operator.bound((1,), {"other": 2}) is None

    def test_no_callable(self):
        """Anything else is one sentence."""
        with pytest.raises(UsageError, match="is no operator"):
            operator_of(3)

    def test_a_partial_function(self):
        """A callable without a name still has a text."""
        assert operator_of(functools.partial(torch.add, alpha=2)).text == "operator"


class TestNamed:
    def test_a_module_and_a_name(self):
        """MODULE:NAME, and a path below torch."""
        assert named("tests.planted.kernels:right_silu") is kernels.right_silu
        assert named("torch.nn.functional.silu") is torch.nn.functional.silu

    @pytest.mark.parametrize(
        ("path", "said"),
        [
            ("no_such_module:f", "module 'no_such_module' cannot be imported"),
            ("tests.planted.kernels:right_sliu", "has no 'right_sliu'; did you mean right_silu"),
            ("soft", r"module 'torch' has no 'soft' \(an operator of your own is MODULE:NAME\)"),
            ("tests.planted.kernels:VECTOR", "is no function"),
        ],
    )
    def test_a_wrong_path_is_one_sentence(self, path, said):
        """The error names the module or the name."""
        with pytest.raises(UsageError, match=said):
            named(path)
