"""Every name of the original stack and of old TensorFlow that programs use, as they do; run by a launcher."""

import copy
import inspect
import pickle
import sys
import tempfile
from pathlib import Path

import pytest
import tensorflow as tf

MODE = tf.estimator.ModeKeys.TRAIN


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def check_estimator():
    from cerebras.tf.cs_estimator import CerebrasEstimator
    from cerebras.tf.run_config import CSRunConfig

    assert CerebrasEstimator.__name__ == "CerebrasEstimator"
    assert parameters(CerebrasEstimator.__init__)[:6] == [
        "model_fn",
        "model_dir",
        "config",
        "params",
        "warm_start_from",
        "compile_dir",
    ]
    assert parameters(CerebrasEstimator.compile) == ["input_fn", "validate_only", "mode"]
    assert parameters(CerebrasEstimator.train) == [
        "input_fn",
        "hooks",
        "steps",
        "max_steps",
        "saving_listeners",
        "use_cs",
        "sparsifier",
    ]
    assert parameters(CerebrasEstimator.evaluate) == [
        "input_fn",
        "steps",
        "hooks",
        "checkpoint_path",
        "name",
        "use_cs",
    ]
    assert parameters(CerebrasEstimator.predict) == [
        "input_fn",
        "predict_keys",
        "hooks",
        "checkpoint_path",
        "yield_single_examples",
        "num_samples",
        "use_cs",
    ]

    def model_fn(features, labels, mode, params):
        raise AssertionError

    config = CSRunConfig("192.0.2.7", None, {"use_cbfloat16": True}, {"ir_mode": "mlir-cirh"})
    with tempfile.TemporaryDirectory() as folder:
        estimator = CerebrasEstimator(model_fn, folder, config, {"a": 1}, None, folder)
        assert estimator.config.cs_ip == "192.0.2.7"
        assert estimator.config.task_id == 0
        assert estimator.params == {"a": 1}
        on_cpu = CerebrasEstimator(model_fn, folder, config, {"a": 1}, use_cs=False)
        assert on_cpu.config.cs_ip is None
        plain = tf.estimator.Estimator(model_fn, folder, config, {"a": 1})
        assert type(plain).__name__ == "Estimator"
        assert plain.config.cs_ip is None
        with pytest.raises(ValueError, match="sparsifier"):
            estimator.train(lambda params: None, max_steps=1, sparsifier=object())


def check_messages():
    from cerebras.pb.common.cerebras_type_pb2 import T_CB16, T_F16
    from cerebras.pb.common.tri_state_pb2 import TS_DISABLED, TS_ENABLED
    from cerebras.pb.stack.autogen_pb2 import AP_DISABLED, AP_ENABLED
    from cerebras.pb.stack.full_pb2 import FullConfig
    from cerebras.pb.tf.csconfig_pb2 import CSConfig

    assert T_CB16 != T_F16
    assert TS_DISABLED != TS_ENABLED
    assert AP_DISABLED != AP_ENABLED
    config = FullConfig()
    assert not config
    config.placement.pathfinder.deltat_relative_margin = 0.25
    config.matching.match_lair.disabled_converters.append("softmax")
    assert config.as_dict() == {
        "placement": {"pathfinder": {"deltat_relative_margin": 0.25}},
        "matching": {"match_lair": {"disabled_converters": ["softmax"]}},
    }
    assert list(config.matching.match_lair.disabled_converters) == ["softmax"]
    for duplicate in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert duplicate == config
        duplicate.placement.pathfinder.deltat_relative_margin = 1
        assert duplicate != config
    assert CSConfig().use_cbfloat16 is False
    assert CSConfig(use_cbfloat16=True).use_cbfloat16 is True


