"""FedAD in plain PyTorch: two sites, no FLARE, no configuration file.

    python examples/fedad_in_60_lines.py    # a minute or two; writes extractor.safetensors, 45 MB

Two pictures that scikit-image ships stand for two hospitals. Every line below is the code that a federation runs; what
FLARE adds is the way between the computers.
"""

from __future__ import annotations

import numpy as np
from skimage import data

from fedad_components.aggregation import StreamingMean
from fedad_components.atsa import ATSA, instability
from fedad_components.config import FedADConfig
from fedad_components.fedsd.state import initial_state, save_extractor, trainable_names
from fedad_components.fedsd.trainer import LocalTrainer

# 1. Every default is in FedADConfig; name only what is to differ.
config = FedADConfig.parse(
    {
        "model": {"image_size": 96},
        "training": {"epochs": 1, "batch_size": 16},
        "federation": {"rounds": 3},
    }
)


# 2. Each site holds its own images, uint8 (n, S, S, 3), and a trainer. The head stays inside it.
def tiles(picture: np.ndarray, count: int = 32, side: int = 110) -> np.ndarray:
    """``(count, side, side, 3)``, cut at random places."""
    corners = np.random.default_rng(0).integers(0, np.array(picture.shape[:2]) - side, (count, 2))
    return np.stack([picture[row : row + side, column : column + side] for row, column in corners])


trainers = {
    "pathology": LocalTrainer(config, tiles(data.immunohistochemistry()), "pathology"),
    "ophthalmology": LocalTrainer(config, tiles(data.retina()[200:1200, 200:1200]), "ophthalmology"),
}

# 3. The server: theta, lambda_t, and a mean in each round.
theta, schedule = initial_state(config), ATSA(config.atsa)
for number in range(config.federation.rounds):
    mean = StreamingMean()
    for site, trainer in trainers.items():
        result = trainer.train_round(theta, schedule.lambda_t, number)
        assert result.n_samples is not None
        mean.add(result.update, weight=result.n_samples)
        print(
            f"round {number}, {site}: " + ", ".join(f"{name} {value:.3f}" for name, value in result.losses[-1].items())
        )
    new = mean.result()
    delta = instability(new, theta, trainable_names(config))
    theta = new
    print(f"round {number}: instability {delta:.4f}, next lambda_t {schedule.update(delta):.4f}")

# 4. The result loads strictly into torchvision's resnet18 with fc = Identity.
save_extractor("extractor.safetensors", theta, config)
