"""Causal language models of transformers with output layers: training, saving, resizing and generation."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import vocabench.huggingface
from vocabench.harness import registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput

VOCAB = 50
# Peers compile or need a GPU; those losses are the same functions as full softmax.
METHODS = [method for method in registry.methods("torch") if not method.endswith("cross_entropy")]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def config_of(method, vocab=VOCAB, tied=False, **more):
    output_layer: Any = {"method": method, "counts": zipf_counts(vocab).tolist(), **more}
    config: Any = LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=tied,
    )
    config.output_layer = output_layer
    return config


def model_of(method, **more) -> Any:
    torch.manual_seed(0)
    return vocabench.huggingface.causal_lm(LlamaForCausalLM)(config_of(method, **more))


def sentences(count=12, seed=0):
    """Return token ids that a model can learn: every sentence counts upwards."""
    starts = np.random.default_rng(seed).integers(2, VOCAB - 10, count)
    return [{"input_ids": ids, "labels": ids} for ids in (torch.arange(start, start + 8) for start in starts.tolist())]


def trained(model, folder, epochs=8, **more):
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=6,
        learning_rate=0.02,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **more,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=sentences())
    trainer.train()
    return trainer


def loss_of(model):
    batch = {name: torch.stack([sentence[name] for sentence in sentences()]) for name in ("input_ids", "labels")}
    model.eval()
    torch.manual_seed(0)  # sampled losses draw words
    with torch.no_grad():
        return float(model(**batch).loss)


@pytest.mark.parametrize("method", METHODS)
def test_every_layer_trains_saves_loads_and_generates(method, tmp_path):
    model = model_of(method)
    before = loss_of(model)
    trained(model, tmp_path / "run")
    after = loss_of(model)
    assert after < before
    model.save_pretrained(tmp_path / "saved")
    loaded: Any = type(model).from_pretrained(tmp_path / "saved")
    assert loss_of(loaded) == pytest.approx(after, rel=1e-5)
    ids = loaded.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False, pad_token_id=1)
    assert ids.shape[1] <= 7
    assert int(ids.max()) < VOCAB


def test_the_loss_makes_no_logits_and_accumulates_over_batches(tmp_path):
    model = model_of("huffman")
    batch = torch.stack([sentence["input_ids"] for sentence in sentences()])
    whole = model(input_ids=batch, labels=batch)
    assert whole.logits is None
    halves = sum(model(input_ids=half, labels=half, num_items_in_batch=12 * 7).loss for half in batch.split(6))
    torch.testing.assert_close(whole.loss, halves)


@pytest.mark.parametrize("method", ["full_softmax", "huffman", "sohsm", "adaptive_softmax"])
@pytest.mark.parametrize(
    "how",
    [{"do_sample": False}, {"do_sample": False, "num_beams": 3}, {"do_sample": True, "top_k": 4, "temperature": 0.7}],
    ids=["greedy", "beams", "sampling"],
)
def test_generation_by_top_k_equals_generation_by_all_words(method, how, monkeypatch):
    model = model_of(method).eval()
    prompt = torch.tensor([[3, 4, 5], [9, 8, 7]])
    common = {"max_new_tokens": 6, "pad_token_id": 1, **how}
    torch.manual_seed(7)
    few = model.generate(prompt, **common)
    monkeypatch.setattr(vocabench.huggingface, "_words_needed", lambda config, vocab: None)
    torch.manual_seed(7)
    assert torch.equal(few, model.generate(prompt, **common))


def test_generation_searches_few_words_unless_an_option_needs_all(monkeypatch):
    model = model_of("huffman").eval()
    searched = []
    monkeypatch.setattr(
        model.lm_head.layer,
        "log_probs",
        lambda hidden, log_probs=model.lm_head.layer.log_probs: searched.append(1) or log_probs(hidden),
    )
    prompt = torch.tensor([[3, 4, 5]])
    model.generate(prompt, max_new_tokens=2, do_sample=False, pad_token_id=1)
    assert not searched
    model.generate(prompt, max_new_tokens=2, do_sample=False, pad_token_id=1, repetition_penalty=1.3)
    assert searched


@pytest.mark.parametrize("vocab", [VOCAB - 5, VOCAB + 6])
@pytest.mark.parametrize("method", ["full_softmax", "huffman", "sohsm", "class_hsm"])
def test_a_resized_model_trains_saves_and_loads(method, vocab, tmp_path):
    model = model_of(method)
    embedding = model.resize_token_embeddings(vocab)
    assert embedding.num_embeddings == vocab == model.lm_head.layer.spec.vocab
    ids = torch.tensor([[3, 4, vocab - 1]])
    model(input_ids=ids, labels=ids).loss.backward()
    model.save_pretrained(tmp_path)
    loaded: Any = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


@pytest.mark.parametrize("method", ["full_softmax", "sohsm", "class_hsm"])
def test_tied_embeddings_train_save_load_and_resize(method, tmp_path):
    model = model_of(method, tied=True)
    ids = torch.tensor([[3, 4, 9]])
    before = model.model.embed_tokens.weight.detach().clone()
    model(input_ids=ids, labels=ids).loss.backward()
    torch.optim.Adam(model.parameters(), lr=0.01).step()
    for vocab in (VOCAB, VOCAB + 6):
        embedding = model.resize_token_embeddings(vocab)
        words = torch.arange(vocab)
        assert torch.equal(embedding(words), model.lm_head.layer.word_vectors(words))
        assert not torch.equal(embedding.weight[:VOCAB], before)
        model.save_pretrained(tmp_path / str(vocab))
        loaded: Any = type(model).from_pretrained(tmp_path / str(vocab))
        loaded_embedding = loaded.get_input_embeddings()
        assert torch.equal(loaded_embedding.weight, embedding.weight)
        with torch.no_grad():
            max(loaded.lm_head.layer.parameters(), key=torch.numel).add_(1.0)
        assert torch.equal(loaded_embedding(words), loaded.lm_head.layer.word_vectors(words))


def test_layers_without_a_vector_of_each_word_refuse_tied_embeddings():
    with pytest.raises(BadInput, match=r"tie_word_embeddings=True: tie of huffman: allowed: .*, or tie_word"):
        model_of("huffman", tied=True)


def test_loss_options_reach_the_layer():
    ids = torch.tensor([[3, 4, 5]])
    plain, smooth = model_of("huffman"), model_of("huffman", loss_options={"label_smoothing": 0.1})
    losses = [float(model(input_ids=ids, labels=ids).loss.detach()) for model in (plain, smooth)]
    assert losses[0] != pytest.approx(losses[1])


def test_a_wrong_description_of_the_layer_is_one_clear_line():
    model_class = vocabench.huggingface.causal_lm(LlamaForCausalLM)
    for wrong, message in (
        ({"method": "huffman"}, "output_layer=.*allowed: a dictionary with method and counts"),
        ({"method": "hufman", "counts": [2, 1]}, "did you mean 'huffman'"),
    ):
        config = config_of("huffman")
        config.output_layer = wrong
        with pytest.raises(BadInput, match=message):
            model_class(config)
