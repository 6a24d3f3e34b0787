"""A server for verl's asynchronous trainers in one process: groups come back in its own order, late, failed, or never.

Each time that the replay buffer looks, one group is sampled and put back. What is late is not, until a later step.
"""

import hashlib

from in_process import STORE, Agents


class Server(Agents):
    """Gives groups back in an order by their prompts' text."""

    at_once = 1
    """Groups that are given back at a look."""

    def __init__(self, trainer, policy=None):
        super().__init__(trainer, policy)
        self.waiting, self.back, self.looks = {}, [], 0
        buffer = trainer.replay_buffer
        look, select = buffer._sync_metadata_from_transfer_queue, buffer._select_prompt_uids

        def looked():
            self.give_back()
            look()

        def selected(partition, finished, count):
            """verl's, which breaks ties by the order of a set of random names: here it is given a sorted list."""
            requested = [uid for uid in STORE[partition] if uid in finished]
            return select(partition, sorted(requested, key=lambda uid: order(text_of(partition, uid))), count)

        buffer._sync_metadata_from_transfer_queue, buffer._select_prompt_uids = looked, selected

    @staticmethod
    def late(text, step):
        """True if a prompt does not come back in this step."""
        return False

    @staticmethod
    def fails(text, step):
        """True if its rollout fails."""
        return False

    def generate_sequences(self, batch):
        for prompt, text, size in self.prompts_of(batch):
            assert prompt["uid"] not in self.waiting, "a prompt is asked for while it is in flight"
            self.waiting[prompt["uid"]] = (prompt, text, size)
            STORE["train"][prompt["uid"]][0]["status"] = "running"

    def give_back(self):
        """The next groups of those that are not late."""
        self.looks += 1
        assert self.looks < 1000, f"nothing comes back of {self.waiting}"
        step = self.trainer.global_steps
        ready = [uid for uid, (_, text, _) in self.waiting.items() if not self.late(text, step)]
        for uid in sorted(ready, key=lambda uid: order(self.waiting[uid][1]))[: self.at_once]:
            prompt, text, size = self.waiting.pop(uid)
            self.looks = 0
            failed = self.fails(text, step)
            if not failed:
                self._sessions(prompt, text, size)
            self.back.append((step, text))
            STORE["train"][uid][0]["status"] = "failure" if failed else "finished"


def text_of(partition, uid):
    """The text of a prompt in the queue."""
    return STORE[partition][uid][1]["raw_prompt"][0]["content"]


def order(text):
    """By what groups come back first: nothing that a trainer knows."""
    return hashlib.sha256(text.encode()).hexdigest()
