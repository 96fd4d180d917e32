"""Word vectors by gensim and fastText, trained on the same tokens for comparison.

Both are trained with the settings of the cell: objective, window, epochs, rates, sub-sampling and threads. Their own
vocabularies hold the same words as the corpus, whose ids stand for the words. fastText learns no vectors of character
n-grams here.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.shared import packages
from vocabench.impls.errors import BadInput
from vocabench.impls.scratch import scratch

_SENTENCE = 10_000  # words; gensim cuts longer sentences
_KEEP_ALL = 1.0  # threshold of fastText's sub-sampling at which it drops no word


@dataclass(frozen=True)
class Peer:
    """A library that trains word vectors, with one of its two losses.

    Attributes:
        library: Name under which it is imported.
        package: Name under which pip installs it.
        tree: Whether the loss is that of a Huffman tree, instead of negative sampling.
    """

    library: str
    package: str
    tree: bool


@dataclass(frozen=True)
class Learned:
    """Word vectors (V, D), zero for words that the library has left out, and the seconds of training."""

    vectors_VD: NDArray[np.float32]
    seconds: float
    version: str


PEERS = {
    "gensim_negative_sampling": Peer("gensim", "gensim", tree=False),
    "gensim_huffman": Peer("gensim", "gensim", tree=True),
    "fasttext_negative_sampling": Peer("fasttext", "fasttext-wheel", tree=False),
    "fasttext_huffman": Peer("fasttext", "fasttext-wheel", tree=True),
}


def learn(
    peer: Peer, ids_T: NDArray[np.integer], vocab: int, dim: int, settings: Mapping[str, Any], seed: int
) -> Learned:
    """Train word vectors on `ids_T`.

    Raises:
        BadInput: The library has no such objective.
        Unsupported: The library is not installed.
    """
    if settings["objective"] not in ("cbow", "skip_gram"):
        raise BadInput(f"objective={settings['objective']} with {peer.library}: allowed: cbow, skip_gram")
    packages.require(f"method {peer.library}", {peer.library: peer.package})
    names = [str(number) for number in range(vocab)]
    words = list(map(names.__getitem__, ids_T.tolist()))
    sentences = [words[start : start + _SENTENCE] for start in range(0, len(words), _SENTENCE)]
    train = {"gensim": _by_gensim, "fasttext": _by_fasttext}[peer.library]
    seconds, vector_of = train(sentences, dim, settings, peer.tree, seed)
    vectors_VD = np.zeros((vocab, dim), np.float32)
    for number in np.unique(ids_T).tolist():
        vectors_VD[number] = vector_of(names[number])
    return Learned(vectors_VD, seconds, importlib.metadata.version(peer.package))


_VectorOf = Callable[[str], NDArray[np.float32]]


def _by_gensim(
    sentences: Sequence[list[str]], dim: int, settings: Mapping[str, Any], tree: bool, seed: int
) -> tuple[float, _VectorOf]:
    from gensim.models import Word2Vec

    model = Word2Vec(
        vector_size=dim,
        window=settings["window"],
        min_count=1,
        sg=int(settings["objective"] == "skip_gram"),
        hs=int(tree),
        negative=0 if tree else settings["negatives"],
        ns_exponent=0.75,
        cbow_mean=1,
        sample=settings["subsample"],
        alpha=settings["learning_rate"],
        min_alpha=settings["final_learning_rate"],
        workers=settings["threads"],
        seed=seed + 1,
    )
    model.build_vocab(sentences)
    started = time.perf_counter()
    model.train(sentences, total_examples=model.corpus_count, epochs=settings["epochs"])
    seconds = time.perf_counter() - started
    return seconds, model.wv.__getitem__


def _by_fasttext(
    sentences: Sequence[list[str]], dim: int, settings: Mapping[str, Any], tree: bool, seed: int
) -> tuple[float, _VectorOf]:
    import fasttext

    with scratch("fasttext") as folder:
        path = folder / "text.txt"
        path.write_text("\n".join(" ".join(words) for words in sentences), encoding="ascii")
        started = time.perf_counter()
        model = fasttext.train_unsupervised(
            str(path),
            model="skipgram" if settings["objective"] == "skip_gram" else "cbow",
            dim=dim,
            ws=settings["window"],
            epoch=settings["epochs"],
            minCount=1,
            minn=0,
            maxn=0,
            loss="hs" if tree else "ns",
            neg=settings["negatives"],
            t=settings["subsample"] or _KEEP_ALL,
            lr=settings["learning_rate"],
            thread=settings["threads"],
            verbose=0,
        )
        seconds = time.perf_counter() - started
    return seconds, model.get_word_vector
