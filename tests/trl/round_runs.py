"""Short runs that roll out in rounds, and TRL's runs on the groups they retain."""

import trl_gradients
from resumed_runs import ROUNDS, trainer
from tiny_runs import first_half_reward, problems
from trl_gradients import trl_run


def retained(trainer):
    """Dataset rows of the groups that the last step was made of."""
    prompts = trainer.in_use.plan.prompts
    return prompts.row_Q[prompts.weight_Q > 0].tolist()


def stock(path, tmp_path, monkeypatch, rows, **options):
    """TRL itself, on these rows of the same dataset and nothing else."""
    monkeypatch.setattr(trl_gradients, "problems", lambda _: problems(10).select(rows))
    reward = options.pop("reward", first_half_reward)
    steps, _ = trl_run(path, tmp_path, prompts=len(rows), reward=reward, shuffle_dataset=False, **options)
    monkeypatch.undo()
    return steps


def rounds_run(path, folder, seen, **options):
    """A run whose prompts decide which groups have zero variance."""
    return trainer(path, folder, seen=seen, **ROUNDS | options)
