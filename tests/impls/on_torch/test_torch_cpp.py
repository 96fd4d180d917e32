"""The C++ kernels as called by PyTorch, for any sizes: products within clusters, decoding and fused softmax."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vocabench.harness import layers
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls import cpp
from vocabench.impls.cpp import CPP, processor
from vocabench.impls.errors import Unsupported
from vocabench.impls.on_numpy.methods.sohsm import PROJECTIONS, UPPER_LEVEL, projected

torch = pytest.importorskip("torch")

from vocabench.impls.on_torch.ops import cpp_kernels
from vocabench.impls.on_torch.two_level import cluster_softmax
from vocabench.impls.on_torch.two_level.words import WordRows

pytestmark = pytest.mark.many_cells

if cpp.compiler() is None:
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)


SIZES = st.lists(st.tuples(st.integers(1, 70), st.integers(0, 110)), min_size=1, max_size=6)  # words, tokens


def _check(sizes, dim, in_slab, biased, seed):
    """Compare values and gradients with those in float64."""
    words_C, tokens_C = (torch.tensor(column) for column in zip(*sizes, strict=True))
    slots, tokens = int(words_C.max()) + 3, int(tokens_C.sum())
    rows = WordRows.of(words_C, slots, in_slab=in_slab)
    generator = torch.Generator().manual_seed(seed)
    shape = (len(sizes), slots) if in_slab else (int(words_C.sum()),)
    words = torch.randn(*shape, dim, generator=generator) / dim**0.5
    bias = torch.randn(shape, generator=generator) if biased else None
    hidden_ND, row_N = torch.randn(tokens, dim, generator=generator), torch.randperm(tokens, generator=generator)
    cluster_N = torch.arange(len(sizes)).repeat_interleave(tokens_C)
    slot_N = (torch.rand(tokens, generator=generator) * words_C[cluster_N]).long()
    weight_N, ends_C = torch.rand(tokens, generator=generator), tokens_C.cumsum(0).to(torch.int32)

    scores_NS = cpp_kernels.scores(hidden_ND, row_N, words, bias, ends_C, rows)
    given = hidden_ND, row_N, slot_N, words, bias, ends_C, rows
    losses_N, excess_NS, dhidden_ND = cpp_kernels.losses(*given, differentiated=True)
    dwords, dbias = cpp_kernels.gradients(excess_NS, weight_N, hidden_ND, row_N, words, bias, ends_C, rows)
    assert torch.equal(cpp_kernels.losses(*given, differentiated=False)[0], losses_N)
    assert (dbias is None) == (bias is None)

    exact = [array.double().requires_grad_() for array in (words, bias, hidden_ND) if array is not None]
    expected_NS = torch.full((tokens, slots), -torch.inf, dtype=torch.float64)
    for cluster, (size, count) in enumerate(zip(rows.sizes, tokens_C.tolist(), strict=True)):
        members, first = slice(int(ends_C[cluster]) - count, int(ends_C[cluster])), rows.starts[cluster]
        scores_TS = exact[-1][row_N[members]] @ rows.flat(exact[0])[first : first + size].T
        if biased:
            scores_TS = scores_TS + rows.flat(exact[1])[first : first + size]
        expected_NS[members, :size] = scores_TS
    expected_N = torch.nn.functional.cross_entropy(expected_NS, slot_N, reduction="none")
    expected_dwords, *expected_dbias, _ = torch.autograd.grad(weight_N.double() @ expected_N, exact, retain_graph=True)
    (expected_dhidden_ND,) = torch.autograd.grad(expected_N.sum(), exact[-1])
    expected_excess_NS = (
        expected_NS.detach().softmax(dim=1).scatter_add(1, slot_N[:, None], -torch.ones(tokens, 1).double())
    )
    # The entries are sums of up to 110 products of values of magnitude 1.
    for actual, expected in (
        (scores_NS, expected_NS),
        (losses_N, expected_N),
        (excess_NS, expected_excess_NS),
        (dhidden_ND, expected_dhidden_ND),
        (dwords, expected_dwords),
        *((dbias, gradient) for gradient in expected_dbias if dbias is not None),
    ):
        torch.testing.assert_close(actual.double(), expected.detach(), rtol=1e-5, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 90), st.booleans(), st.booleans(), st.integers(0, 9))
def test_losses_and_gradients_are_exact_for_any_sizes(sizes, dim, in_slab, biased, seed):
    _check(sizes, dim, in_slab, biased, seed)


def _losses(hidden_ND, bias_V, words=40):
    """Return the losses of one cluster, with the token's index as its target word."""
    dim = hidden_ND.shape[1]
    rows = WordRows.of(torch.tensor([words]), words, in_slab=False)
    words_VD = torch.randn(words, dim, generator=torch.Generator().manual_seed(1))
    token_N = torch.arange(len(hidden_ND))
    given = hidden_ND, token_N, token_N, words_VD, bias_V, torch.tensor([len(token_N)], dtype=torch.int32), rows
    return words_VD, cpp_kernels.losses(*given, differentiated=True)


