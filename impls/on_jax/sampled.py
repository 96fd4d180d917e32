"""The base of the losses over sampled words in JAX. See `impls/on_numpy/sampled.py` for the definition."""

from __future__ import annotations

from abc import abstractmethod

import jax
import jax.numpy as jnp

from vocabench.impls.on_jax.device import put
from vocabench.impls.on_jax.hooks import Reach
from vocabench.impls.on_jax.methods.full_softmax import FullSoftmax
from vocabench.impls.on_jax.ops.arrays import Array, Tree, plus_bias, product, wide
from vocabench.impls.on_jax.ops.sparse_rows import distinct
from vocabench.impls.on_numpy import sampled


@jax.custom_jvp
def _rows(parameter: Array, ids_R: Array) -> Array:
    """Return rows of a parameter, which may repeat, in at least float32."""
    return parameter[ids_R].astype(wide(parameter.dtype))


@_rows.defjvp
def _rows_derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """Widen the parameter before its rows are selected: in reverse mode, sums of gradients are rounded only once."""
    (parameter, ids_R), (dparameter, _) = primals, tangents
    return _rows(parameter, ids_R), dparameter.astype(wide(parameter.dtype))[ids_R]


class SampledLayer(FullSoftmax):
    """A layer with full softmax's parameters, trained on the target and sampled words.

    The loss takes the sampled words, and optionally a correction for this batch: `layer.loss(params, structure,
    hidden_ND, targets_N, sampled_ids=ids_S, correction=correction_V)`. Where each token has sampled words of its own,
    these are `ids_NS`.

    Parameters: `weight` (V, D), `bias` (V,), and `log_normaliser` (1,) if it is learned. Structure: `correction` (V,),
    which is subtracted from each word's score.
    """

    @property
    def FEW_ROWS(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("weight", "bias") if self.spec.has_bias else ("weight",)

    def placement(self) -> Tree:
        correction_V = put(self.spec.structure["correction"], wide(jnp.dtype(self.spec.storage)))
        return {"correction": correction_V}

    @abstractmethod
    def contrast(self, target_N: Array, sampled_NS: Array) -> Array:
        """Return (N,) losses from the corrected scores of targets and sampled words. Excluded words have -inf."""

    def _losses(  # type: ignore[override]
        self,
        params: Tree,
        structure: Tree,
        hidden_ND: Array,
        targets_N: Array,
        *,
        sampled_ids: Array,
        correction: Array | None = None,
    ) -> Array:
        ids_R, tokens = jnp.concatenate([targets_N, sampled_ids.ravel()]), targets_N.shape[0]
        rows_RD, kind = _rows(params["weight"], ids_R), params["weight"].dtype
        correction_V = structure["correction"] if correction is None else correction
        correction_R = correction_V[ids_R].astype(wide(kind))
        offset_R = -correction_R - params.get("log_normaliser", 0)
        if "bias" in params:
            offset_R = _rows(params["bias"], ids_R) + offset_R
        cast_ND = hidden_ND.astype(kind)
        target_N = (cast_ND * rows_RD[:tokens]).sum(axis=1) + offset_R[:tokens]
        if sampled_ids.ndim == 1:
            sampled_NS = plus_bias(product(cast_ND, rows_RD[tokens:].astype(kind)), offset_R[tokens:])
        else:
            rows_NSD = rows_RD[tokens:].reshape(*sampled_ids.shape, self.spec.dim)
            product_NS = jnp.einsum("nd,nsd->ns", cast_ND.astype(wide(kind)), rows_NSD)
            sampled_NS = product_NS + offset_R[tokens:].reshape(sampled_ids.shape)
        if self.spec.options["remove_hits"]:
            sampled_NS = jnp.where(targets_N[:, None] == sampled_ids, -jnp.inf, sampled_NS)
        return self.contrast(target_N, sampled_NS)

    def reach(  # type: ignore[override]
        self, structure: Tree, targets_N: Array, *, sampled_ids: Array, correction: Array | None = None
    ) -> Reach:
        correction_V = structure["correction"] if correction is None else correction
        ids_R, tokens, vocab = jnp.concatenate([targets_N, sampled_ids.ravel()]), targets_N.shape[0], self.spec.vocab
        rows_U, place_R = distinct(ids_R, vocab, min(ids_R.shape[0], vocab))
        small = {"correction": correction_V.at[rows_U].get(mode="clip")}
        rows = {name: rows_U for name in self.FEW_ROWS}
        return Reach(rows, small, place_R[:tokens], {"sampled_ids": place_R[tokens:].reshape(sampled_ids.shape)})

    def formulation(self) -> str:
        return f"rows of the targets and of {sampled.described(self.spec)}"
