"""What is refused before a run starts."""

import gzip
import json
import warnings

import pytest
from datasets import Dataset
from jinja2 import TemplateError
from refusals import refused

from dppo.errors import ConfigError, DataError
from dppo.lab.runs.data import as_prompts, checked, is_local, read_rows


def problems(prompts, answers=None):
    return Dataset.from_dict({"prompt": prompts, "answer": answers or ["1"] * len(prompts)})


def test_good_problems_pass_in_silence():
    good = problems(["a", "b", "c"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checked(good, minimum=3) is good
        checked(good.remove_columns("answer"))


def user(text):
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("form", [lambda text: text, lambda text: user(text or "")], ids=["text", "messages"])
def test_all_bad_rows_are_named_at_once_or_dropped(form):
    bad = problems([form(text) for text in ["a", "", " \n", *"bcdefghi"]], ["1", "1", "1", *[""] * 7, "1"])
    with refused(DataError, "9 of 11", "prompt in 2 rows", "0: 1, 2", "answer in 7 rows", "on_bad_rows: drop"):
        checked(bad)
    with pytest.warns(UserWarning, match="9 of 11 rows"):
        assert checked(bad, drop=True)["prompt"][:] == [form("a"), form("i")]
    with pytest.warns(UserWarning), refused(DataError, "2 prompts", 3):
        checked(bad, drop=True, minimum=3)


def test_no_messages_and_no_text_are_empty():
    with refused(DataError, "2 rows", "0: 0, 1"):
        checked(problems([[], [{"role": "user", "content": None}], user("x")]))
    pictures = [[{"role": "user", "content": [{"type": "image"}]}]]
    assert len(checked(problems(pictures))) == 1


class Words:
    """A tokenizer whose tokens are words; the template adds two."""

    def __call__(self, text):
        return {"input_ids": text.split()}

    def apply_chat_template(self, messages, *, add_generation_prompt, tokenize, return_dict):
        assert add_generation_prompt and tokenize and not return_dict
        return ["<user>", *" ".join(m["content"] for m in messages).split(), "<assistant>"]


def test_prompts_are_measured_as_the_model_sees_them():
    texts = ["one", "one two", "one two three"]
    checked(problems(texts), tokenizer=Words(), longest=3)
    with refused(DataError, "max_prompt_tokens=2", "longest: 3", "1 row", ": 2)"):
        checked(problems(texts), tokenizer=Words(), longest=2)
    messages = [user(text) for text in texts]
    checked(problems(messages), tokenizer=Words(), longest=5)
    with refused(DataError, "longest: 5", "2 rows", ": 1, 2)"):
        checked(problems(messages), tokenizer=Words(), longest=3)


def test_a_prompt_that_the_tokenizer_cannot_encode_is_named():
    class Small(Words):
        def __call__(self, text):
            raise Exception("WordLevel error: Missing [UNK] token from the vocabulary")

        def apply_chat_template(self, messages, **_):
            raise TemplateError("System role not supported")

    with refused(ConfigError, "cannot encode the prompt 'Äpfel'", "Missing [UNK]"):
        checked(problems(["Äpfel"]), tokenizer=Small(), longest=3)
    with refused(ConfigError, "the chat template refuses", "System role"):
        checked(problems([user("a")]), tokenizer=Small(), longest=3)


def test_repeated_prompts_stay_and_are_said():
    repeated = problems(["a", "b", "a", "c", "a", "b"])
    with pytest.warns(UserWarning, match="2 prompts occur more than once, in 5 of 6 rows"):
        assert len(checked(repeated)) == 6


ROWS = [{"question": "a?", "answer": "1", "tags": ["x", None]}, {"question": "b\u2028?", "answer": None, "tags": []}]


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz", "p.json", "p.parquet", "folder"])
def test_files_are_read_as_they_are(tmp_path, name):
    """Every column stays as it is; a checker or a reward function of one's own reads what it needs."""
    path = tmp_path / ("folder/train.jsonl" if name == "folder" else name)
    path.parent.mkdir(exist_ok=True)
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    if name.endswith(".parquet"):
        Dataset.from_list(ROWS).to_parquet(path)
    else:
        text = json.dumps(ROWS) if name == "p.json" else lines
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    found = read_rows(str(tmp_path / name), "train")
    assert found.to_list() == ROWS


def test_files_that_cannot_be_read_say_so(tmp_path):
    (tmp_path / "cut.jsonl").write_text('{"question": "a?"}\n{"question"')
    (tmp_path / "mixed.jsonl").write_text('{"a": "text"}\n{"a": [1]}')
    (tmp_path / "empty").mkdir()
    for name, said in (("cut.jsonl", "JSONDecodeError"), ("mixed.jsonl", "Arrow"), ("no.jsonl", "No such file")):
        with refused(DataError, name, said, "one JSON object a line"):
            read_rows(str(tmp_path / name), "train")
    with refused(DataError, "empty has no file of .jsonl"):
        read_rows(str(tmp_path / "empty"), "train")


def test_what_is_local(tmp_path):
    assert is_local("none.jsonl") and is_local("./x") and is_local(str(tmp_path))
    assert not is_local("openai/gsm8k") and not is_local("gsm8k")


def test_prompts_of_problems():
    assert as_prompts(["a", None], "Q: {problem}", True) == [user("Q: a"), user("")]
    assert as_prompts(["a"], None, False) == ["a"] and as_prompts([user("a"), None], None, True) == [user("a"), []]
    with refused(ConfigError, "{problem}"):
        as_prompts(["a"], "Q:", True)
    with refused(DataError, "lists of messages"):
        as_prompts([user("a")], None, False)
