"""Images that are built: steps into cached layers, once, whole or not at all."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ImageError
from agentrl.sandbox.bubblewrap import BubblewrapProvider, reap
from agentrl.sandbox.provider import Add, Copy, Image, Run, Sandbox, SandboxSpec, Step, Unpack
from tests.fixtures.sandboxes import SMALL, bubblewrap, host, is_there, records, until


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[BubblewrapProvider]:
    async with cached(tmp_path, "state") as made:
        yield made


def cached(tmp_path: Path, name: str, **settings: Any) -> AbstractAsyncContextManager[BubblewrapProvider]:
    config = replace(SMALL, cache_dir=str(tmp_path / "cache"), **settings)
    return bubblewrap(tmp_path / name, config=config)


def run(script: str, **options: Any) -> Run:
    return Run(argv=("/bin/sh", "-ec", script), **options)


async def start(provider: BubblewrapProvider, *steps: Step, **options: Any) -> Sandbox:
    return await provider.create(SandboxSpec(image=Image(steps=steps, **options)))


async def output(sandbox: Sandbox, script: str, **options: Any) -> str:
    result = await sandbox.exec(script, timeout_s=60, **options)
    return (result.stdout + result.stderr).decode(errors="replace")


def layers(tmp_path: Path) -> list[str]:
    """Those in the cache, and what builds left: whole or partial."""
    found = tmp_path.glob("cache/layers/*/*")
    return sorted(path.name for path in found if path.suffix != ".bytes" and path.name != "uses")


def used_at_ns(tmp_path: Path, layer: str) -> int:
    return next(tmp_path.glob(f"cache/layers/*/{layer}")).stat().st_mtime_ns


def forge_use(tmp_path: Path, layer: str) -> Path:
    """What a process leaves that is killed while it uses a layer."""
    record = next(tmp_path.glob("cache/layers/*/uses")) / "killed"
    record.write_text(f"{layer}\n")
    return record


async def test_steps_build_upon_each_other(provider: BubblewrapProvider, tmp_path: Path) -> None:
    assert host().ids.ranged, "as root the tests expect a range of ids"
    (tmp_path / "source" / "sub").mkdir(parents=True)
    (tmp_path / "source" / "sub" / "file").write_text("copied")
    sandbox = await start(
        provider,
        run("useradd -m joe; printf '#!/bin/sh\\necho tool\\n' > /usr/local/bin/tool; chmod +x /usr/local/bin/tool"),
        Add(copies=(Copy(source=tmp_path / "source", target="/data"),), owner="joe"),
        run("cat /data/sub/file $NAME; id -un > who; rm /usr/bin/yes", env={"NAME": "/etc/hostname"}, workdir="/srv/w"),
        run("touch /home/joe/mine", user="joe"),
        user="joe",
        workdir="/data",
        env={"A": "1"},
    )
    assert await output(
        sandbox, "tool; id -un; pwd; echo $A; cat /srv/w/who; stat -c %U sub/file ~/mine; which yes"
    ) == ("tool\njoe\n/data\n1\nroot\njoe\njoe\n")
    assert (
        await output(sandbox, "id -un; echo x > /usr/local/lib/x && cat /usr/local/lib/x", user="root") == "root\nx\n"
    )


async def test_a_step_runs_once_whoever_asks(provider: BubblewrapProvider, tmp_path: Path) -> None:
    step = run("cat /proc/sys/kernel/random/uuid > /opt/built")
    async with cached(tmp_path, "other") as other:
        await asyncio.gather(*(where.prepare(Image(steps=(step,))) for where in (provider, other) for _ in range(4)))
        built = {await output(await start(where, step), "cat /opt/built") for where in (provider, other)}
    assert len(built) == 1 and len(layers(tmp_path)) == 1


async def test_a_change_of_a_file_or_a_step_is_another_layer(provider: BubblewrapProvider, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    add = Add(copies=(Copy(source=tmp_path / "file", target="/opt/file"),))
    assert await output(await start(provider, add), "cat /opt/file") == "1"
    async with cached(tmp_path, "other") as other:
        (tmp_path / "file").write_text("2")
        assert await output(await start(other, add), "cat /opt/file") == "2"
        assert await output(await start(other, add, run("echo more >> /opt/file")), "cat /opt/file") == "2more\n"
    assert len(layers(tmp_path)) == 3


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (run("echo made > /opt/x; echo because >&2; exit 3"), "exited with 3: because"),
        (run("kill -9 $$"), "ended by signal 9"),
        (run("head -c 100M /dev/zero > /opt/fill"), "No space left"),
        (run("true", user="nobody-known"), "nobody-known"),
        (run("echo hello > /dev/tcp/1.1.1.1/53 || wget -q http://1.1.1.1/"), "exited with"),
        (Add(copies=(Copy(source=Path("/no/such"), target="/x"),)), "/no/such"),
        (Add(copies=(Copy(source=Path("/etc/hostname"), target="/x"),), owner="no-such"), "no user or group no-such"),
        (Add(copies=(Copy(source=Path("/etc/hostname"), target="/proc/x"),)), "/proc/x"),
        (Unpack(source=Path("/etc/hostname")), "not a tar archive"),
    ],
)
async def test_a_step_that_fails_says_why_and_leaves_nothing(tmp_path: Path, step: Step, message: str) -> None:
    async with cached(tmp_path, "state", build_disk_mb=16) as provider:
        with pytest.raises(ImageError, match=message):
            await start(provider, step)
        assert layers(tmp_path) == [] and provider.num_open == 0
        assert await (await start(provider, run("true"))).probe()


async def test_a_step_has_its_time(tmp_path: Path) -> None:
    async with cached(tmp_path, "state", build_timeout_s=0.5) as provider:
        with pytest.raises(ImageError, match=r"did not end in 0\.5 s: begun"):
            await start(provider, run("echo begun; setsid -f sleep 620; sleep 620"))


async def test_an_image_of_too_many_steps_is_refused(provider: BubblewrapProvider) -> None:
    with pytest.raises(ImageError, match="41 steps"):
        await provider.prepare(Image(steps=tuple(run(f"echo {number}") for number in range(41))))


async def test_without_an_overlay_images_are_refused(tmp_path: Path) -> None:
    async with bubblewrap(tmp_path / "state", mode="no_overlay") as provider:
        with pytest.raises(ImageError, match="a test wants none"):
            await start(provider, run("true"))


def add_member(archive: tarfile.TarFile, name: str, data: bytes = b"", **attributes: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for attribute, value in attributes.items():
        setattr(member, attribute, value)
    archive.addfile(member, io.BytesIO(data))


async def test_an_archive_stays_inside_and_keeps_owners(provider: BubblewrapProvider, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "system.tar.gz", "w:gz") as archive:
        add_member(archive, "./etc/thing", b"thing", uid=33, gid=34, mode=0o640)
        add_member(archive, "twin", type=tarfile.LNKTYPE, linkname="etc/thing")
        add_member(archive, "../../../escaped", b"inside")
        add_member(archive, "bin", type=tarfile.SYMTYPE, linkname="usr/bin")
        add_member(archive, "dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
        add_member(archive, "usr/local/bin/more-of-it", b"x" * 5_000_000, mode=0o755)
        add_member(archive, "folder", type=tarfile.DIRTYPE, mode=0o711, uid=5, gid=5)
    sandbox = await start(provider, Unpack(source=tmp_path / "system.tar.gz"))
    seen = await output(sandbox, "stat -c '%n %u:%g %a %s' /etc/thing /twin /escaped /folder /usr/local/bin/more-of-it")
    assert [line.split()[:3] for line in seen.splitlines()] == [
        ["/etc/thing", "33:34", "640"],
        ["/twin", "33:34", "640"],
        ["/escaped", "0:0", "644"],
        ["/folder", "5:5", "711"],
        ["/usr/local/bin/more-of-it", "0:0", "755"],
    ]
    assert "5000000" in seen


@pytest.mark.parametrize(("setting", "writable"), [(None, True), (False, False), (True, True)])
async def test_the_system_is_writable_where_the_image_expects_it(
    tmp_path: Path, setting: bool | None, writable: bool
) -> None:
    async with cached(tmp_path, "state", writable_system=setting) as provider:
        built = await start(provider, run("echo made > /usr/local/lib/made; echo x > /opt/made"))
        assert await output(built, "cat /usr/local/lib/made /bin/../local/lib/made 2>&1 | head -1") == "made\n"
        for path in ("/usr/bin/new", "/bin/new2", "/usr/local/lib/made"):
            assert ("Read-only" in await output(built, f"echo x >> {path}")) is not writable
        plain = await provider.create(SandboxSpec(image=Image()))
        assert ("Read-only" in await output(plain, "touch /usr/bin/new")) is (setting is not True)


async def test_a_built_image_can_be_snapshotted_and_forked(provider: BubblewrapProvider) -> None:
    step = run("echo made > /usr/local/lib/made")
    sandbox = await start(provider, step)
    await sandbox.exec("echo installed > /usr/local/bin/tool; rm /usr/local/lib/made /usr/bin/yes", timeout_s=20)
    snapshot = await sandbox.snapshot()
    forked = await provider.create(SandboxSpec(image=Image(steps=(step,))), snapshot=snapshot)
    for place in (sandbox, forked):
        assert (
            await output(place, "cat /bin/../local/bin/tool; ls /usr/local/lib/made /bin/yes | wc -l 2>/dev/null") != ""
        )
        assert await output(place, "cat /usr/local/bin/tool; ls /bin/yes") == (
            "installed\nls: cannot access '/bin/yes': No such file or directory\n"
        )
    await forked.exec("echo other > /usr/local/bin/tool", timeout_s=20)
    assert await output(sandbox, "cat /usr/local/bin/tool") == "installed\n"


_BUILDER = """
import asyncio, sys
from pathlib import Path
from typing import Any
from agentrl.sandbox.bubblewrap import BubblewrapProvider
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Image, Run

