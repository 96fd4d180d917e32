"""Causal language models of `transformers` with any output layer.

```python
from transformers import LlamaConfig, LlamaForCausalLM

import vocabench.huggingface

Model = vocabench.huggingface.causal_lm(LlamaForCausalLM)
config = LlamaConfig(vocab_size=len(counts), output_layer={"method": "huffman", "counts": counts.tolist()})
model = Model(config)  # trains by `Trainer`, saves, loads, resizes and generates as any other model
```
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel, TrainerCallback
from transformers.modeling_outputs import CausalLMOutputWithPast

import vocabench.torch
from vocabench.impls.errors import BadInput
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.tying import LookupInLayer
from vocabench.impls.options import Given

__all__ = ["Head", "Reorganize", "causal_lm"]

# Options of generation that look at, or change, the scores of other words than the likeliest.
_NEEDS_ALL_WORDS = {
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "constraints": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": None,
    "min_length": 0,
    "min_new_tokens": None,
    "min_p": None,
    "no_repeat_ngram_size": 0,
    "output_logits": False,
    "output_scores": False,
    "repetition_penalty": 1.0,
    "sequence_bias": None,
    "suppress_tokens": None,
    "top_h": None,
    "typical_p": 1.0,
    "watermarking_config": None,
}


class Head(nn.Module):
    """The place of `lm_head` in a model of `transformers`.

    Attributes:
        layer: The output layer.
        best: How many of the likeliest words `forward` scores exactly; None for all words.
        loss_options: Keyword arguments of the loss, such as `label_smoothing`.
    """

    def __init__(self, layer: OutputLayer, **loss_options: Any) -> None:
        super().__init__()
        self.layer = layer
        self.best: int | None = None
        self.loss_options = loss_options

    def forward(self, hidden: Tensor) -> Tensor:
        """Return log-probabilities (..., V) of hidden vectors (..., D).

        If `best` is set, only that many words are searched, and the remaining probability is spread over all others.
        The result is a distribution in which the likeliest words have their own log-probabilities.
        """
        if self.best is None:
            return self.layer.log_probs(hidden)
        vocab = self.layer.spec.vocab
        values, ids = self.layer.topk(hidden, self.best)
        rest = torch.log1p(-values.exp().sum(dim=-1, keepdim=True).clamp(max=1)) - torch.tensor(vocab - self.best).log()
        log_probs = torch.minimum(rest, values[..., -1:]).repeat_interleave(vocab, dim=-1)
        return log_probs.scatter(-1, ids, values)

    def loss(self, hidden: Tensor, labels: Tensor, tokens: Tensor | int | None = None) -> Tensor:
        """Return the loss of the next token at each position.

        `hidden` is (B, T, D) and `labels` (B, T), with -100 where a token is not predicted. The sum is divided by
        `tokens`, such as those of all batches that a step accumulates, or by those of this batch if None.
        """
        inputs, targets = hidden[:, :-1], labels[:, 1:].to(hidden.device)
        compute = self.layer.training_loss if self.training else self.layer
        loss = compute(inputs, targets, reduction="mean" if tokens is None else "sum", **self.loss_options)
        return loss if tokens is None else loss / tokens


class Reorganize(TrainerCallback):
    """Re-organize the clusters of SOHSM during `Trainer.train` (Shen et al. 2017, section 3.2).

    `interval` is the number of steps between two re-organizations.
    """

    def __init__(self, interval: int = 1000) -> None:
        self.interval = interval

    def on_step_end(self, args: Any, state: Any, control: Any, **keyword: Any) -> None:
        model, optimizer = keyword["model"], keyword["optimizer"]
        if state.global_step % self.interval == 0:
            model.lm_head.layer.reorganize(getattr(optimizer, "optimizer", optimizer))


class _WithOutputLayer:
    """What `causal_lm` changes in a class of `transformers`."""

    _tied_weights_keys: dict[str, str] = {}  # noqa: RUF012
    config: Any
    lm_head: Head
    training: bool

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        given = dict(getattr(config, "output_layer", None) or {})
        if not {"method", "counts"} <= given.keys():
            raise BadInput(
                f"output_layer={given!r:.60}: allowed: a dictionary with method and counts, and optionally options and "
                "loss_options"
            )
        layer = vocabench.torch.layer(
            given["method"],
            counts=given["counts"],
            dim=config.hidden_size,
            seed=given.get("seed", 0),
            dtype=torch.get_default_dtype(),
            device=torch.get_default_device(),
            **given.get("options", {}),
        )
        self.lm_head = Head(layer, **given.get("loss_options", {}))
        if config.tie_word_embeddings:
            self._tie()

    def _tie(self) -> None:
        """Share the word vectors of the layer with the input embeddings."""
        embedding = self.get_input_embeddings()  # type: ignore[attr-defined]
        try:
            self.lm_head.layer.tie(embedding)
        except BadInput as error:
            raise BadInput(f"tie_word_embeddings=True: {error}, or tie_word_embeddings=False") from None
        name = next(name for name, module in self.named_modules() if module is embedding)  # type: ignore[attr-defined]
        # An embedding that looks words up in the layer has no weight of its own to initialize and to save.
        looks_up = embedding._is_hf_initialized = isinstance(embedding, LookupInLayer)
        self._tied_weights_keys = {} if looks_up else {"lm_head.layer.weight": f"{name}.weight"}
        self.all_tied_weights_keys = self.get_expanded_tied_weights_keys(all_submodels=True)  # type: ignore[attr-defined]

    def _untie(self) -> None:
        """Give the input embeddings a weight of their own."""
        tied = self.get_input_embeddings()  # type: ignore[attr-defined]
        vectors, padding = tied.weight.detach().clone(), tied.padding_idx
        self.set_input_embeddings(nn.Embedding.from_pretrained(vectors, freeze=False, padding_idx=padding))  # type: ignore[attr-defined]
        self._tied_weights_keys = {}

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize a module whose parameters or derived buffers `from_pretrained` has not loaded."""
        if isinstance(module, OutputLayer):
            module.restore_derived_buffers()
        else:
            super()._init_weights(module)  # type: ignore[misc]

    def get_output_embeddings(self) -> None:
        """Return None: a layer is not a matrix with a row for each word."""
        return

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **keyword: Any,
    ) -> CausalLMOutputWithPast:
        keyword["return_dict"] = True
        outputs = self.base_model(input_ids=input_ids, attention_mask=attention_mask, **keyword)  # type: ignore[attr-defined]
        made = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        hidden = outputs.last_hidden_state
        if labels is not None:
            return CausalLMOutputWithPast(loss=self.lm_head.loss(hidden, labels, num_items_in_batch), **made)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(logits=self.lm_head(hidden[:, kept]), **made)  # type: ignore[arg-type]

    def generate(self, *arguments: Any, **keyword: Any) -> Any:
        """Generate as `transformers` does, with the layer's exact top-k where only few words can be chosen."""
        given = {name: value for name, value in keyword.items() if name != "generation_config"}
        config, _ = self._prepare_generation_config(keyword.get("generation_config"), **given)  # type: ignore[attr-defined]
        processed = keyword.get("logits_processor") or keyword.get("prefix_allowed_tokens_fn")
        self.lm_head.best = None if processed else _words_needed(config, self.lm_head.layer.spec.vocab)
        try:
            return super().generate(*arguments, **keyword)  # type: ignore[misc]
        finally:
            self.lm_head.best = None

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
        *,
        counts: ArrayLike | None = None,
        **options: Any,
    ) -> nn.Embedding:
        """Resize the input embeddings and the output layer.

        `counts` says how often each word of the new vocabulary occurs; if None, as often as now, and new words never.
        `options` are those of the layer to change, such as the `words` of one that spells them.
        """
        is_tied = self.config.tie_word_embeddings
        if is_tied:
            self._untie()
        embedding = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)  # type: ignore[misc]
        old_counts_V = self.lm_head.layer.spec.counts.tolist()
        vocab = embedding.num_embeddings
        if counts is None:
            counts = [*old_counts_V[:vocab], *([0] * (vocab - len(old_counts_V)))]
        self.lm_head.layer = self.lm_head.layer.resize(counts, **options)
        if is_tied:
            self._tie()
        spec = self.lm_head.layer.spec
        arrays = {name: value.array.tolist() for name, value in spec.options.items() if isinstance(value, Given)}
        self.config.output_layer |= {"counts": spec.counts.tolist(), "options": {**spec.options, **arrays}}
        return embedding


