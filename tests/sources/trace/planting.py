"""Plant a wrong operator into tiny: the value function of an operator gives another value."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

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

        def wrong(*given: Any, **named: Any) -> Any:
            made = function(*given, **named)
            return (change(made[0]), *made[1:]) if isinstance(made, tuple) else change(made)

        return wrong

    queued = backend.queue_calls(False)  # queued calls repeat what earlier calls of the same geometry recorded
    with mock.patch.object(schema_kernels, "choose", choose):
        yield
    backend.queue_calls(queued)
