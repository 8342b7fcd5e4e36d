"""Where stores live, and who builds them: the first process of each machine; the others wait for the finished file.

There is no collective call here, so that data can be prepared before or without a process group. A store is written
under a temporary name and renamed, so that two runs which start together both end well.
"""

import json
import os
import socket
import time
import uuid
from pathlib import Path

import pyarrow as pa

from accel_geo.data.store import Decoder, Store, in_memory, open_store, write
from accel_geo.parallel.processes import process_state

MODES = ("auto", "disk", "memory", "off")
_STARTED = time.time()
_PATIENCE = 600.0  # seconds to wait for a builder to appear
_GRACE = 10.0  # seconds for a new builder to replace what an older run left behind


def cache_folder() -> Path:
    """Return the folder of stores: ACCEL_GEO_CACHE, else ~/.cache/accel_geo; it may not exist yet."""
    return Path(os.environ.get("ACCEL_GEO_CACHE") or Path.home() / ".cache" / "accel_geo").expanduser() / "chips"


def builds_here() -> bool:
    """Say whether this process is the one of its machine that builds stores."""
    return int(os.environ.get("LOCAL_RANK") or 0) == 0


def prepare_store(decoder: Decoder, cache: str, verify: bool = False) -> tuple[Store, str]:
    """Open the store of a data set, decoding it first where that has not been done.

    Args:
        decoder: reads the chips.
        cache: "disk", "memory" (every process decodes for itself), "off" (pixels are decoded each time), or "auto":
            disk, and memory where the disk cannot be written.

    Returns:
        The store, and a note where "auto" had to fall back.

    Raises:
        ValueError: too many chips cannot be read, or the process that builds the store died.
        OSError: the disk cannot be written and `cache` is "disk".
    """
    if cache in ("memory", "off"):
        return in_memory(decoder, keep=cache == "memory"), ""
    try:
        return _on_disk(decoder), ""
    except OSError as error:
        note = f"the store cannot be written to {cache_folder()} ({error.strerror or error})"
        if cache == "disk":
            raise OSError(f"{note}; make room there, point ACCEL_GEO_CACHE elsewhere, or use cache='memory'") from error
    return in_memory(decoder, keep=True), f"{note}: the chips are kept in memory"


def _on_disk(decoder: Decoder) -> Store:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{decoder.manifest()}.arrow"
    store = _open(file, decoder)
    if store is None:
        _build(decoder, file) if builds_here() else _wait(file)
        store = open_store(file, decoder)
    return store


def _open(file: Path, decoder: Decoder) -> Store | None:
    try:
        return open_store(file, decoder)
    except (FileNotFoundError, pa.ArrowInvalid):  # not there, or damaged: it is built anew
        return None


def _build(decoder: Decoder, file: Path) -> None:
    state = file.with_suffix(".building")
    temporary = file.with_name(f".tmp-{uuid.uuid4().hex}")
    _tell(state)
    try:
        write(decoder, temporary)
        os.replace(temporary, file)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        try:
            _tell(state, type(error).__name__ if not isinstance(error, OSError) else "OSError", str(error))
        except OSError:
            pass  # on a full disk the others learn of it by our end
        raise
    state.unlink(missing_ok=True)


def _tell(state: Path, kind: str = "", failure: str = "") -> None:
    temporary = state.with_name(f".tmp-{uuid.uuid4().hex}")
    values = {"pid": os.getpid(), "host": socket.gethostname(), "kind": kind, "failure": failure}
    temporary.write_text(json.dumps(values))
    os.replace(temporary, state)


def _wait(file: Path) -> None:
    state, begun, suspicious = file.with_suffix(".building"), time.time(), None
    while not file.exists():
        try:
            current = state.stat().st_mtime >= _STARTED - _GRACE  # else an older run left it
            values = json.loads(state.read_text())
        except (OSError, ValueError):
            current, values = False, None
        if current and values["kind"] == "OSError":
            raise OSError(values["failure"])
        if current and values["kind"]:
            ended = f"decoding the chips ended with {values['kind']} in process {values['pid']}"
            raise ValueError(values["failure"] or ended)
        if values and current and _alive(values):
            suspicious = None
        else:
            suspicious = suspicious or time.time()
            patience = _GRACE if current else _PATIENCE
            if time.time() - suspicious > patience:
                how = "is stopped" if values and _stopped(values) else "ended"
                who = f"process {values['pid']} on {values['host']} {how}" if values else "no process began"
                waited = f"waited {time.time() - begun:.0f} s for the store {file}"
                raise ValueError(f"{waited}: {who} without finishing it; start again")
        time.sleep(0.05)


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
