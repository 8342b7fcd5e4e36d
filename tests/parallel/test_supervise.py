"""A worker that is killed or stopped ends all within a minute, by name, and leaves nothing running behind."""

import os
import signal
import subprocess
import sys
import time

import pytest
from launching import PROBE, PYTHON, TORCHRUN, all_gone, config, running

from accel_geo.parallel import supervise

LIMIT = 60.0
HOLD = ["--cpu", "--threads", "1", "--hold", "300"]
DEVICES = [*PYTHON, PROBE, "--devices", "2", *HOLD]
LAUNCHED = {
    "devices": DEVICES,
    "torchrun": [*TORCHRUN, PROBE, *HOLD],
    "accelerate": [*config("cpu_2proc.yaml"), PROBE, *HOLD],
}


def end_by(command: list[str], folder, rank: int, number: int) -> str:
    """Send a signal to one worker; check that all end in time and return what was said."""
    with running(command, folder) as run:
        pids = run.workers()
        time.sleep(5)  # past the watch's first look
        begun = time.monotonic()
        os.kill(pids[rank], number)
        done = run.finish(LIMIT)
        assert all_gone(pids, LIMIT - (time.monotonic() - begun)), done.errors
        print(f"{signal.Signals(number).name} to rank {rank}: {time.monotonic() - begun:.1f} s, code {done.code}")
    assert done.code != 0
    return done.errors


def test_a_killed_worker_under_devices(tmp_path):
    said = end_by(DEVICES, tmp_path, 1, signal.SIGKILL)
    assert "rank 1 (process " in said and "was killed by SIGKILL" in said


@pytest.mark.slow
@pytest.mark.parametrize("rank", (0, 1))
@pytest.mark.parametrize("launcher", LAUNCHED)
def test_a_killed_worker(tmp_path, launcher, rank):
    said = end_by(LAUNCHED[launcher], tmp_path, rank, signal.SIGKILL)
    if launcher == "devices":
        assert f"rank {rank} (process " in said
    else:
        assert f"rank      : {rank} " in said and "Signal 9 (SIGKILL)" in said  # torch's own report


@pytest.mark.slow
@pytest.mark.parametrize("rank", (0, 1))
@pytest.mark.parametrize("launcher", LAUNCHED)
def test_a_stopped_worker(tmp_path, launcher, rank):
    said = end_by(LAUNCHED[launcher], tmp_path, rank, signal.SIGSTOP)
    assert f"rank {rank} (process " in said and "is stopped" in said


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHED)
def test_a_killed_launcher_leaves_no_orphans(tmp_path, launcher):
    with running(LAUNCHED[launcher], tmp_path) as run:
        pids = run.workers()
        time.sleep(5)
        begun = time.monotonic()
        run.process.kill()
        run.process.wait()
        assert all_gone(pids, LIMIT), run.errors.read_text()
        print(f"{launcher} killed: {time.monotonic() - begun:.1f} s")
        assert "is gone" in run.errors.read_text()


@pytest.mark.slow
def test_suspending_all_is_no_failure(tmp_path):
    with running([*PYTHON, PROBE, "--devices", "2", "--cpu", "--hold", "45"], tmp_path) as run:
        pids = run.workers()
        everyone = [run.process.pid, *pids]
        for pid in everyone:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(25)
        for pid in everyone:
            os.kill(pid, signal.SIGCONT)
        done = run.finish()
    assert done.code == 0, done.errors


# The supervisor by itself, with processes that cost nothing -----------------------------------------------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"import os, signal, sys, time; rank = int(os.environ['RANK']); {code}"]


def test_codes_and_the_name_of_the_first_that_failed(capfd):
    assert supervise.run_workers(python("pass"), 3) == 0
    assert supervise.run_workers(python("sys.exit(3 if rank == 1 else time.sleep(60))"), 2) == 3
    assert "rank 1" in capfd.readouterr().err
    assert supervise.run_workers(python("os.kill(os.getpid(), 9) if rank == 1 else sys.exit(1)"), 2) == 137
    said = capfd.readouterr().err
    assert said.count("accel_geo:") == 1 and "rank 1" in said and "SIGKILL" in said


def test_each_worker_knows_its_place(tmp_path):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    code = f"open(os.path.join({str(tmp_path)!r}, str(rank)), 'w').write(','.join(os.environ[n] for n in {names}))"
    assert supervise.run_workers(python(code), 2) == 0
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["0,0,2,2,127.0.0.1", "1,1,2,2,127.0.0.1"]


def test_a_worker_that_will_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(supervise, "GRACE", 0.5)
    stubborn = "signal.signal(signal.SIGTERM, lambda *_: None); sys.exit(7) if rank else [time.sleep(60) for _ in '12']"
    begun = time.monotonic()
    assert supervise.run_workers(python(stubborn), 2) == 7
    assert time.monotonic() - begun < 20


def test_a_stopped_worker_is_named(monkeypatch, capfd):
    for name, value in (("GRACE", 0.5), ("LOOK", 0.1), ("STOPPED_LOOKS", 3)):
        monkeypatch.setattr(supervise, name, value)
    code = python("os.kill(os.getpid(), signal.SIGSTOP) if rank else time.sleep(60)")
    assert supervise.run_workers(code, 2) == 128 + signal.SIGSTOP
    assert "rank 1" in (said := capfd.readouterr().err) and "is stopped by SIGSTOP" in said


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGUSR1))
def test_stop_signals_reach_the_workers(tmp_path, number):
    worker = "signal.signal({0}, lambda *_: sys.exit(0)); open(os.path.join({1!r}, str(rank)), 'w'); time.sleep(60)"
    command = python(worker.format(int(number), str(tmp_path)))
    code = f"from accel_geo.parallel.supervise import run_workers; import sys; sys.exit(run_workers({command!r}, 2))"
    supervisor = subprocess.Popen([sys.executable, "-c", code])
    end = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    supervisor.send_signal(number)
    assert supervisor.wait(20) == 0
