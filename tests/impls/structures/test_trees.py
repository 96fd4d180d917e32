"""Trees over words: valid for any vectors, split as the rules say, and refused when they are no trees."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vocabench.impls.errors import BadInput
from vocabench.impls.structures import huffman, trees

any_vectors = st.sampled_from([np.float32, np.float64]).flatmap(
    lambda dtype: arrays.arrays(
        dtype,
        st.tuples(st.integers(2, 40), st.integers(1, 4)),
        elements=st.floats(allow_nan=False, allow_infinity=False, width=32)
        | st.sampled_from([0.0, 1.0, -1.0])
        | st.floats(allow_nan=False, allow_infinity=False, width=32 if dtype is np.float32 else 64),
    )
)


def assert_tree(children, leaves):
    """A full binary tree in the order wanted, whose codes fill the binary fractions (Kraft's equality)."""
    checked = trees.check_children(children, leaves)
    assert checked.dtype == np.int64
    lengths = huffman.from_children(checked).code_length.tolist()
    longest = max(lengths)
    assert sum(2 ** (longest - n) for n in lengths) == 2**longest


def words_below(children):
    """The leaves below each inner node, in its order."""
    leaves = len(children) + 1
    below = []
    for pair in children.tolist():
        below.append([leaf for c in pair for leaf in ([c] if c < leaves else below[c - leaves])])
    return below


def sides(children):
    """The leaves on the root's left and right."""
    leaves, below = len(children) + 1, words_below(children)
    return [sorted([c] if c < leaves else below[c - leaves]) for c in children[-1].tolist()]


def scrambled(children, rng):
    """The same tree with its inner nodes in random order."""
    leaves = len(children) + 1
    order = rng.permutation(leaves - 1)
    name = np.arange(2 * leaves - 1)
    name[leaves + order] = leaves + np.arange(leaves - 1)
    return name[children[order]]


@given(st.integers(2, 300), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_random_tree_is_balanced_at_every_node(leaves, seed):
    children = trees.random_tree(leaves, np.random.default_rng(seed))
    assert_tree(children, leaves)
    below = [1] * leaves + [len(words) for words in words_below(children)]
    assert all(abs(below[left] - below[right]) <= 1 for left, right in children.tolist())


def test_random_tree_depends_on_the_seed_alone():
    first, again, other = (trees.random_tree(50, np.random.default_rng(s)).tolist() for s in (1, 1, 2))
    assert first == again
    assert first != other


@given(any_vectors, st.sampled_from(trees.RULES), st.floats(0, 0.5), st.integers(0, 2**32), st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_any_vectors_give_a_valid_tree(vectors_VE, rule, eps, seed, most_codes):
    tree = trees.mixture_tree(vectors_VE, rule, eps, np.random.default_rng(seed), most_codes)
    assert_tree(tree.children, len(tree.leaf_word))
    codes = np.bincount(tree.leaf_word, minlength=len(vectors_VE))
    assert codes.min() >= 1
    assert codes.max() <= (most_codes if rule == "adaptive_eps" else 1)
    assert (np.diff(tree.leaf_word) >= 0).all()
    again = trees.mixture_tree(vectors_VE, rule, eps, np.random.default_rng(seed), most_codes)
    assert again.children.tolist() == tree.children.tolist()
    assert again.leaf_word.tolist() == tree.leaf_word.tolist()


@given(any_vectors, st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_balanced_halves_differ_by_one_at_most(vectors_VE, seed):
    tree = trees.mixture_tree(vectors_VE, "balanced", 0.0, np.random.default_rng(seed))
    below = [1] * len(vectors_VE) + [len(words) for words in words_below(tree.children)]
    assert all(abs(below[left] - below[right]) <= 1 for left, right in tree.children.tolist())


@pytest.mark.parametrize("rule", trees.RULES)
def test_equal_vectors_give_a_balanced_tree_without_shared_words(rule):
    tree = trees.mixture_tree(np.full((37, 3), 0.1), rule, 0.5, np.random.default_rng(0))
    assert tree.leaf_word.tolist() == list(range(37))
    assert set(huffman.from_children(tree.children).code_length.tolist()) == {5, 6}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("far", [30.0, 1e30])
def test_adaptive_finds_two_clouds_of_unequal_size(seed, far):
    rng = np.random.default_rng(seed)
    vectors_VE = rng.standard_normal((60, 10))
    vectors_VE[:17] += far
    tree = trees.mixture_tree(vectors_VE, "adaptive", 0.0, rng)
    assert sorted(sides(tree.children)) == [list(range(17)), list(range(17, 60))]


def test_components_differ_in_width_where_their_means_agree():
    rng = np.random.default_rng(0)
    vectors_VE = rng.standard_normal((200, 50))
    vectors_VE[:100] *= 0.05
    near_mean, far = sorted(sides(trees.mixture_tree(vectors_VE, "adaptive", 0.0, rng).children))
    assert near_mean == list(range(100))
    assert far == list(range(100, 200))


def test_adaptive_eps_shares_the_words_in_between_and_more_with_more_eps():
    rng = np.random.default_rng(0)
    line = np.concatenate([rng.normal(-2, 1, 100), rng.normal(2, 1, 100)])[:, None]
    alone, fewer, more = (
        trees.mixture_tree(line, "adaptive_eps", eps, np.random.default_rng(0)) for eps in (0.0, 0.2, 0.4)
    )
    assert len(alone.leaf_word) == 200
    assert 200 < len(fewer.leaf_word) < len(more.leaf_word) <= 200 * trees.MOST_CODES
    leaves_left, leaves_right = sides(fewer.children)
    shared = np.intersect1d(fewer.leaf_word[leaves_left], fewer.leaf_word[leaves_right])
    assert 0 < len(shared) < 100
    apart = np.setdiff1d(np.arange(200), shared)
    assert np.abs(line[shared]).max() <= np.abs(line[apart]).max()


def test_eps_of_one_half_falls_back_to_adaptive():
    vectors_VE = np.random.default_rng(0).standard_normal((50, 5))
    shared, plain = (
        trees.mixture_tree(vectors_VE, rule, 0.5, np.random.default_rng(0)) for rule in ("adaptive_eps", "adaptive")
    )
    assert shared.children.tolist() == plain.children.tolist()


def test_outliers_split_off_one_by_one_do_not_make_codes_as_long_as_the_vocabulary():
    spread = 10.0 ** -np.arange(0, 300, 0.5)[:, None]
    tree = trees.mixture_tree(spread, "adaptive", 0.0, np.random.default_rng(0))
    assert_tree(tree.children, 600)
    assert huffman.from_children(tree.children).code_length.max() <= 64 + 10


@pytest.mark.parametrize(
    ("vectors", "rule", "eps", "most_codes", "message"),
    [
        ([1.0, 2.0], "balanced", 0, 8, r"shape \(2,\)"),
        ([[1], [2]], "balanced", 0, 8, "dtype int64"),
        ([[1.0]], "balanced", 0, 8, "at least 2 words"),
        (np.ones((3, 0)), "balanced", 0, 8, "1 entry"),
        ([[1.0], [np.nan]], "balanced", 0, 8, r"vectors\[1\] holds NaN"),
        ([[1.0], [2.0]], "adaptive-eps", 0, 8, "did you mean 'adaptive_eps'"),
        ([[1.0], [2.0]], "adaptive_eps", 0.6, 8, "eps=0.6"),
        ([[1.0], [2.0]], "adaptive_eps", np.nan, 8, "eps=nan"),
        ([[1.0], [2.0]], "adaptive_eps", 0, 0, "most_codes=0"),
    ],
)
def test_bad_arguments_of_mixture_tree_are_refused(vectors, rule, eps, most_codes, message):
    with pytest.raises(BadInput, match=message):
        trees.mixture_tree(vectors, rule, eps, np.random.default_rng(0), most_codes)


def test_a_random_tree_needs_two_leaves():
    with pytest.raises(BadInput, match="leaves=1"):
        trees.random_tree(1, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("children", "message"),
    [
        ([0, 1], r"shape \(2,\)"),
        ([[0, 1], [2, 4]], r"allowed: \(3, 2\)"),
        ([[0.0, 1.0], [2.0, 4.0], [3.0, 5.0]], "dtype float64"),
        ([[0, 1], [2, 4], [3, 7]], r"children\[2\]=\[3, 7\]: allowed: from 0 to 6"),
        ([[0, 1], [-2, 4], [3, 5]], r"children\[1\]=\[-2, 4\]"),
        ([[0, 1], [1, 4], [3, 5]], "word 2 is missing"),
        ([[0, 1], [2, 4], [6, 5]], "word 3 is missing"),
        ([[0, 1], [2, 2], [3, 5]], "word 2 is there more than once"),
        ([[0, 1], [2, 3], [4, 4]], "inner nodes 1 and 2 are no node's child"),
        ([[0, 5], [1, 4], [2, 3]], "inner node . is on a cycle"),
        ([[0, 4], [1, 2], [3, 5]], "inner node 0 is on a cycle"),
        ([[0, 1], [4, 6], [2, 3]], "the root is inner node 1: allowed: the last one, 2"),
        ([[0, 5], [1, 2], [3, 4]], r"children\[0\]=\[0, 5\] names inner node 1: allowed: .* below 0"),
    ],
)
def test_what_is_no_tree_in_order_is_refused(children, message):
    with pytest.raises(BadInput, match=message) as caught:
        trees.check_children(np.array(children), 4)
    assert "\n" not in str(caught.value)


def test_a_tree_needs_two_words():
    for children in ([], np.empty((0, 2), dtype=int), 5):
        with pytest.raises(BadInput, match="at least 2"):
            trees.check_children(children, 1)
        with pytest.raises(BadInput, match="at least 2"):
            trees.renumber(children)


@given(st.lists(st.lists(st.integers(-1, 9), min_size=2, max_size=2), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_what_passes_is_a_tree(children):
    vocab = len(children) + 1
    try:
        checked = trees.check_children(children, vocab)
    except BadInput:
        return
    assert sorted(words_below(checked)[-1]) == list(range(vocab))


@given(st.integers(2, 80), st.integers(0, 2**32), st.booleans())
@settings(max_examples=100, deadline=None)
def test_renumber_keeps_the_tree_and_orders_its_nodes(leaves, seed, by_visits):
    rng = np.random.default_rng(seed)
    counts = rng.zipf(1.3, leaves).clip(max=10**6) - 1
    children = huffman.build(rng.permutation(counts)).children  # as skewed as the counts, but not made for them
    mixed = scrambled(children, rng)
    ordered = trees.renumber(mixed, counts if by_visits else None)
    assert_tree(ordered, leaves)
    assert sorted(map(sorted, words_below(ordered))) == sorted(map(sorted, words_below(children)))
    if by_visits:
        visits = [int(counts[words].sum()) for words in words_below(ordered)]
        assert visits == sorted(visits)
    else:
        by_depth = huffman.levels(ordered)
        assert all(below.max() < above.min() for above, below in pairwise(by_depth))
    assert trees.renumber(ordered, counts if by_visits else None).tolist() == ordered.tolist()


def test_renumber_keeps_left_and_right():
    assert trees.renumber([[6, 3], [0, 2], [5, 1]]).tolist() == [[0, 2], [4, 1], [5, 3]]


@pytest.mark.parametrize(
    ("counts", "message"),
    [([1, 2], r"allowed: \(3,\)"), ([1, -2, 3], r"counts\[1\]=-2"), ([1.0, 2.0, np.inf], r"counts\[2\]=inf")],
)
def test_bad_counts_of_renumber_are_refused(counts, message):
    with pytest.raises(BadInput, match=message):
        trees.renumber([[0, 1], [2, 3]], counts)
