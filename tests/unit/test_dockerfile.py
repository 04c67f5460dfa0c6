"""The Dockerfiles that need no build, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import TaskError
from agentrl.sandbox.provider import DEFAULT_PATH, Image
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
        "ENV PATH=/opt/bin:$PATH\n",
    )
    assert image.workdir == "/srv/sub"
    assert image.env == {
        "A": "1",
        "B": "two words",
        "D": "3",
        "C": "1-two words",
        "OLD": "form of it",
        "PATH": f"/opt/bin:{DEFAULT_PATH}",
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
        ("RUN apt-get install -y jq", "RUN apt-get install -y jq"),
        ("CMD sleep infinity", "CMD sleep infinity"),
        ('ENTRYPOINT ["x"]', "ENTRYPOINT"),
        ("USER postgres", "USER postgres"),
        ("EXPOSE 80", "EXPOSE 80"),
        ("VOLUME /data", "VOLUME /data"),
        ('SHELL ["/bin/bash"]', "SHELL"),
        ("ARG A=1", "ARG A=1"),
        ("FROM y", "several stages"),
        ("COPY --from=base /x /y", "COPY --from=base"),
        ("COPY --chown=me a.txt /a", "COPY --chown=me"),
        ("COPY --chmod=755 a.txt /a", "COPY --chmod=755"),
        ("COPY a.txt /usr/local/bin/a", "read-only"),
        ("COPY a.txt /lib/", "read-only"),
        ("ADD https://example.com/x /x", "ADD https://example.com/x"),
        ("ADD x.tar.gz /x", r"ADD x\.tar\.gz"),
    ],
)
def test_what_needs_a_build_is_refused_by_name(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(NotRunnable, match=f"not runnable by the bubblewrap provider: .*{reason}"):
        read(tmp_path / "environment", f"FROM x\n{line}\n")


def test_dockerignore_is_refused(tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / ".dockerignore").write_text("*.log\n")
    with pytest.raises(NotRunnable, match="dockerignore"):
        read(tmp_path / "environment", "FROM x\n")


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
        ("ENV A=$NOT_SET", r"\$NOT_SET is not set"),
        ("ENV A=1 B", "B has no value"),
        ("WORKDIR $X", r"\$X is not set"),
        ("ENV A=${B:-x}", "is not set"),
    ],
)
def test_what_is_wrong_names_file_and_line(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "secret").write_text("host")
    (tmp_path / "environment" / "out").symlink_to("../secret")
    with pytest.raises(TaskError, match=problem) as caught:
        read(tmp_path / "environment", f"FROM x\n{line}\n")
    assert "Dockerfile" in str(caught.value) and not isinstance(caught.value, NotRunnable)
