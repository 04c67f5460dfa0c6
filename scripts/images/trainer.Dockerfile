# Trainer ranks, the model recipe and embedded engines. From the root of the project:
#   docker build -f scripts/images/trainer.Dockerfile -t REGISTRY/trainer:VERSION .
# TORCH names another build of torch, such as a wheel for CPUs that lies in the build context.
FROM python:3.11.13-slim-bookworm
ARG TORCH=torch==2.13.0
WORKDIR /src
COPY pyproject.toml README.md ./
COPY agentrl agentrl
# hadolint ignore=DL3013
RUN pip install --no-cache-dir "${TORCH}" \
 && pip install --no-cache-dir . \
 && useradd --uid 1000 --create-home agentrl
USER 1000:1000
WORKDIR /home/agentrl
ENV OMP_NUM_THREADS=1
ENTRYPOINT []
CMD ["python3", "-m", "agentrl.trainer", "--help"]
