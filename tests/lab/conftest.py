import pytest

from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer


def save_untrained(folder, seed=0):
    """Write the untrained policy of the embedded task and its tokenizer into a folder."""
    build_model(seed).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)


@pytest.fixture(scope="session")
def untrained(tmp_path_factory):
    """A folder with the untrained policy of the embedded task and its tokenizer."""
    folder = tmp_path_factory.mktemp("untrained") / "model"
    save_untrained(folder)
    return folder


@pytest.fixture
def made_quickly(monkeypatch):
    """Policies from scratch are not warmed up; gives the folder, the seed and the task of each that was made."""
    made = []

    def prepare(folder, *given, seed, task=None, **options):
        made.append((folder, seed, task))
        save_untrained(folder, seed)

    monkeypatch.setattr("dppo.lab.runs.parts.prepare_embedded", prepare)
    return made
