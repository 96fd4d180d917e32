"""The LSTM of `impls/models/lstm.py` as PyTorch's LSTM, which is cuDNN's on a GPU, also for padded sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

State = tuple[Tensor, Tensor]  # h and c, (1, B, H) each

_FAR = 1e4  # saturates a sigmoid in every precision, to 1, or to 0 if negative


def build(inputs: int, hidden: int, dtype: torch.dtype) -> nn.LSTM:
    """Return a batch-major LSTM with one trainable bias."""
    lstm = nn.LSTM(inputs, hidden, batch_first=True, dtype=dtype)
    # PyTorch's LSTM has two biases that are always added. One stays zero; otherwise Adagrad would update their sum
    # twice.
    nn.init.zeros_(lstm.get_parameter("bias_hh_l0")).requires_grad_(False)
    return lstm


def names(prefix: str, module: str) -> dict[str, str]:
    """Return the mapping from canonical parameter names to those of `module`."""
    return {
        f"{prefix}_input_weight": f"{module}.weight_ih_l0",
        f"{prefix}_hidden_weight": f"{module}.weight_hh_l0",
        f"{prefix}_bias": f"{module}.bias_ih_l0",
    }


def over_padded(lstm: nn.LSTM, inputs_BSE: Tensor, lengths_B: Tensor) -> tuple[Tensor, State]:
    """Run the LSTM from zero state over sequences followed by padding.

    On a CPU, oneDNN's LSTM over all positions is faster than PyTorch's own over packed sequences.

    Args:
        lstm: An LSTM from `build`.
        inputs_BSE: Inputs with any finite vectors at padding, which have no gradient.
        lengths_B: Lengths of the sequences, at least 1, on the host.

    Returns:
        Outputs (B, S, H), finite at padding, and the state after the last position of each sequence.
    """
    return (packed if inputs_BSE.is_cuda else held)(lstm, inputs_BSE, lengths_B)


def packed(lstm: nn.LSTM, inputs_BSE: Tensor, lengths_B: Tensor) -> tuple[Tensor, State]:
    """Do the same as `over_padded`, without computing at padding.

    Sequences are sorted here, on the host, since PyTorch would synchronize to restore their order.
    """
    order_B = lengths_B.argsort(descending=True)
    order, place = (index.to(inputs_BSE.device, non_blocking=True) for index in (order_B, order_B.argsort()))
    sequences = pack_padded_sequence(inputs_BSE.index_select(0, order), lengths_B[order_B], batch_first=True)
    outputs, (h_1BH, c_1BH) = lstm(sequences)
    outputs_BSH, _ = pad_packed_sequence(outputs, batch_first=True, total_length=inputs_BSE.shape[1])
    return outputs_BSH.index_select(0, place), (h_1BH.index_select(1, place), c_1BH.index_select(1, place))


def held(lstm: nn.LSTM, inputs_BSE: Tensor, lengths_B: Tensor) -> tuple[Tensor, State]:
    """Do the same as `over_padded`, with one more input that is 1 at padding.

    It closes the input gate and opens the forget gate, so that c and its gradient stay exactly as they are.
    """
    batch, steps, _ = inputs_BSE.shape
    padding_BS1 = (torch.arange(steps) >= lengths_B[:, None])[:, :, None].to(inputs_BSE)
    gates_4H1 = inputs_BSE.new_tensor([-_FAR, _FAR, 0, 0]).repeat_interleave(lstm.hidden_size)[:, None]
    weights = [torch.cat([lstm.get_parameter("weight_ih_l0"), gates_4H1], dim=1)]
    weights += [lstm.get_parameter(name) for name in ("weight_hh_l0", "bias_ih_l0", "bias_hh_l0")]
    zero_1BH = inputs_BSE.new_zeros(1, batch, lstm.hidden_size)
    outputs_BSH, _, c_1BH = torch.lstm(
        torch.cat([inputs_BSE, padding_BS1], dim=2),
        (zero_1BH, zero_1BH),
        weights,
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=lstm.training,
        bidirectional=False,
        batch_first=True,
    )
    return outputs_BSH, (outputs_BSH[torch.arange(batch), lengths_B - 1][None], c_1BH)