def check_helpers():
    from cerebras.tf.cs_model_to_estimator import KerasModelToCerebrasEstimator
    from cerebras.tf.cs_slurm_cluster_resolver import CSSlurmClusterResolver
    from cerebras.tf.host_call import host_call_to_eval_metric_ops, validate_host_call
    from cerebras.tf.summary import cs1_disable_summaries, cs1_enable_summaries
    from cerebras.tf.tf_helper import GetWeights, boundary_cast, summarize_tensor, summary_layer
    from cerebras.tf.utils import prep_orchestrator

    prep_orchestrator()
    with tf.Graph().as_default():
        x = tf.constant([1.0, 2.0])
        assert boundary_cast(x, name="b", back_cast=False).dtype == x.dtype
        assert summary_layer(x).shape == summarize_tensor(x, True, "g").shape == x.shape
        with cs1_enable_summaries():
            tf.compat.v1.summary.scalar("kept", x[0])
        with cs1_disable_summaries():
            tf.compat.v1.summary.scalar("dropped", x[0])
        kept = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)
        assert [(tensor.op.type, tensor.op.name) for tensor in kept][1:] == [
            ("HistogramSummary", "g"),
            ("ScalarSummary", "kept"),
        ]
        assert kept[0].op.type == "HistogramSummary"
        call = (lambda values: {"mean": tf.compat.v1.metrics.mean(values)}, [x])
        validate_host_call(call)
        assert set(host_call_to_eval_metric_ops(call)) == {"mean"}
        variable = tf.compat.v1.get_variable("v", initializer=3.0)
        with tf.compat.v1.Session() as session, tempfile.TemporaryDirectory() as folder:
            session.run(variable.initializer)
            prefix = tf.compat.v1.train.Saver().save(session, f"{folder}/model.ckpt", 7)
            assert dict(GetWeights(prefix)) == dict(GetWeights(folder)) == {"v": 3.0}
        with pytest.raises(ValueError, match="'/no/such/checkpoint' is not a checkpoint"):
            GetWeights("/no/such/checkpoint")
    resolver = CSSlurmClusterResolver(port_base=24000)
    assert resolver.get_task_info() == ("chief", 0)
    cluster = resolver.cluster_spec().as_dict()
    assert set(cluster) == {"chief", "worker"}
    assert cluster["chief"][0].endswith(":24000")
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.build((2, 3))
    model.compile("sgd", "mse")
    with tempfile.TemporaryDirectory() as folder:
        assert KerasModelToCerebrasEstimator(model, folder).model is model


def check_fused_keras_models_train_as_by_keras():
    import numpy as np
    from cerebras.tf.cs_estimator import CerebrasEstimator
    from cerebras.tf.cs_model_to_estimator import KerasModelToModelFn
    from cerebras.tf.model_fusion import MULTI_MODEL_STACK_KEY, ModelInfo, MultiModelFusion
    from cerebras.tf.run_config import CSRunConfig

    def input_fn(params):
        x = np.random.default_rng(params["seed"]).normal(size=(12, 3)).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices((x, x[:, :1] + 1)).batch(4, drop_remainder=True)

    def model():
        layers = tf.keras.layers
        found = tf.keras.Sequential([layers.Dense(5, "tanh"), layers.BatchNormalization(), layers.Dense(1)])
        found.build((None, 3))
        found.compile("adam", "mse", metrics=["mae"])
        return found

    params = {"left": {"seed": 1}, "right": {"seed": 2}}
    models = {name: model() for name in params}
    infos = [ModelInfo(KerasModelToModelFn(models[name]), input_fn, params[name], 1, name) for name in params]
    fusion = MultiModelFusion(infos)
    assert list(fusion.stack_params) == [MULTI_MODEL_STACK_KEY]
    config = CSRunConfig(stack_params={MULTI_MODEL_STACK_KEY: fusion.stack_params}, save_summary_steps=1)
    with tempfile.TemporaryDirectory() as folder:
        estimator = CerebrasEstimator(fusion.model_fn, folder, config, fusion.params)
        estimator.train(fusion.input_fn, use_cs=False)
        evaluated = estimator.evaluate(fusion.input_fn)
        for name, alone in models.items():
            alone.fit(input_fn(params[name]), verbose=0)
            expected = alone.evaluate(input_fn(params[name]), verbose=0, return_dict=True)
            found = {key: evaluated[f"{name}/{key}"] for key in expected}
            assert found == pytest.approx(expected, rel=1e-5)
            for variable in alone.weights:
                value = estimator.get_variable_value(f"{name}/{variable.name.split(':')[0]}")
                np.testing.assert_allclose(value, variable.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="expected a Keras model"):
        KerasModelToModelFn(object())


