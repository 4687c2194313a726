"""Administration of users and their policies (ACL 2.0), a base of :class:`firetrail.client.Admin`.

Every broker has its own users, so each method asks all brokers, slaves included.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from firetrail.access.acl_deletion import check_acl_deletion
from firetrail.access.user_bodies import AclInfo, UserInfo, check_user_name, listed
from firetrail.auth.policies import SUBJECT_PREFIX, Decision, PolicyType, UserStatus, UserType
from firetrail.client.administration.topic_admin import TopicAdmin
from firetrail.client.cluster.client_arguments import checked_address, one_of
from firetrail.errors import ConfigError, RequestError, UnsupportedError
from firetrail.format.values.arguments import several, text
from firetrail.remoting.messages.admin.user_headers import AclHeader, UserHeader
from firetrail.remoting.messages.bodies import MASTER_ID
from firetrail.remoting.messages.typed_header import Header
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

OFF = (
    "access control is switched off there, or uses the accounts of ACL 1.0, or the broker is older "
    "than RocketMQ 5.3; set authenticationEnabled=true in broker.conf"
)


class UserAdmin(TopicAdmin):
    """The part of :class:`Admin` for users and their policies.

    All methods have the arguments ``cluster``, the name of a cluster whose brokers are asked
    (default: all clusters), and ``address``, the address ``host:port`` of the only broker to ask
    (default: all brokers). They raise RequestError if a broker refuses a request, unless a super
    user has signed it. UnsupportedError says that a broker has no access control.
    """

    async def users(
        self, *, cluster: str | None = None, address: str | None = None
    ) -> dict[str, list[UserInfo]]:
        """Return the users of each broker, sorted by name, without passwords.

        Args:
            cluster: The name of a cluster. Default: all clusters.
            address: The address of the only broker to ask. Default: all brokers.

        Returns:
            Users by broker: its name, followed by ``/`` and its id if it is a slave.
        """
        answers = await self._ask_brokers(RequestCode.AUTH_LIST_USER, cluster, address)
        # Java brokers send passwords: they are not passed on.
        return {
            broker: sorted(
                (
                    replace(UserInfo.from_json(each), password=None)
                    for each in listed(answer.content)
                ),
                key=lambda user: user.username,
            )
            for broker, answer in answers.items()
        }

    async def create_user(
        self,
        name: str,
        password: str,
        *,
        user_type: UserType = UserType.NORMAL,
        cluster: str | None = None,
        address: str | None = None,
    ) -> None:
        """Create a user on every broker.

        Args:
            name: The name of the user, which is the access key of its clients.
            password: Its password, which is their secret key.
            user_type: Whether the user may do everything. Default: False, only what its policies
                allow.
            cluster: The name of a cluster. Default: all clusters.
            address: The address of the only broker to ask. Default: all brokers.

        Raises:
            RequestError: A broker has a user with this name, or refuses the password.
        """
        body = UserInfo(
            check_user_name(text("name", name)),
            _password(password),
            one_of(UserType, "user_type", user_type),
            UserStatus.ENABLED,
        )
        code = RequestCode.AUTH_CREATE_USER
        await self._ask_brokers(code, cluster, address, UserHeader(name), body)

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        user_type: UserType | None = None,
        status: UserStatus | None = None,
        cluster: str | None = None,
        address: str | None = None,
    ) -> None:
        """Change a user on every broker.

        Args:
            name: The name of the user.
            password: The new password. Default: no change.
            user_type: Whether the user may do everything. Default: no change.
            status: Whether the user may connect. Default: no change.
            cluster: The name of a cluster. Default: all clusters.
            address: The address of the only broker to ask. Default: all brokers.

        Raises:
            RequestError: A broker has no such user, refuses the password, or would have no enabled
                super user.
        """
        body = UserInfo(
            text("name", name),
            None if password is None else _password(password),
            None if user_type is None else one_of(UserType, "user_type", user_type),
            None if status is None else one_of(UserStatus, "status", status),
        )
        code = RequestCode.AUTH_UPDATE_USER
        await self._ask_brokers(code, cluster, address, UserHeader(name), body)

    async def delete_user(
        self, name: str, *, cluster: str | None = None, address: str | None = None
    ) -> None:
        """Delete a user and its policies on every broker that has it.

        Args:
            name: The name of the user.
            cluster: The name of a cluster. Default: all clusters.
            address: The address of the only broker to ask. Default: all brokers.

        Raises:
            RequestError: The user is the one that signs, or the last enabled super user.
        """
        code = RequestCode.AUTH_DELETE_USER
        await self._ask_brokers(code, cluster, address, UserHeader(text("name", name)))

    async def acls(
        self, *, cluster: str | None = None, address: str | None = None
    ) -> dict[str, list[AclInfo]]:
        """Return the policies of all users that have any, of each broker.

        Args:
            cluster: The name of a cluster. Default: all clusters.
            address: The address of the only broker to ask. Default: all brokers.

        Returns:
            Policies by broker, named as in :meth:`users`.
        """
        answers = await self._ask_brokers(RequestCode.AUTH_LIST_ACL, cluster, address)
        return {
            broker: [AclInfo.from_json(each) for each in listed(answer.content)]
            for broker, answer in answers.items()
        }

    async def set_acl(
        self,
        name: str,
        resources: Sequence[str],
        actions: Sequence[str],
        *,
        decision: Decision = Decision.ALLOW,
        sources: Sequence[str] = (),
        policy_type: PolicyType = PolicyType.CUSTOM,
        cluster: str | None = None,
        address: str | None = None,
    ) -> None:
        """Add an entry for each resource to a policy of a user, or replace it, on every broker.

        Args:
            name: The name of the user.
            resources: The resources of the entries: ``Topic:name``, ``Topic:prefix*``, ``Topic:*``,
                the same with Group and Cluster, or ``*``.
            actions: Pub, Sub, Create, Update, Delete, Get, List or All.
            decision: Whether the actions are allowed or denied. Default: allowed.
            sources: Addresses and networks of clients that the entries are for. Default: all.
            policy_type: Which policy of the user. Default: Custom; the other one, Default, is used
                if no entry of the first applies.
            cluster: The name of a cluster. Default: all clusters.
            address: The address of the only broker to ask. Default: all brokers.

        Raises:
            ConfigError: A resource, an action or a source is not valid.
            RequestError: A broker has no such user.
        """
        body = AclInfo.granting(
            text("name", name),
            several("resources", resources, str),
            several("actions", actions, str),
            one_of(Decision, "decision", decision),
            several("sources", sources, str),
            one_of(PolicyType, "policy_type", policy_type),
        )
        code = RequestCode.AUTH_UPDATE_ACL
        await self._ask_brokers(code, cluster, address, AclHeader(body.subject), body)

    async def delete_acl(
        self,
        name: str,
        *,
        resource: str | None = None,
        policy_type: PolicyType | None = None,
        cluster: str | None = None,
        address: str | None = None,
    ) -> None:
        """Delete entries of the policies of a user on every broker.

        Args:
            name: The name of the user.
            resource: The resource of the entries. Default: all entries.
            policy_type: Which policy. Default: both.
            cluster: The name of a cluster. Default: all clusters.
            address: The address of the only broker to ask. Default: all brokers.

        Raises:
            NoSuchError: No broker has such an entry.
            ConfigError: The resource is not valid.
            RequestError: Some brokers have no such user.
        """
        name = text("name", name).removeprefix(SUBJECT_PREFIX)
        kind = None if policy_type is None else one_of(PolicyType, "policy_type", policy_type)
        resource = None if resource is None else text("resource", resource)
        found = await self.acls(cluster=cluster, address=address)
        place = address or cluster or ", ".join(found)
        check_acl_deletion(chain(*found.values()), name, resource, kind, place)
        header = AclHeader(SUBJECT_PREFIX + name, kind, resource)
        await self._ask_brokers(RequestCode.AUTH_DELETE_ACL, cluster, address, header)

    async def _ask_brokers(
        self,
        code: RequestCode,
        cluster: str | None,
        address: str | None,
        header: Header | None = None,
        body: UserInfo | AclInfo | None = None,
    ) -> dict[str, RemotingCommand]:
        """Ask every broker; return the answers. The error of a broker begins with its name."""
        found = {}
        content = b"" if body is None else body.encode(standard=True)
        for broker, target in (await self._brokers(cluster, address)).items():
            answer = await self._session.request(target, code, header, content)
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise UnsupportedError(f"{broker}: {OFF}")
            if answer.code != ResponseCode.SUCCESS:
                reason = (answer.remark or "no reason given").strip()
                raise RequestError(answer.code, f"{broker}: {reason}")
            found[broker] = answer
        return found

    async def _brokers(self, cluster: str | None, address: str | None) -> dict[str, str]:
        """Return the addresses of the brokers to ask, by their names."""
        if address is not None:
            return {address: checked_address(address)}
        if cluster is not None:
            text("cluster", cluster)
        table = (await self.cluster()).broker_addr_table
        found = {
            name if broker_id == MASTER_ID else f"{name}/{broker_id}": target
            for name, data in sorted(table.items())
            if cluster in (None, data.cluster)
            for broker_id, target in sorted(data.broker_addrs.items())
        }
        if not found:
            await self._masters_to_change(cluster)  # raises
        return found


def _password(password: str) -> str:
    """Return a password; the error about a wrong one does not show it."""
    if not isinstance(password, str) or not password:
        raise ConfigError("password", "", "expected a str that is not empty")
    return password
