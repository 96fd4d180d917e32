"""The speech task from sound to row, on a small language of tones: each character is one, each phone too."""

import copy
import dataclasses
import json
import re

import numpy as np
import pytest

from tests import rows
from tests.rows import by_quantity
from vocabench.harness import cli, registry
from vocabench.harness.datasets.speech import speech_corpora
from vocabench.harness.metrics import error_rate
from vocabench.harness.report import excerpts
from vocabench.harness.report import rows as records
from vocabench.harness.report import table as tables
from vocabench.harness.run.rows import Measurement, storable
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.suites import Suite
from vocabench.harness.speech import features
from vocabench.harness.tasks import speech
from vocabench.harness.tasks.shared import error_rates, recognition, recognizers, training_loop
from vocabench.impls.errors import BadInput

soundfile = pytest.importorskip("soundfile")

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
RATE = 16_000
HERTZ = {"a": 400.0, "b": 900.0, "c": 1800.0, "d": 3500.0}
SMALL = {
    "batch": 10, "warmup": 20, "learning_rate": 0.005, "smoothing": 0.0, "augment": False, "paddings": 1, "epochs": 1,
    "size": "tiny", "beam": 1,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def tiny_recognizers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(recognizers.SIZES, "tiny", recognizers.SIZES["tiny"] | {"encoder_layers": 1, "channels": 4})
        yield


def spoken(text, rng):
    """A tone of 80 ms for each character, with a little noise."""
    times_S = np.arange(round(0.08 * RATE)) / RATE
    tones = [np.sin(2 * np.pi * HERTZ[sign] * times_S) for sign in text]
    samples_S = np.concatenate(tones)
    return (8000 * samples_S + rng.normal(0, 100, samples_S.size)).astype(np.int16)


def write(folder, split, texts, languages=("es", "tr")):
    rng, lines = np.random.default_rng(len(texts)), []
    for number, text in enumerate(texts):
        name = f"{split}{number}.wav"
        soundfile.write(folder / name, spoken(text, rng), RATE)
        language = languages[number % len(languages)]
        lines.append({"audio": name, "text": text, "phones": " ".join(text), "language": language})
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("speech") / "tones"
    path.mkdir()
    for split, count in (("train", 60), ("valid", 10), ("test", 12)):
        write(path, split, ["".join(rng.choice(list(HERTZ), rng.integers(2, 6))) for _ in range(count)])
    return str(path)


def cell_of(framework, method, folder, options=None, precision="float64", **settings):
    settings = {"languages": "es,tr", "alpha": 1, "keep": 1, "counts": "pooled"} | SMALL | settings
    cells = Suite.load("hsm-asr").cells(
        Selection(
            frameworks=[framework],
            methods=[method],
            tasks=["speech"],
            dataset=folder,
            precision=[precision],
            options=options or {},
            settings={name: str(value) for name, value in settings.items()},
        )
    )
    (cell,) = cells
    return dataclasses.replace(cell, dim=32)


def row_of(cell):
    return rows.row_of(speech, cell)


@pytest.fixture(scope="module")
def learned(folder):
    if "torch" not in FRAMEWORKS:
        pytest.skip("needs torch")
    return row_of(cell_of("torch", "huffman", folder, precision="float32", epochs=30, beam=2, utterances=50))


@pytest.mark.lengthy
def test_fifty_utterances_are_learned_by_heart(folder, learned):
    row = row_of(
        cell_of("torch", "huffman", folder, precision="float32", epochs=30, beam=2, utterances=50, split="train")
    )
    measured = by_quantity(row)
    assert measured["cer"].value < 0.05
    assert len(measured["cer"].samples) == 50
    assert 1.0 < measured["perplexity"].value < 1.2
    # Others of these tones are heard too, if not as well: a model that heard nothing would be at 1.
    assert measured["cer"].value < by_quantity(learned)["cer"].value < 0.7


def test_a_row_holds_curve_steps_ids_and_transcripts(learned, folder):
    measured = by_quantity(learned)
    assert [point["step"] for point in measured["perplexity"].detail["curve"]][:2] == [5, 10]
    assert len(measured["step_seconds"].samples) == 30 * 5 - 2  # of one shape: all but the first two
    test = speech_corpora.load(folder).splits["test"]
    cer = measured["cer"]
    assert cer.detail["ids"] == [utterance.id for utterance in test]
    references, heard = [utterance.text for utterance in test], cer.detail["transcripts"]
    counts_U4 = error_rate.CharacterErrorRate().per_utterance(references, heard)
    assert cer.detail["counts"] == counts_U4.tolist()
    assert cer.low <= cer.value == error_rate.rate(counts_U4) <= cer.high
    assert cer.samples == pytest.approx(counts_U4[:, :3].sum(axis=1) / counts_U4[:, 3])
    assert "examples" not in cer.detail  # this speech is not ours to quote
    assert cer.detail["shared_with_training"] == 0
    known = {(u.language, u.text) for u in speech_corpora.load(folder).splits["train"]}
    shared = np.mean([(u.language, u.text) in known for u in test])
    assert cer.detail["transcripts_in_training"] == shared > 0


def test_the_real_time_factor_is_told_by_length(learned, folder):
    rtf = by_quantity(learned)["rtf"]
    parts = rtf.detail["by_length"]
    test = speech_corpora.load(folder).splits["test"]
    assert sum(part["utterances"] for part in parts) == len(test)
    assert sum(part["audio_seconds"] for part in parts) == pytest.approx(sum(utterance.seconds for utterance in test))
    assert sum(part["units_per_utterance"] * part["utterances"] for part in parts) == pytest.approx(
        sum(len(utterance.text) for utterance in test)
    )
    assert [part["units_per_utterance"] for part in parts] == sorted(part["units_per_utterance"] for part in parts)
    seconds = sum(part["decode_seconds"] for part in parts)
    assert rtf.value == pytest.approx(seconds / sum(part["audio_seconds"] for part in parts))


def test_parts_by_length_are_of_like_batches():
    batches = [
        {"utterances": 2, "units": 2 * units, "audio_seconds": 1.0, "decode_seconds": seconds}
        for units, seconds in ((9, 0.3), (1, 0.1), (5, 0.2), (2, 0.1))
    ]
    by_length = recognition.by_length(batches)
    assert [part["units_per_utterance"] for part in by_length] == [1.5, 5, 9]
    assert [part["rtf"] for part in by_length] == pytest.approx([0.1, 0.2, 0.3])
    assert len(recognition.by_length(batches[:1])) == 1


def test_units_can_be_searched_along_the_paths_of_the_tree(learned, folder):
    """As in the paper. The row says how often the exact search finds the same, and how long it takes."""
    settings = {"epochs": 30, "beam": 2, "utterances": 50, "precision": "float32"}
    row = by_quantity(row_of(cell_of("torch", "huffman", folder, path_beam=6, path_levels=2, **settings)))
    paths = row["rtf"].detail["paths"]
    assert (paths["width"], paths["levels"], paths["same"]) == (6, 2, 1.0)  # all six units: as good as exact
    assert 0 < paths["exact_rtf"] < 100 * row["rtf"].value
    assert row["cer"].detail["transcripts"] == by_quantity(learned)["cer"].detail["transcripts"]
    assert "paths" not in by_quantity(learned)["rtf"].detail


def test_a_row_can_be_scored_again(learned):
    (again,) = speech.rescored(learned, lambda text: None)
    before = by_quantity(learned)["cer"]
    for name in ("quantity", "value", "low", "high", "samples"):
        assert getattr(again, name) == getattr(before, name)
    assert storable(again.detail).items() <= before.detail.items()
    row = rows.with_cell(learned, dataset_sha256="0" * 64)
    with pytest.raises(BadInput, match="the same data throughout"):
        speech.rescored(row, lambda text: None)


def test_rates_by_language_and_group_pool_their_own_errors(folder):
    data = speech_corpora.load(folder)
    utterances = data.splits["test"]
    heard = [utterance.text[1:] if utterance.language == "es" else utterance.text + "xy" for utterance in utterances]
    score = error_rates.score(data, utterances, heard)
    lengths = {language: sum(len(u.text) for u in utterances if u.language == language) for language in ("es", "tr")}
    by_language = score.detail["languages"]
    assert by_language["es"]["value"] == pytest.approx(6 / lengths["es"])
    assert by_language["tr"]["value"] == pytest.approx(12 / lengths["tr"])
    assert score.value == pytest.approx(18 / sum(lengths.values()))
    romance = {"languages": ["es"], "mean_over_languages": by_language["es"]["value"], **by_language["es"]}
    assert score.detail["groups"]["Romance"] == romance
    plain_mean = sum(rates["value"] for rates in by_language.values()) / len(by_language)
    assert score.detail["mean_over_languages"] == pytest.approx(plain_mean)
    assert score.detail["groups"].keys() == {"Romance", "Turkic"}
    assert np.array(score.detail["counts"]).sum(axis=0).tolist() == [0, 6, 12, sum(lengths.values())]


@pytest.mark.lengthy
def test_frameworks_end_at_the_same_perplexity(folder):
    """The whole path. In float64: steps grow float32's rounding. Without CTC, which takes JAX long to compile."""
    settings = {
        "utterances": 30, "score_utterances": 4, "longest": 3, "augment": True, "mask_share": 0.2, "smoothing": 0.1,
        "weight_decay": 0.001,
    }  # fmt: skip
    measured = [by_quantity(row_of(cell_of(framework, "sohsm", folder, **settings))) for framework in FRAMEWORKS]
    perplexities = [by_name["perplexity"].value for by_name in measured]
    assert perplexities == pytest.approx([perplexities[0]] * len(measured), rel=1e-6)
    assert len({json.dumps(by_name["cer"].detail["transcripts"]) for by_name in measured}) == 1


class Recording:
    """In place of a model: keeps what it is trained on."""

    def __init__(self, config):
        self.config, self.seen = config, []

    def step(self, *batch):
        self.seen.append([array.copy() for array in batch])
        return 1.0

    def evaluate(self, features_BFM, frames_B, targets_BT):
        return 1.0

    def synchronize(self):
        pass


def untrained(monkeypatch, folder, framework="torch", method="full_softmax", **settings):
    def recording(framework, spec, config, device):
        model = Recording(config)
        model.spec = spec
        return model

    monkeypatch.setattr(speech.layers, "create_network", recording)
    cell = cell_of(framework, method, folder, **settings)
    data = speech.load(cell.dataset, cell.vocab, cell.settings, lambda text: None)
    return speech.untrained(cell, data, features.of_corpus(data))


def trained(monkeypatch, folder, framework="torch", **settings):
    samples = untrained(monkeypatch, folder, framework, **settings)
    training_P = speech._training_utterances(samples.cell, samples.speech)
    training_loop.Training(samples, training_P).run(lambda text: None)
    return samples


def test_batches_have_as_many_shapes_as_widths_and_hold_each_utterance(monkeypatch, folder):
    samples = trained(monkeypatch, folder, paddings=3)
    seen = samples.model.seen
    assert len(seen) == 6
    assert 1 < len({(features_BFM.shape, targets_BT.shape) for features_BFM, _, targets_BT in seen}) <= 3
    ends = [(targets_BT == samples.model.config.end).sum() for *_, targets_BT in seen]
    assert ends == [10] * 6
    for features_BFM, frames_B, _ in seen:
        for features_FM, frames in zip(features_BFM, frames_B, strict=True):
            np.testing.assert_allclose(features_FM[:frames].mean(axis=0), 0, atol=1e-3)
            assert not features_FM[frames:].any()


def test_every_framework_reads_the_same_batches_in_the_same_order(monkeypatch, folder):
    first, *others = (
        trained(monkeypatch, folder, framework=framework, augment=True, paddings=2, epochs=2)
        for framework in FRAMEWORKS
    )
    for other in others:
        for ours, theirs in zip(first.model.seen, other.model.seen, strict=True):
            for one, same in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(one, same)


def test_masks_are_an_epochs_and_an_utterances_own(monkeypatch, folder):
    samples = trained(monkeypatch, folder)
    plain_BFM = samples.training_batch(0, np.array([3, 5]))[0]
    masking = trained(monkeypatch, folder, augment=True)
    first_BFM = masking.training_batch(0, np.array([3, 5]))[0]
    masked_BFM = first_BFM != plain_BFM
    assert masked_BFM.any()
    assert not first_BFM[masked_BFM].any()  # only by zeros
    np.testing.assert_array_equal(masking.training_batch(0, np.array([5, 4]))[0][0], first_BFM[1])
    assert (masking.training_batch(1, np.array([3, 5]))[0] != first_BFM).any()


def test_languages_are_drawn_by_the_power_of_their_sizes(monkeypatch, tmp_path):
    write(tmp_path, "train", ["ab"] * 32 + ["cd"] * 4, languages=["es"] * 32 + ["tr"] * 4)
    write(tmp_path, "valid", ["ab"])
    write(tmp_path, "test", ["ab"])
    cell = cell_of("torch", "full_softmax", str(tmp_path), alpha=0.0, keep=0.2)
    data = speech.load(cell.dataset, cell.vocab, cell.settings, lambda text: None)
    languages_P = np.array([utterance.language for utterance in data.splits["train"]])
    spoken_P = languages_P[speech._training_utterances(cell, data)]
    # A fifth of the audio is that of 7.2 utterances, of which half are in each language.
    assert (spoken_P == "es").sum() == (spoken_P == "tr").sum() == 4
    other_seed = dataclasses.replace(cell, seed=cell.seed + 1)
    assert (languages_P[speech._training_utterances(other_seed, data)] == spoken_P).all()
    everything = dataclasses.replace(cell, settings={**cell.settings, "alpha": 1.0, "keep": 1.0})
    assert speech._training_utterances(everything, data).tolist() == list(range(36))
    total = sum(utterance.seconds for utterance in data.splits["train"]) / 3600
    in_hours = dataclasses.replace(cell, settings={**cell.settings, "keep": 1.0, "hours": 0.2 * total})
    assert (languages_P[speech._training_utterances(in_hours, data)] == spoken_P).all()
    with pytest.raises(BadInput, match="in the training split: allowed: up to that"):
        speech._training_utterances(
            dataclasses.replace(cell, settings={**cell.settings, "keep": 1.0, "hours": 9.0}), data
        )
    with pytest.raises(BadInput, match="allowed: one of the two"):
        speech.load(cell.dataset, cell.vocab, {**cell.settings, "hours": 0.001}, lambda text: None)


def test_a_tree_can_give_every_language_the_same_weight(monkeypatch, tmp_path):
    """A unit of the small language is nearer to the root than pooled counts have it."""
    write(tmp_path, "train", ["ab"] * 32 + ["cd"] * 4, languages=["es"] * 32 + ["tr"] * 4)
    write(tmp_path, "valid", ["ab"])
    write(tmp_path, "test", ["ab"])
    lengths = {}
    for counts in ("pooled", "per_language"):
        samples = untrained(monkeypatch, str(tmp_path), method="huffman", counts=counts)
        units = samples.speech.vocabulary.units
        lengths[counts] = dict(zip(units, samples.model.spec.structure["code_length"].tolist(), strict=True))
    assert lengths["per_language"]["c"] < lengths["pooled"]["c"]


def test_a_bad_file_is_counted_and_never_met_in_training(monkeypatch, tmp_path):
    write(tmp_path, "train", ["ab", "cd", "ac", "bd"])
    write(tmp_path, "valid", ["ab"])
    write(tmp_path, "test", ["ad"])
    (tmp_path / "train2.wav").write_bytes(b"RIFF but no sound")
    (tmp_path / "train1.wav").unlink()
    monkeypatch.setattr(speech.Training, "run", lambda self, progress: None)
    monkeypatch.setattr(speech.Training, "measurements", lambda self: [])
    monkeypatch.setattr(speech.Recognition, "transcripts", lambda self, progress: (["ad"], Measurement("rtf", 1.0)))
    measured = by_quantity(row_of(cell_of(FRAMEWORKS[0], "full_softmax", str(tmp_path))))
    assert measured["cer"].detail["skipped"] == {"corrupt": 1, "missing": 1}
    assert measured["cer"].value == 0


def test_phones_of_a_held_out_language_are_scored_by_phone(monkeypatch, folder):
    cell = cell_of(FRAMEWORKS[0], "full_softmax", folder, units="phones", held_out="tr", languages="es")
    data = speech.load(cell.dataset, cell.vocab, cell.settings, lambda text: None)
    assert {utterance.language for utterance in data.splits["train"]} == {"es"}
    assert {utterance.language for utterance in data.splits["test"]} == {"tr"}
    utterances = data.splits["test"]
    score = error_rates.score(data, utterances, [str(utterance.phones)[2:] for utterance in utterances])
    assert score.quantity == "per"
    assert score.value == pytest.approx(len(utterances) / sum(len(utterance.text) for utterance in utterances))


def test_the_table_compares_with_full_softmax_by_the_paired_bootstrap(learned, folder):
    baseline = rows.with_cell(copy.deepcopy(learned), method="full_softmax")
    cer = by_quantity(baseline)["cer"]
    cer.detail["counts"] = [[length, 0, 0, length] for *_, length in cer.detail["counts"]]
    cer.detail["examples"] = [{"id": "x/1", "language": "es", "reference": "the reference", "ours": "what we heard"}]
    flat_records = records.flatten([baseline, learned])
    (record,) = [r for r in flat_records if r["method"] == "huffman" and r["quantity"] == "cer"]
    ours_U4, theirs_U4 = (np.array(by_quantity(row)["cer"].detail["counts"]) for row in (learned, baseline))
    expected = error_rate.compare(ours_U4, theirs_U4)
    assert record["difference"] is not None
    assert record["difference"] == pytest.approx(expected.interval.value)
    assert record["difference_low"] == pytest.approx(expected.interval.low)
    assert record["p_value"] == expected.p_value
    text = tables.render(flat_records, "markdown")
    assert f"### Speech on {folder}, 6 characters" in text
    assert f"{100 * record['difference']:+.2f} (p 0.001)" in text
    shown = excerpts.examples([baseline, learned], 3)
    assert "- utterance: x/1 (es)\n- reference: the reference\n- torch full_softmax: what we heard\n" in shown
    # Other utterances are no comparison.
    cer.detail["counts"][0][3] += 1
    assert {r["difference"] for r in records.flatten([baseline, learned]) if r["method"] == "huffman"} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-s", "languages=xx"], "'xx'"),
        (["-s", "size=huge"], "allowed: 'tiny', 'small', 'paper'"),
        (["-s", "smoothing=1"], "allowed: a number from 0.0 to 0.999"),
        (["-s", "beam=7"], "beam=7 over 6 units"),
        (["-s", "beam=2", "-s", "path_beam=7"], "path_beam=7 over 6 units"),
        (["-s", "beam=3", "-s", "path_beam=2"], "path_beam=2 with beam=3: allowed: 0, or as many as beam or more"),
        (["-v", "9"], "vocabulary of 9 units .* allowed: 6, the units it has"),
        (["-s", "units=letters"], "'letters'"),
        (["-s", "held_out=es,tr"], "nothing to train on"),
    ],
)
def test_mistakes_are_one_line_of_the_command(arguments, message, folder, capsys, in_empty_folder):
    command = ["run", "hsm-asr", "-t", "speech", "-f", FRAMEWORKS[0], "--dataset", folder, *arguments]
    languages = [] if "languages=xx" in arguments else ["-s", "languages=es,tr"]
    assert cli.main([*command, *languages]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(message, line), line


def test_a_missing_split_is_one_line(tmp_path):
    write(tmp_path, "train", ["ab", "cd"])
    with pytest.raises(BadInput, match="no split 'valid': allowed: one, next to train"):
        cell_of(FRAMEWORKS[0], "full_softmax", str(tmp_path))
