"""Dr. GRPO: no division by the deviation or the length. ``test_methods_estimator`` compares it with its formula."""

from dataclasses import replace

from tiny_policy import GRPO_BY_HAND, TOTAL_N, centred

BY_HAND = {"dr_grpo": replace(GRPO_BY_HAND, advantage_N=centred(TOTAL_N), divided="dr_grpo")}
