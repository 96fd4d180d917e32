"""Speech: all layouts give the same utterances, and each problem is a named skip or a one-line error."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.harness.datasets.recordings import bad_sounds, folder_of, manifest, record, sound, tone
from vocabench.harness.datasets.speech import layouts, sound_files, speech_corpora
from vocabench.impls.errors import BadInput

pytestmark = pytest.mark.usefixtures("empty_cache")


# Manifests


def test_a_manifest_loses_unusable_utterances_and_nothing_else(tmp_path):
    bad = bad_sounds(tmp_path)
    bad["missing"].pop()
    reasons = {path.name: reason for reason, paths in bad.items() for path in paths}
    records = [record(name) for name in reasons]
    records += [record("silent.wav", text=""), record("dots.wav", text="..."), record("good.wav", text="Ab!")]
    folder = folder_of(tmp_path, records, test=[record("strange.wav", text="abz")])
    (tmp_path / "nothing.wav").unlink()
    speech = speech_corpora.load(folder)
    assert [utterance.id for utterance in speech.splits["train"]] == ["good.wav"]
    assert set(speech.splits) == {"train"}
    expected = {reason: [path.name for path in paths] for reason, paths in bad.items()}
    expected |= {"no transcript": ["silent.wav", "dots.wav"], "outside the vocabulary": ["strange.wav"]}
    assert speech.skipped == expected
    assert dict(zip(speech.vocabulary.units, speech.vocabulary.counts_V.tolist(), strict=True)) == {
        "a": 1, "b": 1, "<eos>": 1, "<unk>": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"audio": "a.wav", ', "line 2: not JSON: allowed: "),
        ("[" * 100_000, "line 2: not JSON"),
        ("[1]", "line 2: not an object"),
        ('{"text": "a", "language": "ba"}', "line 2: no audio"),
        ('{"audio": "b.wav", "language": "ba"}', "line 2: no text"),
        ('{"audio": "b.wav", "text": 1, "language": "ba"}', "line 2: no text"),
        ('{"audio": "b.wav", "text": "a"}', "line 2: no language"),
        ('{"audio": "b.wav", "text": "a", "language": "ba", "phones": ["a"]}', "line 2: phones is not text"),
        ('{"audio": "a.wav", "text": "a", "language": "ba"}', "line 2: audio 'a.wav' is also in line 1"),
        ('{"audio": "../a.wav", "text": "a", "language": "ba"}', r"line 2: audio '\.\./a.wav' is outside"),
        ('{"audio": "/etc/a.wav", "text": "a", "language": "ba"}', "line 2: audio '/etc/a.wav' is outside"),
        ('{"audio": "link/a.wav", "text": "a", "language": "ba"}', "line 2: audio 'link/a.wav' is outside"),
        ('{"audio": "\\u0000", "text": "a", "language": "ba"}', "line 2: audio"),
        ("", "line 2: it is empty"),
        (b"\xff", "line 2: byte 50 of the file is 0xff, which is not UTF-8"),
    ],
)
def test_a_malformed_manifest_is_a_one_line_error_with_a_location(tmp_path, line, message):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "link").symlink_to(tmp_path)
    path = manifest(tmp_path / "mine" / "train.jsonl", [record("a.wav", "a")])
    path.write_bytes(path.read_bytes() + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(BadInput, match=f"train.jsonl, {message}") as caught:
        speech_corpora.load(str(path.parent))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("code", ["xyz", "tr-TRX", "t", "turk", "tr-", "Turkish", "tr-TR-"])
def test_an_unknown_language_is_a_one_line_error_with_a_location(tmp_path, code):
    folder = folder_of(tmp_path, [record("1.wav"), record("2.wav", language=code)])
    with pytest.raises(BadInput) as error:
        speech_corpora.load(folder)
    where, problem, allowed = str(error.value).split(": ", 2)
    assert where == f"{tmp_path}/train.jsonl, line 2"
    assert problem == f"language {code!r}"
    assert allowed.startswith("allowed: a code of ISO 639 such as tr or tur")


@pytest.mark.parametrize("code", ["tr", "tr-TR", "tr_TR", "tur", "und", "qaa", "sr-Latn-RS", "rm-sursilv", "es-419"])
def test_a_code_of_a_language_is_kept_as_it_is(tmp_path, code):
    speech = speech_corpora.load(folder_of(tmp_path, [record("1.wav", "AI", language=code)]))
    (utterance,) = speech.splits["train"]
    assert utterance.language == code
    turkish = code.startswith("tr") or code == "tur"
    assert speech.transcript(utterance) == ("a\u0131" if turkish else "ai")


def test_sound_and_transcripts_that_are_also_in_training_are_counted(tmp_path):
    for name, hertz in (("1.wav", 400.0), ("2.wav", 500.0), ("3.wav", 400.0), ("4.wav", 600.0)):
        sound(tmp_path / name, tone(hertz=hertz))
    train = [record("1.wav", "ab"), record("2.wav", "bb")]
    test = [record("3.wav", "ba"), record("4.wav", "AB!")]
    valid = [record("5.wav", "ab", language="tt")]
    speech = speech_corpora.load(folder_of(tmp_path, train, valid=valid, test=test))
    assert speech.shared_with_training == {"valid": 0.0, "test": 0.5}
    assert speech.transcripts_in_training == {"valid": 0.0, "test": 0.5}  # of the same language


def test_a_single_manifest_is_split_by_hashes(tmp_path):
    folder_of(tmp_path, [record(f"{number}.wav") for number in range(120)])
    speech = speech_corpora.load(str(tmp_path / "train.jsonl"))
    sizes = {split: len(utterances) for split, utterances in speech.splits.items()}
    assert sum(sizes.values()) == 120
    assert 84 <= sizes["train"] <= 108
    assert min(sizes.values()) >= 3


def test_speech_without_training_data_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"phones: nothing to train on \(skipped: no transcript 1\)"):
        speech_corpora.load(folder_of(tmp_path, [record("a.wav")]), units="phones")
    with pytest.raises(BadInput, match="no such file or folder"):
        speech_corpora.load(str(tmp_path / "nothing"))
    (tmp_path / "other").mkdir()
    with pytest.raises(BadInput, match=r"no speech: allowed: train\.jsonl, Common Voice's"):
        speech_corpora.load(str(tmp_path / "other"))


def test_speech_is_decoded_again_only_when_a_file_changes(tmp_path, monkeypatch):
    folder = folder_of(tmp_path / "mine", [record("a.wav"), record("b.wav", speaker="s")])
    first = speech_corpora.load(folder)
    read = sound_files.read
    monkeypatch.setattr(sound_files, "read", None)
    again = speech_corpora.load(folder)
    assert again.sha256 == first.sha256
    np.testing.assert_array_equal(again.splits["train"][1].samples_S, tone())
    monkeypatch.setattr(sound_files, "read", read)
    sound(tmp_path / "mine" / "b.wav", tone(0.3))
    changed = speech_corpora.load(folder)
    assert changed.sha256 != first.sha256
    assert changed.splits["train"][1].seconds == pytest.approx(0.3)


# Other layouts


def common_voice(folder, rows, columns=("client_id", "path", "sentence", "locale")):
    for split in ("train", "dev", "test"):
        lines = ["\t".join(columns), *("\t".join(row) for row in rows[split])]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for row in rows[split]:
            sound(folder / "clips" / row[1])


def test_common_voice_is_read_with_its_splits(tmp_path):
    rows = {
        "train": [("s1", "1.wav", "\u201cЁлка\u201d, ИҘЕЛ!", "ba"), ("s1", "2.wav", "", "ba")],
        "dev": [("s2", "3.mp3", "ел", "ba")],
        "test": [("", "4.wav", "дел", "ba")],
    }
    common_voice(tmp_path, rows)
    speech = speech_corpora.load(str(tmp_path))
    assert {split: [utterance.id for utterance in utterances] for split, utterances in speech.splits.items()} == {
        "train": ["1.wav"], "valid": ["3.mp3"],
    }  # fmt: skip
    first = speech.splits["train"][0]
    assert (first.speaker, first.language, speech.transcript(first)) == ("s1", "ba", "ёлка иҙел")
    assert speech.skipped == {"no transcript": ["2.wav"], "outside the vocabulary": ["4.wav"]}
    kept = speech_corpora.load(str(tmp_path), outside="unknown")
    (strange,) = kept.splits["test"]
    assert kept.vocabulary.decode(kept.vocabulary.encode(strange)) == "\ufffdел"


def test_a_folder_of_several_common_voice_languages_is_read(tmp_path):
    for language in ("ba", "tt"):
        rows = {split: [("s", "1.wav", "аб")] for split in ("train", "dev", "test")}
        common_voice(tmp_path / "cv" / language, rows, ("client_id", "path", "sentence"))
    speech = speech_corpora.load(str(tmp_path / "cv"))
    assert [utterance.language for utterance in speech.splits["train"]] == ["ba", "tt"]


def test_the_papers_splits_of_common_voice(tmp_path, monkeypatch):
    """A tenth of a language's validated utterances, or fewer, are for testing, and half as many for validation."""
    monkeypatch.setattr(layouts, "_MOST_TEST", 4)
    for language, count in (("ba", 30), ("tt", 60)):
        folder = tmp_path / "cv" / language
        lines = ["path\tsentence", *(f"{number}.wav\tаб" for number in range(count))]
        folder.mkdir(parents=True)
        (folder / "validated.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for number in range(count):
            sound(folder / "clips" / f"{number}.wav")
    speech = speech_corpora.load(str(tmp_path / "cv"), splits="validated")
    sizes = {split: Counter(each.language for each in utterances) for split, utterances in speech.splits.items()}
    assert sizes == {"train": {"ba": 26, "tt": 54}, "valid": {"ba": 1, "tt": 2}, "test": {"ba": 3, "tt": 4}}
    ids = [(each.language, each.id) for utterances in speech.splits.values() for each in utterances]
    assert len(set(ids)) == len(ids) == 90
    for name, splits, message in (
        (str(tmp_path / "cv" / "ba" / "clips"), "validated", "no validated.tsv"),
        (str(tmp_path / "cv"), "papers", "unknown splits 'papers'"),
        ("spoken-names", "validated", "of dataset 'spoken-names'"),
    ):
        with pytest.raises(BadInput, match=message):
            speech_corpora.load(name, splits=splits)


def test_a_malformed_common_voice_table_is_refused(tmp_path):
    rows = {split: [("s", "1.wav", "аб")] for split in ("train", "dev", "test")}
    folder = tmp_path / "ba"
    common_voice(folder, rows, ("client_id", "path", "sentence"))
    good = (folder / "train.tsv").read_text()
    for text, message in (
        (good.replace("sentence", "text"), "line 1: no column 'sentence'"),
        (good + "s\t2.wav\n", "line 3: 2 columns: allowed: 3"),
        (good + "s\t../../1.wav\tаб\n", "line 3: audio '../../1.wav' is outside"),
    ):
        (folder / "train.tsv").write_text(text)
        with pytest.raises(BadInput, match=f"train.tsv, {message}"):
            speech_corpora.load(str(folder))


def ucla(folder, language, words):
    for number in range(words):
        sound(folder / "audio" / f"{language}-{number}.wav")
    lines = [f"{language}-{number} a t\u0361\u0283 \u02c8o\u02d0" for number in range(words)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_the_ucla_corpus_is_tested_on_the_languages_of_the_paper(tmp_path):
    for language in ("abk", "hau", "yue"):
        ucla(tmp_path / language, language, 20)
    speech = speech_corpora.load(str(tmp_path), units="phones")
    languages = {split: {utterance.language for utterance in part} for split, part in speech.splits.items()}
    assert set(languages) == {"train", "valid", "test"}
    assert languages["valid"] <= languages["train"] == {"hau", "yue"}
    assert languages["test"] == {"abk"}
    assert speech.transcript(speech.splits["test"][0]) == "a t\u0283 o\u02d0"
    assert set(speech.vocabulary.units) == {"a", "t\u0283", "o\u02d0", "<eos>", "<unk>"}
    assert set(speech_corpora.load(str(tmp_path / "abk"), units="phones").splits) >= {"train", "test"}
    with pytest.raises(BadInput, match="characters: nothing to train on"):
        speech_corpora.load(str(tmp_path))


# Real recordings, if the user has them

needs_data = pytest.mark.skipif("VOCABENCH_DATA" not in os.environ, reason="VOCABENCH_DATA is not set")
DATA = Path(os.environ.get("VOCABENCH_DATA", ""))


@needs_data
def test_the_users_own_recordings_are_read():
    if not (DATA / "ucla-phonetic-abk").is_dir():
        pytest.skip("no ucla-phonetic-abk below VOCABENCH_DATA")
    speech = speech_corpora.load(str(DATA / "ucla-phonetic-abk"), units="phones", outside="unknown")
    assert sum(map(len, speech.splits.values())) == 54
    assert not speech.skipped
    assert "d\u0292" in speech.vocabulary.units
    assert {utterance.language for utterance in speech.everything} == {"abk"}
