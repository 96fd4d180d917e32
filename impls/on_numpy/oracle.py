"""Base class and numerically stable functions shared by the float64 definitions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.calls import ALL_WORDS, NUCLEUS, PLAIN, Objective, Sampling
from vocabench.impls.contract import Job, Layer
from vocabench.impls.spec import Arrays


def log_softmax(scores: NDArray) -> NDArray:
    """Compute the log softmax along the last axis, shifted by the maximum so that no exponential overflows."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def mean_nll(log_probs_NV: NDArray, targets_N: NDArray) -> tuple[float, NDArray]:
    """Return the mean of -log P(target) and its gradient with respect to the scores, (P - one_hot) / N."""
    rows = np.arange(len(targets_N))
    dscores_NV = np.exp(log_probs_NV)
    dscores_NV[rows, targets_N] -= 1
    return -float(log_probs_NV[rows, targets_N].mean()), dscores_NV / len(targets_N)


def shares(token_weight_N: NDArray | None, tokens: int) -> NDArray:
    """Return the share (N,) of each token in the mean: its weight over the sum of the weights, or 0 if that is 0."""
    weight_N = np.ones(tokens) if token_weight_N is None else token_weight_N
    scaled_N = weight_N / (weight_N.max() or 1.0)  # their sum neither overflows nor loses digits
    return scaled_N / (scaled_N.sum() or 1.0)


def sigmoid(scores: NDArray) -> NDArray:
    """Compute 1 / (1 + exp(-x)) without overflow for any x."""
    return 0.5 * (1 + np.tanh(0.5 * scores))


def log_sigmoid(scores: NDArray) -> NDArray:
    """Compute log(1 / (1 + exp(-x))), accurately in both tails."""
    return np.minimum(scores, 0) - np.log1p(np.exp(-np.abs(scores)))


def draw(probabilities_NV: NDArray, uniforms_N: NDArray) -> NDArray[np.int64]:
    """Draw a column (N,) for each row by inverting the cumulative distribution.

    The result is the first column whose cumulative probability exceeds the row's sum times its uniform number.
    """
    cumulative_NV = probabilities_NV.cumsum(axis=1)
    return (cumulative_NV > uniforms_N[:, None] * cumulative_NV[:, -1:]).argmax(axis=1)


def best(scores_NV: NDArray, k: int) -> tuple[NDArray, NDArray]:
    """Return the values and columns (N, K) of the k highest scores, or of all if there are fewer.

    Ties are broken in favour of the lower column.
    """
    k = min(k, scores_NV.shape[1])
    ids_NK = np.empty((len(scores_NV), k), np.int64)
    for ids_K, scores_V in zip(ids_NK, scores_NV, strict=True):
        kth = np.partition(scores_V, -k)[-k] if k else np.inf
        reaching_X = np.flatnonzero(~(scores_V < kth))  # sorting only these is faster; NaN is included
        ids_K[:] = reaching_X[np.argsort(-scores_V[reaching_X], kind="stable")[:k]]
    return np.take_along_axis(scores_NV, ids_NK, axis=1), ids_NK


