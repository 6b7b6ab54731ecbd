"""The writer's part in C: a reader of JSON. Without it the writer does the same, at more cost."""
