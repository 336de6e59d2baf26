"""Differences of torch for code that does not use the device: the declared ones, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.backend.torch_api import replacements
from tests.run_script import Standalone

ROOT = Path(__file__).parents[3]

DIFFERENCES = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.backend.torch_api.surface import Surface
surface = Surface()
found = [surface.difference()]
import conformance.backend
import torch
found.append(surface.difference())
torch.ones(3, device="tiny")
found.append(surface.difference())
torch.ones(3).pin_memory()
found.append(surface.difference())
print(json.dumps(found))
"""


class TestDifference:
    """The lists of `replacements` are the real difference."""

    @pytest.fixture(scope="class")
    def differences(self, standalone: Standalone) -> list[dict[str, list[str]]]:
        """Differences before and after the import, after the first use, and after a pinned tensor."""
        done = standalone(DIFFERENCES)
        assert done.returncode == 0, done.stderr
        differences: list[dict[str, list[str]]] = json.loads(done.stdout.splitlines()[-1])
        return differences

    def test_nothing_differs_before_the_import(self, differences: list[dict[str, list[str]]]) -> None:
        """The comparison itself changes nothing."""
        assert not any(differences[0].values()), differences[0]

    def test_at_import(self, differences: list[dict[str, list[str]]]) -> None:
        """The import changes the listed attributes, kernels and settings, each with a reason, and no others."""
        kernels = {f"{name} CPU" for name in replacements.CPU_KERNELS}
        assert {*differences[1]["replaced"], *differences[1]["added"]} == {
            *replacements.AT_IMPORT,
            *replacements.BY_REGISTRATION,
        }
        assert ({*differences[1]["kernels"]}, differences[1]["lost kernels"]) == (kernels, [])
        assert {*differences[1]["settings"]} == {*replacements.SETTINGS}

    def test_on_first_use(self, differences: list[dict[str, list[str]]]) -> None:
        """The first tensor on the device replaces the rest of the listed attributes."""
        before, after = ({*one["replaced"], *one["added"]} for one in differences[1:3])
        assert after - before == {*replacements.ON_FIRST_USE}
        assert [differences[2][key] == differences[1][key] for key in ("kernels", "lost kernels", "settings")] == [
            True
        ] * 3

    def test_on_the_first_pinned_tensor(self, differences: list[dict[str, list[str]]]) -> None:
        """Pinned tensors are recognized by a kernel that waits for the first of them."""
        assert {*differences[3]["kernels"]} - {*differences[2]["kernels"]} == {"aten::is_pinned CPU"}

    def test_public_functions_stay(self) -> None:
        """At import, no public function of torch is replaced: private names, constructors and one private class."""
        public = [path for path in replacements.AT_IMPORT if "._" not in path and ":_" not in path]
        assert public == []

    def test_an_unlisted_name_is_refused(self) -> None:
        """A replacement without an entry and its reason is an error at import."""
        with pytest.raises(RuntimeError, match="does not list it"):
            replacements.replace_at_import("torch.nn.modules.module:Module.float", lambda original: original)


