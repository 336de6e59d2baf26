"""torch.compile with the backend `aot_eager` on the CPU: Dynamo and AOTAutograd, and then torch's own kernels.

What differs is the fault of tracing, functionalization, fake tensors, autograd's joint graph or aliasing; no code
generator takes part.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from conformance.core.errors import TargetError
from conformance.core.names import ORACLES, SIGNIFICANT_STRIDE
from conformance.core.target import Target


class AotEagerTarget(Target):
    name = "aot_eager"
    transforms_program = True
    oracles = frozenset(ORACLES) - {"kernels", "version", "stride"} | {SIGNIFICANT_STRIDE}
    unsupported = frozenset(
        {"same_base", "set_data", "set_view_", "resize_filled_", "empty_filled", "a second backward"}
    )
    """`same_base` asks for views' bases and addresses, and the next four replace a storage or look into its gaps: what
    a functional graph does not have. What was compiled together is one node of the autograd graph, which can be gone
    through once. `backward` itself, and a step that raises, are where one compiled function ends and the next begins.
    """

    def prepare(self) -> None:
        """Compile one function, so that a Dynamo that does not work here is one sentence."""
        # For its log only, Dynamo times each new function's guards, and flushes the processor's caches before: 0.07 s.
        if hasattr(torch._dynamo.guards, "profile_guard_manager"):
            torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
        try:
            self.between = torch._dynamo.disable(super().attempt, recursive=False)
            self.transform(lambda tensor: tensor.mul(2).view(-1).add_(1))(torch.ones(2, 3))
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise TargetError(
                f"torch.compile with backend {self.name!r} does not work here on Python "
                f"{sys.version.split()[0]}: {reason}"
            ) from error

    def attempt(self, step: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        """The step is compiled by itself, between the parts of the program before and after it: an exception ends the
        compiled function it is in. Dynamo's wrapping of an error that it met while it traced is taken off."""
        answer = self.between(step, *tensors)
        while isinstance(answer, torch._dynamo.exc.TorchDynamoException) and answer.__context__ is not None:
            answer = answer.__context__
        return answer

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled function; what was compiled before is forgotten, so that memory stays flat, and so are fake
        tensors' remembered calls, so that an answer follows from the program alone."""
        torch._dynamo.reset()
        FakeTensorMode.cache_clear()
        compiled = torch.compile(function, backend=self.name, dynamic=False)

        def call(*inputs: torch.Tensor) -> Any:
            try:
                return compiled(*inputs)
            except torch._dynamo.exc.BackendCompilerFailed as error:
                raise error.inner_exception from error

        return call

    def script(self) -> str:
        """The compiler."""
        return (
            f"DEVICE = {self.name!r}\n\n\ndef transform(function):\n"
            f"    return torch.compile(function, backend={self.name!r}, dynamic=False)"
        )
