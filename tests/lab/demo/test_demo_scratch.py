r"""Models from scratch: what they learn from, what is saved, and that nothing incomplete is left behind."""

from itertools import count, tee
from types import SimpleNamespace

import datasets
import pytest
import torch
from refusals import refused
from transformers import AutoModelForCausalLM, AutoTokenizer

from answer_judge.grading.answers import last_boxed, worked_solution
from answer_judge.problems import load_problems
from dppo.errors import ConfigError, DataError
from dppo.rng import generator
from dppo.verification.tiny_tokenizer import EOS, build_tokenizer, encode_questions
from dppo_lab.demo import scratch
from dppo_lab.demo.scratch import prepare_embedded, prepare_text, train_tokenizer

NAMES = ("Ann", "Bo", "Cy", "Di")


def rows(number: int = 24) -> list[dict]:
    """Word problems in the form of GSM8K: calculator notes, and the answer after four hashes."""
    numbers = generator(0).integers(2, 60, (number, 2)).tolist()
    return [
        {
            "problem": f"{NAMES[i % 4]} has {a} apples and buys {b} more. How many are there now?",
            "answer": str(a + b),
            "solution": f"There are {a}+{b} = <<{a}+{b}={a + b}>>{a + b} apples.\n#### {a + b}",
        }
        for i, (a, b) in enumerate(numbers)
    ]


