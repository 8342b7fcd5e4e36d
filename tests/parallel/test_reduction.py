"""Sums, gathers and broadcasts over processes, and the loss terms that rest on them."""

import pytest
import torch

VALUES = [0.1, 2.5, -3.75, 4.0, 1e-9]
COUNTS = pytest.mark.parametrize("processes", [1, 2, pytest.param(3, marks=pytest.mark.slow)])


@COUNTS
def test_sums_gathers_and_broadcasts(worlds, processes):
    said = worlds[processes].run("reduction", values=VALUES)
    assert all(each["total"] == pytest.approx(sum(VALUES), rel=1e-15) for each in said)
    # d(total^2)/dx = 2 total, whichever process holds x
    gradients = [g for each in said for g in each["gradient"]]
    assert gradients == pytest.approx([2 * sum(VALUES)] * len(VALUES), rel=1e-14)
    for each in said:
        assert [part["rank"] for part in each["gathered"]] == list(range(processes))
        assert [v for part in each["gathered"] for v in part["values"]] == VALUES, "exact, to the bit"
        assert each["sent"] == [0, 1 / 3]
        assert each["tensors"] == {
            "a": ["torch.int64", [3], [0, 1, 2]],
            "b": ["torch.float64", [2, 2], [[0.1, 0.1], [0.1, 0.1]]],
            "none": ["torch.float32", [0], []],
        }


def test_a_process_alone_needs_no_group():
    from accel_geo.parallel import reduction as r

    x = torch.ones(3, requires_grad=True)
    assert r.world_size() == 1 and r.rank() == 0 and r.is_main() and r.global_sum(x) is x
    assert not r.sum_over_processes(x).requires_grad
    value = {"a": object()}
    assert r.gather_json(value) == [value] and r.broadcast_json(value) is value and r.gather_bytes(b"a") == [b"a"]


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_folders_made_and_locked_by_all_processes_together(worlds, tmp_path, processes):
    said = worlds[processes].run("saves", folder=str(tmp_path), times=20)
    assert said == [[str(tmp_path / f"deep/er/{n}") for n in range(20)]] * processes
    assert all((tmp_path / f"deep/er/{n}/checkpoints").is_dir() for n in range(20))
