"""Tests of TLS connections to a team's database: the URL determines how the server's certificate is verified."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.core.booking.cluster import Cluster
from torchyard_core.booking.errors import StoreUnavailable
from torchyard_core.booking.store import open_store

Serve = Callable[[str | None], Path]


def make_certificate(address: str | None) -> tuple[bytes, bytes]:
    """Creates a self-signed certificate with its key. The certificate is for `address`, or for a host name if there is
    no address.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "db.example.org")])
    whose: x509.GeneralName = x509.DNSName("db.example.org")
    if address:
        whose = x509.IPAddress(ipaddress.ip_address(address))
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([whose]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    unlocked = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return made.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, unlocked)


@pytest.fixture
def serve(postgres: Cluster, tmp_path: Path) -> Iterator[Serve]:
    """Enables TLS with a certificate for this address or a different host; returns the certificate file."""
    data = postgres.folder / "data"

    def turn(on: bool) -> None:
        with postgres.connect("owner", "postgres") as connection:
            connection.execute(f"ALTER SYSTEM SET ssl = {'on' if on else 'off'}")
            connection.execute("SELECT pg_reload_conf()")

    def make(address: str | None) -> Path:
        owner = data.stat()
        certificate, key = make_certificate(address)
        for name, content in (("server.crt", certificate), ("server.key", key)):
            (data / name).write_bytes(content)
            (data / name).chmod(0o600)
            os.chown(data / name, owner.st_uid, owner.st_gid)
        turn(False)
        turn(True)
        (tmp_path / "root.crt").write_bytes(certificate)
        return tmp_path / "root.crt"

    yield make
    turn(False)


def address(postgres: Cluster, mode: str, root: Path) -> str:
    return postgres.tcp_url("kim", "team") + f"?sslmode={mode}&sslrootcert={root}"


def is_encrypted(url: str) -> bool:
    store = open_store(url, "kim")
    try:
        with store.session.engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            return bool(found.scalar_one())
    finally:
        store.close()


def test_a_server_is_taken_for_who_it_is_only_by_a_certificate_that_vouches_for_it(
    postgres: Cluster, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.passwords["kim"])
    root = serve("127.0.0.1")
    assert is_encrypted(address(postgres, "verify-full", root))

    stranger = tmp_path / "stranger.crt"
    stranger.write_bytes(make_certificate("127.0.0.1")[0])
    for mode in ("verify-ca", "verify-full"):
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            open_store(address(postgres, mode, stranger), "kim")


def test_the_certificate_of_another_host_is_refused_where_the_address_asks_for_its_name(
    postgres: Cluster, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.passwords["kim"])
    root = serve(None)
    assert is_encrypted(address(postgres, "verify-ca", root))
    with pytest.raises(StoreUnavailable, match="does not match host name"):
        open_store(address(postgres, "verify-full", root), "kim")
