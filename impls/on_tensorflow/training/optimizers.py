"""The optimizers over variables. `impls/on_numpy/optimizers.py` has the same formulas in NumPy; Keras's read epsilon
and weight decay otherwise.

Where a batch reads few rows of a variable, a step can change these rows alone, with the result of a step over all of
them. The steps that a row missed, with a gradient of zero, change nothing with Adagrad or plain SGD without weight
decay; otherwise they are done over before the row is read, so that the arithmetic is that of the dense step, done
later.

Shape letters besides those of `impls/spec.py`: U rows of a variable, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import tensorflow as tf

from vocabench.impls.on_tensorflow.layer import Tensor, Tensors, at_least_float32, traced
from vocabench.impls.optimizers import Optimizer, check_rate

Variables = Mapping[str, tf.Variable]

_LARGE = 2**20  # numbers of a variable: for smaller ones XLA takes longer to compile than it ever saves


class Updates:
    """State of one optimizer over named variables. `minimize`, `read` and `apply` are traced into the step that calls
    them.

    Args:
        settings: Of the optimizer.
        variables: What it trains.
        few_rows: Names of those that are updated by rows.
    """

    def __init__(self, settings: Optimizer, variables: Variables, few_rows: Iterable[str] = ()) -> None:
        self.settings = settings
        self.variables = dict(variables)
        self.slots = [
            {n: tf.Variable(self._start(v), trainable=False) for n, v in variables.items()}
            for _ in range(settings.slots)
        ]
        self.steps = tf.Variable(tf.zeros([], tf.int64), trainable=False)
        self._by_rows = tuple(few_rows)
        # (V,) the last step that each row has taken part in, where it matters.
        missing = () if settings.idle_without_gradient else self._by_rows
        self._seen = {
            name: tf.Variable(tf.zeros(self.variables[name].shape[:1], tf.int64), trainable=False) for name in missing
        }

    def _start(self, variable: tf.Variable) -> Tensor:
        start = self.settings.initial_accumulator if self.settings.name == "adagrad" else 0.0
        return tf.fill(variable.shape, tf.constant(start, variable.dtype))

    def reset(self) -> None:
        """As before the first step, in what has been traced too."""
        for slot in self.slots:
            for variable in slot.values():
                variable.assign(self._start(variable))
        for seen_V in self._seen.values():
            seen_V.assign(tf.zeros_like(seen_V))
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

    def read(self, rows: Tensors) -> Tensors:
        """Tables (U, ...) of rows (U,) of some variables, brought to the present step."""
        for name, rows_U in rows.items():
            self._make_up(name, rows_U)
        return {name: tf.gather(self.variables[name], rows_U) for name, rows_U in rows.items()}

    def apply(
        self, grads: Mapping[str, Tensor], rate: Tensor | None = None, rows: Mapping[str, Tensor] | None = None
    ) -> None:
        """One step: clip by the global norm, add weight decay, update, at the learning rate of the settings or at
        `rate`, a scalar. Where `rows` has (U,) of a variable, its gradient is that of these, and no other is changed;
        `rate` with `rows` is refused as `BadInput`.
        """
        check_rate(rate, by_rows=bool(rows))
        rows = rows or {}
        self.steps.assign_add(1)
        scale = tf.constant(1.0, tf.float64)
        if self.settings.clip_norm:
            squares = [2 * tf.nn.l2_loss(at_least_float32(grad)) for grad in grads.values()]
            norm = tf.sqrt(tf.add_n([tf.cast(square, tf.float64) for square in squares]))
            scale = tf.minimum(scale, self.settings.clip_norm / (norm + 1e-6))
        for name in self.variables:
            if name in rows:
                step_U = tf.fill(tf.shape(rows[name]), self.steps)
                self._change_rows(name, rows[name], grads[name], scale, step_U)
            else:
                self._change_all(name, grads[name], scale, rate)

    def catch_up(self) -> None:
        """Bring every row to the present step: before variables are read whole."""
        for name, seen_V in self._seen.items():
            self._make_up(name, tf.range(tf.size(seen_V)))
        for name in self._by_rows:
            for variable in (self.variables[name], *(slot[name] for slot in self.slots)):
                # Since its rows have been written, each reader of all of it gets a copy of its own.
                tf.raw_ops.DisableCopyOnRead(resource=variable.handle)

    def _make_up(self, name: str, rows_U: Tensor) -> None:
        """The steps that rows have missed."""
        if name not in self._seen:
            return

        def missed(rows_U: Tensor, step_U: Tensor) -> tuple[Tensor, Tensor]:
            late_U = step_U <= self.steps
            return tf.boolean_mask(rows_U, late_U), tf.boolean_mask(step_U, late_U)

        def step(rows_U: Tensor, step_U: Tensor) -> tuple[Tensor, Tensor]:
            zeros = tf.zeros([], self.variables[name].dtype)
            self._change_rows(name, rows_U, zeros, zeros, step_U)
            return missed(rows_U, step_U + 1)

        start = missed(rows_U, tf.gather(self._seen[name], rows_U) + 1)
        tf.while_loop(lambda rows_U, _: tf.size(rows_U) > 0, step, start)

    def _change_all(self, name: str, grad: Tensor, scale: Tensor, rate: Tensor | None) -> None:
        """One step of a whole variable.

        Its gradient is finished in one pass, and TensorFlow's own kernels, which every device has for these dtypes,
        change it and its slots in place: `_rule` goes over arrays as large ten times. They compute in the variable's
        precision, so that half precision is left to `_rule`.
        """
        settings, variable = self.settings, self.variables[name]
        held = [variable, *(slot[name] for slot in self.slots)]
        in_one_pass = partial(traced, jit_compile=variable.shape.num_elements() >= _LARGE)
        if variable.dtype not in (tf.float32, tf.float64):
            before = [tf.convert_to_tensor(each) for each in held]
            for old, new in zip(held, in_one_pass(self._rule)(before, grad, scale, self.steps, rate), strict=True):
                old.assign(new)
            return
        if settings.clip_norm or settings.weight_decay:
            grad = in_one_pass(self._finished)(grad, tf.convert_to_tensor(variable), tf.cast(scale, grad.dtype))
        var, *slots = (each.handle for each in held)
        lr = tf.constant(settings.learning_rate, grad.dtype) if rate is None else tf.cast(rate, grad.dtype)
        epsilon = tf.constant(settings.epsilon, grad.dtype)
        if settings.name == "adagrad":
            tf.raw_ops.ResourceApplyAdagradV2(var=var, accum=slots[0], lr=lr, epsilon=epsilon, grad=grad)
        elif settings.name == "adam":
            time, betas = tf.cast(self.steps, grad.dtype), (settings.beta1, settings.beta2)
            beta1, beta2 = (tf.constant(beta, grad.dtype) for beta in betas)
            beta1_power, beta2_power = tf.pow(beta1, time), tf.pow(beta2, time)
            # There epsilon is added before the correction of the second moment, here after it.
            tf.raw_ops.ResourceApplyAdam(
                var=var, m=slots[0], v=slots[1], beta1_power=beta1_power, beta2_power=beta2_power, lr=lr,
                beta1=beta1, beta2=beta2, epsilon=epsilon * tf.sqrt(1 - beta2_power), grad=grad,
            )  # fmt: skip
        else:
            tf.raw_ops.ResourceApplyGradientDescent(var=var, alpha=lr, delta=grad)

    def _change_rows(self, name: str, rows_U: Tensor, grad: Tensor, scale: Tensor, step_U: Tensor) -> None:
        """One step of some rows; `step_U` is the number of it."""
        held = [self.variables[name], *(slot[name] for slot in self.slots)]
        before = [tf.gather(variable, rows_U) for variable in held]
        step = tf.reshape(step_U, [-1, *[1] * (len(held[0].shape) - 1)])
        for variable, new in zip(held, self._rule(before, grad, scale, step), strict=True):
            variable.scatter_update(tf.IndexedSlices(new, rows_U))
        if name in self._seen:
            self._seen[name].scatter_update(tf.IndexedSlices(step_U, rows_U))

    def _finished(self, grad: Tensor, param: Tensor, scale: Tensor) -> Tensor:
        """A gradient, clipped and with weight decay."""
        return (grad * scale if self.settings.clip_norm else grad) + self.settings.weight_decay * param

    def _rule(
        self, held: list[Tensor], grad: Tensor, scale: Tensor, step: Tensor, rate: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """A parameter and its slots after a step, the number of which may be another for each row (U, 1).

        All is computed in float32 at least, then rounded to what is held: in bfloat16 Adam's beta2 would be 1.
        """
        settings, (param, *slots) = self.settings, [at_least_float32(each) for each in held]
        grad = self._finished(at_least_float32(grad), param, tf.cast(scale, param.dtype))
        if settings.name == "adagrad":
            slots = [slots[0] + grad * grad]
            change = grad / (tf.sqrt(slots[0]) + settings.epsilon)
        elif settings.name == "adam":
            first = settings.beta1 * slots[0] + (1 - settings.beta1) * grad
            second = settings.beta2 * slots[1] + (1 - settings.beta2) * grad * grad
            slots, time = [first, second], tf.cast(step, grad.dtype)
            first_hat = first / (1 - tf.pow(tf.constant(settings.beta1, grad.dtype), time))
            second_hat = second / (1 - tf.pow(tf.constant(settings.beta2, grad.dtype), time))
            change = first_hat / (tf.sqrt(second_hat) + settings.epsilon)
        else:
            change = grad
        new = param - (settings.learning_rate if rate is None else tf.cast(rate, change.dtype)) * change, *slots
        return tuple(tf.cast(value, old.dtype) for value, old in zip(new, held, strict=True))
