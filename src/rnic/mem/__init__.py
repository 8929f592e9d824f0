"""Memory: address spaces, the DMA port, keys, regions, windows, and access checks."""
