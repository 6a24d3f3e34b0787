"""A reward for runs of an untrained policy."""


def odd_length(completions, **columns):
    """0, 1 or 2 by length: something that an untrained policy can learn from."""
    return [float(len(completion[-1]["content"]) % 3) for completion in completions]
