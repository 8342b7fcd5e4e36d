"""Rows that took long to read, kept beside the stores: a hundred thousand XML files are parsed once, not at each start.

One Arrow file for each folder, task and format; it serves as long as every file of the folder has the size and time that
it had. A folder that is read quickly, or rows that depend on anything outside it, are not kept.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from accel_geo.data import room
from accel_geo.data.cache import cache_folder
from accel_geo.data.once import builds_here, finish, remove, temporary_beside

if TYPE_CHECKING:
    from accel_geo.data.formats.rows import Rows

_LONG = 2.0  # seconds of reading from which on rows are kept
_OLD = 30 * 86_400.0  # seconds without use after which they go
_KEY = b"accel_geo"


def cached_rows(place: Path, task: str, format: str, read: Callable[[Path, str], "Rows"]) -> "Rows":
    """Read the rows of a data set, or take those that an earlier run kept.

    Args:
        place: folder of the data set, or an annotation file.
        task: what the labels are read for.
        format: name of the format.
        read: its reader, `read(place, task)`.

    Raises:
        ValueError, FileNotFoundError: what the reader raises.
    """
    if not place.is_dir():
        return read(place, task)
    name = hashlib.blake2b(
        json.dumps([str(place.resolve()), task, format, _code()]).encode(), digest_size=12
    ).hexdigest()
    file = cache_folder().parent / "rows" / f"{name}.arrow"
    if rows := _open(file, place):
        return rows
    begun = time.time()
    rows = read(place, task)
    if time.time() - begun > _LONG and builds_here() and _inside(rows, place):
        listed, newest = _listing(place)
        if newest < begun:  # else something changed while it was read
            _keep(rows, file, listed)
    return rows


def _code() -> list:
    # The state of the readers: other code may read otherwise.
    folder = Path(__file__).parent / "formats"
    return [(entry.name, entry.stat().st_mtime_ns) for entry in sorted(folder.glob("*.py"))]


def _inside(rows: "Rows", place: Path) -> bool:
    names = [*rows.dataset["file"][:], *(name for labels in rows.dataset["label_files"][:] for name in labels)]
    outside = any(name.startswith(("/", "..")) or os.path.isabs(name) for name in names)
    return rows.root == place and not outside and all(file.is_relative_to(place) for file in rows.sources)


def _open(file: Path, place: Path) -> "Rows | None":
    from datasets import Dataset

    from accel_geo.data.formats.rows import Rows

    try:
        with pa.memory_map(str(file)) as mapped:
            kept = json.loads(pa.ipc.open_stream(mapped).schema.metadata[_KEY])
        if kept.pop("listed") != _listing(place)[0]:
            return None
        rows = Rows(**_loaded(kept["rows"]), root=place, dataset=Dataset.from_file(str(file)))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):  # not there, damaged, or not to be read
        return None
    room.touch(file)
    return rows


def _keep(rows: "Rows", file: Path, listed: str) -> None:
    values = {f.name: getattr(rows, f.name) for f in fields(rows) if f.name not in ("root", "dataset")}
    table = rows.dataset.with_format("arrow")[:]
    kept = {"listed": listed, "rows": _plain(values)}
    schema = table.schema.with_metadata({**(table.schema.metadata or {}), _KEY: json.dumps(kept)})
    temporary = temporary_beside(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for other in file.parent.iterdir():
            if room.last_use(other) < time.time() - _OLD:
                remove(other)
        with pa.OSFile(str(temporary), "wb") as stream, pa.ipc.new_stream(stream, schema) as writer:
            writer.write_table(table.cast(schema))
        finish(temporary, file)
    except OSError:  # no room, or a folder that cannot be written: the rows are read anew next time
        remove(temporary)


def _listing(folder: Path) -> tuple[str, float]:
    # A hash of every file below a folder with its size and time, and when the newest of them last changed.
    found, newest = hashlib.blake2b(digest_size=12), 0.0
    for base, entries in _walk(str(folder), set()):
        lines = [base]
        for entry in entries:
            status = entry.stat()
            newest = max(newest, status.st_ctime)
            lines.append(f"{entry.name}\0{status.st_size}\0{status.st_mtime_ns}")
        found.update("\n".join(lines).encode(errors="surrogateescape"))
    return found.hexdigest(), newest


def _walk(base: str, seen: set[tuple[int, int]]) -> Iterator[tuple[str, list[os.DirEntry]]]:
    status = os.stat(base)
    if (status.st_dev, status.st_ino) in seen:
        return  # a link that leads back
    seen.add((status.st_dev, status.st_ino))
    with os.scandir(base) as listed:
        entries = sorted(listed, key=lambda entry: entry.name)
    yield base, [entry for entry in entries if entry.is_file()]
    for entry in filter(os.DirEntry.is_dir, entries):
        yield from _walk(entry.path, seen)


def _plain(value: object) -> object:
    # JSON knows neither tuples nor sets nor paths, and no keys but text.
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple | frozenset):
        return {type(value).__name__: [_plain(item) for item in value]}
    return {"path": str(value)} if isinstance(value, Path) else value


_MAKERS = {"list": list, "tuple": tuple, "frozenset": frozenset}


def _loaded(value: object) -> object:
    if not isinstance(value, dict):
        return value
    (kind, items), *_ = value.items()
    if kind == "dict":
        return {_loaded(key): _loaded(item) for key, item in items}
    return Path(items) if kind == "path" else _MAKERS[kind](_loaded(item) for item in items)
