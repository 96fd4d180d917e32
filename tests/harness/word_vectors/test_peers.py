"""Word vectors by other libraries."""

import importlib.util

import numpy as np
import pytest

from vocabench.harness.word_vectors import peers
from vocabench.impls.errors import BadInput, Unsupported

SETTINGS = {
    "objective": "skip_gram",
    "window": 3,
    "epochs": 12,
    "negatives": 5,
    "subsample": 0.0,
    "learning_rate": 0.05,
    "final_learning_rate": 1e-4,
    "threads": 1,
}


def text(rng):
    """Two groups of ten words; a word is followed by words of its own group. Word 20 never occurs."""
    return np.concatenate([10 * rng.integers(2) + rng.integers(0, 10, 20) for _ in range(400)])


@pytest.mark.parametrize("name", peers.PEERS)
def test_words_of_a_group_become_alike(name):
    peer = peers.PEERS[name]
    pytest.importorskip(peer.library)
    learned = peers.learn(peer, text(np.random.default_rng(0)), 21, 16, SETTINGS, seed=0)
    assert learned.vectors_VD.shape == (21, 16)
    assert not learned.vectors_VD[20].any()
    assert learned.seconds > 0
    unit_VD = learned.vectors_VD[:20] / np.linalg.norm(learned.vectors_VD[:20], axis=1, keepdims=True)
    cosine_VV = unit_VD @ unit_VD.T
    assert cosine_VV[:10, :10].mean() > cosine_VV[:10, 10:].mean() + 0.2


def test_what_a_library_cannot_do_is_refused(monkeypatch):
    gensim = peers.PEERS["gensim_huffman"]
    with pytest.raises(BadInput, match="objective=pv_dbow with gensim: allowed: cbow, skip_gram"):
        peers.learn(gensim, np.zeros(3, np.int64), 2, 4, {**SETTINGS, "objective": "pv_dbow"}, seed=0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="gensim needs gensim, not installed here: allowed"):
        peers.learn(gensim, np.zeros(3, np.int64), 2, 4, SETTINGS, seed=0)
