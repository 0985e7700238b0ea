"""The runner of a `run.py`: flags, `runconfig`, hooks, files, on a CPU and on a CS system."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import TensorDataset

from cs_runtime.errors import CallError
from cs_toolkit.loader import ConfigError
from csrun.tasks.place import EXIT_REQUEUE
from cstorch.errors import CheckpointError
from cstorch.metrics import AccuracyMetric
from cstorch.program import Program
from cstorch.v1.runner import LossValueError, RunConfig, Runner, run
from cstorch.v1.runner.runner import newest_checkpoints
from cstorch.v1.runner.settings import StepsReachedError
from tests.systems import RunningSystem

FEATURES, CLASSES, BATCH, EPOCH = 6, 4, 16, 8


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(fresh_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


class Network(nn.Module):
    """Returns the loss of a batch, and counts hits where it evaluates."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        hidden = params["model"]["hidden_size"]
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, CLASSES)
        )
        self.accuracy = AccuracyMetric("accuracy")

    def forward(self, batch: Any) -> torch.Tensor:
        x, y = batch
        logits = self.layers(x)
        if not self.training:
            self.accuracy(labels=y.clone(), predictions=logits.argmax(-1).int())
        return nn.functional.cross_entropy(logits, y)


def data_fn(params: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    x = torch.randn(BATCH * EPOCH, FEATURES, generator=torch.Generator().manual_seed(3))
    if params["train_input"].get("broken"):
        x[-1] = float("nan")
    return torch.utils.data.DataLoader(TensorDataset(x, x[:, :CLASSES].argmax(1)), batch_size=BATCH)


PARAMS: dict[str, Any] = {
    "train_input": {},
    "model": {"hidden_size": 16},
    "optimizer": {
        "optimizer_type": "AdamW",
        "learning_rate": [
            {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.01, "steps": 5},
            {"scheduler": "Constant", "learning_rate": 0.01},
        ],
        "weight_decay_rate": 0.1,
        "max_gradient_norm": 1.0,
        "loss_scaling_factor": "dynamic",
    },
    "runconfig": {"max_steps": 12, "log_steps": 4, "checkpoint_steps": 6, "seed": 1},
}


def called(
    *flags: str, params: dict[str, Any] | None = None, runner: type[Runner] = Runner, **run_config: Any
) -> Runner:
    """Call `run` as in a new process."""
    Program.reset()
    given = {**PARAMS, **(params or {})}
    given["runconfig"] = {**given["runconfig"], **run_config}
    Path("params.yaml").write_text(yaml.safe_dump(given))
    elsewhere = ("CSX", "--cs_ip", "--compile_only", "--validate_only")
    place = () if any(flag.startswith(elsewhere) for flag in flags) else ("--cpu",)
    argv = ["-p", "params.yaml", "-o", "model_dir", *place, *flags]
    return run(Network, data_fn, data_fn, runner=runner, argv=argv)


class Without(Runner):
    """Trains without dropout, so that a CPU and the CS system draw nothing."""

    def on_train_start(self) -> None:
        self.model.network.layers[2].p = 0.0


def test_the_system_trains_as_the_cpu_and_a_stopped_run_continues(
    system: RunningSystem, tmp_path: Path
) -> None:
    words = ("-m", "train")
    expected = called(*words, "-o", "cpu", runner=Without).losses
    assert sorted(expected) == list(range(1, 13))
    on_cs = (*words, f"--cs_ip={system.address}")
    whole = called(*on_cs, "-o", "cs", runner=Without, save_losses=True, save_initial_checkpoint=True)
    assert sorted(whole.losses) == [4, 6, 8, 12]
    assert whole.losses == pytest.approx({step: expected[step] for step in whole.losses}, rel=1e-5)
    names = {str(path.relative_to("cs")) for path in Path("cs").rglob("*") if path.is_file()}
    assert names >= {
        "checkpoint_0.mdl",
        "checkpoint_6.mdl",
        "checkpoint_12.mdl",
        "fabric.json",
        "losses.json",
        "performance.json",
        "performance/performance.json",
        "run_summary.json",
        "train/params_train.yaml",
    }
    assert json.loads(Path("cs/losses.json").read_text()) == {str(k): v for k, v in whole.losses.items()}
    assert yaml.safe_load(Path("cs/train/params_train.yaml").read_text())["model"] == {"hidden_size": 16}
    performance = json.loads(Path("cs/performance/performance.json").read_text())
    assert performance["total_samples"] == 12 * BATCH
    assert 0 < performance["compile_time"] < 100
    assert 0 < performance["programming_time"] < 100


def test_a_run_in_two_parts_equals_one_bit_for_bit(system: RunningSystem) -> None:
    """Dropout included: masks go by the global step."""
    on_cs = ("-m", "train", f"--cs_ip={system.address}")
    called(*on_cs, "-o", "whole")
    for last in (6, 12):
        called(*on_cs, "-o", "parts", f"--max_steps={last}")
    ours, theirs = (torch.load(f"{name}/checkpoint_12.mdl")["model"] for name in ("parts", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_weight_streaming_continues_where_the_pipeline_has_stopped(system: RunningSystem) -> None:
    """Adam, a schedule, clipping and a dynamic loss scale, in layers: the state is the same."""
    on_cs = ("-m", "train", f"--cs_ip={system.address}")
    whole = called(*on_cs, "-o", "whole", log_steps=1)
    called(*on_cs, "-o", "mixed", log_steps=1, max_steps=6)
    rest = called("CSX", "weight_streaming", *on_cs, "-o", "mixed", log_steps=1)
    assert rest.losses == pytest.approx({step: whole.losses[step] for step in range(7, 13)}, rel=1e-6)
    back = called("CSX", "pipeline", *on_cs, "-o", "mixed", log_steps=1, max_steps=14)
    assert sorted(back.losses) == [13, 14]
    report = json.loads(Path("mixed/run_summary.json").read_text())
    assert report["status"] == "completed"


def test_an_evaluation_equals_a_direct_computation(
    system: RunningSystem, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    called("-m", "train", "-o", "model_dir")
    losses = {}
    for side, flags in {"cpu": (), "cs": (f"--cs_ip={system.address}",)}.items():
        caplog.clear()
        made = called("-m", "eval", *flags)
        losses[side] = sum(made.losses.values()) / EPOCH
        assert f"Avg Eval. Loss = {losses[side]:.6f}" in caplog.text
        assert "Avg eval_metrics = {'accuracy': " in caplog.text
    assert capsys.readouterr().out.count("Evaluation Completed Successfully!") == 2
    network = Network(PARAMS)
    network.load_state_dict(torch.load("model_dir/checkpoint_12.mdl")["model"])
    network.eval()
    with torch.no_grad():
        found = [network(batch).item() for batch in data_fn(PARAMS)]
    assert losses == pytest.approx(dict.fromkeys(("cpu", "cs"), sum(found) / EPOCH), rel=1e-5)
    assert f"'accuracy': {round(float(network.accuracy), 6)}" in caplog.text
    assert len(called("-m", "eval", "--eval_steps=3").losses) == 3


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(("flag", "artifacts"), [("--compile_only", 1), ("--validate_only", 0)])
def test_compiling_runs_nothing(mode: str, flag: str, artifacts: int) -> None:
    assert not called("-m", mode, flag).losses
    assert len(list(Path("model_dir").glob("cs_*"))) == artifacts
    assert Path("model_dir/fabric.json").is_file()


def test_hooks_run_in_their_order() -> None:
    told: list[str] = []

    class Telling(Runner):
        def __getattribute__(self, name: str) -> Any:
            if name.startswith("on_"):
                told.append(name)
            return super().__getattribute__(name)

    called("-m", "train_and_eval", "--num_steps=9", runner=Telling, max_steps=None, eval_steps=1)
    step = ["on_train_batch_start", "on_train_batch_end"]
    epochs = [["on_train_epoch_start", *step * count, "on_train_epoch_end"] for count in (EPOCH, 9 - EPOCH)]
    assert told == [
        "on_train_start",
        *epochs[0],
        *epochs[1],
        "on_train_end",
        "on_eval_start",
        "on_eval_epoch_start",
        "on_eval_batch_start",
        "on_eval_batch_end",
        "on_eval_epoch_end",
        "on_eval_end",
    ]


def test_own_flags_and_defaults_reach_the_model() -> None:
    seen: dict[str, Any] = {}

    def model_fn(params: dict[str, Any]) -> Network:
        seen.update(params)
        return Network(params)

    def extra() -> list[argparse.ArgumentParser]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--hidden", type=int, default=8)
        return [parser]

    def defaults(params: dict[str, Any]) -> None:
        params["model"] = {"hidden_size": params["flags"]["hidden"]}

    Path("params.yaml").write_text(yaml.safe_dump(PARAMS))
    words = ["-p", "params.yaml", "-m", "train", "--cpu", "-o", "model_dir", "--hidden=5", "--max_steps=1"]
    run(model_fn, data_fn, None, defaults, extra, argv=words)
    assert seen["model"] == {"hidden_size": 5}
    assert seen["runconfig"]["max_steps"] == 1


def test_a_pretrained_checkpoint_gives_its_weights_and_the_newest_one_is_taken_by_itself() -> None:
    assert called("-m", "train").global_step == 12
    with pytest.raises(StepsReachedError, match="global step 12 has reached max_steps 12"):
        called("-m", "train")
    flags = ("--checkpoint_path=model_dir/checkpoint_6.mdl", "--is_pretrained_checkpoint")
    again = called("-m", "train", "-o", "other", *flags, "--max_steps=2")
    assert (again.global_step, sorted(again.losses)) == (2, [1, 2])
    assert newest_checkpoints(Path("model_dir"))[0] == Path("model_dir/checkpoint_12.mdl")
    assert not newest_checkpoints(Path("nowhere"))


def test_a_damaged_checkpoint_is_skipped_and_training_never_starts_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    called("-m", "train")
    checkpoints = newest_checkpoints(Path("model_dir"))
    newest, before = checkpoints[:2]
    newest.write_bytes(newest.read_bytes()[:-1])
    again = called("-m", "train")
    assert (again.global_step, min(again.losses)) == (12, int(before.stem.removeprefix("checkpoint_")) + 1)
    assert f"using '{before}' instead" in caplog.text
    for path in checkpoints:
        if path.stem != "checkpoint_0":
            path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"checkpoint_12\.mdl.*before it are damaged.*empty model_dir"):
        called("-m", "train")


def test_the_command_line_overrides_the_duration_of_the_file() -> None:
    """The flags override the file."""
    assert called("-m", "train", "--num_epochs=1", num_steps=3).global_step == EPOCH
    assert (
        called("-m", "train", "-o", "other", "--num_steps=3", num_epochs=1, max_steps=None).global_step == 3
    )


@pytest.mark.parametrize(
    ("said", "replicas"),
    [
        ({}, 1),
        ({"num_replicas": 4}, 4),
        ({"num_replicas": "4"}, 4),
        ({"num_replicas": -1}, "auto"),
        ({"multireplica": True}, "auto"),
        ({"multireplica": True, "num_replicas": 4}, 4),
    ],
)
def test_the_number_of_replicas(said: dict[str, Any], replicas: object) -> None:
    assert RunConfig.of({"runconfig": {**PARAMS["runconfig"], **said}}).options.num_replicas == replicas


def test_batches_of_the_stream_are_kept() -> None:
    called("-m", "train", "--max_steps=3", save_stream_size=2)
    kept = sorted(Path("model_dir/stream/train/0").iterdir())
    assert [path.name for path in kept] == ["batch_0.pt", "batch_1.pt"]
    torch.testing.assert_close(torch.load(kept[1]), list(data_fn(PARAMS))[1])


@pytest.mark.parametrize("flags", [(), ("--cs_ip",)], ids=["cpu", "cs"])
def test_a_loss_that_is_not_finite_ends_the_training(system: RunningSystem, flags: tuple[str, ...]) -> None:
    words = [f"{flag}={system.address}" for flag in flags]
    broken = {"train_input": {"broken": True}, "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1}}
    with pytest.raises(LossValueError, match="loss is nan at global step 8"):
        called("-m", "train", *words, params=broken)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"log_steps": None}, "has no log_steps"),
        ({"log_step": 5}, "has 'log_step', expected .*did you mean 'log_steps'"),
        ({"num_epochs": 1, "num_steps": 2}, "num_epochs is 1 and num_steps is 2"),
        ({"max_steps": None}, "neither num_epochs, num_steps nor max_steps"),
        ({"checkpoint_steps": -1}, "checkpoint_steps is -1, expected a whole number of 0 or more"),
        ({"num_steps": "10"}, "num_steps is '10', expected a whole number of 1 or more"),
        ({"logging": "loud"}, "logging is 'loud', expected one of debug"),
        ({"compile_only": True, "validate_only": True}, "expected one of them"),
        ({"num_replicas": 0}, "runconfig: num_replicas is 0, expected a whole number of 1 or more"),
        ({"num_replicas": 2, "num_csx": 2}, "runconfig: num_replicas is 2 with num_csx 2, expected 1"),
        ({"appliance": True}, "--appliance is given"),
        ({"num_csx": 0}, "num_csx is 0, expected a whole number of 1 or more"),
        ({"max_act_per_csx": "much"}, "runconfig: max_act_per_csx is 'much', expected a number of bytes"),
        ({"recompute": "some"}, "runconfig: recompute is 'some', expected one of auto, none, all"),
        ({"cs_ip": "127.0.0.1", "grad_accum_steps": 2}, "grad_accum_steps is 2"),
        ({"cs_ip": "127.0.0.1", "enable_summaries": True}, "enable_summaries is set"),
    ],
)
def test_configurations_that_cannot_be_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(CallError, match=text):
        RunConfig.of({"runconfig": {**PARAMS["runconfig"], **changes}})


