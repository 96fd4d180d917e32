"""PyTorch's products by either library have the same values and gradients, and oneDNN is used only where it can be."""

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F

from vocabench.impls.on_torch.ops import products

by_onednn = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="PyTorch was built without oneDNN"
)


@pytest.fixture
def calls(monkeypatch):
    """Record the inputs of each call of oneDNN, which is used for products of any size."""
    recorded, product = [], products.onednn_linear

    def counted(*inputs):
        recorded.append(inputs)
        return product(*inputs)

    monkeypatch.setattr(products, "_LARGE", 0)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "onednn_linear", counted)
    return recorded


def inputs(rows=17, words=23, dim=9, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    sizes = ((rows, dim), (words, dim), (words,))
    return [torch.randn(size, generator=generator, dtype=dtype).requires_grad_() for size in sizes]


@by_onednn
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_and_its_gradients_equal_those_of_pytorch(with_bias, calls):
    ours, theirs = inputs(), inputs()
    weights_NV = torch.randn(17, 23)
    for arrays, linear in ((ours, products.linear), (theirs, F.linear)):
        scores_NV = linear(*(arrays if with_bias else arrays[:2]))
        (scores_NV.square() * weights_NV).sum().backward()
    assert len(calls) == 3  # forward, and the gradients with respect to vectors and words
    for array, expected in zip(ours[: 2 + with_bias], theirs, strict=False):
        torch.testing.assert_close(array.grad, expected.grad, rtol=1e-5, atol=1e-4)
        assert array.grad.is_contiguous()


@by_onednn
def test_products_have_second_derivatives(calls):
    gradients = []
    for linear in (products.linear, F.linear):
        arrays = inputs()
        loss = torch.log_softmax(linear(*arrays), dim=1)[:, 3].sum()
        (gradient_ND,) = torch.autograd.grad(loss, arrays[0], create_graph=True)
        gradients.append(torch.autograd.grad(gradient_ND.square().sum(), arrays))
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert len(calls) > 3


@by_onednn
def test_products_are_added_in_place(calls):
    hidden_ND, weight_VD, _ = (array.detach() for array in inputs(words=9000))
    dscores_NV = torch.randn(17, 9000)
    total_VD, total_ND = torch.ones(9000, 9), torch.ones(17, 9)
    products.add_weight_gradient(total_VD, dscores_NV, hidden_ND, first=False)
    products.add_product(total_ND, dscores_NV, weight_VD)
    torch.testing.assert_close(total_VD, 1 + dscores_NV.T @ hidden_ND, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(total_ND, 1 + dscores_NV @ weight_VD, rtol=1e-5, atol=1e-3)
    assert len(calls) == 4  # three parts of the words, and the other product
    total_VD.fill_(torch.nan)
    products.add_weight_gradient(total_VD, dscores_NV, hidden_ND, first=True)
    torch.testing.assert_close(total_VD, dscores_NV.T @ hidden_ND, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dim", [1, 6, 8])
def test_narrow_weights_have_the_same_gradients_in_the_other_order(dim, monkeypatch):
    """MKL takes up to ten times as long in the order in which PyTorch computes them."""
    monkeypatch.setattr(products, "_MANY", 0)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    ours, theirs = inputs(dim=dim), inputs(dim=dim)
    weights_NV, kinds = torch.randn(17, 23), []
    for arrays, linear in ((ours, products.linear), (theirs, F.linear)):
        scores_NV = linear(*arrays)
        kinds.append(type(scores_NV.grad_fn).__name__)
        (scores_NV.square() * weights_NV).sum().backward()
    assert kinds == ["_LinearBackward", "AddmmBackward0"]
    for array, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(array.grad, expected.grad, rtol=1e-5, atol=1e-4)
        assert array.grad.is_contiguous()


def test_products_of_few_vectors_are_correct_in_either_order(monkeypatch):
    with torch.no_grad():
        for words_first in (False, True):
            monkeypatch.setattr(products, "words_first", lambda first=words_first: first)
            for rows in (0, 1, 2, 12, 13):
                arrays = inputs(rows)
                torch.testing.assert_close(products.linear(*arrays), F.linear(*arrays), rtol=1e-5, atol=1e-5)


@by_onednn
def test_pytorchs_product_is_used_where_onednn_has_none(calls):
    hidden_ND, weight_VD, bias_V = inputs()
    wide_ND, wide_VD, wide_V = inputs(dtype=torch.float64)
    every_other_VD = torch.randn(46, 9)[::2]
    transposed_DV = torch.randn(9, 46).T[::2]
    torch.testing.assert_close(products.linear(wide_ND, wide_VD, wide_V), F.linear(wide_ND, wide_VD, wide_V))
    for gaps_VD in (every_other_VD[:, ::2], transposed_DV):
        part_NE = hidden_ND[:, : gaps_VD.shape[1]].contiguous()
        torch.testing.assert_close(products.linear(part_NE, gaps_VD), part_NE @ gaps_VD.T)
    with torch.autocast("cpu", torch.bfloat16):
        assert products.linear(hidden_ND, weight_VD, bias_V).dtype == torch.bfloat16
    assert calls == []


@by_onednn
def test_small_products_do_not_use_onednn(monkeypatch, calls):
    hidden_ND, weight_VD, bias_V = inputs()
    monkeypatch.setattr(products, "_LARGE", 17 * 9 * 23 + 1)
    products.linear(hidden_ND, weight_VD, bias_V)
    assert calls == []


def test_the_library_is_chosen_by_one_measurement():
    assert products.onednn_is_faster() in (True, False)
    assert products.onednn_is_faster.cache_info().currsize == 1
