"""Classes for the CS system where there is one, and for a plain tf.estimator where there is none.

As public programs of the time do it: the names are tried, and a failure is taken for "outside Cerebras".
"""

import os

import tensorflow as tf

try:
    from cerebras.tf.cs_estimator import CerebrasEstimator as EstimatorBase
    from cerebras.tf.cs_estimator_spec import CSEstimatorSpec as SpecBase
    from cerebras.tf.host_call import host_call_to_eval_metric_ops, validate_host_call
    from cerebras.tf.run_config import CSRunConfig as ConfigBase
    from cerebras.tf.summary import cs1_disable_summaries, cs1_enable_summaries

    OUTSIDE = False
except ImportError:
    from tensorflow_estimator.python.estimator.estimator import Estimator as EstimatorBase
    from tensorflow_estimator.python.estimator.model_fn import EstimatorSpec as SpecBase
    from tensorflow_estimator.python.estimator.run_config import RunConfig as ConfigBase

    OUTSIDE = True


def _is(cls, name):
    return any(base.__name__ == name for base in cls.__mro__)


class RunConfig(ConfigBase):
    def __init__(self, cs_ip=None, system_name=None, cs_config=None, stack_params=None, **kwargs):
        if _is(ConfigBase, "CSRunConfig"):
            super().__init__(
                cs_ip=cs_ip,
                system_name=system_name,
                cs_config=cs_config,
                stack_params=stack_params,
                **kwargs,
            )
        else:
            super().__init__(**kwargs)


class Spec(SpecBase):
    def __new__(cls, mode, host_call=None, **kwargs):
        if _is(SpecBase, "CSEstimatorSpec"):
            validate_host_call(host_call) if host_call is not None else None
            return super().__new__(cls, mode, host_call=host_call, **kwargs)
        return super().__new__(cls, mode, **kwargs)


class Estimator(EstimatorBase):
    def __init__(
        self, model_fn, model_dir=None, config=None, params=None, warm_start_from=None, compile_dir=None
    ):
        if _is(EstimatorBase, "CerebrasEstimator"):
            super().__init__(model_fn, model_dir, config, params, warm_start_from, compile_dir)
        else:
            super().__init__(model_fn, model_dir, config, params, warm_start_from)

    def compile(self, input_fn, validate_only=False, mode=tf.estimator.ModeKeys.TRAIN):
        return super().compile(input_fn, validate_only, mode)

    def train(self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None, use_cs=True):
        return super().train(input_fn, hooks, steps, max_steps, saving_listeners, use_cs)

    def evaluate(self, input_fn, steps=None, hooks=None, checkpoint_path=None, name=None, use_cs=False):
        return super().evaluate(input_fn, steps, hooks, checkpoint_path, name, use_cs)

    def predict(
        self,
        input_fn,
        predict_keys=None,
        hooks=None,
        checkpoint_path=None,
        yield_single_examples=True,
        num_samples=None,
        use_cs=False,
    ):
        return super().predict(
            input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples, num_samples, use_cs
        )


def metrics_on_host(host_call):
    return host_call_to_eval_metric_ops(host_call)


def summaries(enabled):
    return cs1_enable_summaries() if enabled else cs1_disable_summaries()


def announce():
    print(f"inside: {not OUTSIDE}, custom session: {os.environ.get('CEREBRAS_CUSTOM_MONITORED_SESSION')}")
