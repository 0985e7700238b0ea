"""Schema of ResNet's parameter file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from models.common.tf import params
from models.common.tf.params import Count, Fraction, Group, Positive


class Input(params.Input):
    """Images; `data_dir` is a folder with TFRecord files of ImageNet. Without it, patterns are generated.

    Attributes:
        num_records: Number of generated images in an evaluation.
        noise: Standard deviation of the noise in generated patterns, which have 1 themselves.
    """

    num_records: Count = 512
    noise: Annotated[float, Field(ge=0)] = 1.0


class Model(Group):
    """The network.

    Attributes:
        image_size: Height and width of an image in pixels.
        num_channels: Number of channels; 3 for colors.
        num_classes: Number of classes.
        filters: Channels of each stage; each stage but the first halves height and width.
        blocks: Blocks of two convolutions in each stage.
        stem_kernel_size: Window of the first convolution.
        stem_strides: Strides of the first convolution.
        stem_max_pool: Add a 3x3 pooling with strides of 2 after it.
        norm_momentum: Momentum of the moving averages.
        norm_epsilon: Number added to the variance.
        weight_decay: Factor of the L2 loss of all kernels.
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
    """The parameter file."""

    train_input: Input
    eval_input: Input
    model: Model
