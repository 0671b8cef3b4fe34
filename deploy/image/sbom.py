#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sbom.py ROOTFS REVISION EPOCH: what is in the image, as SPDX 2.3 JSON (spdx.github.io/spdx-spec/v2.3).

The packages are those of /var/lib/dpkg/status.d, and forebay itself with the checksum of its binary.
"""
import hashlib
import json
import sys
import time
from pathlib import Path


def fields(path):
    found = {}
    for line in path.read_text().splitlines():
        if line and not line[0].isspace() and ": " in line:
            name, _, value = line.partition(": ")
            found[name] = value
    return found


def package(name, version, licence, **more):
    return {"SPDXID": f"SPDXRef-Package-{name.replace('+', '-')}", "name": name, "versionInfo": version,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
            "licenseDeclared": licence, "copyrightText": "NOASSERTION", **more}


def purl(of):
    return [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
             "referenceLocator": f"pkg:deb/debian/{of['Package']}@{of['Version']}?arch={of['Architecture']}&distro=bookworm"}]


def main():
    root, revision, epoch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    digest = hashlib.sha256((root / "usr/bin/forebay").read_bytes()).hexdigest()
    own = package("forebay", revision, "Apache-2.0", supplier="Organization: Forebay",
                  checksums=[{"algorithm": "SHA256", "checksumValue": digest}])
    others = []
    for path in sorted((root / "var/lib/dpkg/status.d").iterdir()):
        of = fields(path)
        others.append(package(of["Package"], of["Version"], "NOASSERTION", supplier="Organization: Debian",
                              externalRefs=purl(of)))
    related = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": own["SPDXID"]}]
    related += [{"spdxElementId": own["SPDXID"], "relationshipType": "DYNAMIC_LINK" if p["name"].startswith("lib") else "DEPENDS_ON",
                 "relatedSpdxElement": p["SPDXID"]} for p in others]
    json.dump({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": "forebay-image",
        "documentNamespace": f"https://forebay.invalid/spdx/{digest}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)), "creators": ["Tool: sbom.py"]},
        "packages": [own, *others], "relationships": related,
    }, sys.stdout, indent=1)
    print()


main()
