"""What the parameter file of FC-MNIST may say."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Input(_Group):
    """An input function; `data_dir` holds the IDX files of MNIST."""

    batch_size: Count
    shuffle_seed: int | None = None
    data_dir: str | None = None


class Model(_Group):
    """The network."""

    hidden_sizes: list[Count]
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Optimizer(_Group):
    """Adam."""

    learning_rate: Annotated[float, Field(gt=0)]


class Run(_Group):
    """Number of steps, and fields of the run configuration."""

    max_steps: Count | None = None
    steps: Count | None = None
    eval_steps: int | None = None
    save_checkpoints_steps: Count | None = None
    save_summary_steps: int | None = 100
    log_step_count_steps: int | None = 100
    keep_checkpoint_max: int | None = 5
    tf_random_seed: int | None = 1


class Params(_Group):
    """The whole file."""

    train_input: Input
    eval_input: Input
    model: Model
    optimizer: Optimizer
    runconfig: Run

    def plain(self) -> dict[str, Any]:
        """As the estimator, `model_fn` and the input functions get it."""
        return self.model_dump(mode="json")