class OracleLayer(Layer):
    """Layer in float64.

    The module of a method defines `_plain_loss_and_grads` and `_plain_log_probs`. It also defines `_target_log_probs`
    if the probability of a target does not need the whole distribution, and `_beam` and `_draw` if there are several
    levels. A method with one softmax over the vocabulary derives from `SoftmaxLayer` instead.
    """

    @cached_property
    def params(self) -> Arrays:
        """The current parameters, which are the initial ones until others are loaded."""
        drawn = self.spec.initial_parameters()
        return {name: value.astype(np.float64, copy=False) for name, value in drawn.items()}

    def parameters(self) -> Arrays:
        return {name: value.copy() for name, value in self.params.items()}

    def _load(self, params: Arrays) -> None:
        self.params = {name: value.astype(np.float64) for name, value in params.items()}

    def share(self, params: Arrays) -> None:
        """Share the arrays `output.<name>` of a model, which its optimizer updates in place."""
        output = {name: value for name, value in params.items() if name.startswith("output.")}
        self.params = {name.removeprefix("output."): value for name, value in output.items()}

    def _bias(self, name: str = "bias") -> NDArray:
        """Return a bias, or zeros for a layer without biases."""
        if name in self.params:
            return self.params[name]
        return np.zeros(self.spec.definition.shapes(self.spec)[name])

    @abstractmethod
    def _plain_loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        """Return the mean loss of the definition, with gradients written by hand.

        The gradients are those with respect to the hidden vectors (N, D) and to each parameter, by name.
        """

    def kinks(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        rounding: float,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
    ) -> tuple[NDArray, Arrays]:
        """Return how far the gradients of the loss may be off because of its kinks.

        The gradient of a rectifier or a maximum jumps where its argument is zero or two of its arguments are equal.
        Next to such a kink, rounding decides on which side of it an implementation is.

        Args:
            rounding: Relative rounding error of an argument: the kinks that count are at most this times the largest
                argument away.

        Returns:
            The bounds of the gradients with respect to the hidden vectors (N, D), and of those with respect to each
            parameter that is below a kink.
        """
        if objective is PLAIN and token_weight_N is None:
            return self._plain_kinks(hidden_ND, targets_N, rounding)
        bound_ND, bounds = np.zeros(hidden_ND.shape), {}
        for row, share, hidden_XD, targets_X in self._parts(hidden_ND, targets_N, objective, token_weight_N):
            part_XD, parts = self._plain_kinks(hidden_XD, targets_X, rounding)
            bound_ND[row] += share * part_XD.sum(axis=0)
            for name, part in parts.items():
                bounds[name] = bounds.get(name, 0.0) + share * part
        return bound_ND, bounds

    def _plain_kinks(self, hidden_ND: NDArray, targets_N: NDArray, rounding: float) -> tuple[NDArray, Arrays]:
        """Return the result of `kinks` for the mean loss of the definition."""
        return np.zeros(hidden_ND.shape), {}

    def _loss_and_grads(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
        **extra: NDArray,
    ) -> tuple[float, NDArray, Arrays]:
        """Return the loss with its gradients, as a weighted sum of plain losses.

        The cross-entropy of a token with the uniform distribution is its mean plain loss over all words as targets.
        """
        if objective is PLAIN and token_weight_N is None:
            return self._plain_loss_and_grads(hidden_ND, targets_N, **extra)
        loss, dhidden_ND = 0.0, np.zeros(hidden_ND.shape)
        grads = {name: np.zeros_like(value) for name, value in self.params.items()}
        for row, share, hidden_XD, targets_X in self._parts(hidden_ND, targets_N, objective, token_weight_N):
            part, dpart_XD, part_grads = self._plain_loss_and_grads(hidden_XD, targets_X, **self._extra_of(row, extra))
            loss += share * part
            dhidden_ND[row] += share * dpart_XD.sum(axis=0)
            for name, grad in part_grads.items():
                grads[name] += share * grad
        return loss, dhidden_ND, grads

    def _parts(
        self, hidden_ND: NDArray, targets_N: NDArray, objective: Objective, token_weight_N: NDArray | None
    ) -> Iterator[tuple[int, float, NDArray, NDArray]]:
        """Yield the plain losses of which an objective is the sum: token, share, hidden vectors and targets."""
        smoothing, words_V = objective.label_smoothing, np.arange(self.spec.vocab)
        for row, weight in enumerate(shares(token_weight_N, len(targets_N)).tolist()):
            hidden_1D = hidden_ND[row : row + 1]
            yield row, weight * (1 - smoothing), hidden_1D, targets_N[row : row + 1]
            if smoothing:
                yield row, weight * smoothing, np.repeat(hidden_1D, len(words_V), axis=0), words_V

    def _extra_of(self, row: int, extra: Arrays) -> Arrays:
        """Return the random inputs of the loss of one token of a batch."""
        inputs, options = self.spec.definition.extra, self.spec.options
        return {
            name: value[row : row + 1] if inputs[name].for_each_token(options) else value
            for name, value in extra.items()
        }

    def _loss(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
        **extra: NDArray,
    ) -> float:
        return self._loss_and_grads(hidden_ND, targets_N, objective, token_weight_N, **extra)[0]

    @abstractmethod
    def _plain_log_probs(self, hidden_ND: NDArray) -> NDArray:
        """Return the (N, V) log-probabilities of the definition."""

    def _log_probs(self, hidden_ND: NDArray, softcap: float | None = None) -> NDArray:
        return self._plain_log_probs(hidden_ND)

    def _target_log_probs(self, hidden_ND: NDArray, targets_N: NDArray) -> NDArray:
        return self._log_probs(hidden_ND)[np.arange(len(targets_N)), targets_N]

    def _topk(self, hidden_ND: NDArray, k: int) -> tuple[NDArray, NDArray]:
        return best(self._log_probs(hidden_ND), k)

    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        return self._topk(hidden_ND, k)

    def _entropy(self, hidden_ND: NDArray) -> NDArray:
        log_probs_NV = self._log_probs(hidden_ND)
        return -(np.exp(log_probs_NV) * log_probs_NV).sum(axis=1)

    def _sample(self, hidden_ND: NDArray, uniforms_NU: NDArray, sampling: Sampling = ALL_WORDS) -> NDArray:
        if sampling is ALL_WORDS:
            return self._draw(hidden_ND, uniforms_NU)
        log_probs_NV = self._log_probs(hidden_ND)
        below_NV = log_probs_NV - log_probs_NV.max(axis=1, keepdims=True)
        with np.errstate(over="ignore"):  # a tiny temperature leaves only the likeliest words
            log_probs_NV = log_softmax(below_NV / sampling.temperature)
        if sampling.top_k is None and sampling.top_p is None:
            return draw(np.exp(log_probs_NV), uniforms_NU[:, 0])
        values_NK, ids_NK = best(log_probs_NV, sampling.top_k or self.spec.vocab)
        kept_NK = np.exp(log_softmax(values_NK))
        if sampling.top_p is not None:
            before_NK = kept_NK.cumsum(axis=1) - kept_NK
            kept_NK = np.where(before_NK < sampling.top_p, kept_NK, 0)
        return np.take_along_axis(ids_NK, draw(kept_NK, uniforms_NU[:, 0])[:, None], axis=1)[:, 0]

    def _draw(self, hidden_ND: NDArray, uniforms_NU: NDArray) -> NDArray:
        """Draw a word (N,) from the whole distribution."""
        return draw(np.exp(self._log_probs(hidden_ND)), uniforms_NU[:, 0])

    def _prepare(self, job: Job) -> Callable[[], object]:
        from vocabench.impls.on_numpy.optimizers import Updates

        hidden_ND = job.hidden_ND.astype(np.float64)
        calls: dict[str, Callable[[], object]] = {
            "layer": lambda: self._plain_loss_and_grads(hidden_ND, job.targets_N, **job.extra),
            "score": lambda: self._target_log_probs(hidden_ND, job.targets_N),
            "entropy": lambda: self._entropy(hidden_ND),
            "topk": lambda: self._topk(hidden_ND, job.k),
            "beam": lambda: self._beam(hidden_ND, job.k, job.width),
            "sample": lambda: self._sample(hidden_ND, job.uniforms_NU),
            "nucleus_sample": lambda: self._sample(hidden_ND, job.uniforms_NU, NUCLEUS),
            "log_probs": lambda: self._log_probs(hidden_ND),
        }
        if job.work != "layer_step":
            return calls[job.work]
        updates = Updates(job.optimizer, self.params)
        return lambda: updates.apply(self.params, self._plain_loss_and_grads(hidden_ND, job.targets_N, **job.extra)[2])


