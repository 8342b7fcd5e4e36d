"""From a launcher's environment to an Accelerator that runs the processes asked for, or a message with what does.

The traps answered here are those of accelerate 1.15 and torch 2.14 on machines without an accelerator.
"""

import contextlib
import ctypes
import os
import shlex
import socket
import sys
import warnings
from collections.abc import Mapping, MutableMapping
from datetime import timedelta

CPU_COUNT_LOST = """accelerate launch was asked for several processes on the CPU, but started only one: its --cpu switch
and its MULTI_CPU type (what `accelerate config` writes here) need an MPI host file, and do not pass the count on.
Start the same script with one of
    accelerate launch --config_file accelerate_configs/cpu_2proc.yaml {script}
    torchrun --standalone --nproc-per-node 2 {script}
    python {script} --devices 2
(Where one process is meant: MASTER_ADDR is set, which accelerate does for several; unset it.)"""

# Total, rank, local rank and local total as Open MPI, MPICH and Intel MPI, and MVAPICH tell them.
MPI = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
)

# What a user set before the start; launchers set 1 of their own accord.
THREADS = None if any(name.startswith("ACCELERATE_") for name in os.environ) else os.environ.get("OMP_NUM_THREADS")


def launched(env: Mapping[str, str] = os.environ) -> bool:
    """Say whether a launcher started this process as one of a world."""
    return "LOCAL_RANK" in env or "RANK" in env


def check_environment(devices: int = 1, env: MutableMapping[str, str] = os.environ, script: str | None = None) -> None:
    """Stop where a launcher started fewer processes than asked, several that each feel alone, or asks too much.

    What an MPI launcher says is translated into torch's variables.

    Args:
        devices: the processes that the script itself was asked to start.
        env: the environment.
        script: the command to show, with its arguments.

    Raises:
        ValueError: with the command that works.
    """
    script = script or _command()
    _check_features(env)
    _adopt_group(env)
    _adopt_mpi(env)
    if launched(env):
        if devices > 1:
            raise ValueError(
                f"--devices {devices} starts processes by itself, but a launcher already started this one "
                f"(rank {env.get('RANK', '?')} of {env.get('WORLD_SIZE', '?')}); leave it out, or start it with\n"
                f"    python {script}"
            )
        if not {"RANK", "WORLD_SIZE"} <= set(env):
            raise ValueError(
                "the launcher set LOCAL_RANK or RANK, but not both RANK and WORLD_SIZE, so the number of processes is "
                f"unknown; start it with\n    torchrun --standalone --nproc-per-node 2 {script}"
            )
        return
    if "MASTER_ADDR" in env and any(name.startswith("ACCELERATE_") for name in env):
        raise ValueError(CPU_COUNT_LOST.format(script=script))
    tasks = int(env.get("SLURM_STEP_NUM_TASKS", "1") or 1)
    if tasks > 1 and "SLURM_PROCID" in env:
        raise ValueError(
            f"srun started {tasks} tasks, but nothing tells them to work together; start one launcher on each node:\n"
            f"    srun --ntasks-per-node 1 torchrun --nnodes $SLURM_NNODES --nproc-per-node N --rdzv-backend c10d "
            f"--rdzv-endpoint $(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):29500 {script}"
        )
    others = max((int(env[size]) for size in ("WORLD_SIZE", *(names[0] for names in MPI)) if env.get(size)), default=1)
    if others > 1:
        raise ValueError(
            f"the environment speaks of {others} processes, but does not say which of them this one is; start it with\n"
            f"    torchrun --standalone --nproc-per-node {others} {script}\n"
            "or unset WORLD_SIZE, OMPI_COMM_WORLD_SIZE and PMI_SIZE to train on this process alone"
        )


