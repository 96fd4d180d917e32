"""Algorithm 1 of SOHSM against a plain word-by-word reading of it, the limits it keeps, and words by cluster."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.structures import clusters


def plain_algorithm_1(scores_VC, counts_V, bounds):
    """The paper's loop, for scores without ties; the last words go to the clusters that are still empty."""
    share_V = counts_V / counts_V.sum()
    size, frequency = np.zeros(bounds.clusters, int), np.zeros(bounds.clusters)
    cluster_V = np.empty(len(counts_V), int)
    for taken, word in enumerate(np.argsort(-counts_V, kind="stable")):
        room = (size < bounds.words) & (frequency < bounds.frequency)
        if not room.any():
            room = size < bounds.words
        if (size == 0).sum() == len(counts_V) - taken:
            room = size == 0
        best = max(np.flatnonzero(room), key=lambda c, word=word: scores_VC[word, c])
        cluster_V[word] = best
        size[best] += 1
        frequency[best] += share_V[word]
    return cluster_V


@given(st.integers(2, 400), st.integers(0, 2**32), st.sampled_from([0.02, 0.1, 1.0]))
@settings(max_examples=80, deadline=None)
def test_organize_is_algorithm_1(vocab, seed, budget):
    rng = np.random.default_rng(seed)
    counts_V = rng.zipf(1.2, vocab).clip(max=10**9)
    bounds = clusters.limits(vocab, gamma=1.5, budget=budget)
    # Some clusters that all words like and some that none does, which would stay empty.
    scores_VC = rng.standard_normal((vocab, bounds.clusters)) + 10 * rng.standard_normal(bounds.clusters)
    ours = clusters.organize(scores_VC, counts_V, bounds, np.random.default_rng(0))
    assert ours.tolist() == plain_algorithm_1(scores_VC, counts_V, bounds).tolist()
    assert np.bincount(ours, minlength=bounds.clusters).min() > 0


