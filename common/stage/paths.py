"""The objects that the stage has for each chain: ``<folder>/<topic>/<partition>/<name>``."""

import re

from common.spans import MAX_POSITION, Partition, Topic, TopicPartition
from common.stage.merged import CHAIN_TOPIC


class ChainPaths:
    def __init__(self, folder: str, name: str) -> None:
        """``name`` is a regular expression for what follows a chain's folder; its group ``start`` is a position."""
        self._folder = folder
        self._path = re.compile(rf"{folder}/(?P<topic>{CHAIN_TOPIC})/(?P<partition>0|[1-9]\d{{0,9}})/{name}", re.ASCII)

    def folder(self, partition: TopicPartition) -> str:
        return f"{self._folder}/{partition.topic}/{partition.partition}/"

    def parse(self, path: str) -> tuple[TopicPartition, re.Match[str]] | None:
        """The chain of a path, and the parts of its name; None for any other path."""
        match = self._path.fullmatch(path)
        if match is None or ("start" in self._path.groupindex and int(match["start"]) >= MAX_POSITION):
            return None
        return TopicPartition(Topic(match["topic"]), Partition(int(match["partition"]))), match
