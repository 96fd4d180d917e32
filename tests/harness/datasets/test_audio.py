"""Sound files are read as 16 bits at 16 kHz, and every problem has a named reason."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.datasets.recordings import RATE, REASONS, bad_sounds, sound, tone
from vocabench.harness.datasets.speech import sound_files


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_sixteen_bits_at_sixteen_kilohertz_are_unchanged(tmp_path, name):
    np.testing.assert_array_equal(sound_files.read(sound(tmp_path / name)), tone())


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_other_rates_are_resampled(tmp_path, rate):
    samples_S = sound_files.read(sound(tmp_path / "a.wav", rate=rate))
    assert len(samples_S) == pytest.approx(0.2 * RATE, abs=1)
    inner = slice(400, -400)  # without the edge effects of the filter
    np.testing.assert_allclose(samples_S[inner], tone()[: len(samples_S)][inner], atol=80)


def test_two_channels_are_averaged(tmp_path):
    both_SC = np.stack([tone(), tone() // 3], axis=1)
    np.testing.assert_allclose(sound_files.read(sound(tmp_path / "a.wav", both_SC)), both_SC.mean(axis=1), atol=0.5)


def test_loud_sound_is_clipped_and_does_not_wrap_around(tmp_path):
    path = sound(tmp_path / "a.wav", 2.0 * tone() / 8000, subtype="FLOAT")
    assert (sound_files.read(path).min(), sound_files.read(path).max()) == (-32768, 32767)


def test_each_problem_has_a_named_reason(tmp_path):
    bad = bad_sounds(tmp_path)
    assert set(bad) == REASONS
    for reason, paths in bad.items():
        for path in paths:
            with pytest.raises(sound_files.Unusable, match=f"^{reason}$"):
                sound_files.read(path)


def reason_of(path):
    """Return the reason why a file cannot be used; empty if it can."""
    try:
        return "" if len(sound_files.read(path)) else "no samples"
    except sound_files.Unusable as reason:
        return str(reason)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=5), st.integers(0, 100))
def test_a_damaged_header_is_read_or_has_a_reason(tmp_path, changes, end):
    for name in ("a.wav", "a.flac"):
        damaged = bytearray(sound(tmp_path / name).read_bytes())
        for position, value in changes:
            damaged[position] = value
        (tmp_path / name).write_bytes(damaged[: len(damaged) * end // 100])
        assert reason_of(tmp_path / name) in REASONS | {""}


def test_a_wav_file_from_a_pipe_has_no_size_in_its_header(tmp_path):
    path = sound(tmp_path / "a.wav")
    whole = path.read_bytes()
    assert whole[36:40] == b"data"
    path.write_bytes(whole[:4] + b"\xff" * 4 + whole[8:40] + b"\xff" * 4 + whole[44:])
    np.testing.assert_array_equal(sound_files.read(path), tone())
