"""What all layers of the programs have: a policy of their own, and casts at their borders."""

import tensorflow as tf

from common.stack import boundary_cast, summary_layer


class BaseLayer(tf.keras.layers.Layer):
    """A layer that says itself in which types it computes and keeps its variables.

    Layers that compute begin their `call` with `enter` and end it with `leave`.
    """

    def __init__(self, boundary_casting=False, tf_summary=False, **kwargs):
        super().__init__(**kwargs)
        policy = kwargs.get("dtype")
        self.dtype_policy = policy if policy is not None else global_policy()
        self.variable_dtype = self.dtype_policy.variable_dtype
        self.compute_dtype = self.dtype_policy.compute_dtype
        self.supports_masking = True
        self.boundary_casting = boundary_casting
        self.tf_summary = tf_summary

    def enter(self, inputs):
        return boundary_cast(inputs) if self.boundary_casting else inputs

    def leave(self, output):
        return summary_layer(output) if self.tf_summary else output

    def half(self, x):
        """In the type of this layer's products."""
        return tf.cast(x, self.compute_dtype)


def global_policy():
    return tf.keras.mixed_precision.experimental.global_policy()


def set_precision(mixed_precision):
    """Sets the policy of all layers made from now on; the optimizer scales the loss, not the policy."""
    experimental = tf.keras.mixed_precision.experimental
    name = "mixed_float16" if mixed_precision else tf.keras.backend.floatx()
    policy = experimental.Policy(name, loss_scale=None)
    experimental.set_policy(policy)
    return policy
