"""Stand in for clu, which needs TensorFlow: metrics are printed, and nothing else is done."""
