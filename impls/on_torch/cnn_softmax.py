"""CNN softmax in PyTorch. See `impls/on_numpy/cnn_softmax.py` for the definition."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from impls.on_numpy.cnn_softmax import WIDTHS, before, blocks
from impls.on_torch._layer import TORCH_DTYPES, OutputLayer, at_least_float32
from impls.spec import LayerSpec
from impls.structures.spelling import END, PADDING

_WIDEST = WIDTHS[-1]


class CnnSoftmax(OutputLayer):
    """log P(w | h) = log softmax(h (f P^T / sqrt 4F + r M^T / sqrt R)^T + b)[w], with f the pooled filters over the
    characters of every word.

    Parameters: `char_embedding` (A, E), `conv{k}_weight` (F, k, E) and `conv{k}_bias` (F,) for k = 1..4,
    `char_projection` (D, 4 F), `correction_weight` (V, R) and `correction_projection` (D, R) where there is a
    correction, `bias` (V,).

    Every call makes all word vectors, (V, 4 F) features and then (V, D), once. The windows of a block of words are held
    only while the block is under way, and made anew for the gradient: about 4 L (E + F) numbers a word of the block at
    a time, twice that in the backward pass.
    """

    characters: Tensor

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        dtype = TORCH_DTYPES[spec.dtype]
        for name, shape in spec.parameter_shapes().items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=dtype)))
        self.register_buffer("characters", torch.from_numpy(blocks(spec)), persistent=False)
        self._corrects = "correction_weight" in spec.parameter_shapes()

    def _features(self) -> Tensor:
        """(V, 4 F)"""
        small = self._filters()
        features = [
            checkpoint(self._features_of, characters_WL, *small, use_reentrant=False, preserve_rng_state=False)
            for characters_WL in self.characters
        ]
        return torch.cat(features)[: self.spec.vocab]  # type: ignore[arg-type]

    def _filters(self) -> tuple[Tensor, Tensor, Tensor]:
        """Embedding (1 + A, E) whose first row is padding, filters (4 F, 4 E) of one width by zeros, biases (4 F,)."""
        # Half precision is widened here, outside the blocks, so that the gradients of all blocks are summed in float32.
        embedding_AE = F.pad(at_least_float32(self.get_parameter("char_embedding")), (0, 0, 1, 0))
        weights = [F.pad(self._scaled(f"conv{k}_weight"), (0, 0, before(k), _WIDEST - k - before(k))) for k in WIDTHS]
        biases = [at_least_float32(self.get_parameter(f"conv{k}_bias")) for k in WIDTHS]
        return embedding_AE, torch.cat(weights).flatten(1), torch.cat(biases)

    def _scaled(self, name: str) -> Tensor:
        """A matrix over the square root of how many terms its products have, in float32 at least."""
        weight = at_least_float32(self.get_parameter(name))
        return weight / weight[0].numel() ** 0.5

    def _features_of(self, characters_WL: Tensor, embedding_AE: Tensor, weight_XY: Tensor, bias_X: Tensor) -> Tensor:
        """(W, X) of the words of one block. All widths are one product: filters short of the widest are filled up."""
        dtype = self.get_parameter("bias").dtype
        places = characters_WL.shape[1] - 2
        chars_WLE = F.pad(F.embedding(characters_WL, embedding_AE, padding_idx=PADDING), (0, 0, 0, 1))
        windows_WTY = torch.cat([chars_WLE[:, j : j + places] for j in range(_WIDEST)], dim=2)
        scores_WTX = F.linear(windows_WTY.to(dtype), weight_XY.to(dtype))
        scores_WTX = scores_WTX.masked_fill_((characters_WL[:, 1:-1] <= END)[:, :, None], float("-inf"))
        # A bias is the same at every place: it can wait until one is chosen.
        return F.relu(scores_WTX.max(dim=1).values + bias_X.to(dtype))

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        bias_V = self.get_parameter("bias")
        vectors_VD = F.linear(self._features(), self._scaled("char_projection").to(bias_V.dtype))
        if self._corrects:
            projection_DR = self._scaled("correction_projection").to(bias_V.dtype)
            vectors_VD = vectors_VD + F.linear(self.get_parameter("correction_weight"), projection_DR)
        return at_least_float32(F.linear(hidden_ND, vectors_VD, bias_V))

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return F.cross_entropy(self._logits(hidden_ND), targets_N, reduction="none")

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        return F.log_softmax(self._logits(hidden_ND), dim=1)


LAYER = CnnSoftmax