def _check_features(env: Mapping[str, str]) -> None:
    """Refuse what an accelerate configuration can ask for and this loop would ignore."""
    if _true(env, "ACCELERATE_USE_DEEPSPEED"):
        raise ValueError(
            "DeepSpeed takes over the optimizer, the loss scaling and the checkpoint, which this loop keeps itself (it "
            "promises the same run on any device count); use accelerate_configs/ddp.yaml, or fsdp2.yaml to shard"
        )
    for name in ("MEGATRON_LM", "PARALLELISM_CONFIG"):
        if _true(env, f"ACCELERATE_USE_{name}"):
            raise ValueError(
                f"ACCELERATE_USE_{name} splits the network itself, which this loop does not; use "
                "accelerate_configs/ddp.yaml, or fsdp2.yaml to shard the model"
            )
    if sharding_asked(env):
        if env.get("FSDP_VERSION", "2") == "1":
            raise ValueError("FSDP 1 is not supported: set fsdp_version: 2, as accelerate_configs/fsdp2.yaml does")
        for name in ("FSDP_OFFLOAD_PARAMS", "FSDP_ACTIVATION_CHECKPOINTING"):
            if _true(env, name):
                raise ValueError(f"{name.lower()}: true is not supported here; set it to false, as fsdp2.yaml does")


def _adopt_group(env: MutableMapping[str, str]) -> None:
    """Take over a process group that the caller has begun, as accelerate's debug_launcher does, which sets no RANK."""
    distributed = sys.modules.get("torch.distributed")
    if launched(env) or distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return
    rank, size = str(distributed.get_rank()), str(distributed.get_world_size())
    env.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)


def _adopt_mpi(env: MutableMapping[str, str]) -> None:
    """Translate an MPI launcher's variables into torch's, so that one set of names holds from here on.

    Raises:
        ValueError: several machines, but not the address of the first.
    """
    names = next((names for names in MPI if all(env.get(name) for name in names)), None)
    if launched(env) or names is None or int(env[names[0]]) == 1:
        return
    size, rank, local_rank, local_size = (env[name] for name in names)
    if size != local_size and "MASTER_ADDR" not in env:
        raise ValueError(
            f"MPI started {size} processes on several machines; name the one of rank 0:\n"
            f"    mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ... python {_command()}"
        )
    env.update(WORLD_SIZE=size, RANK=rank, LOCAL_RANK=local_rank, LOCAL_WORLD_SIZE=local_size)
    env.setdefault("MASTER_ADDR", "127.0.0.1")
    env.setdefault("MASTER_PORT", "29500")


def _true(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "false").lower() in ("true", "1", "yes")


def _command() -> str:
    """Return the script and its arguments as they can be typed behind a launcher."""
    script = os.path.relpath(sys.argv[0]) if sys.argv[0].endswith(".py") else sys.argv[0]
    arguments = (a for a in sys.argv[1:] if not a.startswith(("--local-rank=", "--local_rank=")))
    return shlex.join([script, *arguments])


def start(
    *,
    cpu: bool = False,
    threads: int | None = None,
    timeout: float = 600.0,
    precision: str | None = None,
    tracker: str | None = None,
    project_dir: str | None = None,
) -> object:
    """Build the Accelerator of this process and check that it sees the world the launcher meant.

    Args:
        cpu: use the CPU even where an accelerator exists.
        threads: CPU threads of this process; None: a lone process takes OMP_NUM_THREADS or all cores, several of a
            machine share them.
        timeout: seconds after which a collective call that some process never reaches fails.
        precision: "no", "bf16" or "fp16"; None takes accelerate's own setting.
        tracker: a tracker that accelerate knows, such as "tensorboard".
        project_dir: where trackers write.

    Returns:
        An `accelerate.Accelerator`.

    Raises:
        ValueError: fewer processes than the launcher asked for, or a precision that this device cannot do.
    """
    import torch
    from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
    from accelerate.state import AcceleratorState

    check_environment()
    on_cpu = cpu or _true(os.environ, "ACCELERATE_USE_CPU") or not (torch.cuda.is_available() or _other_accelerator())
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", expected))
    if not on_cpu and torch.cuda.is_available() and local > torch.cuda.device_count():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise ValueError(
            f"{local} processes on this machine, but {torch.cuda.device_count()} GPU(s)"
            f"{'' if visible is None else f' (CUDA_VISIBLE_DEVICES={visible})'}; start one process for each, or add --cpu"
        )
    precision = precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision == "fp16" and on_cpu:
        raise ValueError("--precision fp16 needs a GPU (its gradients are scaled there); on the CPU use bf16 or no")
    if precision not in ("no", "bf16", "fp16"):
        raise ValueError(f"precision {precision!r} is not supported; choose no, bf16 or fp16")
    if precision == "fp16" and sharding_asked():
        raise ValueError("fp16 scales gradients, which is not done for a sharded model (FSDP); use bf16 or no")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # keeps accelerate from setting threads with a warning; set below
    # Accelerate keeps the first fit's device and precision for the life of the process; a later fit may want others.
    AcceleratorState._reset_state(reset_partial_state=not torch.distributed.is_initialized())
    # Sharding is done by torch's fully_shard in the loop, on the CPU too, where accelerate would ignore it.
    fsdp = os.environ.pop("ACCELERATE_USE_FSDP", None)
    # torch's new name for it is none that accelerate passes on.
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    try:
        accelerator = Accelerator(
            cpu=on_cpu,
            mixed_precision=precision,
            log_with=tracker,
            project_dir=project_dir,
            kwargs_handlers=[
                InitProcessGroupKwargs(timeout=timedelta(seconds=timeout)),
                # All processes update their buffers alike, so there is nothing to broadcast in each forward pass.
                DistributedDataParallelKwargs(broadcast_buffers=False),
            ],
        )
    finally:
        if fsdp is not None:
            os.environ["ACCELERATE_USE_FSDP"] = fsdp
    if accelerator.num_processes != expected:
        raise ValueError(
            f"the launcher started {expected} processes, but this one sees {accelerator.num_processes}; start it with\n"
            f"    torchrun --standalone --nproc-per-node {expected} {_command()}"
        )
    if on_cpu:
        keep_freed_memory()
        torch.set_num_threads(threads or _default_threads(local))
    elif threads:
        torch.set_num_threads(threads)
    return accelerator


