"""FedSD, the paper's client, in plain PyTorch. May import only torch, torchvision and numpy, and safetensors where a
file is read or written."""
