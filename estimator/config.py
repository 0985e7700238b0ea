"""The configuration of a run: the fields of `tf.estimator.RunConfig`, and those of the CS system."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

from cs_runtime import tasks
from cs_toolkit.errors import suggestion
from cs_toolkit.execution_options import (
    OPTIONS,
    ExecutionOptions,
    InputPosition,
    OptionError,
    default_of,
    document_options,
    parse_option,
)
from cs_toolkit.messages import Message
from estimator.errors import CallError, UnknownFieldError

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
    **{name: default_of(name) for name in OPTIONS},
    "input_position": None,  # that of the class of the estimator
}
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
                near = suggestion(name, self._fields) or f"; expected one of {', '.join(self._fields)}"
                raise UnknownFieldError(f"{type(self).__name__}() got the unknown argument '{name}'{near}")
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


@document_options(*OPTIONS)
class CSRunConfig(RunConfig):
    """A RunConfig with the fields of the CS system.

    Args:
        cs_ip: `IP`, `IP:PORT` or `IP:PORT:9000`. If None, the system that `CS_IP` or the site names, else an
            embedded one.
        system_name: A name for messages.
        cs_config: Options of the CS system as a message or mapping, which `model_fn` may read. Options
            without effect here are listed in the log of a run. `use_cbfloat16` sets the precision to
            `cbfloat16`, unless `precision` is given.
        stack_params: Options of the compiler's stack, like `cs_config`. `target_num_replicas` of its `config`
            sets the number of replicas, unless `num_replicas` is given.
        {options}
        *options: The options by position, in the order above.
        **fields: The options by name, and fields of `RunConfig`.
    """

    _fields = {**_CS_DEFAULTS, **_DEFAULTS}

    def __init__(
        self,
        cs_ip: str | None = None,
        system_name: str | None = None,
        cs_config: Any = None,
        stack_params: Any = None,
        *options: Any,
        **fields: Any,
    ) -> None:
        given = dict(zip(OPTIONS, options, strict=False))
        if len(options) > len(OPTIONS) or given.keys() & fields.keys():
            raise UnknownFieldError(
                f"CSRunConfig got {len(options)} options by position, expected at most {len(OPTIONS)}, and "
                "none of them also by name"
            )
        given |= {name: fields.pop(name) for name in OPTIONS if name in fields}
        original = _original_options(cs_config, stack_params)
        given = original | {name: value for name, value in given.items() if value is not None}
        try:
            parsed = {name: parse_option(name, given.get(name)) for name in OPTIONS}
        except OptionError as error:
            raise CallError(str(error)) from None
        if "input_position" not in given:
            parsed["input_position"] = None
        super().__init__(
            cs_ip=cs_ip,
            system_name=system_name,
            cs_config=cs_config,
            stack_params=stack_params,
            **parsed,
            **fields,
        )

    def execution_options(self, input_position: InputPosition) -> ExecutionOptions:
        """Return the options of a run.

        Args:
            input_position: Which side skips used batches if the configuration does not state it.
        """
        values = {name: self._values[name] for name in OPTIONS}
        return ExecutionOptions(**{**values, "input_position": self.input_position or input_position})

    def changed_options(self) -> dict[str, Any]:
        """Return the options of the CS system that are not at their defaults."""
        changed = {name: self._values[name] for name in OPTIONS if self._values[name] != default_of(name)}
        changed.pop("input_position", None)  # it has no meaning on this CPU
        return changed


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


def _original_options(cs_config: Any, stack_params: Any) -> dict[str, Any]:
    """Return the options that programs of the original stack set in its messages."""
    found = {}
    get = cs_config.get if isinstance(cs_config, Mapping) else partial(getattr, cs_config)
    if get("use_cbfloat16", False):
        found["precision"] = "cbfloat16"
    config = stack_params.get("config") if isinstance(stack_params, Mapping) else None
    if isinstance(config, Message) and config.HasField("target_num_replicas"):
        found["num_replicas"] = config.target_num_replicas
    return found


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
