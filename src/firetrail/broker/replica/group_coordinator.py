"""The consensus engine of a broker's group, as its settings name it."""

from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.connections.access import secret_content
from firetrail.replication.group.etcd import EtcdCoordinator
from firetrail.replication.group.etcd_gateway import EtcdAccess
from firetrail.system import System

ETCD_PART = 5
"""A request to etcd may take this part (one fifth) of the lease's time."""
ETCD_S = 2.0
"""The longest time that a request to etcd may take."""


def group_coordinator(config: BrokerConfig, system: System) -> EtcdCoordinator:
    """Return the entries of a broker's group in etcd.

    Args:
        config: The settings of the broker.
        system: Files and clock.

    Raises:
        ConfigError: A setting for etcd is not valid, or the file with the password cannot be read,
            or others can read it.
    """
    password = ""
    if config.etcd_password_file:
        password = secret_content("etcd_password_file", config.etcd_password_file, system).strip()
    access = EtcdAccess(
        tuple(config.etcd_servers),
        min(ETCD_S, config.ha_lease_s / ETCD_PART),
        config.etcd_user,
        password,
        config.etcd_ca_file,
        config.etcd_cert_file,
    )
    prefix = f"{config.etcd_prefix}/{config.cluster}/{config.name}"
    return EtcdCoordinator(access, prefix, config.ha_lease_s, system.clock)
