# The controller: no torch. From the root of the project:
#   docker build -f scripts/images/controller.Dockerfile -t REGISTRY/controller:VERSION .
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md ./
COPY agentrl agentrl
# The wheel alone, and what a controller imports of its dependencies (README, "What needs what").
RUN pip install --no-cache-dir --no-deps --prefix=/opt/agentrl . \
 && pip install --no-cache-dir --prefix=/opt/agentrl \
      "hydra-core>=1.3.8,<1.4" "omegaconf>=2.3.1,<2.4" "pyyaml>=6" "typer>=0.26" "rich>=13" "aiohttp>=3.11" \
      "msgspec>=0.19" "numpy>=1.26" "tokenizers>=0.22,<0.24" "jinja2>=3.1" "prometheus-client>=0.21" "kubernetes>=37"

FROM python:3.11.13-slim-bookworm
COPY --from=build /opt/agentrl /usr/local
RUN useradd --uid 1000 --create-home agentrl
USER 1000:1000
WORKDIR /home/agentrl
ENTRYPOINT []
CMD ["agentrl", "--help"]
