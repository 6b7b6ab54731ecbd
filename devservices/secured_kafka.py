"""A Kafka with authentication and ACLs: ``with running_secured_kafka(folder) as kafka: kafka.properties(…)``.

One broker with three listeners:

- ``PLAINTEXT``: every client is the superuser. For a test's own calls, such as `KafkaCluster.admin`.
- ``SASL``: TLS, with PLAIN, SCRAM-SHA-512, or OAUTHBEARER and the tokens of devservices/tokens.py.
- ``MUTUAL``: mutual TLS; the client's certificate has the user's name.

Kafka's StandardAuthorizer is active: a user without an ACL may do nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from devservices.certificates import Authority, Certificate
from devservices.kafka import TOLERATES_PAUSES, KafkaCluster, KafkaOptions, Listener, running_kafka
from devservices.ports import HOST
from devservices.tokens import AUDIENCE, ISSUER, Tokens, running_tokens

AuthMethod = Literal["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", "mutual TLS"]

_TIMEOUT_S = 120
_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True)
class SecuredKafka:
    cluster: KafkaCluster
    authority: Authority
    tokens: Tokens
    users: Mapping[str, str]
    """Each user's secret, for every authentication method."""
    certificates: Mapping[str, Certificate]

    def properties(self, method: AuthMethod, user: str) -> dict[str, str]:
        """Client properties (librdkafka) for a user with this authentication method."""
        authority = str(self.authority.certificate)
        listener = "MUTUAL" if method == "mutual TLS" else "SASL"
        properties = {"bootstrap.servers": self.cluster.servers_at(listener), "ssl.ca.location": authority}
        match method:
            case "mutual TLS":
                certificate = self.certificates[user]
                return properties | {
                    "security.protocol": "SSL",
                    "ssl.certificate.location": str(certificate.certificate),
                    "ssl.key.location": str(certificate.key),
                    "ssl.key.password": self.users[user],
                }
            case "OAUTHBEARER":
                return properties | {
                    "security.protocol": "SASL_SSL",
                    "sasl.mechanism": method,
                    "sasl.oauthbearer.method": "oidc",
                    "sasl.oauthbearer.client.id": user,
                    "sasl.oauthbearer.client.secret": self.users[user],
                    "sasl.oauthbearer.token.endpoint.url": self.tokens.url,
                    "https.ca.location": authority,
                }
            case "PLAIN" | "SCRAM-SHA-512":
                return properties | {
                    "security.protocol": "SASL_SSL",
                    "sasl.mechanism": method,
                    "sasl.username": user,
                    "sasl.password": self.users[user],
                }
            case _:
                assert_never(method)

    def allow(self, user: str, kind: ResourceType, name: str, *operations: AclOperation, prefix: bool = False) -> None:
        """Allow a user these operations on the resource named ``name``, or on all that start with it (``prefix``)."""
        pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
        rules = [
            AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        admin = self.cluster.admin
        for done in admin.create_acls(rules, request_timeout=_TIMEOUT_S).values():
            done.result(_TIMEOUT_S)


@contextmanager
def running_secured_kafka(folder: Path, users: Mapping[str, str]) -> Iterator[SecuredKafka]:
    """Start the broker and the token endpoint; ``users`` maps names to secrets."""
    authority = Authority(folder / "certificates")
    certificates = {user: authority.issue(user, password=secret) for user, secret in users.items()}
    with running_tokens(authority, folder, users) as tokens:
        options = KafkaOptions(
            listeners=_listeners(authority, tokens, users),
            properties={
                **TOLERATES_PAUSES,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            },
            java=[f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.keys.as_uri()}"],
        )
        with running_kafka(options) as cluster:
            _add_scram(cluster, users)
            yield SecuredKafka(cluster, authority, tokens, users, certificates)


def _listeners(authority: Authority, tokens: Tokens, users: Mapping[str, str]) -> list[Listener]:
    server = authority.issue("broker", HOST)
    own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(server.both)}
    passwords = " ".join(f'user_{user}="{secret}"' for user, secret in users.items())
    sasl = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required {passwords};",
        "scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        "oauthbearer.sasl.jaas.config": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;",
        "oauthbearer.sasl.server.callback.handler.class": f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "oauthbearer.sasl.oauthbearer.jwks.endpoint.url": tokens.keys.as_uri(),
        "oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
        "oauthbearer.sasl.oauthbearer.expected.issuer": ISSUER,
    }
    mutual = {
        "ssl.client.auth": "required",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
    }
    return [Listener("SASL", "SASL_SSL", {**own, **sasl}), Listener("MUTUAL", "SSL", {**own, **mutual})]


def _add_scram(cluster: KafkaCluster, users: Mapping[str, str]) -> None:
    kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    changes = [UserScramCredentialUpsertion(user, kind, secret.encode()) for user, secret in users.items()]
    admin = cluster.admin
    for done in admin.alter_user_scram_credentials(changes, request_timeout=_TIMEOUT_S).values():
        done.result(_TIMEOUT_S)
