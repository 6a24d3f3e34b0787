"""Weights that are wrong and say nothing of it: what checks have to find out by themselves."""

from dataclasses import replace

from dppo.pruning.designs import INVERSE_PROBABILITY

RIGHT = INVERSE_PROBABILITY.compute
DOUBLED = replace(INVERSE_PROBABILITY, compute=lambda keep_N, prob_N: 2 * RIGHT(keep_N, prob_N))
ROUNDED = replace(INVERSE_PROBABILITY, compute=lambda keep_N, prob_N: RIGHT(keep_N, prob_N).round())
FORGOTTEN = replace(INVERSE_PROBABILITY, compute=lambda keep_N, prob_N: keep_N.double())
