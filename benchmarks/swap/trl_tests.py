"""TRL's own tests of its trainers with our classes in their place: how many pass, are refused in a line, or fail.

python -m benchmarks.swap.trl_tests [--only sft,dpo,grpo] [--test NAME] [--output benchmarks/results/trl_tests.json]

The cases are in trl_tests.yaml. Each is first run on TRL's trainer: what does not pass there, on these models, says
nothing about ours and is not counted. Models are made from configurations, with a tokenizer of bytes.
"""

import contextlib
import copy
import io
import itertools
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from datasets import DatasetDict, IterableDatasetDict
from peft import LoraConfig, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from benchmarks.shared import options, write
from benchmarks.swap import rows as material
from benchmarks.swap.pictures import KINDS as KINDS_WITH_PICTURES
from dppo.errors import DPPOError, in_one_line
from dppo.trl import DPPOConfig, DPPODPOConfig, DPPODPOTrainer, DPPOSFTConfig, DPPOSFTTrainer, DPPOTrainer

CASES = Path(__file__).with_name("trl_tests.yaml")
KINDS = {
    "sft": ((SFTTrainer, SFTConfig), (DPPOSFTTrainer, DPPOSFTConfig)),
    "dpo": ((DPOTrainer, DPOConfig), (DPPODPOTrainer, DPPODPOConfig)),
    "grpo": ((GRPOTrainer, GRPOConfig), (DPPOTrainer, DPPOConfig)),
}
ROWS = {"sft": "text", "dpo": "pairs", "grpo": "prompts"}
USUAL: dict[str, dict[str, Any]] = {"sft": {}, "dpo": {}, "grpo": {}}
USUAL["grpo"] = dict(learning_rate=0.1, per_device_train_batch_size=3, num_generations=3, max_completion_length=8)
VERDICTS = ("passes", "refused", "fails", "not TRL here")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One test with one choice of its parameters."""

    kind: str
    test: str
    model: str = "qwen2"
    rows: str = ""
    eval: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    adapter: Any = None
    given: dict[str, Any] = field(default_factory=dict)
    does: str = "train"
    then: str = "moved"
    but: tuple[str, ...] = ()
    """Parts of the names of parameters that have no gradient by the model's design."""
    logs: tuple[str, ...] = ()
    raises: tuple[str, str] | None = None
    chosen: str = ""


def cases(only: list[str]) -> Iterator[Case]:
    """Every case of the table, one for each combination of values."""
    for kind, listed in yaml.safe_load(CASES.read_text()).items():
        for each in listed if kind in only else ():
            axes = each.pop("each", {})
            for values in itertools.product(*axes.values()):
                one = copy.deepcopy(each)
                for name, value in zip(axes, values, strict=True):
                    inner = one.setdefault("config", {}) if "." in name else one
                    inner[name.removeprefix("config.")] = value
                yield Case(kind=kind, chosen=", ".join(map(str, values)), **one)


