"""Transductive adaptation: what the target's unlabelled images as a whole tell about its domain.

Both figures use the test images of the target before they are classified, which a deployment that sees one image at a
time cannot. They are reported beside the plain figure, never instead of it. Imports torch; no FLARE.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from sklearn.preprocessing import StandardScaler
from torch import nn

from fedad_components.evaluation.features import whole_view
from fedad_components.evaluation.images import LabelledFeatures, shuffled_batches
from fedad_components.fedsd.model import estimate_statistics
from fedad_components.fedsd.seeds import stream

STATISTICS_BATCH = 64


def standardised(site: LabelledFeatures) -> LabelledFeatures:
    """Features ``(n, F)`` with the site's own mean 0 and deviation 1; one that is constant there becomes 0."""
    return replace(site, x=StandardScaler().fit_transform(site.x))


def has_batch_norm(extractor: nn.Module) -> bool:
    """Whether there are statistics that AdaBN could estimate again."""
    return any(isinstance(layer, nn.BatchNorm2d) for layer in extractor.modules())


def lacks_statistics(extractor: nn.Module) -> bool:
    """Whether BatchNorm's statistics are those of an untrained network, or of weights that travelled without them."""
    buffers = dict(extractor.named_buffers())
    means = [tensor for name, tensor in buffers.items() if name.endswith("running_mean")]
    variances = [tensor for name, tensor in buffers.items() if name.endswith("running_var")]
    return bool(means) and not any(mean.any() for mean in means) and all((var == 1).all() for var in variances)


def adabn(extractor: nn.Module, images: npt.NDArray[np.uint8], image_size: int, seed: int) -> nn.Module:
    """A copy whose BatchNorm statistics are those of the images ``(n, S, S, 3)`` of one site (AdaBN, Li et al. 2017).

    The average over batches in random order: images lie on disk by class, and batches of one class would give other
    statistics. The extractor itself is left as it is.
    """
    adapted = copy.deepcopy(extractor)
    device = next(adapted.parameters()).device
    batches = shuffled_batches(len(images), STATISTICS_BATCH, stream(seed, "AdaBN"))
    estimate_statistics(adapted, (whole_view(images[np.sort(rows)], image_size, device) for rows in batches))
    return adapted
