"""The exports of shared/data, copied so that a test can change them, and what their expected.json says."""

import json
import shutil
from pathlib import Path


def expected(shared: Path, folder: str) -> dict:
    """What a correct reader must find in a folder."""
    return json.loads((shared / "data" / "esri_exports" / folder / "expected.json").read_text())


def copied(shared: Path, folder: str, to: Path) -> Path:
    """Copy a folder as the export tool leaves it: without expected.json, with files that can be changed."""
    source = shared / "data" / "esri_exports" / folder
    shutil.copytree(source, to, ignore=shutil.ignore_patterns("expected.json"), copy_function=shutil.copyfile)
    for place in [to, *(entry for entry in to.rglob("*") if entry.is_dir())]:
        place.chmod(0o755)
    return to


def litter(root: Path) -> None:
    """Leave what viewers, file managers and GDAL leave in every folder."""
    for place in [root, *(entry for entry in root.rglob("*") if entry.is_dir())]:
        for name in ("Thumbs.db", ".DS_Store", "000000000.tif.aux.xml", "000000000.tif.ovr", "._000000019.tif"):
            (place / name).write_bytes(b"\0litter")
    (root / "models").mkdir()


def shout(root: Path) -> None:
    """Give every chip, label, description and folder but those of classes a name in upper case."""
    for file in [file for file in root.rglob("*") if file.is_file()]:
        file.rename(file.with_name(file.name.upper()))
    for place in [entry for entry in root.iterdir() if entry.is_dir()]:
        place.rename(place.with_name(place.name.upper()))


def stems(rows) -> dict[str, dict]:
    """The rows by the stem of their chip."""
    return {Path(row["file"]).stem: row for row in rows.dataset}
