"""The correlation of products of vectors with shifted PMI, at exact and trained optima."""

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from scipy.stats import pearsonr

from vocabench.harness.word_vectors import factorisation, pmi
from vocabench.impls.errors import BadInput

IDS = np.random.default_rng(0).choice(8, size=300, p=np.arange(1, 9) / 36)
PAIRS = pmi.pair_counts(IDS, 8, 2)


@pytest.mark.parametrize("width", [8, 11])
def test_the_exact_optimum_has_a_correlation_of_one(width):
    # Any u and v with u v^T = PMI - log k, such as these, rotated at random.
    rotation, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((width, width)))
    input_VD = pmi.shifted_pmi(PAIRS, 5).toarray() @ rotation[:8]
    found = factorisation.correlation(input_VD, np.eye(8) @ rotation[:8], PAIRS, 5)
    assert found.value == pytest.approx(1.0, abs=1e-12)
    assert found.pairs == PAIRS.nnz


def trained(width, negatives):
    """Minimise the expected loss of negative sampling with negatives drawn from the contexts' own distribution."""
    seen_VV = PAIRS.toarray().astype(float)
    noise_VV = negatives * np.outer(seen_VV.sum(1), seen_VV.sum(0)) / seen_VV.sum()

    def loss(flat):
        left_VD, right_VD = flat.reshape(2, 8, width)
        score_VV = left_VD @ right_VD.T
        slope_VV = noise_VV * expit(score_VV) - seen_VV * expit(-score_VV)
        value = -(seen_VV * log_expit(score_VV) + noise_VV * log_expit(-score_VV)).sum()
        return value, np.stack([slope_VV @ right_VD, slope_VV.T @ left_VD]).ravel()

    start = np.random.default_rng(2).standard_normal(2 * 8 * width)
    return minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-8})


def test_negative_sampling_reaches_the_optimum_if_vectors_are_wide_and_not_if_they_are_narrow():
    values = {}
    for width in (8, 2):
        left_VD, right_VD = trained(width, 5).x.reshape(2, 8, width)
        values[width] = factorisation.correlation(left_VD, right_VD, PAIRS, 5).value
    assert values[8] > 0.9999
    assert 0.3 < values[2] < 0.99


def test_each_pair_that_occurs_counts_once():
    rng = np.random.default_rng(3)
    input_VD, output_VD = rng.standard_normal((2, 8, 3))
    shifted = pmi.shifted_pmi(PAIRS, 2)
    products = [input_VD[w] @ output_VD[c] for w, c in zip(*shifted.coords, strict=True)]
    expected = pearsonr(products, shifted.data)[0]
    assert factorisation.correlation(input_VD, output_VD, PAIRS, 2).value == pytest.approx(expected, abs=1e-12)
    assert factorisation.correlation(input_VD, output_VD, PAIRS, 7).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("left", "right", "pairs", "message"),
    [
        (np.ones((7, 2)), np.ones((8, 2)), PAIRS, r"input vectors of shape \(7, 2\): allowed: \(8, D\)"),
        (np.ones((8, 2)), np.ones((8, 3)), PAIRS, r"output vectors of shape \(8, 3\)"),
        (np.full((8, 2), np.nan), np.ones((8, 2)), PAIRS, "input vectors contain NaN"),
        (np.ones((8, 2)), np.ones((8, 2)), PAIRS, "the same product of vectors"),
        (np.eye(2), np.eye(2), sparse.csr_array(np.array([[0, 1], [1, 0]])), "2 pairs of words: allowed: from 3"),
        (np.eye(2), np.eye(2), sparse.csr_array(np.full((2, 2), 3)), "the same PMI"),
    ],
)
def test_bad_input_is_refused_in_one_line(left, right, pairs, message):
    with pytest.raises(BadInput, match=message) as raised:
        factorisation.correlation(left, right, pairs, 5)
    assert "\n" not in str(raised.value)
