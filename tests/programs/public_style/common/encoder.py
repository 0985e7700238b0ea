"""The encoder of BERT (Devlin et al. 2018), which several programs share."""

from common.attention import BlockLayer, padding_mask
from common.base_model import BaseModel, ModeKeys
from common.layers import (
    DenseLayer,
    DropoutLayer,
    EmbeddingLayer,
    LayerNormalizationLayer,
    PositionEmbeddingLayer,
)


class EncoderModel(BaseModel):
    """Gives the vectors of all tokens; `pooled` makes one of them that stands for all."""

    def encode(self, features, mode):
        """[batch, length, width]."""
        s = self.settings
        training = mode == ModeKeys.TRAIN
        self.embedding = EmbeddingLayer(s["vocab_size"], s["hidden_size"], **self.layer_arguments("words"))
        x = self.embedding(features["input_ids"])
        if "segment_ids" in features:
            x += EmbeddingLayer(2, s["hidden_size"], **self.layer_arguments("segments"))(
                features["segment_ids"]
            )
        x = PositionEmbeddingLayer(s["max_position_embeddings"], **self.layer_arguments("positions"))(x)
        x = LayerNormalizationLayer(s["layer_norm_epsilon"], **self.layer_arguments("first_norm"))(x)
        x = DropoutLayer(s["dropout_rate"], **self.layer_arguments("dropout"))(x, training=training)
        mask = padding_mask(features["input_mask"], self.policy.compute_dtype)
        for number in range(s["num_hidden_layers"]):
            block = BlockLayer(s, norm_first=False, **self.layer_arguments(f"block_{number}"))
            x = block(x, mask=mask, training=training)
        return x

    def pooled(self, x):
        layer = DenseLayer(self.settings["hidden_size"], "tanh", **self.layer_arguments("pooler"))
        return layer(x[:, 0, :])


def set_encoder_defaults(params):
    """What the parameter file of a program with this encoder may leave out."""
    model = params["model"]
    model.setdefault("layer_norm_epsilon", 1e-5)
    model.setdefault("nonlinearity", "gelu")
    model.setdefault("dropout_rate", 0.0)
    model.setdefault("attention_dropout_rate", model["dropout_rate"])
    model.setdefault("filter_size", 4 * model["hidden_size"])
    model.setdefault("max_position_embeddings", params["train_input"]["max_sequence_length"])
    for group in ("train_input", "eval_input"):
        params[group].setdefault("vocab_size", model["vocab_size"])
        params[group].setdefault("use_multiple_workers", True)
