"""Methods side by side: runs from one start, and what they reach at equal updates, rollouts and seconds."""
