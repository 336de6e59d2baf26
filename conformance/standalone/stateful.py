"""Modules and optimizers of torch as calls on tensors: what a target computes from a state that both sides share.

    module, given = module_sample("nn.BatchNorm1d", torch.float32, True, 0)
    module_results(call_module, module, given)   # the output, the gradients; the buffers in `given` are written

PyTorch's `module_db` and `optim_db` draw the samples. A sample is an object on the CPU, and a tree of tensors `given`:
the parameters and buffers, the arguments, the gradients of each step. The tree moves to a target, and the object is
built there anew over its tensors. So both sides start from the same state, whatever a target's generators draw. Saved
scripts carry the functions. They need only torch.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch

from conformance.standalone.sample_runtime import differentiable
from conformance.standalone.torch_compat import module_infos, optimizer_infos, tree_map

STEPS = 3
"""Steps of an optimizer: moments, their corrections and weight decay differ from the second step on."""

SHAPES = ((3, 4), (5,), (), (2, 1, 3))
"""Shapes of an optimizer's parameters."""

MATRICES = ((3, 4), (4, 2), (5, 5))
"""The same for Muon, which takes matrices only."""

OF_FORM = {"step": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
"""Arguments of an optimizer by the form of its step. The form without a loop over kernels is chosen by torch alone."""


def module_inputs(name: str, dtype: torch.dtype, training: bool, requires_grad: bool = True) -> Any:
    """Return the samples of a module of `module_db`. Raises KeyError for a name that this torch does not have."""
    info = module_infos()[name]
    torch.manual_seed(1234)
    wanted = {"device": "cpu", "dtype": dtype, "requires_grad": requires_grad, "training": training}
    return info.module_inputs_func(info, **wanted)


def module_sample(name: str, dtype: torch.dtype, training: bool, number: int) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return a module of `module_db` on the CPU with its tree, made from sample `number`. Raises KeyError for
    a name that this torch does not have."""
    info = module_infos()[name]
    sample = module_inputs(name, dtype, training)[number]
    made = sample.constructor_input
    module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
    if getattr(module, "inplace", False):  # which a leaf that requires a gradient refuses
        sample = module_inputs(name, dtype, training, requires_grad=False)[number]
    taken = sample.forward_input
    if info.is_lazy:  # its first call makes its parameters
        with torch.no_grad():
            module(*taken.args, **taken.kwargs)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    state = {key: x.detach().clone().requires_grad_(x.requires_grad) for key, x in state.items()}
    return module, {"state": state, "args": taken.args, "kwargs": taken.kwargs}


def module_with(module: torch.nn.Module, state: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Return a copy of a module over the memory of these parameters and buffers."""
    result = copy.deepcopy(module)
    for name, tensor in state.items():
        path, _, last = name.rpartition(".")
        owner = result.get_submodule(path)
        parameter = last in dict(owner.named_parameters(recurse=False))
        new = torch.nn.Parameter(tensor.detach(), tensor.requires_grad) if parameter else tensor
        setattr(owner, last, new)
    return result


def call_module(module: Any, args: Any, kwargs: Any) -> Any:
    """Return a module's output: the function that a compiler gets."""
    return module(*args, **kwargs)


def module_results(program: Callable[..., Any], module: torch.nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """Return the output and the gradients of the parameters. The gradients of the arguments are in their `grad`."""
    built = module_with(module, given["state"])
    output = program(built, given["args"], given["kwargs"])
    torch.default_generator.manual_seed(1234)
    outputs = differentiable(output)
    if outputs:
        torch.autograd.backward(outputs, [draw_gradient(x) for x in outputs])
    gradients = {name: x.grad for name, x in built.named_parameters() if x.grad is not None}
    return {"output": output, "gradients": gradients}


def draw_gradient(like: torch.Tensor) -> torch.Tensor:
    """Return random numbers for a tensor, drawn on the CPU: the same numbers for any precision, since the answer in
    float64 must be that to the same gradient."""
    kind = torch.complex64 if like.is_complex() else torch.float32
    return torch.randn(like.shape, dtype=kind).to(like.dtype).to(like.device)


def module_round_trip(program: Callable[..., Any], module: torch.nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """Return what a second module holds, and its output, after it has loaded the saved state of one that has run."""
    with torch.no_grad():
        first = module_with(module, given["state"])
        call_module(first, given["args"], given["kwargs"])
        second = module_with(module, {name: torch.zeros_like(x) for name, x in given["state"].items()})
        keys = second.load_state_dict(reload_state(first.state_dict()))
        output = program(second, given["args"], given["kwargs"])
    return {"keys": [*map(str, [*keys.missing_keys, *keys.unexpected_keys])], "state": dict(second.state_dict()),
            "output": output}  # fmt: skip


def optimizer_sample(name: str, dtype: torch.dtype, number: int) -> dict[str, Any]:
    """Return the parameters of an optimizer of `optim_db`, the gradients of each step, and the arguments of sample
    `number`. Raises KeyError for a name that this torch does not have."""
    arguments = optimizer_infos()[name].optim_inputs_func(device="cpu")[number].kwargs
    torch.manual_seed(1234)
    shapes = MATRICES if name == "Muon" else SHAPES
    parameters = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    gradients = [[torch.randn(shape, dtype=dtype) for shape in shapes] for _ in range(STEPS)]
    return {"parameters": parameters, "gradients": gradients, "arguments": dict(arguments)}


def step_optimizer(optimizer: Any, closure: Any) -> Any:
    """Make a step: the function that a compiler gets."""
    return optimizer.step() if closure is None else optimizer.step(closure)


def optimizer_on(name: str, form: str, parameters: Any, given: dict[str, Any]) -> Any:
    """Return an optimizer of these parameters. LBFGS and Muon have one form only."""
    made = getattr(torch.optim, name)
    forms = OF_FORM.get(form, {}) if "foreach" in made.__init__.__annotations__ else {}
    return made(parameters, **{**given["arguments"], **forms})


def run_steps(program: Callable[..., Any], optimizer: Any, parameters: Any, gradients: Any) -> None:
    """Make one step with each list of gradients. An optimizer that asks for a loss gets that of a parabola."""
    for row in gradients:

        def closure(row: Any = row) -> Any:
            optimizer.zero_grad()
            loss = sum(((x - y) ** 2).sum() for x, y in zip(parameters, row))
            loss.backward()
            return loss

        for x, y in zip(parameters, row):
            x.grad = y.clone()
        program(optimizer, closure if type(optimizer).__name__ == "LBFGS" else None)


def state_of(optimizer: Any) -> Any:
    """Return the tensors and numbers that an optimizer keeps, by the position of the parameter."""
    return tree_map(lambda x: x, {str(key): dict(value) for key, value in optimizer.state_dict()["state"].items()})


def optimizer_results(program: Callable[..., Any], name: str, form: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an optimizer after its steps. The parameters of `given` are written."""
    optimizer = optimizer_on(name, form, given["parameters"], given)
    run_steps(program, optimizer, given["parameters"], given["gradients"])
    return {"state": state_of(optimizer)}


def optimizer_round_trip(program: Callable[..., Any], name: str, form: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters and the state after the last step, which a second optimizer makes from the saved state of
    the first."""
    first = optimizer_on(name, form, given["parameters"], given)
    run_steps(step_optimizer, first, given["parameters"], given["gradients"][:-1])
    parameters = [x.detach().clone().requires_grad_() for x in given["parameters"]]
    second = optimizer_on(name, form, parameters, given)
    second.load_state_dict(reload_state(first.state_dict()))
    run_steps(program, second, parameters, given["gradients"][-1:])
    return {"parameters": parameters, "state": state_of(second)}


def reload_state(state: Any) -> Any:
    """Return a state as a file gives it back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
