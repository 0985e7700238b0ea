"""Imports tf.compat.v1 graphs and Keras models. Only this package of the compiler loads TensorFlow."""

from cgc.importers.tensorflow.keras import ImportedKerasStep, import_keras_step
from cgc.importers.tensorflow.step import ImportedStep, import_step
from cgc.importers.tensorflow.variables import keras_layer_updates, variable_writes

__all__ = [
    "ImportedKerasStep",
    "ImportedStep",
    "import_keras_step",
    "import_step",
    "keras_layer_updates",
    "variable_writes",
]
