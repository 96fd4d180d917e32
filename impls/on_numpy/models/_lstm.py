"""The LSTM of `impls/models/lstm.py` over a batch of sequences in float64, with hand-written back-propagation.

i, f, g, o = split(W_x x_t + W_h h_{t-1} + b);  c_t = sigma(f) c_{t-1} + sigma(i) tanh(g);  h_t = sigma(o) tanh(c_t)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.on_numpy.oracle import sigmoid
from vocabench.impls.spec import Arrays

State = tuple[NDArray, NDArray]  # h and c, (B, H) each
Tape = list[tuple[NDArray, ...]]


def forward(
    params: Arrays, prefix: str, inputs_BTE: NDArray, state: State | None = None, real_BT: NDArray | None = None
) -> tuple[NDArray, State, Tape]:
    """Return the outputs (B, T, H), the final state, and the tape that `backward` needs.

    Args:
        params: Parameters that include `<prefix>_input_weight`, `<prefix>_hidden_weight` and `<prefix>_bias`.
        prefix: Prefix of the parameter names.
        inputs_BTE: Input vectors of the steps.
        state: State before the first step; zeros by default.
        real_BT: Mask that is False at padding, where the state stays the same; all True by default.
    """
    batch, steps, _ = inputs_BTE.shape
    input_weight, hidden_weight = params[f"{prefix}_input_weight"], params[f"{prefix}_hidden_weight"]
    hidden = hidden_weight.shape[1]
    h_BH, c_BH = state or (np.zeros((batch, hidden)), np.zeros((batch, hidden)))
    real_BT1 = np.ones((batch, steps, 1), dtype=bool) if real_BT is None else real_BT[:, :, None]
    outputs_BTH = np.empty((batch, steps, hidden))
    tape: Tape = []
    for t in range(steps):
        gates = inputs_BTE[:, t] @ input_weight.T + h_BH @ hidden_weight.T + params[f"{prefix}_bias"]
        i, f, g, o = np.split(gates, 4, axis=1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        c_new = f * c_BH + i * g
        tanh_c = np.tanh(c_new)
        tape.append((inputs_BTE[:, t], real_BT1[:, t], h_BH, c_BH, i, f, g, o, tanh_c))
        h_BH, c_BH = np.where(real_BT1[:, t], o * tanh_c, h_BH), np.where(real_BT1[:, t], c_new, c_BH)
        outputs_BTH[:, t] = h_BH
    return outputs_BTH, (h_BH, c_BH), tape


def backward(
    params: Arrays, prefix: str, tape: Tape, doutputs_BTH: NDArray, dfinal: State | None = None
) -> tuple[Arrays, NDArray, State]:
    """Return the gradients of the parameters, of the inputs (B, T, E), and of the state before the first step.

    Args:
        params: Parameters as for `forward`.
        prefix: Prefix of the parameter names.
        tape: Tape that `forward` returned.
        doutputs_BTH: Gradient with respect to the outputs.
        dfinal: Gradient with respect to the final state; zeros by default.
    """
    input_weight, hidden_weight = params[f"{prefix}_input_weight"], params[f"{prefix}_hidden_weight"]
    dinput_weight, dhidden_weight = np.zeros_like(input_weight), np.zeros_like(hidden_weight)
    dbias = np.zeros_like(params[f"{prefix}_bias"])
    dinputs_BTE = np.empty((*doutputs_BTH.shape[:2], input_weight.shape[1]))
    dh, dc = dfinal or (np.zeros_like(doutputs_BTH[:, 0]), np.zeros_like(doutputs_BTH[:, 0]))
    for t, (x, real_B1, h_before, c_before, i, f, g, o, tanh_c) in reversed(list(enumerate(tape))):
        dh = dh + doutputs_BTH[:, t]
        passed_h, passed_c = np.where(real_B1, 0, dh), np.where(real_B1, 0, dc)
        dh, dc = dh - passed_h, dc - passed_c
        dc = dc + dh * o * (1 - tanh_c**2)
        dgates = np.concatenate(
            [dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g**2), dh * tanh_c * o * (1 - o)],
            axis=1,
        )
        dinput_weight += dgates.T @ x
        dhidden_weight += dgates.T @ h_before
        dbias += dgates.sum(axis=0)
        dinputs_BTE[:, t] = dgates @ input_weight
        dh, dc = dgates @ hidden_weight + passed_h, dc * f + passed_c
    grads = {
        f"{prefix}_input_weight": dinput_weight,
        f"{prefix}_hidden_weight": dhidden_weight,
        f"{prefix}_bias": dbias,
    }
    return grads, dinputs_BTE, (dh, dc)
