"""Held-out problems and answers without a model."""

from dppo.lab.runs.held_out import Asker, Completion, HeldOut


def toy_set(count, name):
    """``count`` problems of different lengths; right is an answer whose last figure is that of the problem."""
    questions = ["x" * (3 + 7 * i % 11) for i in range(count)]

    def score(texts, places):
        return [(float(text == str(place % 8)), bool(text)) for text, place in zip(texts, places, strict=True)]

    return HeldOut(name=name, questions=questions, ids=[f"{name}/{i}" for i in range(count)], score=score)


def answers(prompts, seeds, sampling):
    """A completion as a function of its seed alone: one of ten answers, 8 and 9 of them none."""
    made = [(seed % 10, 1 + seed % 30) for seed in seeds]
    return [Completion(str(value) if value < 8 else "", length, length > 25) for value, length in made]


ASKER = Asker(encode=lambda text: [ord(c) for c in text], generate=answers, batch_size=4, positions=None)