@given(st.integers(2, 3000), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_random_clusters_keep_the_cap(vocab, seed):
    rng = np.random.default_rng(seed)
    bounds = clusters.limits(vocab, gamma=1.5, budget=0.1)
    cluster_V = clusters.random_clusters(rng.zipf(1.3, vocab).clip(max=10**9), bounds, rng)
    sizes = np.bincount(cluster_V, minlength=bounds.clusters)
    assert len(sizes) == bounds.clusters
    assert sizes.max() <= bounds.words
    assert sizes.min() > 0


def test_words_not_seen_yet_are_spread_by_seeded_ties():
    counts_V = np.ones(2500, dtype=np.int64)
    bounds = clusters.limits(2500, gamma=1.5, budget=1.0)
    blank_VC = np.zeros((2500, bounds.clusters))
    first, again, other = (clusters.organize(blank_VC, counts_V, bounds, np.random.default_rng(s)) for s in (1, 1, 2))
    sizes = np.bincount(first, minlength=bounds.clusters)
    assert sizes.min() > 20  # the mean is 50; filled in order, the last clusters would be empty
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_a_frequent_word_closes_its_cluster():
    counts_V = np.array([1000, *[1] * 99])
    bounds = clusters.limits(100, gamma=2.0, budget=0.1)
    scores_VC = np.zeros((100, bounds.clusters))
    scores_VC[:, 0] = 1.0  # every word would rather be in cluster 0
    cluster_V = clusters.organize(scores_VC, counts_V, bounds, np.random.default_rng(0))
    assert (cluster_V == 0).sum() == 1


def test_slots_and_words_by_slot_are_inverse():
    cluster_V = np.array([2, 0, 2, 2, 0])
    slot_V = clusters.slots(cluster_V, 4)
    assert slot_V.tolist() == [0, 0, 1, 2, 1]
    word_CS = clusters.words_by_slot(cluster_V, slot_V, 4, 3, empty=5)
    assert word_CS.tolist() == [[1, 4, 5], [5, 5, 5], [0, 2, 3], [5, 5, 5]]


def test_clusters_without_room_for_the_vocabulary_are_refused():
    with pytest.raises(BadInput, match="no room for 3 words"):
        clusters.limits(3, gamma=1.0, budget=0.1)


@pytest.mark.parametrize("cluster_V", [[0, 1], [0, 1, 5], [0, -1, 1], [0.5, 1.0, 1.0]])
def test_what_is_no_partition_is_refused(cluster_V):
    with pytest.raises(BadInput, match="allowed"):
        clusters.check_partition(np.array(cluster_V), 3, 3)


def test_all_words_scored_at_once_are_ranked_like_the_oracles():
    """As a GPU ranks them; ties by lower id, and slots without a word last."""
    torch = pytest.importorskip("torch")
    from vocabench.impls.on_torch.two_level import decoding

    layer = layers.create("torch", "sohsm", counts=zipf_counts(97), dim=8, seed=3, dtype="float64")
    layer.load({name: np.round(4 * value) / 4 for name, value in layer.parameters().items()})  # many equal scores
    hidden_ND = np.round(2 * np.random.default_rng(0).standard_normal((9, 8)))
    native, hidden = layer.native, torch.from_numpy(hidden_ND)
    with torch.no_grad():
        word_hidden, log_cluster = native._levels(hidden)
        searched = decoding.best_at_once(word_hidden, log_cluster, native._words, 20)
    values_NK, ids_NK = layer.topk(hidden_ND, 20)
    np.testing.assert_allclose(searched[0].numpy(), values_NK, atol=1e-12)
    assert searched[1].tolist() == ids_NK.tolist()


@pytest.mark.many_cells
@pytest.mark.parametrize("method", ["sohsm", "class_hsm"])
@pytest.mark.parametrize(("on_gpu", "few"), [(False, 0), (False, np.inf), (True, 0)])
def test_every_way_to_decode_in_tensorflow_gives_the_oracles_words(method, on_gpu, few, monkeypatch):
    """A loop over the clusters, all words by one product, and the tiles that GPUs take."""
    pytest.importorskip("tensorflow")
    from vocabench.impls.on_tensorflow.two_level import expand

    monkeypatch.setattr(expand, "on_gpu", lambda: on_gpu)
    monkeypatch.setattr(expand, "_FEW_PRODUCTS", few)
    oracle, layer = (
        layers.create(framework, method, counts=zipf_counts(300), dim=8, seed=3, dtype="float64")
        for framework in ("numpy", "tensorflow")
    )
    rng = np.random.default_rng(0)
    hidden_ND, uniforms_NU = rng.standard_normal((9, 8)), rng.random((9, 2))
    for scale in (0.01, 30.0):  # nearly flat, and peaked
        values_NK, ids_NK = oracle.topk(scale * hidden_ND, 20)
        top_NK, top_ids_NK = layer.topk(scale * hidden_ND, 20)
        np.testing.assert_allclose(top_NK, values_NK, atol=1e-9)
        assert top_ids_NK.tolist() == ids_NK.tolist()
        assert layer.beam(scale * hidden_ND, 5, 5)[1].tolist() == oracle.beam(scale * hidden_ND, 5, 5)[1].tolist()
        assert (
            layer.sample(scale * hidden_ND, uniforms_NU).tolist()
            == oracle.sample(scale * hidden_ND, uniforms_NU).tolist()
        )


@pytest.mark.parametrize("method", ["sohsm", "class_hsm"])
def test_one_flat_row_in_jax_gives_the_oracles_words(method, monkeypatch):
    """Read by pieces of the slab that hold words, as of large layers on a CPU; the last turn of the loop not full."""
    pytest.importorskip("jax")
    from vocabench.impls.on_jax.two_level import expand

    monkeypatch.setattr(expand, "_FEW_NUMBERS", 0)
    monkeypatch.setattr(expand, "_SLOTS", 112)
    oracle, layer = (
        layers.create(framework, method, counts=zipf_counts(300), dim=8, seed=3, dtype="float64")
        for framework in ("numpy", "jax")
    )
    for seed in range(3):
        hidden_1D = 0.01 * np.random.default_rng(seed).standard_normal((1, 8))
        (values_1K, ids_1K), (top_1K, top_ids_1K) = (one.topk(hidden_1D, 20) for one in (oracle, layer))
        np.testing.assert_allclose(top_1K, values_1K, atol=1e-9)
        assert top_ids_1K.tolist() == ids_1K.tolist()
        assert layer.expanded_share(hidden_1D, 20) == 1


@pytest.mark.many_cells
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("k", [1, 10, 40])
def test_jax_scores_all_words_as_a_gpu_asks_for(k, tied):
    """Ties within a cluster and between clusters, and clusters with fewer words than k."""
    pytest.importorskip("jax")
    from vocabench.impls.on_jax.two_level import expand

    jnp, rng = expand.jnp, np.random.default_rng(k)
    size_C = rng.integers(1, 17, 12)
    held_CS = np.arange(16) < size_C[:, None]
    word_CS = np.full((12, 16), -1, np.int32)
    word_CS[held_CS] = rng.permutation(size_C.sum())
    slab_CSD = rng.standard_normal((12, 16, 4)).astype(np.float32)
    log_cluster_NC = np.full((5, 12), -np.log(12), np.float32)
    if tied:
        slab_CSD[:] = np.round(slab_CSD[0])  # in all clusters the same
    hidden_ND = np.round(rng.standard_normal((5, 4))).astype(np.float32)
    words = expand.WordsByCluster(jnp.asarray(slab_CSD), None, jnp.asarray(word_CS), None)
    given = jnp.asarray(hidden_ND), jnp.asarray(log_cluster_NC), words, k
    values_NK, ids_NK = (np.asarray(array) for array in expand._best_of_all(*given))
    scores_NCS = np.where(held_CS, np.einsum("nd,csd->ncs", hidden_ND, slab_CSD), -np.inf)
    joint_NCS = scores_NCS - np.logaddexp.reduce(scores_NCS, axis=2, keepdims=True) - np.log(12)
    by_word_NV = np.empty((5, size_C.sum()))
    by_word_NV[:, word_CS[held_CS]] = joint_NCS[:, held_CS]
    np.testing.assert_allclose(values_NK, -np.sort(-by_word_NV, axis=1)[:, :k], rtol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(by_word_NV, ids_NK, axis=1), values_NK, rtol=1e-5)
    assert all(len(set(row)) == k for row in ids_NK.tolist())
    equal_NK = values_NK[:, 1:] == values_NK[:, :-1]
    assert (ids_NK[:, 1:] > ids_NK[:, :-1])[equal_NK].all()


@pytest.mark.parametrize(("method", "form"), [("sohsm", "grouped_mm"), ("sohsm", "loop"), ("class_hsm", "grouped_mm")])
@pytest.mark.parametrize("words_first", [False, True])
@pytest.mark.parametrize(
    ("large", "few_scores", "even", "onednn"),
    [
        (0, np.inf, 1, False), (np.inf, np.inf, 1, False), (np.inf, 0, 0, False), (np.inf, 0, np.inf, False),
        (np.inf, np.inf, 1, True),
    ],
)  # fmt: skip
def test_few_rows_in_pytorch_give_the_oracles_words(
    method, form, words_first, large, few_scores, even, onednn, monkeypatch
):
    """In either order of the products of few vectors, with empty slots read or left out or words end to end, by one
    product, one for each cluster or one for some, by either library; rows that are flat, peaked or either side by
    side."""
    pytest.importorskip("torch")
    from vocabench.impls.on_torch.ops import products
    from vocabench.impls.on_torch.two_level import decoding, words

    monkeypatch.setattr(decoding, "_FEW_SLOTS", 0)
    monkeypatch.setattr(products, "words_first", lambda: words_first)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: onednn)
    monkeypatch.setattr(products, "_LARGE", 0)
    monkeypatch.setattr(words, "_MANY_ROWS", 13)
    for bound, value in (("_LARGE", large), ("_LARGE_EVEN", large), ("_EVEN", even)):
        monkeypatch.setattr(words, bound, value)
    for bound, value in (
        ("_FEW_SCORES", {words_first: few_scores}), ("_FEW_OF_EVEN", few_scores), ("_TOGETHER", 2**9),
    ):  # fmt: skip
        monkeypatch.setattr(words, bound, value)
    exact, spec = (layers.spec(method, counts=zipf_counts(300), dim=8, seed=3, dtype=f"float{n}") for n in (64, 32))
    oracle = layers.from_spec("numpy", exact)
    layer = layers.from_spec("torch", dataclasses.replace(spec, form=form))
    layer.load(oracle.parameters())
    for rows in (1, 2, 4, 5, 13):
        hidden_ND = np.random.default_rng(rows).standard_normal((rows, 8))
        for scale_N1 in (0.01, 30.0, np.where(np.arange(rows) % 2, 0.01, 30.0)[:, None]):
            values_NK, ids_NK = oracle.topk(scale_N1 * hidden_ND, 20)
            top_NK, top_ids_NK = layer.topk(scale_N1 * hidden_ND, 20)
            np.testing.assert_allclose(top_NK, values_NK, atol=2e-5)
            apart_NK = np.abs(np.diff(values_NK, prepend=0.0, append=-100.0)).min(axis=1) > 1e-4  # no rounding decides
            assert (top_ids_NK == ids_NK)[apart_NK].all()


