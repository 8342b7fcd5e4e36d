"""Options that do nothing beside the others are refused, so that nobody believes they do."""

import pytest

from accel_geo.models import MODELS, model_class

UNET = {"backbone": "resnet18"}
IDLE = [
    ("SuperResolution", {"dropout": 0.5}, "architecture='sr3'"),
    ("SuperResolution", {"n_timestep_inference": 5}, "architecture='sr3'"),
    ("SuperResolution", {**UNET, "sampling_type": "ddpm"}, "architecture='sr3'"),
    ("SuperResolution", {**UNET, "attn_res": 8}, "architecture='sr3'"),
    ("SuperResolution", {**UNET, "res_blocks": 3}, "architecture='edsr' or 'sr3'"),
    ("SuperResolution", {"perceptual_factor": 0.5}, "perceptual_weights"),
    ("SuperResolution", {"architecture": "sr3", "schedule": "cosine", "linear_end": 0.1}, "schedule='linear'"),
    ("PSPNetClassifier", {"use_unet": False, "unet_aux_loss": True}, "use_unet=True"),
    ("DeepLab", {"keep_dilation": False, "output_stride": 8}, "keep_dilation=True"),
    *((row, {"gamma": 3.0}, "focal_loss=True") for row in MODELS if model_class(row).task == "semantic"),
    *(
        (row, {"dice_loss_average": "macro"}, "dice_loss_fraction")
        for row in MODELS
        if model_class(row).task == "semantic"
    ),
]


@pytest.mark.parametrize("row, arguments, needed", IDLE)
def test_options_without_effect(networks, row, arguments, needed):
    name, value = [*arguments.items()][-1]
    with pytest.raises(ValueError, match=f"{name}=.*{value}.* has no effect") as caught:
        networks.build(row, **arguments)
    assert needed in str(caught.value)


def test_defaults_may_be_written_out(networks):
    model = networks.build("SuperResolution", attn_res=16, dropout=0.0, sampling_type="ddim", perceptual_factor=0.1)
    assert model.architecture == "edsr"
    assert networks.build("UnetClassifier", gamma=2.0, dice_loss_average="micro").loss.fraction == 0