class Made:
    """A trainer of one case, and what the test asks of it."""

    def __init__(self, case: Case, trainer_class: Any, config_class: Any, folder: Path) -> None:
        self.case, self.given, self.trainer_class = case, case.given, trainer_class
        self.path = material.model_folder(case.model)
        settings = {"output_dir": str(folder), "report_to": "none", "use_cpu": True} | USUAL[case.kind]
        settings |= {"model_init_kwargs": {"dtype": "float32"}} | case.config
        if dtype := case.config.get("model_init_kwargs", {}).get("dtype"):
            settings["model_init_kwargs"] = {"dtype": getattr(torch, dtype)}
        if self.given.get("loaded") or self.given.get("wrapped"):
            del settings["model_init_kwargs"]
        self.config = config_class(**settings)
        self.trainer: Any = None

    def arguments(self) -> dict[str, Any]:
        """Arguments of the trainer."""
        case, more = self.case, self.given
        found: dict[str, Any] = {"args": self.config, "model": self.path}
        found["train_dataset"] = material.rows(case.rows or ROWS[case.kind], streamed=bool(more.get("streamed")))
        if more.get("loaded") or more.get("wrapped"):
            found["model"] = AutoModelForCausalLM.from_pretrained(self.path, dtype="float32")
        if case.model in KINDS_WITH_PICTURES:
            found["processing_class"] = KINDS_WITH_PICTURES[case.model]()[1]
        if case.adapter is not None and more.get("wrapped"):
            found["model"] = get_peft_model(found["model"], self.adapter())
        elif case.adapter is not None:
            found["peft_config"] = self.adapter()
        if case.eval and case.does != "evaluate_unprepared":
            found["eval_dataset"] = self.held_out(case.eval)
        if more.get("reference"):
            found["ref_model"] = AutoModelForCausalLM.from_pretrained(self.path, dtype="float32")
        if more.get("formatting"):
            found["formatting_func"] = lambda row: f"+ {row['chosen']}\n- {row['rejected']}"
        if more.get("metrics"):
            found["compute_metrics"] = lambda _: {"my_metric": 0.123}
        if more.get("own_loss"):
            found["compute_loss_func"] = lambda outputs, labels, num_items_in_batch=None: outputs.loss
        if case.kind == "grpo":
            found["reward_funcs"] = [material.reward(name) for name in more.get("rewards", ["model"])]
        return found

    def held_out(self, name: str) -> Any:
        """The rows that are evaluated on, in one of the forms that TRL takes."""
        kind = self.given.get("eval_kind", "dataset")
        part = material.rows(name, count=3, streamed="stream" in kind)
        if kind in ("dataset", "stream"):
            return part
        both = {"data1": part, "data2": part}
        return {"dataset_dict": DatasetDict, "stream_dict": IterableDatasetDict}.get(kind, dict)(both)

    def adapter(self) -> Any:
        """A configuration of peft."""
        given = self.case.adapter
        if given == "experts":
            return LoraConfig(target_parameters=["mlp.experts.down_proj", "mlp.experts.gate_up_proj"])
        if isinstance(given, dict):
            return LoraConfig(**given)
        virtual: dict[str, Any] = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 4}
        if given == "prompt_tuning":
            return PromptTuningConfig(tokenizer_name_or_path=self.path, **virtual)
        return PrefixTuningConfig(**virtual) if given == "prefix_tuning" else PromptEncoderConfig(**virtual)

    def run(self) -> None:
        """Everything that the test does; an ``AssertionError`` if it does not come out."""
        getattr(self, self.case.does)()
        logged = {name for row in self.trainer.state.log_history for name in row if row[name] is not None}
        assert set(self.case.logs) <= logged, f"not logged: {set(self.case.logs) - logged}"

    def make(self) -> Any:
        """The trainer."""
        self.trainer = self.trainer_class(**self.arguments())
        return self.trainer

    def train(self) -> None:
        """Train, and look at which parameters have changed."""
        trainer = self.make()
        before = {name: each.detach().clone() for name, each in trainer.model.named_parameters()}
        trains = {name for name, each in trainer.model.named_parameters() if each.requires_grad}
        trainer.train()
        last = trainer.state.log_history[-1]
        assert last["train_loss"] is not None
        router = last.get("aux_loss") is not None or not getattr(trainer, "aux_loss_enabled", False)
        assert router or self.case.kind == "grpo", "no aux_loss"
        after = dict(trainer.model.named_parameters())
        expected, moved = set(before), {name for name, value in before.items() if not torch.equal(value, after[name])}
        if self.case.then == "adapters":  # the copy that pairs are compared with is no part of the policy
            assert trains < expected
            expected = {name for name in trains if ".ref." not in name}
        expected = {name for name in expected if not any(part in name for part in self.case.but)}
        if self.case.then == "still":
            expected = set()
        if self.case.then == "moved_in_half":
            assert {each.dtype for each in after.values()} == {torch.float16}
            expected = {name for name in expected if "layernorm" not in name}
            moved &= expected
        stood = f"{len(expected - moved)} parameters stood still, {len(moved - expected)} moved"
        assert moved == expected, f"{stood}: {sorted(expected ^ moved)[:2]}"

    def evaluate_unprepared(self) -> None:
        found = self.make().evaluate(eval_dataset=self.held_out("text" if self.case.kind == "sft" else "pairs"))
        one = self.given["eval_kind"] in ("dataset", "stream")
        assert all(found[f"eval_{part}loss"] is not None for part in ([""] if one else ["data1_", "data2_"]))

    def evaluate_after_training(self) -> None:
        self.make().evaluate(eval_dataset=material.rows("pairs", count=3))
        self.trainer.train()
        self.trainer.evaluate(eval_dataset=material.rows("pairs", count=3))

    def train_and_evaluate(self) -> None:
        self.make().train()
        assert any(name.endswith("_loss") for name in self.trainer.evaluate())

    def packed(self) -> None:
        trainer = self.make()
        assert sum(map(len, trainer.train_dataset["seq_lengths"])) == material.ROWS
        assert all(sum(each) <= 64 for each in trainer.train_dataset["seq_lengths"])
        assert ("seq_lengths" in trainer.eval_dataset.column_names) == self.case.config.get("eval_packing", True)

    def labels(self) -> None:
        for row in self.make().train_dataset:
            assert len(row["labels"]) == len(row["input_ids"]) and any(each != -100 for each in row["labels"])
            assert all(a in (-100, b) for a, b in zip(row["labels"], row["input_ids"], strict=True))

    def one_row_left(self) -> None:
        assert len(self.make().train_dataset) == 1

    def short_rows(self) -> None:
        assert all(len(row["input_ids"]) <= 4 for row in self.make().train_dataset)

    def predict(self) -> None:
        found = self.make().predict(self.trainer.train_dataset).predictions
        assert found.shape[-1] == self.trainer.model.config.vocab_size


