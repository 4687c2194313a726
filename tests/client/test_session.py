"""What clients know about a cluster."""

from __future__ import annotations

from tests.client.clusters import clustered, fill

from firetrail.client.session import Session


def test_a_route_that_is_asked_for_again_still_leads_to_its_brokers() -> None:
    """Or a consumer could not tell a broker that was restarted how far it is."""

    async def test(namesrv: str) -> None:
        await fill(namesrv, "T", 1)
        session = await Session(namesrv).open()
        await session.route("T")
        address = session.address_of("broker-a")
        session.forget_route("T")
        assert session.address_of("broker-a") == address
        assert session.masters() == {address}
        session.forget_route("unknown")
        assert (await session.route("T")).queue_datas
        await session.close()

    clustered(test)
