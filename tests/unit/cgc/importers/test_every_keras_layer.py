"""Layers of Keras 3 in a training step: those of the page on porting are imported, and none is missing."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from cgc.cirh.interface import step_interface
from cgc.importers.tensorflow import import_keras_step

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "port-tensorflow.md"
BATCH = 4
ROW, SEQUENCE, IMAGE = (BATCH, 6), (BATCH, 8, 6), (BATCH, 8, 8, 3)
SPATIAL = {"1": (BATCH, 8, 3), "2": IMAGE, "3": (BATCH, 4, 4, 4, 3)}
MERGES = {"Add", "Average", "Concatenate", "Dot", "Maximum", "Minimum", "Multiply", "Subtract"}
INTEGERS = {"CategoryEncoding", "Embedding", "ReversibleEmbedding"}
OF_SEQUENCES = {
    *("AdditiveAttention", "Attention", "Bidirectional", "GRU", "GroupQueryAttention", "LSTM", "Masking"),
    *("MultiHeadAttention", "Permute", "RNN", "SimpleRNN", "TimeDistributed"),
}
NO_LAYERS = {
    *("GRUCell", "InputLayer", "LSTMCell", "Layer", "SimpleRNNCell", "StackedRNNCells", "Wrapper"),
    *("FlaxLayer", "JaxLayer", "Pipeline", "TFSMLayer", "TorchModuleWrapper"),
}
"""Bases, cells and wrappers of other things."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "Activation": {"activation": "relu"},
    "ActivityRegularization": {"l2": 0.1},
    "Bidirectional": {"layer": layers.LSTM(3)},
    "CategoryEncoding": {"num_tokens": 10},
    "Dense": {"units": 4},
    "Discretization": {"bin_boundaries": [0.0, 1.0]},
    "Dot": {"axes": 1},
    "EinsumDense": {"equation": "ab,bc->ac", "output_shape": 4},
    "Embedding": {"input_dim": 10, "output_dim": 4},
    "GaussianNoise": {"stddev": 0.2},
    "GroupNormalization": {"groups": 3},
    "GroupQueryAttention": {"head_dim": 4, "num_query_heads": 2, "num_key_value_heads": 1},
    "Lambda": {"function": lambda x: x * 2},
    "MultiHeadAttention": {"num_heads": 2, "key_dim": 3},
    "Normalization": {"mean": 0.0, "variance": 1.0},
    "Permute": {"dims": (2, 1)},
    "RNN": {"cell": layers.LSTMCell(3)},
    "RepeatVector": {"n": 3},
    "Rescaling": {"scale": 0.5},
    "Reshape": {"target_shape": (3, 2)},
    "ReversibleEmbedding": {"input_dim": 10, "output_dim": 4},
    "SpectralNormalization": {"layer": layers.Dense(3)},
    "TimeDistributed": {"layer": layers.Dense(3)},
}
FORMS: dict[str, dict[str, Any]] = {
    r"\w*Dropout(\dD)?": {"rate": 0.2},
    r"(GRU|LSTM|SimpleRNN)": {"units": 4},
    r"AveragePooling\dD": {"pool_size": 2},
    r"Adaptive\w+": {"output_size": 2},
    r"DepthwiseConv\dD": {"kernel_size": 3},
    r"(Conv|SeparableConv|ConvLSTM)\dD(Transpose)?": {"filters": 4, "kernel_size": 3},
}


def listed(heading: str) -> set[str]:
    """Names of layers in the paragraph of the page that begins so."""
    text = PAGE.read_text()
    assert heading in text
    return set(re.findall(r"`([A-Z]\w+)`", text.split(heading)[1].split("\n\n")[0]))


COMPILED = listed("These layers of Keras 3 are compiled:")
NOT_COMPILED = listed("These belong in `input_fn`:")


def arguments(name: str) -> dict[str, Any]:
    by_form = (given for form, given in FORMS.items() if re.fullmatch(form, name))
    return ARGUMENTS.get(name) or next(by_form, {})


def shape(name: str) -> tuple[int, ...]:
    if dimensions := re.search(r"(\d)D", name):
        spatial = SPATIAL[dimensions[1]]
        return (BATCH, 3, *spatial[1:]) if name.startswith("ConvLSTM") else spatial
    return SEQUENCE if name in OF_SEQUENCES else ROW


def model(name: str) -> tuple[Any, tuple[int, ...], str]:
    """A compiled model with the layer in the middle; the shape and type of its batch."""
    size, dtype = shape(name), "int32" if name in INTEGERS else "float32"
    x = keras.Input(batch_shape=size, dtype=dtype)
    layer = getattr(layers, name)(**arguments(name))
    before = x if name in INTEGERS else layers.Dense(size[-1])(x)
    if name in MERGES or name.endswith("Attention"):
        pair = (before, before) if name.endswith("Attention") else (before, layers.Dense(size[-1])(x))
        y = layer(*pair) if "Head" in name or "Query" in name else layer(list(pair))
    else:
        y = layer(before)
    made = keras.Model(x, layers.Dense(2)(layers.Flatten()(layers.Rescaling(1.0)(y))))
    made.compile("adam", "mse")
    return made, size, dtype


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(COMPILED))
def test_a_training_step_with_the_layer_is_imported(name: str) -> None:
    made, size, dtype = model(name)
    step = import_keras_step(made, (tf.TensorSpec(size, dtype), tf.TensorSpec((BATCH, 2), "float32")))
    assert "output_loss" in {output.name for output in step_interface(step.module).outputs}


def test_the_page_has_every_layer_of_keras() -> None:
    found = {name: getattr(layers, name) for name in dir(layers)}
    own = {name: one for name, one in found.items() if inspect.isclass(one) and issubclass(one, layers.Layer)}
    aliases = {name for name, one in own.items() if name != one.__name__ and one.__name__ in own}
    images = {name for name, one in own.items() if ".preprocessing.image" in one.__module__}
    assert own.keys() - aliases - images - NO_LAYERS == COMPILED | NOT_COMPILED
    assert not COMPILED & NOT_COMPILED
