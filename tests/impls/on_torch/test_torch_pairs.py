"""Products of pairs in PyTorch: read in place or gathered, the same numbers."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from vocabench.impls.on_torch.ops import pair_products


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("row", "place"),
    [
        ([], []),
        ([0, 0, 2, 3], [4, 0, 4, 1]),  # a row without any, a word in two rows
        ([1] * 7, [2] * 7),  # the same pair again and again
        ([3] * 30, [5] * 30),  # more of them than a matrix of all pairs has places
    ],
)
def test_products_are_those_of_all_pairs(row, place, dtype):
    generator = torch.Generator().manual_seed(0)
    hidden_ND, weight_VD = (torch.randn(size, 8, generator=generator).to(dtype) for size in (4, 6))
    row_P, place_P = (torch.tensor(array, dtype=torch.int64) for array in (row, place))
    expected_P = (hidden_ND.double() @ weight_VD.double().T)[row_P, place_P]
    for at_once in (0, 2, 100):
        products_P = pair_products.products(hidden_ND, weight_VD, row_P, place_P, at_once)
        assert products_P.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        # Where vectors are gathered in bfloat16, each of the eight products is rounded.
        rounding = 8 * 2**-8 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(products_P.double(), expected_P, rtol=0, atol=rounding)


def test_what_lies_otherwise_is_read_too_and_nobody_is_warned():
    """Columns of a transposed matrix, and places that are a view of pairs, as `nonzero` gives them."""
    hidden_ND, weight_VD = torch.arange(32.0).view(8, 4).T, torch.arange(48.0).view(8, 6).T
    pairs_P2 = (torch.ones(4, 6).triu() > 0).nonzero()
    row_P, place_P = pairs_P2.unbind(dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        products_P = pair_products.products(hidden_ND, weight_VD, row_P, place_P)
    torch.testing.assert_close(products_P, (hidden_ND @ weight_VD.T)[row_P, place_P])
