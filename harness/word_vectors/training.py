"""Training of the bag model on the words of a text, in batches or example by example."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers, registry
from vocabench.harness.datasets.text import corpora
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.tasks.shared import bags
from vocabench.harness.tasks.shared.optimizer import optimizer_of
from vocabench.harness.tasks.shared.spec import spec_of
from vocabench.harness.tasks.shared.text import with_words
from vocabench.impls.errors import BadInput
from vocabench.impls.models.bag_model import BagModelConfig
from vocabench.impls.models.decisions import parameter_of
from vocabench.impls.spec import check_options

UPDATES = ("batch", "example")
DESCENTS = ("sgd", "adagrad")

_HELD_OUT = 10  # every tenth word of a document
_POSITIONS = 2**15  # of the text, whose examples a framework trains one by one in a call


class Training:
    """A bag model of a cell, while it is trained and scored.

    Attributes:
        model: The model.
        curve: For each epoch, its number, the seconds of training up to its end, the mean loss, and the perplexity if
            it was scored.
        seconds: Seconds of training, scoring left out.
    """

    def __init__(self, cell: Cell, corpus: corpora.Corpus) -> None:
        self.cell, self.corpus, self.settings = cell, corpus, cell.settings
        self.by_document = self.settings["objective"] == "pv_dbow"
        self.train_T = np.asarray(corpus.splits["train"])
        vocab = len(corpus.counts_V)
        options = with_words(check_options(registry.definition(cell.method), cell.options), corpus.words)
        self.spec = spec_of(cell, corpus.counts_V, options)
        if self.settings["updates"] == "example":
            parameter_of(self.spec)  # refuses a layer without such updates before anything is built
        inputs = -(-len(self.train_T) // self.settings["document"]) if self.by_document else vocab
        config = BagModelConfig(inputs=inputs, optimizer=optimizer_of(self.settings), seed=cell.seed)
        self.model = layers.create_network(cell.framework, self.spec, config, cell.device)
        self.curve: list[dict[str, float]] = []
        self.seconds = 0.0
        self._rng = np.random.default_rng([cell.seed, 10])

    def run(self, progress: Callable[[str], None]) -> None:
        """Train, and score after each epoch, or after the last one if examples are trained one by one.

        Raises:
            BadInput: The text is too short for a batch.
            FloatingPointError: The loss is not finite.
        """
        by_example, epochs = self.settings["updates"] == "example", self.settings["epochs"]
        if by_example:  # a step of length 0, before which the kernel is compiled
            self._step_by_example(np.zeros((1, 1), np.int32), np.zeros(1, np.int32), (0.0, 0.0))
        for epoch in range(epochs):
            started = time.perf_counter()
            label = f"epoch {epoch + 1}/{epochs}"
            loss = self._by_example(epoch, label, progress) if by_example else self._by_batch(label, progress)
            self.seconds += time.perf_counter() - started
            if not np.isfinite(loss):
                raise FloatingPointError(f"training loss is {loss} in epoch {epoch + 1}")
            self.curve.append({"epoch": epoch + 1, "seconds": self.seconds, "train_loss": loss})
            if not by_example or epoch + 1 == epochs:
                self.curve[-1]["perplexity"] = self._perplexity()

    def measurements(self) -> list[Measurement]:
        detail: dict[str, Any] = {
            "objective": self.settings["objective"],
            "split": self._split()[0],
            "curve": self.curve,
            "formulation": layers.form_label(self.cell.framework, self.spec, self.cell.device),
        }
        words = len(self.train_T) * self.settings["epochs"]
        return [
            Measurement("perplexity", self.curve[-1]["perplexity"], detail=detail),
            Measurement("train_seconds", self.seconds, [self.seconds]),
            Measurement("words_per_second", words / self.seconds),
        ]

    def vectors(self) -> tuple[NDArray, NDArray | None]:
        """Return the input vectors (V, D), and the output vectors (V, D) of a layer that has one for each word."""
        params = self.model.parameters()
        output = params.get("output.weight")
        has_one_each = output is not None and output.shape == params["input"].shape
        return params["input"], output if has_one_each else None

    def _by_batch(self, label: str, progress: Callable[[str], None]) -> float:
        losses = []
        for bags_NJ, targets_N in self._batches():
            losses.append(self.model.step(bags_NJ, targets_N))
            if len(losses) % 100 == 0:
                # Waiting for the device here also bounds the queue of an asynchronous framework.
                progress(f"{label} step {len(losses)} loss {float(losses[-1]):.3f}")
        if not losses:
            raise BadInput(
                f"a split of {len(self.train_T):,} tokens gives fewer than the {self.cell.tokens:,} targets of one "
                "batch: allowed: more text"
            )
        return float(np.mean([float(loss) for loss in losses]))

    def _by_example(self, epoch: int, label: str, progress: Callable[[str], None]) -> float:
        """Take a step for each example in the order of the text, while the rate falls over all epochs."""
        settings, text_T = self.settings, self._text_of_epoch()
        first, last = settings["learning_rate"], settings["final_learning_rate"]
        total, examples = 0.0, 0
        for start in range(0, len(text_T), _POSITIONS):
            end = min(start + _POSITIONS, len(text_T))
            bags_NJ, targets_G, group_N = self._groups(text_T, np.arange(start, end))
            if not len(bags_NJ):
                continue
            done = ((epoch + place / len(text_T)) / settings["epochs"] for place in (start, end))
            begin_rate, end_rate = (first + (last - first) * share for share in done)
            loss = self._step_by_example(bags_NJ, targets_G, (begin_rate, end_rate), group_N)
            total, examples = total + float(loss) * len(bags_NJ), examples + len(bags_NJ)
            progress(f"{label} word {end:,} of {len(text_T):,} loss {float(loss):.3f}")
        if not examples:
            raise BadInput(f"a split of {len(self.train_T):,} tokens gives no example: allowed: more text")
        return total / examples

    def _step_by_example(
        self, bags_NJ: NDArray, targets_G: NDArray, rates: tuple[float, float], group_N: NDArray | None = None
    ) -> SupportsFloat:
        threads, adagrad = self.settings["threads"], self.settings["descent"] == "adagrad"
        return self.model.step_by_example(bags_NJ, targets_G, rates, group_N=group_N, threads=threads, adagrad=adagrad)

    def _groups(
        self, text_T: NDArray[np.integer], at_N: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32] | None]:
        """Return inputs, targets and groups of the examples at some positions, as `step_by_example` takes them."""
        if self.settings["objective"] != "skip_gram":
            return *self._examples(text_T, at_N), None
        window = self.settings["window"]
        return bags.skip_gram_by_target(text_T, at_N, self._rng.integers(1, window + 1, len(at_N)), window)

    def _text_of_epoch(self) -> NDArray[np.integer]:
        """Return the training text, without a random part of its frequent words if the settings say so."""
        threshold = self.settings["subsample"]
        if not threshold or self.by_document:
            return self.train_T
        return bags.keep_rare(self.train_T, self.corpus.counts_V, threshold, self._rng)

    def _examples(self, text_T: NDArray[np.integer], at_N: NDArray[np.int64]) -> bags.Pairs:
        """Return the examples at some positions of the training text, with windows of random size."""
        if self.by_document:
            return bags.pv_dbow(text_T, at_N[at_N % _HELD_OUT != _HELD_OUT - 1], self.settings["document"])
        window = self.settings["window"]
        reach_N = self._rng.integers(1, window + 1, len(at_N))
        bags_NJ, targets_N = bags.of_text(self.settings["objective"], text_T, at_N, reach_N, window)
        filled_N = (bags_NJ >= 0).any(axis=1)
        return (bags_NJ, targets_N) if filled_N.all() else (bags_NJ[filled_N], targets_N[filled_N])

    def _batches(self) -> Iterator[bags.Pairs]:
        """Yield batches of `tokens` targets in random order. Targets that do not fill a batch are left out."""
        tokens, text_T = self.cell.tokens, self._text_of_epoch()
        at_T = self._rng.permutation(len(text_T))
        kept: list[bags.Pairs] = []
        waiting = 0
        for start in range(0, len(at_T), tokens):
            kept.append(self._examples(text_T, at_T[start : start + tokens]))
            waiting += len(kept[-1][1])
            if waiting >= tokens:
                bags_NJ, targets_N = (np.concatenate(arrays) for arrays in zip(*kept, strict=True))
                whole = waiting - waiting % tokens
                for begin in range(0, whole, tokens):
                    yield bags_NJ[begin : begin + tokens], targets_N[begin : begin + tokens]
                kept, waiting = [(bags_NJ[whole:], targets_N[whole:])], waiting - whole

    def _split(self) -> tuple[str, NDArray]:
        """Return the held-out text: another split, or every tenth word of the documents."""
        if self.by_document:
            return "train, every tenth word held out", self.train_T
        name = "test" if "test" in self.corpus.splits else "valid"
        return name, np.asarray(self.corpus.splits[name])

    def _perplexity(self) -> float:
        settings, tokens = self.settings, self.cell.tokens
        _, ids_T = self._split()
        at_T = np.arange(len(ids_T))
        if self.by_document:
            at_T = at_T[at_T % _HELD_OUT == _HELD_OUT - 1]
        at_T = np.random.default_rng([self.cell.seed, 11]).permutation(at_T)[: settings["scored"]]
        nll, targets = 0.0, 0
        for start in range(0, len(at_T), tokens):
            at_N = at_T[start : start + tokens]
            if self.by_document:
                pairs = bags.pv_dbow(ids_T, at_N, settings["document"])
            else:
                window = settings["window"]
                pairs = bags.of_text(settings["objective"], ids_T, at_N, np.full(len(at_N), window), window)
            nll += self.model.evaluate(*pairs)
            targets += len(pairs[1])
        return float(np.exp(nll / targets))
