"""Maintenance of tables and of the stage: OPTIMIZE, VACUUM and the like, and the clean-up."""
