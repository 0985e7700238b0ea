"""From a loss to a train op: schedule, optimizer, loss scale, clipping, summaries."""

import re

import tensorflow as tf

from common.stack import cs1_disable_summaries, cs1_enable_summaries

v1 = tf.compat.v1


class Trainer:
    """Builds the ops of a training step.

    Args:
        params: The group `optimizer` of the parameters.
        tf_summary: Whether norms of gradients are written.
    """

    def __init__(self, params, tf_summary=False):
        self.kind = params["optimizer_type"].lower()
        self.params = params
        self.max_gradient_norm = params.get("max_gradient_norm")
        self.loss_scale = params["loss_scaling_factor"]
        self.tf_summary = tf_summary
        self.log_hooks = None

    def build_train_ops(self, loss):
        step = v1.train.get_or_create_global_step()
        rate = learning_rate(self.params["learning_rate"], step)
        v1.summary.scalar("lr", rate)
        optimizer = self.build_optimizer(rate)
        with cs1_enable_summaries() if self.tf_summary else cs1_disable_summaries():
            if self.loss_scale == "dynamic":
                return self.build_dynamic(optimizer, loss, step)
            if self.loss_scale == "tf_dynamic":
                return self.build_by_tensorflow(optimizer, loss, step)
            return self.build_static(optimizer, loss, step)

    def build_optimizer(self, rate):
        p = self.params
        if self.kind == "sgd":
            return v1.train.GradientDescentOptimizer(rate)
        if self.kind == "momentum":
            return v1.train.MomentumOptimizer(rate, p["momentum"])
        adam = {"beta1": p["beta1"], "beta2": p["beta2"], "epsilon": float(p["epsilon"])}
        if self.kind == "adam":
            return v1.train.AdamOptimizer(rate, **adam)
        if self.kind == "adamw":
            return AdamWOptimizer(
                rate, p["weight_decay_rate"], p.get("exclude_from_weight_decay", ()), **adam
            )
        raise ValueError(f"Unsupported optimizer {self.kind}")

    def build_by_tensorflow(self, optimizer, loss, step):
        """The scale of TensorFlow's own optimizer around another one."""
        mixed = v1.mixed_precision
        scale = mixed.DynamicLossScale(float(self.params["initial_loss_scale"]), 2000, 2.0)
        optimizer = mixed.MixedPrecisionLossScaleOptimizer(optimizer, scale)
        pairs = optimizer.compute_gradients(loss, v1.trainable_variables())
        pairs = [(dense(gradient), variable) for gradient, variable in pairs]
        return optimizer.apply_gradients(self.clipped(pairs), global_step=step)

    def build_static(self, optimizer, loss, step):
        """The loss times a number, the gradients divided by it."""
        scale = float(self.loss_scale)
        pairs = optimizer.compute_gradients(loss * scale, colocate_gradients_with_ops=True)
        pairs = [(dense(gradient) / scale, variable) for gradient, variable in pairs]
        return optimizer.apply_gradients(self.clipped(pairs), global_step=step)

    def build_dynamic(self, optimizer, loss, step):
        """A scale that halves where gradients are not finite, and doubles after enough good steps.

        An update of a step whose gradients are not finite is left out, variable by variable.
        """
        scale = v1.get_variable(
            "loss_scale/scale",
            initializer=float(self.params.get("initial_loss_scale", 2.0**15)),
            trainable=False,
        )
        good_steps = v1.get_variable("loss_scale/good_steps", initializer=0, trainable=False)
        pairs = optimizer.compute_gradients(loss * scale)
        pairs = [(tf.cast(dense(g), tf.float32) * (1.0 / scale), v) for g, v in pairs if g is not None]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient, _ in pairs])
        pairs = [(tf.where(finite, g, tf.zeros_like(g)), v) for g, v in pairs]
        v1.summary.scalar("loss_scale", scale)

        period = self.params.get("steps_per_increase", 2000)
        grown = tf.equal(good_steps + 1, period)
        higher = tf.where(grown, tf.minimum(scale * 2.0, 2.0**24), scale)
        new_scale = tf.where(finite, higher, tf.maximum(scale * 0.5, 2.0**-14))
        new_count = tf.where(tf.logical_and(finite, tf.logical_not(grown)), good_steps + 1, 0)
        clipped = self.clipped(pairs)
        with tf.control_dependencies([gradient for gradient, _ in clipped]):
            updates = [scale.assign(new_scale), good_steps.assign(new_count)]
        if isinstance(optimizer, AdamWOptimizer):
            updates.append(optimizer.apply_gradients(clipped, step, where=finite))
        else:
            updates.append(optimizer.apply_gradients(clipped, step))
        return tf.group(*updates)

    def clipped(self, pairs):
        if not self.max_gradient_norm:
            return pairs
        gradients, variables = zip(*pairs, strict=True)
        v1.summary.scalar("train/unclipped_grad_norm", tf.linalg.global_norm(gradients))
        gradients, _ = tf.clip_by_global_norm(gradients, self.max_gradient_norm)
        v1.summary.scalar("train/clipped_grad_norm", tf.linalg.global_norm(gradients))
        return list(zip(gradients, variables, strict=True))


