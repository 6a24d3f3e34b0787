"""Loading problems: formats, columns, extraction, templates, and what a bad file says."""

import gzip
import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused

from answer_judge.errors import DataError
from answer_judge.problems import accuracy_reward, load_problems

ROWS = [
    {"id": "a", "problem": "1 + 1 = ?", "answer": "2", "meta": {"level": 1}},
    {"id": "b", "problem": "Ünïcode \u2028 ½?", "answer": "\\frac{1}{2}", "meta": {}},
    {"id": "c", "problem": "7?", "answer": "7", "meta": {"note": "x"}, "extra": 3},
]


def jsonl(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        file = tmp_path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(file)

    return write


@pytest.mark.parametrize(
    ("name", "encode"),
    [
        ("p.jsonl", jsonl),
        ("p.jsonl.gz", lambda rows: gzip.compress(jsonl(rows).encode())),
        ("p.json", json.dumps),
        ("lines.json", jsonl),
        ("bom.jsonl", lambda rows: b"\xef\xbb\xbf" + jsonl(rows).encode()),
        ("gaps.jsonl", lambda rows: "\n" + jsonl(rows).replace("\n", "\r\n\n")),
    ],
)
def test_every_format_gives_the_same_rows(name, encode, write):
    dataset = load_problems(write(name, encode(ROWS)))
    assert dataset["prompt"][:] == [[{"role": "user", "content": row["problem"]}] for row in ROWS]
    assert dataset["answer"][:] == ["2", "\\frac{1}{2}", "7"]
    assert set(dataset.column_names) == {"prompt", "answer", "id", "problem", "meta", "extra"}
    assert dataset["extra"][:] == [None, None, 3]
    assert dataset["meta"][0] == {"level": 1, "note": None}


def test_a_folder_gives_the_files_of_a_split(write, tmp_path):
    for name, row in zip(("x-train-0", "x-train-1", "x_test"), ROWS, strict=True):
        write(f"{name}.jsonl", jsonl([row]))
    write("README.md", "not data")
    assert load_problems(str(tmp_path))["id"][:] == ["a", "b"]
    assert load_problems(str(tmp_path), split="test")["id"][:] == ["c"]
    with refused(DataError, "split 'dev'", "x-train-0.jsonl"):
        load_problems(str(tmp_path), split="dev")


BAD_FILES = [
    ("p.jsonl", '{"problem": "a", "answer": "1"}\n{"problem": ', "line 2"),
    ("p.jsonl", "\n[1]\n", "row 2"),
    ("p.json", "[1]", "row 1"),
    ("p.jsonl", "", "no rows"),
    ("p.jsonl", b"\xff\xfe", "UnicodeDecodeError"),
    ("p.jsonl.gz", b"not gzip", "BadGzipFile"),
    ("p.jsonl.gz", gzip.compress(b"{}" * 999, mtime=0)[:-9], "EOFError"),
    ("p.parquet", b"PAR0", "Arrow"),
    ("p.csv", "problem,answer\n", ".jsonl"),
    ("p.jsonl", '{"problem": "a", "x": [1]}\n{"problem": "b", "x": "t"}', "column 'x'"),
    ("p.jsonl", '{"problem": "a", "answer": {"x": 1}}', "column 'answer', row 0"),
    ("p.jsonl", '{"problem": "a", "answer": [["1", "2"]]}', "column 'answer', row 0"),
    ("p.jsonl", '{"problem": {"x": 1}, "answer": "1"}', "column 'problem', row 0"),
    ("p.jsonl", '{"problem": "b \\ud83d", "answer": "2"}', "half of a character"),
    ("p.jsonl", jsonl([{"prompt": [{"role": "assistant", "content": "1"}], "answer": "1"}]), "row['prompt'][:-1]"),
]


@pytest.mark.parametrize(("name", "content", "said"), BAD_FILES)
def test_a_bad_file_says_where(name, content, said, write):
    with refused(DataError, said):
        load_problems(write(name, content))


def test_a_missing_file_is_not_looked_for_on_the_hub():
    for given in ({"source": "./nothing"}, {"source": "gsm8k", "path": "nothing.jsonl"}):
        with refused(DataError, "nothing", "no such file"):
            load_problems(**given)


def test_columns_are_found_by_name_or_named(write):
    file = write("p.jsonl", jsonl([{"question": "q", "final_answer": 3, "my_prompt": "m", "my_answer": 2.5}]))
    named = {"prompt_column": "my_prompt", "answer_column": "my_answer"}
    for options, prompt, answer in (({}, "q", "3"), (named, "m", "2.5")):
        row = load_problems(file, chat=False, **options)[0]
        assert (row["prompt"], row["answer"]) == (prompt, answer)
    with refused(DataError, "p.jsonl", "'problem'", "'question', 'final_answer', 'my_prompt', 'my_answer'"):
        load_problems(file, prompt_column="problem")
    with refused(DataError, "'gold'", "answer_column='final_answer'"):
        load_problems(file, answer_column="gold")
    with refused(DataError, "'problem' or 'question' or 'prompt'", "'text', "):
        load_problems(write("q.jsonl", jsonl([{"text": "a", "answer": "1"}])))


def test_columns_that_change_are_kept(write):
    file = write("p.jsonl", jsonl([{"prompt": "q", "answer": "48/2=24\n#### 1,024"}]))
    row = load_problems(file, template="{problem} Box it: \\boxed{}")[0]
    assert row["prompt"] == [{"role": "user", "content": "q Box it: \\boxed{}"}] and row["answer"] == "1024"
    assert (row["original_prompt"], row["original_answer"]) == ("q", "48/2=24\n#### 1,024")
    with refused(DataError, "both taken"):
        load_problems(write("q.jsonl", jsonl([{"prompt": "q", "original_prompt": "o", "answer": "1"}])))


def test_messages_stay_as_they_are(write):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    file = write("p.jsonl", jsonl([{"prompt": messages, "answer": "1"}]))
    assert load_problems(file)[0]["prompt"] == messages
    for setting in ({"template": "{problem}"}, {"chat": False}):
        with pytest.raises(DataError, match="holds messages"):
            load_problems(file, **setting)


def test_numbers_of_single_precision_are_what_was_written(tmp_path):
    """As a double 0.1 of single precision is 0.10000000149011612, which no right answer is equal to."""
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        table = pa.table({"problem": ["a", "b"], "answer": pa.array([0.1, None], kind)})
        pq.write_table(table, tmp_path / "p.parquet")
        assert load_problems(str(tmp_path / "p.parquet"))["answer"][:] == ["0.1", ""]


def test_what_a_problem_says_of_its_answer_is_there_for_rewards(write):
    """As evaluation reads it: the wrong twin leaves it in ``meta``, where no reward looks."""
    rows = [
        {"problem": "a", "answer": "70,110", "meta": {"is_multiple_answer": True}},
        {"problem": "b", "answer": "1.414", "meta": {"is_multiple_answer": False, "tolerance": "1e-1"}},
    ]
    found = load_problems(write("p.jsonl", jsonl(rows)))
    assert (found["is_multiple_answer"][:], found["tolerance"][:]) == ([True, False], [None, "1e-1"])
    assert "unit" not in found.column_names
    said = {name: found[name] for name in ("answer", "is_multiple_answer", "tolerance")}
    assert accuracy_reward()(["a", "b"], [r"\boxed{70110}", r"\boxed{1.41}"], **said) == [0.0, 1.0]
    rows[1]["meta"]["tolerance"] = "small"
    with refused(DataError, "tolerance='small'", "counted from 0: 1"):
        load_problems(write("p.jsonl", jsonl(rows)))


@pytest.mark.parametrize(
    ("column", "texts", "answers"),
    [
        ("answer", [["$1$", "$2$"], ["3"], []], ["1, 2", "3", ""]),
        ("answer", [2, "x", None], ["2", "x", ""]),
        ("answer", ["2+2\n#### 4", "#### 5"], ["4", "5"]),
        ("solution", [r"so $\boxed{1}$ or \boxed{\frac{1}{2}}", r"\boxed{3}"], [r"1, \frac{1}{2}", "3"]),
        ("solution", [r"$\boxed{x+2}$ or $\boxed{2+x}$"], ["2+x"]),
        ("solution", [r"$\boxed{B}$ and $\boxed{12}$"], ["12"]),
        ("solution", [r"\boxed{1}", r"\boxed{2}", r"\boxed{}"], ["1", "2", ""]),
        ("answer", [r"$\frac{1}{2}$", r"\(x\)", "$18", r"\$18"], [r"\frac{1}{2}", "x", "$18", r"\$18"]),
    ],
)
def test_the_answer_is_taken_out_only_where_needed(column, texts, answers, write):
    file = write("p.jsonl", jsonl([{"problem": "q", column: text} for text in texts]))
    assert load_problems(file)["answer"][:] == answers


def test_a_column_that_is_half_solutions_is_an_error(write):
    file = write("p.jsonl", jsonl([{"problem": "q", "answer": text} for text in ("1", "#### 2")]))
    with refused(DataError, "1 of 2 rows", "extract='hashes'", "extract='verbatim'"):
        load_problems(file)
    assert load_problems(file, extract="verbatim")["answer"][:] == ["1", "#### 2"]
    assert load_problems(file, extract="hashes")["answer"][:] == ["", "2"]


def test_the_hub_is_asked_for_what_the_table_says(monkeypatch):
    asked = []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        return datasets.Dataset.from_dict({"question": ["q"], "answer": ["#### 3"], "solution": ["no"]})

    monkeypatch.setattr("answer_judge.problems.loading.datasets.load_dataset", load_dataset)
    assert load_problems("gsm8k")["answer"][:] == ["3"]
    assert load_problems("openai/gsm8k", split="test")["answer"][:] == ["3"]
    assert load_problems("someone/problems:hard")["answer"][:] == ["3"]
    gsm8k = "openai/gsm8k", "main"
    assert asked == [(*gsm8k, "train"), (*gsm8k, "test"), ("someone/problems", "hard", "train")]
    with pytest.raises(DataError, match="no column 'problem'"):  # the set on the hub is not what it was
        load_problems("math")
