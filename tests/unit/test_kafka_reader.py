"""Readers of ranges say what is wrong with a config as every other client does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from common.errors import ConfigError
from common.settings import Settings
from delta_loader.shell.kafka_offsets import KafkaOffsets
from stage_writer.shell.replay_kafka import ReplayKafka

if TYPE_CHECKING:
    from collections.abc import Callable

READERS: list[Callable[[Settings], object]] = [
    KafkaOffsets,
    lambda settings: ReplayKafka(settings, with_headers=False),
]


@pytest.mark.parametrize("reader", READERS, ids=["verify", "replay"])
def test_a_property_that_is_refused_is_the_config_s_fault(reader: Callable[[Settings], object]) -> None:
    settings = Settings.model_validate(
        {
            "kafka": {"bootstrap.servers": "127.0.0.1:1", "fetch.min.byts": 7},
            "stage": {"url": "/s"},
            "streams": [{"app_id": "orders", "topics": ["orders"], "table": "/t", "columns": "id BIGINT"}],
        }
    )
    with pytest.raises(ConfigError, match=r"fetch\.min\.byts") as error:
        reader(settings)
    assert error.value.exit_code == 2