@cache
def causal_lm(model_class: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Return a subclass of `XForCausalLM` whose `lm_head` is an output layer of ours.

    The configuration describes the layer in `output_layer`, a dictionary with `method` and `counts` (a count for each
    token id), and optionally `seed`, the `options` of the method, and `loss_options`, keyword arguments of the loss.

    With `labels`, a call returns the loss and no logits, which are never computed. Without, its logits are
    log-probabilities. `tie_word_embeddings` is for methods with a vector for each word, as `OutputLayer.tie`.
    `model_class`, such as `LlamaForCausalLM`, has a base model and an `lm_head`.
    """
    # `generate` asks for the arguments of `forward` by name.
    own = dict(inspect.signature(_WithOutputLayer.forward).parameters)
    base = inspect.signature(model_class.forward).parameters
    keyword = own.pop("keyword")
    added = [parameter for name, parameter in base.items() if name not in own and parameter.kind != keyword.kind]

    def forward(self: Any, *arguments: Any, **named: Any) -> CausalLMOutputWithPast:
        return _WithOutputLayer.forward(self, *arguments, **named)

    forward.__signature__ = inspect.Signature([*own.values(), *added, keyword])  # type: ignore[attr-defined]
    body = {"__module__": model_class.__module__, "forward": forward}
    return type(model_class.__name__, (_WithOutputLayer, model_class), body)


def _words_needed(config: GenerationConfig, vocab: int) -> int | None:
    """Return how many of the likeliest words a generation can choose from; None if it must know all of them."""
    for name, neutral in _NEEDS_ALL_WORDS.items():
        if getattr(config, name, None) not in (None, neutral):
            return None
    beams, ends = config.num_beams or 1, config.eos_token_id
    if config.do_sample:
        words = (config.top_k or 0) if beams == 1 else 0
    else:
        words = 1 if beams == 1 else max(2, 1 + (len(ends) if isinstance(ends, list) else 1)) * beams
    return words if 0 < words < vocab else None
