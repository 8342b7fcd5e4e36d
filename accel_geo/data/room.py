"""Room for stores: how much they may take on disk and in memory, and which go when they take more."""

import os
import shutil
import time
from pathlib import Path

from accel_geo.data.once import remove

_GB = 1e9
_DAY = 86_400.0


def text(size: float) -> str:
    """Return a number of bytes for a message."""
    return f"{size / _GB:.1f} GB" if size >= _GB / 10 else f"{size / 1e6:.1f} MB"


def allowed(folder: Path) -> float:
    """Return how many bytes all stores together may take.

    ACCEL_GEO_CACHE_GB, else a third of what they hold and what is free on their disk.

    Raises:
        ValueError: ACCEL_GEO_CACHE_GB is no number.
    """
    given = os.environ.get("ACCEL_GEO_CACHE_GB")
    if not given:
        return (_held(folder) + shutil.disk_usage(folder).free) / 3
    try:
        return float(given) * _GB
    except ValueError:
        raise ValueError(f"ACCEL_GEO_CACHE_GB={given!r} must be a number of gigabytes, such as 50") from None


def lacking(folder: Path, size: float) -> str:
    """Say why a store of this size does not fit on the disk, "" where it does: a tenth of what is free stays free."""
    free, most = shutil.disk_usage(folder).free, allowed(folder)
    if size <= most and size <= 0.9 * free:
        return ""
    why = (
        "as ACCEL_GEO_CACHE_GB says" if os.environ.get("ACCEL_GEO_CACHE_GB") else "unless ACCEL_GEO_CACHE_GB says more"
    )
    return f"it would take about {text(size)}; {text(free)} are free there, and stores may take {text(most)}, {why}"


def touch(file: Path) -> None:
    """Note that a store is in use now, where its folder can be written."""
    try:
        os.utime(file, ns=(time.time_ns(), file.stat().st_mtime_ns))
    except OSError:
        pass


def make(folder: Path, size: float, keep: Path | None = None) -> str:
    """Delete the stores that were used longest ago until one of this size may be added, and what killed runs left.

    Args:
        folder: of the stores.
        size: to be added, bytes.
        keep: a store that stays; so does each one that was used within the last day.

    Returns:
        What was deleted, or "".
    """
    yesterday = time.time() - _DAY
    for litter in [*folder.glob(".tmp-*"), *folder.glob("*.building")]:
        if last_use(litter) < yesterday:
            remove(litter)
    most, held, deleted, freed = allowed(folder), _held(folder) + size, 0, 0
    for file in sorted(folder.glob("*.arrow"), key=last_use):
        taken = _size(file)
        if held <= most or last_use(file) > yesterday:
            break
        if file == keep:
            continue
        try:
            file.unlink()
        except OSError:
            continue  # another run was faster, or it is not ours
        held, freed, deleted = held - taken, freed + taken, deleted + 1
    if not deleted:
        return ""
    return f"{deleted} store(s) not used lately were deleted from {folder} ({text(freed)}): they may take {text(most)}"


def _held(folder: Path) -> int:
    return sum(_size(file) for file in folder.glob("*.arrow"))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def last_use(file: Path) -> float:
    """Return when a file was used last, in seconds since 1970; now where it is gone."""
    try:
        status = file.stat()
    except OSError:
        return time.time()
    return max(status.st_atime, status.st_mtime)


def free_memory() -> float:
    """Return the bytes of memory that this process may still take: its share among those of its machine."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024.0 * int(line.split()[1]))
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no Linux, or a group without a limit ("max")
    if not found and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2)
    return max(min(found, default=0.0), 0.0) / int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
