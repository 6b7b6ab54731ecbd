"""The writer's part in C: a JSON reader. Without it the writer has the same results, at a higher cost."""
