"""When to load, and what: by the schedule, because writers told of new markers, or because somebody asked."""
