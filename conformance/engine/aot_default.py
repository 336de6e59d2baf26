"""The backend `aot_default` of torch.compile: AOTAutograd with its default settings, which runs each graph unchanged.

    register_backend(aot_autograd(fw_compiler=compile_graph), "mine")     # how a backend gets AOTAutograd's graphs

Such a backend gets other graphs than torch's `aot_eager`, which lets a graph write its inputs. So bugs of AOTAutograd
may show with the one and not with the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.standalone.torch_compat import lookup

NAME = "aot_default"


def _run_graph(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
    return lookup("torch._functorch.aot_autograd:make_boxed_func")(graph.forward)  # type: ignore[no-any-return]


_aot_autograd = lookup("torch._dynamo.backends.common:aot_autograd")
lookup("torch._dynamo:register_backend")(_aot_autograd(fw_compiler=_run_graph), NAME)
