"""Headers of the requests about users and policies, and about the accounts of ACL 1.0."""

from dataclasses import dataclass

from firetrail.remoting.messages.typed_header import Header, OtherText, ShownName


@dataclass(frozen=True, slots=True)
class UserHeader(Header):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER and AUTH_GET_USER."""

    username: ShownName


@dataclass(frozen=True, slots=True)
class AclHeader(Header):
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_DELETE_ACL and AUTH_GET_ACL."""

    subject: ShownName
    policy_type: ShownName | None = None
    resource: ShownName | None = None


@dataclass(frozen=True, slots=True)
class UserFilterHeader(Header):
    """AUTH_LIST_USER: the users whose names contain a text."""

    filter: OtherText = ""


@dataclass(frozen=True, slots=True)
class AclFilterHeader(Header):
    """AUTH_LIST_ACL: the policies whose subjects and resources contain a text."""

    subject_filter: OtherText = ""
    resource_filter: OtherText = ""


@dataclass(frozen=True, slots=True)
class AccountHeader(Header):
    """DELETE_ACL_CONFIG and, with all fields of an account, UPDATE_AND_CREATE_ACL_CONFIG."""

    access_key: ShownName = ""


@dataclass(frozen=True, slots=True)
class WhiteAddressesHeader(Header):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG."""

    global_white_addrs: OtherText = ""
    acl_file_full_path: OtherText = ""
