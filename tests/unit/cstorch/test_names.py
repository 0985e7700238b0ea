"""The names that programs of three releases import, and what those do that compute nothing."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import subprocess
import sys
import typing
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import cerebras_pytorch
import cerebras_pytorch.experimental
import cstorch
from cstorch.backends import Device
from cstorch.backends.csx import Settings
from cstorch.distributed.cluster import ClusterConfig, CSConfig
from cstorch.errors import ConfigureError
from cstorch.iterations import checkpoint_steps_of
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import model_state, move_to_device
from cstorch.tracing.step import trace
from cstorch.utils.data import DataLoader, DistributedSampler, Range, Schedule, SyntheticDataset

ROOT = Path(__file__).parents[3]

IN_1_8 = """
configure compile compile_step step_closure save load save_summaries scalar_summary
optim.configure_optimizer optim.configure_lr_scheduler optim.Optimizer optim.lr_scheduler.LRScheduler
amp.GradScaler amp.optimizer_step metrics.compute_all_metrics metrics.AccuracyMetric metrics.PerplexityMetric
utils.data.DataLoader
"""
IN_1_9 = """
backend current_backend checkpoint_closure summarize_scalar amp.use_bfloat16 utils.CSConfig
utils.data.DataExecutor utils.data.compute_num_steps utils.tensorboard.SummaryWriter
"""
IN_2 = """
trace manual_seed summarize_tensor use_cs current_torch_device current_executor device tensor full ones zeros
full_like ones_like zeros_like make_constant from_numpy to_numpy name_scope add_debug_name pol current_pol
amp.set_half_dtype amp.autocast backends.csx.debug backends.csx.performance backends.csx.precision
nn.DiceCELoss nn.Scope nn.StripPadding sparse.configure_sparsity_optimizer sparse.SparsityWrapperOptimizer
sparse.configure sparse.Static sparse.SET sparse.GMP sparse.RigL sparse.Group metrics.FBeta
metrics.Accuracy metrics.AUC metrics.DiceCoefficient metrics.FBetaScore metrics.Mean metrics.MeanIOU
metrics.MeanPerClassAccuracy metrics.Perplexity metrics.PrecisionAtK metrics.RecallAtK metrics.Metric
metrics.FBetaScoreMetric metrics.MeanIOUMetric metrics.DiceCoefficientMetric metrics.get_all_metrics
distributed.ClusterConfig distributed.is_streamer distributed.num_streamers distributed.get_streaming_rank
distributed.num_tasks distributed.get_ordinal distributed.is_master_ordinal distributed.get_worker_state
distributed.service_resolver distributed.is_receiver distributed.num_receivers
optim.SGD optim.Adam optim.AdamW optim.Adagrad optim.Adadelta optim.Adafactor optim.Adamax optim.ASGD
optim.Lamb optim.Lion optim.NAdam optim.RAdam optim.RMSprop optim.Rprop optim.configure_param_groups
optim.lr_scheduler.SequentialLR optim.lr_scheduler.CosineDecayLR optim.lr_scheduler.ChainedScheduler
optim.lr_scheduler.ScalePerParamLR optim.weight_decay_scheduler.CosineDecayWD
utils.data.RestartableDataLoader utils.data.SyntheticDataset utils.data.DistributedSampler
utils.data.Schedule utils.data.Range utils.data.infer_batch_size utils.tensorboard.SummaryReader
"""


@pytest.mark.parametrize(
    ("package", "names"),
    [
        (cerebras_pytorch.experimental, IN_1_8),
        (cerebras_pytorch, IN_1_8 + IN_1_9 + IN_2),
        (cstorch, IN_1_8 + IN_1_9 + IN_2),
    ],
)
def test_every_name_exists(package: ModuleType, names: str) -> None:
    for name in names.split():
        found: object = package
        for part in name.split("."):
            found = getattr(found, part)


def test_a_module_is_the_same_under_each_of_its_names() -> None:
    for path in ("optim.lr_scheduler", "utils.data", "metrics", "utils.tensorboard", "distributed"):
        own = importlib.import_module(f"cstorch.{path}")
        for package in ("cerebras_pytorch", "cerebras_pytorch.experimental"):
            assert importlib.import_module(f"{package}.{path}") is own


def test_inside_the_launchers_it_is_also_called_cerebras_pytorch() -> None:
    program = (
        "import sys, cerebras.pytorch as cstorch, cerebras.pytorch.optim.lr_scheduler as schedules\n"
        "import cerebras_pytorch\n"
        "assert cstorch.compile is cerebras_pytorch.compile\n"
        "assert schedules is cstorch.optim.lr_scheduler\n"
        "import cerebras.pytorch.experimental.optim.lr_scheduler as old\n"
        "assert old is schedules and cerebras_pytorch.experimental.compile is cstorch.compile\n"
        "assert 'tensorflow' not in sys.modules and 'jax' not in sys.modules\n"
    )
    path = f"{ROOT / 'cs_compat' / 'modules'}:{ROOT}"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": path})


def test_a_cluster_is_described_in_types_that_parsers_of_command_lines_know() -> None:
    known = (str, int, bool, str | None, int | None, list[str] | None)
    hints = typing.get_type_hints(cstorch.distributed.ClusterConfig)
    for field in dataclasses.fields(cstorch.distributed.ClusterConfig):
        assert hints[field.name] == field.type
        assert field.type in known
    cluster = cstorch.distributed.ClusterConfig(mgmt_address="host:9000", num_workers_per_csx=3)
    expected = {
        "mgmt_address": "host:9000",
        "num_csx": 1,
        "max_act_per_csx": None,
        "max_wgt_servers": None,
        "num_workers_per_csx": 3,
    }
    assert cluster.settings() == expected
    older = cstorch.utils.CSConfig(debug_args=None, transfer_processes=5, **vars(cluster))
    assert (
        older.settings()
        == cstorch.utils.CSConfig.of({"mgmt_address": "host:9000", "num_workers_per_csx": 3}).settings()
        == expected
    )
    assert older.transfer_processes == 5


def test_settings_of_the_appliance_are_kept_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    debug = Settings("backends.csx.debug")
    with caplog.at_level(logging.INFO, "cstorch"):
        assert debug.execute_crd_memory_gi is None
        debug.execute_crd_memory_gi = 16
        debug.execute_crd_memory_gi = 32
    assert debug.execute_crd_memory_gi == 32
    assert [record.message for record in caplog.records] == [
        "backends.csx.debug.execute_crd_memory_gi has no effect on this system"
    ]


def test_settings_of_the_appliance_have_values_before_they_are_set() -> None:
    csx = cstorch.backends.csx
    assert csx.precision.optimization_level >= 1  # as rotary positions of Model Zoo 2.4.3 compare it
    assert csx.performance.micro_batch_size == "auto"
    assert (csx.debug.lazy_initialization, csx.debug.drop_data) == (True, False)
    assert Device(torch.device("xla", 0)).config is csx.debug  # where release 2.2 has them
    precision = Settings(
        "backends.csx.precision", {"optimization_level": 1}, choices={"optimization_level": range(3)}
    )
    with pytest.raises(
        ConfigureError, match=r"precision.optimization_level is 3, expected one of \[0, 1, 2\]"
    ):
        precision.optimization_level = 3
    precision.optimization_level = 2
    assert precision.optimization_level == 2
    del precision.optimization_level
    assert precision.optimization_level == 1


def test_a_device_is_printed_as_its_kind_of_backend() -> None:
    """Programs of releases 2.x print `backend.device` in every line of progress."""
    assert f"{Device(torch.device('xla', 0))} {Device(torch.device('cpu'))}" == "CSX CPU"


def test_options_without_effect_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        ClusterConfig(mgmt_address="10.0.0.1", num_csx=2, job_priority="p1", mount_dirs=["/data"]).settings()
        CSConfig(debug_mgr={"cpu": 1}).settings()
        ClusterConfig().settings()
    assert [record.message for record in caplog.records] == [
        "ClusterConfig: job_priority, mount_dirs of the original's cluster, without effect here",
        "ClusterConfig: debug_mgr of the original's cluster, without effect here",
    ]


def test_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    from cstorch import distributed

    assert (distributed.num_tasks(), distributed.num_streamers(), distributed.get_ordinal()) == (1, 1, 0)
    assert distributed.is_streamer()
    assert distributed.is_receiver()
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}}',
    )
    assert (distributed.num_tasks(), distributed.num_streamers(), distributed.get_ordinal()) == (3, 2, 2)
    assert distributed.get_streaming_rank() == 1
    assert distributed.is_streamer()
    assert not distributed.is_receiver()
    assert not distributed.is_master_ordinal()
    resolver = distributed.service_resolver()
    assert resolver.get_task_info() == ("worker", 1)
    assert resolver.cluster_spec() == {"chief": ["a:1"], "worker": ["b:1", "c:1"]}


def test_schedules_of_steps() -> None:
    every = checkpoint_steps_of(10)
    assert every is not None
    assert [step for step in range(35) if every.match(step)] == [10, 20, 30]
    assert str(every) == "every 10 steps"
    parts = Schedule(
        [Range(start=0, end=6, step=3), {"start": 20, "end": 27, "step": 5, "include_last": True}]
    )
    assert list(parts) == [step for step in range(40) if parts.match(step)] == [0, 3, 20, 25, 26]
    assert (len(parts), parts.start, parts.final_step) == (5, 0, 26)
    assert [parts.next_after(step) for step in (0, 3, 25, 26)] == [3, 20, 26, None]
    assert [parts.next_immediate_step(step) for step in (0, 1, 3, 4, 26)] == [0, 3, 3, 20, 26]
    assert parts.range() == [range(0, 6, 3), range(20, 27, 5)]
    with pytest.raises(ValueError, match="target is 27, expected at most the last step, 26"):
        parts.next_immediate_step(27)
    assert (len(Schedule([])), Schedule([]).start, Schedule([]).next_immediate_step(3)) == (0, None, None)
    assert str(parts) == "every 3 steps from 0 to 5 and every 5 steps from 20 to 26"
    after = checkpoint_steps_of(parts)
    assert after is not None
    assert [done for done in range(40) if after.match(done)] == [1, 4, 21, 26, 27]
    assert [after.left(done) for done in (0, 1, 4, 26)] == [1, 3, 17, 1]


def test_made_up_samples() -> None:
    samples = SyntheticDataset({"x": torch.ones(3), "y": lambda i: torch.tensor(i)}, num_samples=4)
    assert len(samples) == 4
    assert samples[2]["y"] == 2
    batch = next(iter(torch.utils.data.DataLoader(samples, batch_size=4)))
    assert batch["x"].shape == (4, 3)
    assert cstorch.utils.data.infer_batch_size(batch) == 4


def test_shards_are_the_batches_of_one_process_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    data = range(20)
    whole = list(DistributedSampler(data, seed=3, batch_size=2, shard=False))
    assert sorted(whole) == list(data)
    assert whole != list(data)
    batches = [whole[i : i + 2] for i in range(0, 20, 2)]
    for worker in range(3):
        monkeypatch.setattr("cstorch.input.datasets.num_streamers", lambda: 3)
        monkeypatch.setattr("cstorch.input.datasets.get_streaming_rank", lambda worker=worker: worker)
        mine = DistributedSampler(data, seed=3, batch_size=2)
        expected = list(chain.from_iterable(batches[worker::3]))
        assert len(mine) == len(expected)
        assert list(mine) == expected
        assert list(DistributedSampler(data, seed=3, batch_size=2, drop_last=True)) == expected


def test_workers_take_turns_through_all_epochs_and_a_chief_counts_whole_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three workers and epochs of four batches: the order is that of one process, whatever their number."""
    whole = DistributedSampler(range(9), batch_size=2, seed=3, drop_last=True)
    alone = [batch for _ in range(3) for batch in in_pairs(whole)]
    assert len(alone) == 12
    monkeypatch.setattr("cstorch.input.datasets.num_streamers", lambda: 3)
    for worker in range(3):
        monkeypatch.setattr("cstorch.input.datasets.get_streaming_rank", lambda worker=worker: worker)
        sampler = DistributedSampler(range(9), batch_size=2, seed=3, drop_last=True)
        assert [batch for _ in range(3) for batch in in_pairs(sampler)] == alone[worker::3]
    monkeypatch.setattr("cstorch.input.datasets.is_streamer", lambda: False)
    assert len(DistributedSampler(range(9), batch_size=2, drop_last=True)) == 8


