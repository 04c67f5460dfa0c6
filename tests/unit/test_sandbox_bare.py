"""Sandboxes without isolation: where they are refused, which folders they would make, which tasks they cannot have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.config.plan import plan
from agentrl.config.schema import JobConfig
from agentrl.doctor.check import Status
from agentrl.doctor.sandboxes import judge_bare
from agentrl.errors import ImageError, UserError
from agentrl.sandbox.bare.host import refusal
from agentrl.sandbox.bare.places import CLEARED, folders_of, in_the_way, misfit
from agentrl.sandbox.config import Isolation, SandboxConfig
from agentrl.sandbox.provider import Copy, Image, Run, SandboxSpec
from agentrl.sandbox.supervisor.bare import own_name
from agentrl.tasks import verifier
from agentrl.tasks.dataset import Dataset, without_isolation
from agentrl.tasks.task import Task

GRADING = ("/tests", "/logs", "/solution")


def holds(*paths: str) -> Callable[[str], bool]:
    return lambda path: path in {"/", *paths}


@pytest.mark.parametrize(
    ("root", "allowed", "writable", "taken", "said"),
    [
        (True, True, True, (), None),
        (False, False, True, (), None),
        (True, False, True, (), "gives the whole machine to the model"),
        (False, True, False, (), "may not"),
        (True, True, True, ("/tests",), "would remove /tests"),
    ],
)
def test_who_may_run_without_isolation(
    root: bool, allowed: bool, writable: bool, taken: tuple[str, ...], said: str | None
) -> None:
    refused = refusal(root=root, allowed=allowed, writable=writable, taken=taken)
    assert refused is None if said is None else refused is not None and said in refused[0]


def test_what_is_in_the_way_of_every_task_is_named_but_for_what_will_be_removed() -> None:
    exists = holds("/tests", "/logs", "/setup.cfg", "/app")
    assert in_the_way(exists=exists) == ["/tests", "/logs", "/setup.cfg"]
    assert in_the_way(exists=exists, left={"/tests", "/logs"}) == ["/setup.cfg"]
    assert in_the_way(exists=holds()) == []


def test_all_that_grading_removes_from_the_machines_root_is_looked_for() -> None:
    removed = {
        word for word in verifier._RUN.split() if word.startswith("/") and word.endswith((".py", ".ini", ".cfg"))
    }
    assert removed
    assert removed <= set(CLEARED)


def test_the_topmost_missing_folders_are_made_and_none_twice(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    image = Image(
        workdir="/srv/own/deep",
        copies=(
            Copy(source=tmp_path, target="/srv/own/data"),
            Copy(source=tmp_path / "file", target="/opt/own/file"),
            Copy(source=tmp_path, target="/tests/data/../more"),
        ),
    )
    assert folders_of(image, exists=holds("/srv", "/opt")) == (*GRADING, "/srv/own", "/opt/own")


@pytest.mark.parametrize("workdir", ["/", "/root", "/srv"])
def test_a_working_folder_that_is_there_is_refused(workdir: str) -> None:
    with pytest.raises(ImageError, match=f"needs a {workdir} of its own"):
        folders_of(Image(workdir=workdir), exists=holds("/root", "/srv"))
    left = {workdir} - {"/"}
    assert not left or folders_of(Image(workdir=workdir), exists=holds("/root", "/srv"), left=left)


def test_a_file_of_an_image_comes_only_to_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in ("/etc/passwd", "/file"):
        with pytest.raises(ImageError, match="already"):
            folders_of(
                Image(workdir="/app", copies=(Copy(source=tmp_path / "file", target=target),)), exists=holds("/etc")
            )


def test_images_with_steps_or_other_users_do_not_fit() -> None:
    assert misfit(Image(), None, own_name()) is None
    assert "built" in str(misfit(Image(steps=(Run(argv=("true",)),))))
    assert "user agent" in str(misfit(Image(user="agent")))
    assert "user agent" in str(misfit(Image(), None, "agent"))


def test_tasks_that_need_isolation_are_left_out_with_the_reason() -> None:
    def task(name: str, *, workdir: str = "/no/such", user: str | None = None) -> Task:
        spec = SandboxSpec(image=Image(workdir=workdir))
        return Task(name=name, folder=Path("/tasks", name), instruction="", spec=spec, agent_user=user)

    dataset = Dataset((task("good"), task("user", user="agent")), (task("here", workdir="/usr"),))
    found = without_isolation(dataset, left=GRADING)
    assert [one.name for one in (*found.train, *found.heldout)] == ["good"]
    assert {skipped.folder.name: skipped.reason.split()[0] for skipped in found.skipped} == {
        "user": "runs",
        "here": "needs",
    }
    with pytest.raises(UserError, match="none can run here: the first needs a /usr of its own"):
        without_isolation(Dataset((task("here", workdir="/usr"),), ()))


def test_plan_and_doctor_say_it() -> None:
    config = JobConfig(sandbox=SandboxConfig(isolation=Isolation.none))
    assert plan(config).sandboxes.provider == "no isolation: this machine itself"
    assert "rights of" in judge_bare(None).means
    refused = judge_bare("no container")
    assert (refused.status, refused.found) == (Status.OK, "refused: no container")
