"""The parts of a stream's settings; `common.settings.section` says what a part is."""
