"""Keras layers to lift into a TensorFlow model.

```python
import vocabench.tensorflow

layer = vocabench.tensorflow.layer("huffman", counts=counts, dim=512)  # a keras.layers.Layer
loss = layer(hidden, targets)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from vocabench.harness import layers, registry
from vocabench.impls.on_tensorflow.native import layer_class, native
from vocabench.impls.on_tensorflow.ops.tensors import portable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from vocabench.impls.on_tensorflow.layer import OutputLayer

__all__ = ["layer", "portable"]

for _method in registry.methods("tensorflow"):
    layer_class(_method)  # registers the class, so that Keras can load a model with a layer of the method


def layer(
    method: str,
    *,
    counts: ArrayLike | None = None,
    dim: int,
    vocab: int | None = None,
    seed: int = 0,
    dtype: tf.DType | str | None = None,
    device: str | None = None,
    **options: object,
) -> OutputLayer:
    """Create a method's Keras layer with its initial weights.

    Args:
        method: One of `vocabench.methods("tensorflow")`.
        counts: (V,) integers: how often each word id occurs in the training text. Some methods do not need them.
        dim: Width D of the hidden vectors.
        vocab: Size of the vocabulary, instead of `counts`, for methods that do not need them.
        seed: Seed of the initial parameters and of random structure.
        dtype: Precision of the weights: "float32", "float64" or "bfloat16"; Keras' default float type if None.
        device: Where the weights are placed, such as "/GPU:0"; TensorFlow's choice if None.
        **options: Options of the method. `docs/methods/` describes them.

    Raises:
        ValueError: An argument is invalid. The message names it, its value and what is allowed.
    """
    kind = tf.keras.backend.floatx() if dtype is None else tf.as_dtype(dtype).name
    spec = layers.spec(method, counts=counts, dim=dim, vocab=vocab, seed=seed, dtype=kind, **options)
    with tf.device(device):
        return native(spec)
