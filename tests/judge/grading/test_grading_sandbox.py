"""Nothing of a model's text runs as code, hostile answers end, and the verdict is the same wherever it is asked for."""

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import hostile_functions
import pytest
from refusals import refused

from answer_judge.errors import RewardError
from answer_judge.grading.pool import TaskResult, WorkerPool
from answer_judge.grading.verifier import REASONS, REFUSED, Verifier
from benchmarks.judge.hostile_answers import hostile_answers

ROOT = Path(__file__).parents[3]


def test_hostile_answers_are_different_and_of_every_kind():
    found = list(hostile_answers(2000))
    assert len({text for _, text in found}) == 2000
    assert min(Counter(kind for kind, _ in found).values()) > 10
    assert max(len(text) for _, text in found) > 50_000
    assert found == list(hostile_answers(2000)) != list(hostile_answers(2000, seed=1))


@pytest.mark.parametrize("count", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_hostile_answers_end_without_a_crash_or_a_trace(count, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [text for _, text in hostile_answers(count)]
    with Verifier(workers=2, limit_seconds=0.6) as hasty:
        reasons = [verdict.reason for verdict in hasty.verify_many(texts, ["31415.92653"] * count)]
        after = hasty.verify(r"\boxed{\frac{6}{4}}", "1.5").reason
    assert len(reasons) == count and after == "right"
    assert set(reasons) <= set(REASONS) - {"right"}
    assert reasons.count("timeout") + reasons.count("crashed") < 0.2 * count
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def sealed():
    pool = WorkerPool(hostile_functions.respond, workers=1, limit_seconds=20, refused=REFUSED)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def unsealed():
    pool = WorkerPool(hostile_functions.respond, workers=1, limit_seconds=20)
    yield pool
    pool.close()


@pytest.mark.parametrize("action", ["eval", "exec", "open", "system"])
def test_a_worker_refuses_code_from_text_files_and_processes(action, sealed, unsealed, tmp_path):
    target = tmp_path / "trace"
    value = {"open": str(target), "system": f"touch {target}"}.get(action, f"open({str(target)!r}, 'w').close()")
    assert sealed.map([(action, value)])[0].status == "raised"
    assert not target.exists()
    unsealed.map([(action, value)])
    assert target.exists()  # the check can fail


def test_a_worker_may_still_read_and_import(sealed):
    assert sealed.map([("read", __file__)])[0].value > 1000
    assert sealed.map([("import", "sqlite3.dump")]) == [TaskResult("done", "sqlite3")]


def test_a_worker_near_its_memory_limit_is_replaced_before_it_dies():
    pool = WorkerPool(hostile_functions.respond, workers=1, limit_seconds=20, memory_mb=512)
    small, large = pool.map([("fill", 1)]), pool.map([("fill", 300)])
    again = pool.map([("fill", 1)])
    pool.close()
    assert [outcome.status for outcome in (*small, *large, *again)] == ["done"] * 3
    assert small[0].value == large[0].value != again[0].value


AUDIT = """
import json, sys
from answer_judge.grading import worker
from answer_judge.grading.judge import judge
tasks, seen = json.load(sys.stdin), []
def watch(event, args):
    if event in ("compile", "exec") and worker.NARROWER[event](args):
        seen.append(str(args[0])[:200])
{warm}
sys.addaudithook(watch)
for task in tasks:
    {call}
print(json.dumps(seen))
"""
PLAIN_PARSER = "from math_verify import parse, ExprExtractionConfig"


def compiled(tasks, call="judge(task)", warm=""):
    """The sources compiled while tasks are judged, in a process of its own since a hook stays for ever."""
    code = AUDIT.format(call=call, warm=warm)
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(tasks), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_judging_compiles_nothing():
    answers = [
        r"\frac{3}{7}",
        "x^2+1",
        r"\sin(2x)",
        "1.5e3",
        r"(1,2] \cup [3,4)",
        r"\text{east}",
        "7 cm",
        "2(3)",
        "0.1",
    ]
    answers += [r"\begin{pmatrix}1\\2\end{pmatrix}", r"\log_2 8", "x>3", r"\binom{5}{2}", "5!", r"\sqrt[3]{2}", "12_8"]
    answers += [text[14:-3] for kind, text in hostile_answers(300) if kind.startswith(("code", "unicode"))]
    tasks = [{"answer": answer, "gold": gold} for answer in answers for gold in (r"\frac{1}{2}", "x+1", answer or "0")]
    assert compiled(tasks) == []


def test_the_check_above_sees_what_math_verifys_other_parser_compiles():
    call = 'parse(task["answer"], [ExprExtractionConfig()], parsing_timeout=0)'
    assert any("17" in source for source in compiled([{"answer": "17 * 23 + 1"}], call, PLAIN_PARSER))
    # and what its LaTeX parser compiles when numbers reach it as text, which here they do not
    call = "latex2sympy(task['answer'])"
    warm = "from latex2sympy2_extended.latex2sympy2 import latex2sympy"
    assert any("17" in source for source in compiled([{"answer": r"\frac{17}{23}"}], call, warm))


ASKED = [(r"\boxed{\frac{6}{4}}", "1.5"), (r"\boxed{x^2-1}", "(x-1)(x+1)"), (r"\boxed{2}", r"\sqrt{5}"), ("?", "1")]
EXPECTED = ["right", "right", "wrong", "no_answer"]


def reasons_of(verifier):
    return [verifier.verify(text, gold).reason for text, gold in ASKED]


def test_threads_get_the_same(verifier):
    found = []
    threads = [threading.Thread(target=lambda: found.append(reasons_of(verifier))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [EXPECTED] * 4


def test_an_event_loop_gets_the_same_and_goes_on_meanwhile(verifier):
    """As in a notebook, where a loop is always running."""

    async def cell():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        texts, golds = zip(*ASKED, strict=True)
        both = await asyncio.gather(*[asyncio.to_thread(verifier.verify_many, texts, golds) for _ in range(2)])
        ticking.cancel()
        return [[verdict.reason for verdict in verdicts] for verdicts in both], reasons_of(verifier), ticks

    waited, direct, ticks = asyncio.run(cell())
    assert waited == [EXPECTED] * 2 and direct == EXPECTED and ticks > 2


SCRIPT = f"""
import multiprocessing, os, signal, sys, threading
from answer_judge.grading import verify
ASKED = {ASKED!r}

def ask(say=print):
    say(",".join(verify(text, gold).reason for text, gold in ASKED), flush=True)

{{body}}
"""
BODIES = {
    "a script without a guard": "ask()",
    "a daemonic child, which may have no children of multiprocessing": """
child = multiprocessing.get_context("fork").Process(target=ask, daemon=True)
child.start()
child.join()
""",
    "a daemonic child of a process that has workers": """
verify(*ASKED[0])
child = multiprocessing.get_context("fork").Process(target=ask, daemon=True)
child.start()
child.join()
""",
    "a thread of a daemonic child without standard input": """
def inside():
    os.close(0)
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
child = multiprocessing.get_context("fork").Process(target=inside, daemon=True)
child.start()
child.join()
""",
    "signals blocked": """
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGCHLD})
ask()
""",
}


@pytest.mark.skipif(sys.platform == "win32", reason="this system does not fork")
@pytest.mark.parametrize(
    "body",
    [
        body if "signals" in name or "has workers" in name else pytest.param(body, marks=pytest.mark.slow)
        for name, body in BODIES.items()
    ],
    ids=BODIES,
)
def test_any_process_gets_the_same(body):
    done = subprocess.run(
        [sys.executable, "-"], input=SCRIPT.replace("{body}", body), text=True, capture_output=True, timeout=120
    )
    assert done.stdout.strip() == ",".join(EXPECTED), done.stderr


def test_where_no_process_may_start_plain_answers_are_judged_and_others_are_an_error(monkeypatch):
    def refuse(*args, **kwargs):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    alone = Verifier()
    assert alone.verify(r"\boxed{12}", "12").reason == "right"
    assert alone.verify(r"\boxed{12}", "13").reason == "wrong"
    assert alone.verify("none", "13").reason == "no_answer"
    with refused(RewardError, "process", "workers=1"):
        alone.verify(r"\boxed{\frac{6}{4}}", "1.5")