def check_old_tensorflow():
    import tensorflow.compat.v1 as tf1
    from tensorflow.estimator import EstimatorSpec, EvalSpec, RunConfig, TrainSpec, WarmStartSettings
    from tensorflow.keras.mixed_precision import experimental
    from tensorflow.python.keras.mixed_precision.experimental.loss_scale_optimizer import LossScaleOptimizer
    from tensorflow_estimator.python.estimator.estimator import Estimator
    from tensorflow_estimator.python.estimator.model_fn import EstimatorSpec as Spec
    from tensorflow_estimator.python.estimator.run_config import RunConfig as Config

    assert tf1.estimator is tf.estimator is tf.compat.v1.estimator
    assert (Estimator, Spec, Config) == (tf.estimator.Estimator, EstimatorSpec, RunConfig)
    assert TrainSpec(input_fn=None, max_steps=3).max_steps == 3
    assert None not in (EvalSpec, WarmStartSettings, tf.estimator.train_and_evaluate)
    assert tf.estimator.SummarySaverHook is tf1.train.SummarySaverHook
    assert MODE == "train"
    assert isinstance(LossScaleOptimizer, type)
    assert experimental is tf.keras.mixed_precision.experimental
    assert experimental.Policy("mixed_float16").loss_scale() == 2.0**15
    assert experimental.Policy("mixed_float16", loss_scale=64).loss_scale() == 64
    policy = experimental.Policy("mixed_float16", loss_scale=None)
    assert policy.loss_scale is None
    experimental.set_policy(policy)
    assert experimental.global_policy() is policy
    assert tf.keras.layers.Dense(1).compute_dtype == "float16"
    experimental.set_policy("float32")
    optimizer = experimental.LossScaleOptimizer(tf.keras.optimizers.SGD(), 128.0)
    assert float(optimizer.loss_scale) == 128

    class Layer(tf.keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            assert (self.compute_dtype, self.variable_dtype) == ("float32", "float32")
            self.dtype_policy = policy
            self.variable_dtype = tf.float32
            self.compute_dtype = tf.float16

    old_order = tf.keras.layers.Conv2D(4, 3, (1, 1), "same", "channels_last", (1, 1), "relu", False)
    assert (old_order.activation, old_order.groups, old_order.use_bias) == (
        tf.keras.activations.relu,
        1,
        False,
    )
    new_order = tf.keras.layers.Conv2D(4, 3, (1, 1), "same", "channels_last", (1, 1), 2, "relu")
    assert (new_order.activation, new_order.groups) == (tf.keras.activations.relu, 2)
    assert tf.keras.layers.Conv2D.from_config(new_order.get_config()).groups == 2
    assert tf.compat.v1.keras.mixed_precision.experimental is experimental
    layer = Layer()
    assert (layer.dtype_policy, layer.variable_dtype, layer.compute_dtype) == (policy, tf.float32, tf.float16)
    assert layer._compute_dtype == "float16"
    assert inspect.getargspec(parameters).args == ["function"]


def check_weight_streaming_is_absent():
    """Programs take another branch where they find these."""
    import importlib

    for name in ("tfwse", "cerebras.tf.ws", "torch_xla"):
        assert importlib.util.find_spec(name) is None, name
    assert importlib.util.find_spec("cerebras.framework") is not None  # the branch of these launchers


if __name__ == "__main__":
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
            print(name)
    print("Keras", tf.keras.layers.Layer.__module__.partition(".")[0], Path(sys.executable).name)
