"""The kinds of networks that a folder can hold, and what is stored of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vocabench.harness.run import schema
from vocabench.harness.run.schema import Schema
from vocabench.impls.errors import BadInput
from vocabench.impls.models.language_model import LanguageModel, LanguageModelConfig
from vocabench.impls.models.network import Config
from vocabench.impls.models.recognizer import Recognizer, RecognizerConfig
from vocabench.impls.models.summarizer import Summarizer, SummarizerConfig

SIZE, COUNT = schema.whole(1, 2**31), schema.whole(1, 1000)


@dataclass(frozen=True)
class Kind:
    """One kind of network.

    Attributes:
        name: Name of the network in messages.
        task: The task that trains it.
        make: Creates its configuration.
        fields: The stored fields of the configuration, which decide the shapes of the parameters and how it decodes.
        width: The field with the width of the output layer.
        settings: Settings of the cell that the folder must have.
        data: What it must say about the data, besides their name and sha256.
        reads_words: Whether it reads words of a vocabulary other than that of the output layer.
    """

    name: str
    task: str
    make: type[Config]
    fields: Mapping[str, Schema]
    width: str
    settings: Mapping[str, Schema] = field(default_factory=dict)
    data: Mapping[str, Schema] = field(default_factory=dict)
    reads_words: bool = False

    def stored(self, config: Config) -> dict[str, Any]:
        return {name: getattr(config, name) for name in self.fields}

    def config(self, stored: Mapping[str, Any]) -> Config:
        """Return the configuration of stored fields.

        Raises:
            BadInput: A field is missing, unknown or not allowed.
        """
        if wrong := schema.record(self.fields)(stored):
            raise BadInput(f"config{wrong}")
        if further := [name for name in stored if name not in self.fields]:
            raise BadInput(f"config: unknown field {further[0][:60]!r}: allowed: {', '.join(self.fields)}")
        return self.make(**stored)


KINDS: dict[str, Kind] = {
    LanguageModelConfig.network: Kind(
        LanguageModel.NAME,
        "language_modelling",
        LanguageModelConfig,
        {"embedding": SIZE, "hidden": SIZE},
        "hidden",
        {"steps": schema.whole(1)},
    ),
    SummarizerConfig.network: Kind(
        Summarizer.NAME,
        "summarization",
        SummarizerConfig,
        {"sources": SIZE, "end": schema.whole(0), "embedding": SIZE, "hidden": SIZE},
        "hidden",
        reads_words=True,
    ),
    RecognizerConfig.network: Kind(
        Recognizer.NAME,
        "speech",
        RecognizerConfig,
        {
            "end": schema.whole(0),
            **dict.fromkeys(("dim", "mels", "channels", "heads", "feed_forward", "kernel"), SIZE),
            **dict.fromkeys(("encoder_layers", "decoder_layers"), COUNT),
            "ctc_weight": schema.number,
        },
        "dim",
        data={"longest": schema.whole(1)},
    ),
}
