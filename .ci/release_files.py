"""Write what a release has beside its files: an SBOM (CycloneDX 1.5) and ``SHA256SUMS``.

Run as ``python .ci/release_files.py DIRECTORY`` on sdist and wheels; ``./dev release`` and the workflow do. Both
files depend on those alone: made again, they are the same.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

SUMS = "SHA256SUMS"
NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
"""Namespace of URLs (RFC 9562, 6.6), for a serial number that only the files decide."""


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def metadata(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def sbom(files: list[Path], said: Message) -> dict[str, Any]:
    """Return the SBOM: the release with its files, and what it requires where no extra is asked for."""
    name, version = said["Name"], said["Version"]
    purl = f"pkg:pypi/{name}@{version}"
    required = [each for each in said.get_all("Requires-Dist", []) if not re.search(r"\bextra\s*==", each)]
    parts = [
        {
            "type": "file",
            "name": path.name,
            "hashes": [{"alg": "SHA-256", "content": digest(path)}],
            "bom-ref": path.name,
        }
        for path in files
    ]
    libraries = []
    for each in required:
        requirement, _, marker = each.partition(";")
        library = re.split(r"[\[<>=!~ ]", requirement, maxsplit=1)[0]
        row: dict[str, Any] = {"type": "library", "name": library, "purl": f"pkg:pypi/{library}"}
        row |= {"bom-ref": row["purl"], "scope": "optional" if marker else "required"}
        row["properties"] = [{"name": "requirement", "value": each}]
        libraries.append(row)
    component = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": purl,
        "bom-ref": purl,
        "licenses": [{"license": {"id": said["License-Expression"]}}],
        "components": parts,
    }
    content = "\n".join([purl, *(f"{path.name} {digest(path)}" for path in files)])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, content)}",
        "version": 1,
        "metadata": {"component": component},
        "components": libraries,
        "dependencies": [{"ref": purl, "dependsOn": [each["bom-ref"] for each in libraries]}],
    }


def main(directory: Path) -> int:
    """Exit status 1 with a line where there is no wheel."""
    files = sorted(each for each in directory.iterdir() if each.name.endswith((".whl", ".tar.gz")))
    wheels = [each for each in files if each.suffix == ".whl"]
    if not wheels:
        print(f"release_files: {directory} has no wheel: ./dev wheels makes some", file=sys.stderr)
        return 1
    said = metadata(wheels[0])
    bill = directory / f"{said['Name']}-{said['Version']}.cdx.json"
    bill.write_text(json.dumps(sbom(files, said), indent=1) + "\n", encoding="utf-8")
    sums = "".join(f"{digest(each)}  {each.name}\n" for each in [*files, bill])
    (directory / SUMS).write_text(sums, encoding="utf-8")
    print(f"{bill}\n{directory / SUMS}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
