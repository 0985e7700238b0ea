"""What the parameter file of GPT-2 may say; names as in Cerebras' model zoo."""

from __future__ import annotations

from pydantic import field_validator

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
        data_dir: folder with TFRecord files, or with the token files `train.bin` and `val.bin` (unsigned
            16-bit numbers, one text); without it texts of a Markov chain are made up.
        max_sequence_length: tokens of a record.
        num_examples: number of records that are made up.
        data_seed: seeds them.
    """

    max_sequence_length: Count
    num_examples: Count = 1024
    data_seed: int = 1


class Model(Group):
    """The network."""

    hidden_size: Count
    num_hidden_layers: Count
    num_heads: Count
    filter_size: Count
    vocab_size: Count
    max_position_embeddings: Count
    nonlinearity: Nonlinearity = "gelu_tanh"
    layer_norm_epsilon: Positive = 1e-5
    dropout_rate: Fraction = 0.1
    attention_dropout_rate: Fraction = 0.1
    embedding_dropout_rate: Fraction = 0.1
    initializer_range: Positive = 0.02

    _heads_divide = field_validator("num_heads")(heads_divide)


class Params(params.Params):
    """The whole file."""

    train_input: Input
    eval_input: Input
    model: Model

    _positions_suffice = field_validator("model")(positions_suffice)
