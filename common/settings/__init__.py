"""Settings: one YAML file for both services and the bootstrap tool.

``model`` and ``stream`` declare every key once, with its sentence; ``values`` reads durations, sizes and starts;
``load`` turns a file into a `Settings`, or into one readable error that names key, value and remedy.
"""

from common.settings.load import load_settings, print_settings
from common.settings.model import LoaderSettings, LogSettings, Settings, StageSettings, WriterSettings
from common.settings.stream import Stream
from common.settings.values import FromOffsets, FromTimestamp, Native, Start, StartAt

__all__ = [
    "FromOffsets",
    "FromTimestamp",
    "LoaderSettings",
    "LogSettings",
    "Native",
    "Settings",
    "StageSettings",
    "Start",
    "StartAt",
    "Stream",
    "WriterSettings",
    "load_settings",
    "print_settings",
]
