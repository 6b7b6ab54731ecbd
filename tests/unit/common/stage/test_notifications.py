"""Notifications of new markers as Kafka messages."""

from common.stage.notifications import MESSAGE, notification_key, notified_stream


def test_notification_names_its_stream_and_other_messages_name_none() -> None:
    for app_id in ("orders", "a/b=c", "ümlaut", "🦆 of the west"):
        assert notified_stream(notification_key(app_id), MESSAGE) == app_id
        assert notified_stream(notification_key(app_id), MESSAGE + b"0") is None
        assert notified_stream(notification_key(app_id), None) is None
    assert notified_stream(None, MESSAGE) is None
    assert notified_stream(b"\xff\xfe", MESSAGE) is None