def test_words_with_a_bias_of_minus_infinity_have_no_share_of_the_loss():
    """The loss is that over all other words."""
    hidden_ND = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    bias_V = torch.zeros(40).index_fill_(0, torch.arange(7, 36), -torch.inf)
    words_VD, (losses_N, excess_NS, _) = _losses(hidden_ND, bias_V)
    scores_NV = hidden_ND.double() @ words_VD.double().T + bias_V
    expected_N = torch.nn.functional.cross_entropy(scores_NV, torch.arange(5), reduction="none")
    torch.testing.assert_close(losses_N.double(), expected_N, rtol=1e-5, atol=1e-5)
    assert not excess_NS[:, 7:36].any()


def test_no_loss_produces_denormal_numbers():
    """Products with denormal numbers are slow, and threads differ in whether they flush them to zero."""
    hidden_ND = torch.zeros(1, 16)
    bias_V = -torch.arange(40) * 4.0  # probabilities down to e^-156
    _, (_, excess_NS, _) = _losses(hidden_ND, bias_V)
    magnitudes = excess_NS.abs()
    assert ((magnitudes == 0) | (magnitudes >= torch.finfo(torch.float32).tiny)).all()
    assert (magnitudes[0, 30:] == 0).all()
    assert (magnitudes[0, :20] > 0).all()


def test_a_vector_with_nan_affects_only_its_own_loss():
    hidden_ND = torch.ones(3, 24)
    hidden_ND[1, 5] = torch.nan
    _, (losses_N, _, dhidden_ND) = _losses(hidden_ND, None)
    assert losses_N.isnan().tolist() == [False, True, False]
    assert dhidden_ND.isnan().any(dim=1).tolist() == [False, True, False]


# Whether products use a matrix unit. Without one, the same algorithm runs without it.
BY_UNIT = [False, True] if cpp.multiplies_fastest() or not processor.has("amx_bf16") else [False]


def _fused(*given, by_unit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpp, "fuses_by_unit", lambda *sizes: by_unit)
        return cpp_kernels.fused_softmax(*given)


def _check_fused(tokens, vocab, dim, most, seed, *, by_unit):
    """Compare the loss and its gradients with those in float64."""
    generator = torch.Generator().manual_seed(seed)
    hidden_ND, weight_VD = torch.randn(tokens, dim, generator=generator), torch.randn(vocab, dim, generator=generator)
    bias_V, share_N = torch.randn(vocab, generator=generator), torch.rand(tokens, generator=generator)
    targets_N = torch.randint(vocab, (tokens,), generator=generator)
    given = hidden_ND, weight_VD / dim**0.5, bias_V
    total, gradients = _fused(*given, targets_N, share_N, most, by_unit=by_unit)

    exact = [array.double().requires_grad_() for array in given]
    losses_N = torch.nn.functional.cross_entropy(exact[0] @ exact[1].T + exact[2], targets_N, reduction="none")
    expected = losses_N @ share_N.double()
    torch.testing.assert_close(total.double(), expected.detach(), rtol=1e-5, atol=1e-4)
    for gradient, exact_gradient in zip(gradients, torch.autograd.grad(expected, exact), strict=True):
        torch.testing.assert_close(gradient.double(), exact_gradient, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    *(st.integers(*range) for range in ((0, 70), (1, 200), (1, 12), (1, 80), (0, 9))),
    st.sampled_from(BY_UNIT),
)
def test_fused_softmax_is_exact_for_any_sizes(tokens, vocab, sixteens, most, seed, by_unit):
    _check_fused(tokens, vocab, 16 * sixteens, most, seed, by_unit=by_unit)


