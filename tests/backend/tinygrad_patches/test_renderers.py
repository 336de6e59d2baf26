"""The device under tinygrad's other code generators: values that each of them formerly computed wrongly."""

from __future__ import annotations

import pytest

from conformance.record.errors import TargetError
from conformance.targets.tiny import require_llvm
from tests.run_script import Standalone

CHECKS = """
import torch, conformance.backend

def same(name, function, *inputs):
    want, got = function(*inputs), function(*[x.to("tiny") for x in inputs]).cpu()
    equal = (want == got) | ((want != want) & (got != got))
    if want.dtype != got.dtype or not equal.all():
        print(name, want[~equal][:4].tolist(), got[~equal][:4].tolist(), flush=True)

ramp = torch.linspace(-1, 1, 201)
halves = torch.cat([ramp * scale for scale in (2.0**-24, 2.0**-14, 1.0, 7e4)])
every = torch.arange(2**16).to(torch.uint16)
for dtype in (torch.float16, torch.bfloat16):  # a renderer without them made subnormal numbers 0
    same("to half", lambda x: x.to(dtype).view(torch.int16), torch.cat([halves, ramp * 2.0**-126]))
    same("of half", lambda x: x.view(dtype).float(), every)
same("next to infinity", lambda x: x.half(), torch.tensor([65504.0, 65519.9, 65520.0, -65519.9, 1e9]))
same("less", lambda x: 0 - x, ramp.half())  # LLVM's renderer had no subtraction
same("more", lambda x: x + 1e-05, ramp.double())  # which is no number to LLVM
same("root", lambda x: x.sqrt(), torch.arange(50.0).double() ** 2)  # was a power of one half
least = torch.tensor([-128, -127, -1, 0, 1, 2, 7, 127], dtype=torch.int8)
same("zero", lambda x: 1 / -x, torch.tensor([-0.0, 0.0]))  # the assembler subtracted from 0
same("negative", lambda x: -x < 5, least)
same("sum", lambda x: (x + 127) > x, least.int() << 24)
same("quotient", lambda x: torch.div(x[:, None], x, rounding_mode="trunc"), least[least != 0])
short = torch.tensor([-32768, -32767, -1, 0, 1, 2, 7, 32767], dtype=torch.int16)
same("multiple", lambda x: torch.lcm(x[:, None], x), short)  # without C -32768 / -1 stopped the process
same("integer", lambda x: (x * 3e9).int(), ramp)  # fits none
same("part", lambda x: x[1:161].reshape(16, 10) * 2, ramp)  # a vector that is not aligned
same("written", lambda x: x.index_put((torch.tensor([0, 2]),), x[:2]), ramp.bfloat16())
same("signed", lambda x: 1 / (x + -0.0), torch.tensor([-0.0, 0.0]))
"""


@pytest.mark.parametrize("device", ["CPU:X86", "CPU:LLVM", pytest.param("PYTHON", marks=pytest.mark.slow)])
def test_agrees_with_cpu(device: str, standalone: Standalone) -> None:
    """Rounding, conversions, wrap-around, alignment and division agree with the CPU in a separate process."""
    if device == "CPU:LLVM":
        try:
            require_llvm()
        except TargetError as error:
            pytest.skip(str(error))
    run = standalone(CHECKS, environment={"DEV": device})
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
