"""The listening side: a TLS socket that can go away and come back while the cluster's state stays."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import trustme
from aiohttp import web

from .http import Front

HOST = "127.0.0.1"


class Certificates:
    """An authority of its own, and a certificate for the server."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA(organization_name="fake kubernetes")
        names = (HOST, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        self.ca_file = folder / "ca.crt"
        authority.cert_pem.write_to_path(str(self.ca_file))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*names).configure_cert(self.context)


class Server:
    """One address for the life of the cluster; restarts keep the port."""

    def __init__(self, front: Front, certificates: Certificates) -> None:
        self._front = front
        self._certificates = certificates
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    async def start(self) -> None:
        self._runner = web.AppRunner(self._front.app(), access_log=None, shutdown_timeout=0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, HOST, self.port, ssl_context=self._certificates.context, reuse_address=True, backlog=512
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and cut every connection, as a killed process does."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        for site in list(runner.sites):
            await site.stop()
        assert runner.server is not None
        for connection in list(runner.server.connections):
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                transport.abort()
        await runner.cleanup()

    async def restart(self, down_s: float) -> None:
        await self.stop()
        await asyncio.sleep(down_s)
        await self.start()
