"""Layers whose parameters FSDP2 shards over two processes."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

_PROCESS = """
import sys
import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from tests.impls.on_torch.native_layers import DIM, batch, extra_of, layer_of
from vocabench.impls.errors import BadInput

rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))


class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.output = nn.Linear(DIM, DIM), layer

    def forward(self, hidden, targets, **extra):
        return self.output(self.linear(hidden), targets, **extra)


for method in ("adaptive_softmax", "class_hsm", "full_softmax", "huffman", "nce", "sohsm"):
    whole, model = Model(layer_of(method)), Model(layer_of(method))
    fully_shard(model.output, mesh=mesh)
    fully_shard(model, mesh=mesh)
    (hidden, targets), extra = batch(24), extra_of(whole.output)
    for call in (lambda: model.output.topk(hidden, 3), lambda: model.output.target_log_probs(hidden, targets)):
        with pytest.raises(BadInput, match=f"parameters of {method} are sharded: allowed: calls of forward"):
            call()
    with pytest.raises((BadInput, RuntimeError)):  # no kernel reads the part of another process
        model.output._search(hidden, 3)
    for name in ("topk", "target_log_probs", "sample"):
        register_fsdp_forward_method(model.output, name)
    for _ in range(2):
        losses = []
        for made in (model, whole):
            made.zero_grad()
            losses.append(made(hidden, targets, **extra))
            losses[-1].backward()
        torch.testing.assert_close(losses[0], losses[1])
        for sharded, parameter in zip(model.parameters(), whole.parameters(), strict=True):
            if parameter.grad is not None:
                torch.testing.assert_close(sharded.grad.full_tensor(), parameter.grad, atol=1e-5, rtol=1e-3)
        for made in (model, whole):
            torch.optim.SGD(made.parameters(), lr=0.1).step()
        for results in zip(model.output.topk(hidden, 5), whole.output.topk(hidden, 5), strict=True):
            torch.testing.assert_close(*results)
        of_targets = [made.output.target_log_probs(hidden, targets) for made in (model, whole)]
        torch.testing.assert_close(*of_targets)
distributed.destroy_process_group()
"""


@pytest.mark.lengthy
def test_sharded_layers_train_and_decode_as_whole_ones(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, "-c", _PROCESS, str(rank), str(tmp_path)], env=environment)
        for rank in range(2)
    ]
    assert [process.wait(timeout=200) for process in processes] == [0, 0]
