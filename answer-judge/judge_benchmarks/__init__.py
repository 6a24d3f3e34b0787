"""What the judge was measured with. From its folder: ``python -m judge_benchmarks.verifier --quick``."""