def test_a_run_begins_with_the_first_epoch_whatever_was_read_before() -> None:
    records = TensorDataset(torch.arange(8))

    def made() -> torch.utils.data.DataLoader:
        return torch.utils.data.DataLoader(
            records, 2, sampler=DistributedSampler(records, seed=3, batch_size=2)
        )

    expected = [batch[0].tolist() for _, batch in zip(range(8), DataLoader(made).endless(), strict=False)]
    loader = made()
    next(iter(loader))
    for _ in range(2):
        read = DataLoader(lambda: loader).endless()
        assert [batch[0].tolist() for _, batch in zip(range(8), read, strict=False)] == expected


def in_pairs(order: Iterable[int]) -> list[tuple[int, int]]:
    """Batches of two."""
    left = iter(order)
    return list(zip(left, left, strict=True))


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"num_steps": 7}, 7),
        ({"num_steps": 7, "max_steps": 9, "initial_step": 4}, 5),
        ({"max_steps": 9}, 9),
        ({"max_steps": 9, "initial_step": 12}, 0),
        ({"num_epochs": 2}, 8),
        ({"num_epochs": 2, "steps_per_epoch": 3}, 6),
        ({"num_epochs": 2, "grad_accum_steps": 2}, 4),
        ({"num_epochs": 3, "max_steps": 10}, 10),
        ({}, 4),
    ],
)
def test_numbers_of_steps(given: dict[str, int], steps: int) -> None:
    loader = torch.utils.data.DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)
    assert cstorch.utils.data.compute_num_steps(loader, **given) == steps
    if "grad_accum_steps" not in given:
        assert len(DataLoader(lambda: loader, **given)) == steps


