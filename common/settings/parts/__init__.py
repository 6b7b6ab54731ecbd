"""The parts of a stream's settings (`common.settings.section` defines a part)."""
