"""The credentials of a client: an access key, which is the name of a user, and its secret key."""

from dataclasses import dataclass, field
from typing import NoReturn

from firetrail.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials with which a client signs its requests.

    The text of an instance shows neither the secret key nor the security token, and an instance
    cannot be pickled, so that no secret reaches a log, an event log or a checkpoint by accident.

    Args:
        access_key: The name of the user. It is sent with every request.
        secret_key: The key of the signatures. It is never sent.
        security_token: A token that some services issue together with temporary keys; it is sent
            with every request. None if there is none.

    Raises:
        ConfigError: The access key or the secret key is empty.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.access_key:
            raise ConfigError("access_key", "", "must not be empty")
        if not self.secret_key:
            raise ConfigError("secret_key", "", f"must not be empty (user {self.access_key})")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the credentials of {self.access_key} cannot be pickled: give each process the name of"
            " a file or of an environment variable that holds them"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self.__reduce__()
