"""Signs of new markers as messages."""

from common.stage.notifications import MESSAGE, news_key, told_by


def test_a_sign_names_its_stream_and_what_is_none_names_nothing() -> None:
    for app_id in ("orders", "a/b=c", "ümlaut", "🦆 of the west"):
        assert told_by(news_key(app_id), MESSAGE) == app_id
        assert told_by(news_key(app_id), MESSAGE + b"0") is None
        assert told_by(news_key(app_id), None) is None
    assert told_by(None, MESSAGE) is None
    assert told_by(b"\xff\xfe", MESSAGE) is None
