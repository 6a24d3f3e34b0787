"""The proof behind ``dppo verify``: pruning leaves the expected gradient unchanged, on a policy that stands still."""
