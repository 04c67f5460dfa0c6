"""Files in and out of a real sandbox, whatever an agent has prepared for them."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.sandbox.bubblewrap.transfer import PIECE_BYTES, Listed, destination
from agentrl.sandbox.provider import Sandbox
from tests.fixtures.sandboxes import SPEC, bubblewrap


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with bubblewrap(tmp_path / "state") as provider:
        yield await provider.create(SPEC)


async def inside(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(script, timeout_s=30)
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode()


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_a_folder_comes_out_as_it_is(sandbox: Sandbox, tmp_path: Path) -> None:
    await inside(sandbox, "mkdir -p out/sub/empty; echo a > out/a; printf '\\377\\0' > out/sub/b; chmod 755 out/a")
    await inside(sandbox, r"printf x > $'out/n\374\n'")
    done = await sandbox.download("/app/out", tmp_path / "got")
    assert (done.num_files, done.skipped) == (3, ())
    assert (tmp_path / "got/a").read_text() == "a\n" and (tmp_path / "got/a").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "got/sub/b").read_bytes() == b"\xff\0"
    assert (tmp_path / "got/sub/empty").is_dir()
    assert sorted(names(tmp_path / "got")) == ["a", "n\udcfc\n", "sub"]
    assert (await sandbox.download("/app/out/a", tmp_path / "single")).num_files == 1
    assert (tmp_path / "single").read_text() == "a\n"


async def test_large_files_go_both_ways_in_pieces(sandbox: Sandbox, tmp_path: Path) -> None:
    data = os.urandom(1000) * (2 * PIECE_BYTES // 1000 + 7)
    (tmp_path / "large").write_bytes(data)
    (tmp_path / "large").chmod(0o750)
    await sandbox.upload(tmp_path / "large", "/app/large")
    assert (await inside(sandbox, "stat -c '%s %a' large")).split() == [str(len(data)), "750"]
    await sandbox.download("/app/large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data


async def test_what_is_no_file_stays_inside(sandbox: Sandbox, tmp_path: Path) -> None:
    script = (
        "mkdir out; cd out; mkfifo pipe; ln -s /etc/passwd link; ln -s / folder; ln -s ../.. up; echo real > real; "
        "perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un(q(socket))) or die'"
    )
    await inside(sandbox, script)
    done = await sandbox.download("/app/out", tmp_path / "got")
    assert set(done.skipped) == {"pipe", "link", "folder", "up", "socket"}
    assert names(tmp_path / "got") == ["real"]
    with pytest.raises(FileNotFoundError):
        await sandbox.download("/app/out/pipe", tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        await sandbox.download("/dev/zero", tmp_path / "zero")
    with pytest.raises(FileNotFoundError):
        await sandbox.download("/no/such", tmp_path / "none")
    assert sorted(names(tmp_path)) == ["got", "state"]


async def test_a_link_leads_nowhere_but_into_the_sandbox(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    for link in (str(tmp_path), "/proc/self/root/root", "/proc/self/cwd", "/proc/1/root", "/proc/self/fd"):
        await inside(sandbox, f"rm -f trap; ln -s {link} trap")
        for path in ("/app/trap/secret", "/app/trap/0", "/app/trap/3"):
            data = await sandbox.read(path)
            assert data is None or b"of the host" not in data
    await inside(sandbox, "rm trap; ln -s /tmp trap")
    await sandbox.write("/app/trap/new", b"x")
    assert await inside(sandbox, "cat /tmp/new") == "x"


async def test_setuid_bits_do_not_come_out(sandbox: Sandbox, tmp_path: Path) -> None:
    await inside(sandbox, "mkdir out; cp /bin/true out/tool; chmod 6777 out/tool out")
    await sandbox.download("/app/out", tmp_path / "got")
    for path in (tmp_path / "got", tmp_path / "got/tool"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
        assert path.stat().st_uid == os.geteuid()


async def test_sizes_are_capped_before_anything_is_read(sandbox: Sandbox, tmp_path: Path) -> None:
    await inside(sandbox, "mkdir out; truncate -s 10T out/sparse")
    with pytest.raises(ValueError, match="10995116277760 bytes"):
        await sandbox.download("/app/out", tmp_path / "got")
    await inside(sandbox, "rm out/sparse; head -c 900 /dev/zero > out/a; ln out/a out/b")
    with pytest.raises(ValueError, match="1800 bytes, over the 1000"):
        await sandbox.download("/app/out", tmp_path / "got", max_bytes=1000)
    await inside(sandbox, "rm -r out; perl -e 'for (1..120) { mkdir q(d) or die; chdir q(d) }'")
    with pytest.raises(ValueError, match="too deep"):
        await sandbox.download("/app/d", tmp_path / "got")
    assert not (tmp_path / "got").exists()


async def test_a_target_that_is_there_is_left_alone(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    await inside(sandbox, "echo theirs > theirs; mkdir out")
    for target in (tmp_path / "mine", tmp_path / "link"):
        for path in ("/app/theirs", "/app/out"):
            with pytest.raises(FileExistsError):
                await sandbox.download(path, target)
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "elsewhere").exists()


def test_a_listing_that_leads_out_is_refused(tmp_path: Path) -> None:
    for path in ("../x", "/etc/x", "a/../../x", "a\0b"):
        with pytest.raises(ValueError, match="leads out"):
            destination(tmp_path / "got", Listed(path, False, 0o644, 1))
    assert destination(tmp_path / "got", Listed("a/b", False, 0o644, 1)) == tmp_path / "got/a/b"


async def test_an_upload_cannot_be_led_astray_by_links(sandbox: Sandbox, tmp_path: Path) -> None:
    """A link where a file is to be is replaced; where a folder is to be, it leads to a place in the sandbox."""
    source = tmp_path / "tests"
    source.mkdir()
    (source / "test.sh").write_text("real")
    (source / "link").symlink_to("/etc/passwd")
    await inside(sandbox, "mkdir -p theirs here; echo old > theirs/test.sh; ln -s /app/theirs/test.sh here/test.sh")
    await sandbox.upload(source, "/app/here")
    assert await inside(sandbox, "cat here/test.sh theirs/test.sh; readlink here/link") == "realold\n/etc/passwd\n"


async def test_an_upload_of_what_is_no_file_or_too_much_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="neither file"):
        await sandbox.upload(tmp_path / "pipe", "/app/pipe")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="more than 64 MiB"):
        await sandbox.upload(tmp_path / "huge", "/app/huge")
    assert await inside(sandbox, "ls -A /app") == ""


async def test_more_files_than_are_brought_out_are_refused(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.sandbox.bubblewrap.sandbox.MAX_DOWNLOAD_ENTRIES", 10)
    await inside(sandbox, "mkdir many; touch $(seq -f many/%g 10)")
    with pytest.raises(ValueError, match="more than 10 files"):
        await sandbox.download("/app/many", tmp_path / "got")
    await inside(sandbox, "rm many/10")
    assert (await sandbox.download("/app/many", tmp_path / "got")).num_files == 9
