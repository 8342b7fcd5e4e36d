"""Every way to start processes ends in one world of the asked size, or in a message with the command that works.

The traps are those of reference measurements with accelerate 1.15 and torch 2.14 on machines without an accelerator.
"""

import os

import pytest
import torch
from launching import ACCELERATE, PROBE, PYTHON, TORCHRUN, config, run

from accel_geo.options import Parser
from accel_geo.parallel import launch

on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the traps are those of a machine without a GPU")
WORKING = ("cpu_2proc.yaml", "torchrun --standalone", "--devices 2")


# The ways that must work: few, because each costs seconds; the others are marked slow --------------------------------


def test_accelerate_launch_with_the_cpu_configuration(tmp_path):
    done = run([*config("cpu_2proc.yaml"), PROBE, "--cpu", "--per-device-batch-size", "3"], tmp_path).in_one_world(2)
    assert {p["type"] for p in done.probes} == {"DistributedType.MULTI_CPU"}
    assert {p["global_batch"] for p in done.probes} == {6}


def test_devices(tmp_path):
    done = run([*PYTHON, PROBE, "--cpu", "--devices", "2", "--threads", "1"], tmp_path).in_one_world(2)
    assert {p["threads"] for p in done.probes} == {1}


def test_torchrun(tmp_path):
    run([*TORCHRUN, PROBE, "--cpu"], tmp_path).in_one_world(2)


@on_cpu
def test_accelerate_that_starts_one_of_two_processes_is_answered(tmp_path):
    done = run([*ACCELERATE, "--cpu", "--num_processes", "2", PROBE, "--epochs", "3"], tmp_path)
    done.refused("started only one", *WORKING, "--epochs 3")


# What the environment alone tells -------------------------------------------------------------------------------------


def refused(env: dict, *words: str, devices: int = 1) -> None:
    with pytest.raises(ValueError) as error:
        launch.check_environment(devices, env, script="recipes/unetclassifier.py --epochs 3")
    for word in (*words, "" if devices == 1 else f"--devices {devices}"):
        assert word in str(error.value)


def test_a_lone_process_passes():
    launch.check_environment(1, {"PATH": "/usr/bin"})
    launch.check_environment(4, {"ACCELERATE_USE_CPU": "False", "OMP_NUM_THREADS": "1"})  # accelerate launch, --devices


def test_a_lost_count_is_refused():
    refused({"MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "True"}, "torchrun", "--epochs 3")
    refused({"WORLD_SIZE": "4"}, "4 processes", "--nproc-per-node 4")
    refused({"PMI_SIZE": "3", "PMI_RANK": "1"}, "3 processes")
    refused({"LOCAL_RANK": "1"}, "WORLD_SIZE", "torchrun")
    refused({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "both RANK and WORLD_SIZE")


def test_devices_under_a_launcher_are_refused():
    refused({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, "rank 1 of 2", devices=2)
    mpi = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}
    mpi |= {"OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    refused(mpi, "rank 3 of 4", devices=2)


def test_srun_is_told_to_start_launchers():
    task = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
    refused(task, "srun --ntasks-per-node 1 torchrun")
    refused({**task, "PMI_SIZE": "2", "PMI_RANK": "0"}, "srun --ntasks-per-node 1 torchrun")  # srun --mpi=pmi2
    launch.check_environment(1, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"})
    launch.check_environment(1, {**task, "RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"})  # a launcher under srun


@pytest.mark.parametrize("names", launch.MPI, ids=("Open MPI", "MPICH and Intel MPI", "MVAPICH"))
def test_mpi_is_translated(names):
    env = dict(zip(names, ("4", "3", "1", "4")))
    launch.check_environment(1, env)
    assert [env[k] for k in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == ["4", "3", "1", "4"]
    assert env["MASTER_ADDR"] == "127.0.0.1"
    several = dict(zip(names, ("4", "3", "1", "2")))
    refused(several, "MASTER_ADDR=HOST")
    launch.check_environment(1, several | {"MASTER_ADDR": "10.0.0.1"})
    alone = dict(zip(names, ("1", "0", "0", "1")))
    launch.check_environment(1, alone)
    assert "RANK" not in alone


def test_what_the_loop_cannot_do_is_refused_before_anything_is_read():
    refused({"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed", "fsdp2.yaml")
    refused({"ACCELERATE_USE_MEGATRON_LM": "true"}, "MEGATRON_LM")
    refused({"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}, "PARALLELISM_CONFIG")
    sharded = {"ACCELERATE_USE_FSDP": "true", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    launch.check_environment(1, dict(sharded))
    refused({**sharded, "FSDP_VERSION": "1"}, "fsdp_version: 2")
    refused({**sharded, "FSDP_OFFLOAD_PARAMS": "true"}, "offload")
    refused({**sharded, "FSDP_ACTIVATION_CHECKPOINTING": "true"}, "activation_checkpointing")


def test_the_argument_of_torchs_old_launcher_is_swallowed(monkeypatch):
    parser = Parser("A recipe.", task="semantic", epochs=1, batch_size=4, lr=0.1, backbone="resnet18")
    for argument in ("--local-rank=1", "--local_rank=1"):
        assert parser.parse(["--epochs", "3", argument]).epochs == 3
    monkeypatch.setattr("sys.argv", ["x.py", "--local-rank=1", "--data", "a b"])
    with pytest.raises(ValueError, match="torchrun --standalone --nproc-per-node 2 x.py --data 'a b'$"):
        launch.check_environment(1, {"LOCAL_RANK": "1"})


def test_the_device_report_tells_the_visible_devices(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("RANK", "1")
    mine = launch.device_report("cpu")
    assert (mine["rank"], mine["visible"], mine["threads"]) == (1, "2,3", torch.get_num_threads())
    assert mine["memory_gib"] > 0 and mine["pid"] == os.getpid()
    gpu = {**mine, "rank": 0, "device": "cuda:0", "name": "GPU", "memory_gib": 80.0}
    lines = launch.device_table([mine, gpu]).splitlines()
    assert lines[0].startswith("rank 0: cuda:0 (GPU, 80.0 GiB, CUDA_VISIBLE_DEVICES=2,3) on")
    assert lines[1].startswith("rank 1: cpu (")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert "CUDA" not in launch.device_table([launch.device_report("cpu")])


def test_fp16_and_unknown_precisions_are_refused(monkeypatch):
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="fp16 needs a GPU"):
            launch.start(precision="fp16")
    with pytest.raises(ValueError, match="fp8"):
        launch.start(cpu=True, precision="fp8")


def test_threads_that_a_user_set_count_for_a_lone_process(monkeypatch):
    monkeypatch.setattr(launch, "available_cores", lambda: 8)
    for asked, local, expected in (("3", 1, 3), ("3", 2, 4), (None, 1, 8), ("many", 1, 8), ("0", 1, 8), (None, 16, 1)):
        monkeypatch.setattr(launch, "THREADS", asked)
        assert launch._default_threads(local) == expected, (asked, local)
