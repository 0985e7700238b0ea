"""Further modules of the original that programs of release 2 use, on a CS system and on this CPU."""

from __future__ import annotations

import gzip
import importlib
import inspect
import json
import logging
import re
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils.data import TensorDataset

import cerebras_pytorch
import cstorch
import cstorch.v1.session
from cstorch.core.annotation import AnnotationMode, annotate, create_annotation, kernel_annotater
from cstorch.distributed import ClusterConfig, ClusterSpec, TaskRole, TaskSpec, workers
from cstorch.errors import CheckpointError, InputError
from cstorch.hooks import (
    create_listener,
    register_trace_fn_post_hook,
    register_trace_fn_pre_hook,
    register_traced_tensor_hook,
)
from cstorch.input.datasets import pad_index
from cstorch.loop.rates import RateTracker
from cstorch.nn.functional import one_hot, sparse_act_matmul, sparse_matmul
from cstorch.program import Program
from cstorch.saver import CerebrasStateDict, CheckpointReader, PyTorchH5Saver
from cstorch.utils.data import DataExecutor, DataLoader, DistributedSampler
from cstorch.utils.helpers import (
    call_once,
    convert_glob_to_regex,
    make_param_filter,
    recurse_spec,
    visit_torch_tensors,
)
from cstorch.v1.session.core import cb_model
from tests.systems import RunningSystem

PATHS = """
amp.grad_scaler.GradScaler amp.optimizer_step.optimizer_step core.name_scope.add_debug_name
decomp.registry.register_decomposition
metrics.accuracy.AccuracyMetric metrics.metric.Metric nn.modules.SmoothL1Loss optim.AdamBase.AdamW
optim.SGD.SGD sparse.base.SparsityAlgorithm sparse.init.checkerboard sparse.init.make_init_method
sparse.group.Group sparse.rigl.RigL sparse.static.Static
sparse.utils.make_hyperparam_schedule sparse.utils.make_update_schedule storage.save.save
utils.data.dataloader.RestartableDataLoader utils.data.dataset.SyntheticDataset utils.pol.pol
utils.step_closures.step_closure utils.tensorboard.writer.SummaryWriter
backend.BackendType.from_str backend.current_backend_impl backend.get_backend_args backend.use_cs
backend.base_backend.get_backend_args backend.ltc_backend.register_after_tensor_to_cpu
backends.csx.cluster.auto_taint
backends.csx.storage.s3.profile
backends.csx.debug.debug_args.MergeFrom cirh.FusedTopK cirh.FusedTopP core.annotation.create_annotation
core.cb_model.get_streaming_rank core.compile.register_trace_fn_pre_hook core.modes.EVAL_ALL core.name_scope
distributed.WORKER_CACHE_ROOT distributed.cluster_resolver.TaskSpec distributed.hit_worker_cache_limit
experimental.Compression experimental.get_loop_iteration_slice
experimental.listener.register_traced_tensor_hook
experimental.update_implicit_loop get_debug_name lib.cerebras_pytorch_lib.set_attribute mesh
nn.SelectiveGrad nn.SmoothL1Loss nn.functional.one_hot profiler.profile profiler.schedule
register_decomposition saver.PyTorchH5Saver saver.pt_h5_saver.CerebrasStateDict set_debug_scope
storage.constants.__CSTORCH_VERSION__
storage.serializers.use_external_link utils.benchmark.benchmark_dataloader utils.call_once.call_once
utils.data.data_executor.MbsSetting utils.data.dataloader.DataLoader utils.data.sampler.pad_index
utils.data.utils.Schedule.Range utils.data.utils.infer_batch_size utils.kernel.kernel_annotater
utils.nest.recurse_spec utils.num_kv_groups.groups_annotater utils.profiler.step_closure
utils.tracker.RateTracker utils.utils.make_param_filter workflow.python.cs_perf_analyzer.AssessBottlenecks
__version__ _generating_docs
"""


@pytest.mark.parametrize("name", PATHS.split())
def test_names_are_where_programs_import_them(name: str) -> None:
    """The longest part that is a module is imported; attributes follow."""
    parts = f"cerebras_pytorch.{name}".split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return
    raise AssertionError(name)


