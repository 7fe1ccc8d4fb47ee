"""What aiohttp's and anyio's tests use of trustme, by the openssl program, where cryptography cannot be installed."""

import contextlib
import os
import ssl
import subprocess
import tempfile
from pathlib import Path


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Blob:
    def __init__(self, *paths):
        self._data = b"".join(Path(path).read_bytes() for path in paths)

    def bytes(self):
        return self._data

    @contextlib.contextmanager
    def tempfile(self, dir=None):
        with tempfile.NamedTemporaryFile(suffix=".pem", dir=dir) as f:
            f.write(self._data)
            f.flush()
            yield f.name


def make(folder, name, subject, extensions, ca=None):
    """The paths of a new key and its certificate, self-signed or signed by `ca` (a key and a certificate)."""
    key, request, cert = (f"{folder}/{name}.{ending}" for ending in ("key", "csr", "pem"))
    openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", subject,
            "-keyout", key, "-out", request)
    Path(f"{key}.ext").write_text(extensions)
    signer = ["-CA", ca[1], "-CAkey", ca[0]] if ca else ["-signkey", key]
    openssl("x509", "-req", "-in", request, *signer, "-days", "2", "-set_serial", f"0x{os.urandom(8).hex()}",
            "-extfile", f"{key}.ext", "-out", cert)
    return key, cert


class LeafCert:
    def __init__(self, key, cert):
        self._paths = cert, key
        self.private_key_pem, self.cert_chain_pems = Blob(key), [Blob(cert)]
        self.private_key_and_cert_chain_pem = Blob(key, cert)

    def configure_cert(self, context):
        context.load_cert_chain(*self._paths)


class CA:
    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._paths = make(self._folder.name, "ca", "/O=test/CN=authority",
                           "basicConstraints=critical,CA:true\nkeyUsage=critical,keyCertSign,cRLSign,digitalSignature\n"
                           "subjectKeyIdentifier=hash\n")
        self.cert_pem = Blob(self._paths[1])

    def issue_cert(self, *identities, **_):
        names = ",".join(f"{'IP' if i.replace('.', '').isdigit() or ':' in i else 'DNS'}:{i}" for i in identities)
        return LeafCert(*make(self._folder.name, os.urandom(4).hex(), "/O=test/CN=leaf",
                              f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\nbasicConstraints=critical,CA:false\n"
                              "keyUsage=critical,digitalSignature\n", self._paths))

    def configure_trust(self, context: ssl.SSLContext):
        context.load_verify_locations(cadata=self.cert_pem.bytes().decode())
