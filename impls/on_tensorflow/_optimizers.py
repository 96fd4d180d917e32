"""The optimizers over variables. `impls/on_numpy/_optimizers.py` has the same formulas in NumPy; Keras's read epsilon
and weight decay otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

from impls.on_tensorflow._layer import Tensor
from impls.optimizers import Optimizer

Variables = Mapping[str, tf.Variable]


class Updates:
    """State of one optimizer over named variables. `minimize` and `apply` are traced into the step that calls them."""

    def __init__(self, settings: Optimizer, variables: Variables) -> None:
        settings.check_dense("tensorflow")
        self.settings = settings
        self.variables = dict(variables)
        self.slots = [
            {n: tf.Variable(self._start(v), trainable=False) for n, v in variables.items()}
            for _ in range(settings.slots)
        ]
        self.steps = tf.Variable(tf.zeros([], tf.int64), trainable=False)

    def _start(self, variable: tf.Variable) -> Tensor:
        start = self.settings.initial_accumulator if self.settings.name == "adagrad" else 0.0
        return tf.fill(variable.shape, tf.constant(start, variable.dtype))

    def reset(self) -> None:
        """As before the first step, in what has been traced too."""
        for slot in self.slots:
            for variable in slot.values():
                variable.assign(self._start(variable))
        self.steps.assign(0)

    def minimize(self, loss_of: Callable[[], Tensor], rate: Tensor | None = None) -> Tensor:
        """One step down the gradient of a loss; its value before it. `rate` as in `apply`."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in self.variables.values():
                tape.watch(variable)
            loss = loss_of()
        grads = tape.gradient(loss, self.variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        self.apply({name: tf.convert_to_tensor(grad) for name, grad in grads.items()}, rate)
        return loss

    def apply(self, grads: Mapping[str, Tensor], rate: Tensor | None = None) -> None:
        """One step: clip by the global norm, add weight decay, update, at the learning rate of the settings or at
        `rate`, a scalar."""
        settings = self.settings
        self.steps.assign_add(1)
        if settings.clip_norm:
            norm = tf.sqrt(tf.add_n([tf.cast(2 * tf.nn.l2_loss(grad), tf.float64) for grad in grads.values()]))
            scale = tf.minimum(tf.constant(1.0, tf.float64), settings.clip_norm / (norm + 1e-6))
            grads = {name: grad * tf.cast(scale, grad.dtype) for name, grad in grads.items()}
        for name, variable in self.variables.items():
            grad = grads[name] + settings.weight_decay * variable
            if settings.name == "adagrad":
                squares = self.slots[0][name].assign_add(grad * grad)
                change = grad / (tf.sqrt(squares) + settings.epsilon)
            elif settings.name == "adam":
                change = self._adam(name, grad)
            else:
                change = grad
            variable.assign_sub((settings.learning_rate if rate is None else tf.cast(rate, change.dtype)) * change)

    def _adam(self, name: str, grad: Tensor) -> Tensor:
        settings, time = self.settings, tf.cast(self.steps, grad.dtype)
        first, second = self.slots[0][name], self.slots[1][name]
        first.assign(settings.beta1 * first + (1 - settings.beta1) * grad)
        second.assign(settings.beta2 * second + (1 - settings.beta2) * grad * grad)
        first_hat = first / (1 - tf.pow(tf.constant(settings.beta1, grad.dtype), time))
        second_hat = second / (1 - tf.pow(tf.constant(settings.beta2, grad.dtype), time))
        return first_hat / (tf.sqrt(second_hat) + settings.epsilon)