@pytest.mark.parametrize("method", ["sohsm", "class_hsm"])
@pytest.mark.parametrize("few_slots", [0, 2**13])
def test_clusters_of_few_words_in_pytorch_settle_ties_by_bounds_and_at_once(method, few_slots, monkeypatch):
    pytest.importorskip("torch")
    from vocabench.impls.on_torch.two_level import decoding

    monkeypatch.setattr(decoding, "_FEW_SLOTS", few_slots)
    for vocab, dim in ((2, 3), (53, 12)):
        layer = layers.create("torch", method, counts=zipf_counts(vocab), dim=dim, seed=3, dtype="float64")
        for tokens in (1, 3, 9):
            inputs = batch(layer.spec.counts, tokens=tokens, dim=dim, seed=4)
            for k in (1, 2, vocab):
                comparisons = [*agreement.check_layer(layer, inputs, k=k), agreement.check_ties(layer, inputs, k=k)]
                assert [str(c) for c in comparisons if not c.agrees] == []


@pytest.mark.parametrize(("vocab", "rows", "whole"), [(3000, 3, True), (3000, 100, False), (9000, 3, False)])
def test_few_words_of_few_rows_are_all_scored_in_pytorch(vocab, rows, whole):
    """Where there are no kernels."""
    pytest.importorskip("torch")
    from vocabench.impls.on_torch.two_level.cluster_softmax import LOOP

    spec = layers.spec("sohsm", counts=zipf_counts(vocab), dim=8, seed=3)
    layer = layers.from_spec("torch", dataclasses.replace(spec, form=LOOP.id))
    share_N = layer.expanded_share(300 * np.random.default_rng(0).standard_normal((rows, 8)), 1)
    assert (share_N == 1).all() if whole else (share_N < 1).any()


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", registry.installed_frameworks())
def test_rows_for_which_the_first_clusters_are_too_few_are_settled_by_some_more(framework):
    """Neither flat nor peaked: the k-th best of the first clusters lets most others reach it, that of four times as
    many does not."""
    made = {"counts": zipf_counts(20_000), "dim": 16, "seed": 3, "dtype": "float64", "projection": "none", "bias": True}
    oracle, layer = (layers.create(name, "sohsm", **made) for name in ("numpy", framework))
    for rows in (1, 3, 13):
        hidden_ND = np.random.default_rng(rows).standard_normal((rows, 16))
        values_NK, ids_NK = oracle.topk(hidden_ND, 10)
        top_NK, top_ids_NK = layer.topk(hidden_ND, 10)
        np.testing.assert_allclose(top_NK, values_NK, atol=1e-9)
        assert top_ids_NK.tolist() == ids_NK.tolist()
        if framework != "numpy":
            assert ((share_N := layer.expanded_share(hidden_ND, 10)) < 0.3).all()
            assert share_N.mean() > (0.05 if rows == 1 else 0.1)  # a single row's may be expanded one by one


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", registry.installed_frameworks())
@pytest.mark.parametrize("parts", [False, True])
def test_a_row_in_which_all_clusters_are_equal_is_settled_among_flat_ones(framework, parts, monkeypatch):
    """The k best may then be in other clusters than the k that were looked into."""
    if parts and framework == "torch":
        from vocabench.impls.on_torch.two_level import decoding, words

        monkeypatch.setattr(decoding, "_FEW_SLOTS", 0)
        monkeypatch.setattr(words, "_FEW_OF_EVEN", 0)
    if parts and framework == "tensorflow":
        from vocabench.impls.on_tensorflow.two_level import expand

        monkeypatch.setattr(expand, "_FEW_PRODUCTS", 0)
    made = {
        "counts": zipf_counts(306),
        "dim": 8,
        "dtype": "float64",
        "interval": 0,
        "cluster": np.arange(306)[::-1] % 18,
    }
    form = "tiles" if parts and framework == "torch" else ""  # which has its words in a slab
    spec = layers.spec("sohsm", **made)
    oracle, layer = layers.from_spec("numpy", spec), layers.from_spec(framework, dataclasses.replace(spec, form=form))
    layer.load(oracle.parameters())
    hidden_ND = 0.01 * np.random.default_rng(0).standard_normal((9, 8))
    hidden_ND[3] = 0
    for k in (2, 10):
        assert oracle.topk(hidden_ND, k)[1][3].tolist() == list(range(k))
        for rows_RD in (hidden_ND, hidden_ND[3:4], hidden_ND[:1]):
            (values_RK, ids_RK), (top_RK, top_ids_RK) = (one.topk(rows_RD, k) for one in (oracle, layer))
            np.testing.assert_allclose(top_RK, values_RK, atol=1e-9)
            assert top_ids_RK.tolist() == ids_RK.tolist()


