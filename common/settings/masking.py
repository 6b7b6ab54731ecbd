"""Which parts of a setting's value may be shown: on a page, in a log, in an error, on a command line.

Rules:

1. A value under a key that sounds secret is never shown, and neither are passwords in URLs, credentials in headers and
   assignments such as ``-Djavax.net.ssl.trustStorePassword=…``, under any key.
2. A value from the environment or a file is shown as written in the config: ``${NAME}``, ``${file:PATH}``. Where its
   text appears in another value or in an error, the reference replaces it.
"""

import re
from dataclasses import dataclass, field

MASK = "********"
_HIDDEN_WORDS = (
    r"passw|passphrase|passcode|secret|token|credential|private|jaas|jwt|authorization|cookie|signature|"
    r"account[._-]?key|access[._-]?key|api[._-]?key|encryption[._-]?key(?!size)|(?:customer|provided|keystore)[._-]?key|"
    r"connection[._-]?string|oauthbearer[._]config|user[._]?info|key[._-]pem|custom[._-]headers|fs\.azure\.sas"
)
_SECRET_KEY = re.compile(rf"{_HIDDEN_WORDS}|^(key|pwd|sas|auth)$", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(:/+[^/@:\s]*):([^/@\s]+)@")
_MASKED_URL = rf"\1:{MASK}@"
_IN_TEXT = (
    (_URL_PASSWORD, _MASKED_URL),
    (re.compile(r"\b(Bearer|Basic)\s+(?!\*)[^\s;,\"']+", re.IGNORECASE), rf"\1 {MASK}"),
    (
        re.compile(
            rf"(?<![\w.-])([\w.-]*(?:{_HIDDEN_WORDS})[\w.-]*|sig|SharedAccessSignature|X-Amz-Signature)"
            r"(\s*[=:]\s*)(?!//)(?!\*|Bearer |Basic )[^\s;,&\"']+",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}",
    ),
)
_ONLY_REFERENCES = re.compile(r"(\$\{[^}]*\})+")
_LEAST_CHARACTERS = 6


def sounds_secret(key: str) -> bool:
    """Whether a value under this key is never shown."""
    return _SECRET_KEY.search(key) is not None


def mask(key: str, value: object) -> object:
    if value in (None, ""):
        return value
    if sounds_secret(key):
        return MASK
    return masked_text(value) if isinstance(value, str) else value


def masked_urls(text: str) -> str:
    """Text without the passwords of its URLs."""
    return _URL_PASSWORD.sub(_MASKED_URL, text)


def masked_text(text: str) -> str:
    """Text without the credentials that can be recognized by their form."""
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


@dataclass(slots=True)
class References:
    """Values that a config took from the environment and from files (rule 2)."""

    written: dict[tuple[str, ...], str] = field(default_factory=dict, compare=False)
    """Values with references as written in the config, by place."""
    texts: dict[str, str] = field(default_factory=dict, compare=False)
    """The reference for each text that came from one."""

    def restored(self, text: str) -> str:
        """Text with references in place of their values, except for values too short to recognize."""
        for text_found in sorted(self.texts, key=len, reverse=True):
            if len(text_found) >= _LEAST_CHARACTERS:
                text = text.replace(text_found, self.texts[text_found])
        return text

    def masked(self, value: object, path: tuple[str, ...]) -> object:
        """A value of the settings as it may be shown; ``path`` are the keys that lead to it."""
        if isinstance(value, dict):
            return {key: self.masked(inner, (*path, str(key))) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.masked(inner, (*path, str(index))) for index, inner in enumerate(value)]
        return value if value in (None, "") else self._masked_scalar(value, path)

    def _masked_scalar(self, value: object, path: tuple[str, ...]) -> object:
        written = self.written.get(path)
        if written is not None and _ONLY_REFERENCES.fullmatch(written):
            return written
        if any(map(sounds_secret, path)):
            return MASK
        if written is None and not isinstance(value, str):
            return value
        shown = self.restored(str(value).replace("${", "$${")) if written is None else written
        # SQL and column types look like assignments of secrets, but are not.
        return masked_urls(shown) if path[:1] == ("streams",) else masked_text(shown)
