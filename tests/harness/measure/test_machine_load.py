"""Load of the machine beside a measurement."""

import subprocess
import sys
import time

import psutil
import pytest

from vocabench.harness.measure.machine_load import LoadMeter, is_busy

SPIN = "import time; end = time.monotonic() + 2\nwhile time.monotonic() < end: pass"


def test_another_process_is_seen_and_this_one_is_not():
    spinning = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        time.sleep(0.2)
        meter, before = LoadMeter(), time.process_time()
        while time.process_time() < before + 0.3:
            pass
        load = meter.read()
    finally:
        spinning.kill()
        spinning.wait()
    assert load["others"] > 0.3  # it shares the cores with other tests
    assert load["others"] < load["cores"] + 0.1
    assert load["cores"] == psutil.cpu_count()


@pytest.mark.parametrize(
    ("others", "stolen", "busy"), [(0.1, 0.0, False), (0.3, 0.0, True), (0.0, 0.03, True), (0.0, 0.01, False)]
)
def test_a_machine_is_busy_if_others_take_a_tenth_of_its_cores_or_its_host_takes_time(others, stolen, busy):
    assert is_busy({"others": others, "stolen": stolen, "switches": 0.0, "cores": 2}) == busy