@pytest.mark.lengthy
@pytest.mark.parametrize("framework", sorted({"jax", "tensorflow"} & set(registry.installed_frameworks())))
def test_of_a_single_row_no_cluster_is_expanded_below_the_kth_best(framework):
    cluster_V = np.arange(900) % 30
    made = {"counts": zipf_counts(900), "dim": 8, "dtype": "float64", "interval": 0, "cluster": cluster_V, "bias": True}
    oracle, layer = (layers.create(name, "sohsm", **made) for name in ("numpy", framework))
    params = {name: 6 * value for name, value in oracle.parameters().items()}
    oracle.load(params), layer.load(params)
    expanded = set()
    for hidden_1D in 3 * np.random.default_rng(0).standard_normal((12, 1, 8)):
        prob_C = np.bincount(cluster_V, weights=np.exp(oracle.log_probs(hidden_1D)[0]))
        for k in (1, 10):
            (values_1K, ids_1K), (top_1K, top_ids_1K) = (one.topk(hidden_1D, k) for one in (oracle, layer))
            np.testing.assert_allclose(top_1K, values_1K, atol=1e-9)
            assert top_ids_1K.tolist() == ids_1K.tolist()
            needed = int((np.log(prob_C) >= values_1K[0, -1]).sum())
            assert layer.expanded_share(hidden_1D, k) == pytest.approx(needed / 30)
            expanded.add(needed)
    assert len(expanded) > 3


