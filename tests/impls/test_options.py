"""Kinds of options whose checks look at the file system."""

import pytest

from vocabench.impls.errors import BadInput
from vocabench.impls.options import Destination

FOLDER, FILE = Destination("a folder"), Destination("a file", suffixes=(".txt", ".bin"))


def test_a_destination_is_a_folder_or_a_file_with_a_suffix(tmp_path):
    there = tmp_path / "vectors.txt"
    there.write_text("before")
    assert FOLDER.check("setting out", "") == FILE.check("setting out", "") == ""
    assert FOLDER.check("setting out", str(tmp_path / "new" / "folder"))
    for name in ("vectors.txt", "new.bin"):
        assert FILE.check("setting out", str(tmp_path / name)) == str(tmp_path / name)
    with pytest.raises(BadInput, match="allowed: the path of a folder to write to"):
        FOLDER.check("setting out", str(there))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, r"^setting out=3: allowed: the path of a \.txt, \.bin file to write to$"),
        ("vectors.vex", r"allowed: the path of a \.txt, \.bin file"),
        ("folder.txt", r"allowed: the path of a \.txt, \.bin file"),
        ("missing/vectors.txt", "no folder '.*missing': allowed: one that exists"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(tmp_path, value, message):
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(BadInput, match=message):
        FILE.check("setting out", str(tmp_path / value) if isinstance(value, str) else value)
