"""Weight tying: an embedding and an output layer share their word vectors."""

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from tests.impls.on_torch.native_layers import DIM, METHODS, VOCAB, batch, extra_of, in_all_forms, layer_of, spec_of
from vocabench.impls.errors import BadInput
from vocabench.impls.tying import tied_name


def is_tieable(method):
    shapes = spec_of(method).parameter_shapes()
    return (VOCAB, DIM) in (shapes.get("weight"), shapes.get("word_weight"))


TIEABLE = [method for method in METHODS if is_tieable(method)]
STORED_BY_CLUSTER = ["sohsm", "class_hsm"]
of_all_tieable = pytest.mark.parametrize("method", TIEABLE)


class Model(nn.Module):
    """Predicts a word from the vector of another one."""

    def __init__(self, layer, **options):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, DIM, **options)
        self.output = layer
        self.output.tie(self.embedding)

    def forward(self, words, targets, **extra):
        return self.output(self.embedding(words), targets, **extra)


def words_of(layer) -> torch.Tensor:
    """Return the (V, D) word vectors of a layer in the order of the words."""
    return layer.to_canonical(dict(layer.named_parameters()))[tied_name(layer.spec)]


def gradients_of(layer) -> dict[str, torch.Tensor]:
    parameters = layer.named_parameters()
    return {name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in parameters}


def assert_tied(model):
    ids = torch.arange(model.output.spec.vocab)
    assert torch.equal(model.embedding(ids), words_of(model.output))
    assert torch.equal(model.embedding.weight, words_of(model.output))


def test_methods_with_a_vector_of_each_word_can_be_tied():
    assert {"full_softmax", "fused_softmax", "inplace_softmax", "nce", *STORED_BY_CLUSTER} <= set(TIEABLE)


@of_all_tieable
def test_a_tied_layer_takes_over_the_vectors_of_the_embedding(method):
    for layer in in_all_forms(method):
        embedding = nn.Embedding(VOCAB, DIM)
        before, ids = embedding.weight.detach().clone(), torch.tensor([[3, 0, 59], [7, 7, 1]])
        layer.tie(embedding)
        assert torch.equal(embedding(ids), before[ids])
        assert torch.equal(embedding.weight, before)
        assert torch.equal(words_of(layer), before)


@of_all_tieable
def test_gradients_of_both_uses_add_up_and_training_keeps_the_tie(method):
    words, (_, targets) = torch.arange(24) % 9, batch(24)
    for layer in in_all_forms(method):
        model, extra = Model(layer), extra_of(layer)
        apart: Any = layer_of(method)
        apart.load_canonical(layer.to_canonical(dict(layer.named_parameters())))
        embedding = nn.Embedding.from_pretrained(model.embedding.weight.detach().clone(), freeze=False)
        apart(embedding(words), targets, **extra).backward()
        model(words, targets, **extra).backward()
        assert embedding.weight.grad is not None
        name = tied_name(layer.spec)
        of_both, of_output = (made.to_canonical(gradients_of(made))[name] for made in (layer, apart))
        torch.testing.assert_close(of_both, of_output + embedding.weight.grad, atol=1e-5, rtol=1e-4)
        before = model.embedding.weight.detach().clone()
        torch.optim.Adam(model.parameters(), lr=0.1).step()
        assert not torch.equal(model.embedding.weight, before)
        assert_tied(model)


def test_lookups_follow_words_that_move_to_other_clusters():
    for layer in in_all_forms("sohsm"):
        model: Any = Model(layer)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        words, (_, targets) = torch.arange(200) % VOCAB, batch(200)
        model.output.training_loss(model.embedding(words), targets).backward()
        optimizer.step()
        before = model.embedding.weight.detach().clone()
        before_V, after_V = model.output.reorganize(optimizer)
        assert (before_V != after_V).any()
        assert torch.equal(model.embedding.weight, before)
        assert_tied(model)