def test_moved_modules_are_attributes_too() -> None:
    """Programs write `cstorch.utils.tracker.RateTracker()` without an import of the module."""
    for path in ("utils.tracker", "utils.utils", "utils.data.utils", "saver.pt_h5_saver", "utils.kernel"):
        found: Any = cerebras_pytorch
        for part in path.split("."):
            found = getattr(found, part)
        assert found is importlib.import_module(f"cerebras_pytorch.{path}")
    assert not cerebras_pytorch.utils.utils.is_ltc_mlir_mode_enabled()


def test_backend_is_a_function_and_a_module() -> None:
    module = importlib.import_module("cerebras_pytorch.backend")
    assert module.Backend is cstorch.backends.Backend
    assert importlib.import_module("cerebras_pytorch.backend.ltc_backend") is cstorch.backends.ltc_backend
    assert callable(cerebras_pytorch.backend)
    assert module.BackendType.from_str("csx").is_csx
    assert {"compile_dir", "cluster_config", "micro_batch_size"} < module.get_backend_args("CSX").keys()
    assert "compile_dir" not in module.get_backend_args("CPU")
    with pytest.raises(ValueError, match="backend_type is 'TPU', expected CSX, CPU or GPU"):
        module.BackendType.from_str("TPU")


def test_release_1_9_has_both_interfaces_in_one_package() -> None:
    assert cerebras_pytorch.initialize is cstorch.v1.session.initialize
    assert not hasattr(cerebras_pytorch, "nonsense")


@pytest.fixture(params=["CSX", "CPU"])
def on_each(
    request: pytest.FixtureRequest, fresh_process: None, system: RunningSystem, tmp_path: Path
) -> str:
    """Return a backend, as in a new process."""
    cluster = ClusterConfig(mgmt_address=system.address)
    cstorch.backend(request.param, artifact_dir=tmp_path / "artifacts", cluster_config=cluster)
    torch.manual_seed(1)
    return str(request.param)


def data() -> torch.utils.data.DataLoader:
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(2))
    return torch.utils.data.DataLoader(TensorDataset(x, x[:, :2].argmax(1)), batch_size=4)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def train(model: nn.Module, steps: int, lr: float = 0.5) -> list[float]:
    """The losses of a loop."""
    optimizer = cstorch.optim.SGD(model.parameters(), lr=lr)
    losses: list[float] = []

    @cstorch.trace
    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    note = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    for batch in DataExecutor(DataLoader(data), num_steps=steps):
        note(step(batch))
    return losses


def test_hooks_around_steps_and_tensors(on_each: str, tmp_path: Path) -> None:
    model = cstorch.compile(TwoLayers())
    calls: list[str] = []
    names: dict[str, torch.Size] = {}
    received: list[float] = []
    handles = [
        register_trace_fn_pre_hook(lambda: calls.append("before")),
        register_trace_fn_post_hook(lambda: calls.append("after")),
        register_traced_tensor_hook(lambda tensor, name: names.update({name: tensor.shape})),
        cstorch.backends.ltc_backend.register_after_tensor_to_cpu(
            lambda tensor, name: received.append(float(tensor))
        ),
    ]
    profile = cstorch.profiler.profile(schedule=cstorch.profiler.schedule(start_step=2, end_step=3))
    with profile:
        losses = train(model, 4)
    assert calls == ["before", "after"] * (1 if on_each == "CSX" else 4)
    expected = {"model": (4, 2), "first": (4, 4), "second": (4, 2)}
    passes = [f"{name}.{half}" for name in expected for half in ("fwd", "bwd")]
    assert set(passes) <= names.keys()
    assert all(names[name] == expected[name.partition(".")[0]] for name in passes)
    if on_each == "CSX":  # values of a CPU do not come from elsewhere
        assert received == losses
    assert [time.step for time in profile.appliance_response or []] == [2, 3]
    assert "2 steps from 2 to 3" in profile.get_summary()
    assert json.loads(profile.op_profiler_json or "")["traceEvents"]
    cstorch.profiler.tensorboard_trace_handler(tmp_path / "trace", "worker", use_gzip=True)(profile)
    (file,) = (tmp_path / "trace").iterdir()
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert [event["name"] for event in events] == ["step 2", "step 3"]
    assert all(event["dur"] > 0 for event in events)
    for handle in handles:
        handle.remove()
    count = len(calls), len(names)
    train(model, 1)
    assert (len(calls), len(names)) == count


