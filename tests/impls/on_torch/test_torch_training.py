"""SOHSM in training: statistics on the device, resumed runs and several processes."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import vocabench.torch
from vocabench.impls.errors import BadInput
from vocabench.impls.on_torch.two_level import statistics
from vocabench.impls.structures.statistics import SMOOTHINGS, StatisticsWeights

VOCAB, DIM = 60, 8
COUNTS = np.arange(VOCAB, 0, -1) ** 2


def layer_of(method: str = "sohsm", **options) -> Any:
    return vocabench.torch.layer(method, counts=COUNTS, dim=DIM, **options)


def batch_of(number, tokens=40):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(tokens, DIM, generator=generator), torch.randint(VOCAB, (tokens,), generator=generator)


def train(layer, optimizer, numbers):
    """Return the losses of steps of which every third re-organizes."""
    losses = []
    for number in numbers:
        loss = layer.training_loss(*batch_of(number))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if number % 3 == 2:
            layer.reorganize(optimizer)
    return losses


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_statistics_on_the_device_follow_their_definition(smoothing, dtype):
    counts_V = np.array([1000, 1, 7, 3, 20])
    weights, expected_VC = StatisticsWeights(counts_V, smoothing), np.zeros((5, 3))
    q_VC, seen_V = torch.zeros(5, 3, dtype=dtype), torch.zeros(5, dtype=torch.int64)
    frequency_V = torch.tensor(counts_V, dtype=torch.float32)
    rng = np.random.default_rng(0)
    for tokens in (9, 1, 4):
        targets_N, log_NC = rng.integers(-1, 6, tokens), np.log(rng.dirichlet(np.ones(3), tokens))
        batch = weights.batch(targets_N)
        for index, word in enumerate(batch.words[batch.words < 5]):
            samples_NC = log_NC[targets_N == word] / np.log(2)
            share = batch.share[index]
            expected_VC[word] = batch.keep[index] * expected_VC[word] + share * samples_NC.sum(axis=0)
        statistics.update(q_VC, seen_V, torch.tensor(log_NC), torch.tensor(targets_N), frequency_V, smoothing)
    assert seen_V.tolist() == weights.seen_V.tolist()
    np.testing.assert_allclose(q_VC.numpy(), expected_VC, rtol=1e-5 if dtype == torch.float32 else 3e-3, atol=1e-5)


@pytest.mark.parametrize("optimizer_of", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.SGD])
def test_a_resumed_run_equals_the_unbroken_one(optimizer_of):
    whole = layer_of()
    optimizer = optimizer_of(whole.parameters(), lr=0.05)
    losses = train(whole, optimizer, range(8))
    first = layer_of()
    optimizer = optimizer_of(first.parameters(), lr=0.05)
    assert train(first, optimizer, range(4)) == losses[:4]
    resumed = layer_of()
    resumed.load_state_dict(first.state_dict())
    resumed_optimizer = optimizer_of(resumed.parameters(), lr=0.05)
    resumed_optimizer.load_state_dict(optimizer.state_dict())
    assert train(resumed, resumed_optimizer, range(4, 8)) == losses[4:]
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    assert int(resumed.reorganizations) == 2
    assert (whole.cluster != layer_of().cluster).any()


def test_the_optimizers_state_moves_with_its_words():
    layer = layer_of()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    train(layer, optimizer, range(2))
    slots = optimizer.state[layer.word_weight]

    def by_word():
        return layer.to_canonical({"word_weight": slots["exp_avg"]})["word_weight"].clone()

    before, hidden = by_word(), batch_of(5)
    log_probs = layer.target_log_probs(*hidden)
    before_V, after_V = layer.reorganize(optimizer)
    assert (before_V != after_V).any()
    assert torch.equal(by_word(), before)
    assert not torch.equal(layer.target_log_probs(*hidden), log_probs)


def test_layers_without_clusters_refuse_to_reorganize():
    for layer in (layer_of("huffman"), layer_of(interval=0)):
        with pytest.raises(BadInput, match=r"reorganize of .*: allowed: layers of sohsm with an interval"):
            layer.reorganize()


_PROCESS = """
import sys
import torch
from torch import distributed
from tests.impls.on_torch.test_torch_training import DIM, VOCAB, batch_of, layer_of

rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
layer = layer_of()
optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
losses = []
for number in range(7):
    hidden, targets = batch_of(number)
    own = slice(0, 15) if rank == 0 else slice(15, None)
    loss = layer.training_loss(hidden[own], targets[own], reduction="sum") / len(targets)
    optimizer.zero_grad()
    loss.backward()
    for parameter in layer.parameters():
        distributed.all_reduce(parameter.grad)
    optimizer.step()
    total = loss.detach().clone()
    distributed.all_reduce(total)
    losses.append(float(total))
    if number % 3 == 2:
        layer.reorganize(optimizer)
torch.save({"losses": losses, "state": layer.state_dict()}, f"{folder}/{rank}.pt")
distributed.destroy_process_group()
"""


@pytest.mark.lengthy
def test_two_processes_train_as_one_on_the_joined_batch(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, "-c", _PROCESS, str(rank), str(tmp_path)], env=environment)
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name, value in parts[0]["state"].items():
        assert torch.equal(parts[1]["state"][name], value), name
    alone = layer_of()
    losses = train(alone, torch.optim.Adam(alone.parameters(), lr=0.05), range(7))
    assert parts[0]["losses"] == pytest.approx(losses, rel=1e-4)
    assert torch.equal(parts[0]["state"]["cluster"], alone.cluster)
    assert torch.equal(parts[0]["state"]["seen"], alone.seen)
    torch.testing.assert_close(
        parts[0]["state"]["word_weight"], alone.state_dict()["word_weight"], rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("vocab", [VOCAB - 9, VOCAB + 9])
def test_a_resized_layer_keeps_present_clusters_and_words_and_reorganizes_again(vocab):
    layer = layer_of()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    train(layer, optimizer, range(3))
    kept = min(vocab, VOCAB)
    resized = layer.resize(np.arange(vocab, 0, -1))
    weights = [made.to_canonical({"word_weight": made.word_weight})["word_weight"] for made in (layer, resized)]
    assert torch.equal(weights[0][:kept], weights[1][:kept])
    assert float((layer.cluster[:kept] == resized.cluster[:kept]).float().mean()) > 0.8
    assert resized.reorganizes
    assert resized.training_loss(torch.randn(4, DIM), torch.full((4,), vocab - 1)).isfinite()


def test_factors_of_an_optimizers_state_are_refused_before_anything_moves():
    layer = layer_of()
    optimizer = torch.optim.Adafactor(layer.parameters())
    loss = layer.training_loss(*batch_of(0))
    loss.backward()
    optimizer.step()
    before = layer.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    with pytest.raises(BadInput, match=r"^reorganize: the optimizer's state of word_weight has shape .*: allowed: "):
        layer.reorganize(optimizer)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_a_state_without_statistics_says_what_to_do_and_starts_them_anew():
    layer, other = layer_of(), layer_of()
    layer.training_loss(*batch_of(0))
    state = {name: value for name, value in other.state_dict().items() if name not in ("statistics", "seen")}
    with pytest.warns(UserWarning, match="has no statistics, seen: a load with strict=False starts them anew"):
        layer.load_state_dict(state, strict=False)
    assert not layer.statistics.any()
    with pytest.warns(UserWarning, match="strict=False"), pytest.raises(RuntimeError, match="Missing key"):
        layer.load_state_dict(state)
