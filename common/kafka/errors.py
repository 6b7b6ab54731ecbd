"""Turns Kafka's refusals and its client's failures into one error with a remedy.

Rules:

1. A request without a response has no reason: librdkafka reports that separately, repeatedly while it retries. Its last
   report that names a cause is the reason in the error.
2. A refusal names the servers, the topic or the group, and the permission, the secret or the certificate to check.
3. librdkafka's messages are shown without durations, so that equal messages have equal text.
"""

import re
from dataclasses import dataclass

from confluent_kafka import KafkaError

from common.errors import BrokerError, BrokerRefusedError

_TIMING = re.compile(r" \(after \d+ms in state \w+(, [^()]*)?\)")
_NO_CAUSE = {"_ALL_BROKERS_DOWN", "_TIMED_OUT"}
_LOGIN = {"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE"}
_REFUSALS = {*_LOGIN, "_SSL", "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"}

REACH = (
    "check that the brokers of kafka.bootstrap.servers are up, and that kafka.security.protocol is what this port "
    "speaks: PLAINTEXT (where none is given), SSL, SASL_PLAINTEXT or SASL_SSL"
)
_LOG_IN = (
    "check kafka.sasl.mechanism, and the name and secret that it takes "
    "(kafka.sasl.username and kafka.sasl.password, or kafka.sasl.oauthbearer.…)"
)
_TOKENS = (
    "check kafka.sasl.oauthbearer.token.endpoint.url, .client.id and .client.secret, and set kafka.https.ca.location "
    "to the certificate authority of that endpoint; where a public one has signed it, to the system's, such as "
    "/etc/ssl/certs/ca-certificates.crt"
)
_AUTHORITY = (
    "set kafka.ssl.ca.location to the certificate authority of the brokers, and see that the names in "
    "kafka.bootstrap.servers are those in their certificates"
)
_PROTOCOL = (
    "remove kafka.group.protocol: these brokers do not offer `consumer`, which needs Kafka 4.0 or later and the "
    "feature group.version=1 (`kafka-features.sh describe` shows it)"
)
_IDENTITY = (
    "check kafka.ssl.certificate.location and kafka.ssl.key.location: the brokers reject this client's certificate"
)
_READS = {"TOPIC_AUTHORIZATION_FAILED": "topic", "GROUP_AUTHORIZATION_FAILED": "consumer group"}


@dataclass(slots=True)
class LastClientError:
    """librdkafka's last reason for a missing connection (rule 1); `record` is its ``error_cb``."""

    name: str = ""
    text: str = ""

    def record(self, fault: KafkaError) -> None:
        """Keep an error that names a cause. A refused certificate is followed by a mere broken connection."""
        broken = fault.name() == "_TRANSPORT" and self.is_refusal
        if fault.name() not in _NO_CAUSE and not broken:
            self.name, self.text = fault.name(), words(fault)

    @property
    def is_refusal(self) -> bool:
        """Whether a broker was reached and rejected us, or we did not trust it."""
        return self.name in _REFUSALS or _is_alert(self.name, self.text)


def words(fault: KafkaError) -> str:
    """The message from librdkafka (rule 3)."""
    return _TIMING.sub("", fault.str())


def broker_error(
    what: str, servers: str, fault: KafkaError | None, client_error: LastClientError | None = None, *, user_of: str = ""
) -> BrokerError:
    """The error of a failed request; ``user_of`` is the topic or the group that it was about."""
    name, text = ("", "no answer in time") if fault is None else (fault.name(), words(fault))
    if client_error is not None and client_error.text and name not in _REFUSALS:
        name, text = client_error.name, client_error.text
    refused = name in _REFUSALS or _is_alert(name, text)
    kind = BrokerRefusedError if refused else BrokerError
    return kind(f"cannot {what} at Kafka {servers}: {text}", remedy(name, text, user_of))


def member_error(servers: str, group: str, topic: str | None, fault: KafkaError) -> BrokerError:
    """The error of a consumer that its group, or a topic's leader, does not let continue."""
    name, text = fault.name(), words(fault)
    kind = BrokerRefusedError if name in _REFUSALS else BrokerError
    msg = f"Kafka at {servers} refuses this member of the group {group}: {text}"
    return kind(msg, remedy(name, text, group if name == "GROUP_AUTHORIZATION_FAILED" else topic or ""))


def remedy(name: str, text: str, user_of: str = "") -> str:
    if name in _LOGIN:
        return _TOKENS if "OAUTHBEARER token" in text else _LOG_IN
    if name in _READS:
        return f"allow this user to READ the {_READS[name]} {user_of}".rstrip()
    if name == "_SSL":
        return _AUTHORITY
    if _is_alert(name, text):
        return _IDENTITY
    return _PROTOCOL if "ConsumerGroupHeartbeat" in text else REACH


def _is_alert(name: str, text: str) -> bool:
    """Whether the broker ended the handshake: it rejects our certificate, or requires one."""
    return name == "_TRANSPORT" and "SSL alert" in text
