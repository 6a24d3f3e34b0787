"""What is refused before a run starts."""

import warnings

import pytest
from datasets import Dataset
from jinja2 import TemplateError
from refusals import refused

from answer_judge.errors import ConfigError, DataError
from answer_judge.problems import check_problems


def problems(prompts, answers=None):
    return Dataset.from_dict({"prompt": prompts, "answer": answers or ["1"] * len(prompts)})


def test_good_problems_pass_in_silence():
    good = problems(["a", "b", "c"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_problems(good, minimum=3) is good
        check_problems(good.remove_columns("answer"))


def user(text):
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("form", [lambda text: text, lambda text: user(text or "")], ids=["text", "messages"])
def test_all_bad_rows_are_named_at_once_or_dropped(form):
    bad = problems([form(text) for text in ["a", "", " \n", *"bcdefghi"]], ["1", "1", "1", *[""] * 7, "1"])
    with refused(DataError, "9 of 11", "prompt in 2 rows", "0: 1, 2", "answer in 7 rows", "on_bad_rows='drop'"):
        check_problems(bad)
    with pytest.warns(UserWarning, match="9 of 11 rows"):
        assert check_problems(bad, on_bad_rows="drop")["prompt"][:] == [form("a"), form("i")]
    with pytest.warns(UserWarning), refused(DataError, "2 prompts", 3):
        check_problems(bad, on_bad_rows="drop", minimum=3)


def test_no_messages_and_no_text_are_empty():
    with refused(DataError, "2 rows", "0: 0, 1"):
        check_problems(problems([[], [{"role": "user", "content": None}], user("x")]))
    pictures = [[{"role": "user", "content": [{"type": "image"}]}]]
    assert len(check_problems(problems(pictures))) == 1


class Words:
    """A tokenizer whose tokens are words; the template adds two."""

    def __call__(self, text):
        return {"input_ids": text.split()}

    def apply_chat_template(self, messages, *, add_generation_prompt, tokenize, return_dict):
        assert add_generation_prompt and tokenize and not return_dict
        return ["<user>", *" ".join(m["content"] for m in messages).split(), "<assistant>"]


def test_prompts_are_measured_as_the_model_sees_them():
    texts = ["one", "one two", "one two three"]
    check_problems(problems(texts), tokenizer=Words(), max_prompt_tokens=3)
    with refused(DataError, "max_prompt_tokens=2", "longest: 3", "1 row", ": 2)"):
        check_problems(problems(texts), tokenizer=Words(), max_prompt_tokens=2)
    messages = [user(text) for text in texts]
    check_problems(problems(messages), tokenizer=Words(), max_prompt_tokens=5)
    with refused(DataError, "longest: 5", "2 rows", ": 1, 2)"):
        check_problems(problems(messages), tokenizer=Words(), max_prompt_tokens=3)


def test_a_prompt_that_the_tokenizer_cannot_encode_is_named():
    class Small(Words):
        def __call__(self, text):
            raise Exception("WordLevel error: Missing [UNK] token from the vocabulary")

        def apply_chat_template(self, messages, **_):
            raise TemplateError("System role not supported")

    with refused(ConfigError, "cannot encode the prompt 'Äpfel'", "Missing [UNK]"):
        check_problems(problems(["Äpfel"]), tokenizer=Small(), max_prompt_tokens=3)
    with refused(ConfigError, "the chat template refuses", "System role"):
        check_problems(problems([user("a")]), tokenizer=Small(), max_prompt_tokens=3)


def test_repeated_prompts_stay_and_contradicting_answers_are_reported():
    repeated = problems(["a", "b", "a", "c", "a", "b"], ["1", "1", "2", "1", "1", "1"])
    with pytest.warns(UserWarning) as caught:
        assert len(check_problems(repeated)) == 6
    assert "2 prompts occur more than once, in 5 of 6 rows" in str(caught[0].message)
    assert "different answers in 3 rows" in str(caught[1].message)


def test_settings():
    good = problems(["a"])
    with refused(ConfigError, "on_bad_rows='skip'"):
        check_problems(good, on_bad_rows="skip")
    with refused(ConfigError, "max_prompt_tokens="):
        check_problems(good, max_prompt_tokens=5)
    with refused(DataError, "'prompt'", "'problem'", "load_problems"):
        check_problems(Dataset.from_dict({"problem": ["a"]}))
