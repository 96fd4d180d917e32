"""The encoder-decoder: the definition's gradient, and every framework against the definition."""

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.models.decoding import beam_search
from vocabench.impls.models.summarizer import PADDING, SummarizerConfig
from vocabench.impls.optimizers import Optimizer

EVERY = registry.installed_frameworks()
FRAMEWORKS = [name for name in EVERY if name != "numpy"]
SOURCES, VOCAB, END = 31, 60, 1
CLIPPED = Optimizer(clip_norm=0.1, weight_decay=0.01)
ADAM = Optimizer(name="adam", learning_rate=0.01, epsilon=1e-8, clip_norm=0.2, weight_decay=0.001)
PAIRS = [(before, word, 1 + before % 3) for before in range(0, VOCAB, 2) for word in (END, before, before // 2)]
STEPS = [
    ("full_softmax", {}, CLIPPED),
    ("full_softmax", {}, ADAM),
    ("sohsm", {"interval": 0}, CLIPPED),
    ("huffman", {}, ADAM),
    ("adaptive_softmax", {}, CLIPPED),
    ("sampled_softmax", {"sampler": "bigram", "pairs": PAIRS}, ADAM),
    ("fused_softmax", {}, CLIPPED),
]


def model_of(framework, method="full_softmax", options=None, optimizer=CLIPPED, dtype="float64"):
    spec = layers.spec(method, counts=zipf_counts(VOCAB), dim=8, dtype=dtype, **(options or {}))
    config = SummarizerConfig(sources=SOURCES, end=END, embedding=5, hidden=8, optimizer=optimizer, seed=3)
    return layers.create_network(framework, spec, config)


def decisive_model_of(framework, method):
    """One whose likeliest words stand well apart, and depend on the source."""
    model = model_of(framework, method)
    model.load({name: 6.0 * value for name, value in model.initial_parameters().items()})
    return model


def padded(rows):
    width = max(len(row) for row in rows)
    return np.array([[*row, *[PADDING] * (width - len(row))] for row in rows], dtype=np.int32)


def batch(rng):
    """Six pairs with up to 7 words read and 5 written, among them one word read, and nothing but the end written."""
    sources = [rng.integers(0, SOURCES, size) for size in (4, 1, *rng.integers(1, 8, 3), 7)]
    targets = [[*rng.integers(0, VOCAB, size), END] for size in (2, 4, *rng.integers(0, 5, 3), 0)]
    return padded(sources), padded(targets)


def assert_same_parameters(ours, oracle, atol):
    assert ours.keys() == oracle.keys()
    for name, value in oracle.items():
        np.testing.assert_allclose(ours[name], value, atol=atol, err_msg=name)


def test_the_definitions_gradient_is_that_of_its_loss():
    """A step of plain descent moves every parameter by the loss's finite difference."""
    spec = layers.spec("full_softmax", counts=zipf_counts(6), dim=3, dtype="float64")
    plain = Optimizer(name="sgd", learning_rate=1.0, weight_decay=0.0, clip_norm=0.0)
    config = SummarizerConfig(sources=5, end=0, embedding=2, hidden=3, optimizer=plain)
    model = layers.create_network("numpy", spec, config)
    sources_BS = padded([[1, 4, 1], [3], [0, 2]])
    targets_BT = padded([[0], [5, 5, 2, 0], [4, 0]])
    before = {name: 2.0 * value for name, value in model.initial_parameters().items()}
    model.load(before)
    model.step(sources_BS, targets_BT)
    after = model.parameters()

    def loss(name, place, change):
        nudged = {**before, name: before[name].copy()}
        nudged[name][place] += change
        model.load(nudged)
        return model.evaluate(sources_BS, targets_BT) / 7

    for name, value in before.items():
        for place in np.ndindex(*value.shape):
            slope = (loss(name, place, 1e-5) - loss(name, place, -1e-5)) / 2e-5
            assert value[place] - after[name][place] == pytest.approx(slope, abs=1e-8), (name, place)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("method", "options", "optimizer"), STEPS)
def test_steps_are_the_definitions(framework, method, options, optimizer):
    ours, oracle = (model_of(name, method, options, optimizer) for name in (framework, "numpy"))
    rng = np.random.default_rng(0)
    for _ in range(4):
        pairs = batch(rng)
        assert float(ours.step(*pairs)) == pytest.approx(float(oracle.step(*pairs)), rel=1e-9)
    ours.synchronize()
    assert ours.parameters().keys() == ours.parameter_shapes().keys()
    assert_same_parameters(ours.parameters(), oracle.parameters(), atol=1e-9)
    assert ours.evaluate(*pairs) == pytest.approx(oracle.evaluate(*pairs), rel=1e-9)
    ours.load(ours.initial_parameters())
    assert_same_parameters(ours.parameters(), ours.initial_parameters(), atol=0)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", EVERY)
def test_padding_changes_nothing(framework):
    tight, loose = model_of(framework), model_of(framework)
    sources_BS, targets_BT = batch(np.random.default_rng(1))
    wide_BS = np.pad(sources_BS, ((0, 0), (0, 4)), constant_values=PADDING)
    wide_BT = np.pad(targets_BT, ((0, 0), (0, 3)), constant_values=PADDING)
    for _ in range(2):
        loss = float(tight.step(sources_BS, targets_BT))
        assert float(loose.step(wide_BS, wide_BT)) == pytest.approx(loss, rel=1e-12)
    assert_same_parameters(loose.parameters(), tight.parameters(), atol=1e-12)
    assert loose.evaluate(wide_BS, wide_BT) == pytest.approx(tight.evaluate(sources_BS, targets_BT), rel=1e-12)
    values_BK, ids_BK = tight.prime(sources_BS, 5)
    wide_values_BK, wide_ids_BK = loose.prime(wide_BS, 5)
    assert wide_ids_BK.tolist() == ids_BK.tolist()
    np.testing.assert_allclose(wide_values_BK, values_BK, atol=1e-12)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", ["full_softmax", "sohsm", "huffman"])
@pytest.mark.parametrize("without", [(), (END,)], ids=["ending", "endless"])
def test_the_same_beams_in_every_framework(framework, method, without):
    model = decisive_model_of(framework, method)
    sources_BS, _ = batch(np.random.default_rng(2))
    scores_BW, words_BWL = beam_search(model, sources_BS, 5, width=4, end=END, without=without)
    oracle = beam_search(decisive_model_of("numpy", method), sources_BS, 5, width=4, end=END, without=without)
    assert words_BWL.tolist() == oracle[1].tolist()
    np.testing.assert_allclose(scores_BW, oracle[0], atol=1e-9)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", EVERY)
def test_a_beams_score_is_its_words_log_probability(framework):
    model = decisive_model_of(framework, "sohsm")
    sources_BS, _ = batch(np.random.default_rng(2))
    scores_BW, words_BWL = beam_search(model, sources_BS, 5, width=4, end=END)
    ended_BWL = words_BWL == END
    assert 0 < ended_BWL.any(axis=2).mean() < 1
    targets_BWL = np.where(ended_BWL.cumsum(axis=2) > 1, PADDING, words_BWL)
    for source_S, score_W, targets_WL in zip(sources_BS, scores_BW, targets_BWL, strict=True):
        spoken = [-model.evaluate(source_S[None], target_L[None]) for target_L in targets_WL]
        np.testing.assert_allclose(score_W, spoken, atol=1e-9)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("bfloat16", 0.02)])
