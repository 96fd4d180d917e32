"""PyTorch's LSTM over padded sequences, both implementations, compared with each sequence alone."""

import pytest

from vocabench.harness import registry

if "torch" not in registry.installed_frameworks():
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import torch

from vocabench.impls.on_torch.models import _lstm


@pytest.mark.parametrize("over_padded", [_lstm.packed, _lstm.held])
def test_padding_is_not_read(over_padded):
    torch.manual_seed(0)
    lstm = _lstm.build(3, 4, torch.float64)
    inputs_BSE = torch.randn(4, 6, 3, dtype=torch.float64)
    lengths_B = torch.tensor([4, 1, 6, 3])

    trained = [p for p in lstm.parameters() if p.requires_grad]
    outputs_BSH, (h_1BH, c_1BH) = over_padded(lstm, inputs_BSE.requires_grad_(), lengths_B)
    alone = [lstm(row_SE[None, :length]) for row_SE, length in zip(inputs_BSE.detach(), lengths_B, strict=True)]
    total = alone_total = torch.zeros((), dtype=torch.float64)
    for row, (length, (alone_1SH, (alone_h, alone_c))) in enumerate(zip(lengths_B, alone, strict=True)):
        torch.testing.assert_close(outputs_BSH[row, :length], alone_1SH[0])
        torch.testing.assert_close(h_1BH[:, row], alone_h[:, 0])
        torch.testing.assert_close(c_1BH[:, row], alone_c[:, 0])
        total = total + (outputs_BSH[row, :length] ** 2).sum() + (h_1BH[:, row] * c_1BH[:, row]).sum()
        alone_total = alone_total + (alone_1SH**2).sum() + (alone_h * alone_c).sum()
    assert outputs_BSH.isfinite().all()
    *dparameters, dinputs_BSE = torch.autograd.grad(total, [*trained, inputs_BSE])
    torch.testing.assert_close(dparameters, list(torch.autograd.grad(alone_total, trained)))
    padding_BS = torch.arange(6) >= lengths_B[:, None]
    assert (dinputs_BSE[padding_BS] == 0).all()
    assert (dinputs_BSE[~padding_BS] != 0).all()
