"""Schema of U-Net's parameter file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from models.common.tf import params
from models.common.tf.params import Count, Fraction, Group, Positive


class Input(params.Input):
    """Images with a class for each pixel: PNG files in `data_dir`, or generated shapes without it.

    Attributes:
        num_records: Number of generated images in an evaluation.
        noise: Standard deviation of the noise in generated images, whose classes differ by 1.
    """

    num_records: Count = 256
    noise: Annotated[float, Field(ge=0)] = 0.5


class Model(Group):
    """The network.

    Attributes:
        image_shape: Height, width and channels of an image.
        num_classes: Number of classes of a pixel.
        encoder_filters: Channels of each encoder level, the bottom last.
        decoder_filters: Channels of each decoder level.
        convs_per_block: Number of 3x3 convolutions in a level.
        skip_connect: Concatenate the encoder level of the same size in the decoder.
        downscale_method: Method of halving height and width.
        upscale_method: Method of doubling them: transposed convolution, or resizing before a 3x3 convolution.
        norm_type: Normalization between convolution and ReLU.
        norm_momentum: Momentum of the moving averages.
        norm_epsilon: Number added to the variance.
        weight_decay: Factor of the L2 loss of all kernels.
    """

    image_shape: Annotated[list[Count], Field(min_length=3, max_length=3)]
    num_classes: Annotated[int, Field(ge=2)]
    encoder_filters: list[Count] = Field(min_length=2)
    decoder_filters: list[Count] = Field(min_length=1)
    convs_per_block: Count = 2
    skip_connect: bool = True
    downscale_method: Literal["max_pool", "avg_pool", "strided_conv"] = "max_pool"
    upscale_method: Literal["transposed_conv", "nearest", "bilinear"] = "transposed_conv"
    norm_type: Literal["batch_norm", "none"] = "batch_norm"
    norm_momentum: Fraction = 0.9
    norm_epsilon: Positive = 1e-5
    weight_decay: Annotated[float, Field(ge=0)] = 0.0

    @field_validator("encoder_filters")
    @classmethod
    def _levels_halve_the_image(cls, filters: list[int], info: ValidationInfo) -> list[int]:
        unit = 2 ** (len(filters) - 1)
        shape = info.data.get("image_shape", [])
        if any(size % unit for size in shape[:2]):
            raise ValueError(
                f"image_shape is {shape}, expected height and width divisible by {unit} "
                f"for {len(filters)} levels"
            )
        return filters

    @field_validator("decoder_filters")
    @classmethod
    def _as_many_levels_up_as_down(cls, filters: list[int], info: ValidationInfo) -> list[int]:
        down = info.data.get("encoder_filters", [*filters, 0])
        if len(filters) != len(down) - 1:
            raise ValueError(f"encoder_filters are {down}, expected {len(down) - 1} of them, one fewer")
        return filters


class Params(params.Params):
    """The parameter file."""

    train_input: Input
    eval_input: Input
    model: Model
