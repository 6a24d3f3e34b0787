"""verl's trainers with both levels of pruning. They need verl 0.9 and an environment of their own: docs/verl.md.

``trainer.v1.trainer_mode=dynamic_pruning`` on verl's command line is all that a run changes. In the place of verl's
asynchronous trainers are ``dynamic_pruning_colocate_async`` and ``dynamic_pruning_separate_async``.
"""
