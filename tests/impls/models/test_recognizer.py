"""The speech recognizer: its definition from outside, and every framework against the definition."""

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.models.decoding import beam_search
from vocabench.impls.models.recognizer import RecognizerConfig, frames_after, sinusoids
from vocabench.impls.on_numpy.models import _ctc
from vocabench.impls.on_numpy.optimizers import Updates
from vocabench.impls.optimizers import Optimizer

ALL = registry.installed_frameworks()
FRAMEWORKS = [name for name in ALL if name != "numpy"]
# One of each kind: all units at once, clusters, a tree, a loss over samples.
PAIRS = [(3, 6, 4), (6, 4, 1), (4, 4, 2), (2, 5, 3), (3, 2, 1)]  # of units of the targets below
METHODS = {
    "full_softmax": {},
    "sohsm": {},
    "huffman": {},
    "sampled_softmax": {"samples": 5, "sampler": "bigram", "pairs": PAIRS},
}
VOCAB, END = 13, 3
PLAIN = Optimizer(name="sgd", learning_rate=1.0, weight_decay=0.0, clip_norm=0.0)
TINY = RecognizerConfig(
    end=END,
    dim=8,
    mels=11,
    channels=3,
    heads=2,
    feed_forward=12,
    kernel=3,
    encoder_layers=1,
    decoder_layers=1,
    smoothing=0.1,
    ctc_weight=0.3,
    optimizer=PLAIN,
    warmup=0,
    seed=3,
)
DEEPER = replace(TINY, encoder_layers=2, decoder_layers=2)  # for one test alone: compiling takes in proportion
# The third has 3 frames after the convolutions, and CTC needs 4 for its units; the last says nothing.
FRAMES_B = np.array([40, 31, 15, 22])
TARGETS_BT = np.array([[6, 4, 4, END], [12, END, -1, -1], [2, 2, 5, END], [END, -1, -1, -1]])


def features_of(frames_B, mels=11):
    features_BFM = np.random.default_rng(0).normal(size=(len(frames_B), frames_B.max(), mels))
    features_BFM[np.arange(frames_B.max()) >= frames_B[:, None]] = 0
    return features_BFM


BATCH = features_of(FRAMES_B), FRAMES_B, TARGETS_BT


def model_of(framework, method, config=TINY):
    """Return a model without a zero among its parameters."""
    spec = layers.spec(method, counts=zipf_counts(VOCAB), dim=8, dtype="float64", **METHODS[method])
    model = layers.create_network(framework, spec, config)
    rng = np.random.default_rng(1)
    model.load({name: value + rng.normal(0, 0.2, value.shape) for name, value in model.initial_parameters().items()})
    return model


def first_extra(model):
    """Return the random inputs of the loss for a model before its first step."""
    return model.next_extra_for(TARGETS_BT)


@functools.cache
def slopes(method, config):
    """The definition's loss and, for the parameters of each module, a direction with the loss's slope along it by
    central differences."""
    model = model_of("numpy", method, config)
    params, extra, rng = model.parameters(), first_extra(model), np.random.default_rng(2)
    loss, found = model.loss(*BATCH, **extra), []
    for _, names in itertools.groupby(params, lambda name: name.rpartition(".")[0]):
        direction = {name: rng.normal(size=params[name].shape) for name in names}
        ends = []
        for reach in (1e-5, -1e-5):
            model.load(params | {name: params[name] + reach * value for name, value in direction.items()})
            ends.append(model.loss(*BATCH, **extra))
        found.append((direction, (ends[0] - ends[1]) / 2e-5))
    return loss, found


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("method", "config"), [("full_softmax", DEEPER), ("huffman", TINY), ("sampled_softmax", TINY)])
def test_loss_and_gradient_are_the_definitions(framework, method, config):
    model = model_of(framework, method, config)
    before, (loss, found) = model.parameters(), slopes(method, config)
    assert model.evaluate(*BATCH) == pytest.approx(model_of("numpy", method, config).evaluate(*BATCH), rel=1e-9)
    assert float(model.step(*BATCH)) == pytest.approx(loss, rel=1e-9)
    after = model.parameters()
    for direction, slope in found:
        moved = sum(((before[name] - after[name]) * value).sum() for name, value in direction.items())
        assert moved == pytest.approx(slope, abs=1e-7), list(direction)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", ["huffman", "sampled_softmax"])
