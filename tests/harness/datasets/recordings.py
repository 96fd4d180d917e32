"""Helpers that write recordings and manifests for tests."""

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


def sound(path, samples=None, rate=RATE, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, tone(rate=rate) if samples is None else samples, rate, **options)
    return path


def manifest(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def record(audio, text="ab", language="ba", **more):
    return {"audio": audio, "text": text, "language": language, **more}


def folder_of(tmp_path, train, **other_splits):
    """Write a folder of manifests with a tone for each missing sound file."""
    for split, records in {"train": train, **other_splits}.items():
        manifest(tmp_path / f"{split}.jsonl", records)
        for entry in records:
            if not (tmp_path / entry["audio"]).exists():
                sound(tmp_path / entry["audio"])
    return str(tmp_path)


def bad_sounds(folder):
    """Write sound files that cannot be used, and return their paths by reason."""
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
