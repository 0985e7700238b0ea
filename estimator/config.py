"""The configuration of a run: the fields of `tf.estimator.RunConfig`, and those of the CS system."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

from cs_runtime import tasks
from cs_runtime.options import InputPosition, default_execution
from cs_toolkit.execution_options import ReplicaChoice, ReplicaChoiceError, replica_choice, streaming
from cs_toolkit.messages import Message
from cs_toolkit.step import EXECUTION_CHOICES, PRECISIONS
from estimator.errors import CallError, UnknownFieldError, suggestion

SAVE_CHECKPOINTS_SECS = 600.0

MULTI_MODEL_STACK_KEY = "multi_model"
"""Key of `stack_params` under which a fused program passes options of its models."""

# Defaults of tf.estimator.RunConfig. save_checkpoints_secs becomes SAVE_CHECKPOINTS_SECS if neither it nor
# save_checkpoints_steps is given.
_DEFAULTS: Mapping[str, Any] = {
    "model_dir": None,
    "tf_random_seed": 1,
    "save_summary_steps": 100,
    "save_checkpoints_steps": None,
    "save_checkpoints_secs": None,
    "session_config": None,
    "keep_checkpoint_max": 5,
    "keep_checkpoint_every_n_hours": 10000,
    "log_step_count_steps": 100,
    "train_distribute": None,
    "eval_distribute": None,
    "device_fn": None,
}
_CS_DEFAULTS: Mapping[str, Any] = {
    "cs_ip": None,
    "system_name": None,
    "cs_config": None,
    "stack_params": None,
    "precision": "float32",
    "execution": "auto",
    "num_csx": 1,
    "num_replicas": 1,
    "max_act_per_csx": None,
    "recompute": "auto",
    "micro_batch_size": "auto",
    "max_wgt_servers": None,
    "input_position": None,
}
STREAMING = ("num_csx", "max_act_per_csx", "recompute", "micro_batch_size")
"""Fields that are arguments of `cs_toolkit.execution_options.streaming`."""
INPUT_POSITIONS = get_args(InputPosition)
_COUNTS = ("save_summary_steps", "save_checkpoints_steps", "keep_checkpoint_max", "log_step_count_steps")


class RunConfig:
    """A configuration with the fields and defaults of the removed `tf.estimator.RunConfig`.

    Args:
        **fields: `model_dir`, `tf_random_seed`, `save_summary_steps`, `save_checkpoints_steps`,
            `save_checkpoints_secs` (600 if no interval is given; None for both saves the last checkpoint
            only), `session_config` (a ConfigProto for sessions on this CPU), `keep_checkpoint_max` (0 or None
            keeps all), `keep_checkpoint_every_n_hours` (the interval of checkpoints kept permanently),
            `log_step_count_steps`, `device_fn` (on this CPU only). `train_distribute` and `eval_distribute`
            have no effect, and a warning is logged.

    Raises:
        TypeError: A field is unknown; the message names the most similar one.
        ValueError: Both checkpoint intervals are given, or a value is out of range.
    """

    _fields: Mapping[str, Any] = _DEFAULTS

    def __init__(self, **fields: Any) -> None:
        for name in fields:
            if name not in self._fields:
                raise UnknownFieldError(
                    f"{type(self).__name__} got an unexpected keyword argument '{name}'"
                    f"{suggestion(name, self._fields)} (known: {', '.join(self._fields)})"
                )
        values = {**self._fields, **fields}
        if "save_checkpoints_steps" not in fields and "save_checkpoints_secs" not in fields:
            values["save_checkpoints_secs"] = SAVE_CHECKPOINTS_SECS
        _check_fields(values)
        self._values = values

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in self._values.items() if value != self._fields[name])
        return f"{type(self).__name__}({', '.join(given)})"

    def replace(self, **fields: Any) -> RunConfig:
        """Return a copy with some fields changed; a new checkpoint interval replaces the old one."""
        values = dict(self._values)
        if fields.get("save_checkpoints_steps") is not None:
            values["save_checkpoints_secs"] = None
        if fields.get("save_checkpoints_secs") is not None:
            values["save_checkpoints_steps"] = None
        return type(self)(**{**values, **fields})

    def __deepcopy__(self, memo: dict[int, Any]) -> RunConfig:
        duplicate = copy.copy(self)
        duplicate._values = dict(self._values)
        return duplicate

    @property
    def task_id(self) -> int:
        """Index of this task among the tasks of its type."""
        return tasks.current().index

    @property
    def task_type(self) -> str:
        """`chief` or `worker`."""
        return tasks.current().role

    @property
    def is_chief(self) -> bool:
        """True if this task is the chief, which drives the run and writes its files."""
        return tasks.is_chief()

    @property
    def num_worker_replicas(self) -> int:
        """Number of tasks that read input."""
        return tasks.current().num_workers


class CSRunConfig(RunConfig):
    """A RunConfig with the fields of the CS system.

    Args:
        cs_ip: `IP`, `IP:PORT` or `IP:PORT:9000`. If None, the system that `CS_IP` or the site names in a job
            of csrun_wse; otherwise this CPU.
        system_name: A name for messages.
        cs_config: Options of the CS system as a message or mapping, which `model_fn` may read. Options
            without effect here are listed in the log of a run.
        stack_params: Options of the compiler's stack, like `cs_config`.
        precision: Number format of activations and their gradients on the CS system: `float32`,
            `mixed_float16`, `mixed_bfloat16` or `cbfloat16`. Master weights, optimizer, losses and statistics
            stay float32. If None, `cbfloat16` if `cs_config` sets `use_cbfloat16`, else `float32`.
        execution: How the CS system executes a step: `pipelined`, with all layers on the wafer at once;
            `weight_streaming`, layer by layer, with weights from MemoryX; `auto`, pipelined if the model fits
            on the wafer, else `weight_streaming`. If None, `weight_streaming` under `python-ws`, else `auto`.
        num_csx: Number of CS systems in a group, which share a batch by weight streaming.
        num_replicas: Number of copies of the model on one wafer, which share a batch, pipelined: a number
            that divides the batch, or `auto` (also -1) for the one with the best predicted rate. If None,
            `target_num_replicas` of the `config` in `stack_params` if that is set, else 1.
        max_act_per_csx: With weight streaming, maximum bytes of stored activations in one system, or a text
            such as "16 GB"; None for the memory of the wafer. A number below 1,000 counts activation servers,
            as in programs of the original stack, and sets no limit.
        recompute: With weight streaming, layers that recompute their forward part in the backward pass
            instead of storing it: `auto`, as few as make the activations fit; `none`; `all`.
        micro_batch_size: With weight streaming, number of samples of a system that pass through the layers
            together in training; gradients are accumulated. `auto`: as many as fit.
        max_wgt_servers: Maximum number of MemoryX processes of the system; None for all.
        input_position: Who skips the batches that earlier runs have used, when training resumes on the CS
            system: `toolkit`, or `program` if `input_fn` does. If None, `toolkit`, or `program` for the
            classes with the names of the original stack.
        **fields: Fields of `RunConfig`.
    """

    _fields = {**_CS_DEFAULTS, **_DEFAULTS}

    def __init__(
        self,
        cs_ip: str | None = None,
        system_name: str | None = None,
        cs_config: Any = None,
        stack_params: Any = None,
        precision: str | None = None,
        execution: str | None = None,
        num_csx: int = 1,
        num_replicas: ReplicaChoice | None = None,
        max_act_per_csx: float | str | None = None,
        recompute: str | None = None,
        micro_batch_size: int | str | None = None,
        max_wgt_servers: int | None = None,
        input_position: str | None = None,
        **fields: Any,
    ) -> None:
        if cs_ip is None and os.environ.get("CSRUN_ROLE"):
            # A job of csrun_wse exists to train on the CS system of the site.
            cs_ip = os.environ.get("CS_IP") or None
        if precision is None:
            get = cs_config.get if isinstance(cs_config, Mapping) else partial(getattr, cs_config)
            precision = "cbfloat16" if get("use_cbfloat16", False) else "float32"
        super().__init__(
            cs_ip=cs_ip,
            system_name=system_name,
            cs_config=cs_config,
            stack_params=stack_params,
            precision=precision,
            execution=default_execution() if execution is None else execution,
            num_csx=num_csx,
            num_replicas=_choose_replicas(num_replicas, stack_params),
            max_act_per_csx=max_act_per_csx,
            recompute=recompute or "auto",
            micro_batch_size="auto" if micro_batch_size is None else micro_batch_size,
            max_wgt_servers=max_wgt_servers,
            input_position=input_position,
            **fields,
        )


def as_cs_config(config: Any) -> CSRunConfig:
    """Convert any RunConfig-like object, or None, to a CSRunConfig.

    Raises:
        CallError: The object has none of the fields.
    """
    if config is None:
        return CSRunConfig()
    if isinstance(config, CSRunConfig):
        return config
    fields = {name: getattr(config, name) for name in CSRunConfig._fields if hasattr(config, name)}
    if not fields:
        raise CallError(f"config must be a CSRunConfig or RunConfig, got {type(config).__name__}: {config!r}")
    return CSRunConfig(**fields)


def one_shot_session_config(config: CSRunConfig) -> Any:
    """Return the configuration of sessions that run each part of a graph once, such as initializers."""
    import tensorflow as tf

    if config.session_config is not None:
        return config.session_config
    found = tf.compat.v1.ConfigProto()
    # Optimizing a graph takes longer than running it once.
    found.graph_options.rewrite_options.disable_meta_optimizer = True
    return found


def _choose_replicas(given: Any, stack_params: Any) -> ReplicaChoice:
    """Return the number of replicas, from the argument or else from the options of the original stack.

    Raises:
        CallError: The number is invalid.
    """
    wanted = given
    if given is None and isinstance(stack_params, Mapping):
        config = stack_params.get("config")
        if isinstance(config, Message) and config.HasField("target_num_replicas"):
            wanted = config.target_num_replicas
    try:
        return replica_choice(wanted)
    except ReplicaChoiceError as error:
        raise CallError(str(error)) from None


def _check_fields(values: Mapping[str, Any]) -> None:
    if values["save_checkpoints_steps"] is not None and values["save_checkpoints_secs"] is not None:
        raise CallError(
            f"save_checkpoints_steps={values['save_checkpoints_steps']} and "
            f"save_checkpoints_secs={values['save_checkpoints_secs']} exclude each other; set one of them"
        )
    for name in _COUNTS:
        value = values[name]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise CallError(f"{name} must be a whole number >= 0 or None, got {value!r}")
    seconds = values["save_checkpoints_secs"]
    if seconds is not None and seconds < 0:
        raise CallError(f"save_checkpoints_secs must be >= 0 or None, got {seconds!r}")
    hours = values["keep_checkpoint_every_n_hours"]
    if hours is not None and not (isinstance(hours, int | float) and hours > 0):
        raise CallError(f"keep_checkpoint_every_n_hours must be > 0 or None, got {hours!r}")
    seed = values["tf_random_seed"]
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise CallError(f"tf_random_seed must be a whole number or None, got {seed!r}")
    cs_ip = values.get("cs_ip")
    if cs_ip is not None and (not isinstance(cs_ip, str) or not cs_ip):
        raise CallError(f"cs_ip must be 'IP', 'IP:PORT' or None, got {cs_ip!r}")
    position = values.get("input_position")
    if position is not None and position not in INPUT_POSITIONS:
        near = suggestion(str(position), INPUT_POSITIONS)
        raise CallError(f"input_position must be 'toolkit', 'program' or None, got {position!r}{near}")
    precision = values.get("precision", "float32")
    if precision not in PRECISIONS:
        near = suggestion(str(precision), PRECISIONS)
        raise CallError(f"precision must be one of {', '.join(PRECISIONS)} or None, got {precision!r}{near}")
    try:
        streaming(**{name: values.get(name, _CS_DEFAULTS[name]) for name in STREAMING})
    except ValueError as error:
        raise CallError(str(error)) from None
    servers = values.get("max_wgt_servers")
    if servers is not None and (not isinstance(servers, int) or isinstance(servers, bool) or servers < 1):
        raise CallError(f"max_wgt_servers must be a whole number >= 1 or None, got {servers!r}")
    execution = values.get("execution", "auto")
    if execution not in EXECUTION_CHOICES:
        near = suggestion(str(execution), EXECUTION_CHOICES)
        raise CallError(
            f"execution must be one of {', '.join(EXECUTION_CHOICES)} or None, got {execution!r}{near}"
        )
