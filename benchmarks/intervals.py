"""How often the intervals of an evaluation hold the true mean, and how wide they are.

python benchmarks/intervals.py [--repeats N] [--output FILE.json]

Problems are drawn from a population whose shares of right samples follow a Beta distribution, then samples are drawn of
each. ``covered`` is the share of repeats whose 95% interval holds the population's mean; ``covered_over_samples`` is
that of the usual interval that takes all samples for independent, ``1.96 * sqrt(p (1 - p) / (P n))``.
"""

import argparse
from typing import Any

from results_file import write

from answer_judge.statistics import problem_interval
from dppo.rng import Purpose, generator

SEED = 0
PROBLEMS = (30, 40, 272, 500, 1319)
POPULATIONS = ((0.3, 2.7), (0.5, 0.5), (1.0, 1.0), (0.1, 9.9))
"""Beta parameters: most problems never solved; most always or never; spread out; nearly none solved."""
SAMPLES = (1, 4, 32)
RESAMPLES = 1000
"""Fewer than an evaluation takes: the ends are noisier, which lowers the coverage by a little."""


def measure(problems: int, population: tuple[float, float], samples: int, repeats: int, key: int) -> dict[str, Any]:
    """One row of the table."""
    rng, (a, b) = generator(SEED, Purpose.CHECK, key), population
    mean = a / (a + b)
    covered, plain, width = 0, 0, 0.0
    for _ in range(repeats):
        share_P = rng.binomial(samples, rng.beta(a, b, problems)) / samples
        found = problem_interval(share_P, rng, resamples=RESAMPLES)
        covered += found.low <= mean <= found.high
        width += found.high - found.low
        plain += abs(found.value - mean) <= 1.96 * (found.value * (1 - found.value) / (problems * samples)) ** 0.5
    return {
        "problems": problems,
        "mean": round(mean, 3),
        "beta": list(population),
        "samples": samples,
        "covered": covered / repeats,
        "width": width / repeats,
        "covered_over_samples": plain / repeats,
        "repeats": repeats,
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--output", default="benchmarks/results/intervals.json")
    options = parser.parse_args()
    cases = [(p, population, n) for population in POPULATIONS for n in SAMPLES for p in PROBLEMS]
    rows = [measure(*case, options.repeats, key) for key, case in enumerate(cases)]
    print("problems  mean  beta        samples  covered  width  covered, all samples as if independent")
    for row in rows:
        beta = "({:g}, {:g})".format(*row["beta"])
        print(
            f"{row['problems']:8}  {row['mean']:.2f}  {beta:10}  {row['samples']:7}  {row['covered']:7.3f}  "
            f"{row['width']:.3f}  {row['covered_over_samples']:.3f}"
        )
    write(options.output, rows, [SEED])


if __name__ == "__main__":
    main()
