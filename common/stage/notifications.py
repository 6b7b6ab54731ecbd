"""Writers' notifications of new markers, for a loader that waits for them (``schedule: on-marker``).

Rules:

1. A writer notifies after it has made the markers, at most once per second for a stream. In the store, a notification
   is an empty object, one for each stream and writer, which overwrites an existing one: its path has all the
   information.
2. A loader lists the one folder of these objects, deletes those that it finds, and *then* lists the stage. That listing
   thus has every marker of these notifications, or a later notification covers it; a notification that is made again
   while it is deleted loses nothing.
3. It is a hint and not a proof. If a notification is lost, or was never made (a marker by hand, a writer with other
   settings), a load is late, until the next full scan.
4. With a control topic (``loader.control_topic``) the notification is a message: its key is the stream's app id, and
   its value is the same for all, so other programs' messages are ignored. Nothing in it is trusted except the name of a
   stream that the loader has.
"""

from common.stage.data_files import escape, shortened

NOTIFICATIONS = "news"
NOTIFY_EVERY_S = 1.0
"""Rule 1."""
MESSAGE = b"kafka-delta-express:news:1"
"""The value of a message; another version of it would end in another number."""


def notification_folder(app_id: str) -> str:
    return f"{NOTIFICATIONS}/{escape(shortened(app_id))}/"


def notification_path(app_id: str, writer: str) -> str:
    return f"{notification_folder(app_id)}{escape(shortened(writer))}.news"


def notification_key(app_id: str) -> bytes:
    """The key of a stream's message; its value is `MESSAGE`."""
    return app_id.encode()


def notified_stream(key: bytes | None, value: bytes | None) -> str | None:
    """The stream that a message notifies of; None for any other message."""
    if key is None or value != MESSAGE:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None
