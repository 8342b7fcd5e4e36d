"""The run folder: its lock, its history, and what is written whole or not at all."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from accel_geo.engine.run_folder import STALE, RunFolder
from accel_geo.report.page import read_history, write_atomically


def test_a_folder_is_made_locked_and_unlocked(tmp_path):
    folder = RunFolder(tmp_path / "a/b/run")
    assert folder.acquire(allow_existing=False) is False
    lock = json.loads((folder.path / ".lock").read_text())
    assert lock["pid"] == os.getpid() and lock["host"] and lock["since"]
    with pytest.raises(ValueError, match=f"in use by process {os.getpid()} on .* since .*another folder"):
        RunFolder(folder.path).acquire(allow_existing=True)
    folder.release()
    assert not (folder.path / ".lock").exists()


def test_another_run_is_refused_unless_it_is_to_go_on(tmp_path):
    folder = RunFolder(tmp_path)
    folder.acquire(allow_existing=False)
    folder.append({"fit": 0, "epoch": 0, "step": 1})
    folder.release()
    with pytest.raises(ValueError, match="already holds a run; go on with it by --resume, or give another folder"):
        RunFolder(tmp_path).acquire(allow_existing=False)
    again = RunFolder(tmp_path)
    assert again.acquire(allow_existing=True) is True
    again.release()
    assert not (tmp_path / ".lock").exists()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; give a folder"):
        RunFolder(tmp_path / "file").acquire(allow_existing=True)


HOLD = """
import sys, time
from accel_geo.engine.run_folder import RunFolder
folder = RunFolder(sys.argv[1])
folder.acquire(allow_existing=True)
folder.append({"fit": 0, "epoch": 0, "step": 1})
print("held", flush=True)
time.sleep(600)
"""


def test_a_living_holder_keeps_others_out_and_a_killed_one_does_not(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=f"in use by process {holder.pid} "):
            RunFolder(tmp_path).acquire(allow_existing=True)
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(ValueError, match="in use"):
            RunFolder(tmp_path).acquire(allow_existing=True)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert (tmp_path / ".lock").exists()
    folder = RunFolder(tmp_path)
    assert folder.acquire(allow_existing=True) is True
    folder.release()


def test_the_number_of_a_dead_holder_may_be_anothers_now(tmp_path):
    lock = {"host": os.uname().nodename, "pid": os.getpid(), "started": "1", "since": "then"}
    (tmp_path / ".lock").write_text(json.dumps(lock))
    folder = RunFolder(tmp_path)
    folder.acquire(allow_existing=False)
    folder.release()


def test_a_holder_on_another_machine_counts_by_its_age(tmp_path):
    (tmp_path / ".lock").write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": "1", "since": "noon"}))
    with pytest.raises(ValueError, match="in use by process 1 on elsewhere since noon"):
        RunFolder(tmp_path).acquire(allow_existing=True)
    old = time.time() - STALE - 1
    os.utime(tmp_path / ".lock", (old, old))
    folder = RunFolder(tmp_path)
    folder.acquire(allow_existing=True)
    folder.touch()
    assert time.time() - (tmp_path / ".lock").stat().st_mtime < 5
    folder.release()


def test_a_lock_cut_short_is_a_starting_run_or_left_behind(tmp_path):
    (tmp_path / ".lock").write_text("{")
    with pytest.raises(ValueError, match="just starting"):
        RunFolder(tmp_path).acquire(allow_existing=True)
    old = time.time() - 60
    os.utime(tmp_path / ".lock", (old, old))
    folder = RunFolder(tmp_path)
    folder.acquire(allow_existing=True)
    folder.release()


def test_history_is_flushed_line_by_line_and_cut(tmp_path):
    folder = RunFolder(tmp_path)
    folder.acquire(allow_existing=False)
    for step in (1, 2, 3):
        folder.append({"step": step, "loss": 0.1})
        assert (tmp_path / "history.jsonl").read_text().splitlines()[-1] == json.dumps({"step": step, "loss": 0.1})
    folder.release()
    with open(tmp_path / "history.jsonl", "a") as file:
        file.write('{"step": 4, "lo')
    assert [line["step"] for line in read_history(tmp_path / "history.jsonl")] == [1, 2, 3]
    folder = RunFolder(tmp_path)
    folder.acquire(allow_existing=True)
    folder.cut_history(2)
    folder.append({"step": 3, "loss": 0.2})
    folder.release()
    lines = read_history(tmp_path / "history.jsonl")
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 0.1), (2, 0.1), (3, 0.2)]
    assert folder.history == lines


def test_a_history_that_cannot_be_written_is_noted_and_raised_when_asked(tmp_path):
    folder = RunFolder(tmp_path)
    folder.acquire(allow_existing=False)
    folder._lines.close()
    folder._lines = open("/dev/full", "w")
    folder.append({"step": 1})
    folder.append({"step": 2})
    with pytest.raises(OSError, match="history.jsonl: No space left"):
        folder.check()
    folder.release()
    assert not (tmp_path / ".lock").exists()


def test_left_temporaries_are_cleared(tmp_path):
    (tmp_path / "checkpoints/.tmp-step-3-77").mkdir(parents=True)
    (tmp_path / "checkpoints/.tmp-best-77").write_text("")
    folder = RunFolder(tmp_path)
    folder.acquire(allow_existing=True)
    assert not list((tmp_path / "checkpoints").iterdir())
    folder.release()


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(None)
    assert folder.acquire(allow_existing=False) is False and not folder.holds_a_run()
    folder.append({"step": 1})
    folder.cut_history(0), folder.touch(), folder.say("text"), folder.release()
    assert folder.history == [{"step": 1}] and not list(tmp_path.iterdir())


def test_a_text_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a.json", "old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError):
        write_atomically(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.json"]
