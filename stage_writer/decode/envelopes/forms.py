"""The envelopes other than Debezium's, by the setting ``envelope``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stage_writer.decode.envelopes.canal import Canal
from stage_writer.decode.envelopes.dms import Dms
from stage_writer.decode.envelopes.maxwell import Maxwell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stage_writer.decode.envelopes.row_changes import Envelope

ENVELOPES: Mapping[str, Envelope] = {"maxwell": Maxwell(), "canal": Canal(), "dms": Dms()}