def test_smaller_precisions(framework, dtype, error):
    """The losses, and the likeliest words' log-probabilities, come within the precision of the definition's."""
    sources_BS, targets_BT = batch(np.random.default_rng(4))

    def numbers(framework, dtype):
        model = model_of(framework, dtype=dtype)
        loss = float(model.step(sources_BS, targets_BT))
        first_B1, _ = model.prime(sources_BS, 1)
        rows_R = np.repeat(np.arange(6), 2)
        second_R1, _ = model.extend(rows_R, np.arange(12), 1)
        return np.array([loss, model.evaluate(sources_BS, targets_BT), *first_B1[:, 0], *second_R1[:, 0]])

    np.testing.assert_allclose(numbers(framework, dtype), numbers("numpy", "float64"), rtol=error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 9}, "the layer's dim=8 differs from the LSTMs' hidden=9"),
        ({"end": VOCAB}, "end=60: allowed: a word id from 0 to 59"),
        ({"end": -1}, "end=-1"),
        ({"sources": 0}, "sources=0: allowed: a whole number from 1"),
    ],
)
@pytest.mark.parametrize("framework", EVERY)
def test_bad_input(framework, changes, message):
    spec = layers.spec("full_softmax", counts=zipf_counts(VOCAB), dim=8, dtype="float64")
    settings = {"sources": SOURCES, "end": END, "embedding": 5, "hidden": 8, **changes}
    with pytest.raises(BadInput, match=message):
        layers.create_network(framework, spec, SummarizerConfig(**settings))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_framework_takes_row_sparse_updates(framework):
    with pytest.raises(BadInput, match="row_sparse=True in the summarizer: allowed: False"):
        model_of(framework, optimizer=Optimizer(row_sparse=True))


@pytest.mark.parametrize("framework", EVERY)
def test_a_missing_parameter(framework):
    model = model_of(framework)
    params = model.initial_parameters()
    del params["attention_weight"]
    with pytest.raises(BadInput, match=r"parameters of the summarizer: missing \['attention_weight'\]"):
        model.load(params)
