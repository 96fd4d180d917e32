"""Filterbanks against kaldi-native-fbank; normalisation, SpecAugment and the cache of features."""

import dataclasses

import numpy as np
import pytest

from vocabench.harness.datasets.speech import recordings
from vocabench.harness.datasets.speech.speech_corpora import Speech
from vocabench.harness.datasets.speech.vocabulary import Vocabulary
from vocabench.harness.speech import features
from vocabench.harness.speech.augment import SpecAugment
from vocabench.harness.speech.features import Filterbank
from vocabench.impls.errors import BadInput

BANK = Filterbank()


def signal(samples=8000):
    """A tone that rises from 200 Hz, noise and an offset, made so that any program can make them again."""
    t = np.arange(samples)
    noise, state = np.empty(samples), 12345
    for place in t:
        state = (1103515245 * state + 12345) % 2**31
        noise[place] = state / 2**31 - 0.5
    tone = np.sin(2 * np.pi * (200 * t / 16000 + 3000 * (t / 16000) ** 2))
    return np.round(6000 * tone + 2000 * noise + 300).astype(np.int16)


# What kaldi-native-fbank 1.23.0 makes of `signal()` with dither=0, 80 bins and all else as it comes: frame to the
# values of these channels.
CHANNELS = [0, 1, 2, 10, 20, 40, 60, 78, 79]
KALDI = {
    "povey": {
        0: [11.2382, 12.6955, 11.7331, 21.3322, 14.5909, 17.8417, 20.5514, 21.3838, 21.5099],
        20: [8.6887, 9.3917, 10.2893, 14.815, 14.3698, 17.3358, 19.7225, 21.4173, 20.7302],
        47: [9.9014, 10.8469, 11.7627, 13.4942, 15.259, 18.0602, 20.287, 21.5182, 21.1669],
    },
    "hamming": {
        0: [11.7973, 9.7758, 12.3309, 21.3625, 14.2976, 17.8403, 20.5365, 21.3678, 21.4863],
        20: [11.7596, 12.8273, 11.6523, 14.8372, 15.225, 17.1887, 19.7145, 21.4096, 20.7154],
        47: [12.5483, 12.669, 13.7868, 13.2239, 15.0858, 18.0381, 20.2783, 21.4959, 21.1407],
    },
}
KALDI_SUMS = {"povey": 67561.67, "hamming": 68039.23}  # of all 48 frames and 80 channels


@pytest.mark.parametrize("window", features.WINDOWS)
def test_kaldis_numbers(window):
    features_TM = Filterbank(window=window)(signal())
    assert features_TM.shape == (48, 80)
    assert features_TM.dtype == np.float32
    for frame, expected in KALDI[window].items():
        # Kaldi's transform is in float32, ours in float64: the weakest channels differ in the fourth digit.
        np.testing.assert_allclose(features_TM[frame, CHANNELS], expected, atol=1e-3)
    assert features_TM.sum(dtype=np.float64) == pytest.approx(KALDI_SUMS[window], abs=0.3)


def test_the_definition_written_out():
    """One frame by a discrete Fourier transform in full, and triangles drawn one by one."""
    samples = signal(1000)
    frame = samples[160:560].astype(float)
    frame -= frame.sum() / 400
    frame = np.array([frame[0] * (1 - 0.97)] + [frame[i] - 0.97 * frame[i - 1] for i in range(1, 400)])
    frame *= [(0.5 - 0.5 * np.cos(2 * np.pi * i / 399)) ** 0.85 for i in range(400)]
    turns = np.exp(-2j * np.pi * np.outer(np.arange(257), np.arange(400)) / 512)
    power = np.abs(turns @ frame) ** 2
    ends = np.linspace(1127 * np.log(1 + 20 / 700), 1127 * np.log(1 + 8000 / 700), 82)
    mels = 1127 * np.log(1 + np.arange(257) * 16000 / 512 / 700)
    for channel in (0, 17, 79):
        left, centre, right = ends[channel : channel + 3]
        rising, falling = (mels - left) / (centre - left), (right - mels) / (right - centre)
        weights = np.clip(np.minimum(rising, falling), 0, None)
        assert BANK(samples)[1, channel] == pytest.approx(np.log(power @ weights), abs=1e-4)


def test_the_mel_scale():
    # 1000 Hz are 1000 mel, by its definition; the other by the HTK Book's 2595 log10(1 + f / 700).
    assert features.mel(1000.0) == pytest.approx(1000, abs=0.1)
    assert features.mel(4000.0) == pytest.approx(2595 * np.log10(1 + 4000 / 700), rel=1e-4)


@pytest.mark.parametrize(("samples", "frames"), [(0, 0), (399, 0), (400, 1), (559, 1), (560, 2), (16000, 98)])
def test_a_frame_needs_a_whole_window(samples, frames):
    features_TM = BANK(np.ones(samples, np.int16))
    assert features_TM.shape == (frames, 80) == (BANK.frames(samples), 80)
    # Silence is the floor, and no infinity.
    assert np.all(features_TM == np.log(np.finfo(np.float32).eps).astype(np.float32))


