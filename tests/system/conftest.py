"""S3, as the server of moto speaks it on loopback."""

import pytest


@pytest.fixture(scope="module")
def endpoint():
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'squeeze-neural[cloud]'")
    server = pytest.importorskip("moto.server", reason="moto's server is not installed: pip install 'moto[server]'")
    running = server.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


NAMES = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def client(endpoint):
    """Return a client that asks S3 directly, so that tests do not rely on what they test."""
    import boto3

    with pytest.MonkeyPatch.context() as patch:
        for name, value in NAMES.items():
            patch.setenv(name, value)
        made = boto3.client("s3", endpoint_url=endpoint)
    yield made
    made.close()


@pytest.fixture
def s3(endpoint, client, monkeypatch):
    """Create a bucket, and return the client."""
    import fsspec
    import s3fs

    for name, value in {**NAMES, "AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"default_block_size": 5 << 20})
    s3fs.S3FileSystem.clear_instance_cache()
    client.create_bucket(Bucket="bucket")
    yield client
    for listed in client.list_objects_v2(Bucket="bucket").get("Contents", []):
        client.delete_object(Bucket="bucket", Key=listed["Key"])
    s3fs.S3FileSystem.clear_instance_cache()