LEARNT = {(row["problem"], worked_solution(row["solution"], row["answer"])) for row in rows()}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Those problems as a run loads them."""
    path = tmp_path_factory.mktemp("data") / "problems.jsonl"
    datasets.Dataset.from_list(rows()).to_json(path)
    return load_problems(str(path))


@pytest.fixture(scope="module")
def prepared(dataset, tmp_path_factory):
    """The folder of a text model after 20 steps of warm-up, what was reported, and further batches of the same kind."""
    folder, told, fit, kept = tmp_path_factory.mktemp("model") / "deep" / "start", [], scratch.fit, []

    def watched(model, batches, done):
        batches, copy = tee(batches)
        kept.append(copy)
        return fit(model, batches, done)

    with pytest.MonkeyPatch.context() as patch:  # a clock that ticks once per call: 20 steps on any machine
        patch.setattr(scratch, "time", SimpleNamespace(monotonic=count().__next__))
        patch.setattr(scratch, "fit", watched)
        prepare_text(folder, dataset, seed=3, minutes=20 / 60, on_step=lambda done, loss: told.append((done, loss)))
    return folder, told, kept[0]


@pytest.mark.parametrize(
    ("solution", "answer", "expected"),
    [
        ("48/2 = <<48/2=24>>24 clips.\n#### 24", "24", "48/2 = 24 clips.\n\\boxed{24}"),
        ("So $<<1000+5=1005>>1,005.\n#### 1,005", "1005", "So $1,005.\n\\boxed{1005}"),
        ("a #### b\n#### 7 \n", "7", "a #### b\n\\boxed{7}"),  # only the last line is the answer's
        (r"Thus $x=\boxed{\frac{1}{2}}$.", r"\frac{1}{2}", r"Thus $x=\boxed{\frac{1}{2}}$."),
        ("a < b and 2 >> 1", "7", "a < b and 2 >> 1\n\\boxed{7}"),
    ],
)
def test_a_worked_solution_ends_in_a_box_without_calculator_notes(solution, answer, expected):
    assert worked_solution(solution, answer) == expected
    assert last_boxed(expected) == answer


def texts_of(tokenizer, batches, examples=24):
    """The texts of so many examples of batches; what is learnt of each must be its end."""
    seen = []
    while len(seen) < examples:
        for token_T, label_T in zip(*next(batches), strict=True):
            text, learnt = tokenizer.decode(token_T[token_T > 0]), tokenizer.decode(label_T[label_T >= 0])
            assert text.endswith(learnt) and learnt.endswith(EOS)
            seen.append((text.removesuffix(learnt), learnt.removesuffix(EOS)))
    assert len(seen) == examples
    return set(seen)


def test_the_saved_folder_holds_what_was_trained_and_loads_the_way_a_run_loads_it(prepared):
    folder, told, batches = prepared
    shares, losses = zip(*told, strict=True)
    assert list(shares) == pytest.approx([step / 20 for step in range(1, 21)]) and shares[-1] == 1.0
    assert losses[-1] < 0.6 * losses[0]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "Ann has 12 apples."}]
    given = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert given == "<user>Ann has 12 apples.<assistant>"
    assert tokenizer.decode(tokenizer("a  b 12\n\\boxed{3}")["input_ids"]) == "a  b 12\n\\boxed{3}"
    assert model.config.vocab_size == len(tokenizer) and model.dtype == torch.float32
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    expected = {(f"<user>{problem}<assistant>", solution) for problem, solution in LEARNT}
    for _ in range(3):  # every pass has every example once
        assert texts_of(tokenizer, batches) == expected
    token_BT, label_BT = next(batches)
    with torch.no_grad():
        logp = model(token_BT).logits.log_softmax(-1)
    loss = -logp.gather(2, label_BT.clamp_min(0)[..., None])[..., 0][label_BT >= 0].mean()
    assert loss < 0.8 * losses[0], "the trained weights, not fresh ones"
    assert [path.name for path in folder.parent.iterdir()] == ["start"]


def test_a_hub_set_whose_answer_column_held_the_solution_is_read_too(tmp_path, monkeypatch):
    path, seen = tmp_path / "hub.jsonl", []
    hub = [{"question": row["problem"], "answer": row["solution"]} for row in rows()]
    datasets.Dataset.from_list(hub).to_json(path)
    loaded = load_problems(str(path), chat=False)
    assert "solution" not in loaded.column_names
    monkeypatch.setattr(scratch, "fit", lambda model, batches, done: seen.append(batches) or [])
    prepare_text(tmp_path / "start", loaded, seed=0, minutes=1)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "start")
    assert texts_of(tokenizer, seen[0]) == LEARNT, "prompts as texts have no turns"


def test_the_embedded_policy_is_saved_with_its_tokenizer_and_is_a_function_of_the_seed(tmp_path):
    told = []
    for name in ("a", "b"):
        prepare_embedded(tmp_path / name, seed=5, steps=2, on_step=lambda done, loss: told.append(done))
    assert told == [0.5, 1.0] * 2
    models = [AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("a", "b")]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    loaded, built = AutoTokenizer.from_pretrained(tmp_path / "a"), build_tokenizer()
    questions = ["3+5=?", "12-4+6=?"]
    assert encode_questions(loaded, questions) == encode_questions(built, questions)
    answer = "3+5=8;\\boxed{8}<eos>"
    assert loaded(answer)["input_ids"] == built(answer)["input_ids"]
    assert loaded.decode(loaded(answer)["input_ids"]) == answer


def test_nothing_half_made_is_left_and_nothing_is_overwritten(dataset, tmp_path):
    def stop(done, loss):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_text(tmp_path / "start", dataset, seed=0, minutes=1, on_step=stop)
    assert not list(tmp_path.iterdir())
    (tmp_path / "start.unfinished").mkdir()  # left by a run that was killed outright
    (tmp_path / "start.unfinished" / "junk").touch()
    prepare_embedded(tmp_path / "start", seed=0, steps=1)
    assert [path.name for path in tmp_path.iterdir()] == ["start"] and not (tmp_path / "start" / "junk").exists()
    with refused(ConfigError, tmp_path / "start", "rm -r"):
        prepare_embedded(tmp_path / "start", seed=0, steps=1)
    with refused(ConfigError, "scratch_minutes="):
        prepare_text(tmp_path / "other", dataset, seed=0, minutes=0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda data: data.remove_columns("solution"), "no column solution or original_answer"),
        (lambda data: data.map(lambda row: {"solution": "so " * 900}), "160 tokens"),
        (lambda data: data.map(lambda row: {"prompt": [{"role": "system", "content": "x"}]}), "'system'"),
    ],
)
def test_data_that_cannot_be_learnt_from_is_an_error_that_names_what_is_missing(dataset, tmp_path, change, named):
    with refused(DataError, named):
        prepare_text(tmp_path / "start", change(dataset), seed=0, minutes=1)
    assert not list(tmp_path.iterdir())


def test_the_tokenizer_gives_any_text_back_and_keeps_digits_apart():
    tokenizer = train_tokenizer([row["solution"] for row in rows()])
    for text in ("There are 12+34 = 46 apples.\n\\boxed{46}", "  ünï ¼ €5\t漢字 🙂  x", ""):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    pieces = [tokenizer.decode([index]) for index in tokenizer("1234 56")["input_ids"]]
    assert [piece for piece in pieces if piece.strip()] == list("123456")
