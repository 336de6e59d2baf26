"""Standalone scripts that take their sample from op_db: for a call without a public name, and for a crash.

The key insight: op_db draws the same samples everywhere, so the number of a sample is enough to make it again, and a
process that never imported torch can write the script.
"""

from __future__ import annotations

from conformance.core.names import DIFFERENTIATED
from conformance.opinfo.plan import Case

SEED = 1234
"""torch.testing._internal.common_utils.SEED, with which every call is made."""


def from_op_db(case: Case, setup: str, index: int, finding: str) -> str:
    """The script that takes sample number `index` from op_db; also for a crash, where nothing else is known."""
    call = _OP_DB_CALLS.get(case.variant, _OP_DB_CALLS["forward"])
    draw = {
        "error_inputs": "op.error_inputs('cpu')",
        "reference_inputs": f"op.reference_inputs('cpu', torch.{case.dtype})",
    }
    drawn = draw.get(
        case.variant, f"op.sample_inputs('cpu', torch.{case.dtype}, requires_grad={case.variant in DIFFERENTIATED})"
    )
    item = "drawn.sample_input" if case.variant == "error_inputs" else "drawn"
    name, _, number = case.overload.partition("#")
    position = int(number) - 1 if number else 0
    note = "" if case.layout == "as_sampled" else f"# The finding was on inputs laid out as {case.layout!r}.\n"
    return (
        f"{head(case, finding)}import itertools\n\nimport torch\n\n{setup}\n"
        "from torch.testing._internal.common_methods_invocations import op_db\n\n"
        f"ops = [op for op in op_db if (op.name, op.variant_test_name) == {(case.op, name)!r}]\n"
        f"op = ops[{position}]\n{note}\n\n"
        f"{_DEFINITIONS.get(case.variant, '')}def call(device):\n"
        f"    drawn = next(itertools.islice({drawn}, {index}, None))\n"
        f"    sample = {item}.transform(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x)\n"
        f"    torch.manual_seed({SEED})\n"
        f"    return {call}\n\n{TAIL}"
    )


_OP_DB_CALLS = {
    "forward": "op(sample.input, *sample.args, **sample.kwargs)",
    "method": "op.method_variant(sample.input, *sample.args, **sample.kwargs)",
    "inplace": "op.inplace_variant(sample.input, *sample.args, **sample.kwargs)",
    "backward": "gradients(op, sample)",
    "forward_over_backward": "derivatives(op, sample)",
    "out": "with_out(op, sample, device)",
}
_DEFINITIONS = {
    "backward": """def flat(tree):
    if isinstance(tree, (tuple, list)):
        return [leaf for item in tree for leaf in flat(item)]
    return flat(list(tree.values())) if isinstance(tree, dict) else [tree]


def gradients(op, sample):
    inputs = [x for x in flat([sample.input, sample.args, sample.kwargs]) if isinstance(x, torch.Tensor)]
    inputs = [x.requires_grad_() for x in inputs if x.is_floating_point() or x.is_complex()]
    results = flat(sample.output_process_fn_grad(op(sample.input, *sample.args, **sample.kwargs)))
    results = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
    torch.autograd.backward(results, [torch.randn(x.shape, dtype=x.dtype).to(x.device) for x in results])
    return [x.grad for x in inputs]


""",
    "forward_over_backward": """from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves, tree_map


def derivatives(op, sample):
    duals = []

    def dual(x):
        if not isinstance(x, torch.Tensor) or not x.requires_grad:
            return x
        duals.append(forward_ad.make_dual(x, torch.randn(x.shape, dtype=x.dtype).to(x.device)))
        return duals[-1]

    with forward_ad.dual_level():
        torch.manual_seed(SEED)
        args, kwargs = tree_map(dual, ((sample.input, *sample.args), sample.kwargs))
        results = tree_leaves(sample.output_process_fn_grad(op(*args, **kwargs)))
        results = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
        ones = [torch.randn(x.shape, dtype=x.dtype).to(x.device) for x in results]
        grads = torch.autograd.grad(results, duals, ones, allow_unused=True)
        return [None if g is None else forward_ad.unpack_dual(g).tangent for g in grads]


""".replace("SEED", str(SEED)),
    "out": '''def with_out(op, sample, device):
    """Out tensors of the right size, with gaps; replace by torch.empty(0, ...) or a dense one to try the others."""
    result = op(sample.input, *sample.args, **sample.kwargs)
    results = [result] if isinstance(result, torch.Tensor) else result
    out = [torch.full((*x.shape, 2), 7, device=device).to(x.dtype)[..., 0] for x in results]
    out = out[0] if isinstance(result, torch.Tensor) else tuple(out)
    return op(sample.input, *sample.args, **sample.kwargs, out=out)


''',
}
TAIL = """
def show(name, value):
    if isinstance(value, torch.Tensor):
        print(name, "size", tuple(value.shape), "stride", value.stride(), "offset", value.storage_offset(), value.dtype)
        print(value.detach().cpu())
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            show(f"{name}[{i}]", item)
    else:
        print(name, value)


for device in ("cpu", DEVICE):
    print("---", device)
    try:
        show("result", call(device))
    except Exception as error:
        print("raised", type(error).__name__, error)
"""


def head(case: Case, finding: str) -> str:
    safe = ascii(finding[:500])[1:-1].replace('"', "'").replace("\\n", " ")
    return f'"""{case.id}\n\n{safe}\n"""\n\n'
