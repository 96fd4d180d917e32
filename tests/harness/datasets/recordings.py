"""Recordings and their manifests, as tests write them."""

import json

import numpy as np
import pytest

from vocabench.harness.datasets.speech import sound_files

soundfile = pytest.importorskip("soundfile")

RATE = sound_files.SAMPLE_RATE
REASONS = {
    "missing", "empty", "truncated", "corrupt", "more than 2 channels", "too short", "too long", "sample rate",
}  # fmt: skip


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
