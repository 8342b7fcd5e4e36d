"""What one process makes for all: the first process of each machine builds a file or folder, the others wait for it.

There is no collective call here, so that it works before or without a process group. What is built gets its name only
when it is finished, so that two runs which start together both end well.
"""

import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from accel_geo.parallel.processes import process_state

_STARTED = time.time()
_PATIENCE = 600.0  # seconds to wait for a builder to appear
_GRACE = 10.0  # seconds for a new builder to replace what an older run left behind


def builds_here() -> bool:
    """Say whether this process is the one of its machine that builds."""
    return int(os.environ.get("LOCAL_RANK") or 0) == 0


def make_once(target: Path, build: Callable[[Path], None]) -> None:
    """Make a file or folder unless it is there.

    Args:
        target: what is to be there in the end.
        build: makes it under the temporary path that it is given, in the first process of each machine.

    Raises:
        ValueError, OSError: what the building process raised, in all processes; or it died.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if not builds_here():
        wait_for(target)
        return
    state, temporary = _state(target), temporary_beside(target)
    _sweep(state)
    _tell(state, temporary=temporary.name)
    try:
        build(temporary)
        finish(temporary, target)
    except BaseException as error:
        remove(temporary)
        try:
            _tell(state, "OSError" if isinstance(error, OSError) else type(error).__name__, str(error))
        except OSError:
            pass  # on a full disk the others learn of it by our end
        raise
    state.unlink(missing_ok=True)


def temporary_beside(target: Path) -> Path:
    """Return a path in the same folder that nobody else uses."""
    return target.with_name(f".tmp-{uuid.uuid4().hex}")


def finish(temporary: Path, target: Path) -> None:
    """Give what was built its name; another process may have been faster, and then its work stands."""
    try:
        os.replace(temporary, target)
    except OSError:
        if not target.is_dir():
            raise
        remove(temporary)


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def wait_for(target: Path) -> None:
    """Wait until another process has made a file or folder.

    Raises:
        ValueError: it failed, or died, or none begins within 10 minutes.
        OSError: it could not write.
    """
    state, begun, suspicious = _state(target), time.time(), None
    while not target.exists():
        try:
            current = state.stat().st_mtime >= _STARTED - _GRACE  # else an older run left it
            values = json.loads(state.read_text())
        except (OSError, ValueError):
            current, values = False, None
        if current and values["kind"] == "OSError":
            raise OSError(values["failure"])
        if current and values["kind"]:
            raise ValueError(values["failure"] or f"process {values['pid']} ended with {values['kind']}")
        if values and current and _alive(values):
            suspicious = None
        else:
            suspicious = suspicious or time.time()
            if time.time() - suspicious > (_GRACE if current else _PATIENCE):
                how = "is stopped" if values and _stopped(values) else "ended"
                who = f"process {values['pid']} on {values['host']} {how}" if values else "no process began"
                waited = f"waited {time.time() - begun:.0f} s for {target}"
                raise ValueError(f"{waited}: {who} without finishing it; start again")
        time.sleep(0.05)


def _state(target: Path) -> Path:
    return target.with_suffix(".building")


def _sweep(state: Path) -> None:
    # What a builder that was killed has left behind.
    try:
        values = json.loads(state.read_text())
    except (OSError, ValueError):
        return
    if values.get("temporary") and not _alive(values):
        remove(state.with_name(values["temporary"]))


def _tell(state: Path, kind: str = "", failure: str = "", temporary: str = "") -> None:
    draft = temporary_beside(state)
    values = {"pid": os.getpid(), "host": socket.gethostname(), "kind": kind, "failure": failure}
    draft.write_text(json.dumps(values | {"temporary": temporary}))
    os.replace(draft, state)


def _alive(values: dict) -> bool:
    if values["host"] != socket.gethostname():
        return True
    if _stopped(values):
        return False  # it may never go on
    try:
        os.kill(values["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _stopped(values: dict) -> bool:
    return values["host"] == socket.gethostname() and process_state(values["pid"]) == "T"