@pytest.mark.lengthy
@pytest.mark.parametrize("by_unit", BY_UNIT)
@pytest.mark.parametrize("dim", [512, 48])
def test_fused_softmax_is_exact_for_either_register_width(compiled_otherwise, dim, by_unit):
    _check_fused(131, 333, dim, 50, 1, by_unit=by_unit)


@pytest.mark.parametrize("by_unit", BY_UNIT)
def test_fused_softmax_ignores_words_with_a_bias_of_minus_infinity(by_unit):
    """Whole tiles of words are ignored; the loss is that of full softmax over all other words."""
    generator = torch.Generator().manual_seed(3)
    hidden_ND, weight_VD = torch.randn(20, 16, generator=generator), torch.randn(300, 16, generator=generator)
    bias_V = torch.zeros(300).index_fill_(0, torch.arange(50, 250), -torch.inf)
    targets_N, share_N = torch.arange(20), torch.full((20,), 1 / 20)
    total, (dhidden_ND, dweight_VD, _) = _fused(hidden_ND, weight_VD, bias_V, targets_N, share_N, 7, by_unit=by_unit)
    given = [array.double().requires_grad_() for array in (hidden_ND, weight_VD)]
    expected = torch.nn.functional.cross_entropy(given[0] @ given[1].T + bias_V, targets_N)
    torch.testing.assert_close(total.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    for gradient, exact_gradient in zip((dhidden_ND, dweight_VD), torch.autograd.grad(expected, given), strict=True):
        torch.testing.assert_close(gradient.double(), exact_gradient, rtol=1e-4, atol=1e-5)


def test_a_layer_cast_to_double_uses_another_form():
    from vocabench.impls.on_torch import adapter

    layer = adapter.native(layers.spec("fused_softmax", counts=zipf_counts(90), dim=16))
    assert layer.form == CPP
    assert layer.double().form != CPP


@pytest.mark.lengthy
@pytest.mark.parametrize("dim", [512, 40, 7])
def test_losses_and_gradients_are_exact_for_either_register_width(compiled_otherwise, dim):
    """Sizes are whole tiles and remainders of tiles."""
    _check([(64, 55), (13, 1), (70, 0), (6, 4), (1, 3)], dim, in_slab=False, biased=True, seed=1)


def _searched(sizes, rows, dim, sharpness, seed):
    """Return the inputs of a search (vectors, log P(cluster), words, biases, word of each slot, rows), and log P(w)."""
    generator = torch.Generator().manual_seed(seed)
    words_C, vocab = torch.tensor(sizes), sum(sizes)
    word_rows = WordRows.of(words_C, max(sizes) + 2, in_slab=False)
    words_VD, bias_V = torch.randn(vocab, dim, generator=generator), torch.randn(vocab, generator=generator)
    hidden_RD = torch.randn(rows, dim, generator=generator) / dim**0.5
    log_RC = (sharpness * torch.randn(rows, len(sizes), generator=generator)).log_softmax(dim=1)
    word_V = torch.randperm(vocab, generator=generator)  # word of each row
    word_CS = torch.full((len(sizes), word_rows.slots), vocab)
    word_CS[~word_rows.empty_CS] = word_V
    scores = (hidden_RD.double() @ words_VD.double().T + bias_V.double()).split(sizes, dim=1)
    joint = [scores_RS.log_softmax(dim=1) + log_RC[:, [c]].double() for c, scores_RS in enumerate(scores)]
    joint_RV = torch.empty(rows, vocab, dtype=torch.float64)
    joint_RV[:, word_V] = torch.cat(joint, dim=1)
    return (hidden_RD, log_RC, words_VD, bias_V, word_CS, word_rows), joint_RV


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40).filter(any), st.integers(1, 120), st.integers(1, 40),
    st.sampled_from([0.0, 1.0, 5.0]), st.integers(1, 70), st.integers(0, 9),
)  # fmt: skip
@example([70, 9], 100, 1100, 0.0, 10, 0)  # vectors wider than a strip
@example([30] * 6, 1100, 8, 1.0, 10, 0)  # more rows than one search takes
def test_the_likeliest_words_are_exact(sizes, rows, dim, sharpness, k, seed):
    """Distributions are sharp or near-uniform, k is up to V, and clusters have few or many rows."""
    given, joint_RV = _searched(sizes, rows, dim, sharpness, seed)
    k = min(k, sum(sizes))
    values_RK, ids_RK, share_R = cpp_kernels.likeliest(*given, k)
    assert ((share_R > 0) & (share_R <= 1)).all()
    expected_RK = joint_RV.sort(dim=1, descending=True).values[:, :k]
    torch.testing.assert_close(values_RK.double(), expected_RK, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(joint_RV.gather(1, ids_RK), expected_RK, rtol=1e-5, atol=1e-5)
    assert all(len(set(row)) == k for row in ids_RK.tolist())


@pytest.mark.lengthy
@pytest.mark.parametrize("dim", [40, 512])
def test_the_likeliest_words_are_exact_for_either_register_width(compiled_otherwise, dim):
    """Sizes are whole tiles and remainders of tiles, with many rows for each cluster."""
    given, joint_RV = _searched([64, 55, 13, 1, 70], 70, dim, 1.0, 0)
    values_RK, ids_RK, _ = cpp_kernels.likeliest(*given, 10)
    expected_RK = joint_RV.sort(dim=1, descending=True).values[:, :10]
    torch.testing.assert_close(values_RK.double(), expected_RK, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(joint_RV.gather(1, ids_RK), expected_RK, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 20])
def test_equally_likely_words_are_sorted_by_id(rows):
    """Ties are within a cluster and between two equally likely clusters."""
    words_VD, hidden_RD = torch.ones(6, 4), torch.ones(rows, 4)
    log_R2 = torch.full((rows, 2), 0.5).log()
    word_23 = torch.tensor([[5, 0, 3], [2, 4, 1]])
    word_rows = WordRows.of(torch.tensor([3, 3]), 3, in_slab=False)
    values_RK, ids_RK, share_R = cpp_kernels.likeliest(hidden_RD, log_R2, words_VD, None, word_23, word_rows, 4)
    assert ids_RK.tolist() == [[0, 1, 2, 3]] * rows
    assert share_R.tolist() == [1] * rows
    torch.testing.assert_close(values_RK, torch.full((rows, 4), 1 / 6).log())


def test_few_clusters_are_searched_for_sharp_distributions_and_all_for_uniform_ones():
    given, _ = _searched([20] * 30, 3, 8, 20.0, 0)
    assert cpp_kernels.likeliest(*given, 5)[2].max() < 0.5
    given, _ = _searched([20] * 30, 3, 8, 0.0, 0)
    assert cpp_kernels.likeliest(*given, 5)[2].tolist() == [1, 1, 1]


def test_a_cluster_read_for_one_row_is_also_searched_for_another_row_that_may_need_it():
    """Each cluster has one word. The best five words of the second row are in the first six clusters, which it searches
    when it is alone. The first row also needs the seventh and eighth cluster. The seventh could contain one of the
    second row's best words, the eighth hardly."""
    probability_R20 = torch.full((2, 20), 0.01)
    probability_R20[0, :8] = torch.tensor([0.01] * 6 + [0.8, 0.02])
    probability_R20[1, :8] = torch.tensor([0.13] * 6 + [0.09, 0.01])
    word_rows = WordRows.of(torch.ones(20, dtype=torch.int64), 1, in_slab=False)
    words = torch.ones(20, 4), None, torch.arange(20)[:, None], word_rows

    def search(log_R20):
        values_RK, ids_RK, share_R = cpp_kernels.likeliest(torch.ones(len(log_R20), 4), log_R20, *words, 5)
        return values_RK[-1].tolist(), ids_RK[-1].tolist(), round(share_R[-1].item() * 20)

    log_R20 = probability_R20.log()
    *best, searched = search(log_R20[1:])
    assert (best[1], searched) == ([0, 1, 2, 3, 4], 6)
    assert search(log_R20) == (*best, 7)


@pytest.mark.parametrize("argument", [0, 1])
@pytest.mark.parametrize("rows", [2, 20])
def test_rows_with_nan_are_not_searched(argument, rows):
    given, joint_RV = _searched([5, 9], rows, 8, 1.0, 0)
    given[argument][1] = torch.nan
    values_RK, _, share_R = cpp_kernels.likeliest(*given, 4)
    assert share_R.tolist() == [1, 0, *[1] * (rows - 2)]
    expected_RK = joint_RV.sort(dim=1, descending=True).values[:, :4]
    searched_R = share_R > 0
    torch.testing.assert_close(values_RK[searched_R].double(), expected_RK[searched_R], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("rows", [1, 3, 48, 130])
@pytest.mark.parametrize("dim", [19, 64])
def test_both_levels_agree_with_the_definition(projection, rows, dim):
    bias = projection != "linear"
    spec = layers.spec("sohsm", counts=zipf_counts(1500), dim=dim, seed=3, projection=projection, bias=bias)
    oracle = layers.from_spec("numpy", dataclasses.replace(spec, dtype="float64"))
    hidden_ND = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
    given = {name: torch.from_numpy(value).float() for name, value in oracle.parameters().items()}
    upper = [given.get(name) for name in UPPER_LEVEL]
    words = layers.from_spec("torch", dataclasses.replace(spec, form=CPP.id)).native._words
    lower = words.vectors, words.bias, words.word_CS, words.rows
    values_NK, ids_NK, _ = cpp_kernels.likeliest_of_hidden(
        torch.from_numpy(hidden_ND), projected(projection), upper, *lower, 7
    )
    expected_NK, _ = oracle.topk(hidden_ND.astype(np.float64), 7)
    np.testing.assert_allclose(values_NK.detach().numpy(), expected_NK, rtol=1e-5, atol=1e-5)
    log_probs_NV = oracle.log_probs(hidden_ND.astype(np.float64))
    np.testing.assert_allclose(np.take_along_axis(log_probs_NV, ids_NK.numpy(), 1), expected_NK, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_gradients_do_not_depend_on_the_number_of_threads(threads):
    spec = dataclasses.replace(layers.spec("sohsm", counts=zipf_counts(500), dim=48), form=CPP.id)
    inputs = batch(spec.counts, tokens=200, dim=48, seed=0)
    before = torch.get_num_threads()
    expected = layers.from_spec("torch", spec).loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    try:
        torch.set_num_threads(threads)
        actual = layers.from_spec("torch", spec).loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)
    np.testing.assert_array_equal(actual[2]["word_weight"], expected[2]["word_weight"])


def test_a_requested_form_refuses_other_dtypes_and_a_preferred_one_changes():
    spec = layers.spec("sohsm", counts=zipf_counts(500), dim=48)
    hidden_ND, targets_N = torch.randn(9, 48, dtype=torch.float64), torch.arange(9)
    requested = layers.from_spec("torch", dataclasses.replace(spec, form=CPP.id)).native.double()
    with pytest.raises(Unsupported, match=r"C\+\+ kernels for torch.float64 on cpu: allowed: torch.float32 on a CPU"):
        requested._nll(hidden_ND, targets_N)
    from vocabench.impls.on_torch import adapter

    preferred = adapter.native(spec)
    assert preferred.form == CPP
    assert preferred.double().form != CPP
    assert torch.isfinite(preferred._nll(hidden_ND, targets_N)).all()


def test_without_a_compiler_layers_use_another_form(monkeypatch):
    monkeypatch.setattr(cpp, "library", cpp.library.__wrapped__)  # without its cached result
    monkeypatch.setenv("CXX", "no-such-compiler")
    forms = cluster_softmax.forms(320, 512, torch.float32)
    assert CPP not in forms
    assert forms[0] == cluster_softmax.LOOP
