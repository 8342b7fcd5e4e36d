"""The whole table of launch traps, one by one; slow, since each row starts processes."""

import os
import pty
import select
import sys
import time

import pytest
import torch
import yaml
from launching import ACCELERATE, CONFIGS, PROBE, PYTHON, TORCHRUN, config, environment, run, running

from accel_geo.parallel.supervise import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the traps are those of a machine without a GPU"),
]
WORKING = ("started only one", "cpu_2proc.yaml", "torchrun --standalone", "--devices 2")
CORES = len(os.sched_getaffinity(0))
PAIR = {"num_processes": 2, "num_machines": 1, "compute_environment": "LOCAL_MACHINE", "main_process_port": 0}


def with_config(folder, **values) -> list[str]:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({**PAIR, **values}))
    return [*ACCELERATE, "--config_file", str(file), PROBE]


def test_multi_cpu_configuration(tmp_path):
    run(with_config(tmp_path, distributed_type="MULTI_CPU", use_cpu=True), tmp_path).refused(*WORKING)


def test_multi_gpu_with_use_cpu(tmp_path):
    command = with_config(tmp_path, distributed_type="MULTI_GPU", use_cpu=True)
    run(command, tmp_path).in_one_world(2)
    run(command, tmp_path, ACCELERATE_USE_CPU="1").in_one_world(2)


def test_multi_gpu_by_options(tmp_path):
    command = [*ACCELERATE, "--multi_gpu", "--num_processes", "2", "--main_process_port", "0", PROBE]
    run(command, tmp_path).in_one_world(2)
    run(command, tmp_path, ACCELERATE_USE_CPU="1").in_one_world(2)


def test_num_processes_alone(tmp_path):
    run([*ACCELERATE, "--num_processes", "2", PROBE], tmp_path).refused(*WORKING)


def test_cpu_switch_with_a_configuration_of_two(tmp_path):
    for name in ("cpu_2proc.yaml", "fsdp2.yaml"):
        run([*ACCELERATE, "--config_file", str(CONFIGS / name), "--cpu", PROBE], tmp_path).refused(*WORKING)


def test_torchrun_with_and_without_accelerates_variable(tmp_path):
    run([*TORCHRUN, PROBE], tmp_path).in_one_world(2)
    run([*TORCHRUN, PROBE], tmp_path, ACCELERATE_USE_CPU="1").in_one_world(2)


