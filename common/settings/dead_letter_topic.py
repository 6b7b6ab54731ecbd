"""The Kafka topic of a stream's dead letters, next to their table."""

from common.settings.refusing import refuse

SCHEME = "kafka://"
TOPIC_DESCRIPTION = (
    "A Kafka topic that gets the stream's dead letters too, each once. The loader sends those of records that a table "
    "refuses, and of replays. See [commands.md](commands.md#in-a-kafka-topic-too)."
)


def with_dead_letters_topic(values: object) -> object:
    """A stream's settings, with the topic of ``dead_letters: kafka://topic`` as `dead_letters_topic`."""
    given = str(values.get("dead_letters", "")) if isinstance(values, dict) else ""
    if given.startswith("kafka:") and not given.startswith(SCHEME):
        refuse(f"dead_letters names no topic; did you mean {SCHEME}{given.removeprefix('kafka:').strip('/')}?")
    if not isinstance(values, dict) or not given.startswith(SCHEME):
        return values
    if values.get("dead_letters_topic") is not None:
        refuse("dead_letters is a topic, and dead_letters_topic is another one; write dead_letters as the table's URL")
    others = {key: value for key, value in values.items() if key != "dead_letters"}
    return {**others, "dead_letters_topic": values["dead_letters"].removeprefix(SCHEME)}
