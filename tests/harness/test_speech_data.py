"""Speech: every layout gives the same utterances, every problem is a named skip or one line; spoken-names itself."""

import collections
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import cli, registry
from harness.datasets import _audio, _espeak, _installed, _names, _speech, _spoken, spoken_names
from harness.datasets._spoken import Spoken
from harness.speech import languages
from impls.errors import BadInput

soundfile = pytest.importorskip("soundfile")

RATE = _audio.SAMPLE_RATE
REASONS = {
    "missing", "empty", "truncated", "corrupt", "more than 2 channels", "too short", "too long", "sample rate",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tone(seconds=0.2, rate=RATE, hertz=440.0):
    return np.round(8000 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.int16)


def sound(path, samples=None, rate=RATE, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, tone(rate=rate) if samples is None else samples, rate, **how)
    return path


def manifest(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records), encoding="utf-8")
    return path


def record(audio, text="ab", language="ba", **more):
    return {"audio": audio, "text": text, "language": language, **more}


def folder_of(tmp_path, train, **others):
    """A folder of manifests whose sounds are all there; what they are of is not looked at."""
    for split, records in {"train": train, **others}.items():
        manifest(tmp_path / f"{split}.jsonl", records)
        for each in records:
            if not (tmp_path / each["audio"]).exists():
                sound(tmp_path / each["audio"])
    return str(tmp_path)


# Sound files


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_sixteen_bits_at_sixteen_kilohertz_are_left_alone(tmp_path, name):
    np.testing.assert_array_equal(_audio.read(sound(tmp_path / name)), tone())


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_other_rates_are_resampled(tmp_path, rate):
    found_S = _audio.read(sound(tmp_path / "a.wav", rate=rate))
    assert len(found_S) == pytest.approx(0.2 * RATE, abs=1)
    inner = slice(400, -400)  # away from the filter's ends
    np.testing.assert_allclose(found_S[inner], tone()[: len(found_S)][inner], atol=80)


