"""What the parameter file of ResNet may say."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from models.common.tf import params
from models.common.tf.params import Count, Fraction, Group, Positive


class Input(params.Input):
    """Images; `data_dir` holds TFRecord files of ImageNet. Generated patterns without it.

    Attributes:
        num_records: number of generated images of an evaluation.
        noise: standard deviation of what is added to generated patterns, which have 1.
    """

    num_records: Count = 512
    noise: Annotated[float, Field(ge=0)] = 1.0


class Model(Group):
    """The network.

    Attributes:
        image_size: height and width of an image in pixels.
        num_channels: 3 for colours.
        num_classes: logits.
        filters: channels of each stage; from one to the next height and width are halved.
        blocks: blocks of two convolutions in each stage.
        stem_kernel_size: window of the first convolution.
        stem_strides: its strides.
        stem_max_pool: whether a pooling of 3x3 with strides of 2 follows.
        norm_momentum: share of the moving averages that stays in a step.
        norm_epsilon: added to the variance.
        weight_decay: factor of the L2 loss of all kernels.
    """

    image_size: Count
    num_channels: Count = 3
    num_classes: Count
    filters: list[Count] = Field(min_length=1)
    blocks: list[Count] = Field(min_length=1)
    stem_kernel_size: Count = 7
    stem_strides: Count = 2
    stem_max_pool: bool = True
    norm_momentum: Fraction = 0.9
    norm_epsilon: Positive = 1e-5
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4

    @field_validator("blocks")
    @classmethod
    def _as_many_as_filters(cls, blocks: list[int], info: ValidationInfo) -> list[int]:
        filters = info.data.get("filters", blocks)
        if len(blocks) != len(filters):
            raise ValueError(f"filters are {filters}, expected a number of blocks for each of them")
        return blocks


class Params(params.Params):
    """The whole file."""

    train_input: Input
    eval_input: Input
    model: Model
