"""The stream that has columns which its settings leave to the table, the registry or the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import ConfigError, SchemaError
from common.schema import to_ddl
from common.settings.checks import checked
from common.settings.formats import forms_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.schema import StructType
    from common.settings.stream import Stream


def with_columns(
    stream: Stream,
    columns: StructType,
    *,
    partition_by: tuple[str, ...] | None = None,
    formats: Mapping[str, str] | None = None,
) -> Stream:
    """The stream with these columns, and, unless it says more, with this partitioning and these formats.

    Raises ConfigError for columns that contradict the stream's settings.
    """
    updates: dict[str, object] = {"columns": to_ddl(columns), "formats": {**(formats or {}), **stream.record.formats}}
    if partition_by is not None and not stream.layout.partition_by:
        updates["partition_by"] = partition_by
    new = stream.model_copy(update=updates)
    try:
        forms_of(columns, new.record.formats)
        return checked(new)
    except (ValueError, SchemaError) as error:
        source = stream.record.columns_from
        reason = error.problem if isinstance(error, SchemaError) else str(error)
        msg = f"{stream.app_id}: with columns {'declared' if source is None else source.value}: {reason}"
        raise ConfigError(msg, f"the columns are: {updates['columns']}") from None
