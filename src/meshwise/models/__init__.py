"""Models in Flax, with the sizes of the papers, as workloads for planning and for real runs."""