@of_all_tieable
@pytest.mark.parametrize("vocab", [VOCAB - 7, VOCAB + 9])
def test_resizing_moves_the_tie_to_the_new_layer(method, vocab):
    for layer in in_all_forms(method):
        model: Any = Model(layer)
        model = copy.deepcopy(model)
        old, before, kept = model.output, model.embedding.weight.detach().clone(), min(vocab, VOCAB)
        model.output = old.resize(np.arange(vocab, 0, -1))
        assert_tied(model)
        assert model.embedding.num_embeddings == vocab
        assert torch.equal(model.embedding.weight[:kept], before[:kept])
        assert torch.equal(words_of(old), before)
        words, (_, targets) = torch.arange(24) % vocab, batch(24)
        model(words, targets % vocab, **extra_of(model.output)).backward()
        torch.optim.Adam(model.parameters(), lr=0.1).step()
        assert not torch.equal(model.embedding.weight[:kept], before[:kept])
        assert_tied(model)


def test_resizing_leaves_an_embedding_that_is_no_longer_tied():
    model = Model(layer_of("full_softmax"))
    model.embedding.weight = nn.Parameter(model.embedding.weight.detach().clone())
    resized: Any = model.output.resize(np.arange(VOCAB + 9, 0, -1))
    assert model.embedding.num_embeddings == VOCAB
    assert resized.weight is not model.embedding.weight


def test_a_word_of_padding_that_resizing_drops_is_no_padding_any_more():
    for method in ("full_softmax", "sohsm"):
        model: Any = Model(layer_of(method), padding_idx=VOCAB - 1)
        model.output = model.output.resize(np.arange(VOCAB - 7, 0, -1))
        assert model.embedding.padding_idx is None
        assert model.embedding(torch.arange(VOCAB - 7)).requires_grad


@of_all_tieable
def test_copies_and_states_keep_the_tie(method):
    model = Model(layer_of(method))
    state, file = copy.deepcopy(model.state_dict()), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        with torch.no_grad():
            copied.output.get_parameter(largest(copied.output)).add_(1.0)
        assert_tied(copied)
        assert not torch.equal(copied.embedding.weight, model.embedding.weight)
    other = Model(layer_of(method))
    assert not torch.equal(other.embedding.weight, model.embedding.weight)
    other.load_state_dict(state)
    assert torch.equal(other.embedding.weight, model.embedding.weight)
    assert_tied(other)
    assert sum(value.numel() for value in other.parameters()) == sum(
        value.numel() for value in other.output.parameters()
    )


def largest(layer) -> str:
    return max(layer.named_parameters(), key=lambda item: item[1].numel())[0]


@pytest.mark.parametrize("method", STORED_BY_CLUSTER)
def test_the_vector_of_padding_has_no_gradient_of_lookups(method):
    model: Any = Model(layer_of(method), padding_idx=7)
    vectors = model.embedding(torch.tensor([7, 7, 3]))
    vectors.sum().backward()
    by_word = model.output.to_canonical(gradients_of(model.output))[tied_name(model.output.spec)]
    assert by_word.sum(dim=1).nonzero().tolist() == [[3]]


@pytest.mark.parametrize("method", STORED_BY_CLUSTER)
def test_ids_outside_the_vocabulary_are_refused(method):
    model = Model(layer_of(method))
    for outside in (-1, VOCAB):
        with pytest.raises(IndexError):
            model.embedding(torch.tensor([0, outside]))


def test_embeddings_that_do_not_fit_are_refused():
    for method in ("full_softmax", "sohsm"):
        layer: Any = layer_of(method)
        for wrong, message in (
            (nn.Embedding(VOCAB + 1, DIM), r"embedding has shape \(61, 16\): allowed: \(60, 16\)"),
            (
                nn.Embedding(VOCAB, DIM, dtype=torch.float64),
                "embedding is torch.float64 on cpu: allowed: torch.flo",
            ),
            (nn.Linear(DIM, VOCAB), "embedding is a Linear: allowed: a torch.nn.Embedding"),
        ):
            with pytest.raises(BadInput, match=message):
                layer.tie(wrong)
    for options in ({"sparse": True}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}):
        with pytest.raises(BadInput, match=r"embedding=.*: allowed with sohsm: an nn.Embedding without options"):
            Model(layer_of("sohsm"), **options)
    model = Model(layer_of("sohsm"))
    with pytest.raises(BadInput, match="embedding is already tied"):
        layer_of("sohsm").tie(model.embedding)


@pytest.mark.parametrize("method", [method for method in METHODS if method not in TIEABLE])
def test_methods_without_a_vector_of_each_word_refuse_to_be_tied(method):
    with pytest.raises(BadInput, match=f"tie of {method}: allowed: methods with"):
        layer_of(method).tie(nn.Embedding(VOCAB, DIM))
