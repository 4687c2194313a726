"""The check whether the master of a replica that is promoted by force is really lost.

A Firetrail broker reports its status. A Java broker does not know that request, so it is asked for
its settings, which contain its role.
"""

from typing import NamedTuple

from firetrail.broker.replica.role_requests import ask_status
from firetrail.errors import FiretrailError, NotReachedError, RequestError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.replica_bodies import ReplicaStatus, is_slave_role
from firetrail.replication.replica.master_check import Master, MasterAddress

_OVERRIDE = "If producers cannot reach this master, use --force --override"


class LiveMaster(NamedTuple):
    """The state of a master, as far as it is known.

    Attributes:
        epoch: The number of its epoch; 0 if it does not answer, or has none.
        obstacle: Why it must not be replaced by force; empty if it does not accept messages.
    """

    epoch: int = 0
    obstacle: str = ""


async def live_master(client: RemotingClient, address: str) -> LiveMaster:
    """Ask a master, Firetrail's or Java's, whether it accepts messages.

    Args:
        client: Sends the requests.
        address: ``ip:port`` of the master.
    """
    try:
        status = await ask_status(client, address)
    except RequestError:
        return LiveMaster(obstacle=await _obstacle_of_other(client, address))
    except (FiretrailError, OSError):
        return LiveMaster()
    return LiveMaster(status.epoch, _obstacle(status))


def _obstacle(master: ReplicaStatus) -> str:
    if master.is_slave or master.refusal or master.hand_over is not None:
        return ""
    return (
        f"its master {master.address} runs and accepts messages, which would be lost; a planned "
        f"promotion needs no --force. {_OVERRIDE}"
    )


async def _obstacle_of_other(client: RemotingClient, address: str) -> str:
    """Return why a broker that answers, but not with its status, must not be replaced."""
    try:
        settings = await Master(client, MasterAddress(address)).settings()
    except NotReachedError:
        return ""
    except FiretrailError:  # it refuses, so it runs
        settings = {}
    if is_slave_role(settings.get("brokerRole", "")):
        return ""
    return (
        f"its master {address} runs, and messages that it accepts would be lost; stop it when the "
        f"replica has received everything, and try again. {_OVERRIDE}"
    )