class SoftmaxLayer(OracleLayer):
    """Layer with one softmax over the vocabulary, whose module defines logits and how their gradients flow back."""

    @abstractmethod
    def _logits(self, hidden_ND: NDArray) -> NDArray:
        """Return the (N, V) logits in float64."""

    @abstractmethod
    def _back(self, hidden_ND: NDArray, dlogits_NV: NDArray) -> tuple[NDArray, Arrays]:
        """Return the gradients with respect to the hidden vectors (N, D) and each parameter from that of the logits.

        The gradient of a bias that the layer does not have is left out afterwards.
        """

    def _plain_log_probs(self, hidden_ND: NDArray) -> NDArray:
        return log_softmax(self._logits(hidden_ND))

    def _log_probs(self, hidden_ND: NDArray, softcap: float | None = None) -> NDArray:
        return log_softmax(capped(self._logits(hidden_ND), softcap))

    def _plain_loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        return self._loss_and_grads(hidden_ND, targets_N)

    def _loss_and_grads(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
        **extra: NDArray,
    ) -> tuple[float, NDArray, Arrays]:
        """Return the loss with its gradients.

        With capped logits z, probabilities p and the target distribution q, a token has the loss
        -sum q log p + z_loss (log sum e^z)^2, whose gradient with respect to z is (1 + 2 z_loss log sum e^z) p - q.
        """
        loss, dlogits_NV = self._loss_and_dlogits(hidden_ND, targets_N, objective, token_weight_N)
        dhidden_ND, grads = self._back(hidden_ND.astype(np.float64), dlogits_NV)
        return loss, dhidden_ND, {name: grads[name] for name in self.params}

    def _loss_and_dlogits(
        self, hidden_ND: NDArray, targets_N: NDArray, objective: Objective, token_weight_N: NDArray | None
    ) -> tuple[float, NDArray]:
        smoothing, z_loss, softcap = objective
        logits_NV = capped(self._logits(hidden_ND), softcap)
        log_probs_NV = log_softmax(logits_NV)
        log_sum_N = (logits_NV - log_probs_NV)[:, 0]
        share_N = shares(token_weight_N, len(targets_N))
        target_NV = np.full(logits_NV.shape, smoothing / self.spec.vocab)
        target_NV[np.arange(len(targets_N)), targets_N] += 1 - smoothing
        losses_N = z_loss * log_sum_N**2 - (target_NV * log_probs_NV).sum(axis=1)
        factor_N = 1 + 2 * z_loss * log_sum_N
        dlogits_NV = share_N[:, None] * (factor_N[:, None] * np.exp(log_probs_NV) - target_NV)
        if softcap is not None:
            dlogits_NV *= 1 - (logits_NV / softcap) ** 2  # the derivative of tanh, from its value
        return float(share_N @ losses_N), dlogits_NV


def capped(logits_NV: NDArray, softcap: float | None) -> NDArray:
    return logits_NV if softcap is None else softcap * np.tanh(logits_NV / softcap)
