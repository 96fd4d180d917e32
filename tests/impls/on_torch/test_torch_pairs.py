"""Products of pairs in PyTorch give the same values whether vectors are read in place or gathered."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from vocabench.impls.on_torch.ops import pair_products


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("row", "place"),
    [
        ([], []),
        ([0, 0, 2, 3], [4, 0, 4, 1]),  # a row without pairs, and a word in two rows
        ([1] * 7, [2] * 7),  # the same pair repeatedly
        ([3] * 30, [5] * 30),  # more repetitions than a matrix of all pairs has elements
    ],
)
def test_products_equal_those_of_the_full_matrix(row, place, dtype):
    generator = torch.Generator().manual_seed(0)
    hidden_ND, weight_VD = (torch.randn(size, 8, generator=generator).to(dtype) for size in (4, 6))
    row_P, place_P = (torch.tensor(array, dtype=torch.int64) for array in (row, place))
    expected_P = (hidden_ND.double() @ weight_VD.double().T)[row_P, place_P]
    for at_once in (0, 2, 100):
        products_P = pair_products.products(hidden_ND, weight_VD, row_P, place_P, at_once)
        assert products_P.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        # With gathered bfloat16 vectors, each of the eight products is rounded.
        rounding = 8 * 2**-8 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(products_P.double(), expected_P, rtol=0, atol=rounding)


def test_other_memory_layouts_are_read_without_warnings():
    """The matrices are transposed, and the indices are views, as returned by `nonzero`."""
    hidden_ND, weight_VD = torch.arange(32.0).view(8, 4).T, torch.arange(48.0).view(8, 6).T
    pairs_P2 = (torch.ones(4, 6).triu() > 0).nonzero()
    row_P, place_P = pairs_P2.unbind(dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        products_P = pair_products.products(hidden_ND, weight_VD, row_P, place_P)
    torch.testing.assert_close(products_P, (hidden_ND @ weight_VD.T)[row_P, place_P])
