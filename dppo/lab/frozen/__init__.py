"""Methods on rollouts that stand still: bias and variance of their gradients, without training."""
