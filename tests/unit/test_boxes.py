"""The boxes family: its tasks differ, each has one right answer, and demonstrations act on what they have read."""

from __future__ import annotations

from random import Random

import pytest

from agentrl.tasks.families import boxes


def test_tasks_are_all_different_and_the_same_for_a_seed() -> None:
    tasks = boxes.generate(96, seed=3)
    assert len({task.name for task in tasks}) == 96
    assert len({str(sorted(task.files.items())) for task in tasks}) == 96
    assert tasks == boxes.generate(96, seed=3)
    assert tasks != boxes.generate(96, seed=4)


def test_more_tasks_extend_fewer() -> None:
    assert boxes.generate(40, seed=0)[:8] == boxes.generate(8, seed=0)


def test_too_many_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 100000"):
        boxes.generate(100_001, seed=0)


def test_only_the_named_box_holds_the_digit_that_the_verifier_wants() -> None:
    for task in boxes.generate(64, seed=1):
        named = task.files["environment/files/note"].strip()
        digits = {box: task.files[f"environment/files/{box}"].strip() for box in boxes.NAMES}
        assert len(set(digits.values())) == len(boxes.NAMES)
        assert f'= "{digits[named]}" ]' in task.files["tests/test.sh"]


def test_the_instruction_does_not_tell_the_answer() -> None:
    assert len({task.files["instruction.md"] for task in boxes.generate(64, seed=1)}) == 1


def test_careful_demonstrations_copy_the_box_that_they_read() -> None:
    for dialogue in boxes.demonstrations(Random(0), 50, hasty_share=0.0):
        (_, read), (_, note), (_, copied), _, (_, last) = dialogue[1:]
        assert (read, copied, last) == ("cat note", f"cp {note} answer", "done")


def test_hasty_demonstrations_do_not_read() -> None:
    dialogues = boxes.demonstrations(Random(0), 50, hasty_share=1.0)
    assert all(("assistant", "cat note") not in dialogue for dialogue in dialogues)
    assert {dialogue[1][1].split()[1] for dialogue in dialogues} == set(boxes.NAMES)


def test_hasty_share_is_the_share_of_hasty_demonstrations() -> None:
    dialogues = boxes.demonstrations(Random(0), 2000, hasty_share=0.7)
    assert sum(len(dialogue) == 4 for dialogue in dialogues) / 2000 == pytest.approx(0.7, abs=0.05)
