"""The options that tell which data to read, shared by the recipes and the command line; without torch."""

import argparse

from accel_geo import option_values as of


def add_data_options(parser: argparse.ArgumentParser, positional: bool = False) -> None:
    """Add the options that tell which chips to read; `positional`: the folder itself is an argument already."""
    add = parser.add_argument_group("data").add_argument
    if not positional:
        what = "folders of chips and labels, or a data set's name on the hub (default: the built-in scenes)"
        add("--data", nargs="+", metavar="PATH", help=what)
    add("--format", help="format on disk (default: recognised)")
    add("--vectors", metavar="FILE", help="vector file that makes PATH a scene to be chipped (default: none)")
    add("--class-column", metavar="NAME", help="column of --vectors with the class (default: one class)")
    add(
        "--stride", type=of.positive, metavar="N", help="pixels from window to window of a scene (default: --chip-size)"
    )
    add("--area", metavar="FILE", help="polygons: only windows of a scene that lie in them (default: the whole scene)")
    add(
        "--buffer", type=of.between(0), metavar="X", help="radius around points and lines, in map units (default: none)"
    )
    add("--classes", type=of.names, metavar="A,B,...", help="only these classes (default: all)")
    add("--class-mapping", type=of.mapping, metavar="OLD=NEW,...", help="rename or merge classes (default: none)")
    add(
        "--ignore-classes",
        type=of.names,
        metavar="A,B,...",
        default=(),
        help="classes that count nowhere (default: none)",
    )
    add("--ignore-background", action="store_true", help="sparse labels: background counts nowhere (default: off)")
    add("--bands", type=of.names, metavar="A,B,...", help="bands by name or number from 1 (default: all)")
    add("--limit", type=of.positive, metavar="N", help="only the first N chips by image_id (default: all)")
    add("--val-split", type=of.fraction, default=0.1, metavar="F", help="share for validation (default: 0.1)")
    add(
        "--split-by",
        type=of.split,
        metavar="random|group|column:NAME",
        help="what the split keeps together (default: the data's own split, else random)",
    )
    add("--valid-match", metavar="GLOB", help="file names that make the validation split (default: none)")
    add("--valid", nargs="+", metavar="PATH", help="folders of the validation split (default: none)")
    add("--test", nargs="+", metavar="PATH", help="folders to test on at the very end (default: none)")
    add("--resize-to", type=of.positive, metavar="N", help="resize every chip to N x N first (default: none)")
    add(
        "--chip-size",
        type=of.positive,
        metavar="N",
        help="crop N x N in training; whole chips in validation; windows of a scene (default: none)",
    )
    add(
        "--edge-tolerance",
        type=of.between(0),
        metavar="X",
        help="pixels within which an edge counts as found (default: 3; of evaluate: the model's)",
    )
    add("--cache", choices=["auto", "disk", "memory", "off"], default="auto", help="decoded chips (default: auto)")
    add("--verify", action="store_true", help="find changed files by content, not size and time (default: off)")
    add("--num-workers", type=int, metavar="N", help="loading processes (default: only where decoding needs them)")


def data_arguments(given: argparse.Namespace) -> dict[str, object]:
    """Return the arguments of `prepare_data` that `add_data_options` parsed."""
    names = ("format", "vectors", "class_column", "stride", "area", "buffer", "classes", "class_mapping")
    names += ("ignore_classes", "ignore_background", "bands", "limit", "val_split", "split_by", "valid_match")
    names += ("resize_to", "chip_size", "edge_tolerance", "cache", "verify")
    workers = "auto" if given.num_workers is None else given.num_workers
    return {
        "path": of.one_or_more(given.data),
        "valid_path": of.one_or_more(given.valid),
        "test_path": of.one_or_more(given.test),
        "num_workers": workers,
        **{name: getattr(given, name) for name in names},
    }