async def main():
    provider = BubblewrapProvider(SandboxConfig(cache_dir=sys.argv[2]), state_dir=Path(sys.argv[1]))
    await provider.prepare(Image(steps=(Run(argv=("sh", "-c", "echo x > /opt/x; sleep 621.5")),)))

asyncio.run(main())
"""


async def test_a_build_that_is_killed_is_swept_and_can_be_done_again(tmp_path: Path) -> None:
    state, cache = tmp_path / "builder", tmp_path / "cache"
    builder = await asyncio.create_subprocess_exec(sys.executable, "-c", _BUILDER, str(state), str(cache))

    async def begun() -> bool:
        return records(state) != [] and any(name.endswith(".partial") for name in layers(tmp_path))

    await until(begun)
    assert reap(state) == [] and await begun(), "a build that goes on is not touched"
    builder.kill()
    await builder.wait()
    assert reap(state) == []
    assert layers(tmp_path) == []


def leave_a_killed_build(tmp_path: Path) -> None:
    (folder,) = tmp_path.glob("cache/layers/*")
    left = folder / f"{'0' * 64}.partial"
    (left / "root" / "opt").mkdir(parents=True)
    left.with_suffix(".lock").touch()


async def test_what_a_killed_build_left_goes_with_the_next_use_of_the_cache(
    provider: BubblewrapProvider, tmp_path: Path
) -> None:
    await provider.prepare(Image(steps=(run("echo one"),)))
    (one,) = layers(tmp_path)
    leave_a_killed_build(tmp_path)
    async with cached(tmp_path, "other") as other:
        await other.prepare(Image(steps=(run("echo one"),)))
    assert layers(tmp_path) == [one]


_ON_AN_OVERLAY = """
import asyncio, logging, sys
from pathlib import Path
from agentrl.sandbox.bubblewrap import BubblewrapProvider
from agentrl.sandbox.config import SandboxConfig
from agentrl.sandbox.provider import Image, Run, SandboxSpec

