"""Bands of words, how wide they are, and layers with options and counts that the conformance suite leaves out."""

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.structures import bands

pytestmark = pytest.mark.many_cells

METHODS = ("d_softmax", "d_softmax_star")
FRAMEWORKS = [f for f in registry.installed_frameworks() if f != "numpy" and set(METHODS) <= set(registry.methods(f))]


def test_bands_hold_about_equal_shares_of_the_counts():
    counts_V = np.random.default_rng(0).permutation(zipf_counts(5000))
    band_V = bands.bands_of_words(counts_V, 4)
    sums_B = np.bincount(band_V, weights=counts_V)
    assert np.abs(sums_B / counts_V.sum() - 0.25).max() < 0.05
    for band in range(3):  # every word of a band is at least as frequent as those of the next
        assert counts_V[band_V == band].min() >= counts_V[band_V == band + 1].max()


@pytest.mark.parametrize(
    "counts", [[1, 1], [0, 7, 0], [10**6, 1, 1, 1, 1], [0, 0, 0, 0, 1], list(range(1, 30)), [3] * 9, [0] * 20 + [1]]
)
def test_no_band_is_empty_however_the_counts_are_shared(counts):
    counts_V = np.array(counts)
    for asked in range(1, 9):
        band_V = bands.bands_of_words(counts_V, asked)
        assert np.unique(band_V).tolist() == list(range(min(asked, len(counts))))
        assert (np.diff(band_V[np.argsort(-counts_V, kind="stable")]) >= 0).all()


def test_slices_fill_the_hidden_vector_and_narrow_from_band_to_band():
    for dim in (1, 2, 3, 9, 24, 512):
        for count in range(1, min(dim, 8) + 1):
            for div_value in (1.0, 1.5, 4.0, 1e6):
                widths = bands.slice_widths(dim, count, div_value)
                assert sum(widths) == dim
                assert min(widths) >= 1
                assert widths == sorted(widths, reverse=True)
    assert bands.slice_widths(513, 3, 1.0) == [171, 171, 171]
    assert bands.slice_widths(512, 3, 4.0) == [390, 97, 25]  # 1 + 509 / 21 x (16, 4, 1)
    assert bands.projected_widths(512, 3, 4.0) == [512, 128, 32]
    assert bands.projected_widths(3, 3, 4.0) == [3, 1, 1]


def test_more_bands_than_numbers_in_the_hidden_vector_are_refused():
    with pytest.raises(BadInput, match=r"bands=3 share a hidden vector of dim=2: allowed: bands from 1 to 2"):
        layers.create("numpy", "d_softmax", counts=zipf_counts(20), dim=2)
    layers.create("numpy", "d_softmax", counts=zipf_counts(20), dim=2, bands=2)
    layers.create("numpy", "d_softmax_star", counts=zipf_counts(20), dim=2)
    with pytest.raises(BadInput, match="option bands=9: allowed: a whole number from 1 to 8"):
        layers.create("numpy", "d_softmax", counts=zipf_counts(20), dim=20, bands=9)


def test_one_band_is_full_softmax():
    full = layers.create("numpy", "full_softmax", counts=zipf_counts(20), dim=7)
    ours = layers.create("numpy", "d_softmax", counts=zipf_counts(20), dim=7, bands=1)
    params = full.parameters()
    ours.load({"band0_weight": params["weight"], "bias": params["bias"]})
    hidden_ND = batch(full.spec.counts, tokens=9, dim=7, seed=0).hidden_ND
    np.testing.assert_allclose(ours.log_probs(hidden_ND), full.log_probs(hidden_ND), atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_word_is_scored_by_the_row_at_its_slot(method):
    counts_V = np.random.default_rng(1).permutation(zipf_counts(40))
    layer = layers.create("numpy", method, counts=counts_V, dim=8, seed=2)
    rng = np.random.default_rng(3)
    params = {name: rng.standard_normal(shape) for name, shape in layer.spec.parameter_shapes().items()}
    layer.load(params)
    hidden_D = rng.standard_normal(8)
    band_V, slot_V = layer.structure()["band"], layer.structure()["slot"]
    ends = np.cumsum([params[f"band{band}_weight"].shape[1] for band in range(3)])
    score_V = np.empty(40)
    for word in range(40):
        band, slot = band_V[word], slot_V[word]
        row_E = params[f"band{band}_weight"][slot]
        if method == "d_softmax":
            input_E = hidden_D[ends[band] - len(row_E) : ends[band]]
        else:
            input_E = params[f"band{band}_projection"] @ hidden_D
        score_V[word] = row_E @ input_E + params["bias"][word]
        assert slot == (band_V[:word] == band).sum()
    expected_V = score_V - np.log(np.exp(score_V).sum())
    np.testing.assert_allclose(layer.log_probs(hidden_D[None])[0], expected_V, atol=1e-12)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "options", [{"bands": 1}, {"bands": 8, "div_value": 1.0}, {"bands": 2, "div_value": 1e6}], ids=str
)
def test_options_and_words_in_any_order_agree_with_the_definition(framework, method, options):
    counts_V = np.random.default_rng(4).permutation(zipf_counts(61))
    layer = layers.create(framework, method, counts=counts_V, dim=11, seed=3, **options)
    rng = np.random.default_rng(5)
    layer.load({name: rng.standard_normal(shape) for name, shape in layer.spec.parameter_shapes().items()})
    inputs = batch(counts_V, tokens=20, dim=11, seed=3)
    assert [str(c) for c in agreement.check_layer(layer, inputs, k=20) if not c.agrees] == []