def test_steps_count_where_an_evaluation_gives_epochs_as_well() -> None:
    loader = torch.utils.data.DataLoader(torch.ones(8, 1), batch_size=2)
    assert cstorch.utils.data.compute_num_steps(loader, num_steps=3, num_epochs=1) == 3


def test_tensors_and_arrays() -> None:
    import ml_dtypes

    array = np.asarray([1.5, 2.5], ml_dtypes.bfloat16)
    found = cstorch.from_numpy(array)
    assert found.dtype == torch.bfloat16
    assert cstorch.to_numpy(found).tolist() == [1.5, 2.5]
    assert cstorch.to_numpy(cstorch.from_numpy(np.arange(3))).tolist() == [0, 1, 2]
    assert cstorch.full((2,), 3.0).tolist() == [3.0, 3.0]
    assert cstorch.zeros_like(torch.ones(2)).tolist() == [0.0, 0.0]
    with cstorch.device("meta"):
        assert torch.nn.Linear(2, 2).weight.is_meta
    with cstorch.pol(2):
        assert cstorch.current_pol() == 2
    assert cstorch.current_pol() == 0


def test_dice_and_cross_entropy() -> None:
    """Against the definition, written out for each class."""
    draw = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(2, 3, 4, 4, generator=draw), torch.randint(0, 3, (2, 4, 4), generator=draw)
    p, parts = torch.softmax(logits, 1), []
    for label in range(3):
        there = labels == label
        parts.append(2 * p[:, label][there].sum() / (p[:, label].sum() + there.sum()))
    ce = -torch.log(p.gather(1, labels[:, None])).mean()
    expected = ce + 1 - torch.stack(parts).mean()
    loss = cstorch.nn.DiceCELoss(num_classes=3, input_shape=[2, 3, 4, 4])
    torch.testing.assert_close(loss(logits, labels), expected)
    torch.testing.assert_close(loss(logits, labels[:, None].int()), expected)
    assert cstorch.nn.StripPadding()(cstorch.nn.Scope(scope_name="a")(logits)) is logits
    with pytest.raises(ValueError, match="num_classes=1, expected 2 or more"):
        cstorch.nn.DiceCELoss(1)