def test_listeners_summarize_tensors(on_each: str, tmp_path: Path) -> None:
    model = cstorch.compile(TwoLayers())
    writer = cstorch.utils.tensorboard.SummaryWriter(tmp_path / "events")
    handle = create_listener(listener="summary", listener_name="mine", tensor_names=["first.*"])

    @cstorch.trace
    def step(batch: Any) -> torch.Tensor:
        return model(batch[0]).sum()

    for batch in DataExecutor(DataLoader(data), num_steps=2, writer=writer, listeners=[handle]):
        step(batch)
    handle.remove()
    writer.close()
    reader = cstorch.utils.tensorboard.SummaryReader(tmp_path / "events")
    assert "mine/first.fwd" in reader.tensor_names()
    with pytest.raises(ValueError, match="listener is 'other'"):
        create_listener("mine", "x", listener="other")


def test_a_rule_of_the_program_replaces_an_operation(on_each: str) -> None:
    """Only the CS system checks this; torch has its own rules on a CPU."""
    calls: list[torch.Tensor] = []

    @cstorch.register_decomposition(torch.ops.aten.addmm)
    def addmm(bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x @ y + 2 * bias

    try:
        losses = train(cstorch.compile(TwoLayers()), 2)
    finally:
        Program.current().decompositions.clear()
    torch.manual_seed(1)
    model, (x, labels) = TwoLayers(), next(iter(data()))
    factor = 2 if on_each == "CSX" else 1
    hidden = functional.linear(x, model.first.weight, factor * model.first.bias)
    by_hand = functional.cross_entropy(
        functional.linear(hidden, model.second.weight, factor * model.second.bias), labels
    )
    assert losses[0] == pytest.approx(by_hand.item(), rel=1e-5)
    assert bool(calls) is (on_each == "CSX")
    with pytest.raises(TypeError, match=r"expected an operation such as torch\.ops\.aten\.relu\.default"):
        cstorch.register_decomposition("relu")
    with pytest.raises(ValueError, match="device is 'CPU', expected 'CSX'"):
        cstorch.register_decomposition(torch.ops.aten.relu, device="CPU")


def test_only_chosen_elements_are_trained(on_each: str) -> None:
    model = TwoLayers()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.apply(cstorch.nn.SelectiveGrad("first.*", lambda parameter: parameter > 0))
    model = cstorch.compile(model)
    train(model, 3)
    after = {name: torch.as_tensor(tensor).clone() for name, tensor in model.state_dict().items()}
    for name, tensor in before.items():
        changed = np.asarray(cstorch.to_numpy(after[name])) != tensor.numpy()
        expected = (tensor > 0).numpy() if name.startswith("first") else np.ones_like(changed)
        assert (changed == expected).all(), name
    with pytest.raises(ValueError, match="init_method is 'all', expected 'outlier' or a function"):
        cstorch.nn.SelectiveGrad("*", "all")


def test_annotated_functions_compute_as_before(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass
    class Config(AnnotationMode.Config):
        name: str | None

    def attribute(config: Config, is_backward: bool) -> AnnotationMode.Attribute:
        return AnnotationMode.Attribute("for_a_test", f"{config.name}.{'bwd' if is_backward else 'fwd'}")

    class Mode(AnnotationMode):
        def get_attribute(self, config: Any, is_backward: bool = False) -> AnnotationMode.Attribute:
            return attribute(config, is_backward)

    x = torch.ones(2, 2)
    with caplog.at_level(logging.INFO, logger="cstorch"):
        for decorate in (
            create_annotation(Config, attribute, name="a", enable_fwd=True, enable_bwd=True),
            annotate(annotation_mode=Mode(Config(name="b", enable_fwd=True, enable_bwd=False))),
            kernel_annotater(None),
            kernel_annotater("optimized"),
        ):
            assert torch.equal(decorate(torch.matmul)(x, x), x @ x)
        assert torch.equal(cstorch.pol(bwd_level=0)(nn.Identity())(x), x)
    assert len([line for line in caplog.messages if "annotation for_a_test" in line]) == 1


def test_functions_of_sparse_activations() -> None:
    draw = torch.Generator().manual_seed(3)
    values, weight = torch.randn(2, 5, 3, 4, generator=draw), torch.randn(6, 7, 4, generator=draw)
    indices = torch.randint(0, 7, (2, 5, 3), generator=draw)
    by_hand = torch.einsum("bmcn,kbmcn->bmck", values, weight[:, indices])
    torch.testing.assert_close(sparse_matmul(values, indices, weight), by_hand)
    mask = torch.tensor([[1, 0, 1], [0, 1, 1]], dtype=torch.int16)
    x, w = torch.randn(2, 3, 4, generator=draw), torch.randn(5, 4, generator=draw)
    torch.testing.assert_close(sparse_act_matmul(x, mask, w, 2), (x @ w.t()) * mask[..., None])
    assert torch.equal(one_hot(indices, 7), functional.one_hot(indices, 7))


def test_sampling_of_tokens() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.7, 0.1, 0.15, 0.05]])
    top = cstorch.cirh.FusedTopK(probabilities, k=3, dimension=1)
    assert top[..., 1].tolist() == [[1, 3, 2], [0, 2, 1]]

    def draw(p: float, u: float, k: int = 3) -> list[int]:
        full = torch.full((2, 1), p)
        drawn = cstorch.cirh.FusedTopP(top, p=full, u=torch.full((2, 1), u), k=torch.full((2, 1), k))
        return drawn.flatten().tolist()

    assert draw(1.0, 0.0) == [1, 0]
    assert draw(1.0, 0.999) == [2, 1]
    assert draw(0.65, 0.999) == [3, 0]  # 0.4 and 0.3 reach 0.65; 0.7 alone does
    assert draw(1.0, 0.999, k=1) == [1, 0]
    assert draw(1.0, 0.5) == [3, 0]
    with pytest.raises(ValueError, match="dimension is 0, expected the last one, 1"):
        cstorch.cirh.FusedTopK(probabilities, k=1, dimension=0)
    slices = cstorch.experimental.get_loop_iteration_slice(
        torch.arange(24).reshape(2, 4, 3), torch.tensor([1, 3])
    )
    assert slices.tolist() == [[[3, 4, 5]], [[21, 22, 23]]]


