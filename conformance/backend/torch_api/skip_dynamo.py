"""Excludes the device's own Python code from Dynamo.

Defines `skip_dynamo_frames`, called once when all modules of the backend are loaded.

After a graph break Dynamo examines every new Python frame. These include kernels, the device module and finalizers,
which torch or Python calls from C. It would compile them as parts of the user's program. Dynamo's C half, which exists
before Dynamo is imported, stores a strategy for each code object.

This module must not depend on the purpose of the code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

from tinygrad.device import Buffer
from tinygrad.uop.ops import UOp

from ..runtime import torch_compat

_PACKAGE = __package__.rpartition(".")[0] + "."


def skip_dynamo_frames() -> None:
    """Skip every function of this package, with its callees, and the finalizers of tinygrad's nodes and buffers."""
    skip = torch_compat.eval_frame._FrameAction.SKIP
    strategy = torch_compat.eval_frame._FrameExecStrategy(skip, skip)
    ours = [module for name, module in list(sys.modules.items()) if name.startswith(_PACKAGE)]
    finalizers = [UOp.__del__, Buffer.__del__]
    for function in [*(f for module in ours for f in _functions(module)), *finalizers]:
        for code in _with_inner(function.__code__):
            torch_compat.eval_frame.set_code_exec_strategy(code, strategy)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions of this package in a module, including methods and properties."""
    for value in list(vars(module).values()):
        members = vars(value).values() if isinstance(value, type) and value.__module__ == module.__name__ else [value]
        for member in members:
            member = member.fget if isinstance(member, property) else getattr(member, "__wrapped__", member)
            member = getattr(member, "__func__", member)
            if isinstance(member, FunctionType) and member.__module__.startswith(_PACKAGE):
                yield member


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
