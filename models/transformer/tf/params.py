"""What the parameter file of the Transformer may say; names as in Cerebras' model zoo."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from models.common.tf import params
from models.common.tf.params import Count, Fraction, Group, Nonlinearity, Positive


class Input(params.Input):
    """An input function.

    Attributes:
        data_dir: folder with TFRecord files of the features that `data.py` lists; without it sentences of a
            Markov chain and their translations are made up.
        src_max_sequence_length: tokens of a source sentence, padding included.
        tgt_max_sequence_length: tokens of its translation, padding included.
        num_examples: number of records that are made up.
        data_seed: seeds them.
    """

    src_max_sequence_length: Count
    tgt_max_sequence_length: Count
    num_examples: Count = 1024
    data_seed: int = 1


class Model(Group):
    """The network.

    Attributes:
        d_model: width of what goes from layer to layer.
        d_kv: width of a head.
        d_ff: width between the two feed-forward layers.
        share_embedding_weights: whether the output uses the table of the target's tokens.
        position_embedding_type: sines and cosines, or trained.
        label_smoothing: part of a target's weight that goes to all tokens alike.
    """

    d_model: Count
    d_kv: Count
    d_ff: Count
    num_heads: Count
    encoder_num_hidden_layers: Count
    decoder_num_hidden_layers: Count
    src_vocab_size: Count
    tgt_vocab_size: Count
    nonlinearity: Nonlinearity = "relu"
    share_embedding_weights: bool = False
    position_embedding_type: Literal["fixed", "learned"] = "fixed"
    layer_norm_epsilon: Positive = 1e-6
    dropout_rate: Fraction = 0.1
    attention_dropout_rate: Fraction = 0.0
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _has_as_many_sines_as_cosines(self) -> Model:
        if self.position_embedding_type == "fixed" and self.d_model % 2:
            raise ValueError(f"d_model is {self.d_model}, expected an even width for fixed positions")
        return self


class Params(params.Params):
    """The whole file."""

    train_input: Input
    eval_input: Input
    model: Model
