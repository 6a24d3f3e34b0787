"""A*-PO in TRL training: with nothing pruned it is TRL's own A2POTrainer; what it needs, it says."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from refusals import refused
from tiny_runs import CONFIG, length_reward, problems, relative_difference, scripted
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.a2po import A2POConfig, A2POTrainer
from trl_gradients import gradients
from value_files import write_values

from dppo.errors import ConfigError, DataError, FileError
from dppo.methods import METHODS
from dppo.pruning.prior import read_values
from dppo.rewards import identities
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.grpo.prompts import prompt_source

BETA = 0.05
"""Larger than the paper's, so that both terms of the residual matter once the policy has moved."""


def moved(path, folder):
    """The model of ``path`` a little away from where it was, saved: a policy that is not its reference."""
    model = AutoModelForCausalLM.from_pretrained(path)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path).save_pretrained(folder)
    return str(folder)


def trls_loss(policy, reference, tmp_path, values):
    """Loss and gradients of TRL's ``compute_loss`` on the scripted completions, one of each prompt."""
    tokenizer, dataset = AutoTokenizer.from_pretrained(policy), problems(8)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    args = A2POConfig(output_dir=str(tmp_path / "a2po"), beta2=BETA, report_to=[], use_cpu=True, bf16=False)
    trainer = A2POTrainer(model, length_reward, args=args, train_dataset=dataset, processing_class=tokenizer)
    made = scripted(dataset["prompt"], SimpleNamespace(processing_class=tokenizer))
    pairs = list(zip(made["prompt_ids"], made["completion_ids"], strict=True))
    width, longest = max(len(p) for p, _ in pairs), max(len(c) for _, c in pairs)
    ids = torch.tensor([[0] * (width - len(p)) + p + c + [0] * (longest - len(c)) for p, c in pairs])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p + c) + [0] * (longest - len(c)) for p, c in pairs])
    before = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32)
    with torch.no_grad():
        ref_logps = trainer._get_sequence_logps(before, ids, mask, longest)
    texts = tokenizer.batch_decode([c for _, c in pairs], skip_special_tokens=True)
    inputs = {"input_ids": ids, "attention_mask": mask, "logits_to_keep": longest, "ref_logps": ref_logps}
    inputs |= {"rewards": torch.tensor(length_reward(None, texts)), "v_star": values.float()}
    loss = trainer.compute_loss(model, inputs)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.item(), found, inputs["rewards"] - inputs["v_star"]


@pytest.mark.parametrize("away", [False, True], ids=["at the reference", "away from it"])
def test_with_nothing_pruned_loss_and_gradient_are_those_of_trls_a2po(away, tiny_path, tmp_path):
    policy = moved(tiny_path, tmp_path / "moved") if away else tiny_path
    file = write_values(tmp_path / "values.jsonl", problems(8))
    values = read_values(file, identities(problems(8)["prompt"])).value_P
    loss, wanted, advantage_B = trls_loss(policy, tiny_path, tmp_path, values)

    class Ours(DPPOTrainer):
        """TRL makes the reference of what the policy is when training starts; here it is the model before it moved."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.ref_model.load_state_dict(AutoModelForCausalLM.from_pretrained(tiny_path).state_dict())

    options = dict(method="a_star_po", prompt_values=file, beta=BETA, num_generations=1, shuffle_dataset=False)
    options |= dict(per_device_train_batch_size=8)
    (mine,), trainer = gradients(Ours, DPPOConfig, policy, tmp_path, **options)
    assert trainer.method.beta == BETA and len(trainer.in_use.batch.weight_UB[0]) == 8
    scaled = {name: 2 * BETA * gradient for name, gradient in mine.items()}
    assert relative_difference(scaled, wanted) < 1e-5
    assert relative_difference(mine, wanted) > 0.5, "the contract can fail"
    ours = trainer.state.log_history[0]["loss"]
    assert 2 * BETA * ours + advantage_B.square().mean().item() == pytest.approx(loss, rel=1e-5)


def made(file, dataset):
    args = DPPOConfig(**CONFIG, method="a_star_po", prompt_values=str(file), per_device_train_batch_size=8)
    return prompt_source(dataset, args, METHODS["a_star_po"], weight_F=torch.ones(1), environment=False)


def test_a_file_that_is_missing_lacks_a_prompt_or_holds_no_value_is_an_error_of_one_line(tmp_path):
    file = tmp_path / "values.jsonl"
    with refused(FileError, "values.jsonl", "python examples/prompt_values.py CONFIG.yaml"):
        made(file, problems(8))
    write_values(file, problems(8))
    assert len(made(file, problems(6)).values) == 6, "values of other prompts are left aside"
    with refused(DataError, "2 of 10", "row 8") as error:
        made(file, problems(10))
    assert "\n" not in str(error.value) and str(error.value).endswith("python examples/prompt_values.py CONFIG.yaml")
    with refused(ConfigError, "streaming"):
        made(file, problems(8).to_iterable_dataset())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for wrong in ({"value": math.nan}, {"value": None}, {"rewards": []}, {"rewards": ["1"]}):
        changed = [line | (wrong if place == 2 else {}) for place, line in enumerate(lines)]
        file.write_text("".join(json.dumps(line) + "\n" for line in changed))
        with refused(DataError, "values.jsonl, line 3", "rewards="):
            made(file, problems(8))
