"""What ``dppo verify`` checks: that pruning leaves the expected gradient alone, on a policy that stands still."""