@pytest.mark.parametrize("options", ([], ["--use-env"]))
def test_torch_distributed_launch(tmp_path, options):
    port = ["--master-port", str(free_port())]
    old = [sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node=2", *port, *options, PROBE]
    run(old, tmp_path).in_one_world(2)


def test_devices_inside_accelerate_launch_and_under_torchrun(tmp_path):
    run([*ACCELERATE, PROBE, "--devices", "2"], tmp_path).in_one_world(2)
    run([*TORCHRUN, PROBE, "--devices", "2"], tmp_path).refused("a launcher already started", "of 2", "--devices 2")


def test_unconfigured_accelerate_takes_all_cores(tmp_path):
    done = run([*ACCELERATE, PROBE], tmp_path).in_one_world(1)
    assert done.probes[0]["threads"] == done.probes[0]["working_threads"] == CORES
    done = run([*ACCELERATE, PROBE, "--threads", "1"], tmp_path).in_one_world(1)
    assert done.probes[0]["threads"] == done.probes[0]["working_threads"] == 1


def test_processes_of_a_machine_share_the_cores(tmp_path):
    done = run([*TORCHRUN, PROBE], tmp_path).in_one_world(2)
    assert [p["threads"] for p in done.probes] == [max(1, CORES // 2)] * 2


LAUNCHERS = """
import sys
from accelerate import debug_launcher, notebook_launcher
sys.path.insert(0, {folder!r})
def main():
    import probe
    from accel_geo.options import run
    run(probe.main, probe.parser, [])
if __name__ == "__main__":
    {call}
"""


@pytest.mark.parametrize(
    "call", ("debug_launcher(main, num_processes=2)", "notebook_launcher(main, num_processes=2, use_port='{port}')")
)
def test_accelerates_launchers_in_python(tmp_path, call):
    script = tmp_path / "script.py"
    script.write_text(LAUNCHERS.format(folder=os.path.dirname(PROBE), call=call.format(port=free_port())))
    run([*PYTHON, str(script)], tmp_path).in_one_world(2)


def test_mpi_variables(tmp_path):
    names = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    port = str(free_port())
    command = [*PYTHON, PROBE, "--per-device-batch-size", "3"]
    mpi = [dict(zip(names, ("2", rank, rank, "2"))) | {"MASTER_PORT": port} for rank in "01"]
    with running(command, tmp_path, "one", **mpi[0]) as one, running(command, tmp_path, "two", **mpi[1]) as two:
        found = [*one.finish().probes, *two.finish().probes]
    assert [(p["rank"], p["processes"], p["global_batch"], p["threads"]) for p in found] == [
        (0, 2, 6, max(1, CORES // 2)),
        (1, 2, 6, max(1, CORES // 2)),
    ]


def test_srun_and_stale_variables(tmp_path):
    run([*PYTHON, PROBE], tmp_path, SLURM_STEP_NUM_TASKS="2", SLURM_PROCID="1").refused("srun --ntasks-per-node 1")
    run([*PYTHON, PROBE], tmp_path, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1").refused("2 processes", "torchrun")


# The configurations of the repository ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "processes", "precision"),
    (("single", 1, "no"), ("data_parallel", 2, "no"), ("ddp", 2, "bf16"), ("fsdp2", 2, "no")),
)
def test_configurations(tmp_path, name, processes, precision):
    done = run([*config(f"{name}.yaml"), "--num_processes", str(processes), PROBE], tmp_path).in_one_world(processes)
    assert {p["precision"] for p in done.probes} == {precision}
    assert {p["sharding"] for p in done.probes} == {name == "fsdp2"}


def test_two_machines(tmp_path):
    shared = [*config("ddp_multinode.yaml"), "--main_process_port", str(free_port())]
    first, second = ([*shared, "--machine_rank", rank, PROBE, "--per-device-batch-size", "3"] for rank in "01")
    with running(first, tmp_path, "first") as one, running(second, tmp_path, "second") as two:
        ended = [one.finish(), two.finish()]
    assert [end.code for end in ended] == [0, 0], [end.errors for end in ended]
    found = [end.probes for end in ended]
    assert [(len(p), p[0]["rank"], p[0]["processes"], p[0]["world"], p[0]["global_batch"]) for p in found] == [
        (1, 0, 2, 2, 6),
        (1, 1, 2, 2, 6),
    ]


def test_deepspeed(tmp_path):
    done = run([*config("deepspeed_zero2.yaml"), PROBE], tmp_path)
    done.refused("DeepSpeed")  # accelerate's own message where it is not installed
    command = [*TORCHRUN, PROBE]
    run(command, tmp_path, ACCELERATE_USE_DEEPSPEED="true").refused("DeepSpeed takes over the optimizer", "ddp.yaml")


# What `accelerate config` writes --------------------------------------------------------------------------------------

CLI = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "config"]
NO_TYPE, MULTI_CPU, MULTI_GPU = "", "\x1b[B", "\x1b[B" * 4


def answer(command: list[str], folder, answers: list[tuple[str, str]], seconds: float = 90.0) -> str:
    """Drive a program through its prompts on a terminal: wait for a piece of text, type the answer.

    Menus are moved in by arrow keys; the prompts that are not named get the Enter key, their default.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(command[0], command, environment(folder, TERM="xterm", COLUMNS="200"))
    seen, done, end = "", 0, time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            if not select.select([terminal], [], [], 0.3)[0]:
                prompt = seen[done:]
                menu = prompt.rfind("\x1b[?25l") > prompt.rfind("\x1b[?25h")  # the cursor is hidden while it waits
                if not menu and not prompt.rstrip().endswith((":", "?")):
                    continue
                key = next((keys for text, keys in answers if text in prompt), "")
                done = len(seen)
                for stroke in [key[i : i + 3] for i in range(0, len(key), 3)] if key.startswith("\x1b") else [key]:
                    os.write(terminal, stroke.encode())
                    time.sleep(0.1)
                os.write(terminal, b"\r")
                continue
            try:
                data = os.read(terminal, 4096)
            except OSError:
                break
            if not data:
                break
            seen += data.decode(errors="replace")
    finally:
        os.close(terminal)
        if os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(1)
            if os.waitpid(child, os.WNOHANG)[0] == 0:
                os.kill(child, 9)
                os.waitpid(child, 0)
    return seen


@pytest.mark.parametrize(
    ("machine", "count", "kind"), ((NO_TYPE, "", "NO"), (MULTI_CPU, "2", "MULTI_CPU"), (MULTI_GPU, "2", "MULTI_GPU"))
)
def test_the_wizard(tmp_path, machine, count, kind):
    file = tmp_path / "hf" / "accelerate" / "default_config.yaml"
    answers = [("Which type of machine", machine), ("How many processes", count), ("How many GPU", count)]
    seen = answer(CLI, tmp_path, answers)
    assert file.exists(), seen
    written = yaml.safe_load(file.read_text())
    assert (written["distributed_type"], written["num_processes"]) == (kind, int(count or 1)), seen
    done = run([*ACCELERATE, PROBE], tmp_path)  # finds the file under HF_HOME, as for a user
    if kind == "MULTI_CPU":
        done.refused(*WORKING)
    else:
        done.in_one_world(int(count or 1))


def test_the_default_configuration(tmp_path):
    file = tmp_path / "default.yaml"
    assert run([*CLI, "default", "--config_file", str(file)], tmp_path).code == 0
    done = run([*ACCELERATE, "--config_file", str(file), PROBE], tmp_path).in_one_world(1)
    assert done.probes[0]["working_threads"] == CORES