def _default_threads(local: int) -> int:
    # Of a process on the CPU, one of so many on this machine.
    alone = int(THREADS) if local == 1 and (THREADS or "").isdecimal() else 0
    return alone or max(1, available_cores() // local)


def keep_freed_memory() -> None:
    """Keep glibc from handing the memory of each training step back to the system, only to fault it in again.

    Where all tensors of a step lie at the top of the heap, that costs up to a quarter of a small step.
    """
    trim_threshold, mmap_threshold = -1, -3  # names of mallopt(3)
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such function, and no such habit
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(trim_threshold, 1 << 30)
        libc.mallopt(mmap_threshold, 32 << 20)  # the most it takes


def sharding_asked(env: Mapping[str, str] = os.environ) -> bool:
    """Say whether the launcher's configuration asks for a model sharded over the devices (FSDP)."""
    return _true(env, "ACCELERATE_USE_FSDP")


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _other_accelerator() -> bool:
    import torch

    return bool(getattr(torch, "accelerator", None)) and torch.accelerator.is_available()


def device_report(device: object = None) -> dict[str, object]:
    """Describe this process and its device: rank, host, pid, device, name, memory in GiB (None where unknown), threads.

    `visible` is CUDA_VISIBLE_DEVICES, where set: the devices are counted among those.
    """
    import torch

    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    name, memory = _cpu_name(), None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, memory = properties.name, properties.total_memory / 2**30
    elif device.type == "cpu" and hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "rank": int(os.environ.get("RANK", 0)),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": str(device),
        "name": name,
        "memory_gib": None if memory is None else round(memory, 1),
        "threads": torch.get_num_threads(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        import platform

        return platform.processor() or "CPU"


def device_table(reports: list[dict[str, object]]) -> str:
    """Format device reports, one line for each process."""
    lines = []
    for r in sorted(reports, key=lambda r: r["rank"]):
        memory = "" if r["memory_gib"] is None else f", {r['memory_gib']} GiB"
        threads = f", {r['threads']} thread(s)" if str(r["device"]).startswith("cpu") else ""
        shown = "" if r["visible"] is None else f", CUDA_VISIBLE_DEVICES={r['visible']}"
        lines.append(
            f"rank {r['rank']}: {r['device']} ({r['name']}{memory}{threads}{shown}) on {r['host']}, process {r['pid']}"
        )
    return "\n".join(lines)


def device_load(device: object, utilisation: bool = False) -> dict[str, float]:
    """Return what the device tells of its load: peak memory in GiB and, if asked, utilisation in percent.

    Empty where it tells nothing, as on the CPU.
    """
    import torch

    if torch.device(device).type != "cuda":
        return {}
    load = {"memory_gib": round(torch.cuda.max_memory_allocated(device) / 2**30, 3)}
    if not utilisation:
        return load
    try:
        load["utilisation"] = float(torch.cuda.utilization(device))
    except Exception:  # the driver's library may be missing or refuse; the load is a courtesy
        return load
    return load
