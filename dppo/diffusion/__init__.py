"""Group preferences for diffusion models: DGPO with pruning of samples. The loop needs diffusers, the loss does not."""

from dppo.diffusion.preference import GroupPreference, SamplePlan, plan_samples

__all__ = ["GroupPreference", "SamplePlan", "plan_samples"]