@pytest.mark.parametrize("flags", [(), ("--cs_ip",)], ids=["cpu", "cs"])
def test_training_and_evaluating_take_turns_by_epoch(
    system: RunningSystem, flags: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Three epochs end with the same weights, and each evaluation counts only its own batches."""
    words = [f"{flag}={system.address}" for flag in flags]
    epochs = {"max_steps": None, "num_epochs": 3, "steps_per_epoch": 4, "checkpoint_steps": 12}
    whole = called("-m", "train", *words, "-o", "whole", runner=Without, **epochs)
    made = called("-m", "train_and_eval", *words, "-o", "turns", runner=Without, **epochs)
    assert made.global_step == 12
    assert made.losses[12] == whole.losses[12]
    for name in ("turns", "whole"):
        performance = json.loads(Path(name, "performance", "performance.json").read_text())
        assert performance["total_samples"] == 12 * BATCH
    ours, theirs = (torch.load(f"{name}/checkpoint_12.mdl")["model"] for name in ("turns", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    told = [record.getMessage() for record in caplog.records if "Avg " in record.getMessage()]
    assert len(told) == 6
    network = Network(PARAMS)
    network.load_state_dict(theirs)
    network.eval()
    losses = [network(batch).item() for batch in data_fn(PARAMS)]
    assert told[-1] == f"Avg Eval. Loss = {sum(losses) / EPOCH:.6f}"
    assert f"'accuracy': {round(float(network.accuracy), 6)}" in told[-2]


def test_a_job_that_is_started_again_continues_from_its_own_checkpoint_to_its_own_end(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`num_steps` counts from the first start, which a checkpoint of another run began."""
    called("-m", "train", "-o", "first", checkpoint_steps=4)
    pretrained = ("--checkpoint_path=first/checkpoint_4.mdl", f"--cs_ip={system.address}", "-o", "job")
    monkeypatch.setenv("CSRUN_REQUEUE", "1")

    class Asked(Runner):
        """Gets a request for a checkpoint after step 8."""

        def _log(self, loss: float) -> None:
            super()._log(loss)
            if self.global_step == 8:
                os.kill(os.getpid(), signal.SIGUSR1)

    counted = {"max_steps": None, "num_steps": 12, "checkpoint_steps": 100}
    with pytest.raises(SystemExit) as left:
        called("-m", "train", *pretrained, runner=Asked, **counted)
    assert left.value.code == EXIT_REQUEUE
    assert [path.name for path in Path("job").glob("*.mdl")] == ["checkpoint_8.mdl"]
    again = called("-m", "train", *pretrained, **counted)
    assert (min(again.losses), again.global_step) == (12, 16)


def test_gradients_of_several_steps_are_added_up_on_a_cpu() -> None:
    """Two batches of 16, without clipping, are one of 32."""
    plain = {"optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1}}
    called("-m", "train", "-o", "several", runner=Without, params=plain, max_steps=2, grad_accum_steps=2)
    network = Network(PARAMS)
    network.load_state_dict(torch.load("several/checkpoint_2.mdl")["model"])
    torch.manual_seed(1)
    alone = Network(PARAMS)
    x, y = (torch.cat(parts) for parts in zip(*list(data_fn(PARAMS))[:2], strict=True))
    nn.functional.cross_entropy(alone.layers[3](alone.layers[:2](x)), y).backward()
    for parameter, trained in zip(alone.parameters(), network.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(trained, parameter - 0.1 * parameter.grad)


@pytest.mark.parametrize(
    ("changes", "first", "steps"),
    [
        ({"max_steps": 12}, 0, 12),
        ({"max_steps": 12}, 5, 7),
        ({"max_steps": None, "num_steps": 3}, 5, 3),
        ({"max_steps": 7, "num_steps": 3}, 5, 2),
        ({"max_steps": None, "num_epochs": 2}, 5, 16),
        ({"max_steps": None, "num_epochs": 2, "steps_per_epoch": 3}, 0, 6),
    ],
)
def test_steps_of_a_training(changes: dict[str, Any], first: int, steps: int) -> None:
    made = RunConfig.of({"runconfig": {**PARAMS["runconfig"], **changes}})
    assert made.total_steps(first, EPOCH) == steps


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--num_csx=0",), "num_csx is 0, expected a whole number of 1 or more"),
        (("--num_csx=2",), r"num_csx is 2, the CS system at \S+ has 1; ask for fewer"),
        (("--num_csx=3",), "cannot be shared equally by 3 CS systems"),
        (("--num_csx=64",), "cannot be shared equally by 64 CS systems"),
    ],
)
def test_shares_that_cannot_be_are_refused(system: RunningSystem, flags: tuple[str, ...], text: str) -> None:
    with pytest.raises(CallError, match=text):
        called("CSX", "weight_streaming", "-m", "train", f"--cs_ip={system.address}", *flags)


def test_a_flag_of_zero_is_given(tmp_path: Path) -> None:
    assert called("-m", "train", "--seed=0", seed=7).config.seed == 0


def test_flags_of_the_original_are_named_or_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    called("-m", "train", "--mount_dirs", "/data", "--num_wgt_servers=6", "--config=debug", max_steps=1)
    named = [record.message for record in caplog.records if "without effect" in record.message]
    assert named == [
        "flags: num_wgt_servers, config, mount_dirs of the original's cluster, without effect here"
    ]
    with pytest.raises(CallError, match=r"--mgmt_address 10\.0\.0\.1:443 .* give the address .*--cs_ip"):
        called("-m", "train", "--mgmt_address=10.0.0.1:443")
    with pytest.raises(CallError, match="--multireplica and --num_replicas 4 exclude each other"):
        called("-m", "train", "--multireplica", "--num_replicas=4")
    assert (
        called("-m", "train", "--multireplica", num_replicas=4, max_steps=2).config.options.num_replicas
        == "auto"
    )


def test_wrong_flags_end_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(Network, argv=["-m", "train"])
    assert ended.value.code == 2
    assert "-p/--params" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no such file"):
        run(Network, argv=["-m", "train", "-p", "nothing.yaml"])
    with pytest.raises(SystemExit) as ended:
        run(Network, argv=["CSX", "weight-streaming", "-m", "train", "-p", "nothing.yaml"])
    assert ended.value.code == 2
    assert "invalid choice: 'weight-streaming'" in capsys.readouterr().err
    Path("list.yaml").write_text("[1]")
    with pytest.raises(CallError, match="holds a list"):
        run(Network, argv=["-m", "train", "-p", "list.yaml"])


@pytest.mark.parametrize("name", ["-a[1]*b?", "two words\nand ünï✓ \\'\"%s{x}$"])
def test_odd_names_of_model_dir(system: RunningSystem, name: str) -> None:
    words = ("-m", "train", f"--cs_ip={system.address}", f"--model_dir={name}")
    called(*words, "--max_steps=6")
    assert called("CSX", "weight_streaming", *words, "--max_steps=9").global_step == 9
    assert sorted(path.name for path in Path(name).glob("*.mdl")) == ["checkpoint_6.mdl", "checkpoint_9.mdl"]
    assert called("-m", "eval", f"--model_dir={name}").global_step == 9
    assert sorted(path.name for path in Path().iterdir() if path.is_dir()) == [name]
