"""spoken-names: names in the 15 languages of Liu et al. 2022, spoken by espeak-ng; characters and phones.

Synthetic speech: it compares output layers, and is no claim about the recognition of people's speech.
docs/speech-data.md says what is in it.
"""

from vocabench.harness.datasets.speech.spoken import Spoken
from vocabench.harness.speech.languages import LANGUAGES

KIND = "speech"
DESCRIPTION = "synthetic speech: names in 15 languages, Romance, Slavic and Turkic, with phones"
SOURCE = "built here, without a network: CLDR's names (babel) spoken by espeak-ng (espeakng-loader)"
LICENCE = "names: Unicode License v3; espeak-ng, which speaks them: GPL v3"
MAY_QUOTE = True
CORPUS = Spoken("spoken-names", LANGUAGES, {"train": 240, "valid": 20, "test": 30}, LICENCE)

recorded, is_here = CORPUS.recorded, CORPUS.is_here
