"""The configurations say hardware only, are short, explain themselves and are valid for accelerate."""

from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

FOLDER = Path(__file__).resolve().parents[2] / "accelerate_configs"
KINDS = {
    "single": "NO", "data_parallel": "MULTI_GPU", "ddp": "MULTI_GPU", "ddp_multinode": "MULTI_GPU",
    "cpu_2proc": "MULTI_GPU", "fsdp2": "FSDP", "deepspeed_zero2": "DEEPSPEED",
}  # fmt: skip
HARDWARE = {
    "compute_environment", "distributed_type", "num_machines", "num_processes", "gpu_ids", "use_cpu", "mixed_precision",
    "main_process_port", "main_process_ip", "machine_rank", "same_network", "enable_cpu_affinity", "fsdp_config",
    "deepspeed_config",
}  # fmt: skip


def test_all_are_here():
    assert {file.stem for file in FOLDER.iterdir()} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_configuration(name):
    file = FOLDER / f"{name}.yaml"
    text = file.read_text()
    assert len(text.splitlines()) <= 15 and max(map(len, text.splitlines())) <= 120
    assert text.startswith("#") and f"--config_file accelerate_configs/{name}.yaml" in text
    loaded, plain = load_config_from_file(str(file)), yaml.safe_load(text)
    assert loaded.distributed_type == KINDS[name] and set(plain) <= HARDWARE
    assert loaded.num_processes == {"single": 1, "ddp": 8}.get(name, 2)
    if name in ("fsdp2", "deepspeed_zero2"):
        assert "EXPERIMENTAL" in text
    assert (loaded.use_cpu, loaded.num_machines) == (name == "cpu_2proc", 1 + (name == "ddp_multinode"))