@pytest.mark.lengthy
@pytest.mark.parametrize("framework", sorted({"jax", "tensorflow"} & set(registry.installed_frameworks())))
def test_a_single_row_that_most_clusters_reach_is_scored_whole(framework):
    clusters = 120
    cluster_V = np.arange(1800) % clusters
    counts = zipf_counts(1800)
    made = {"counts": counts, "dim": 8, "dtype": "float64", "interval": 0, "cluster": cluster_V, "clusters": clusters}
    oracle, layer = (layers.create(name, "sohsm", **made) for name in ("numpy", framework))
    params = {name: 3 * value for name, value in oracle.parameters().items()}
    oracle.load(params), layer.load(params)
    seen = set()
    for scale in (0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0):
        for hidden_1D in scale * np.random.default_rng(1).standard_normal((6, 1, 8)):
            (values_1K, ids_1K), (top_1K, top_ids_1K) = (one.topk(hidden_1D, 10) for one in (oracle, layer))
            np.testing.assert_allclose(top_1K, values_1K, atol=1e-9)
            assert top_ids_1K.tolist() == ids_1K.tolist()
            prob_C = np.bincount(cluster_V, weights=np.exp(oracle.log_probs(hidden_1D)[0]))
            needed = (np.log(prob_C) >= values_1K[0, -1]).mean()
            (share,) = layer.expanded_share(hidden_1D, 10)
            if needed <= 0.25:
                seen.add("few")
                assert share == pytest.approx(needed)
            elif needed > 0.4:
                seen.add("most")
                assert share == 1
            else:  # some are given up: the k-th best of the first 32 clusters is too low yet
                seen.add("some")
                assert share in (pytest.approx(needed), 1)
    assert seen == {"few", "some", "most"}


