"""What tests of TRL ask of a trainer besides training it, by name; each is called with a ``Made`` of ``trl_tests``."""

from typing import Any
from unittest.mock import patch

import torch
from transformers import TrainingArguments

from benchmarks.swap import rows as material


def plain_arguments(made: Any) -> None:
    made.config_class = lambda **given: TrainingArguments(
        **{name: given[name] for name in ("output_dir", "report_to", "use_cpu")}
    )
    made.make()


def same_adapters(made: Any) -> None:
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        found.append([each.clone() for name, each in made.make().model.named_parameters() if "lora_A" in name])
    assert found[0] and all(torch.equal(*both) for both in zip(*found, strict=True))


def router_coefficient(made: Any) -> None:
    trainer, given = made.make(), made.case.config.get("router_aux_loss_coef")
    own = 0.001 if made.case.model == "qwen3_moe" else 0.0
    assert trainer.router_aux_loss_coef == (own if given is None else given)
    assert trainer.aux_loss_enabled == (made.case.model == "qwen3_moe")


def evaluate_unprepared(made: Any) -> None:
    found = made.make().evaluate(eval_dataset=made.held_out("text" if made.case.kind == "sft" else "pairs"))
    names = (
        ("eval_loss",) if made.given["eval_kind"] in ("dataset", "stream") else ("eval_data1_loss", "eval_data2_loss")
    )
    assert all(found[name] is not None for name in names)


def evaluate_after_training(made: Any) -> None:
    trainer = made.make()
    trainer.evaluate(eval_dataset=material.rows("pairs", count=3))
    trainer.train()
    trainer.evaluate(eval_dataset=material.rows("pairs", count=3))


def train_and_evaluate(made: Any) -> None:
    made.make().train()
    assert any(name.endswith("_loss") for name in made.trainer.evaluate())


def packed(made: Any) -> None:
    trainer = made.make()
    assert sum(map(len, trainer.train_dataset["seq_lengths"])) == material.ROWS
    assert all(sum(each) <= 64 for each in trainer.train_dataset["seq_lengths"])
    assert ("seq_lengths" in trainer.eval_dataset.column_names) == made.case.config.get("eval_packing", True)


def labels(made: Any) -> None:
    for row in made.make().train_dataset:
        assert len(row["labels"]) == len(row["input_ids"]) and any(each != -100 for each in row["labels"])
        assert all(a in (-100, b) for a, b in zip(row["labels"], row["input_ids"], strict=True))


def one_row_left(made: Any) -> None:
    assert len(made.make().train_dataset) == 1


def short_rows(made: Any) -> None:
    assert all(len(row["input_ids"]) <= 4 for row in made.make().train_dataset)


def predict(made: Any) -> None:
    trainer = made.make()
    assert trainer.predict(trainer.train_dataset).predictions.shape[-1] == trainer.model.config.vocab_size


def tags(made: Any) -> None:
    assert {made.case.kind, "trl"} <= set(made.make().model.model_tags)


def same_pad(made: Any) -> None:
    pad, model = made.make().processing_class.pad_token_id, made.trainer.model
    assert pad is not None and model.config.pad_token_id == pad == model.generation_config.pad_token_id


def same_end(made: Any) -> None:
    trainer, before = made.make(), made.given["ends"]
    end = trainer.processing_class.convert_tokens_to_ids("<|im_start|>")
    known = before if isinstance(before, list) else [] if before is None else [before]
    assert trainer.model.config.eos_token_id == end
    assert trainer.model.generation_config.eos_token_id == ([] if end in known else [end]) + known


def warns_of_none(made: Any) -> None:
    with patch("trl.trainer.grpo_trainer.logger.warning") as told:
        made.make().train()
    assert any("All reward functions returned None" in str(call) for call in told.call_args_list)


def examples_of_training_steps(made: Any) -> None:
    """Of the first two generations: each prompt once for every completion, in the dataset's order."""
    trainer, seen = made.make(), []
    step = trainer.training_step
    with patch.object(
        trainer, "training_step", lambda model, inputs, *rest: (seen.append(inputs), step(model, inputs, *rest))[1]
    ):
        trainer.train()
    prompts = material.rows("prompts")["prompt"][:6]
    assert [row["prompt"] for row in seen[0]] == [each for each in prompts for _ in range(4)]
