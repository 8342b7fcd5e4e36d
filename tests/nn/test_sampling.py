import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler

from accel_geo.nn.sampling import KeyedSampler


def sampled(labels, key=7, size=16, ignore=False, site="anchors"):
    sampler = KeyedSampler(size, 0.5, site)
    sampler.begin([{"key": key, "ignore": ignore}])
    positives, negatives = sampler([labels])
    return positives[0], negatives[0]


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), max_size=60), st.integers(1, 40))
def test_as_many_as_torchvision_takes(labels, size):
    labels = torch.tensor(labels)
    positives, negatives = sampled(labels, size=size)
    theirs = BalancedPositiveNegativeSampler(size, 0.5)([labels])
    assert positives.sum() == theirs[0][0].sum() and negatives.sum() == theirs[1][0].sum()
    assert (labels[positives] >= 1).all() and (labels[negatives] == 0).all()


def test_a_function_of_the_key():
    labels = (torch.rand(500) < 0.2).float()
    state = torch.get_rng_state()
    first = torch.stack(sampled(labels))
    assert torch.equal(first, torch.stack(sampled(labels)))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, torch.stack(sampled(labels, key=8)))
    assert not torch.equal(first, torch.stack(sampled(labels, site="regions")))


def test_images_do_not_meet():
    labels = [(torch.rand(n) < 0.2).float() for n in (50, 400, 90)]
    sampler = KeyedSampler(16, 0.5, "anchors")
    targets = [{"key": 5, "ignore": False}, {"key": 6, "ignore": True}, {"key": 7, "ignore": False}]
    sampler.begin(targets)
    positives, negatives = sampler(labels)
    assert not positives[1].any() and not negatives[1].any()
    assert torch.equal(positives[2], sampled(labels[2])[0]) and torch.equal(negatives[2], sampled(labels[2])[1])


def test_one_candidate_more_leaves_the_others():
    labels = torch.zeros(300)
    labels[::7] = 1
    before = sampled(labels)[1]
    labels[before.nonzero()[3]] = -1
    after = sampled(labels)[1]
    assert (before & ~after).sum() == 1 and (after & ~before).sum() == 1


def test_targets_must_be_those_of_the_batch():
    sampler = KeyedSampler(16, 0.5, "anchors")
    sampler.begin([{"key": 1, "ignore": False}])
    with pytest.raises(ValueError):
        sampler([torch.zeros(3), torch.zeros(3)])