def outcome(case: Case, trainer_class: Any, config_class: Any) -> tuple[str, str]:
    """Verdict on a case with one trainer, and the reason."""
    torch.manual_seed(0)
    printed = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        warnings.simplefilter("ignore")
        try:
            Made(case, trainer_class, config_class, Path(folder)).run()
        except Exception as error:  # whatever it is, it is what the test finds
            kinds = {each.__name__ for each in type(error).__mro__}
            if case.raises and case.raises[0] in kinds and case.raises[1] in str(error):
                return "passes", ""
            verdict = "refused" if isinstance(error, DPPOError) else "fails"
            return verdict, f"{type(error).__name__}: {in_one_line(error)}"[:300]
    return ("fails", "nothing was raised") if case.raises else ("passes", "")


def main() -> int:
    """Run every case on both trainers, print a table and the counts."""
    parser = options(__doc__)
    parser.add_argument("--only", default="sft,dpo,grpo", help="trainers")
    parser.add_argument("--test", help="only tests whose name begins so")
    arguments = parser.parse_args()
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    for case in cases(arguments.only.split(",")):
        if not case.test.startswith(arguments.test or ""):
            continue
        stock, ours = KINDS[case.kind]
        verdict, why = outcome(case, *stock)
        verdict, why = outcome(case, *ours) if verdict == "passes" else ("not TRL here", why)
        about = {
            "trainer": case.kind,
            "test": case.test,
            "of": case.chosen or (case.model if case.rows.endswith("pictures") else ""),
        }
        found.append(about | {"verdict": verdict, "why": why})
        print("| " + " | ".join(found[-1].values()) + " |", flush=True)
    for kind in arguments.only.split(","):
        counts = Counter(row["verdict"] for row in found if row["trainer"] == kind)
        print(f"{kind}: " + ", ".join(f"{counts[name]} {name}" for name in VERDICTS))
    write(arguments.output, found, seeds=[0])
    return int(any(row["verdict"] == "fails" for row in found))


if __name__ == "__main__":
    sys.exit(main())
