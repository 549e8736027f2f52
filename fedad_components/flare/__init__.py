"""The only code that imports NVIDIA FLARE: thin adapters between it and the rest of the package."""

from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

# Tensors ride safetensors on FLARE's wire in every process that loads one of our components; else FOBS refuses them.
fobs.register(TensorDecomposer)
