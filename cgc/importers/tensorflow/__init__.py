"""Imports tf.compat.v1 graphs. Only this package of the compiler loads TensorFlow."""

from cgc.importers.tensorflow.step import ImportedStep, import_step
from cgc.importers.tensorflow.variables import keras_layer_updates, variable_writes

__all__ = ["ImportedStep", "import_step", "keras_layer_updates", "variable_writes"]