def test_paths_in_nests() -> None:
    x = torch.ones(2)
    nest = {"a": [1, {"b": x, 3: 4}], "c": (x,), "d": None}
    spec = pytree.tree_flatten(nest)[1]
    assert list(recurse_spec(spec)) == [["a", "0"], ["a", "1", "b"], ["a", "1", "3"], ["c", "0"], ["d"]]
    assert [path for path, _ in visit_torch_tensors(nest)] == [["a", "1", "b"], ["c", "0"]]
    assert [path for path, _ in visit_torch_tensors(x, scope=["in"])] == [["in"]]
    with pytest.raises(ValueError, match=r"the leaf at a\.0 is 1, expected a tensor"):
        list(visit_torch_tensors(nest, strict=True))


def test_filters_of_names() -> None:
    names = ("l.weight", "a.x", "q.b", "z")
    parameter = nn.Parameter(torch.ones(1))

    def chosen(given: Any) -> list[str]:
        return [name for name in names if make_param_filter(given)(name, parameter)]

    assert chosen("*.weight") == ["l.weight"]
    assert chosen(["a.*", "*.b"]) == ["a.x", "q.b"]
    assert chosen(lambda name, param: name == "z") == ["z"]
    assert convert_glob_to_regex("a?b").search("axb")
    with pytest.raises(TypeError, match="param_filter is a int, expected a string, a list of strings"):
        make_param_filter(3)


def test_functions_that_run_once() -> None:
    calls: list[int] = []

    @call_once(lambda: calls.append(-1))
    def first(value: int) -> int:
        calls.append(value)
        return value

    assert (first(5), first(6), calls) == (5, 5, [5, -1])


