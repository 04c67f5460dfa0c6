#!/usr/bin/env bash
# Makes .venv-mini-swe-agent: mini-swe-agent, for agent=mini_swe_agent and its tests (docs/agents.md). Its client library
# brings 400 MB of its own, so it lives in an environment of its own; `datasets`, which only its own benchmarks import,
# is left out, with another 300 MB.
#
# Usage: scripts/harness/setup_mini_swe_agent.sh    (PYTHON as in the Makefile)
set -euo pipefail
cd "$(dirname "$0")/../.."

VENV=.venv-mini-swe-agent
VERSION=2.4.6
STAMP="$VENV/installed-$VERSION"
[[ -f "$STAMP" ]] && exit 0

echo "setting up $VENV with mini-swe-agent $VERSION"
"${PYTHON:-$(command -v python3.11 || command -v python3)}" -m venv "$VENV"
PIP="$VENV/bin/python -m pip --disable-pip-version-check install --quiet"
$PIP "litellm>=1.75.5" openai pyyaml requests jinja2 pydantic tenacity rich python-dotenv typer platformdirs textual \
  prompt_toolkit
$PIP --no-deps "mini-swe-agent==$VERSION"
touch "$STAMP"
