"""The wires between simulated trainers and engines: what is being sent ends with the trainer that sends it."""

from __future__ import annotations

from agentrl.errors import EngineError
from agentrl.wire import Meeting, Piece, Transfer


class SimulatedGroups:
    """Of one controller's life."""

    def __init__(self, num_pieces: int = 3) -> None:
        """Every transfer comes in so many pieces."""
        self._num_pieces = num_pieces
        self._open: dict[str, str] = {}

    def open(self, node: str, number: int, version: int) -> Transfer:
        """The trainer on `node` sends a version, for the order of that number."""
        name = f"{node}/{number}"
        self._open[name] = node
        pieces = [
            Piece(names=[f"t{index}"], dtypes=["float32"], shapes=[[1]], handles=[])
            for index in range(self._num_pieces)
        ]
        meeting = Meeting(address="simulated", port=1, name=name, size=2, backend="gloo")
        return Transfer(version=version, pieces=pieces, meeting=meeting, num_bytes=4 * self._num_pieces)

    def lose(self, node: str) -> None:
        """Its trainer is dead."""
        self._open = {name: sender for name, sender in self._open.items() if sender != node}

    def check(self, transfer: Transfer) -> None:
        """Raises EngineError if nobody sends that any more."""
        if transfer.meeting is None or transfer.meeting.name not in self._open:
            raise EngineError("the sender is gone")
