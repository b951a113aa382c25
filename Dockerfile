# Meshwise on CPU devices: `docker build -t meshwise .`, then `docker run --rm meshwise doctor`.
# For one NVIDIA GPU: `docker build --build-arg EXTRAS=train,gpu -t meshwise .`, `docker run --gpus all`.
FROM debian:bookworm-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python3 -m venv /meshwise && /meshwise/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
ARG EXTRAS=train
RUN /meshwise/bin/pip install --no-cache-dir -c constraints.txt "$(ls /wheels/*.whl)[$EXTRAS]"

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home meshwise
COPY --from=build /meshwise /meshwise
USER meshwise
WORKDIR /home/meshwise
ENV PATH=/meshwise/bin:$PATH
# The solver's kernels are compiled once, for the image.
RUN python -c "from meshwise.inter.kernel_set import compile_all_kernels; compile_all_kernels()"
ENTRYPOINT ["meshwise"]
CMD ["--help"]