def test_two_channels_are_averaged(tmp_path):
    both_SC = np.stack([tone(), tone() // 3], axis=1)
    np.testing.assert_allclose(_audio.read(sound(tmp_path / "a.wav", both_SC)), both_SC.mean(axis=1), atol=0.5)


def test_loud_sound_is_clipped_and_does_not_wrap(tmp_path):
    path = sound(tmp_path / "a.wav", 2.0 * tone() / 8000, subtype="FLOAT")
    assert (_audio.read(path).min(), _audio.read(path).max()) == (-32768, 32767)


def bad_sounds(folder):
    """Path by the reason for which it cannot be used."""
    whole = sound(folder / "whole.wav").read_bytes()
    flac = sound(folder / "whole.flac").read_bytes()
    bad = {
        "missing": [folder / "nothing.wav", folder],
        "empty": [folder / "empty.wav", sound(folder / "no samples.wav", tone(0))],
        "truncated": [folder / "half.wav"],
        "corrupt": [folder / name for name in ("noise.wav", "half.flac", "changed.flac", "nan.wav", "bare.raw")],
        "more than 2 channels": [sound(folder / "eight.wav", np.stack([tone()] * 8, axis=1))],
        "too short": [sound(folder / "short.wav", tone(0.05))],
        "too long": [sound(folder / "long.wav", tone(31))],
        "sample rate": [sound(folder / "slow.wav", rate=2_000)],
    }
    (folder / "empty.wav").write_bytes(b"")
    (folder / "half.wav").write_bytes(whole[: len(whole) // 2])
    (folder / "half.flac").write_bytes(flac[: len(flac) // 2])
    (folder / "changed.flac").write_bytes(flac[:400] + bytes(100) + flac[500:])
    for name in ("noise.wav", "bare.raw"):
        (folder / name).write_bytes(bytes(range(256)) * 20)
    sound(folder / "nan.wav", np.full(4000, np.nan), subtype="FLOAT")
    return bad


def test_every_problem_has_its_name(tmp_path):
    bad = bad_sounds(tmp_path)
    assert set(bad) == REASONS
    for reason, paths in bad.items():
        for path in paths:
            with pytest.raises(_audio.Unusable, match=f"^{reason}$"):
                _audio.read(path)


def reason_of(path):
    """Why it cannot be used; empty where it can."""
    try:
        return "" if len(_audio.read(path)) else "nothing"
    except _audio.Unusable as reason:
        return str(reason)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=5), st.integers(0, 100))
def test_a_damaged_header_is_read_or_named(tmp_path, changes, end):
    for name in ("a.wav", "a.flac"):
        damaged = bytearray(sound(tmp_path / name).read_bytes())
        for place, value in changes:
            damaged[place] = value
        (tmp_path / name).write_bytes(damaged[: len(damaged) * end // 100])
        assert reason_of(tmp_path / name) in REASONS | {""}


def test_a_wav_file_from_a_pipe_does_not_know_its_size(tmp_path):
    path = sound(tmp_path / "a.wav")
    whole = path.read_bytes()
    assert whole[36:40] == b"data"
    path.write_bytes(whole[:4] + b"\xff" * 4 + whole[8:40] + b"\xff" * 4 + whole[44:])
    np.testing.assert_array_equal(_audio.read(path), tone())


# Manifests


def test_a_manifest_with_every_problem_loses_those_and_nothing_else(tmp_path):
    bad = bad_sounds(tmp_path)
    bad["missing"].pop()
    reasons = {path.name: reason for reason, paths in bad.items() for path in paths}
    records = [record(name) for name in reasons]
    records += [record("silent.wav", text=""), record("dots.wav", text="..."), record("good.wav", text="Ab!")]
    folder = folder_of(tmp_path, records, test=[record("strange.wav", text="abz")])
    (tmp_path / "nothing.wav").unlink()
    speech = _speech.load(folder)
    assert [each.id for each in speech.splits["train"]] == ["good.wav"]
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
        ('{"audio": "a.wav", ', "line 2: no JSON: allowed: "),
        ("[" * 100_000, "line 2: no JSON"),
        ("[1]", "line 2: no object"),
        ('{"text": "a", "language": "ba"}', "line 2: no audio"),
        ('{"audio": "b.wav", "language": "ba"}', "line 2: no text"),
        ('{"audio": "b.wav", "text": 1, "language": "ba"}', "line 2: no text"),
        ('{"audio": "b.wav", "text": "a"}', "line 2: no language"),
        ('{"audio": "b.wav", "text": "a", "language": "ba", "phones": ["a"]}', "line 2: phones is no text"),
        ('{"audio": "a.wav", "text": "a", "language": "ba"}', "line 2: audio 'a.wav' stands in line 1 too"),
        ('{"audio": "../a.wav", "text": "a", "language": "ba"}', r"line 2: audio '\.\./a.wav' lies outside"),
        ('{"audio": "/etc/a.wav", "text": "a", "language": "ba"}', "line 2: audio '/etc/a.wav' lies outside"),
        ('{"audio": "link/a.wav", "text": "a", "language": "ba"}', "line 2: audio 'link/a.wav' lies outside"),
        ('{"audio": "\\u0000", "text": "a", "language": "ba"}', "line 2: audio"),
        ("", "line 2: it is empty"),
        (b"\xff", "line 2: byte 50 of the file is 0xff, which is not UTF-8"),
    ],
)
def test_a_malformed_manifest_is_one_line_that_says_where(tmp_path, line, message):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "link").symlink_to(tmp_path)
    path = manifest(tmp_path / "mine" / "train.jsonl", [record("a.wav", "a")])
    path.write_bytes(path.read_bytes() + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(BadInput, match=f"train.jsonl, {message}") as caught:
        _speech.load(str(path.parent))
    assert "\n" not in str(caught.value)


def test_a_single_manifest_is_held_out_by_hashes(tmp_path):
    folder_of(tmp_path, [record(f"{number}.wav") for number in range(120)])
    speech = _speech.load(str(tmp_path / "train.jsonl"))
    sizes = {split: len(each) for split, each in speech.splits.items()}
    assert sum(sizes.values()) == 120
    assert 84 <= sizes["train"] <= 108
    assert min(sizes.values()) >= 3


def test_nothing_to_train_on(tmp_path):
    with pytest.raises(BadInput, match=r"phones: nothing to train on \(skipped: no transcript 1\)"):
        _speech.load(folder_of(tmp_path, [record("a.wav")]), units="phones")
    with pytest.raises(BadInput, match="no such file or folder"):
        _speech.load(str(tmp_path / "nothing"))
    (tmp_path / "other").mkdir()
    with pytest.raises(BadInput, match=r"no speech: allowed: train\.jsonl, Common Voice's"):
        _speech.load(str(tmp_path / "other"))


def test_it_is_decoded_once_and_again_when_a_file_changes(tmp_path, monkeypatch):
    folder = folder_of(tmp_path / "mine", [record("a.wav"), record("b.wav", speaker="s")])
    first = _speech.load(folder)
    read = _audio.read
    monkeypatch.setattr(_audio, "read", None)
    again = _speech.load(folder)
    assert again.sha256 == first.sha256
    np.testing.assert_array_equal(again.splits["train"][1].samples_S, tone())
    monkeypatch.setattr(_audio, "read", read)
    sound(tmp_path / "mine" / "b.wav", tone(0.3))
    changed = _speech.load(folder)
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


def test_common_voice(tmp_path):
    rows = {
        "train": [("s1", "1.wav", "\u201cЁлка\u201d, ИҘЕЛ!", "ba"), ("s1", "2.wav", "", "ba")],
        "dev": [("s2", "3.mp3", "ел", "ba")],
        "test": [("", "4.wav", "дел", "ba")],
    }
    common_voice(tmp_path, rows)
    speech = _speech.load(str(tmp_path))
    assert {split: [each.id for each in its] for split, its in speech.splits.items()} == {
        "train": ["1.wav"], "valid": ["3.mp3"],
    }  # fmt: skip
    first = speech.splits["train"][0]
    assert (first.speaker, first.language, speech.transcript(first)) == ("s1", "ba", "ёлка иҙел")
    assert speech.skipped == {"no transcript": ["2.wav"], "outside the vocabulary": ["4.wav"]}
    kept = _speech.load(str(tmp_path), outside="unknown")
    (strange,) = kept.splits["test"]
    assert kept.vocabulary.decode(kept.vocabulary.encode(strange)) == "\ufffdел"


def test_common_voices_of_several_languages(tmp_path):
    for language in ("ba", "tt"):
        rows = {split: [("s", "1.wav", "аб")] for split in ("train", "dev", "test")}
        common_voice(tmp_path / "cv" / language, rows, ("client_id", "path", "sentence"))
    speech = _speech.load(str(tmp_path / "cv"))
    assert [each.language for each in speech.splits["train"]] == ["ba", "tt"]


def test_a_malformed_common_voice(tmp_path):
    rows = {split: [("s", "1.wav", "аб")] for split in ("train", "dev", "test")}
    common_voice(tmp_path, rows, ("client_id", "path", "sentence"))
    good = (tmp_path / "train.tsv").read_text()
    for text, message in (
        (good.replace("sentence", "text"), "line 1: no column 'sentence'"),
        (good + "s\t2.wav\n", "line 3: 2 columns: allowed: 3"),
        (good + "s\t../../1.wav\tаб\n", "line 3: audio '../../1.wav' lies outside"),
    ):
        (tmp_path / "train.tsv").write_text(text)
        with pytest.raises(BadInput, match=f"train.tsv, {message}"):
            _speech.load(str(tmp_path))


def ucla(folder, language, words):
    for number in range(words):
        sound(folder / "audio" / f"{language}-{number}.wav")
    lines = [f"{language}-{number} a t\u0361\u0283 \u02c8o\u02d0" for number in range(words)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_the_ucla_corpus_tests_on_the_papers_languages(tmp_path):
    for language in ("abk", "hau", "yue"):
        ucla(tmp_path / language, language, 20)
    speech = _speech.load(str(tmp_path), units="phones")
    tested = {split: {each.language for each in its} for split, its in speech.splits.items()}
    assert set(tested) == {"train", "valid", "test"}
    assert tested["valid"] <= tested["train"] == {"hau", "yue"}
    assert tested["test"] == {"abk"}
    assert speech.transcript(speech.splits["test"][0]) == "a t\u0283 o\u02d0"
    assert set(speech.vocabulary.units) == {"a", "t\u0283", "o\u02d0", "<eos>", "<unk>"}
    assert set(_speech.load(str(tmp_path / "abk"), units="phones").splits) >= {"train", "test"}
    with pytest.raises(BadInput, match="characters: nothing to train on"):
        _speech.load(str(tmp_path))


# Units and choices


def spoken(tmp_path, **others):
    train = [
        record("1.wav", "aab", "ba", phones="a t\u0361\u0283"),
        record("2.wav", "ac", "tt", phones="a b"),
        record("3.wav", "a", "uz"),
    ]
    return folder_of(tmp_path / "spoken", train, **others)


def test_the_vocabulary_is_counted_and_ranked(tmp_path):
    vocabulary = _speech.load(spoken(tmp_path), min_count=2, with_language=True).vocabulary
    assert vocabulary.units == ("a", "<eos>", "<unk>", "<ba>", "<tt>", "<uz>")
    assert vocabulary.counts_V.tolist() == [4, 3, 2, 1, 1, 1]


def test_sequences_there_and_back(tmp_path):
    speech = _speech.load(spoken(tmp_path), with_language=True)
    first = speech.splits["train"][0]
    ids_L = speech.vocabulary.encode(first)
    assert [speech.vocabulary.units[each] for each in ids_L] == ["<ba>", "a", "a", "b", "<eos>"]
    assert speech.vocabulary.decode(ids_L) == speech.transcript(first) == "aab"
    assert speech.vocabulary.decode([*ids_L, *ids_L]) == "aab"
    phones = _speech.load(spoken(tmp_path), units="phones")
    assert phones.vocabulary.decode(phones.vocabulary.encode(phones.splits["train"][0])) == "a t\u0283"
    assert phones.skipped == {"no transcript": ["3.wav"]}


def test_languages_are_chosen_and_held_out(tmp_path):
    test = [record("4.wav", "a", "ba"), record("5.wav", "axy", "uz"), record("6.wav", "axy", "ba")]
    folder = spoken(tmp_path, valid=[record("7.wav", "b", "ba")], test=test)

    def chosen(**choices):
        return {split: [each.language for each in its] for split, its in _speech.load(folder, **choices).splits.items()}

    assert chosen() == {"train": ["ba", "tt", "uz"], "valid": ["ba"], "test": ["ba"]}
    assert chosen(languages=["tt", "ba"]) == {"train": ["ba", "tt"], "valid": ["ba"], "test": ["ba"]}
    assert chosen(held_out=["uz"]) == {"train": ["ba", "tt"], "valid": ["ba"], "test": ["uz"]}
    with pytest.raises(BadInput, match=r"'fr': .*allowed: ba, tt, uz, Romance, Slavic, Turkic"):
        chosen(languages=["fr"])


def test_another_corpus_by_the_vocabulary_of_the_first(tmp_path):
    first = _speech.load(spoken(tmp_path))
    other = folder_of(tmp_path / "other", [record("1.wav", "bca"), record("2.wav", "xyz")])
    found = _speech.load(other, vocabulary=first.vocabulary)
    assert [each.id for each in found.splits["train"]] == ["1.wav"]
    assert found.skipped == {"outside the vocabulary": ["2.wav"]}
    assert found.vocabulary is first.vocabulary


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"units": "phone"}, "unknown units 'phone': did you mean 'phones'"),
        ({"outside": "drop"}, "unknown rule for outside 'drop': allowed: skip, unknown"),
        ({"min_count": 0}, "min_count=0"),
    ],
)
def test_settings_that_cannot_be(tmp_path, choices, message):
    with pytest.raises(BadInput, match=message):
        _speech.load(spoken(tmp_path), **choices)


# The paper's languages and their down-sampling


def test_the_papers_formula():
    found = languages.probabilities({"ru": 900, "uk": 100, "be": 4})
    assert found == pytest.approx({"ru": 30 / 42, "uk": 10 / 42, "be": 2 / 42})
    assert languages.probabilities({"ru": 900, "uk": 100}, alpha=1) == pytest.approx({"ru": 0.9, "uk": 0.1})
    assert languages.probabilities({"ru": 900, "uk": 100}, alpha=0) == {"ru": 0.5, "uk": 0.5}
    for counts, alpha in (({}, 0.5), ({"ru": 0}, 0.5), ({"ru": 1}, -1), ({"ru": 1}, float("nan"))):
        with pytest.raises(BadInput):
            languages.probabilities(counts, alpha)


def test_a_sample_follows_the_formula():
    spoken_U = ["ru"] * 900 + ["uk"] * 100
    drawn = languages.sample(spoken_U, 4000, np.random.default_rng(0))
    counts = collections.Counter(spoken_U[place] for place in drawn)
    assert counts["uk"] / 4000 == pytest.approx(0.25, abs=0.03)
    # Nine hundred or a hundred at a time: none is drawn again before all of its language were.
    for language in ("ru", "uk"):
        times = collections.Counter(place for place in drawn if spoken_U[place] == language)
        assert len(times) == spoken_U.count(language)
        assert max(times.values()) - min(times.values()) <= 1
    np.testing.assert_array_equal(drawn, languages.sample(spoken_U, 4000, np.random.default_rng(0)))
    assert len(languages.sample(spoken_U, 0, np.random.default_rng(0))) == 0
    with pytest.raises(BadInput, match="sample of -1 utterances"):
        languages.sample(spoken_U, -1, np.random.default_rng(0))


def test_groups():
    assert languages.expand(["Turkic", "ru", "tt"]) == ("ba", "ky", "tr", "tt", "uz", "ru")
    assert len(set(languages.LANGUAGES)) == 15


# spoken-names

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
    speech = _speech.load("spoken-names", outside="unknown")
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
    phones = _speech.load("spoken-names", units="phones", held_out=["it"])
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
    assert _speech.load("spoken-names").sha256 == first.strip()
    next((tmp_path / "other" / "speech").rglob("audio.int16")).write_bytes(b"damaged")
    assert cli.main(["data", "verify", "spoken-names"]) == 2
    assert "is not here, or is damaged" in capsys.readouterr().err


@needs_espeak
def test_the_code_on_its_page_runs(few):
    page = (Path(__file__).parents[2] / "docs" / "speech-data.md").read_text()
    names = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    assert names["speech"].vocabulary.decode(names["ids"]) == names["utterance"].text
    for reason in REASONS | {"no transcript", "outside the vocabulary"}:
        assert f"`{reason}`" in page


@needs_espeak
def test_a_process_that_dies_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(BadInput, match=r"espeak-ng, speaking 'xx', ended with 1 \(it has no voice xx\+m1\)"):
        _espeak.speak("xx", [{"text": "a", "variant": "m1", "pitch": 50, "rate": 150}], tmp_path)
    assert not list(tmp_path.glob("*.npy"))
    monkeypatch.setattr(_espeak.sys, "executable", "/bin/false")
    with pytest.raises(BadInput, match=r"ended with 1 \(no message\)"):
        _espeak.speak("ba", [], tmp_path)


@needs_espeak
def test_every_voice_is_there():
    import espeakng_loader

    there = {path.name for path in Path(espeakng_loader.get_data_path(), "voices", "!v").iterdir()}
    assert set(_spoken._VARIANTS) <= there
    cast = _spoken.speakers()
    assert {split: len(each) for split, each in cast.items()} == {"train": 24, "valid": 4, "test": 4}
    assert len({each.variant for its in cast.values() for each in its}) == 32


@needs_espeak
@pytest.mark.parametrize("language", languages.LANGUAGES)
def test_every_language_has_names(language):
    names = _names.names(language)
    assert len(names) == len(set(names)) >= 298
    assert names == _names.names(language)
    assert all(3 <= len(name) <= 30 and not any(sign.isdigit() or sign in "()" for sign in name) for name in names)


def test_numbers_in_bashkir():
    expected = {1: "бер", 10: "ун", 21: "егерме бер", 100: "йөҙ", 109: "йөҙ туғыҙ", 250: "ике йөҙ илле"}
    assert {number: _names.bashkir_number(number) for number in expected} == expected
    assert len({_names.bashkir_number(number) for number in range(1, 1000)}) == 999


def test_what_is_missing_has_its_install_line(monkeypatch):
    monkeypatch.setattr(_installed.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"'pip install -c constraints.txt babel espeakng-loader' first"):
        _speech.load("spoken-names")
    with pytest.raises(BadInput, match="reading sound files needs soundfile"):
        _audio.read(Path("a.wav"))
    assert not registry.dataset("spoken-names").is_here()


def test_speech_is_no_text():
    with pytest.raises(BadInput, match="'pydoc' is running text, not speech: allowed: spoken-names, or a path"):
        _speech.load("pydoc")


# Real recordings, where the user has them

needs_data = pytest.mark.skipif("VOCABENCH_DATA" not in os.environ, reason="VOCABENCH_DATA is not set")
DATA = Path(os.environ.get("VOCABENCH_DATA", ""))


@needs_data
def test_the_users_own_recordings():
    if not (DATA / "ucla-phonetic-abk").is_dir():
        pytest.skip("no ucla-phonetic-abk below VOCABENCH_DATA")
    speech = _speech.load(str(DATA / "ucla-phonetic-abk"), units="phones", outside="unknown")
    assert sum(map(len, speech.splits.values())) == 54
    assert not speech.skipped
    assert "d\u0292" in speech.vocabulary.units
    assert {each.language for each in speech.everything} == {"abk"}
