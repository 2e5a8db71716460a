"""The device's own kernels, where PyTorch's and vLLM's for the CPU leave it waiting."""
