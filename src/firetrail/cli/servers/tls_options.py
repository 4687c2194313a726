"""The options of TLS of the commands that run servers."""

import argparse

from firetrail.cli.output import say
from firetrail.cli.servers import server_command
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsConfig, TlsMode


def add_arguments(
    parser: argparse.ArgumentParser, in_file: str = "", without: str = "none"
) -> None:
    """Add ``--tls-cert`` and the related options.

    Args:
        parser: The parser of the command.
        in_file: Where else the paths may be set, for the help. Default: nowhere.
        without: The behaviour without a certificate, for the help. Default: empty.
    """
    for name, what, key in (
        ("cert", "certificate of all ports", "tlsCertPath"),
        ("key", "private key of this certificate", "tlsKeyPath"),
    ):
        default = f"{key}{in_file}, or {without}" if in_file else without
        parser.add_argument(
            f"--tls-{name}",
            metavar="PEM",
            default="",
            help=f"file with the {what} (default: {default})",
        )
    parser.add_argument(
        "--tls-mode",
        choices=[mode.value for mode in TlsMode],
        default="",
        help="whether clients must, may or cannot use TLS (default: they may if there is a "
        "certificate)",
    )
    parser.add_argument(
        "--tls-trust",
        metavar="PEM",
        default="",
        help="file with the issuers of client certificates, which are required then",
    )
    parser.add_argument(
        "--tls-config",
        metavar="FILE",
        default="",
        help="settings of TLS, in the format of RocketMQ's tls.properties",
    )


def tls_config(
    args: argparse.Namespace, certificate: str = "", key: str = "", file: str = ""
) -> TlsConfig:
    """Return the settings in the arguments, which take precedence, and in files.

    Args:
        args: The arguments.
        certificate: The path of the certificate in the settings of the server.
        key: The path of its key there.
        file: The path of ``tls.properties`` there.

    Raises:
        ConfigError: A file cannot be read, or a value is not allowed.
    """
    config, remarks = TlsConfig.combined(
        args.tls_config or file,
        certificate=args.tls_cert or certificate,
        key=args.tls_key or key,
        mode=args.tls_mode,
        trust=args.tls_trust,
    )
    server_command.report(remarks)
    return config


def server_tls(config: TlsConfig) -> ServerTls | None:
    """Return the TLS of the ports; None if the settings do not mention it.

    Raises:
        ConfigError: A file cannot be used.
    """
    tls = ServerTls.of_config(config)
    if tls is not None and tls.mode is TlsMode.PERMISSIVE:
        say("clients may use TLS or plaintext; once all use TLS, set --tls-mode enforcing")
    return tls
