"""Language modelling: the LSTM of SOHSM section 4.2 with any output layer, scored by perplexity on held-out text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layer_file, layers, network_folder, registry
from vocabench.harness.datasets.text import corpora
from vocabench.harness.measure.workload import Batch
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.run.settings import Setting
from vocabench.harness.tasks.shared import learning_curve, text, text_scores, unknown_words, unseen_words
from vocabench.harness.tasks.shared.destinations import SAVE, network_path
from vocabench.harness.tasks.shared.learning_curve import LearningCurve
from vocabench.harness.tasks.shared.optimizer import optimizer_of
from vocabench.harness.tasks.shared.paired import check_rounds, timing_settings
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.spec import parameters, spec_of
from vocabench.harness.tasks.shared.task import Task
from vocabench.harness.tasks.shared.text_evaluation import EVALUATION
from vocabench.harness.tasks.shared.trained import TrainedLayer
from vocabench.impls.contract import Layer
from vocabench.impls.models.language_model import LanguageModel, LanguageModelConfig
from vocabench.impls.optimizers import NAMES
from vocabench.impls.options import Choice, Destination, Number
from vocabench.impls.spec import Arrays, LayerSpec, check_options

EXTRA_METHODS = ("unigram",)  # without a layer: the score of a model that only knows the word counts

SETTINGS: dict[str, Setting] = {
    "epochs": Number(1, 1, 10**6, "passes over the training text"),
    "batch": Number(128, 1, 10**6, "sequences read in parallel"),
    "steps": Number(20, 1, 10**6, "time steps of truncated back-propagation"),
    "embedding": Number(512, 1, 10**6, "width of the word embedding; the width of the LSTM is the cell's dim"),
    "optimizer": Choice("adagrad", NAMES, "the update rule"),
    "learning_rate": Number(0.1, 0.0, 1e6, "step size"),
    "weight_decay": Number(1e-6, 0.0, 1e6, "L2"),
    "weight_decay_on": Choice("all", ("all", "lstm"), "the parameters with weight decay: all, or those of the LSTM"),
    "clip_norm": Number(0.25, 0.0, 1e6, "largest global gradient norm; 0 disables clipping"),
    **learning_curve.SETTINGS,
    "decode_rows": Number(128, 0, 10**6, "hidden vectors of the trained model decoded as one batch; 0 for no decoding"),
    **timing_settings(processes=3, rounds=4, budget=4.0),
    "unseen_vocab": Number(0, 0, 10**9, "vocabulary for the perplexity on words outside of the model's; 0 for none"),
    "updates": Number(0, 0, 10**9, "number of training steps after which training ends; 0 for no limit"),
    "time_training": Choice(False, (False, True), "whether to time training of the trained layer alone as well"),
    "layer_folder": Destination("folder for a file with the trained layer, for the task trained_layer"),
    **SAVE,
    **text.SETTINGS,
    "figure1_tokens": Number(4000, 0, 10**9, "validation tokens scored just before and after each re-organization"),
}

_CLUSTERS_SHOWN, _WORDS_SHOWN = 60, 12


def run(cell: Cell, progress: Callable[[str], None]) -> Result:
    check_rounds(cell.settings)
    corpus, data = text.data_of(cell, progress)
    if cell.method in EXTRA_METHODS:
        return Result(_unigram(corpus), {}, data)
    if folder := cell.settings["layer_folder"]:
        layer_file.check_folder(Path(folder))  # now instead of after the training
    save_to = network_path(cell)

    options = text.with_words(check_options(registry.definition(cell.method), cell.options), corpus.words)
    options = text.with_pairs(options, corpus.splits["train"], len(corpus.words))
    options, told = with_vectors(cell, corpus, options, progress)
    wide: corpora.Corpus | None = None
    if size := cell.settings["unseen_vocab"]:
        wide = corpora.load(cell.dataset, vocab=size, rule=cell.settings["text_rule"], progress=progress)
        unseen_words.check(cell.method, options, len(corpus.words), wide)
    training = Training(cell, corpus, options)
    training.run(progress)
    measurements = training.measurements()
    measurements[0].detail.update(told)
    if wide is not None:
        progress("words outside of the vocabulary")
        measurements.append(training.on_unseen_words(wide))
    checked: dict[str, Any] = {}
    if cell.settings["time_training"] or cell.settings["decode_rows"] or folder:  # needs a second copy of the weights
        trained = TrainedLayer(cell, training.learned_spec(), training.output_parameters())
        if cell.settings["time_training"]:
            found, checked = trained.training(training.first_batch(), progress)
            measurements.append(found)
        if cell.settings["decode_rows"]:
            progress("decoding")
            measurements += trained.decoding(training.held_out(cell.settings["decode_rows"]).hidden_ND)
        if folder:
            measurements[0].detail["layer_file"] = training.save(trained.layer(), progress)
    if save_to is not None:  # last, so that a cell that fails can be measured again
        progress(f"network to {save_to}")
        measurements[0].detail["network"] = training.save_network(save_to, data, measurements[0])
    return Result(measurements, checked, data)


def with_vectors(
    cell: Cell, corpus: corpora.Corpus, options: dict[str, Any], progress: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a layer, and the entries that the row has for the model trained first.

    If the structure of the layer needs word vectors that are not given, they come from a model that is trained first.
    """
    before = registry.definition(cell.method).bootstrap(options)
    if before is None:
        return options, {}
    first = Training(cell, corpus, before)
    first.run(lambda line: progress(f"for word vectors: {line}"))
    changed = {name: value for name, value in before.items() if value != options[name]}
    return {**options, "vectors": first.mean_hidden()}, first.told(changed)