def test_the_loss_alone_without_smoothing_and_ctc(framework, method):
    config = replace(TINY, smoothing=0.0, ctc_weight=0.0)
    model, oracle = model_of(framework, method, config), model_of("numpy", method, config)
    assert not any(name.startswith("ctc") for name in model.parameters())
    loss = float(model.step(*BATCH))
    assert loss == pytest.approx(oracle.loss(*BATCH, **first_extra(oracle)), rel=1e-9)
    if method == "huffman":
        assert loss == pytest.approx(oracle.evaluate(*BATCH) / (TARGETS_BT >= 0).sum(), rel=1e-9)


# Keys' biases move all scores of a softmax alike: their gradient is rounding, which a small epsilon would blow up.
ADAM = Optimizer(name="adam", learning_rate=0.01, epsilon=1e-6, beta2=0.98, weight_decay=0.01, clip_norm=1.0)
WARMUP, STEPS = 3, 6


@functools.cache
def trained():
    """Parameters after steps of the definition's Adam at a rate that rises and falls, on PyTorch's gradients: those are
    what a plain step takes away."""
    pytest.importorskip("torch")
    model = model_of("torch", "full_softmax")
    params = model.parameters()
    updates = Updates(ADAM, params)
    for number in range(1, STEPS + 1):
        model.load(params)
        model.step(*BATCH)
        grads = {name: params[name] - value for name, value in model.parameters().items()}
        rate = 0.01 * (number / WARMUP if number <= WARMUP else (WARMUP / number) ** 0.5)
        updates.optimizer = replace(ADAM, learning_rate=rate)
        updates.apply(params, grads)
    return params


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_adam_with_a_rate_that_rises_and_falls(framework):
    model = model_of(framework, "full_softmax", replace(TINY, optimizer=ADAM, warmup=WARMUP))
    start = model.parameters()
    for again in range(2):  # loading starts the schedule and the moments anew
        model.load(start)
        for _ in range(STEPS):
            model.step(*BATCH)
        after = model.parameters()
        for name, value in trained().items():
            np.testing.assert_allclose(after[name], value, atol=1e-9, err_msg=f"{name}, {again}")


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", ALL)
def test_padding_and_companions_change_nothing(framework):
    model = model_of(framework, "full_softmax")
    features_BFM, frames_B, targets_BT = BATCH
    each_B = []
    for row, units in enumerate((targets_BT >= 0).sum(axis=1)):
        one = slice(row, row + 1)
        each_B.append(model.evaluate(features_BFM[one, : frames_B[row]], frames_B[one], targets_BT[one, :units]))
    wider = np.random.default_rng(4).normal(size=(4, 49, 11))  # what stands in the padding is not looked at
    for row, frames in enumerate(frames_B):
        wider[row, :frames] = features_BFM[row, :frames]
    longer = np.pad(targets_BT, ((0, 0), (0, 2)), constant_values=-1)
    assert model.evaluate(*BATCH) == pytest.approx(sum(each_B), rel=1e-12)
    assert model.evaluate(wider, frames_B, longer) == pytest.approx(sum(each_B), rel=1e-12)
    losses = [
        model.loss(*inputs) if framework == "numpy" else float(model_of(framework, "full_softmax").step(*inputs))
        for inputs in (BATCH, (wider, frames_B, longer))
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", ["full_softmax", "sohsm", "huffman"])
def test_the_same_beams_as_the_definitions_whose_scores_are_those_of_teacher_forcing(framework, method):
    width, length = 3, 5
    model, oracle = model_of(framework, method), model_of("numpy", method)
    start_B1 = np.full((4, 1), END)
    oracle.listen(*BATCH[:2], length)
    said = int(beam_search(oracle, start_B1, length, width=width)[1][0, 0, 2])
    found = []
    for each in (model, oracle):
        each.listen(BATCH[0][:2], FRAMES_B[:2], length)  # what was listened to before is forgotten
        beam_search(each, start_B1[:2], 3, width=2)
        each.listen(*BATCH[:2], length)
        found.append(beam_search(each, start_B1, length, width=width, end=said))
    (scores_BW, units_BWL), (oracle_scores_BW, oracle_units_BWL) = found
    assert units_BWL.tolist() == oracle_units_BWL.tolist()
    np.testing.assert_allclose(scores_BW, oracle_scores_BW, atol=1e-9)
    ends_BWL = units_BWL == said
    after_end_BWL = np.cumsum(ends_BWL, axis=2) - ends_BWL > 0
    assert after_end_BWL.any()
    targets_BWL = np.where(after_end_BWL, -1, units_BWL)
    for place in range(width):
        nll = model.evaluate(*BATCH[:2], targets_BWL[:, place])
        assert nll == pytest.approx(-scores_BW[:, place].sum(), rel=1e-9)


def test_the_definitions_decoder_is_torchs():
    torch = pytest.importorskip("torch")
    model = model_of("numpy", "full_softmax")
    params = {name: torch.tensor(value) for name, value in model.parameters().items()}
    options = {"dropout": 0.0, "batch_first": True, "norm_first": True, "dtype": torch.float64}
    theirs = torch.nn.TransformerDecoderLayer(8, 2, 12, **options)
    given = {}
    for ours, name, norm in (("self", "self_attn", 1), ("cross", "multihead_attn", 2)):
        block = f"decoder.0.{ours}"
        for kind in ("weight", "bias"):
            parts = [params[f"{block}.{part}_{kind}"] for part in ("query", "key", "value")]
            given[f"{name}.in_proj_{kind}"] = torch.cat(parts)
            given[f"{name}.out_proj.{kind}"] = params[f"{block}.out_{kind}"]
            given[f"norm{norm}.{kind}"] = params[f"{block}.norm_{'scale' if kind == 'weight' else kind}"]
    for kind in ("weight", "bias"):
        given[f"linear1.{kind}"] = params[f"decoder.0.feed.in_{kind}"]
        given[f"linear2.{kind}"] = params[f"decoder.0.feed.out_{kind}"]
        given[f"norm3.{kind}"] = params[f"decoder.0.feed.norm_{'scale' if kind == 'weight' else kind}"]
    theirs.load_state_dict(given)
    heard = model._encode(*BATCH[:2])
    read_BT = model.inputs_of(TARGETS_BT)
    with torch.no_grad():
        x_BTD = params["embedding"][torch.tensor(read_BT)] * 8**0.5 + torch.tensor(sinusoids(range(4), 8))
        x_BTD = theirs(
            x_BTD,
            torch.tensor(heard.frames_BSD),
            tgt_mask=torch.ones(4, 4, dtype=torch.bool).triu(1),
            memory_key_padding_mask=torch.tensor(~heard.real_BS),
        )
        last = params["decoder.norm_scale"], params["decoder.norm_bias"]
        hidden_BTD = torch.nn.functional.layer_norm(x_BTD, (8,), *last)
    np.testing.assert_allclose(model._decode(read_BT, heard), hidden_BTD.numpy(), atol=1e-12)


@pytest.mark.parametrize("labels", [[], [1], [0, 1], [1, 1], [0, 1, 0], [2, 2, 0], [1, 1, 1], [0, 1, 2, 0, 1]])
def test_ctc_sums_over_all_ways_to_say_the_units(labels):
    blank, frames = 3, 4
    scores_SU = np.random.default_rng(0).normal(size=(frames, blank + 1))
    log_probs_SU = scores_SU - np.log(np.exp(scores_SU).sum(axis=1, keepdims=True))
    total = 0.0
    for path in itertools.product(range(blank + 1), repeat=frames):
        if [unit for unit, _ in itertools.groupby(path) if unit != blank] == labels:
            total += np.exp(log_probs_SU[np.arange(frames), path].sum())
    nll = _ctc.nll(log_probs_SU, np.array(labels, dtype=np.int64))
    assert np.exp(-nll) == pytest.approx(total, rel=1e-12)
    assert np.isfinite(nll) == (len(labels) + sum(a == b for a, b in itertools.pairwise(labels)) <= frames)


def test_ctc_is_torchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for _ in range(20):
        frames, units = rng.integers(1, 30), rng.integers(0, 12)
        log_probs_SU = torch.log_softmax(torch.tensor(rng.normal(size=(frames, 6))), dim=1)
        labels_L = rng.integers(0, 5, units)
        theirs = torch.nn.functional.ctc_loss(
            log_probs_SU[:, None], torch.tensor(labels_L[None]), (frames,), (units,), blank=5, reduction="sum"
        )
        assert _ctc.nll(log_probs_SU.numpy(), labels_L) == pytest.approx(float(theirs), rel=1e-12)


def test_too_few_frames_add_nothing_to_ctc():
    """The third utterance's share of the loss does not depend on the softmax of CTC."""
    model = model_of("numpy", "full_softmax")
    third = BATCH[0][2:3, :15], FRAMES_B[2:3], TARGETS_BT[2:3]
    loss = model.loss(*third)
    model.load({**model.parameters(), "ctc_bias": np.arange(VOCAB + 1.0)})
    assert model.loss(*third) == loss
    enough = (*third[:2], np.array([[2, 5, 2, END]]))
    before = model.loss(*enough)
    model.load({**model.parameters(), "ctc_bias": np.zeros(VOCAB + 1)})
    assert abs(model.loss(*enough) - before) > 0.1


def test_frames_after_the_convolutions():
    assert frames_after(np.arange(5, 17)).tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    assert frames_after(0) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "recognizer dim=0: allowed: a whole number from 1"),
        ({"encoder_layers": 0}, "recognizer encoder_layers=0"),
        ({"heads": 3}, r"dim=8 with heads=3: allowed: a multiple of 2 \* heads"),
        ({"kernel": 4}, "kernel=4: allowed: an odd number"),
        ({"mels": 6}, "mels=6: allowed: from 7"),
        ({"smoothing": 1.0}, "smoothing=1.0: allowed: from 0, below 1"),
        ({"ctc_weight": -0.1}, "ctc_weight=-0.1: allowed: from 0, below 1"),
        ({"warmup": -1}, "warmup=-1: allowed: a whole number from 0"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(BadInput, match=message):
        replace(TINY, **changes)


@pytest.mark.parametrize("framework", ALL)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 16}, "the layer's dim=8 differs from the recognizer's dim=16"),
        ({"end": VOCAB}, "end=13: allowed: a word id from 0 to 12"),
    ],
)
def test_a_recognizer_that_does_not_fit_its_layer(framework, changes, message):
    with pytest.raises(BadInput, match=message):
        model_of(framework, "full_softmax", replace(TINY, **changes))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_row_sparse_updates_are_refused(framework):
    with pytest.raises(BadInput, match="row_sparse=True in the recognizer: allowed: False"):
        model_of(framework, "full_softmax", replace(TINY, optimizer=replace(PLAIN, row_sparse=True)))


def test_the_definition_has_no_training():
    with pytest.raises(BadInput, match="no training: allowed: torch, tensorflow, jax"):
        model_of("numpy", "full_softmax").step(*BATCH)
