"""How a stream's rows reach its tables: the setting, which the writer uses too."""

from enum import StrEnum


class LoadSetting(StrEnum):
    """How rows are loaded into a stream's tables."""

    AUTO = "auto"
    ADD = "add"
    APPEND = "append"
    MERGE = "merge"

    @property
    def waits_for_spark(self) -> bool:
        """Whether rows are staged below the stage, because no file is ever added as it is."""
        return self in (LoadSetting.APPEND, LoadSetting.MERGE)


class Evolution(StrEnum):
    """How the loader treats a difference between staged columns and the table's."""

    STRICT = "strict"
    ADD = "add"
    WIDEN = "widen"
