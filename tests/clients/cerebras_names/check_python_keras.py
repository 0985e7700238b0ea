"""`tensorflow.python.keras` as programs of the time import it; run by a launcher, with Keras 2 or Keras 3."""

import importlib
import sys

import numpy as np
import pytest
import tensorflow as tf

PREFIX = "tensorflow.python.keras"

IN_BOTH = {
    "layers": "layers: Conv2D Conv2DTranspose Dense Dropout BatchNormalization LSTM MaxPooling2D concatenate",
    "layers.core": "layers: Dense Dropout Flatten Activation Reshape Permute",
    "layers.convolutional": "layers: Conv1D Conv2D Conv2DTranspose UpSampling2D ZeroPadding2D Cropping2D",
    "layers.pooling": "layers: MaxPooling2D GlobalAveragePooling2D AveragePooling1D",
    "layers.normalization": "layers: BatchNormalization LayerNormalization",
    "layers.embeddings": "layers: Embedding",
    "layers.merge": "layers: Add Concatenate add concatenate",
    "layers.recurrent": "layers: RNN LSTM GRU SimpleRNN",
    "layers.recurrent_v2": "layers: LSTM GRU",
    "layers.wrappers": "layers: TimeDistributed Bidirectional",
    "layers.advanced_activations": "layers: LeakyReLU PReLU ReLU Softmax",
    "layers.noise": "layers: GaussianNoise GaussianDropout",
    "engine.base_layer": "layers: Layer",
    "engine.input_layer": "layers: InputLayer Input",
    "engine.input_spec": "layers: InputSpec",
    "engine.sequential": "models: Sequential",
    "engine.training": "models: Model",
    "engine": ": Model Sequential Input",
    "models": "models: Model Sequential load_model clone_model",
    "initializers": "initializers: GlorotUniform HeNormal TruncatedNormal Zeros Constant get",
    "initializers.initializers_v2": "initializers: VarianceScaling RandomNormal",
    "regularizers": "regularizers: L1 L2 l2 get",
    "constraints": "constraints: MaxNorm NonNeg",
    "activations": "activations: relu softmax tanh gelu get",
    "losses": "losses: SparseCategoricalCrossentropy MeanSquaredError BinaryCrossentropy",
    "metrics": "metrics: Mean Accuracy SparseCategoricalAccuracy MeanIoU",
    "optimizers": "optimizers: Adam SGD RMSprop get",
    "applications.resnet": "applications.resnet: ResNet50",
    "datasets.mnist": "datasets.mnist: load_data",
    "optimizers.schedules": "optimizers.schedules: PolynomialDecay",
    "optimizer_v2.learning_rate_schedule": "optimizers.schedules: PolynomialDecay LearningRateSchedule",
    "callbacks": "callbacks: Callback ModelCheckpoint",
    "utils": "utils: to_categorical plot_model",
    "utils.np_utils": "utils: to_categorical",
    "utils.generic_utils": "utils: get_custom_objects",
    "mixed_precision": "mixed_precision: LossScaleOptimizer",
    "backend": "backend: epsilon floatx",
}
"""By module the place in tf.keras, and names there."""

IN_KERAS_2 = {
    "backend": "backend: clear_session mean dropout binary_crossentropy int_shape",
    "initializers": "initializers: VarianceScaling glorot_uniform",
    "mixed_precision.policy": "mixed_precision: Policy set_global_policy",
    "mixed_precision.loss_scale_optimizer": "mixed_precision: LossScaleOptimizer",
    "mixed_precision.experimental.policy": "mixed_precision.experimental: Policy set_policy global_policy",
    "mixed_precision.experimental.loss_scale_optimizer": "mixed_precision: LossScaleOptimizer",
    "optimizer_v2.adam": "optimizers.legacy: Adam",
    "optimizer_v2.gradient_descent": "optimizers.legacy: SGD",
    "preprocessing.image": "preprocessing.image: ImageDataGenerator",
}


def public(place, name):
    found = tf.keras
    for part in filter(None, place.split(".")):
        found = getattr(found, part)
    return getattr(found, name)


def check_classes_are_those_of_tf_keras(is_keras_2):
    for table in (IN_BOTH, IN_KERAS_2)[: 1 + is_keras_2]:
        for module, text in table.items():
            place, names = text.split(": ") if not text.startswith(":") else ("", text[2:])
            for name in names.split():
                found = getattr(importlib.import_module(f"{PREFIX}.{module}"), name)
                assert found is public(place, name), (module, name, found)
    from tensorflow.python import keras
    from tensorflow.python.keras import Model, layers, optimizers

    assert layers is keras.layers is sys.modules[f"{PREFIX}.layers"]
    assert (Model, layers.Dense, optimizers.Adam) == (
        tf.keras.Model,
        tf.keras.layers.Dense,
        tf.keras.optimizers.Adam,
    )
    names = {}
    exec(f"from {PREFIX}.layers import *", names)
    assert names["Conv2D"] is tf.keras.layers.Conv2D


