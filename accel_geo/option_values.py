"""The types of the options' values: from text, or with a message that says what is allowed."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def fraction(text: str) -> float:
    """Return a number of at least 0 and below 1."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 0 and below 1")
    return value


def between(low: float, high: float = float("inf")) -> Callable[[str], float]:
    """Return a type of number above low and below high."""

    def number(text: str) -> float:
        value = float(text)
        if not low < value < high:
            raise argparse.ArgumentTypeError(
                f"{text} must be above {low:g}" + ("" if high == float("inf") else f" and below {high:g}")
            )
        return value

    return number


def rate(text: str) -> float | str:
    """Return a number above 0, or "auto"."""
    return text if text == "auto" else between(0)(text)


def split(text: str) -> str:
    """Return what a split keeps together: random, group or column:NAME."""
    kind, _, name = text.partition(":")
    if text not in ("random", "group") and not (kind == "column" and name):
        raise argparse.ArgumentTypeError(f"{text!r} must be random, group or column:NAME")
    return text


def mapping(text: str) -> dict[str, str]:
    """Return {old: new} of OLD=NEW,OLD=NEW."""
    pairs = [item.partition("=") for item in text.split(",") if item]
    if not pairs or any(not (old and sign and new) for old, sign, new in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} must read OLD=NEW,OLD=NEW")
    return {old.strip(): new.strip() for old, _, new in pairs}


def names(text: str) -> list[str]:
    """Return the names in A,B,..."""
    return [item.strip() for item in text.split(",") if item.strip()]


def one_or_more(values: list[str] | None) -> str | list[str] | None:
    """Return the only value, else the list."""
    return values[0] if values and len(values) == 1 else values


def may_be_elsewhere(path: str) -> bool:
    """Say whether a path that is not on disk may be one that GDAL opens by itself, or a data set on the hub."""
    return path.startswith("/vsi") or is_hub_name(path)


def is_hub_name(path: str) -> bool:
    """Say whether a path is not on disk and reads like a data set on the hub, "owner/name" or with ":configuration"."""
    return (
        bool(re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", path))
        and not Path(path).exists()
        and not Path(path).parent.exists()
    )
