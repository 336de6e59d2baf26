"""PyTorch's side of the device: registration, the device module, autocast, `torch.compile`."""