def dense(gradient):
    return tf.convert_to_tensor(gradient)


class AdamWOptimizer(v1.train.Optimizer):
    """Adam whose decay is no part of the gradient, in the manner of BERT's (no correction of the bias).

    Args:
        learning_rate: Tensor or number.
        weight_decay_rate: Part of a weight that goes at a learning rate of 1.
        exclude: Patterns of names of variables that do not decay.
        beta1: Of the mean.
        beta2: Of the mean square.
        epsilon: Beside the root of the mean square.
    """

    def __init__(self, learning_rate, weight_decay_rate, exclude, beta1, beta2, epsilon):
        super().__init__(False, "AdamWOptimizer")
        self.rate = learning_rate
        self.decay = weight_decay_rate
        self.exclude = exclude
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def apply_gradients(self, grads_and_vars, global_step=None, name=None, where=None):
        """`where`: a condition; nothing changes where it does not hold."""

        def chosen(new, old):
            return new if where is None else tf.where(where, new, old)

        updates = []
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            base = re.match(r"^(.*):\d+$", variable.name)[1]
            m = self.slot(base + "/adam_m", variable)
            v = self.slot(base + "/adam_v", variable)
            next_m = self.beta1 * m + (1.0 - self.beta1) * gradient
            next_v = self.beta2 * v + (1.0 - self.beta2) * tf.square(gradient)
            update = next_m / (tf.sqrt(next_v) + self.epsilon)
            if self.decay and not any(re.search(pattern, base) for pattern in self.exclude):
                update += self.decay * variable
            next_value = variable - self.rate * update
            updates += [
                variable.assign(chosen(next_value, variable)),
                m.assign(chosen(next_m, m)),
                v.assign(chosen(next_v, v)),
            ]
        with tf.control_dependencies(updates):
            return global_step.assign_add(1).op

    @staticmethod
    def slot(name, variable):
        return v1.get_variable(
            name,
            shape=variable.shape.as_list(),
            dtype=tf.float32,
            trainable=False,
            initializer=tf.compat.v1.zeros_initializer(),
        )


def learning_rate(schedules, step):
    """A number, one schedule, or several one after the other, each for its `steps`."""
    if isinstance(schedules, (int, float)):
        return tf.constant(float(schedules))
    schedules = schedules if isinstance(schedules, list) else [schedules]
    cases, begin = [], 0
    for schedule in schedules:
        rate = one_schedule(schedule, step - begin)
        begin += schedule.get("steps", 0)
        cases.append((begin, rate))
    result = cases[-1][1]
    for end, rate in reversed(cases[:-1]):
        result = tf.where(step < end, rate, result)
    return result


def one_schedule(schedule, step):
    kind = schedule["scheduler"].lower()
    if kind == "constant":
        return tf.constant(float(schedule["learning_rate"]))
    initial = float(schedule["initial_learning_rate"])
    if kind == "linear":
        return v1.train.polynomial_decay(
            initial, step, schedule["steps"], float(schedule["end_learning_rate"]), power=1.0
        )
    if kind == "exponential":
        return v1.train.exponential_decay(initial, step, schedule["decay_steps"], schedule["decay_rate"])
    if kind == "cosine":
        return v1.train.cosine_decay(initial, step, schedule["decay_steps"])
    raise ValueError(f"Unsupported schedule {kind}")
