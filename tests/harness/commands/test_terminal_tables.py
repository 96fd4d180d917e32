"""Tables on a terminal: as wide as it is, with the columns named that are left out."""

import os
import pty
import re
import subprocess
import sys

import pytest

from tests import ROOT
from vocabench.harness.commands.terminal_tables import fitted
from vocabench.harness.report.formats import section

pd = pytest.importorskip("pandas")

TABLE = section(
    "A title that is longer than the table may be",
    pd.DataFrame(
        [["sohsm", "torch", "12.5x", "a|b", "agree"], ["huffman", "jax", "100x", "3.4 ms", "agree"]],
        columns=["method", "framework", "speed", "time", "agreement"],
    ),
    "markdown",
)


def test_a_table_that_fits_stays_as_it_is():
    assert fitted(TABLE, 60) == TABLE


@pytest.mark.parametrize(
    ("width", "columns", "left_out"),
    [
        (50, ["method", "framework", "speed", "agreement"], "time"),
        (38, ["method", "framework", "agreement"], "speed, time"),
    ],
)
def test_columns_are_left_out_from_the_right_but_the_agreement(width, columns, left_out):
    lines = fitted(TABLE, width).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert re.findall(r"[a-z]+", table[0]) == columns
    assert len({len(line) for line in table}) == 1
    assert len(table[0]) <= width
    assert f"Left out to fit {width} columns: {left_out}" in lines


def test_messages_are_shortened():
    failed = section(
        "Not measured",
        pd.DataFrame([["timing", "jax", "x" * 200]], columns=["task", "framework", "message"]),
        "markdown",
    )
    lines = fitted(failed, 60).splitlines()
    assert max(map(len, lines)) == 60
    assert "x…" in lines[-1]


def test_a_terminal_gets_a_narrow_table_and_a_pipe_all_of_it():
    command = [
        sys.executable,
        "-m",
        "vocabench",
        "table",
        "--run",
        "results/quick-epyc.jsonl",
        "-t",
        "timing",
        "-f",
        "torch",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "70"}
    piped = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert max(len(line) for line in piped.splitlines() if line.startswith("|")) > 70
    assert "Left out" not in piped
    main, child = pty.openpty()
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=child)
    os.close(child)
    shown = b""
    while True:
        try:
            chunk = os.read(main, 4096)
        except OSError:  # the child has closed the terminal
            break
        if not chunk:
            break
        shown += chunk
    assert process.wait() == 0
    lines = shown.decode().splitlines()
    assert max(len(line) for line in lines if line.startswith("|")) <= 70
    assert any(line.startswith("Left out to fit 70 columns: ") for line in lines)