def test_checkpoints_by_the_names_of_their_tensors(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.mdl", tmp_path / "b.mdl"
    state = {"model": {"w.x": torch.ones(2)}, "list": [torch.zeros(1), 3]}
    saver = PyTorchH5Saver(max_store=3)
    saver.save(path, state)
    assert saver.is_valid_checkpoint(path)
    assert not saver.is_valid_checkpoint(tmp_path / "none")
    names = ["model.w.x", "list.0", "list.1"]
    assert sorted(saver.tensor_names(path)) == sorted(names)
    flat, spec = saver.flatten_state_dict(state)
    saver.save_spec(copy, spec)
    for name in names:
        assert not copy.exists()
        saver.save_tensor(copy, name, flat[name])
    assert torch.equal(saver.load_tensor(copy, "model.w.x"), torch.ones(2))
    with pytest.raises(KeyError, match=r"has no 'y', expected one of"):
        saver.load_tensor(copy, "y")
    read = CerebrasStateDict.create(CheckpointReader(copy).spec, copy)
    assert torch.equal(read["model"]["w.x"], torch.ones(2))
    assert read["list"][1] == 3


@pytest.mark.parametrize(("given", "said"), [("a", "has no model.b"), ("abc", "has model.c")])
def test_loaded_checkpoints_have_the_weights_of_the_model(given: str, said: str, tmp_path: Path) -> None:
    """A pretrained checkpoint may lack some, and have others."""
    loaded, merged = tmp_path / "loaded.mdl", tmp_path / "merged.mdl"
    PyTorchH5Saver().save(loaded, {"model": {name: torch.zeros(()) for name in given}})
    state = {"model": {"a": torch.ones(()), "b": torch.ones(())}}
    with pytest.raises(CheckpointError, match=re.escape(said)):
        PyTorchH5Saver(loaded_checkpoint=loaded).save(merged, state)
    PyTorchH5Saver(loaded_checkpoint=loaded, is_pretrained_checkpoint=True).save(merged, state)
    assert cstorch.load(merged)["model"] == {"a": 0, "b": 0 if "b" in given else 1}


def test_the_tasks_of_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("cstorch.distributed.cluster_resolver.num_streamers", lambda: 3)
    monkeypatch.setattr("cstorch.distributed.cluster_resolver.get_streaming_rank", lambda: 1)
    spec = cstorch.distributed.service_resolver().cluster_spec
    assert (spec.num_tasks(), spec.num_csx, spec.num_workers_per_csx) == (3, 1, 3)
    assert (spec.task().rank, spec.task(2).local_rank, spec.task().wse_id) == (1, 2, 0)
    assert len(spec.filter_tasks_by_role(TaskRole.WORKER)) == 3
    own = ClusterSpec([TaskSpec(rank=0, local_rank=0, wse_id=0, node_name="unknown")], 0, 1, 1)
    assert own.task().node_name == "unknown"
    with pytest.raises(ValueError, match="there is no task 4, expected one of 1"):
        own.task(4)
    with pytest.raises(ValueError, match="rank is -1, expected 0 or more"):
        TaskSpec(-1, 0, 0, "x")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_bytes(b"12345")
    full, size, free = cstorch.distributed.hit_worker_cache_limit(
        tmp_path / "data", tmp_path / "copy" / "data"
    )
    assert (full, size) == (False, 5)
    assert free > 5
    assert cstorch.distributed.get_streaming_batch_size(16, global_rank=2) == 16


def test_the_cache_of_workers_is_private_and_made_by_programs_that_use_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def root() -> str:
        return str(runpy.run_path(workers.__file__)["WORKER_CACHE_ROOT"])

    assert cb_model.WORKER_CACHE_ROOT == cstorch.distributed.WORKER_CACHE_ROOT == root()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert root() == str(tmp_path / ".cache" / "cs_worker_cache")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("CEREBRAS_WORKER_CACHE_ROOT", "/disk/cache")
    assert root() == "/disk/cache"


def test_samplers_that_continue_and_pad(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(DistributedSampler(range(10), seed=3, batch_size=3, drop_last=False))
    both = DistributedSampler(range(10), seed=3, batch_size=3)
    first, second = list(both), list(both)
    assert first == whole[:9]
    assert list(DistributedSampler(range(10), seed=3, batch_size=3, start_index=3)) == first[3:]
    later = DistributedSampler(range(10), seed=3, batch_size=3)
    later.set_state(9 + 6)
    assert len(later) == 3
    assert list(later) == second[6:]
    assert list(DistributedSampler(range(10), seed=3, batch_size=3, num_samples=4)) == whole[:3]
    padded = list(DistributedSampler(range(10), seed=3, batch_size=3, pad_last=True))
    assert padded == [*whole, pad_index, pad_index]
    monkeypatch.setattr("cstorch.input.datasets.num_streamers", lambda: 2)
    monkeypatch.setattr("cstorch.input.datasets.get_streaming_rank", lambda: 1)
    # Batch 2 of all was the last one read: batches 3 and 5 are those of worker 1.
    mine = DistributedSampler(range(20), shuffle=False, batch_size=3, start_index=9)
    assert list(mine) == [9, 10, 11, 15, 16, 17]
    with pytest.raises(InputError, match="start_index is -1"):
        DistributedSampler(range(3), start_index=-1)


def test_rates_are_numbers_and_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("cstorch.loop.rates.time.perf_counter", lambda: now[0])
    tracker = RateTracker(from_first=True)
    now[0] = 4.0
    tracker.add(8)  # the first step, which was compiled
    assert (tracker.rate, tracker.rate(), tracker.global_rate, tracker.global_rate()) == (2.0, 2.0, 2.0, 2.0)
    now[0] = 5.0
    tracker.add(8)
    assert (tracker.rate, tracker.global_rate(), tracker.total_count) == (8.0, 8.0, 16)
    assert (tracker.total_samples, tracker.total_samples(), tracker.samples_per_sec) == (16, 16, 8.0)
    assert tracker.total_time == tracker.elapsed_seconds == 1.0
    assert json.dumps({"rate": tracker.global_rate}) == '{"rate": 8.0}'
    tracker.reset_time(offset=2)
    assert (tracker.elapsed_seconds, tracker.elapsed_seconds()) == (2.0, 2.0)


def test_speed_of_an_input(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = cstorch.utils.benchmark.benchmark_dataloader(data, num_epochs=2, steps_per_epoch=2)
    assert [(epoch.steps, epoch.samples) for epoch in metrics.epochs] == [(2, 8), (2, 8)]
    assert metrics.samples_per_s > 0
    assert "epoch 1: 2 batches with 8 samples" in capsys.readouterr().out
    loader = DataLoader(data)
    assert (
        cstorch.utils.benchmark.benchmark_dataloader(lambda: loader, print_metrics=False).epochs[0].steps == 3
    )


def test_settings_of_the_original_are_taken() -> None:
    model: Any = TwoLayers()
    compression = cstorch.experimental.Compression("mx8-e3m4", ["first.*"])
    model.apply(compression)
    assert repr(compression) == "Compression(format='mx8-e3m4', param_filter=['first.*'])"
    with cstorch.storage.serializers.use_external_link(True):
        assert cstorch.storage.serializers.use_external_link
    assert not cstorch.storage.serializers.use_external_link
    cstorch.lib.cerebras_pytorch_lib.set_attribute(torch.ones(1), "cs.internal", {"source_vars": ["x"]})
    assert cstorch.get_debug_name(model).startswith("TwoLayers_")
    cstorch.add_debug_name(model)
    assert cstorch.get_debug_name(model.first) == "first"


def test_constructors_have_types_as_annotations() -> None:
    # Model Zoo builds its configuration classes from these; strings would need this module's names.
    optim = cstorch.optim
    bases = ("LRScheduler", "Scheduler", "WeightDecayScheduler")
    kinds = [
        kind
        for module in (optim, optim.lr_scheduler, optim.weight_decay_scheduler, cstorch.sparse)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and name not in bases
    ]
    assert len(kinds) > 50
    for kind in kinds:
        for parameter in inspect.signature(kind).parameters.values():
            assert not isinstance(parameter.annotation, str), f"{kind.__name__}.{parameter.name}"