def run(script):
    return Run(argv=("sh", "-ec", script))

async def main(folder):
    provider = BubblewrapProvider(SandboxConfig(cache_dir=str(folder / "cache")), state_dir=folder / "state")
    first = run("rm -r /home; mkdir /home; rm /usr/bin/yes; cat /proc/sys/kernel/random/uuid > /opt/id")
    images = [Image(steps=(first, run(f"cp /opt/id /usr/local/lib/{name}"))) for name in ("a", "b")]
    await asyncio.gather(*(provider.prepare(image) for image in images * 2))
    seen = []
    for name, image in zip(("a", "b"), images):
        sandbox = await provider.create(SandboxSpec(image=image))
        result = await sandbox.exec(f"ls -A /home; ls /usr/bin/yes; cat /usr/local/lib/{name}", timeout_s=20)
        fork = await provider.create(SandboxSpec(image=image), snapshot=await sandbox.snapshot())
        assert await fork.read(f"/usr/local/lib/{name}") == result.stdout
        seen.append(result.stdout)
    await provider.close()
    print("same" if seen[0] == seen[1] and len(seen[0]) == 37 else seen)

logging.basicConfig(format="%(message)s")
asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the machine of this test")
@pytest.mark.parametrize("place", ["cache", "system"])
def test_on_a_machine_that_is_an_overlay_itself(tmp_path: Path, place: str) -> None:
    """Like most containers: no marks of overlays can be kept in the cache, no ids mapped for /usr."""
    target, lower = (tmp_path / "machine", tmp_path / "lower") if place == "cache" else (Path("/usr"), Path("/usr"))
    for folder in ("machine", "lower", "space"):
        (tmp_path / folder).mkdir()
    script = f"""
    mount -t tmpfs tmpfs {tmp_path}/space; mkdir {tmp_path}/space/upper {tmp_path}/space/work
    options=lowerdir={lower},upperdir={tmp_path}/space/upper,workdir={tmp_path}/space/work
    mount -t overlay overlay -o $options {target}
    exec "$@"
    """
    command = ["unshare", "--mount", "sh", "-ec", script, "sh", sys.executable, "-c", _ON_AN_OVERLAY]
    done = subprocess.run(
        [*command, str(tmp_path / "machine")], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout == "same\n", done.stderr
    assert ("images are built anew in each run" in done.stderr) is (place == "cache")


def fill(mib: int, name: str) -> Run:
    return run(f"head -c {mib}M /dev/urandom > /opt/{name}")


async def test_layers_that_nobody_uses_go_when_the_cache_is_full(tmp_path: Path) -> None:
    async with cached(tmp_path, "first") as provider:
        for name in ("a", "b"):
            await provider.prepare(Image(steps=(fill(3, name),)))
    a, b = sorted(layers(tmp_path), key=lambda name: used_at_ns(tmp_path, name))
    async with cached(tmp_path, "second", cache_mb=10) as provider:
        await provider.prepare(Image(steps=(fill(3, "a"),)))
        assert layers(tmp_path) == sorted([a, b]), "they fit"
        await provider.prepare(Image(steps=(fill(5, "c"),)))
        left = layers(tmp_path)
        assert len(left) == 2 and a in left, "b was not used for longest"
        sandbox = await start(provider, fill(3, "a"), fill(1, "d"))
        assert await output(sandbox, "ls /opt") == "a\nd\n"


async def test_layers_in_use_stay_whoever_uses_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with cached(tmp_path, "one") as one, cached(tmp_path, "other", cache_mb=1) as other:
        used = await start(one, fill(3, "a"))
        await (await start(one, fill(3, "b"))).close()
        before = layers(tmp_path)
        sandbox = await start(other, fill(2, "c"))
        assert set(before) <= set(layers(tmp_path)) and len(layers(tmp_path)) == 3
        assert "over its bound: all of it is in use" in caplog.text
        assert await output(used, "stat -c %s /opt/a") == await output(
            await start(one, fill(3, "a")), "stat -c %s /opt/a"
        )
        assert await output(sandbox, "ls /opt") == "c\n"
    async with cached(tmp_path, "later", cache_mb=1) as later:
        await later.prepare(Image(steps=(run("true"),)))
        assert not set(before) & set(layers(tmp_path)), "their users are gone"


async def test_a_killed_user_of_a_layer_lets_go(tmp_path: Path) -> None:
    async with cached(tmp_path, "first") as provider:
        await provider.prepare(Image(steps=(fill(2, "a"),)))
        before = layers(tmp_path)
    record = forge_use(tmp_path, before[0])
    async with cached(tmp_path, "second", cache_mb=1) as provider:
        await provider.prepare(Image(steps=(run("true"),)))
        assert before[0] not in layers(tmp_path)
        assert not is_there(record)


async def test_users_can_be_made_and_become_by_root_only(provider: BubblewrapProvider) -> None:
    sandbox = await start(provider, run("useradd -m joe; chfn -f Joe joe; useradd -m ann"))
    assert await output(sandbox, "su joe -c 'id -un; echo $HOME'") == "joe\n/home/joe\n"
    assert "Joe" in await output(sandbox, "grep joe /etc/passwd")
    assert (await sandbox.exec("su joe -c true < /dev/null", user="ann", timeout_s=60)).exit_code != 0
