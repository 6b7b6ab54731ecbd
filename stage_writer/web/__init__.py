"""The writer's HTTP pages."""