def test_the_signature_tells_every_setting():
    changes = {"channels": 40, "window_seconds": 0.02, "shift_seconds": 0.02, "preemphasis": 0.9, "window": "hamming"}
    assert set(changes) == {field.name for field in dataclasses.fields(Filterbank)}
    signatures = {dataclasses.replace(BANK, **{name: value}).signature for name, value in changes.items()}
    assert len(signatures | {BANK.signature}) == len(changes) + 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": "hann"}, "unknown window 'hann'"),
        ({"channels": 0}, "0 mel channels"),
        ({"channels": 300}, "300 mel channels: allowed: so few that each contains a frequency"),
        ({"shift_seconds": 0.0}, r"every 0\.0 s"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(BadInput, match=message):
        Filterbank(**settings)


def test_normalisation():
    rng = np.random.default_rng(0)
    first_TM, second_TM = (rng.normal(3, 2, size=(frames, 4)).astype(np.float32) for frames in (50, 70))
    first_TM[:, 3] = 1  # a channel that never changes
    own_TM = features.normalised(first_TM)
    np.testing.assert_allclose(own_TM.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(own_TM.std(axis=0), [1, 1, 1, 0], atol=1e-4)
    given = features.statistics([first_TM, second_TM])
    both_TM = np.concatenate([first_TM, second_TM])
    np.testing.assert_allclose(given.mean_M, both_TM.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(given.deviation_M, both_TM.std(axis=0), rtol=1e-4)
    np.testing.assert_allclose(features.normalised(both_TM, given)[:50], features.normalised(first_TM, given))
    assert features.normalised(first_TM).dtype == np.float32
    assert features.normalised(first_TM[:0]).shape == (0, 4)
    with pytest.raises(BadInput, match="no frames"):
        features.statistics([first_TM[:0]])


def test_masks_are_bands_and_spans():
    masks = SpecAugment()
    frames_B = [200, 30, 1, 0] * 50
    masked_BTM = masks.masked_BTM(frames_B, 80, np.random.default_rng(0))
    assert masked_BTM.shape == (200, 200, 80)
    for masked_TM, frames in zip(masked_BTM, frames_B, strict=True):
        assert not masked_TM[frames:].any()
        if frames:
            channels_M, spans_T = masked_TM[:frames].all(axis=0), masked_TM[:frames].all(axis=1)
            assert (masked_TM[:frames] == (channels_M[None] | spans_T[:, None])).all()
            assert channels_M.all() or channels_M.sum() <= 20
            assert spans_T.sum() <= 100
    whole_BT = np.all(masked_BTM[::4], axis=2)
    assert np.any(whole_BT, axis=0)[5:-5].all()
    # Mean width of a mask: 25 of 200 frames each, less where two meet.
    assert whole_BT.sum(axis=1).mean() == pytest.approx(47, abs=8)


def test_masks_hang_on_the_seed_alone():
    masks = SpecAugment()
    together_BTM = masks.masked_BTM([90, 60], 80, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    alone = [masks.masked_BTM([frames], 80, rng)[0] for frames in (90, 60)]
    np.testing.assert_array_equal(together_BTM[0], alone[0])
    np.testing.assert_array_equal(together_BTM[1, :60], alone[1])
    assert (together_BTM != masks.masked_BTM([90, 60], 80, np.random.default_rng(4))).any()


def test_no_masks_and_narrow_ones():
    rng = np.random.default_rng(0)
    assert not SpecAugment(frequency_masks=0, time_masks=0).masked_BTM([50], 80, rng).any()
    narrow = SpecAugment(frequency_masks=0, time_share=0.1).masked_BTM([50] * 40, 80, rng)
    assert narrow.all(axis=2).sum(axis=1).max() <= 10
    with pytest.raises(BadInput, match="time_share of 2: allowed: from 0 to 1"):
        SpecAugment(time_share=2)
    with pytest.raises(BadInput, match="time_masks of -1"):
        SpecAugment(time_masks=-1)


@pytest.fixture
def speech(tmp_path, monkeypatch):
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "recorded"
    folder.mkdir()
    with recordings.Writer(folder) as writer:
        for number, samples in enumerate((4000, 300, 2000)):
            writer.add(signal(samples), id=str(number), split="train", language="", speaker="", text="a", phones=None)
    utterances = recordings.read(folder)
    vocabulary = Vocabulary("characters", ("<eos>", "a", "<unk>"), np.array([3, 3, 0]), False)
    return Speech("x", "0" * 64, "", {}, {"train": utterances[1:]}, vocabulary, {}, utterances)


def test_features_are_computed_once(speech, monkeypatch):
    said = []
    by_utterance = features.of_corpus(speech, progress=said.append)
    assert len(said) == 1
    for utterance in speech.everything:
        np.testing.assert_array_equal(by_utterance[utterance], BANK(utterance.samples_S))
    assert by_utterance[speech.everything[1]].shape == (0, 80)
    monkeypatch.setattr(Filterbank, "__call__", None)
    again = features.of_corpus(speech)
    np.testing.assert_array_equal(again[speech.everything[2]], by_utterance[speech.everything[2]])


def test_other_settings_are_other_features(speech):
    first = features.of_corpus(speech)[speech.everything[0]]
    other = features.of_corpus(speech, Filterbank(channels=40))[speech.everything[0]]
    assert (first.shape, other.shape) == ((23, 80), (23, 40))