class Training:
    """One training run with its results: learning curve, re-organizations and times."""

    def __init__(self, cell: Cell, corpus: corpora.Corpus, options: Mapping[str, object]) -> None:
        self.cell, self.corpus, self.settings = cell, corpus, cell.settings
        spec = spec_of(cell, corpus.counts_V, options)
        config = LanguageModelConfig(
            embedding=cell.settings["embedding"],
            hidden=cell.dim,
            optimizer=optimizer_of(cell.settings),
            seed=cell.seed,
        )
        self.model = self._made(spec, config)
        self.interval = int(spec.options.get("interval", 0))  # type: ignore[call-overload]
        self.reorganizations: list[dict[str, float]] = []
        self.cluster_V: NDArray | None = spec.structure.get("cluster")
        self.curve: LearningCurve[tuple[Arrays, NDArray | None]] = LearningCurve(
            cell.settings, lambda: (self.model.parameters(), self.cluster_V)
        )

    def _made(self, spec: LayerSpec, config: LanguageModelConfig) -> LanguageModel:
        return layers.create_network(self.cell.framework, spec, config, self.cell.device)

    def run(self, progress: Callable[[str], None]) -> None:
        settings, curve = self.settings, self.curve
        rows_BT = text_scores.rows(self.corpus.splits["train"], settings["batch"], settings["steps"])
        batches = (
            batch
            for _ in range(settings["epochs"])
            for batch in text_scores.batches(rows_BT, settings["steps"], whole=True)
        )
        curve.start((rows_BT.shape[1] - 1) // settings["steps"], settings["updates"])
        for step, (first, (inputs_BT, targets_BT)) in enumerate(islice(batches, curve.total), 1):
            curve.add_loss(self.model.step(inputs_BT, targets_BT, carry=not first))
            if step % 50 == 0:
                # Waiting for the device here also bounds the queue of an asynchronous framework.
                progress(curve.loss_line(step))
            if self.interval and step % self.interval == 0 and step < curve.total:
                self._reorganize(step)
            if curve.is_due(step):
                self.model.synchronize()
                curve.evaluate(step, lambda: self._scores_of(self.corpus.splits["valid"]))
                progress(curve.evaluation_line(step))
                if curve.has_ended:
                    break
        if (state := curve.state_to_restore) is not None:
            params, self.cluster_V = state
            self.model = self._made(self.learned_spec(), self.model.config)  # with the clusters at that checkpoint
            self.model.load(params)

    def _reorganize(self, step: int) -> None:
        """Re-organize between two evaluations, which do not count as training."""
        self.model.synchronize()
        with self.curve.paused():
            record: dict[str, float] = {"step": step, **self._figure1_scores("before")}
        change = self.model.reorganize()
        self.model.synchronize()
        with self.curve.paused():
            if change is not None:
                before_V, after_V = change
                moved_V = before_V != after_V
                counts_V = self.corpus.counts_V
                record["changed_words"] = float(moved_V.mean())
                record["changed_frequency"] = float(counts_V[moved_V].sum() / counts_V.sum())
                self.cluster_V = after_V
            self.reorganizations.append(record | self._figure1_scores("after"))

    def _figure1_scores(self, when: str) -> dict[str, float]:
        """Return the scores of a sample of the validation text; none if it is too short for the evaluation."""
        sample_T = self.corpus.splits["valid"][: self.settings["figure1_tokens"]]
        if len(sample_T) <= text_scores.EVAL_ROWS:
            return {}
        return {f"{name}_{when}": value for name, value in self._scores_of(sample_T).items()}

    def _losses_of(self, ids_T: NDArray) -> text_scores.TokenLosses:
        return text_scores.losses(self.model, ids_T, self.settings["steps"])

    def _scores_of(self, ids_T: NDArray) -> dict[str, float]:
        return self._losses_of(ids_T).perplexities()

    def told(self, changed: Mapping[str, object]) -> dict[str, Any]:
        """Return the entries about this model for the row of a later model with `changed` options."""
        curve = self.curve
        return {"bootstrap": {"options": dict(changed), "train_seconds": curve.seconds, "curve": curve.points}}

    def measurements(self) -> list[Measurement]:
        split = "test" if "test" in self.corpus.splits else "valid"
        losses = self._losses_of(self.corpus.splits[split])
        scores = losses.perplexities() if split == "test" else dict(self.curve.scored)
        detail: dict[str, Any] = {
            "split": split,
            **unknown_words.shares(self.corpus, split),
            **self.curve.detail(),
            "formulation": layers.form_label(self.cell.framework, self.model.spec, self.cell.device),
        }
        if self.cluster_V is not None:
            detail |= {"reorganizations": self.reorganizations, "clusters": self._clusters(self.cluster_V)}
        found = [Measurement("perplexity", scores.pop("perplexity"), detail=detail)]
        found += [
            Measurement(name, scores[name], detail={"split": split})
            for name in ("cluster_perplexity", "in_cluster_perplexity")
            if name in scores
        ]
        found += unknown_words.known_perplexity(self.corpus, split, losses.targets_BT, losses.nll_BT)
        found.append(Measurement("train_seconds", self.curve.seconds, [self.curve.seconds]))
        return [*found, parameters(self.model.spec)]

    def mean_hidden(self) -> NDArray[np.float64]:
        """Return (V, D): for each word, the mean of the hidden vectors that were to predict it in the training text.

        Words that do not occur have zeros.
        """
        vocab = len(self.corpus.counts_V)
        sum_VD, seen_V = np.zeros((vocab, self.cell.dim)), np.zeros((vocab, 1))
        rows_BT = text_scores.rows(self.corpus.splits["train"], self.settings["batch"], self.settings["steps"])
        for _first, (inputs_BT, targets_BT) in text_scores.batches(rows_BT, self.settings["steps"], whole=True):
            np.add.at(sum_VD, targets_BT.ravel(), self.model.hidden(inputs_BT))
            np.add.at(seen_V, targets_BT.ravel(), 1.0)
        return sum_VD / np.maximum(seen_V, 1.0)

    def first_batch(self) -> Batch:
        """Return the trained model's hidden vectors for the first batch of the training text, and their targets."""
        rows_BT = text_scores.rows(self.corpus.splits["train"], self.settings["batch"], self.settings["steps"])
        _first, (inputs_BT, targets_BT) = next(text_scores.batches(rows_BT, self.settings["steps"], whole=True))
        return Batch(self.model.hidden(inputs_BT).astype(np.float64), targets_BT.ravel().astype(np.int64))

    def held_out(self, wanted: int) -> Batch:
        """Return hidden vectors from many contexts of the validation text in random order, and the next words."""
        pieces: list[Batch] = []
        rows_BT = text_scores.rows(self.corpus.splits["valid"], text_scores.EVAL_ROWS, 1)
        for _first, (inputs_BT, targets_BT) in text_scores.batches(rows_BT, self.settings["steps"], whole=False):
            pieces.append(Batch(self.model.hidden(inputs_BT), targets_BT.ravel().astype(np.int64)))
            if sum(len(piece.targets_N) for piece in pieces) >= 8 * wanted:
                break
        hidden_ND = np.concatenate([piece.hidden_ND for piece in pieces])
        targets_N = np.concatenate([piece.targets_N for piece in pieces])
        chosen = np.random.default_rng([self.cell.seed, 5]).permutation(len(targets_N))[:wanted]
        return Batch(hidden_ND[chosen], targets_N[chosen])

    def on_unseen_words(self, wide: corpora.Corpus) -> Measurement:
        """Return the perplexity on words of the scored split that only the `wide` vocabulary has.

        The state of the LSTM is that after up to `steps` words, as in `held_out`.
        """
        layer = TrainedLayer(self.cell, self.learned_spec(), self.output_parameters()).layer()
        split = "test" if "test" in wide.splits else "valid"
        rows_BT = text_scores.rows(wide.splits[split], text_scores.EVAL_ROWS, 1)
        batches = text_scores.batches(rows_BT, self.settings["steps"], whole=False)
        windows = (window for _, window in batches)
        found = unseen_words.perplexity(self.cell, layer, self.corpus, wide, self.model.hidden, windows)
        found.detail["split"] = split
        return found

    def learned_spec(self) -> LayerSpec:
        """Return the specification of the output layer with its present clusters, if it has clusters."""
        spec = self.model.spec
        learned = {} if self.cluster_V is None else {"cluster": self.cluster_V}
        return dataclasses.replace(spec, structure={**spec.structure, **learned})

    def output_parameters(self) -> Arrays:
        prefix = "output."
        every = self.model.parameters()
        return {name.removeprefix(prefix): value for name, value in every.items() if name.startswith(prefix)}

    def save_network(self, folder: Path, data: Mapping[str, Any], perplexity: Measurement) -> dict[str, str]:
        """Write the trained network with its perplexity, for `vocabench eval`.

        Returns:
            The name of the folder and the sha256 of its contents, for the row.
        """
        scores = {"split": perplexity.detail["split"], "perplexity": perplexity.value}
        words = self.corpus.words
        sha256 = network_folder.save(folder, self.model, self.learned_spec(), words, self.cell, data, scores)
        return {"name": folder.name, "sha256": sha256}

    def save(self, layer: Layer, progress: Callable[[str], None]) -> dict[str, Any]:
        """Write the trained layer, with as many hidden vectors of held-out text as a batch has tokens.

        Returns:
            The name and sha256 of the file, for the row.
        """
        cell, held_out = self.cell, self.held_out(self.cell.tokens)
        name = f"{cell.framework}-{cell.method}-{cell.key[:8]}{layer_file.SUFFIX}"
        path = Path(self.settings["layer_folder"]) / name
        progress(f"layer to {path}")
        return {"name": name, "sha256": layer_file.save(path, layer, held_out.hidden_ND, held_out.targets_N)}

    def _clusters(self, cluster_V: NDArray) -> list[list[str]]:
        """Return the most frequent words of the most frequent clusters, as in table 3 of the paper."""
        counts_V = self.corpus.counts_V
        by_count = np.argsort(-counts_V, kind="stable")
        share_C = np.bincount(cluster_V, weights=counts_V)
        return [
            [self.corpus.words[word] for word in by_count[cluster_V[by_count] == cluster][:_WORDS_SHOWN]]
            for cluster in np.argsort(-share_C, kind="stable")[:_CLUSTERS_SHOWN]
        ]


def _unigram(corpus: corpora.Corpus) -> list[Measurement]:
    """Return the perplexity of the word counts of the training split, with add-one smoothing."""
    split = "test" if "test" in corpus.splits else "valid"
    probability_V = (corpus.counts_V + 1.0) / (corpus.counts_V.sum() + len(corpus.counts_V))
    ids_T = np.asarray(corpus.splits[split][1:])
    seen_V = np.bincount(ids_T, minlength=len(probability_V))
    value = float(np.exp(-(seen_V * np.log(probability_V)).sum() / len(ids_T)))
    perplexity = Measurement("perplexity", value, detail={"split": split, **unknown_words.shares(corpus, split)})
    return [perplexity, *unknown_words.known_perplexity(corpus, split, ids_T, -np.log(probability_V[ids_T]))]


TASK = Task(SETTINGS, run, text.load, check=check_rounds, extra_methods=EXTRA_METHODS, evaluation=EVALUATION)
