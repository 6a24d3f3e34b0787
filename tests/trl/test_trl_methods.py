"""Methods of other papers in TRL training: refused unless their bias is accepted, and exactly what they say."""

from types import SimpleNamespace

import torch
from tiny_runs import GENERATIONS, length_reward, logged, problems, relative_difference, scripted
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl_gradients import dppo_run, trl_run

from dppo.methods import METHODS


def run(name, path, tmp_path, **options):
    given = {"method": name} | ({} if METHODS[name].fixes else {"loss_type": "grpo"})
    return dppo_run(path, tmp_path, **given, accept_bias=True, **options)


def pods_by_hand(prompts, completions, **_):
    """The lowest and the highest reward of each group of 4, and None, which TRL leaves out of its statistics."""
    reward = length_reward(prompts, completions)
    found = []
    for first in range(0, len(reward), GENERATIONS):
        group = reward[first : first + GENERATIONS]
        low = min(range(GENERATIONS), key=lambda i: (group[i], i))
        high = max((i for i in range(GENERATIONS) if i != low), key=lambda i: (group[i], -i))
        found += [group[i] if i in (low, high) else None for i in range(GENERATIONS)]
    return found


def test_pods_is_stock_trl_on_the_groups_that_are_left(tiny_path, tmp_path):
    mine, trainer = run("pods", tiny_path, tmp_path, completion_prune_rate=0.5)
    options = dict(loss_type="grpo", reward=pods_by_hand)
    stock, _ = trl_run(tiny_path, tmp_path, **options)
    twice = {name: 2 * gradient for name, gradient in stock[0].items()}  # its mean is over all 4, ours over the 2 kept
    assert relative_difference(mine[0], twice) < 1e-4
    assert set(trainer.in_use.batch.weight_UB.unique().tolist()) <= {0.0, 2.0}
    whole, _ = run("cppo", tiny_path, tmp_path, completion_prune_rate=0.5)
    assert relative_difference(whole[0], twice) > 1e-2


def test_pruning_stops_for_the_last_part_of_a_run(tiny_path, tmp_path):
    options = dict(max_steps=4, prompt_prune_rate=0.5, prune_schedule="stop", prune_until=0.5)
    _, trainer = run("dppo", tiny_path, tmp_path, completion_prune_rate=0.5, **options)
    assert logged(trainer, "prune/prompts_kept_share") == [1.0, 0.5, 1.0, 1.0]
    shares = zip(logged(trainer, "prune/kept_share"), logged(trainer, "prune/live_share"), strict=True)
    assert [kept < live for kept, live in shares] == [True, True, False, False]


def divergence_by_hand(path):
    """Gradients of the paper's loss on the scripted completions, with what the rollout says as the behaviour policy."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    prompts = [prompt for prompt in problems(8)["prompt"] for _ in range(GENERATIONS)]
    made = scripted(prompts, SimpleNamespace(processing_class=tokenizer))
    texts = tokenizer.batch_decode(made["completion_ids"], skip_special_tokens=True)
    reward_PG = torch.tensor(length_reward(prompts, texts)).view(8, GENERATIONS)
    centred = reward_PG - reward_PG.mean(1, keepdim=True)
    advantage_N = (centred / (reward_PG.std(1, keepdim=True) + 1e-4)).flatten().tolist()
    loss, left_out = torch.zeros(()), 0
    for prompt, ids, sampled, advantage in zip(
        made["prompt_ids"], made["completion_ids"], made["logprobs"], advantage_N, strict=True
    ):
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        logp, mu = logits.log_softmax(1)[range(len(ids)), ids], torch.tensor(sampled).exp()
        pi = logp.detach().exp()
        kept = (pi - mu <= 0.15) if advantage > 0 else (mu - pi <= 0.15)
        loss = loss - (kept * (pi / mu).clamp(max=20) * advantage * logp).sum()
        left_out += int((~kept).sum())
    (loss / sum(map(len, made["completion_ids"]))).backward()
    assert left_out > 20, "the trust region matters"
    return {name: p.grad for name, p in model.named_parameters()}


def test_a_trust_region_by_divergence_is_around_the_policy_that_sampled(tiny_path, tmp_path):
    def without_log_probs(prompts, trainer):
        return scripted(prompts, trainer) | {"logprobs": None}

    wanted = divergence_by_hand(tiny_path)
    mine, trainer = run("divergence_ppo_tv", tiny_path, tmp_path)
    assert relative_difference(mine[0], wanted) < 1e-4 and not trainer.biases
    told_nothing, _ = run("divergence_ppo_tv", tiny_path, tmp_path, rollout=without_log_probs)
    assert relative_difference(told_nothing[0], wanted) > 0.1, "the wrong twin takes the old policy for the sampler"
    on_policy, _ = run("dapo_loss", tiny_path, tmp_path, rollout=without_log_probs)
    assert relative_difference(told_nothing[0], on_policy[0]) < 1e-5, "at ratio 1 no mask and no clip bites"
