from __future__ import annotations

import pytest

from cs_toolkit.messages import Message
from estimator import CSRunConfig, RunConfig
from estimator.config import MULTI_MODEL_STACK_KEY
from estimator.cs.run import _warn_of_options, warn_of_unused_options


def test_defaults_are_those_of_tf_estimator() -> None:
    config = CSRunConfig()
    assert config.tf_random_seed == 1
    assert config.save_summary_steps == 100
    assert config.save_checkpoints_steps is None
    assert config.save_checkpoints_secs == 600
    assert config.keep_checkpoint_max == 5
    assert config.log_step_count_steps == 100
    assert config.cs_ip is None
    assert type(config).__name__ == "CSRunConfig"


def test_steps_take_the_place_of_seconds() -> None:
    config = CSRunConfig(save_checkpoints_steps=50)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (50, None)
    replaced = config.replace(save_checkpoints_secs=30)
    assert (replaced.save_checkpoints_steps, replaced.save_checkpoints_secs) == (None, 30)
    assert config.save_checkpoints_steps == 50


def test_replace_keeps_the_class_and_the_rest() -> None:
    config = CSRunConfig("10.0.0.1", tf_random_seed=9).replace(model_dir="m")
    assert isinstance(config, CSRunConfig)
    assert (config.cs_ip, config.tf_random_seed, config.model_dir) == ("10.0.0.1", 9, "m")


def test_unknown_field_names_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"'save_checkpoint_steps'; did you mean 'save_checkpoints_steps'\?"):
        CSRunConfig(save_checkpoint_steps=5)
    with pytest.raises(TypeError, match="'cs_ip'"):
        RunConfig(cs_ip="10.0.0.1")
    with pytest.raises(AttributeError, match="no attribute 'cs_port'"):
        _ = CSRunConfig().cs_port


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"save_checkpoints_steps": 5, "save_checkpoints_secs": 5}, "exclude each other"),
        ({"keep_checkpoint_max": -1}, "keep_checkpoint_max must be .* got -1"),
        ({"save_summary_steps": 1.5}, "save_summary_steps must be .* got 1.5"),
        ({"tf_random_seed": "one"}, "tf_random_seed must be .* got 'one'"),
        ({"num_csx": 0}, "num_csx is 0, expected a whole number of 1 or more"),
        ({"max_act_per_csx": "much"}, "max_act_per_csx is 'much', expected a number of bytes"),
        (
            {"micro_batch_size": 0},
            "micro_batch_size is 0, expected a whole number of 1 or more samples, or 'auto'",
        ),
        ({"recompute": "some"}, "recompute is 'some', expected one of auto, none, all"),
        ({"cs_ip": ""}, "cs_ip must be .* got ''"),
        ({"max_wgt_servers": 0}, "max_wgt_servers is 0, expected a whole number of 1 or more, or None"),
    ],
)
def test_values_out_of_range(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CSRunConfig(**fields)


def test_role_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = CSRunConfig()
    assert (alone.is_chief, alone.task_type, alone.task_id, alone.num_worker_replicas) == (
        True,
        "chief",
        0,
        1,
    )
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"chief": ["a:1"], "worker": ["a:2", "a:3"]}, "task": {"type": "worker", "index": 1}}',
    )
    worker = CSRunConfig()
    assert (worker.is_chief, worker.task_type, worker.task_id, worker.num_worker_replicas) == (
        False,
        "worker",
        1,
        2,
    )


def test_precision() -> None:
    assert CSRunConfig().precision == "float32"
    assert CSRunConfig(precision="cbfloat16").replace(tf_random_seed=2).precision == "cbfloat16"
    with pytest.raises(
        ValueError, match=r"'bfloat16', .* float32, mixed_float16, mixed_bfloat16, cbfloat16; did you mean"
    ):
        CSRunConfig(precision="bfloat16")


def test_the_format_of_older_programs() -> None:
    """They ask for cbfloat16 in `cs_config`, a message or a mapping."""

    class CSConfig:
        use_cbfloat16 = True

    for cs_config in (CSConfig(), {"use_cbfloat16": True}):
        assert CSRunConfig(cs_config=cs_config).precision == "cbfloat16"
        assert CSRunConfig(cs_config=cs_config, precision="float32").precision == "float32"
    assert CSRunConfig(cs_config={"use_cbfloat16": False}).precision == "float32"
    assert CSRunConfig(cs_config=object()).precision == "float32"


@pytest.mark.parametrize(
    ("target", "replicas"), [({}, 1), ({"target_num_replicas": -1}, "auto"), ({"target_num_replicas": 3}, 3)]
)
def test_replicas_in_the_options_of_the_original_stack(target: dict[str, int], replicas: object) -> None:
    options = {"config": Message(**target), "ir_mode": "mlir-cirh"}
    assert CSRunConfig(stack_params=options).num_replicas == replicas
    assert CSRunConfig(stack_params=options, num_replicas=2).num_replicas == 2
    assert CSRunConfig(stack_params=options).replace(tf_random_seed=2).num_replicas == replicas


def test_numbers_of_replicas() -> None:
    assert CSRunConfig().num_replicas == 1
    assert CSRunConfig(num_replicas="auto").num_replicas == "auto"
    assert CSRunConfig(stack_params={"config": None}).num_replicas == 1
    for wrong in (0, "many", 2.5):
        with pytest.raises(ValueError, match=r"num_replicas is .*, expected a whole number of 1 or more"):
            CSRunConfig(num_replicas=wrong)


def test_options_of_the_original_without_effect_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_options.cache_clear()
    options = Message(target_num_replicas=2)
    options.matching.kernel.no_dcache_spill_splits = True
    config = CSRunConfig(
        cs_config={"use_cbfloat16": True, "mem_optimize": True},
        stack_params={"config": options, MULTI_MODEL_STACK_KEY: {"deltat_scaling_factor": {"a": 1}}},
    )
    for _ in range(2):
        warn_of_unused_options(config)
    warn_of_unused_options(CSRunConfig(cs_config={"use_cbfloat16": True}))
    assert [record.getMessage() for record in caplog.records] == [
        "cs_config.mem_optimize, stack_params.config.matching.kernel.no_dcache_spill_splits: options of the "
        "original stack, without effect here"
    ]


def test_options_by_position() -> None:
    config = CSRunConfig("10.0.0.1", None, None, None, "cbfloat16", "weight_streaming", 2)
    assert (config.precision, config.execution, config.num_csx) == ("cbfloat16", "weight_streaming", 2)
    with pytest.raises(TypeError, match="none of them also by name"):
        CSRunConfig(None, None, None, None, "float32", precision="float32")
    assert config.execution_options("program").program_skips_batches
    assert not config.replace(input_position="toolkit").execution_options("program").program_skips_batches
    assert config.changed_options() == {
        "precision": "cbfloat16",
        "execution": "weight_streaming",
        "num_csx": 2,
    }
