"""Memory: address spaces, the DMA port, keys, regions and windows, and the checks that guard them."""
