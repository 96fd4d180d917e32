"""spoken-names: its names, voices and splits, and their reproducibility."""

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests import ROOT
from tests.harness.datasets.recordings import REASONS
from vocabench.harness import cli, registry
from vocabench.harness.datasets import spoken_names
from vocabench.harness.datasets.shared import packages
from vocabench.harness.datasets.speech import cldr_names, espeak, sound_files, speech_corpora, synthesis
from vocabench.harness.datasets.speech.synthesis import SpokenNames
from vocabench.harness.speech import languages
from vocabench.impls.errors import BadInput

pytestmark = pytest.mark.usefixtures("empty_cache")


needs_espeak = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("babel", "espeakng_loader")),
    reason="babel and espeakng-loader are not installed",
)
SMALL = SpokenNames("spoken-names", ("ba", "tt", "it"), {"train": 8, "valid": 2, "test": 3}, "")


@pytest.fixture
def few_names(monkeypatch):
    monkeypatch.setattr(spoken_names, "DATASET", dataclasses.replace(spoken_names.DATASET, origin=SMALL))


@needs_espeak
def test_no_text_and_no_speaker_is_in_two_splits(few_names):
    speech = speech_corpora.load("spoken-names", outside="unknown")
    assert {split: len(utterances) for split, utterances in speech.splits.items()} == {
        "train": 24,
        "valid": 6,
        "test": 9,
    }
    for field in ("speaker", "id"):
        by_split = [{getattr(utterance, field) for utterance in part} for part in speech.splits.values()]
        assert sum(map(len, by_split)) == len(set().union(*by_split))
    texts = [(utterance.language, utterance.text) for utterance in speech.everything]
    assert len(texts) == len(set(texts))
    for utterance in speech.everything:
        assert utterance.phones
        assert 0.2 < utterance.seconds < 6
        assert np.abs(utterance.samples_S.astype(int)).max() > 1000
    assert set(speech.versions) == {"babel", "espeakng_loader", "numpy", "scipy"}
    phones = speech_corpora.load("spoken-names", units="phones", held_out=["it"])
    assert [utterance.language for utterance in phones.splits["test"]] == ["it"] * 3
    assert not any(sign in unit for unit in phones.vocabulary.units for sign in '\u02c8(|-"')


@pytest.mark.lengthy
@needs_espeak
def test_the_dataset_is_reproducible(few_names, tmp_path, monkeypatch, capsys):
    assert cli.main(["data", "get", "spoken-names"]) == 0
    description = capsys.readouterr().out
    assert "utterances: train " in description
    assert cli.main(["data", "verify", "spoken-names"]) == 0
    first = capsys.readouterr().out.split("sha256 ")[1]
    assert description.endswith(first)
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "other"))
    assert speech_corpora.load("spoken-names").sha256 == first.strip()
    next((tmp_path / "other" / "speech").rglob("audio.int16")).write_bytes(b"damaged")
    assert cli.main(["data", "verify", "spoken-names"]) == 2
    assert "is not here, or is damaged" in capsys.readouterr().err


@needs_espeak
def test_the_code_in_the_documentation_runs(few_names):
    page = (ROOT / "docs" / "speech-data.md").read_text()
    names = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    assert names["speech"].vocabulary.decode(names["ids"]) == names["utterance"].text
    for reason in REASONS | {"no transcript", "outside the vocabulary"}:
        assert f"`{reason}`" in page


@needs_espeak
def test_a_failed_process_is_a_one_line_error(tmp_path, monkeypatch):
    with pytest.raises(BadInput, match=r"espeak-ng, speaking 'xx', ended with 1 \(it has no voice xx\+m1\)"):
        espeak.speak("xx", [{"text": "a", "variant": "m1", "pitch": 50, "rate": 150}], tmp_path)
    assert not list(tmp_path.glob("*.npy"))
    monkeypatch.setattr(espeak.sys, "executable", "/bin/false")
    with pytest.raises(BadInput, match=r"ended with 1 \(no message\)"):
        espeak.speak("ba", [], tmp_path)


@needs_espeak
def test_all_voices_exist():
    import espeakng_loader

    available = {path.name for path in Path(espeakng_loader.get_data_path(), "voices", "!v").iterdir()}
    assert set(synthesis.VARIANTS) <= available
    cast = synthesis.speakers()
    assert {split: len(speakers) for split, speakers in cast.items()} == {"train": 24, "valid": 4, "test": 4}
    assert len({speaker.variant for speakers in cast.values() for speaker in speakers}) == 32


@needs_espeak
@pytest.mark.parametrize("language", languages.LANGUAGES)
def test_each_language_has_enough_names(language):
    names = cldr_names.names(language)
    assert len(names) == len(set(names)) >= 298
    assert names == cldr_names.names(language)
    assert all(3 <= len(name) <= 30 and not any(sign.isdigit() or sign in "()" for sign in name) for name in names)


def test_bashkir_numbers_are_composed_correctly():
    expected = {1: "бер", 10: "ун", 21: "егерме бер", 100: "йөҙ", 109: "йөҙ туғыҙ", 250: "ике йөҙ илле"}
    assert {number: cldr_names.bashkir_number(number) for number in expected} == expected
    assert len({cldr_names.bashkir_number(number) for number in range(1, 1000)}) == 999


def test_a_missing_package_is_named_with_its_install_command(monkeypatch):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"babel and espeakng-loader, .* 'pip install .*\[speech\]\"' first$"):
        speech_corpora.load("spoken-names")
    with pytest.raises(BadInput, match="reading sound files needs soundfile"):
        sound_files.read(Path("a.wav"))
    assert not registry.dataset("spoken-names").is_here()


def test_text_is_not_speech():
    with pytest.raises(BadInput, match="'pydoc' is running text, not speech: allowed: spoken-names, or a path"):
        speech_corpora.load("pydoc")
