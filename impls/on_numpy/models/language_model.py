"""The LSTM language model of SOHSM section 4.2 in float64, which defines the frameworks' models.

Back-propagation is written by hand.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.models.language_model import LanguageModel, LanguageModelConfig
from vocabench.impls.on_numpy.methods import sohsm
from vocabench.impls.on_numpy.models import _lstm
from vocabench.impls.on_numpy.models._network import InFloat64
from vocabench.impls.on_numpy.optimizers import Updates
from vocabench.impls.on_numpy.oracle import OracleLayer
from vocabench.impls.spec import Arrays, LayerSpec
from vocabench.impls.structures import clusters
from vocabench.impls.structures.statistics import StatisticsWeights


class NumpyLanguageModel(InFloat64[LanguageModelConfig], LanguageModel):
    """LSTM language model in float64."""

    def __init__(self, spec: LayerSpec, config: LanguageModelConfig, layer: OracleLayer) -> None:
        super().__init__(spec, config, layer)
        self.reorganizations = 0
        if isinstance(layer, sohsm.SelfOrganizedHierarchicalSoftmax):
            self.weights = StatisticsWeights(spec.counts, str(spec.options["smoothing"]))
            self.statistics_VC = np.zeros((spec.vocab, layer.clusters))

    def _begin(self) -> None:
        self.updates = Updates(self.config.optimizer, self.params)
        self.train_state = self.eval_state = None
        self.decode_state: _lstm.State | None = None

    def step(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> float:
        hidden_NH, state, tape = self._forward(inputs_BT, self.train_state if carry else None)
        self.train_state = state
        targets_N = targets_BT.ravel().astype(np.int64)
        if isinstance(self.layer, sohsm.SelfOrganizedHierarchicalSoftmax):
            self._observe(self.layer.cluster_log_probs(hidden_NH), targets_N)
        extra = self.next_extra(inputs_BT.size, inputs_BT.ravel())
        loss, dhidden_NH, output_grads = self.layer._plain_loss_and_grads(hidden_NH, targets_N, **extra)
        grads = self._backward(inputs_BT, tape, dhidden_NH)
        grads |= {f"output.{name}": grad for name, grad in output_grads.items()}
        self.updates.apply(self.params, grads)
        return loss

    def nll_parts(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> tuple[NDArray, ...]:
        hidden_NH, self.eval_state, _ = self._forward(inputs_BT, self.eval_state if carry else None)
        targets_N = targets_BT.ravel().astype(np.int64)
        nll_N = -self.layer._target_log_probs(hidden_NH, targets_N)
        if not isinstance(self.layer, sohsm.SelfOrganizedHierarchicalSoftmax):
            return (nll_N,)
        cluster_N = self.layer.cluster_V[targets_N]
        cluster_nll_N = -self.layer.cluster_log_probs(hidden_NH)[np.arange(len(targets_N)), cluster_N]
        return cluster_nll_N, nll_N - cluster_nll_N

    def hidden(self, inputs_BT: NDArray) -> NDArray:
        return self._forward(inputs_BT, None)[0]

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        return self._next_words(prompts_BT, None, k)

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.decode_state is not None
        h_BH, c_BH = self.decode_state
        return self._next_words(ids_R[:, None], (h_BH[rows_R], c_BH[rows_R]), k)

    def _next_words(self, inputs_BT: NDArray, state: _lstm.State | None, k: int) -> tuple[NDArray, NDArray]:
        _, self.decode_state, _ = self._forward(inputs_BT, state)
        return self.layer._topk(self.decode_state[0], k)  # the output of the LSTM is its hidden state

    def reorganize(self) -> tuple[NDArray, NDArray] | None:
        if not isinstance(self.layer, sohsm.SelfOrganizedHierarchicalSoftmax):
            return None
        self.reorganizations += 1
        rng = np.random.default_rng([self.config.seed, 3, self.reorganizations])
        before = self.layer.cluster_V
        bounds = sohsm.limits(self.spec.counts, self.spec.options)
        self.layer.cluster_V = clusters.organize(self.statistics_VC, self.spec.counts, bounds, rng)
        return before, self.layer.cluster_V  # words stay in vocabulary order, so nothing is moved

    def synchronize(self) -> None:
        pass

    def _observe(self, log_cluster_NC: NDArray, targets_N: NDArray) -> None:
        weights = self.weights.batch(targets_N)
        sums_NC = np.zeros_like(log_cluster_NC)
        np.add.at(sums_NC, weights.segment, log_cluster_NC / np.log(2))
        real = weights.words < self.spec.vocab
        words = weights.words[real]
        kept = weights.keep[real, None] * self.statistics_VC[words]
        self.statistics_VC[words] = kept + weights.share[real, None] * sums_NC[real]

    def _forward(self, inputs_BT: NDArray, state: _lstm.State | None) -> tuple[NDArray, _lstm.State, _lstm.Tape]:
        outputs_BTH, final, tape = _lstm.forward(self.params, "lstm", self.params["embedding"][inputs_BT], state)
        return outputs_BTH.reshape(-1, self.config.hidden), final, tape

    def _backward(self, inputs_BT: NDArray, tape: _lstm.Tape, dhidden_NH: NDArray) -> Arrays:
        doutputs_BTH = dhidden_NH.reshape(*inputs_BT.shape, -1)
        grads, dvectors_BTE, _ = _lstm.backward(self.params, "lstm", tape, doutputs_BTH)
        grads["embedding"] = np.zeros_like(self.params["embedding"])
        np.add.at(grads["embedding"], inputs_BT, dvectors_BTE)
        return grads


NETWORK = NumpyLanguageModel
