"""Kinds of `shell_basics` about files and folders: make, rename, copy, move, delete, link, pack."""

from __future__ import annotations

import io
import tarfile
from random import Random

from agentrl.tasks.families.scene import Scene, has_text
from agentrl.tasks.families.words import PLACES, WORDS, joined, random_lines, random_name, random_names


def mkdir(rng: Random) -> Scene:
    name = random_name(rng)
    return Scene(
        ask=f"Make a folder named {name}.",
        result=f"the folder {name} must exist",
        solve=f"mkdir {name}",
        checks=(f"[ -d {name} ]",),
    )


def nested_mkdir(rng: Random) -> Scene:
    path = "/".join(rng.sample(PLACES, 3))
    return Scene(
        ask=f"Make the folders {path}, each inside the one before.",
        result=f"the folder {path} must exist",
        solve=f"mkdir -p {path}",
        checks=(f"[ -d {path} ]",),
    )


def rename(rng: Random) -> Scene:
    old, new = (f"{name}.txt" for name in random_names(rng, 2))
    text = joined(random_lines(rng, 2))
    return Scene(
        ask=f"Rename the file {old} to {new}.",
        result=f"{new} must exist and {old} must not",
        files={old: text},
        solve=f"mv {old} {new}",
        checks=(has_text(new, text), f"[ ! -e {old} ]"),
    )


def copy(rng: Random) -> Scene:
    source, target = (f"{name}.txt" for name in random_names(rng, 2))
    text = joined(random_lines(rng, 2))
    return Scene(
        ask=f"Copy the file {source} to {target}.",
        result="both files must exist with the same content",
        files={source: text},
        solve=f"cp {source} {target}",
        checks=(has_text(source, text), has_text(target, text)),
    )


def move_into(rng: Random) -> Scene:
    file, folder = f"{random_name(rng)}.txt", rng.choice(PLACES)
    text = joined(random_lines(rng, 2))
    return Scene(
        ask=f"Move the file {file} into the folder {folder}.",
        result=f"{folder}/{file} must exist and {file} must not",
        files={file: text, f"{folder}/readme": "keep\n"},
        solve=f"mv {file} {folder}/",
        checks=(has_text(f"{folder}/{file}", text), f"[ ! -e {file} ]", has_text(f"{folder}/readme", "keep")),
    )


def delete(rng: Random) -> Scene:
    names = [f"{name}.txt" for name in random_names(rng, 3)]
    gone, *kept = names
    return Scene(
        ask=f"Delete the file {gone}.",
        result=f"{gone} must not exist, and {kept[0]} and {kept[1]} must",
        files={name: f"{name}\n" for name in sorted(names)},
        solve=f"rm {gone}",
        checks=(f"[ ! -e {gone} ]", *(has_text(name, name) for name in kept)),
    )


def touch(rng: Random) -> Scene:
    name = f"{random_name(rng)}.txt"
    return Scene(
        ask=f"Make an empty file named {name}.",
        result=f"{name} must exist and be empty",
        solve=f"touch {name}",
        checks=(f"[ -f {name} ]", f"[ ! -s {name} ]"),
    )


def chmod(rng: Random) -> Scene:
    name = f"{random_name(rng)}.tool"
    text = "#!/bin/sh\necho hello\n"
    return Scene(
        ask=f"Make the file {name} executable.",
        result=f"{name} must be executable and otherwise unchanged",
        files={name: text},
        solve=f"chmod +x {name}",
        checks=(f"[ -x {name} ]", has_text(name, text)),
    )


def gather(rng: Random) -> Scene:
    folder = rng.choice(PLACES)
    names = rng.sample(WORDS, 5)
    moved, kept = [f"{name}.txt" for name in names[:3]], [f"{name}.md" for name in names[3:]]
    return Scene(
        ask=f"Move all .txt files into the folder {folder}.",
        result=f"{folder} must hold them and no .txt file be left here",
        files={**{name: f"{name}\n" for name in sorted(moved + kept)}, f"{folder}/readme": "keep\n"},
        solve=f"mv *.txt {folder}/",
        checks=(
            *(has_text(f"{folder}/{name}", name) for name in moved),
            *(f"[ ! -e {name} ]" for name in moved),
            *(has_text(name, name) for name in kept),
        ),
    )


def symlink(rng: Random) -> Scene:
    file, link = f"{random_name(rng)}.txt", random_name(rng)
    text = joined(random_lines(rng, 2))
    return Scene(
        ask=f"Make a symbolic link named {link} to the file {file}.",
        result=f"{link} must be a link to {file}",
        files={file: text},
        solve=f"ln -s {file} {link}",
        checks=(f"[ -L {link} ]", f'[ "$(readlink -f {link})" = /app/{file} ]', has_text(file, text)),
    )


def tar_create(rng: Random) -> Scene:
    folder, archive = rng.choice(PLACES), f"{random_name(rng)}.tar"
    names = sorted(f"{name}.txt" for name in rng.sample(WORDS, 2))
    files = {f"{folder}/{name}": joined(random_lines(rng, 2)) for name in names}
    return Scene(
        ask=f"Pack the folder {folder} into the archive {archive} with tar.",
        result=f"{archive} must hold {folder}",
        files=files,
        solve=f"tar -cf {archive} {folder}",
        checks=(
            f"[ -f {archive} ]",
            "rm -rf /tmp/unpacked && mkdir /tmp/unpacked",
            f"tar -xf {archive} -C /tmp/unpacked",
            *(has_text(f"/tmp/unpacked/{path}", text) for path, text in files.items()),
        ),
    )


def tar_extract(rng: Random) -> Scene:
    folder, archive = rng.choice(PLACES), f"{random_name(rng)}.tar"
    names = sorted(f"{name}.txt" for name in rng.sample(WORDS, 2))
    files = {f"{folder}/{name}": joined(random_lines(rng, 2)) for name in names}
    return Scene(
        ask=f"Unpack the archive {archive} here.",
        result=f"{folder}/{names[0]} and {folder}/{names[1]} must exist",
        files={archive: _tar(files)},
        solve=f"tar -xf {archive}",
        checks=tuple(has_text(path, text) for path, text in files.items()),
    )


def _tar(files: dict[str, str]) -> str:
    """An archive as text: that of ASCII files has no byte above 127."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode("ascii")))
    return buffer.getvalue().decode("ascii")
