"""The packages of the extra ``grpc``; this module can be imported without them."""

INSTALL = "pip install 'firetrail[grpc]'"
PACKAGES = frozenset({"cryptography", "google", "hpack"})


def is_missing(error: ModuleNotFoundError) -> bool:
    """Return whether an import failed because the extra is not installed."""
    return (error.name or "").partition(".")[0] in PACKAGES
