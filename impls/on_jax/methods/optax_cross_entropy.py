"""Optax's cross-entropy of logits in JAX. See `impls/on_numpy/methods/optax_cross_entropy.py`."""

from __future__ import annotations

from vocabench.impls import peer_packages
from vocabench.impls.on_jax.methods.full_softmax import FullSoftmax
from vocabench.impls.on_jax.ops.arrays import Array, Tree
from vocabench.impls.spec import LayerSpec

_PACKAGE = "optax"


class OptaxCrossEntropy(FullSoftmax):
    """`optax.softmax_cross_entropy_with_integer_labels` of the logits.

    Parameters: `weight` (V, D) and `bias` (V,), as in full softmax.

    Raises:
        Unsupported: Optax is not installed.
    """

    def __init__(self, spec: LayerSpec) -> None:
        peer_packages.require(spec.method, _PACKAGE, install=_PACKAGE)
        super().__init__(spec)

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        import optax

        return optax.softmax_cross_entropy_with_integer_labels(self._logits(params, structure, hidden_ND), targets_N)

    def formulation(self) -> str:
        return peer_packages.versioned(_PACKAGE)


LAYER = OptaxCrossEntropy
