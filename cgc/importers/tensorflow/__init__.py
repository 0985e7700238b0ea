"""Imports tf.compat.v1 graphs and Keras models. Only this package of the compiler loads TensorFlow."""

from cgc.importers.tensorflow.keras import (
    ImportedKerasStep,
    TracedKerasStep,
    import_keras_step,
    keras_variables,
    trace_keras_step,
)
from cgc.importers.tensorflow.step import ImportedStep, import_step
from cgc.importers.tensorflow.variables import OPTIMIZER_VARIABLES, keras_layer_updates, variable_writes

__all__ = [
    "OPTIMIZER_VARIABLES",
    "ImportedKerasStep",
    "ImportedStep",
    "TracedKerasStep",
    "import_keras_step",
    "import_step",
    "keras_layer_updates",
    "keras_variables",
    "trace_keras_step",
    "variable_writes",
]
