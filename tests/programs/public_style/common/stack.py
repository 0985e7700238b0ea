"""The classes of the CS system where they can be imported, and plain tf.estimator where they cannot.

Whether a class is the one for the CS system is seen by its name alone.
"""

from contextlib import nullcontext

import tensorflow as tf

try:
    from cerebras.tf.cs_estimator import CerebrasEstimator as EstimatorBase
    from cerebras.tf.cs_estimator_spec import CSEstimatorSpec as SpecBase
    from cerebras.tf.run_config import CSRunConfig as RunConfigBase
except ImportError:
    from tensorflow_estimator.python.estimator.estimator import Estimator as EstimatorBase
    from tensorflow_estimator.python.estimator.model_fn import EstimatorSpec as SpecBase
    from tensorflow_estimator.python.estimator.run_config import RunConfig as RunConfigBase

try:
    from cerebras.tf.summary import cs1_disable_summaries, cs1_enable_summaries
except ImportError:
    cs1_disable_summaries = cs1_enable_summaries = nullcontext

try:
    from cerebras.tf.tf_helper import boundary_cast, summary_layer
except ImportError:

    def boundary_cast(x, name=None, back_cast=True):
        """Through float16 and back, which is what happens at the border of a kernel."""
        half = tf.cast(x, tf.float16, name)
        return tf.cast(half, x.dtype) if back_cast else half

    def summary_layer(x):
        return x


def named(cls, name):
    return name in [base.__name__ for base in cls.__mro__]


ON_STACK = named(EstimatorBase, "CerebrasEstimator")


class RunConfig(RunConfigBase):
    def __init__(self, cs_ip=None, system_name=None, cs_config=None, stack_params=None, **kwargs):
        if named(RunConfigBase, "CSRunConfig"):
            kwargs.update(
                cs_ip=cs_ip, system_name=system_name, cs_config=cs_config, stack_params=stack_params
            )
        super().__init__(**kwargs)


class EstimatorSpec(SpecBase):
    """Metrics are given as a host call: computed on the host, whichever device has the model."""

    def __new__(cls, mode, host_call=None, **kwargs):
        if named(SpecBase, "CSEstimatorSpec"):
            from cerebras.tf.host_call import validate_host_call

            if host_call:
                validate_host_call(host_call)
            return super().__new__(cls, mode, host_call=host_call, **kwargs)
        if host_call:
            function, tensors = host_call
            kwargs["eval_metric_ops"] = function(*tensors)
        return super().__new__(cls, mode, **kwargs)


class Estimator(EstimatorBase):
    def __init__(
        self, model_fn, model_dir=None, config=None, params=None, warm_start_from=None, compile_dir=None
    ):
        arguments = [model_fn, model_dir, config, params, warm_start_from]
        if ON_STACK:
            arguments.append(compile_dir)
        super().__init__(*arguments)

    def train(self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None, use_cs=True):
        arguments = [input_fn, hooks, steps, max_steps, saving_listeners]
        if ON_STACK:
            arguments.append(use_cs)
        return super().train(*arguments)
