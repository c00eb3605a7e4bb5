"""Certificates of the product, the sandbox and the tests pass the strict verifiers of OpenSSL, Python and Go."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from tessera.scheduler.certificates.authority import Pair, make_authority, make_leaf
from tessera_lab.sandbox.api.server import for_loopback

GO = """
package main

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
)

// Arguments: an authority, a certificate and a name, again and again.
func main() {
	for rest := os.Args[1:]; len(rest) > 0; rest = rest[3:] {
		if err := verify(rest[0], rest[1], rest[2]); err != nil {
			fmt.Println(rest[1], "for", rest[2], err)
			os.Exit(1)
		}
	}
}

func verify(authority, certificate, name string) error {
	roots := x509.NewCertPool()
	text, err := os.ReadFile(authority)
	if err != nil || !roots.AppendCertsFromPEM(text) {
		return fmt.Errorf("unreadable: %s %v", authority, err)
	}
	text, err = os.ReadFile(certificate)
	if err != nil {
		return err
	}
	block, _ := pem.Decode(text)
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	_, err = parsed.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: usages})
	return err
}
"""


@dataclass(frozen=True)
class Served:
    """PEM texts: an authority, and a serving certificate that it made for `name`."""

    authority: bytes
    certificate: bytes
    key: bytes
    name: str


def made_by_the_scheduler(name: str = "tessera.gpu.svc") -> Served:
    return signed_by(make_authority(now=time.time()), name)


def made_with_another_programs_authority() -> Served:
    """Its key identifier is not the hash that we would choose: Go's are SHA-256 from 1.25 on."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "another")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    began = datetime.now(UTC) - timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + timedelta(days=100))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier(bytes(range(20))), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return signed_by(Pair(certificate.public_bytes(Encoding.PEM), secret), "tessera.gpu.svc")


def signed_by(authority: Pair, name: str) -> Served:
    leaf = make_leaf(authority, [name], now=time.time())
    return Served(authority.certificate, leaf.certificate, leaf.key, name)


def made_by_the_sandbox(host: str = "127.0.0.1") -> Served:
    made = for_loopback(host)
    return Served(made.ca, made.certificate, made.key, host)


def made_by_trustme(name: str = "127.0.0.1") -> Served:
    authority = trustme.CA()
    made = authority.issue_cert(name)
    chain = b"".join(pem.bytes() for pem in made.cert_chain_pems)
    return Served(authority.cert_pem.bytes(), chain, made.private_key_pem.bytes(), name)


MAKERS: dict[str, Callable[[], Served]] = {
    "scheduler": made_by_the_scheduler,
    "scheduler, address": lambda: made_by_the_scheduler("::1"),
    "scheduler, long name": lambda: made_by_the_scheduler(f"{'x' * 60}.{'y' * 60}.svc"),
    "scheduler, another authority": made_with_another_programs_authority,
    "sandbox": made_by_the_sandbox,
    "sandbox, name": lambda: made_by_the_sandbox("api.example"),
    "trustme": made_by_trustme,
    "trustme, name": lambda: made_by_trustme("localhost"),
}
makers = pytest.mark.parametrize("maker", MAKERS)


def without_key_identifiers() -> Served:
    """What a strict verifier must refuse."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority = make_authority(now=time.time())
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signer_key = load_pem_private_key(authority.key, password=None)
    assert isinstance(signer_key, ec.EllipticCurvePrivateKey)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))
        .issuer_name(signer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(signer_key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Served(authority.certificate, certificate.public_bytes(Encoding.PEM), secret, "localhost")


# -- Python


def shake_hands(served: Served, folder: Path) -> None:
    """A TLS handshake in memory; raises where the client refuses the certificate."""
    client = ssl.create_default_context(cadata=served.authority.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (folder / "serving.pem").write_bytes(served.certificate + served.key)
    server.load_cert_chain(folder / "serving.pem")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=served.name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (one, other, one, other):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert one.getpeercert()


@makers
def test_python_accepts_it(maker: str, tmp_path: Path) -> None:
    shake_hands(MAKERS[maker](), tmp_path)


def test_python_refuses_a_certificate_without_key_identifiers(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Key Identifier"):
        shake_hands(without_key_identifiers(), tmp_path)


# -- openssl


def verified_by_openssl(served: Served, folder: Path) -> str:
    """Everything that `openssl verify` says."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    authority, certificate = written(served, folder)
    option = "-verify_ip" if ":" in served.name or served.name[0].isdigit() else "-verify_hostname"
    done = subprocess.run(
        [
            *(openssl, "verify", "-x509_strict", "-purpose", "sslserver", option, served.name),
            *("-CAfile", str(authority), str(certificate)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@makers
def test_openssl_accepts_it(maker: str, tmp_path: Path) -> None:
    assert verified_by_openssl(MAKERS[maker](), tmp_path) == f"{tmp_path / 'serving.pem'}: OK\n"


def test_openssl_refuses_a_certificate_without_key_identifiers(tmp_path: Path) -> None:
    assert "Key Identifier" in verified_by_openssl(without_key_identifiers(), tmp_path)


# -- Go


@pytest.mark.timeout(300)  # a cold cache: Go compiles its cryptography first
def test_go_accepts_all_of_them(tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")
    (tmp_path / "verify.go").write_text(GO)
    arguments: list[str] = []
    for maker, make in MAKERS.items():
        folder = tmp_path / maker
        folder.mkdir()
        served = make()
        arguments += [*map(str, written(served, folder)), served.name]
    done = subprocess.run(
        [go, "run", "verify.go", *arguments],
        cwd=tmp_path,
        env=os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GO111MODULE": "off"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def written(served: Served, folder: Path) -> tuple[Path, Path]:
    authority, certificate = folder / "authority.pem", folder / "serving.pem"
    authority.write_bytes(served.authority)
    certificate.write_bytes(served.certificate)
    return authority, certificate
