"""FedSD, the paper's client, in plain PyTorch: may import only torch, torchvision, numpy (and safetensors where a file is
read or written)."""
