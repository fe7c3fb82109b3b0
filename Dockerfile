# An image that tests squeeze: docker build -t squeeze . && docker run --rm squeeze
FROM python:3.11-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends brotli zstd \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /squeeze
COPY . .
RUN make .venv/llamacpp .venv/cloud
CMD ["make", "test"]
