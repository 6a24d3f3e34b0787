"""verl's synchronous trainer with both levels of pruning. Needs verl 0.9 and an environment of its own: docs/verl.md.

``trainer.v1.trainer_mode=dynamic_pruning`` on verl's command line is all that a run changes.
"""
