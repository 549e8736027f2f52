"""FedAD: federated pre-training of medical-image encoders on NVIDIA FLARE."""

__version__ = "0.1.0"
