"""What is refused before a run starts."""

import gzip
import json
from unittest.mock import Mock

import pytest
from datasets import Dataset
from jinja2 import TemplateError
from refusals import refused
from small_runs import small_words, write_lines

from dppo.errors import ConfigError, DataError
from dppo.lab.runs.data import as_prompts, checked, load_dataset, read_rows
from dppo.lab.runs.models import prompt_tokens
from dppo.lab.runs.parsing import parse_run
from dppo.verification.tiny_tokenizer import build_tokenizer


def problems(prompts, answers=None):
    return Dataset.from_dict({"prompt": prompts, "answer": answers or ["1"] * len(prompts)})


def user(text):
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("form", [lambda text: text, lambda text: user(text or "")], ids=["text", "messages"])
def test_all_bad_rows_are_named_at_once_or_dropped(form):
    bad = problems([form(text) for text in ["a", "", " \n", *"bcdefghi"]], ["1", "1", "1", *[""] * 7, "1"])
    with refused(DataError, "9 of 11", "empty prompt in 2 (counted from 0: [1, 2])", "answer in 7", "on_bad_rows"):
        checked(bad)
    with pytest.warns(UserWarning, match="9 of 11 rows"):
        assert checked(bad, drop=True)["prompt"][:] == [form("a"), form("i")]
    assert checked(good := problems([form("a")])) is good
    with pytest.warns(UserWarning), refused(DataError, "2 prompts", 3):
        checked(bad, drop=True, minimum=3)


def test_the_smaller_of_two_limits_holds(tmp_path):
    """By hand: n times ``1+``, then ``1=``, are 2n + 2 tokens, and the template has two."""
    path = tmp_path / "long.jsonl"
    write_lines(path, [{"question": "1+" * n + "1="} for n in (3, 60, 200, 4)])
    words = small_words(tmp_path / "out", "--reward_funcs", "small_runs.odd_length", dataset=path)
    for room, limit, wrong in ((403, "1000", "403 tokens, positions"), (1000, "403", "403 tokens, max_prompt_tokens")):
        run = parse_run([*words, "--max_prompt_tokens", limit])
        with refused(DataError, f"more than {wrong}", "longest: 404", "counted from 0: [2]"):
            load_dataset(run, tokenizer=build_tokenizer(), room=room)
    run = parse_run([*words, "--on_bad_rows", "drop", "--num_generations", "8"])
    with pytest.warns(UserWarning, match="1 of 4 rows cannot be trained on"):
        assert len(load_dataset(run, tokenizer=build_tokenizer(), room=403)) == 3
    assert len(load_dataset(run, tokenizer=build_tokenizer(), room=404)) == 4


ROWS = [{"question": "a?", "answer": "1", "tags": ["x", None]}, {"question": "b\u2028?", "answer": None, "tags": []}]


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz", "p.json", "p.parquet", "folder"])
def test_files_are_read_as_they_are(tmp_path, name):
    """Every column stays as it is; a checker or a reward function of one's own reads what it needs."""
    path = tmp_path / ("folder/train.jsonl" if name == "folder" else name)
    path.parent.mkdir(exist_ok=True)
    if name.endswith(".parquet"):
        Dataset.from_list(ROWS).to_parquet(path)
    else:
        lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
        text = json.dumps(ROWS) if name == "p.json" else lines
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert read_rows(str(tmp_path / name), "train").to_list() == ROWS


def test_files_that_cannot_be_read_say_so(tmp_path):
    (tmp_path / "cut.jsonl").write_text('{"question": "a?"}\n{"question"')
    (tmp_path / "empty").mkdir()
    for name, said in (("cut.jsonl", "JSON"), ("no.jsonl", "no.jsonl"), ("empty", "empty")):
        with refused(DataError, name, said, "one JSON object a line"):
            read_rows(str(tmp_path / name), "train")


def test_prompts_of_problems():
    assert as_prompts(["a", None], "Q: {problem}", True) == [user("Q: a"), user("")]
    assert as_prompts(["a"], None, False) == ["a"] and as_prompts([user("a"), None], None, True) == [user("a"), []]
    with refused(ConfigError, "{problem}"):
        as_prompts(["a"], "Q:", True)
    with refused(DataError, "lists of messages"):
        as_prompts([user("a")], None, False)
    strict = Mock()
    strict.apply_chat_template.side_effect = TemplateError("System role not supported")
    with refused(ConfigError, "the chat template refuses", "System role"):
        prompt_tokens(strict, user("a"))
