"""spoken-names: names in the 15 languages of Liu et al. 2022, spoken by espeak-ng, as characters and phones.

Synthetic speech serves to compare output layers; it says nothing about the recognition of human speech.
docs/speech-data.md describes the contents.
"""

from vocabench.harness.datasets.shared.dataset import SpeechDataset
from vocabench.harness.datasets.speech.synthesis import SpokenNames
from vocabench.harness.speech.languages import LANGUAGES

DATASET = SpeechDataset(
    description="synthetic speech: names in 15 languages, Romance, Slavic and Turkic, with phones",
    source="built here, without a network: CLDR's names (babel) spoken by espeak-ng (espeakng-loader)",
    origin=SpokenNames(
        name="spoken-names",
        languages=LANGUAGES,
        sizes={"train": 240, "valid": 20, "test": 30},
        licence="names: Unicode License v3; espeak-ng, which speaks them: GPL v3",
    ),
    may_quote=True,
)
