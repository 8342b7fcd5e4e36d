"""A folder for each class."""

import numpy as np
import pytest
from exports import copied, expected, litter, shout, stems

from accel_geo.data import formats


@pytest.mark.parametrize("change", [None, litter, shout])
def test_imagenet(shared, tmp_path, change):
    says = expected(shared, "Imagenet")
    root = copied(shared, "Imagenet", tmp_path / "set")
    if change:
        change(root)
    rows = formats.read(root)
    assert (rows.format, rows.task) == ("Imagenet", "classification") and rows.problems == []
    assert rows.classes == {c["value"]: c["name"] for c in says["classes"]}
    found = stems(rows)
    assert len(rows.dataset) == says["num_chips"] and not any(row["group"] for row in rows.dataset)
    assert {name: found[name]["values"] for name in says["label_of_chips"]} == {
        name: [value] for name, value in says["label_of_chips"].items()
    }
    per_class = {str(v): sum(row["values"] == [v] for row in rows.dataset) for v in rows.classes}
    assert per_class == says["chips_per_class"]


def test_found_above_and_below(shared, tmp_path):
    root = copied(shared, "Imagenet", tmp_path / "above" / "set")
    for path in (root.parent, root / "images", root / "images" / "tin_roof"):
        rows = formats.read(path)
        assert rows.root == root and 9 in rows.classes and any("found in" in problem for problem in rows.problems)


def test_folders_with_blanks_and_values_as_names(shared, tmp_path):
    root = copied(shared, "Imagenet", tmp_path / "set")
    (root / "images" / "tin_roof").rename(root / "images" / "Tin Roof")
    (root / "images" / "open_ground").rename(root / "images" / "12")
    rows = formats.read(root)
    assert rows.classes == {c["value"]: c["name"] for c in expected(shared, "Imagenet")["classes"]}
    per_class = {str(v): sum(row["values"] == [v] for row in rows.dataset) for v in rows.classes}
    assert per_class == expected(shared, "Imagenet")["chips_per_class"]
    assert any("map.txt names 14 file(s) that are not on disk" in problem for problem in rows.problems)


def test_folders_that_are_no_class_and_classes_without_a_folder(shared, tmp_path):
    root = copied(shared, "Imagenet", tmp_path / "set")
    (root / "images" / "tin_roof").rename(root / "images" / "slate")
    (root / "images" / "empty").mkdir()
    rows = formats.read(root)
    assert rows.classes[13] == "slate" and "empty" not in rows.classes.values()
    assert any("folder slate is no class of the metadata: taken as class 13" in problem for problem in rows.problems)
    assert any("no chip of class tin_roof" in problem for problem in rows.problems)


def test_plain_folders(tmp_path, write):
    for place in ("b c/x/1.png", "b c/2.PNG", "a/1.png", "models/readme.txt", ".hidden/1.png"):
        file = tmp_path / place
        if file.suffix.lower() == ".png":
            write(file.with_suffix(".png"), np.ones((3, 4, 4), np.uint8))
            file.with_suffix(".png").rename(file)
        else:
            file.parent.mkdir(parents=True)
            file.write_text("no image")
    rows = formats.read(tmp_path)
    assert rows.classes == {1: "a", 2: "b c"}
    assert [(row["file"], row["values"]) for row in rows.dataset] == [
        ("a/1.png", [1]), ("b c/2.PNG", [2]), ("b c/x/1.png", [2]),
    ]  # fmt: skip


def test_plain_folders_named_by_numbers(tmp_path, write):
    for name in ("10", "2", "0"):
        write(tmp_path / name / "1.png", np.ones((3, 4, 4), np.uint8))
    rows = formats.read(tmp_path)
    assert list(rows.classes) == [0, 2, 10] and {tuple(row["values"]) for row in rows.dataset} == {(0,), (2,), (10,)}
