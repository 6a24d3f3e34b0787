"""The embedded demonstration: a task with exact answers, a tiny policy, and the whole method on one screen."""
