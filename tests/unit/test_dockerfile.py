"""The Dockerfiles that need no build, and what is said of the others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentrl.errors import TaskError
from agentrl.sandbox.provider import DEFAULT_PATH, Add, Image, Run, Step, Unpack
from agentrl.tasks.dockerfile import NotRunnable, read_dockerfile


def read(context: Path, text: str) -> Image:
    context.mkdir(exist_ok=True)
    for path in ("a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"):
        (context / path).parent.mkdir(parents=True, exist_ok=True)
        (context / path).write_text(path)
    (context / "Dockerfile").write_text(text)
    return read_dockerfile(context / "Dockerfile")


def copies(image: Image, context: Path) -> list[tuple[str, str]]:
    return [(str(copy.source.relative_to(context.resolve())), copy.target) for copy in image.copies]


def test_workdir_and_environment(tmp_path: Path) -> None:
    image = read(
        tmp_path / "environment",
        "# syntax=docker/dockerfile:1\n"
        "FROM --platform=linux/amd64 python:3.13-slim AS base\n"
        'LABEL a="b"\n\n'
        "USER root\n"
        "WORKDIR /srv\n"
        "workdir sub/\n"
        'ENV A=1 B="two words" \\\n'
        "    # a comment within\n"
        "    D=3\n"
        "ENV C=$A-${B}\n"
        "ENV OLD form of it\n"
        "ENV PATH=/opt/bin:$PATH\n"
        "COPY --from=ghcr.io/astral-sh/uv:0.8.15 /uv /uvx /bin/\n"
        "ENV PYTHONPATH=/app:$PYTHONPATH\n",
    )
    assert image.workdir == "/srv/sub"
    assert image.env == {
        "A": "1",
        "B": "two words",
        "D": "3",
        "C": "1-two words",
        "OLD": "form of it",
        "PATH": f"/opt/bin:{DEFAULT_PATH}",
        "PYTHONPATH": "/app:",
    }


def test_without_workdir_it_is_the_root(tmp_path: Path) -> None:
    assert read(tmp_path / "environment", "FROM x\n").workdir == "/"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("COPY a.txt /srv/new.txt", [("a.txt", "/srv/new.txt")]),
        ("COPY a.txt /srv/", [("a.txt", "/srv/a.txt")]),
        ("COPY a.txt .", [("a.txt", "/app/a.txt")]),
        ("COPY a.txt /root", [("a.txt", "/root/a.txt")]),
        ("COPY a.txt new", [("a.txt", "/app/new")]),
        ("COPY a.txt b.txt ./both/", [("a.txt", "/app/both/a.txt"), ("b.txt", "/app/both/b.txt")]),
        ("COPY *.txt /x/", [("a.txt", "/x/a.txt"), ("b.txt", "/x/b.txt")]),
        ("COPY sub /app/", [("sub", "/app")]),
        ("COPY sub/ /x", [("sub", "/x")]),
        ("COPY . .", [(".", "/app")]),
        ('COPY ["a.txt", "with space"]', [("a.txt", "/app/with space")]),
        ("COPY --chown=root:root --link a.txt /a", [("a.txt", "/a")]),
        ("ADD a.txt /a", [("a.txt", "/a")]),
    ],
)
def test_copies(tmp_path: Path, line: str, expected: list[tuple[str, str]]) -> None:
    context = tmp_path / "environment"
    assert copies(read(context, f"FROM x\nWORKDIR /app\n{line}\n"), context) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('ENTRYPOINT ["x"]', "ENTRYPOINT"),
        ("VOLUME /data", "VOLUME /data"),
        ("HEALTHCHECK CMD true", "HEALTHCHECK"),
        ("ARG A", "ARG A: it has no value"),
        ("ENV A=$NOT_SET", r"\$NOT_SET, which no ENV or ARG above sets"),
        ("WORKDIR $X", r"\$X, which no ENV or ARG above sets"),
        ("FROM y", "several stages"),
        ("COPY --from=base /x /y", "COPY --from=base"),
        ("COPY --chmod=755 a.txt /a", "COPY --chmod=755"),
        ("COPY a.txt /proc/a", "not the image's"),
        ("COPY a.txt /tests/", "not the image's"),
        ("ADD https://example.com/x /x", "ADD https://example.com/x"),
        ("RUN --mount=type=secret,id=x true", "RUN --mount=type=secret"),
    ],
)
def test_what_cannot_be_given_is_refused_by_name(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(NotRunnable, match=f"not runnable by the bubblewrap provider: .*{reason}"):
        read(tmp_path / "environment", f"FROM x\n{line}\n")


def test_a_base_that_stands_for_what_this_machine_lacks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda command, path: None)
    with pytest.raises(NotRunnable, match="this machine has no cargo"):
        read(tmp_path / "environment", "FROM docker.io/library/rust:1.90-slim\n")
    assert read(tmp_path / "environment", "FROM debian:12\n").steps == ()


def steps(image: Image) -> tuple[Step, ...]:
    """Without the stand-ins, which come before and go after."""
    served, *inner, removed = image.steps
    assert isinstance(served, Add) and isinstance(removed, Run)
    return tuple(inner)


def test_commands_become_steps_in_order_with_what_holds_for_them(tmp_path: Path) -> None:
    image = read(
        tmp_path / "environment",
        "ARG LEVEL=3\n"
        "FROM x\n"
        "RUN echo one \\\n   && echo two\n"
        "WORKDIR /srv\n"
        "COPY --chown=me:us a.txt .\n"
        "ENV A=1\n"
        'SHELL ["/bin/bash", "-c"]\n'
        "USER me\n"
        "RUN echo $LEVEL\n"
        'RUN ["touch", "x y"]\n'
        "RUN <<END\nif true; then\n  echo three\nfi\nEND\n"
        "CMD sleep infinity\n"
        "EXPOSE 80\n",
    )
    one, copied, level, touch, three = steps(image)
    assert isinstance(one, Run) and one.argv == ("/bin/sh", "-c", "echo one  && echo two")
    assert (one.workdir, one.user, one.env["LEVEL"]) == ("/", None, "3")
    assert isinstance(copied, Add) and copied.owner == "me:us"
    assert [copy.target for copy in copied.copies] == ["/srv/a.txt"]
    assert isinstance(level, Run) and level.argv == ("/bin/bash", "-c", "echo $LEVEL")
    assert (level.workdir, level.user, level.env["A"]) == ("/srv", "me", "1")
    assert isinstance(touch, Run) and touch.argv == ("touch", "x y")
    assert isinstance(three, Run) and three.argv[-1] == "if true; then\n  echo three\nfi"
    assert (image.copies, image.env, image.workdir, image.user) == ((), {"A": "1"}, "/srv", "me")


def test_archives_are_unpacked_and_files_in_the_base_need_a_build(tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "x.tar.gz").write_bytes(b"")
    (step,) = read(tmp_path / "environment", "FROM x\nADD x.tar.gz /opt\n").steps
    assert isinstance(step, Unpack) and step.target == "/opt"
    (step,) = read(tmp_path / "environment", "FROM x\nCOPY a.txt /usr/local/bin/a\n").steps
    assert isinstance(step, Add)


def test_dockerignore_matters_only_where_files_are_copied(tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / ".dockerignore").write_text("*.log\n")
    assert read(tmp_path / "environment", "FROM x\n").workdir == "/"
    with pytest.raises(NotRunnable, match="dockerignore"):
        read(tmp_path / "environment", "FROM x\nCOPY . /app\n")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("COPY none.txt /a", "none.txt is not in environment/"),
        ("COPY *.none /a", "matches nothing"),
        ("COPY ../secret /a", "leads out of environment/"),
        ("COPY out /a", "leads out of environment/"),
        ("COPY a.txt", "needs a source and a target"),
        ("COPY [1, 2]", "not a list of strings"),
        ("COPY [a", "COPY"),
        ('COPY "a.txt /a', "COPY"),
        ("ENV A=1 B", "B has no value"),
        ("RUN <<END\necho", "has no end"),
        ("SHELL bash", "SHELL"),
    ],
)
def test_what_is_wrong_names_file_and_line(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "secret").write_text("host")
    (tmp_path / "environment" / "out").symlink_to("../secret")
    with pytest.raises(TaskError, match=problem) as caught:
        read(tmp_path / "environment", f"FROM x\n{line}\n")
    assert "Dockerfile" in str(caught.value) and not isinstance(caught.value, NotRunnable)
