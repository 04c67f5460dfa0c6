"""Sends engines the weights that the controller orders for them, while the trainer trains.

A thread asks which orders stand, and each is carried out in a thread of its own: whatever hangs in one, with an engine
that died, hangs until that order's deadline and in nobody else's way. Nobody waits for these threads.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from torch import Tensor

from agentrl.errors import AgentrlError
from agentrl.trainer.job import Publication
from agentrl.trainer.link import ControllerLink
from agentrl.transfer.group import GLOO, NCCL, Group, host_store, local_address
from agentrl.transfer.handles import to_handles
from agentrl.wire import Meeting, OrdersRequest, Piece, Transfer, WeightsOffer, WeightsOrder

if TYPE_CHECKING:
    from agentrl.trainer.publish import Staged

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 30
"""An engine has room for about so much beside its weights while a piece arrives."""


class Sender:
    """Of one life of rank 0. `offer` may be called at any time."""

    def __init__(self, link: ControllerLink, *, epoch: int, publication: Publication, controller_url: str) -> None:
        self._link = link
        self._epoch = epoch
        self._publication = publication
        self._controller = urlsplit(controller_url)
        self._staged: Staged | None = None
        self._over: dict[int, threading.Event] = {}
        self._closed = False

    def start(self) -> None:
        threading.Thread(target=self._serve, name="orders", daemon=True).start()

    def offer(self, staged: Staged) -> None:
        """This is what engines get from now on; what is being sent already is sent to its end."""
        self._staged = staged

    def close(self) -> None:
        self._closed = True

    def _serve(self) -> None:
        try:
            while not self._closed:
                known = sorted(self._over)
                standing = {
                    order.number: order
                    for order in self._link.orders(OrdersRequest(epoch=self._epoch, known=known)).standing
                }
                for number in known:
                    if number not in standing:
                        self._over.pop(number).set()
                for number in standing.keys() - set(known):
                    over = self._over[number] = threading.Event()
                    threading.Thread(target=self._carry_out, args=(standing[number], over), daemon=True).start()
        except AgentrlError as error:
            log.warning("no more orders for weights: %s", error)  # the loop of steps finds out for itself

    def _carry_out(self, order: WeightsOrder, over: threading.Event) -> None:
        staged = self._staged
        try:
            if staged is None or staged.version != order.version:
                problem = f"version {order.version} is not here, but {staged.version if staged else 'none'}"
                self._answer(order, None, problem)
            elif self._publication.send == "direct":
                self._through_group(order, staged.after(order.base), over)
            else:
                self._through_memory(order, staged.after(order.base), over)
        except (AgentrlError, RuntimeError, OSError) as error:
            log.warning("order %d of version %d: %s", order.number, order.version, error)

    def _through_group(self, order: WeightsOrder, tensors: Mapping[str, Tensor], over: threading.Event) -> None:
        publication = self._publication
        store, port = host_store(publication.timeout_s)
        address = publication.address or local_address(self._controller.hostname or "", self._controller.port or 80)
        meeting = Meeting(
            address=address,
            port=port,
            name=f"agentrl-{self._epoch}-{order.number}-{os.getpid()}",
            size=1 + len(order.devices),
            backend=GLOO if publication.device < 0 else NCCL,
        )
        self._answer(order, _transfer(order, tensors, _pieces(tensors), meeting))
        group = Group(
            store,
            name=meeting.name,
            rank=0,
            size=meeting.size,
            backend=meeting.backend,
            address=address,
            timeout_s=publication.timeout_s,
        )
        for tensor in tensors.values():
            group.broadcast(tensor if publication.device < 0 else tensor.to(f"cuda:{publication.device}"))
        over.wait(publication.timeout_s)  # a connection that is closed too soon takes with it what is on its way
        group.close()

    def _through_memory(self, order: WeightsOrder, tensors: Mapping[str, Tensor], over: threading.Event) -> None:
        on_ranks = [_on(device, tensors) for device in order.devices]
        self._answer(order, _transfer(order, tensors, _pieces(tensors, on_ranks), None))
        over.wait(self._publication.timeout_s)  # handles are good as long as the tensors are kept

    def _answer(self, order: WeightsOrder, transfer: Transfer | None, problem: str = "") -> None:
        self._link.offer(WeightsOffer(epoch=self._epoch, number=order.number, transfer=transfer, problem=problem))


def _on(device: int, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Where a rank reaches them: in this memory, or copied to its GPU."""
    return tensors if device < 0 else {name: tensor.to(f"cuda:{device}") for name, tensor in tensors.items()}


def _transfer(
    order: WeightsOrder, tensors: Mapping[str, Tensor], pieces: Iterator[Piece], meeting: Meeting | None
) -> Transfer:
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    return Transfer(version=order.version, pieces=list(pieces), meeting=meeting, num_bytes=num_bytes)


def _pieces(tensors: Mapping[str, Tensor], on_ranks: list[Mapping[str, Tensor]] | None = None) -> Iterator[Piece]:
    """Tensors in order, cut before a piece gets larger than `PIECE_BYTES`."""
    filled, number = 0, 0
    numbers: dict[str, int] = {}
    for name, tensor in tensors.items():
        if filled and filled + tensor.nbytes > PIECE_BYTES:
            filled, number = 0, number + 1
        filled += tensor.nbytes
        numbers[name] = number
    for _, group in itertools.groupby(tensors, key=numbers.__getitem__):
        names = list(group)
        yield Piece(
            names=names,
            dtypes=[str(tensors[name].dtype).removeprefix("torch.") for name in names],
            shapes=[list(tensors[name].shape) for name in names],
            handles=[to_handles([(name, rank[name]) for name in names]) for rank in on_ranks or ()],
        )
