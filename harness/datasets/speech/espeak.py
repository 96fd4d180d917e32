"""Speech by espeak-ng, in a process of its own that contains its memory errors.

`python -m vocabench.harness.datasets.speech.espeak FILE` reads a job from standard input, {"language": CODE,
"utterances": [{"text", "variant", "pitch", "rate"}, ...]}. It writes the concatenated samples to FILE and prints a line
of JSON for each utterance: {"samples": number of samples, "phones": IPA separated by spaces, with "|" between words}.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.impls.errors import BadInput

SAMPLE_RATE = 22_050  # of espeak-ng's synthesis

_SYNCHRONOUS, _DONT_EXIT = 2, 0x8000  # AUDIO_OUTPUT_SYNCHRONOUS, espeakINITIALIZE_DONT_EXIT
_UTF8 = 1  # espeakCHARS_UTF8
_RATE, _PITCH = 1, 3  # espeakRATE, espeakPITCH
_IPA = 0x02 | ord("_") << 8  # with "_" between phones
_NOT_IPA = str.maketrans("", "", '-"')  # characters that espeak-ng adds to some phones
_SEED = 1  # of the noise in voices


def speak(language: str, utterances: Sequence[Mapping[str, Any]], folder: Path) -> list[tuple[str, NDArray[np.int16]]]:
    """Return the phones of each utterance and its samples at `SAMPLE_RATE`.

    Args:
        language: Voice of espeak-ng.
        utterances: Utterances as the program reads them.
        folder: Folder for a temporary file.

    Raises:
        BadInput: espeak-ng failed.
    """
    path = folder / f"{language}.spoken"
    done = subprocess.run(
        [sys.executable, "-m", "vocabench.harness.datasets.speech.espeak", str(path)],
        input=json.dumps({"language": language, "utterances": utterances}),
        cwd=IMPORT_ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        last_line = " ".join(done.stderr.strip().splitlines()[-1:]) or "no message"
        raise BadInput(
            f"espeak-ng, speaking {language!r}, ended with {done.returncode} ({last_line}): allowed: espeakng-loader "
            "as in constraints.txt"
        )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    samples = np.fromfile(path, np.int16)
    path.unlink()
    pieces = np.split(samples, np.cumsum([answer["samples"] for answer in answers])[:-1])
    return [(answer["phones"], piece_S) for answer, piece_S in zip(answers, pieces, strict=True)]


class _Voice:
    """The library with one language.

    Args:
        language: Voice of espeak-ng.
        sound: File to which samples are written.
    """

    def __init__(self, language: str, sound: BinaryIO) -> None:
        import espeakng_loader

        self._language = language
        self._library = library = ctypes.CDLL(espeakng_loader.get_library_path())
        # Without these declarations, ctypes would pass sizes and pointers as int.
        library.espeak_Initialize.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
        library.espeak_SetVoiceByName.argtypes = [ctypes.c_char_p]
        library.espeak_SetParameter.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int]
        library.espeak_ng_SetRandSeed.argtypes = [ctypes.c_long]
        library.espeak_TextToPhonemes.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int]
        library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        library.espeak_Synth.argtypes = [
            ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint,
            ctypes.c_void_p, ctypes.c_void_p,
        ]  # fmt: skip
        data = espeakng_loader.get_data_path().encode()
        if library.espeak_Initialize(_SYNCHRONOUS, 0, data, _DONT_EXIT) != SAMPLE_RATE:
            sys.exit(f"it does not start with {data.decode()} at {SAMPLE_RATE} Hz")

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
        def receive(samples: Any, count: int, _: Any) -> int:
            if samples and count > 0:
                sound.write(ctypes.string_at(samples, 2 * count))
                self._samples += count
            return 0

        self._samples = 0
        self._receive = receive  # kept alive: the library holds no reference to it
        library.espeak_SetSynthCallback(receive)

    def configure(self, variant: str, pitch: int, rate: int) -> None:
        """Set the speaker, and reset the noise."""
        name = f"{self._language}+{variant}"
        if self._library.espeak_SetVoiceByName(name.encode()):
            sys.exit(f"it has no voice {name}")
        self._library.espeak_SetParameter(_PITCH, pitch, 0)
        self._library.espeak_SetParameter(_RATE, rate, 0)
        self._library.espeak_ng_SetRandSeed(_SEED)

    def phones(self, text: str) -> str:
        """Return the phones of a text."""
        rest = ctypes.pointer(ctypes.c_char_p(text.encode()))
        clauses = []
        while rest.contents.value:
            clauses.append(self._library.espeak_TextToPhonemes(rest, _UTF8, _IPA).decode())
        return " | ".join(" ".join(clauses).split()).replace("_", " ").translate(_NOT_IPA)

    def say(self, text: str) -> int:
        """Write the samples of a text and return their number."""
        self._samples = 0
        encoded = text.encode()
        if self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 0, 0, _UTF8, None, None):
            sys.exit(f"it does not say {text!r}")
        return self._samples


def _main() -> None:
    job = json.loads(sys.stdin.read())
    with Path(sys.argv[1]).open("wb") as sound:
        voice = _Voice(job["language"], sound)
        for utterance in job["utterances"]:
            voice.configure(utterance["variant"], utterance["pitch"], utterance["rate"])
            text = utterance["text"]
            print(json.dumps({"phones": voice.phones(text), "samples": voice.say(text)}))


if __name__ == "__main__":
    _main()
