"""The optimizers over variables. `impls/on_numpy/optimizers.py` has the same formulas in NumPy.

Keras's optimizers interpret epsilon and weight decay differently.

If a batch reads few rows of a variable, a step can change only these rows, with the same result as a step over all of
them. The steps that a row has missed, with a gradient of zero, change nothing with Adagrad or plain SGD without weight
decay. With other optimizers they are made up before the row is read: the arithmetic of the dense step, done later.

Shape letters in addition to those of `impls/spec.py`: U rows of a variable, without duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from vocabench.impls.errors import BadInput
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, at_least_float32, traced
from vocabench.impls.optimizers import Optimizer, check_rate
from vocabench.impls.structures import clusters

Variables = Mapping[str, tf.Variable]

_LARGE = 2**20  # elements of a variable from which on XLA saves more time than it takes to compile


class Updates:
    """State of one optimizer over named variables.

    `minimize`, `read` and `apply` are traced into the step that calls them.

    Args:
        settings: Settings of the optimizer.
        variables: The variables that it trains.
        few_rows: Names of the variables that are updated by rows.
    """

    def __init__(self, settings: Optimizer, variables: Variables, few_rows: Iterable[str] = ()) -> None:
        self.settings = settings
        self.variables = dict(variables)
        self.slots = [
            {name: tf.Variable(self._start(variable), trainable=False) for name, variable in variables.items()}
            for _ in range(settings.slots)
        ]
        self.steps = tf.Variable(tf.zeros([], tf.int64), trainable=False)
        self._by_rows = tuple(few_rows)
        # (V,) the last step that updated each row, for optimizers with which missed steps change a row.
        missing = () if settings.idle_without_gradient else self._by_rows
        self._seen = {
            name: tf.Variable(tf.zeros(self.variables[name].shape[:1], tf.int64), trainable=False) for name in missing
        }

    def _start(self, variable: tf.Variable) -> Tensor:
        """Return the initial value of the slots of a variable."""
        start = self.settings.initial_accumulator if self.settings.name == "adagrad" else 0.0
        return tf.fill(variable.shape, tf.constant(start, variable.dtype))

    def reset(self) -> None:
        """Return to the state before the first step, without a new trace."""
        for slot in self.slots:
            for variable in slot.values():
                variable.assign(self._start(variable))
        for seen_V in self._seen.values():
            seen_V.assign(tf.zeros_like(seen_V))
        self.steps.assign(0)

    def minimize(self, loss_of: Callable[[], Tensor], rate: Tensor | None = None) -> Tensor:
        """Take one step down the gradient of a loss and return the loss before it. `rate` is an argument of `apply`."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in self.variables.values():
                tape.watch(variable)
            loss = loss_of()
        grads = tape.gradient(loss, self.variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        self.apply({name: tf.convert_to_tensor(grad) for name, grad in grads.items()}, rate)
        return loss

    def read(self, rows: Tensors) -> Tensors:
        """Return tables (U, ...) of rows (U,) of variables, after making up the steps that the rows have missed."""
        for name, rows_U in rows.items():
            self._make_up(name, rows_U)
        return {name: tf.gather(self.variables[name], rows_U) for name, rows_U in rows.items()}

    def apply(
        self, grads: Mapping[str, Tensor], rate: Tensor | None = None, rows: Mapping[str, Tensor] | None = None
    ) -> None:
        """Take one step: clip by the global norm, add weight decay, and update the variables.

        Args:
            grads: Gradients by variable name.
            rate: Scalar learning rate; by default the one of the settings.
            rows: Row numbers (U,) by variable name. The gradient of such a variable has these rows, and no other row
                is changed.

        Raises:
            BadInput: Both `rate` and `rows` are given.
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
        """Make up all missed steps, as is necessary before variables are read whole."""
        for name, seen_V in self._seen.items():
            self._make_up(name, tf.range(tf.size(seen_V)))
        for name in self._by_rows:
            for variable in (self.variables[name], *(slot[name] for slot in self.slots)):
                # After rows of a variable were written, TensorFlow copies it for each reader of the whole.
                tf.raw_ops.DisableCopyOnRead(resource=variable.handle)

    def _make_up(self, name: str, rows_U: Tensor) -> None:
        """Take the steps that rows have missed."""
        if name not in self._seen:
            return

        def missed(rows_U: Tensor, step_U: Tensor) -> tuple[Tensor, Tensor]:
            behind_U = step_U <= self.steps
            return tf.boolean_mask(rows_U, behind_U), tf.boolean_mask(step_U, behind_U)

        def step(rows_U: Tensor, step_U: Tensor) -> tuple[Tensor, Tensor]:
            zeros = tf.zeros([], self.variables[name].dtype)
            self._change_rows(name, rows_U, zeros, zeros, step_U)
            return missed(rows_U, step_U + 1)

        start = missed(rows_U, tf.gather(self._seen[name], rows_U) + 1)
        tf.while_loop(lambda rows_U, _: tf.size(rows_U) > 0, step, start)

    def _change_all(self, name: str, grad: Tensor, scale: Tensor, rate: Tensor | None) -> None:
        """Take one step of a whole variable.

        In float32 and float64, the gradient is finished in one pass, and TensorFlow's own kernels update the variable
        and its slots in place, while `_rule` passes over such arrays ten times. The kernels compute in the precision of
        the variable, so half precision uses `_rule`.
        """
        settings, variable, decay = self.settings, self.variables[name], self.settings.decay_of(name)
        state = [variable, *(slot[name] for slot in self.slots)]
        in_one_pass = partial(traced, jit_compile=variable.shape.num_elements() >= _LARGE)
        if variable.dtype not in (tf.float32, tf.float64):
            before = [tf.convert_to_tensor(value) for value in state]
            after = in_one_pass(self._rule)(before, grad, scale, decay, self.steps, rate)
            for old, new in zip(state, after, strict=True):
                old.assign(new)
            return
        if settings.clip_norm or decay:
            grad = in_one_pass(self._finished)(grad, tf.convert_to_tensor(variable), tf.cast(scale, grad.dtype), decay)
        var, *slots = (value.handle for value in state)
        lr = tf.constant(settings.learning_rate, grad.dtype) if rate is None else tf.cast(rate, grad.dtype)
        epsilon = tf.constant(settings.epsilon, grad.dtype)
        if settings.name == "adagrad":
            tf.raw_ops.ResourceApplyAdagradV2(var=var, accum=slots[0], lr=lr, epsilon=epsilon, grad=grad)
        elif settings.name == "adam":
            time, betas = tf.cast(self.steps, grad.dtype), (settings.beta1, settings.beta2)
            beta1, beta2 = (tf.constant(beta, grad.dtype) for beta in betas)
            beta1_power, beta2_power = tf.pow(beta1, time), tf.pow(beta2, time)
            # The kernel adds epsilon before the correction of the second moment, and the definition after it.
            tf.raw_ops.ResourceApplyAdam(
                var=var, m=slots[0], v=slots[1], beta1_power=beta1_power, beta2_power=beta2_power, lr=lr,
                beta1=beta1, beta2=beta2, epsilon=epsilon * tf.sqrt(1 - beta2_power), grad=grad,
            )  # fmt: skip
        else:
            tf.raw_ops.ResourceApplyGradientDescent(var=var, alpha=lr, delta=grad)

    def _change_rows(self, name: str, rows_U: Tensor, grad: Tensor, scale: Tensor, step_U: Tensor) -> None:
        """Take one step, number `step_U`, of rows of a variable."""
        state = [self.variables[name], *(slot[name] for slot in self.slots)]
        before = [tf.gather(variable, rows_U) for variable in state]
        step = tf.reshape(step_U, [-1, *[1] * (len(state[0].shape) - 1)])
        after = self._rule(before, grad, scale, self.settings.decay_of(name), step)
        for variable, new in zip(state, after, strict=True):
            variable.scatter_update(tf.IndexedSlices(new, rows_U))
        if name in self._seen:
            self._seen[name].scatter_update(tf.IndexedSlices(step_U, rows_U))

    def _finished(self, grad: Tensor, param: Tensor, scale: Tensor, decay: float) -> Tensor:
        """Return the gradient, clipped and with weight decay."""
        return (grad * scale if self.settings.clip_norm else grad) + decay * param

    def _rule(
        self,
        state: list[Tensor],
        grad: Tensor,
        scale: Tensor,
        decay: float,
        step: Tensor,
        rate: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return a parameter and its slots after a step, whose number may differ from row to row (U, 1).

        The computation is in at least float32, and the results are rounded to the dtypes of the state: in bfloat16,
        Adam's beta2 would be 1.
        """
        settings, (param, *slots) = self.settings, [at_least_float32(value) for value in state]
        grad = self._finished(at_least_float32(grad), param, tf.cast(scale, param.dtype), decay)
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
        return tuple(tf.cast(value, old.dtype) for value, old in zip(new, state, strict=True))


def state_of(optimizer: keras.optimizers.Optimizer | Updates, weight: keras.Variable) -> list[tf.Variable]:
    """Return the variables of an optimizer that belong to a weight and have its shape, such as Adam's moments.

    Raises:
        BadInput: `optimizer` is no Keras optimizer, or has state that cannot move with the weight's words.
    """
    if isinstance(optimizer, Updates):
        names = [name for name, variable in optimizer.variables.items() if variable is weight.value]
        return [slot[name] for slot in optimizer.slots for name in names]
    inner: Any = getattr(optimizer, "inner_optimizer", optimizer)  # of a `LossScaleOptimizer`
    if not isinstance(inner, keras.optimizers.Optimizer):
        raise BadInput(f"optimizer is a {type(optimizer).__name__}: allowed: a Keras optimizer, or None")
    trained = inner._trainable_variables
    place = next((index for index, variable in enumerate(trained) if variable is weight), None)
    if place is None:
        return []
    # Keras keeps a list for each kind of state, in the order of the trained variables.
    lists = [kept for kept in vars(inner).values() if isinstance(kept, list) and len(kept) == len(trained)]
    states = [kept[place] for kept in lists if kept is not trained]
    return [
        state.value
        for state in states
        if isinstance(state, keras.Variable)
        and state is not weight
        and clusters.moves_along(weight.name, state.shape, weight.shape)
    ]
