"""Plant a wrong operator into tiny, in the value function of an operator, or into a compiler behind AOTAutograd."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

Change = Callable[[Any], Any]


@contextlib.contextmanager
def planted(name: str, change: Change) -> Iterator[None]:
    """Change the results of the value function of an overload, such as "gelu.default", inside the block."""
    import conformance.backend as backend
    from conformance.backend.dispatch import schema_kernels
    from conformance.backend.dispatch.registry import ROWS

    right, row = schema_kernels.choose, ROWS[name]

    def choose(one: Any, args: Any, outs: Any) -> Any:
        function = right(one, args, outs)
        if one is not row or function is None:
            return function

        def wrong(*positional: Any, **named: Any) -> Any:
            result = function(*positional, **named)
            return (change(result[0]), *result[1:]) if isinstance(result, tuple) else change(result)

        return wrong

    queued = backend.queue_calls(False)  # queued calls repeat what earlier calls of the same geometry recorded
    with mock.patch.object(schema_kernels, "choose", choose):
        yield
    backend.queue_calls(queued)


def lying(name: str) -> Callable[..., Any]:
    """Return a backend of torch.compile that makes each result of an aten overload 1 % larger."""

    def larger(graph: torch.fx.GraphModule, examples: Any) -> Any:
        for node in [node for node in graph.graph.nodes if str(node.target) == f"aten.{name}"]:
            users = [user for user in node.users if user.target is operator.getitem]
            for one in users[:1] or [node]:
                with graph.graph.inserting_after(one):
                    wrong = graph.graph.call_function(torch.ops.aten.mul.Tensor, (one, 1.01))
                one.replace_all_uses_with(wrong, delete_user_cb=lambda user, wrong=wrong: user is not wrong)
        graph.recompile()
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=larger)
