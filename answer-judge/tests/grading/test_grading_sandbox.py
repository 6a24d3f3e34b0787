"""Nothing of a model's text runs as code, hostile answers end, and the verdict is the same wherever it is asked for."""

import json
import subprocess
import sys
from pathlib import Path

import hostile_functions
import pytest
from refusals import refused

from answer_judge.errors import RewardError
from answer_judge.grading.pool import WorkerPool
from answer_judge.grading.verifier import REASONS, REFUSED, Verifier
from judge_benchmarks.hostile_answers import hostile_answers


@pytest.mark.parametrize("count", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_hostile_answers_end_without_a_crash_or_a_trace(count, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = Path(__file__).with_name("hostile_texts.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [text for _, text in hostile_answers(count)]
    texts += [rf"so \boxed{{{json.loads(line)}}}" for line in written[: max(10, count)]]
    with Verifier(workers=2, limit_seconds=0.6) as hasty:
        reasons = [verdict.reason for verdict in hasty.verify_many(texts, ["31415.92653"] * len(texts))]
        goes_on = any(hasty.verify(r"\boxed{\frac{6}{4}}", "1.5").reason == "right" for _ in range(20))
    assert len(reasons) == len(texts) and goes_on, "on a busy machine this may take longer than .6 s, not each time"
    assert set(reasons) <= set(REASONS) - {"right"}
    assert reasons.count("crashed") < 0.2 * len(texts)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_refuses_code_from_text_files_and_processes(tmp_path):
    """The twin refuses nothing: the check can fail."""
    target = tmp_path / "trace"
    code = f"open({str(target)!r}, 'w').close()"
    pools = [WorkerPool(hostile_functions.respond, workers=1, limit_seconds=20, refused=r) for r in (REFUSED, ())]
    for task in (("eval", code), ("exec", code), ("open", str(target)), ("system", f"touch {target}")):
        assert pools[0].map([task])[0].status == "raised" and not target.exists()
        pools[1].map([task])
        target.unlink()
    for pool in pools:
        pool.close()


AUDIT = """
import json, sys
from answer_judge.grading import worker
from answer_judge.grading.judge import judge
tasks, seen = json.load(sys.stdin), []
def watch(event, args):
    if event in ("compile", "exec") and worker.NARROWER[event](args):
        seen.append(str(args[0])[:200])
sys.addaudithook(watch)
for task in tasks:
    judge(task)
print(json.dumps(seen))
"""


def test_judging_compiles_nothing():
    answers = [r"\frac{3}{7}", "x^2+1", r"(1,2] \cup [3,4)", r"\text{east}", "7 cm", "2(3)", "0.1", "x>3", "5!", "12_8"]
    answers += [r"\begin{pmatrix}1\\2\end{pmatrix}", r"\log_2 8", r"\sqrt[3]{2}", r"\sin(2x)"]
    answers += [text[14:-3] for kind, text in hostile_answers(300) if kind.startswith(("code", "unicode"))]
    tasks = [{"answer": answer, "gold": gold} for answer in answers for gold in (r"\frac{1}{2}", "x+1", answer or "0")]
    # A process of its own: an audit hook cannot be removed.
    done = subprocess.run([sys.executable, "-c", AUDIT], input=json.dumps(tasks), text=True, capture_output=True)
    assert done.stdout == "[]\n", done.stderr


ASKED = [(r"\boxed{\frac{6}{4}}", "1.5"), (r"\boxed{x^2-1}", "(x-1)(x+1)"), (r"\boxed{2}", r"\sqrt{5}"), ("?", "1")]
SCRIPT = f"""
import multiprocessing, signal
from answer_judge.grading import verify
def ask():
    print(",".join(verify(text, gold).reason for text, gold in {ASKED!r}), flush=True)
{{body}}
"""
BODIES = {
    "a daemonic child of a process that has workers": """
verify("1", "1")
child = multiprocessing.get_context("fork").Process(target=ask, daemon=True)
child.start()
child.join()
""",
    "a thread beside an event loop, as in a notebook": """
import asyncio
asyncio.run(asyncio.to_thread(ask))
""",
    "signals blocked": """
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGCHLD})
ask()
""",
}


@pytest.mark.skipif(sys.platform == "win32", reason="this system does not fork")
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_any_process_gets_the_same(body):
    code = SCRIPT.replace("{body}", body)
    done = subprocess.run([sys.executable, "-"], input=code, text=True, capture_output=True, timeout=120)
    assert done.stdout == "right,right,wrong,no_answer\n", done.stderr


def test_where_no_process_may_start_plain_answers_are_judged_and_others_are_an_error(monkeypatch):
    def refuse(*args, **kwargs):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    alone = Verifier()
    assert alone.verify(r"\boxed{12}", "12").reason == "right"
    assert alone.verify(r"\boxed{12}", "13").reason == "wrong"
    assert alone.verify("none", "13").reason == "no_answer" and alone.pids == []
    with refused(RewardError, "process", "workers=1"):
        alone.verify(r"\boxed{\frac{6}{4}}", "1.5")
