"""A user's processor: Kafka Streams' terms, in Python's spelling.

Rules:

1. A task makes its own instance of each processor, and calls it from one thread, one record after the other.
2. `ProcessorContext.forward` runs the children before it returns (depth first), each to its end, in their order.
3. Data that must survive a restart is kept in state stores. An instance's own attributes are lost with it, and are not
   undone for a record that fails.
4. Punctuations are scheduled in `Processor.init`; their next times are part of the task's state. A punctuation that is
   scheduled later is lost at a restart.
"""

from stage_writer.topologies.records import Record
from stage_writer.topologies.task.context import ProcessorContext


class Processor:
    """A node's code: subclass it."""

    context: ProcessorContext

    def init(self, context: ProcessorContext) -> None:
        """Called once, before the first record: get stores and schedule punctuations here."""
        self.context = context

    def process(self, record: Record) -> None:
        """Process one record. An exception sends the message to the dead letters, and undoes everything done for it."""
        raise NotImplementedError

    def punctuate(self, timestamp_ms: int) -> None:
        """Called for a scheduled time without a callback of its own."""

    def close(self) -> None:
        """Called when the task ends; records can no longer be forwarded."""
