"""Classes by count, at random and by similarity; shelves; and the layer with each of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.structures import classes
from vocabench.impls.structures.shelves import Shelves

FRAMEWORKS = [f for f in registry.installed_frameworks() if f != "numpy"]


def is_dense(class_M):
    return np.array_equal(np.unique(class_M), np.arange(class_M.max() + 1))


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60), st.integers(1, 12))
def test_classes_by_share_are_dense_and_rise_with_falling_weight(weights, count):
    weights_M = np.array(weights, dtype=np.float64)
    class_M = classes.by_share(weights_M, count)
    assert is_dense(class_M)
    assert class_M.max() < count
    assert (np.diff(class_M[np.argsort(-weights_M, kind="stable")]) >= 0).all()


def test_classes_by_share_are_those_of_the_definition():
    # Shares .4 .3 .2 .1, three classes: 3 x (0, .4, .7, .9) = 0, 1.2, 2.1, 2.7.
    assert classes.by_share(np.array([1.0, 4.0, 2.0, 3.0]), 3).tolist() == [2, 0, 2, 1]
    # One word takes three of four parts: the classes left empty are closed up.
    assert classes.by_share(np.array([9.0, 1.0, 1.0]), 4).tolist() == [0, 1, 1]


def test_square_roots_make_classes_of_a_more_even_size():
    counts_V = zipf_counts(5000)
    largest = [np.bincount(classes.by_share(weights, 71)).max() for weights in (counts_V, np.sqrt(counts_V))]
    assert largest[1] < largest[0] / 2


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 9))
def test_random_classes_differ_by_one_at_most(members, count, seed):
    count = min(members, count)
    size_C = np.bincount(classes.at_random(members, count, np.random.default_rng(seed)))
    assert len(size_C) == count
    assert size_C.max() - size_C.min() <= 1


def test_classes_by_similarity_find_the_directions():
    rng = np.random.default_rng(1)
    truth_V = rng.permutation(np.arange(60) % 4)
    vectors_VE = 5 * np.eye(8)[truth_V] + 0.1 * rng.standard_normal((60, 8))
    vectors_VE *= rng.uniform(0.1, 10, (60, 1))  # length does not count
    class_by_seed = [
        classes.by_similarity(vectors_VE, np.ones(60, int), classes.limits(60, 4), np.random.default_rng(seed))
        for seed in range(5)
    ]
    pairs = [len(np.unique(np.stack([truth_V, class_V]), axis=1).T) for class_V in class_by_seed]
    assert min(pairs) == 4


def test_classes_by_similarity_keep_the_caps():
    vectors_VE = np.random.default_rng(2).standard_normal((300, 5)) + 3.0  # all of about one direction
    size_C = np.bincount(
        classes.by_similarity(vectors_VE, zipf_counts(300), classes.limits(300, 17), np.random.default_rng(0)),
        minlength=17,
    )
    assert (size_C > 0).all()
    assert size_C.max() <= 1.5 * 300 / 17


@settings(max_examples=50)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=25), st.integers(0, 9))
def test_every_member_stands_once_on_a_shelf(group_sizes, seed):
    group_M = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(group_sizes)), group_sizes))
    shelves = Shelves.of(group_M, np.ones(len(group_M), dtype=np.int64))
    slots = 0
    for number, shelf in enumerate(shelves.shelves):
        here = np.flatnonzero(shelves.shelf_M == number)
        assert np.array_equal(shelf.member_GS[shelves.row_M[here], shelves.slot_M[here]], here)
        assert np.array_equal(shelf.groups_G[shelves.row_M[here]], group_M[here])
        assert shelf.members == len(here)
        assert shelf.share == pytest.approx(len(here) / len(group_M))
        rising = shelf.member_GS[:, 1:], shelf.member_GS[:, :-1]
        assert ((rising[0] > rising[1]) | (rising[0] == -1)).all()
        slots += shelf.member_GS.size
    assert sorted(np.concatenate([s.groups_G for s in shelves.shelves])) == list(range(len(group_sizes)))
    assert slots <= 3 * len(group_M) + 40 * len(group_sizes)


def vectors(vocab):
    return np.random.default_rng(7).standard_normal((vocab, 6))


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    "options",
    [
        {"bins": "similarity", "levels": 3, "classes": 30},
        {"bins": "given", "cluster": np.arange(300) % 9},
    ],
)
def test_agrees_with_the_definition(framework, options):
    counts_V = np.random.default_rng(3).permutation(zipf_counts(300))
    if options["bins"] == "similarity":
        options = options | {"vectors": vectors(300)}
    layer = layers.create(framework, "class_hsm", counts=counts_V, dim=10, seed=2, **options)
    inputs = batch(counts_V, tokens=240, dim=10, seed=3)  # so many that top-k goes by bounds
    comparisons = [*agreement.check_layer(layer, inputs, k=12), agreement.check_ties(layer, inputs, k=12)]
    assert [str(c) for c in comparisons if not c.agrees] == []


def test_sohsm_starts_from_the_clusters_given():
    cluster_V = np.random.default_rng(0).permutation(np.arange(100) % 10)
    layer = layers.create("numpy", "sohsm", counts=zipf_counts(100), dim=4, cluster=cluster_V, interval=0)
    assert np.array_equal(layer.structure()["cluster"], cluster_V)
    for wrong, message in ((np.zeros(100, int), "of 0 to 100 words"), (np.arange(100), "from 0 to 9")):
        with pytest.raises(ValueError, match=message):
            layers.create("numpy", "sohsm", counts=zipf_counts(100), dim=4, cluster=wrong)


def test_training_starts_from_the_unigram_distribution():
    layer = layers.create("numpy", "class_hsm", counts=zipf_counts(80), dim=4, levels=3)
    layer.load({n: np.zeros_like(v) if n.endswith("weight") else v for n, v in layer.parameters().items()})
    expected = np.log((zipf_counts(80) + 1) / (zipf_counts(80) + 1).sum())
    np.testing.assert_allclose(layer.log_probs(np.ones((1, 4)))[0], expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": "similarity"}, "vectors is missing"),
        ({"vectors": np.ones((30, 2))}, "'similarity' alone"),
        ({"bins": "similarity", "vectors": np.ones((29, 2))}, "29 rows: allowed: 30"),
        ({"bins": "similarity", "vectors": np.ones(30)}, "two dimensions"),
        ({"bins": "similarity", "vectors": np.full((30, 2), np.nan)}, "NaN"),
        ({"bins": "similarity", "vectors": "no/such/file.npy"}, "no such file"),
        ({"classes": 31}, "at most 30"),
        ({"bins": "given"}, "cluster is missing"),
        ({"cluster": np.zeros(30, int)}, "'given' alone"),
        ({"bins": "given", "cluster": np.zeros(29, int)}, r"allowed: \(30,\)"),
        ({"bins": "given", "cluster": np.zeros(30)}, "whole numbers"),
        ({"bins": "given", "cluster": np.arange(30) * 2}, "58"),
        ({"bins": "given", "cluster": np.arange(30) // 2 * 2}, "cluster 1 has no word"),
        ({"bins": "given", "cluster": np.arange(30) - 1}, r"cluster\[0\]=-1"),
        ({"levels": 4}, "allowed: 2, 3"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        layers.create("numpy", "class_hsm", counts=zipf_counts(30), dim=4, **options)


def test_vectors_may_come_from_a_file_which_must_not_change(tmp_path):
    path = tmp_path / "vectors.npy"
    np.save(path, vectors(30))
    made = [
        layers.spec("class_hsm", counts=zipf_counts(30), dim=4, bins="similarity", vectors=given)
        for given in (str(path), vectors(30))
    ]
    assert np.array_equal(made[0].structure["cluster"], made[1].structure["cluster"])
    named = made[0].options["vectors"]
    np.save(path, vectors(30) + 1)
    with pytest.raises(ValueError, match="sha256 begins"):
        layers.spec("class_hsm", counts=zipf_counts(30), dim=4, bins="similarity", vectors=named)
    path.write_bytes(b"no array")
    with pytest.raises(ValueError, match=r"no \.npy file"):
        layers.spec("class_hsm", counts=zipf_counts(30), dim=4, bins="similarity", vectors=str(path))
    np.save(path, np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"holds object .*: allowed: a \.npy file of numbers"):
        layers.spec("class_hsm", counts=zipf_counts(30), dim=4, bins="similarity", vectors=str(path))
