"""spoken-names: which names, in which voices, in which split, the same each time."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests import ROOT
from tests.harness.datasets.recordings import REASONS
from vocabench.harness import cli, registry
from vocabench.harness.datasets import spoken_names
from vocabench.harness.datasets.shared import installed
from vocabench.harness.datasets.speech import cldr_names, espeak, sound_files, spoken, transcribed
from vocabench.harness.datasets.speech.spoken import Spoken
from vocabench.harness.speech import languages
from vocabench.impls.errors import BadInput

pytestmark = pytest.mark.usefixtures("empty_cache")


needs_espeak = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("babel", "espeakng_loader")),
    reason="babel and espeakng-loader are not installed",
)
SMALL = Spoken("spoken-names", ("ba", "tt", "it"), {"train": 8, "valid": 2, "test": 3}, "")


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(spoken_names, "recorded", SMALL.recorded)
    monkeypatch.setattr(spoken_names, "is_here", SMALL.is_here)


@needs_espeak
def test_no_text_and_no_speaker_is_in_two_splits(few):
    speech = transcribed.load("spoken-names", outside="unknown")
    assert {split: len(each) for split, each in speech.splits.items()} == {"train": 24, "valid": 6, "test": 9}
    for fact in ("speaker", "id"):
        of_split = [{getattr(each, fact) for each in its} for its in speech.splits.values()]
        assert sum(map(len, of_split)) == len(set().union(*of_split))
    said = [(each.language, each.text) for each in speech.everything]
    assert len(said) == len(set(said))
    for each in speech.everything:
        assert each.phones
        assert 0.2 < each.seconds < 6
        assert np.abs(each.samples_S.astype(int)).max() > 1000
    assert set(speech.versions) == {"babel", "espeakng_loader", "numpy", "scipy"}
    phones = transcribed.load("spoken-names", units="phones", held_out=["it"])
    assert [each.language for each in phones.splits["test"]] == ["it"] * 3
    assert not any(sign in unit for unit in phones.vocabulary.units for sign in '\u02c8(|-"')


@needs_espeak
def test_it_is_the_same_each_time(few, tmp_path, monkeypatch, capsys):
    assert cli.main(["data", "get", "spoken-names"]) == 0
    got = capsys.readouterr().out
    assert "utterances: train " in got
    assert cli.main(["data", "verify", "spoken-names"]) == 0
    first = capsys.readouterr().out.split("sha256 ")[1]
    assert got.endswith(first)
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "other"))
    assert transcribed.load("spoken-names").sha256 == first.strip()
    next((tmp_path / "other" / "speech").rglob("audio.int16")).write_bytes(b"damaged")
    assert cli.main(["data", "verify", "spoken-names"]) == 2
    assert "is not here, or is damaged" in capsys.readouterr().err


@needs_espeak
def test_the_code_on_its_page_runs(few):
    page = (ROOT / "docs" / "speech-data.md").read_text()
    names = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    assert names["speech"].vocabulary.decode(names["ids"]) == names["utterance"].text
    for reason in REASONS | {"no transcript", "outside the vocabulary"}:
        assert f"`{reason}`" in page


@needs_espeak
def test_a_process_that_dies_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(BadInput, match=r"espeak-ng, speaking 'xx', ended with 1 \(it has no voice xx\+m1\)"):
        espeak.speak("xx", [{"text": "a", "variant": "m1", "pitch": 50, "rate": 150}], tmp_path)
    assert not list(tmp_path.glob("*.npy"))
    monkeypatch.setattr(espeak.sys, "executable", "/bin/false")
    with pytest.raises(BadInput, match=r"ended with 1 \(no message\)"):
        espeak.speak("ba", [], tmp_path)


@needs_espeak
def test_every_voice_is_there():
    import espeakng_loader

    there = {path.name for path in Path(espeakng_loader.get_data_path(), "voices", "!v").iterdir()}
    assert set(spoken._VARIANTS) <= there
    cast = spoken.speakers()
    assert {split: len(each) for split, each in cast.items()} == {"train": 24, "valid": 4, "test": 4}
    assert len({each.variant for its in cast.values() for each in its}) == 32


@needs_espeak
@pytest.mark.parametrize("language", languages.LANGUAGES)
def test_every_language_has_names(language):
    names = cldr_names.names(language)
    assert len(names) == len(set(names)) >= 298
    assert names == cldr_names.names(language)
    assert all(3 <= len(name) <= 30 and not any(sign.isdigit() or sign in "()" for sign in name) for name in names)


def test_numbers_in_bashkir():
    expected = {1: "бер", 10: "ун", 21: "егерме бер", 100: "йөҙ", 109: "йөҙ туғыҙ", 250: "ике йөҙ илле"}
    assert {number: cldr_names.bashkir_number(number) for number in expected} == expected
    assert len({cldr_names.bashkir_number(number) for number in range(1, 1000)}) == 999


def test_what_is_missing_has_its_install_line(monkeypatch):
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"'pip install -c constraints.txt babel espeakng-loader' first"):
        transcribed.load("spoken-names")
    with pytest.raises(BadInput, match="reading sound files needs soundfile"):
        sound_files.read(Path("a.wav"))
    assert not registry.dataset("spoken-names").is_here()


def test_speech_is_no_text():
    with pytest.raises(BadInput, match="'pydoc' is running text, not speech: allowed: spoken-names, or a path"):
        transcribed.load("pydoc")
