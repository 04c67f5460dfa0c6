#!/bin/sh
# Makes .venv-trl, the environment of trainer_vs_trl.py's other side. TRL needs a newer transformers than agentrl allows.
set -eu
cd "$(dirname "$0")/../.."
if .venv-trl/bin/python -c "import trl" 2>/dev/null; then exit 0; fi
python3.11 -m venv .venv-trl
.venv-trl/bin/pip install --quiet torch==2.13.0 "transformers==5.24.*" "trl==1.16.*"