PROBES: dict[str, str] = {
    "classes of events": "[type(torch.Event('cpu')) is torch.Event, type(torch.Event).__name__, torch.Event.__mro__]",
    "classes of streams": "[type(torch.Stream('cpu')) is torch.Stream, type(torch.Stream).__name__]",
    "refused: an event without backend": "torch.Event('cpu').record()",
    "an abstract event": "type('Mine', (torch.Event, abc.ABC), {})('cpu')",
    "an event's text": "[torch.Event('cpu'), torch.Stream('cpu'), torch.Stream('cpu') == torch.Stream('cpu')]",
    "a pickled class": "[pickle.loads(pickle.dumps(c)) is c for c in (torch.Event, torch.Stream, torch.Generator)]",
    "pickled functions": "[pickled(f) for f in PUBLIC]",
    "signatures": "[str(inspect.signature(f)) for f in PUBLIC]",
    "a generator": "[type(torch.Generator()).__name__, torch.Generator('cpu').manual_seed(3).initial_seed()]",
    "a derived generator": "type('Mine', (torch.Generator,), {})().device",
    "refused: a generator": "torch.Generator('nowhere')",
    "storages": "[torch.UntypedStorage(3).nbytes(), torch.UntypedStorage([1, 2]).tolist(), torch.UntypedStorage()]",
    "storages of devices": "[torch.UntypedStorage(2, device=d).device for d in ('cpu', torch.device('meta'), None)]",
    "refused: a storage": "torch.UntypedStorage(2, 3)",
    "refused: a storage on no device": "torch.UntypedStorage(2, device='nowhere')",
    "a derived storage": "type(type('Mine', (torch.UntypedStorage,), {})(4)).__mro__",
    "a resized storage": "[SEVEN.untyped_storage().clone().resize_(8).nbytes(), SEVEN.untyped_storage().is_shared()]",
    "a slice of a storage": "SEVEN.clone().untyped_storage()[4:12].nbytes()",
    "a shared storage": "torch.ones(3).share_memory_().is_shared()",
    "a copied storage": "copy.deepcopy(SEVEN.untyped_storage()).tolist() == SEVEN.untyped_storage().tolist()",
    "a pickled storage": "pickle.loads(pickle.dumps(SEVEN.storage())).tolist()",
    "a saved tensor": "saved(SEVEN)",
    "what other processes receive": "[f.__module__ for c, f in ForkingPickler._extra_reducers.items() if c in SENT]",
    "a pinned tensor": "[SEVEN.is_pinned(), SEVEN[2:].is_pinned(), SEVEN.untyped_storage().is_pinned()]",
    "a module in float64": "kinds(tied().double())",
    "a module on meta": "kinds(tied().to('meta'))",
    "a module made anew": "kinds(tied().to('meta').to_empty(device='cpu'))",
    "a module overwritten": "overwritten()",
    "a module's own _apply": "kinds(Own().half())",
    "a module's gradient": "[p.grad.dtype for p in with_gradient().double().parameters()]",
    "backward": "[torch.autograd.is_multithreading_enabled(), backward(), torch.autograd.is_multithreading_enabled()]",
    "the engine": "type(torch.autograd.Variable._execution_engine).__mro__",
    "refused: an error in backward": "Failing.apply(torch.ones(2, requires_grad=True)).sum().backward()",
    "a tensor's text": "[repr(SEVEN), repr(torch.zeros(2, 2).to_sparse())]",
    "DataParallel": "torch.nn.DataParallel(LINEAR)(torch.ones(1, 2)).shape",
    "a nested tensor": "torch.nested.nested_tensor([torch.ones(2), torch.zeros(1)]).to_padded_tensor(5).tolist()",
    "attention of ragged batches": "ragged()",
    "a default type": "[defaults(t) for t in ('torch.DoubleTensor', torch.FloatTensor, torch.HalfTensor)]",
    "refused: a default type": "torch.set_default_tensor_type('torch.LongTensor')",
    "random numbers": "[torch.manual_seed(3).initial_seed(), torch.rand(2).tolist(), forked()]",
    "a profile": "columns()",
    "checkpointing": "torch.utils.checkpoint.checkpoint(torch.sin, SEVEN, use_reentrant=False).tolist()",
    "autocast": "torch.autocast('cpu', torch.bfloat16).__enter__().fast_dtype",
    "a group without backend": "collective()",
    "a group over gloo": "collective('gloo')",
    "a group of CPU devices": "collective('cpu:gloo')",
    "refused: an unknown backend": "collective('nothing')",
    "a mesh": "mesh()",
    "DLPack": "torch.from_dlpack(SEVEN).tolist()",
    "an exported program": "str(torch.export.export(LINEAR, (torch.ones(1, 2),)).graph)",
}
"""Expressions of CPU code by name."""

