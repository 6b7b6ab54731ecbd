"""The writer's side of the stage: from a buffer to a done marker, and the state files of tasks."""