@pytest.mark.parametrize("in_slab", [False, True])
def test_words_lie_by_cluster_in_a_slab_or_end_to_end(in_slab):
    torch = pytest.importorskip("torch")
    from vocabench.impls.on_torch.two_level.words import WordRows

    rows = WordRows.of(torch.tensor([2, 1, 3]), 4, in_slab=in_slab)
    assert rows.start_C.tolist() == ([0, 4, 8] if in_slab else [0, 2, 3])
    assert rows.sizes == [2, 1, 3]
    by_row = torch.arange(12.0).view(3, 4) if in_slab else torch.arange(6.0)
    by_slot_CS = rows.by_slot(rows.flat(by_row))
    real = [by_slot_CS[cluster, :size].tolist() for cluster, size in enumerate(rows.sizes)]
    assert real == ([[0, 1], [4], [8, 9, 10]] if in_slab else [[0, 1], [2], [3, 4, 5]])
    assert [words.tolist() for words in rows.by_cluster(by_row)] == real
    assert torch.equal(rows.from_slots(by_slot_CS), by_row)
    assert rows.by_slot(rows.flat(by_row).expand(2, -1)).shape == (2, 3, 4)
    assert rows.empty_CS.sum() == 6


@pytest.mark.parametrize("form", ["loop", "cpp"])
def test_forms_of_pytorch_that_need_no_slab_keep_no_empty_slots(form):
    pytest.importorskip("torch")
    spec = layers.spec("sohsm", counts=zipf_counts(2000), dim=1536, bias=True)
    labels = {known.id: known.label for known in layers.forms("torch", spec)}
    if form not in labels:
        pytest.skip("needs a C++ compiler")
    layer = layers.from_spec("torch", dataclasses.replace(spec, form=form))
    assert layer.formulation().startswith(labels[form])
    assert layer.native.word_weight.shape == (2000, 1536)
    assert layer.native.word_bias.shape == (2000,)
    slab = layers.from_spec("torch", dataclasses.replace(spec, form="grouped_mm"))
    assert slab.native.word_weight.shape == (45, 72, 1536)
