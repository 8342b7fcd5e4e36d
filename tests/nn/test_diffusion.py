import math

import pytest
import torch
from torch import nn

from accel_geo.nn.diffusion import ConditionalUnet, keyed_dropout, noise_schedule, sample, training_noise
from accel_geo.parallel import keys


def generators(count=2, name="test"):
    return [keys.generator(name, i) for i in range(count)]


def limits(low=-50.0, high=50.0):
    return torch.tensor(low), torch.tensor(high)


def test_schedules_are_the_papers():
    linear = noise_schedule("linear", 1000, 1e-4, 0.02)
    share = 1.0
    for step in range(1000):
        share *= 1 - (1e-4 + (0.02 - 1e-4) * step / 999)
        assert linear[step + 1].item() == pytest.approx(share, rel=1e-10)
    cosine = noise_schedule("cosine", 50, 1e-4, 0.02)
    f = [math.cos((t / 50 + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(51)]
    assert cosine[:-1].tolist() == pytest.approx([x / f[0] for x in f[:-1]], rel=1e-10)
    assert cosine[-1].item() == pytest.approx(cosine[-2].item() * 1e-3)  # at most 0.999 is added
    for shares in (linear, cosine):
        assert shares[0] == 1 and (shares.diff() < 0).all() and shares[-1] > 0


@pytest.mark.parametrize("arguments", [("exp", 10, 0.1, 0.2), ("linear", 0, 0.1, 0.2), ("linear", 5, 0.3, 0.2)])
def test_impossible_schedules_are_refused(arguments):
    with pytest.raises(ValueError, match="schedule|n_timestep"):
        noise_schedule(*arguments)


def test_training_noise_is_a_function_of_the_key():
    shares = noise_schedule("linear", 100, 1e-4, 0.05)
    drawn = [training_noise(shares, (2, 5, 6), key) for key in range(300)]
    level, noise = training_noise(shares, (2, 5, 6), 7)
    assert level == drawn[7][0] and torch.equal(noise, drawn[7][1]) and noise.shape == (2, 5, 6)
    levels = torch.tensor([level for level, _ in drawn])
    assert shares[-1].sqrt() <= levels.min() < 0.35 and 0.97 < levels.max() <= 1 and len(levels.unique()) == 300
    everything = torch.stack([noise for _, noise in drawn])
    assert everything.mean().abs() < 0.03 and everything.std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("steps", [1, 7, 40, 1000])
def test_the_true_noise_leads_to_the_image(eta, steps):
    shares = noise_schedule("linear", 40, 1e-4, 0.2)
    image = torch.randn(2, 3, 8, 9, dtype=torch.float64, generator=keys.generator("image"))
    called = []

    def noise_of(condition, noisy, levels):
        called.append(levels[0].item())
        level = levels.view(-1, 1, 1, 1)
        return (noisy - level * image) / (1 - level**2).sqrt()

    made = sample(
        noise_of, torch.zeros_like(image), shares, steps=steps, eta=eta, limits=limits(), generators=generators()
    )
    assert torch.allclose(made, image, atol=1e-10)
    assert len(called) == min(steps, 40) and called == sorted(called)
    assert called[0] == pytest.approx(shares[-1].sqrt().item())


def test_ddpm_draws_from_the_papers_posterior():
    """q(x[t-1] | x[t], x[0]) of Ho et al. 2020, equations 6 and 7."""
    shares = noise_schedule("linear", 4, 0.1, 0.4)
    condition = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    guess, seen = 0.3, []

    def noise_of(condition, noisy, levels):
        seen.append(noisy.clone())
        return torch.full_like(noisy, guess)

    made = sample(noise_of, condition, shares, steps=4, eta=1.0, limits=limits(), generators=generators(1))
    draw = generators(1)[0]
    drawn = [torch.randn(1, 4, 4, generator=draw).double() for _ in range(4)]
    x = (1 - shares[4]).sqrt() * drawn[0]
    for t in (4, 3, 2, 1):
        assert torch.allclose(seen[4 - t][0], x, atol=1e-12)
        beta = 1 - shares[t] / shares[t - 1]
        image = (x - (1 - shares[t]).sqrt() * guess) / shares[t].sqrt()
        mean = shares[t - 1].sqrt() * beta / (1 - shares[t]) * image
        mean = mean + (1 - beta).sqrt() * (1 - shares[t - 1]) / (1 - shares[t]) * x
        x = mean
        if t > 1:
            x = x + ((1 - shares[t - 1]) / (1 - shares[t]) * beta).sqrt() * drawn[5 - t]
    assert torch.allclose(made[0], x, atol=1e-12)


def test_ddim_takes_the_papers_step():
    """Song et al. 2021, equation 12 with sigma = 0."""
    shares = noise_schedule("linear", 2, 0.1, 0.4)
    condition = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    made = sample(
        lambda c, noisy, levels: 0.5 * noisy,
        condition,
        shares,
        steps=2,
        eta=0.0,
        limits=limits(),
        generators=generators(1),
    )
    x = (1 - shares[2]).sqrt() * torch.randn(1, 4, 4, generator=generators(1)[0]).double()
    for t in (2, 1):
        noise = 0.5 * x
        image = (x - (1 - shares[t]).sqrt() * noise) / shares[t].sqrt()
        x = shares[t - 1].sqrt() * image + (1 - shares[t - 1]).sqrt() * noise
    assert torch.allclose(made[0], x, atol=1e-12)


def test_values_stay_within_the_limits():
    shares = noise_schedule("linear", 20, 1e-4, 0.3)
    low, high = torch.tensor([-1.0, -2.0]).view(-1, 1, 1), torch.tensor([1.0, 0.5]).view(-1, 1, 1)
    made = sample(
        lambda c, noisy, levels: -3 * noisy,
        torch.zeros(2, 2, 8, 8),
        shares,
        steps=5,
        eta=1.0,
        limits=(low, high),
        generators=generators(),
    )
    assert (made >= low).all() and (made <= high).all() and (made == high).any()


def test_an_image_does_not_depend_on_its_company():
    shares = noise_schedule("linear", 20, 1e-4, 0.3)
    condition = torch.rand(3, 2, 8, 8, dtype=torch.float64, generator=keys.generator("c"))
    options = {"steps": 5, "eta": 1.0, "limits": limits()}

    def noise_of(condition, noisy, levels):
        return noisy - condition

    together = sample(noise_of, condition, shares, generators=generators(3), **options)
    alone = sample(noise_of, condition[2:], shares, generators=generators(3)[2:], **options)
    assert torch.allclose(together[2], alone[0], atol=1e-12)
    assert not torch.allclose(together[0] - condition[0], together[1] - condition[1])


@pytest.mark.parametrize("size", [(16, 16), (13, 22), (1, 5)])
def test_unet_of_any_size(size):
    torch.manual_seed(0)
    network = ConditionalUnet(4, 12, (1, 2, 3), attention={1}, blocks=2, groups=8)
    nn.init.normal_(network.last[-1].weight)
    condition, noisy = torch.rand(2, 4, *size), torch.rand(2, 4, *size)
    made = network(condition, noisy, torch.tensor([0.2, 0.9]))
    assert made.shape == noisy.shape
    made.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    with torch.no_grad():
        changes = [
            (condition + 1, noisy, torch.tensor([0.2, 0.9])),
            (condition, noisy + 1, torch.tensor([0.2, 0.9])),
            (condition, noisy, torch.tensor([0.3, 0.8])),
        ]
        assert all((network(*change) - made).abs().max() > 1e-4 for change in changes)


def test_attention_where_it_was_asked_for():
    def places(network):
        return [name for name, module in network.named_modules() if type(module).__name__ == "_Attention"]

    plain = places(ConditionalUnet(3, 8, (1, 2, 2), blocks=1))
    more = places(ConditionalUnet(3, 8, (1, 2, 2), attention={2}, blocks=1))
    assert plain == ["middle.0.attention"]
    assert sorted(set(more) - set(plain)) == ["down.4.attention", "up.0.attention", "up.1.attention"]


def test_dropout_is_keyed_and_off_in_evaluation():
    x = torch.ones(2, 4, 50, 50)
    first, second = (keyed_dropout(x, 0.3, generators()) for _ in range(2))
    assert torch.equal(first, second) and not torch.equal(first[0], first[1])
    assert (first == 0).float().mean() == pytest.approx(0.3, abs=0.02) and first.mean() == pytest.approx(1, abs=0.03)
    assert torch.equal(keyed_dropout(x[1:], 0.3, generators()[1:])[0], first[1])
    network = ConditionalUnet(2, 8, (1, 2), blocks=1, dropout=0.5)
    nn.init.normal_(network.last[-1].weight)
    x, levels = torch.rand(2, 2, 8, 8), torch.tensor([0.5, 0.5])
    with torch.no_grad():
        trained = [network(x, x, levels, generators()) for _ in range(2)]
        evaluated = network.eval()(x, x, levels, generators())
        assert torch.equal(*trained) and torch.equal(evaluated, network(x, x, levels))
    assert not torch.allclose(trained[0], evaluated)