def test_names_of_parts_of_a_step() -> None:
    """Layers are named as in errors and reports: a block in a function, and a module outside of the model."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    move_to_device(model)
    loss = torch.nn.Sequential(torch.nn.Tanh())
    cstorch.add_debug_name(loss, "loss")

    def step() -> torch.Tensor:
        with cstorch.name_scope("block"):
            x = model(batch).exp()
        return loss(x).sum()

    batch = DeviceTensor(torch.ones(1, 2))
    nodes = trace(step, [batch], model_state(model), [model]).graph.nodes
    layers = {node.op.split(".")[1]: node.layer for node in nodes}
    assert layers["exp"] == ("block",)
    assert layers["tanh"] == ("loss", "0")
    assert layers["sum"] == ()
    assert layers["addmm"] == ("0",)


def test_a_loader_without_workers_takes_a_prefetch_factor() -> None:
    """PyTorch accepted both up to 1.13, and checks every other combination itself."""
    loader = torch.utils.data.DataLoader([1, 2], num_workers=0, prefetch_factor=2)
    assert loader.prefetch_factor is None
    assert torch.utils.data.DataLoader([1], num_workers=1, prefetch_factor=3).prefetch_factor == 3
    with pytest.raises(ValueError, match="prefetch_factor"):
        torch.utils.data.DataLoader([1], num_workers=1, prefetch_factor=-3)
