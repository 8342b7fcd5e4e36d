"""What a process knows of others: its launcher, a stopped neighbour, and a long preparation that is no failure."""

import os
import signal
import subprocess
import sys
import time

import pytest
from launching import PYTHON, TORCHRUN, probes, run, running

from accel_geo.parallel.processes import SUPERVISOR, launcher, process_state


@pytest.mark.skipif(sys.platform != "linux", reason="states are read from /proc")
def test_states_of_processes():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        child.send_signal(signal.SIGSTOP)
        end = time.monotonic() + 10
        while process_state(child.pid) != "T" and time.monotonic() < end:
            time.sleep(0.01)
        assert process_state(child.pid) == "T"
    finally:
        child.kill()
    end = time.monotonic() + 10
    while process_state(child.pid) != "Z" and time.monotonic() < end:
        time.sleep(0.01)
    assert process_state(child.pid) == "Z"
    child.wait()
    assert process_state(child.pid) is None
    assert process_state(os.getpid()) in ("R", "S")


def test_the_launcher():
    assert launcher({SUPERVISOR: "12", "TORCHELASTIC_RUN_ID": "none"}) == 12
    assert launcher({"TORCHELASTIC_RUN_ID": "none"}) == os.getppid()
    assert launcher({"RANK": "0", "WORLD_SIZE": "2"}) is None  # a launcher of the user's own may leave before us


# Rank 0 decodes for a long time; rank 1 waits for its store without a collective call that could time out.
SLOW = """
import os, sys, time
sys.path.insert(0, {tests!r})
import probe
from pathlib import Path
from accel_geo.data import cache
from accel_geo.options import run

write = cache.write
def slow(*arguments):
    Path({folder!r}, "decoding").write_text(str(os.getpid()))
    time.sleep({seconds})
    write(*arguments)
cache.write = slow

def main(options):
    from accel_geo import prepare_data
    prepare_data({data!r}, task="semantic", val_split=0.25)
    probe.main(options)

if __name__ == "__main__":
    run(main, probe.parser)
"""


def preparing(tmp_path, monkeypatch, seconds: float) -> str:
    from accel_geo.data.scenes import builtin

    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path / "scenes"))
    data = str(builtin("semantic", chips=8, smoke=True))
    script, here = tmp_path / "slow.py", os.path.dirname(__file__)
    script.write_text(SLOW.format(tests=here, folder=str(tmp_path), data=data, seconds=seconds))
    return str(script)


@pytest.mark.slow
@pytest.mark.parametrize(
    "launching", ([*TORCHRUN, None], [*PYTHON, None, "--devices", "2"]), ids=("torchrun", "devices")
)
def test_a_long_preparation_is_no_failure(tmp_path, monkeypatch, launching):
    script = preparing(tmp_path, monkeypatch, seconds=25)
    command = [script if part is None else part for part in launching]
    begun = time.monotonic()
    run([*command, "--cpu", "--timeout", "20"], tmp_path).in_one_world(2)  # longer than the collective calls' patience
    assert time.monotonic() - begun > 25


@pytest.mark.slow
def test_a_stopped_preparation_ends_all(tmp_path, monkeypatch):
    script = preparing(tmp_path, monkeypatch, seconds=300)
    with running([*TORCHRUN, script, "--cpu"], tmp_path) as process:
        mark = tmp_path / "decoding"
        process.wait_for(lambda _: mark.exists() and mark.read_text())
        time.sleep(5)
        begun = time.monotonic()
        os.kill(int(mark.read_text()), signal.SIGSTOP)
        done = process.finish(60)
    print(f"stopped preparation: {time.monotonic() - begun:.1f} s")
    assert done.code != 0 and "is stopped without finishing it" in done.errors and not probes(done.output)