def check_what_is_not_public(is_keras_2):
    from tensorflow.python.keras.utils.conv_utils import normalize_tuple

    assert normalize_tuple(3, 2, "kernel_size") == (3, 3)
    if is_keras_2:
        from tensorflow.python.keras.engine.base_layer_utils import make_variable
        from tensorflow.python.keras.optimizer_v2.optimizer_v2 import OptimizerV2

        assert make_variable.__module__.startswith("tf_keras.")
        assert issubclass(tf.keras.optimizers.legacy.Adam, OptimizerV2)
    with pytest.raises(ImportError, match="NoSuchLayer"):
        from tensorflow.python.keras.layers import NoSuchLayer  # noqa: F401
    with pytest.raises(ImportError):
        import tensorflow.python.keras.no_such_module  # noqa: F401
    if not is_keras_2:
        with pytest.raises(AttributeError, match="TFOpLambda is a layer of TensorFlow's copy of Keras"):
            importlib.import_module(f"{PREFIX}.layers.core").TFOpLambda  # noqa: B018


def check_a_mixed_model(is_keras_2):
    """Two layers from there in a network under a policy: the program that ended with a TypeError."""
    from tensorflow.python.keras.layers import Conv2D, Conv2DTranspose, concatenate

    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    image = tf.keras.layers.Input((8, 8, 1))
    down = Conv2D(4, 3, strides=2, padding="same", activation="relu")(image)
    up = Conv2DTranspose(4, 3, strides=2, padding="same")(down)
    logits = tf.keras.layers.Dense(2, dtype="float32")(concatenate([up, Conv2D(2, 1)(image)]))
    model = tf.keras.Model(image, logits)
    assert model(np.ones([2, 8, 8, 1], np.float32)).shape == (2, 8, 8, 2)
    tf.keras.mixed_precision.set_global_policy("float32")


def check_tensorflow_has_its_copy(is_keras_2):
    """Also after programs have asked for names that the copy has, too."""
    from tensorflow.python.layers.core import Dense

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        outputs = Dense(5, kernel_initializer=v1.glorot_uniform_initializer())(tf.ones([2, 3]))
        rate = v1.train.polynomial_decay(0.1, v1.train.get_or_create_global_step(), 10)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            assert session.run(rate) == pytest.approx(0.1)
            assert session.run(outputs).shape == (2, 5)
    assert not issubclass(Dense, tf.keras.layers.Layer)


def check_tools_that_look_at_all_modules(is_keras_2):
    import inspect

    assert inspect.getmodule(check_tools_that_look_at_all_modules).__name__ == "__main__"
    assert not hasattr(importlib.import_module(f"{PREFIX}.layers.wrappers"), "__file__")
    assert hasattr(importlib.import_module(f"{PREFIX}.layers"), "__file__")


def check_the_old_order_of_arguments(is_keras_2):
    if not is_keras_2:
        return
    from tensorflow.python.keras.layers import Conv2D, Conv2DTranspose, DepthwiseConv2D, SeparableConv2D

    relu = tf.keras.activations.relu
    before = (4, 3, (1, 1), "same", "channels_last", (1, 1))
    assert Conv2D(*before, "relu", False).activation is relu
    assert Conv2D(*before, None, False).use_bias is False
    assert Conv2D(*before, 2, "relu").groups == 2
    assert Conv2DTranspose(4, 3, (1, 1), "same", None, "channels_last", (1, 1), "relu").activation is relu
    assert SeparableConv2D(*before, 1, "relu").activation is relu
    depthwise = DepthwiseConv2D(3, (1, 1), "same", 1, "channels_last", "relu", False)
    assert (depthwise.activation, depthwise.use_bias, depthwise.dilation_rate) == (relu, False, (1, 1))
    assert DepthwiseConv2D(3, (1, 1), "same", 1, "channels_last", (2, 2), "relu").dilation_rate == (2, 2)
    assert DepthwiseConv2D(3, (1, 1), "same", 1, "channels_last", 2).dilation_rate == (2, 2)


if __name__ == "__main__":
    keras = tf.keras.layers.Layer.__module__.partition(".")[0]
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check(keras == "tf_keras")
            print(name)
    print(keras)
