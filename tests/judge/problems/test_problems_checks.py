"""What is refused before a run starts."""

import warnings

import pytest
from datasets import Dataset

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
def test_all_bad_rows_are_named_at_once(form):
    prompts = [form(text) for text in ["a", "", " \n", *"bcdefghi"]]
    answers = ["1", "1", "1", *[""] * 7, "1"]
    with pytest.raises(DataError) as caught:
        check_problems(problems(prompts, answers))
    message = str(caught.value)
    assert "9 of 11 rows cannot be trained on" in message
    assert "empty prompt in 2 rows (counted from 0: 1, 2)" in message
    assert "empty answer in 7 rows (counted from 0: 3, 4, 5, 6, 7, ...)" in message
    assert "on_bad_rows='drop'" in message


def test_no_messages_and_no_text_are_empty():
    rows = [[], [{"role": "user", "content": None}], user("x")]
    with pytest.raises(DataError, match=r"2 rows \(counted from 0: 0, 1\)"):
        check_problems(problems(rows))
    pictures = [[{"role": "user", "content": [{"type": "image"}]}]]
    assert len(check_problems(problems(pictures))) == 1


def test_dropping_keeps_the_others_in_order_and_says_so():
    bad = problems(["a", "", "c", "d"], ["1", "1", None, "1"])
    with pytest.warns(
        UserWarning, match=r"2 of 4 rows left out: empty prompt in 1 row \(counted from 0: 1\); empty an"
    ):
        kept = check_problems(bad, on_bad_rows="drop")
    assert kept["prompt"][:] == ["a", "d"]
    with pytest.warns(UserWarning), pytest.raises(DataError, match="2 prompts are fewer than the 3"):
        check_problems(bad, on_bad_rows="drop", minimum=3)


class Words:
    """A tokenizer whose tokens are words; the template adds two."""

    def __call__(self, text):
        return {"input_ids": text.split()}

    def apply_chat_template(self, messages, *, add_generation_prompt, tokenize, return_dict):
        assert add_generation_prompt and tokenize and return_dict
        return {"input_ids": ["<user>", *" ".join(m["content"] for m in messages).split(), "<assistant>"]}


def test_prompts_are_measured_as_the_model_sees_them():
    texts = ["one", "one two", "one two three"]
    check_problems(problems(texts), tokenizer=Words(), max_prompt_tokens=3)
    with pytest.raises(DataError, match=r"max_prompt_tokens=2 tokens \(longest: 3\) in 1 row \(counted from 0: 2\)"):
        check_problems(problems(texts), tokenizer=Words(), max_prompt_tokens=2)
    messages = [user(text) for text in texts]
    check_problems(problems(messages), tokenizer=Words(), max_prompt_tokens=5)
    with pytest.raises(DataError, match=r"longest: 5\) in 2 rows \(counted from 0: 1, 2\)"):
        check_problems(problems(messages), tokenizer=Words(), max_prompt_tokens=3)


def test_too_few_prompts_name_both_numbers():
    with pytest.raises(DataError, match="2 prompts are fewer than the 16"):
        check_problems(problems(["a", "b"]), minimum=16)
    with pytest.raises(DataError, match="0 prompts are fewer than the 1"):
        check_problems(problems(["a"]).select([]))


def test_repeated_prompts_stay():
    repeated = problems(["a", "b", "a", "c", "a", "b"], ["1", "1", "1", "1", "1", "1"])
    with pytest.warns(UserWarning, match="2 prompts occur more than once, in 5 of 6 rows") as caught:
        assert len(check_problems(repeated)) == 6
    assert len(caught) == 1


def test_contradicting_answers_are_reported():
    with pytest.warns(UserWarning) as caught:
        check_problems(problems(["a", "b", "a"], ["1", "1", "2"]))
    assert "different answers in 2 rows (counted from 0: 0, 2)" in str(caught[1].message)


def test_settings():
    good = problems(["a"])
    with pytest.raises(ConfigError, match="on_bad_rows='skip'"):
        check_problems(good, on_bad_rows="skip")
    for settings in ({"max_prompt_tokens": 5}, {"max_prompt_tokens": 0, "tokenizer": Words()}):
        with pytest.raises(ConfigError, match="max_prompt_tokens="):
            check_problems(good, **settings)
    with pytest.raises(DataError, match=r"no column 'prompt', only 'problem'.*load_problems"):
        check_problems(Dataset.from_dict({"problem": ["a"]}))
