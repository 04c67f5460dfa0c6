#!/usr/bin/env bash
# Installs what agentrl needs from the system and is missing: `bwrap` (sandboxes) and `python` (3.11 or newer, with venv).
# Usage: scripts/system_packages.sh bwrap python
# As root on a machine with apt it installs; otherwise it says what to install. Does nothing, and needs no network, if
# all is there.
set -euo pipefail

missing=()

need_bwrap() {
  command -v bwrap >/dev/null || missing+=(bubblewrap)
}

need_python() {
  local python
  python="$(command -v python3.11 || command -v python3 || true)"
  if [[ -z "$python" ]] || ! "$python" -c 'import sys, ensurepip, venv; assert sys.version_info >= (3, 11)' 2>/dev/null; then
    missing+=(python3.11 python3.11-venv)
  fi
}

for need in "$@"; do
  "need_$need"
done
if [[ ${#missing[@]} -eq 0 ]]; then
  exit 0
fi
if [[ "$(id -u)" -ne 0 ]] || ! command -v apt-get >/dev/null; then
  echo "error: missing on this system: ${missing[*]} (install with: sudo apt-get install ${missing[*]})" >&2
  exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
