"""What the parameter file of BERT may say; names as in Cerebras' model zoo."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from models.common.tf import params
from models.common.tf.params import (
    Count,
    Fraction,
    Group,
    Nonlinearity,
    Positive,
    heads_divide,
    positions_suffice,
)


class Input(params.Input):
    """An input function.

    Attributes:
        data_dir: folder with TFRecord files of the features that `data.py` lists; without it sentences of a
            Markov chain are made up.
        max_sequence_length: tokens of a record, padding included.
        max_predictions_per_seq: masked tokens of a record, padding included; for pre-training only.
        num_examples: number of records that are made up.
        mask_seed: seeds them.
    """

    max_sequence_length: Count
    max_predictions_per_seq: Count | None = None
    num_examples: Count = 1024
    mask_seed: int = 1


class Model(Group):
    """The network.

    Attributes:
        head: what the encoder is trained for: masked words and next sentence, or where the answer to a
            question stands in a text.
        mlm_loss_scaling: divides the summed loss of masked tokens by their number in the batch, or by the
            batch size.
        mlm_loss_weight: factor of that loss beside the one of next-sentence prediction.
    """

    head: Literal["pretraining", "question_answering"] = "pretraining"
    hidden_size: Count
    num_hidden_layers: Count
    num_heads: Count
    filter_size: Count
    vocab_size: Count
    max_position_embeddings: Count
    encoder_nonlinearity: Nonlinearity = "gelu"
    layer_norm_epsilon: Positive = 1e-12
    dropout_rate: Fraction = 0.1
    attention_dropout_rate: Fraction = 0.1
    initializer_range: Positive = 0.02
    disable_nsp: bool = False
    mlm_loss_scaling: Literal["num_masked", "batch_size"] = "num_masked"
    mlm_loss_weight: Annotated[float, Field(gt=0)] = 1.0

    _heads_divide = field_validator("num_heads")(heads_divide)


class Params(params.Params):
    """The whole file."""

    train_input: Input
    eval_input: Input
    model: Model

    _positions_suffice = field_validator("model")(positions_suffice)

    @field_validator("model")
    @classmethod
    def _has_masked_tokens_for_its_head(cls, model: Model, info: ValidationInfo) -> Model:
        for group in ("train_input", "eval_input"):
            predictions = getattr(info.data.get(group), "max_predictions_per_seq", None)
            if group in info.data and (predictions is None) == (model.head == "pretraining"):
                wanted = "a number" if predictions is None else "none, as no token is masked"
                raise ValueError(
                    f"the head is {model.head} and {group}.max_predictions_per_seq is {predictions}, "
                    f"expected {wanted}"
                )
        return model
