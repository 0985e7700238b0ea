"""Groups of the parameter files of all example programs; each program adds its model and its data."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Nonlinearity = Literal["relu", "gelu", "gelu_tanh", "tanh"]


class Group(BaseModel):
    """A group of a parameter file: unknown keys, wrong types, infinities and NaN are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Input(Group):
    """An input function.

    Attributes:
        batch_size: Records per step.
        shuffle_seed: Seed of the order of the records.
        data_dir: Folder with the data; without it the program uses a small built-in set.
    """

    batch_size: Count
    shuffle_seed: int | None = None
    data_dir: str | None = None


class Phase(Group):
    """A phase of a learning rate schedule: from one value to another in a number of steps.

    Attributes:
        scheduler: The curve between the two values. InverseSquareRoot has an initial value only, and falls
            with the square root of the number of steps since the start of training.
        initial_learning_rate: Value at the first step of the phase.
        end_learning_rate: Value after `steps`.
        steps: Length of the phase; optional in the last phase if it needs no end value.
    """

    scheduler: Literal["Constant", "Linear", "Cosine", "Exponential", "InverseSquareRoot"] = "Constant"
    initial_learning_rate: Annotated[float, Field(ge=0)]
    end_learning_rate: Annotated[float, Field(ge=0)] | None = None
    steps: Count | None = None

    @model_validator(mode="after")
    def _has_what_its_curve_needs(self) -> Phase:
        curves = ("Linear", "Cosine", "Exponential")
        if self.scheduler in curves and (self.end_learning_rate is None or self.steps is None):
            raise ValueError(f"the scheduler {self.scheduler} needs end_learning_rate and steps")
        if self.scheduler == "Exponential" and not (self.initial_learning_rate and self.end_learning_rate):
            raise ValueError("the scheduler Exponential needs learning rates above 0")
        return self


class Optimizer(Group):
    """The optimizer, its learning rate, and the processing of gradients.

    Attributes:
        optimizer_type: The algorithm; `momentum` is sgd with momentum.
        learning_rate: The phases of a schedule, or a single value for all steps.
        momentum: Momentum of `momentum`.
        use_nesterov: Use Nesterov momentum.
        beta1: Decay of Adam's mean of gradients.
        beta2: Decay of Adam's mean of squared gradients.
        epsilon: Epsilon of Adam.
        weight_decay_rate: Decoupled weight decay for adamw, an L2 term of the gradients for all others.
        exclude_from_weight_decay: Variables whose name contains one of these do not decay.
        max_gradient_norm: Global norm to which gradients are clipped.
        loss_scaling_factor: Factor by which the loss is multiplied and the gradients are divided; "dynamic"
            searches for the largest one without overflow.
        log_summaries: Write the learning rate and the gradient norm as summaries.
    """

    optimizer_type: Literal["sgd", "momentum", "adam", "adamw"] = "adam"
    learning_rate: Annotated[list[Phase], Field(min_length=1)]
    momentum: Fraction = 0.9
    use_nesterov: bool = False
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: Positive = 1e-8
    weight_decay_rate: Annotated[float, Field(ge=0)] = 0.0
    exclude_from_weight_decay: list[str] = ["norm", "bias"]
    max_gradient_norm: Positive | None = None
    loss_scaling_factor: float | Literal["dynamic"] = 1.0
    log_summaries: bool = False

    @field_validator("learning_rate", mode="before")
    @classmethod
    def _one_value_is_a_phase(cls, value: Any) -> Any:
        if isinstance(value, list):
            return value
        if not _is_number(value) or value <= 0:
            raise ValueError("expected a number above 0, or a list of phases")
        return [{"initial_learning_rate": value}]

    @field_validator("loss_scaling_factor", mode="before")
    @classmethod
    def _is_a_scale(cls, value: Any) -> Any:
        if value != "dynamic" and not (_is_number(value) and 1 <= value < math.inf):
            raise ValueError('expected a number of at least 1, or "dynamic"')
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Run(Group):
    """The number of steps, and fields of the run configuration."""

    max_steps: Count | None = None
    steps: Count | None = None
    eval_steps: int | None = None
    save_checkpoints_steps: Count | None = None
    save_summary_steps: int | None = 100
    log_step_count_steps: int | None = 100
    keep_checkpoint_max: int | None = 5
    tf_random_seed: int | None = 1
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16", "cbfloat16"] | None = None
    execution: Literal["auto", "pipelined", "weight_streaming"] | None = None
    num_csx: Count = 1
    num_replicas: Count | Literal["auto"] | None = None
    max_act_per_csx: int | float | str | None = None
    recompute: Literal["auto", "none", "all"] = "auto"
    micro_batch_size: Count | Literal["auto"] = "auto"
    max_wgt_servers: Count | None = None


class Params(Group):
    """A parameter file; programs override `train_input` and `eval_input` and add `model`."""

    train_input: Input
    eval_input: Input
    optimizer: Optimizer
    runconfig: Run

    def plain(self) -> dict[str, Any]:
        """Return the parameters as the estimator, `model_fn` and the input functions get them."""
        return self.model_dump(mode="json")


def heads_divide(num_heads: int, info: ValidationInfo) -> int:
    """Check that `num_heads` divides `hidden_size`, a field before it.

    Raises:
        ValueError: It does not.
    """
    hidden_size = info.data.get("hidden_size", num_heads)
    if hidden_size % num_heads:
        raise ValueError(f"hidden_size is {hidden_size}, expected a number of heads that divides it")
    return num_heads


def positions_suffice(model: Any, info: ValidationInfo) -> Any:
    """Check that `model` has a position for every token of a record.

    Raises:
        ValueError: A `max_sequence_length` of an input, a field before it, is larger.
    """
    for group in ("train_input", "eval_input"):
        length = getattr(info.data.get(group), "max_sequence_length", 0)
        if length > model.max_position_embeddings:
            raise ValueError(
                f"max_position_embeddings is {model.max_position_embeddings}, "
                f"expected at least {group}.max_sequence_length, {length}"
            )
    return model
