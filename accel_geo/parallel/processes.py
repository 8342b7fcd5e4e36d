"""Facts about processes of this machine, without torch."""

import os
from collections.abc import Mapping
from pathlib import Path

SUPERVISOR = "ACCEL_GEO_SUPERVISOR"  # the process that started this one by `--devices` or `fit(devices=...)`


def process_state(pid: int) -> str | None:
    """Return the state letter of a process of this machine (T: stopped), None where it is gone or cannot be told."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def launcher(env: Mapping[str, str] = os.environ) -> int | None:
    """Return the process whose end leaves this one an orphan: our supervisor or torch's agent; None where unknown.

    Torch's agent starts its workers in sessions of their own, so that they outlive its sudden end.
    """
    if SUPERVISOR in env:
        return int(env[SUPERVISOR])
    return os.getppid() if "TORCHELASTIC_RUN_ID" in env else None