CPU_CODE = """
import abc, copy, inspect, io, json, logging, os, pickle, sys, warnings
from multiprocessing.reduction import ForkingPickler
import torch, torch.distributed as dist, torch.multiprocessing, torch.utils.checkpoint
from torch import nn

if sys.argv[1] == "after":
    sys.path.insert(0, sys.argv[3])
    import conformance.backend

os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # warnings of gloo and of the profiler
warnings.simplefilter("ignore")
SEVEN, LINEAR = torch.arange(7.0), nn.Linear(2, 2)
SENT = torch.Tensor, nn.Parameter, torch.UntypedStorage
PUBLIC = [
    *(getattr(torch.accelerator, name) for name in torch.accelerator.__all__),
    dist.init_process_group, dist.new_group, torch.set_default_tensor_type, nn.parallel.data_parallel,
    nn.parallel.comm.scatter, nn.parallel.comm.gather, torch.autograd.profiler.profile, nn.DataParallel,
    nn.parallel.DistributedDataParallel, torch.UntypedStorage, torch.accelerator.memory.memory_stats,
]

def pickled(function):
    try:
        return pickle.loads(pickle.dumps(function)) is function
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return str(error)

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.calls = 0
    def _apply(self, fn, recurse=True):
        self.calls += 1
        return super()._apply(fn, recurse)

class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        raise ValueError("no gradient")

def tied():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), nn.BatchNorm1d(2))
    model[1][0].weight = model[0].weight
    return model

def kinds(model):
    parameters = list(model.named_parameters(remove_duplicate=False))
    places = [[n, p.dtype, p.device, [m for m, q in parameters if q is p]] for n, p in parameters]
    return places, getattr(model, "calls", 0)

def overwritten():
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        return kinds(tied().double())
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)

def with_gradient():
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    return model

def backward():
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda grad: grad * (1 + torch.autograd.is_multithreading_enabled()))
    (x * x).sum().backward()
    return x.grad.tolist()

def saved(tensor):
    file = io.BytesIO()
    torch.save({"x": tensor, "y": tensor[2:]}, file)
    file.seek(0)
    found = torch.load(file)
    return [found["y"].tolist(), found["x"].untyped_storage().data_ptr() == found["y"].untyped_storage().data_ptr()]

def ragged():
    x = torch.nested.nested_tensor([torch.ones(2, 2, 4), torch.ones(3, 2, 4)], layout=torch.jagged).transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(x, x, x).shape[0]

def defaults(kind):
    torch.set_default_tensor_type(kind)
    try:
        return [torch.ones(1).dtype, torch.get_default_device()]
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)

def forked():
    with torch.random.fork_rng():
        torch.manual_seed(5)
    return torch.rand(1).tolist()

def columns():
    with torch.autograd.profiler.profile() as older:
        SEVEN + 1
    with torch.profiler.profile() as newer:
        SEVEN + 1
    tables = [older.key_averages().table(), newer.key_averages().table()]
    return [[line.split() for line in table.splitlines()[1:2]] for table in tables], newer.profiler.use_device

def collective(*backend):
    dist.init_process_group(*backend, rank=0, world_size=1, store=dist.HashStore())
    x = torch.ones(2)
    dist.all_reduce(x)
    dist.barrier()
    group = dist.new_group([0])
    names = [dist.get_backend(), dist.get_backend_config(), dist.get_backend(group), x.tolist()]
    gathered = [None]
    dist.all_gather_object(gathered, {1: 2})
    dist.destroy_process_group()
    return names, gathered

def mesh():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    made = dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()
    return made.device_type, made.mesh.tolist()

found = {}
for name, expression in json.loads(sys.argv[2]).items():
    try:
        found[name] = repr(eval(expression))
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


class TestCpuCode:
    """Code for the CPU has the same results with and without the import."""

    @pytest.fixture(scope="class")
    def results(self, standalone: Standalone) -> list[dict[str, Any]]:
        """Results of the probes in a process without the import, and in one with it."""
        outputs = []
        for when in ("before", "after"):
            done = standalone(CPU_CODE, words=[when, json.dumps(PROBES), str(ROOT)])
            assert done.returncode == 0, done.stderr
            outputs.append(json.loads(done.stdout.splitlines()[-1]))
        return outputs

    @pytest.mark.parametrize("name", PROBES)
    def test_the_same_result(self, results: list[dict[str, Any]], name: str) -> None:
        """The expression has the same text of its result, or the same error."""
        before, after = results
        assert after[name] == before[name]

    def test_only_refused_calls_raise(self, results: list[dict[str, Any]]) -> None:
        """Only the probes of refused calls raise an error; any other error would hide a difference."""
        raised = {name for name, text in results[0].items() if text.split(":")[0].endswith("Error")}
        assert raised == {name for name in PROBES if name.startswith("refused: ")}


CALLS = [
    "torch.UntypedStorage(4, device='tiny').tolist() == [0] * 4",
    "torch.Generator(device='tiny').device.type == 'tiny'",
    "torch.set_default_tensor_type('torch.tiny.FloatTensor') or torch.ones(1).device.type == 'tiny'",
    "torch.accelerator.current_stream().device.type == 'tiny'",
    "torch.accelerator.synchronize() is None",
    "torch.accelerator.memory_allocated() >= 0",
    "torch.accelerator.device_index(0).__enter__() is None",
    "torch.tiny.Event(enable_timing=True).record() is None",
    "repr(torch.ones(2, device='tiny')) == \"tensor([1., 1.], device='tiny:0')\"",
    "torch.ones(2).to('tiny').untyped_storage().is_shared() is False",
]
"""Expressions that are true, and are the first use of the device."""

FIRST_CALLS = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import torch, conformance.backend
for call in json.loads(sys.argv[2]):
    if not (child := os.fork()):
        print(eval(call), end=" ", flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

FIRST_MOVE = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, conformance.backend
from conformance.backend.runtime import first_use
from torch import nn

def tied():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    model[1][0].weight = model[0].weight
    return model

assert not first_use.happened()
moved = tied().to("tiny")
assert first_use.happened()
assert moved[1][0].weight is moved[0].weight and moved[1][0].bias is not moved[0].bias
back = moved.to("cpu")
assert back[1][0].weight is back[0].weight
anew = tied().to("meta").to_empty(device="tiny")
assert anew[1][0].weight is not anew[0].weight  # torch has separated them on meta
event = torch.Event(device="tiny", enable_timing=True)
assert isinstance(event, torch.tiny.Event) and type(torch.Event) is not type
"""


class TestFirstUse:
    """Code that uses the device."""

    def test_the_first_move_of_a_module(self, standalone: Standalone) -> None:
        """Parameters stay shared in the move that is the first use of the device, and in later ones."""
        done = standalone(FIRST_MOVE, words=[str(ROOT)])
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_call_that_is_the_first_use(self, standalone: Standalone) -> None:
        """Calls that name the device are served, each in a process where nothing on the device exists before it."""
        done = standalone(FIRST_CALLS, words=[str(ROOT), json.dumps(CALLS)])
        assert (done.returncode, done.stdout.split("\n"), done.stderr) == (0, [*["True 0"] * len(CALLS), ""], "")
