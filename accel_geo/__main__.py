"""python -m accel_geo inspect | evaluate | predict | devices."""

import argparse
import json
import os
import sys
from pathlib import Path

from accel_geo.data_options import add_data_options, data_arguments
from accel_geo.options import end_with_message


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and run one command."""
    parser = argparse.ArgumentParser(prog="python -m accel_geo", description="Look at data, models and devices.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="inspect|evaluate|predict|devices")

    inspect = commands.add_parser("inspect", help="print what a data folder holds", allow_abbrev=False)
    inspect.add_argument("data", nargs="+", metavar="PATH", help="folders of chips and labels, or a scene (--vectors)")
    inspect.add_argument("--task", help="what the labels are read for (default: what the format serves)")
    inspect.add_argument("--picture", metavar="FILE", help="also draw chips with their labels into a PNG file")
    inspect.add_argument("--html", metavar="FILE", help="also write all of it with pictures into one HTML file")
    inspect.add_argument("--json", action="store_true", help="print one JSON object (default: text)")
    add_data_options(inspect, positional=True)
    inspect.set_defaults(run=run_inspect)

    evaluate = commands.add_parser("evaluate", help="print a model's metrics", allow_abbrev=False)
    evaluate.add_argument("model", help="folder of a model: model/ or checkpoints/step-N/ of a run")
    add_data_options(evaluate)
    evaluate.add_argument("--json", action="store_true", help="print the metrics as one JSON object (default: a table)")
    evaluate.add_argument(
        "--split", choices=["train", "valid", "test"], default="valid", help="chips to evaluate on (default: valid)"
    )
    evaluate.set_defaults(run=run_evaluate)

    predict = commands.add_parser("predict", help="predict chips with a model", allow_abbrev=False)
    predict.add_argument("model", help="folder of a model")
    predict.add_argument("images", nargs="+", help="raster files with the bands of the training data")
    predict.add_argument(
        "--output", default="predictions", metavar="DIR", help="predictions.json and pictures (default: predictions)"
    )
    predict.set_defaults(run=run_predict)

    devices = commands.add_parser("devices", help="print which process is on which device", allow_abbrev=False)
    devices.add_argument("--cpu", action="store_true", help="as a recipe with --cpu would (default: off)")
    devices.set_defaults(run=run_devices)

    for command in (inspect, evaluate, predict, devices):
        command.add_argument("--local-rank", "--local_rank", help=argparse.SUPPRESS)  # of torch.distributed.launch
    given = parser.parse_args(arguments)
    with end_with_message():
        try:
            given.run(given)
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_inspect(given: argparse.Namespace) -> None:
    """Print what a data folder holds."""
    from accel_geo import prepare_data

    for file in filter(None, (given.picture, given.html)):  # before all that takes long
        if Path(file).is_dir() or not Path(file).parent.is_dir():
            what = (
                "is a folder" if Path(file).is_dir() else f"cannot be written: there is no folder {Path(file).parent}"
            )
            raise ValueError(f"{file} {what}; give the name of a file")
    data = prepare_data(task=given.task, **data_arguments(given))
    print(json.dumps(data.summary(), ensure_ascii=False) if given.json else data.describe())
    said = sys.stderr if given.json else sys.stdout
    if given.picture:
        data.show_batch(path=given.picture)
        print(f"picture: {given.picture}", file=said)
    if given.html:
        print(f"page: {data.write_page(given.html)}", file=said)


def run_evaluate(given: argparse.Namespace) -> None:
    """Print a model's metrics; under a launcher the chips are shared over the processes."""
    from accel_geo import from_model, prepare_data
    from accel_geo.data.spec import DataSpec
    from accel_geo.engine.checkpoint import read_folder
    from accel_geo.engine.publish import table_text
    from accel_geo.parallel import launch
    from accel_geo.parallel.reduction import is_main, world_size

    spec = DataSpec.from_json(read_folder(given.model).config["spec"])
    accelerator = launch.start()
    resize = given.resize_to or spec.resize_to
    given.bands = given.bands or list(spec.band_indexes)
    fixed = {"task": spec.task, "resize_to": resize, "scale": spec.scale if spec.scale > 1 else None}
    if spec.task == "edges":
        fixed["edge_tolerance"] = given.edge_tolerance or spec.edge_tolerance
    data = prepare_data(**data_arguments(given) | fixed)
    model = from_model(given.model, data).to(accelerator.device)
    metrics = model.evaluate(split=given.split, distributed=world_size() > 1)
    if is_main():
        print(json.dumps(metrics) if given.json else table_text(data, metrics))


def run_predict(given: argparse.Namespace) -> None:
    """Predict chips one by one; write predictions.json and a picture of each."""
    from accel_geo import from_model
    from accel_geo.data.chips import empty_labels
    from accel_geo.data.images import read_image
    from accel_geo.engine.publish import write_predictions
    from accel_geo.tasks import TASKS

    model, output = from_model(given.model), Path(given.output)
    task, records = TASKS[model.spec.task], []
    output.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(given.images):
        image = read_image(file, model.spec)
        size = tuple(image.shape[-2:])
        target = {**empty_labels(model.spec, size), "image_id": number, "size": size, "key": 0, "ignore": False}
        prediction = model.predict(image)
        records.append(task.record(model.spec, prediction, target, file))
        figure = task.figure(
            model.spec, [image], [target], [prediction], [Path(file).name], kinds=("image", "prediction")
        )
        figure.savefig(output / f"{number:05d}-{Path(file).stem}.png")
    write_predictions(output, task.predictions(records))
    print(f"{len(records)} chip(s): {output / 'predictions.json'} and a picture of each beside it")


def run_devices(given: argparse.Namespace) -> None:
    """Print which process is on which device, as a recipe launched the same way would find it."""
    from accel_geo.parallel import launch
    from accel_geo.parallel.reduction import gather_json, is_main

    accelerator = launch.start(cpu=given.cpu)
    reports = gather_json(launch.device_report(accelerator.device))
    if is_main():
        print(launch.device_table(reports))


if __name__ == "__main__":
    sys.argv[0] = os.path.basename(sys.argv[0])
    main()
