"""DeepSeek-V3's shape: its published parallelism beside the free plan, at the same costs."""
