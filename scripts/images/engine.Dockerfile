# Engines on GPUs: SGLang as its project ships it, as an ordinary user. From the root of the project:
#   docker build -f scripts/images/engine.Dockerfile -t REGISTRY/engine:VERSION .
FROM lmsysorg/sglang:v0.5.23
RUN useradd --uid 1000 --create-home agentrl || id 1000
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT []
CMD ["python3", "-m", "sglang.launch_server", "--help"]
