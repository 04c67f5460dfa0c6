"""A pod's volumes as folders: made before its containers, gone with it, save those that claims keep."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from .environment import Lookup, NotConfigured, decoded, field_of
from .errors import Object
from .resources import CLAIMS
from .runtime import Mount
from .store import Store


class Volumes:
    """Folders of one pod under ``folder``. Without ``writes`` they are only checked: nothing will read them."""

    def __init__(
        self,
        folder: Path,
        claims: Path,
        store: Store,
        lookup: Lookup,
        token: Callable[[Object], str],
        *,
        writes: bool,
    ) -> None:
        self._writes = writes
        self.folder = folder
        self._claims = claims
        self._store = store
        self._lookup = lookup
        self._token = token
        self._sources: dict[str, Path] = {}

    def prepare(self, pod: Object) -> None:
        """Make every volume.

        Raises:
            NotConfigured: a volume names what is not there; the text is that of the event FailedMount.
        """
        for volume in pod["spec"].get("volumes") or []:
            if volume["name"] not in self._sources:
                self._sources[volume["name"]] = self._prepare(pod, volume)

    def mounts(self, container: Object) -> tuple[Mount, ...]:
        """What a container mounts."""
        made = []
        for mount in container.get("volumeMounts") or []:
            source = self._sources[mount["name"]]
            if below := mount.get("subPath"):
                source = source / below
                if not source.exists():
                    source.mkdir(parents=True)
                    source.chmod(0o777)
            made.append(Mount(source, mount["mountPath"], bool(mount.get("readOnly"))))
        return tuple(made)

    def remove(self) -> None:
        if self._writes:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _prepare(self, pod: Object, volume: Object) -> Path:
        name = volume["name"]
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "persistentVolumeClaim" in volume:
            return self._claim(pod, volume["persistentVolumeClaim"]["claimName"])
        folder: Path = self.folder / name
        try:
            files = self._files(pod, volume)
        except NotConfigured as error:
            raise NotConfigured(f'MountVolume.SetUp failed for volume "{name}" : {error}') from error
        if self._writes:
            folder.mkdir(parents=True, exist_ok=True)
            for path, (data, mode) in files.items():
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
                target.chmod(mode)
            folder.chmod(0o777)
        return folder

    def _files(self, pod: Object, volume: Object) -> dict[str, tuple[bytes, int]]:
        if "emptyDir" in volume:
            return {}
        if "projected" in volume:
            files: dict[str, tuple[bytes, int]] = {}
            for source in volume["projected"].get("sources") or []:
                files |= self._source(pod, source, volume["projected"].get("defaultMode", 0o644))
            return files
        if "secret" in volume:
            secret = {**volume["secret"], "name": volume["secret"]["secretName"]}
            return self._source(pod, {"secret": secret}, secret.get("defaultMode", 0o644))
        for kind in ("configMap", "downwardAPI"):
            if kind in volume:
                return self._source(pod, {kind: volume[kind]}, volume[kind].get("defaultMode", 0o644))
        raise NotConfigured(f"the fake cluster has no volumes of this kind: {sorted(set(volume) - {'name'})}")

    def _source(self, pod: Object, source: Object, mode: int) -> dict[str, tuple[bytes, int]]:
        if token := source.get("serviceAccountToken"):
            return {token["path"]: (self._token(pod).encode(), mode)}
        if down := source.get("downwardAPI"):
            return {
                item["path"]: (field_of(pod, item["fieldRef"]["fieldPath"]).encode(), item.get("mode", mode))
                for item in down.get("items") or []
            }
        for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
            if key in source:
                return self._data(kind, source[key], mode)
        return {}

    def _data(self, kind: str, ref: Object, mode: int) -> dict[str, tuple[bytes, int]]:
        thing = self._lookup(kind, ref["name"])
        if thing is None:
            if ref.get("optional"):
                return {}
            raise NotConfigured(f'{kind.lower()} "{ref["name"]}" not found')
        data = decoded(kind, thing)
        items = ref.get("items")
        if not items:
            return {key: (value, mode) for key, value in data.items()}
        lacking = [item["key"] for item in items if item["key"] not in data]
        if lacking and not ref.get("optional"):
            raise NotConfigured(f"{kind.lower()} references non-existent config key: {lacking[0]}")
        return {item["path"]: (data[item["key"]], item.get("mode", mode)) for item in items if item["key"] in data}

    def _claim(self, pod: Object, name: str) -> Path:
        claim = self._store.find(CLAIMS, pod["metadata"]["namespace"], name)
        if claim is None:
            raise NotConfigured(f'persistentvolumeclaim "{name}" not found')
        folder = claim_folder(self._claims, claim)
        if self._writes:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
        return folder


def claim_folder(claims: Path, claim: Object) -> Path:
    """Where a claim's files are."""
    return claims / str(claim["metadata"]["uid"])
