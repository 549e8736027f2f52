"""The only code that imports NVIDIA FLARE: thin adapters between it and the rest of the package."""
