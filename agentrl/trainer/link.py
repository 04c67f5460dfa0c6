"""Rank 0's HTTP side: pull a batch, report a step; answer orders for weights. Blocking, on the standard library.

A controller that does not answer, or answers 5xx, may be restarting and is retried until a deadline; 409 means that the
controller of another epoch owns the run.
"""

from __future__ import annotations

import http.client
import logging
import time
from urllib.parse import urlsplit

from agentrl.errors import AgentrlError
from agentrl.trainer.job import ExitCode, TrainerExit
from agentrl.wire import Ack, NextRequest, Orders, OrdersRequest, StepDone, WeightsOffer, decode, encode

log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S = 60.0  # the controller holds a request for about 20 s
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.1, 2.0


class ControllerLink:
    """One controller. Methods raise TrainerExit with SUPERSEDED or UNREACHABLE."""

    def __init__(self, url: str, *, token: str, retry_s: float) -> None:
        self._address = urlsplit(url)
        self._headers = {"Content-Type": "application/msgpack", "Authorization": f"Bearer {token}"}
        self._retry_s = retry_s

    def next(self, request: NextRequest) -> bytes:
        """The encoded NextReply, undecoded: rank 0 hands it to the other ranks as it is."""
        return self._post("/trainer/next", encode(request))

    def done(self, message: StepDone) -> Ack:
        """Report a step that is on disk. Idempotent."""
        return decode(self._post("/trainer/done", encode(message)), Ack)

    def orders(self, request: OrdersRequest) -> Orders:
        """Which orders for weights stand, as soon as that has changed."""
        return decode(self._post("/trainer/orders", encode(request)), Orders)

    def offer(self, message: WeightsOffer) -> None:
        """Answer an order."""
        self._post("/trainer/offer", encode(message))

    def _post(self, path: str, body: bytes) -> bytes:
        deadline: float | None = None
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                status, answer = self._attempt(path, body)
                problem = f"HTTP {status}"
            except TimeoutError:
                status, problem = 504, f"no answer in {_REQUEST_TIMEOUT_S:g} s"
            except (OSError, http.client.HTTPException) as error:
                status, problem = 503, str(error) or type(error).__name__
            if status == 200:
                return answer
            if status == 409:
                raise TrainerExit(ExitCode.SUPERSEDED, f"the controller at {self._address.netloc} refused our epoch")
            if status < 500:
                raise AgentrlError(f"POST {path}: HTTP {status}: {answer[:200].decode(errors='replace')}")
            deadline = deadline or time.monotonic() + self._retry_s  # counts from the first failure
            if time.monotonic() + backoff_s > deadline:
                raise TrainerExit(
                    ExitCode.UNREACHABLE,
                    f"no controller at {self._address.netloc} for {self._retry_s:g} s: {problem}",
                )
            log.warning("POST %s: %s; trying again in %.1f s", path, problem, backoff_s)
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    def _attempt(self, path: str, body: bytes) -> tuple[int, bytes]:
        connect = http.client.HTTPSConnection if self._address.scheme == "https" else http.client.HTTPConnection
        connection = connect(self._address.netloc, timeout=_REQUEST_TIMEOUT_S)
        try:
            connection.request("POST", self._address.path + path, body=body, headers=self._headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()
