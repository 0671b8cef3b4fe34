#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sbom.py ROOTFS REVISION EPOCH [--static]: what is in the image, as SPDX 2.3 JSON
(spdx.github.io/spdx-spec/v2.3). --static: what is linked into the program of wheel and tarball.

The packages are those of /var/lib/dpkg/status.d, and forebay itself with the checksum of its
binary. The licence that a package declares is that of "Files: *" in its Debian copyright file,
where that can be read by machines (DEP 5); else NOASSERTION.
"""

import hashlib
import json
import re
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


# Debian's short names, in lower case, as SPDX calls them. Others become a LicenseRef with the text
# that the file has.
LICENCES = {
    "expat": "MIT",
    "mit": "MIT",
    "isc": "ISC",
    "zlib": "Zlib",
    "curl": "curl",
    "apache-2": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bsd3": "BSD-3-Clause",
    "openldap-2.8": "OLDAP-2.8",
    "mpl-2.0": "MPL-2.0",
    "gpl-2": "GPL-2.0-only",
    "gpl-2+": "GPL-2.0-or-later",
    "gpl-3": "GPL-3.0-only",
    "gpl-3+": "GPL-3.0-or-later",
    "lgpl-2": "LGPL-2.0-only",
    "lgpl-2+": "LGPL-2.0-or-later",
    "lgpl-2.1": "LGPL-2.1-only",
    "lgpl-2.1+": "LGPL-2.1-or-later",
    "lgpl-3": "LGPL-3.0-only",
    "lgpl-3+": "LGPL-3.0-or-later",
}


SOURCE = (
    'Of the source package\'s "Files: *"; other files of it may have other licences, see its '
    "copyright file, which is shipped too."
)


def stanzas(text):
    """Of a Debian control file: one dict each; a field's further lines are kept."""
    for part in re.split(r"\n\s*\n", text):
        found, name = {}, None
        for line in part.splitlines():
            if line[:1].isspace() and found:
                found[name] += "\n" + line.strip()
            elif ":" in line and not line.startswith("#"):
                name, _, value = line.partition(":")
                found[name] = value.strip()
        if found:
            yield found


class Licences:
    """Reads copyright files; what SPDX does not know is kept, to be listed once."""

    def __init__(self):
        self.extracted = {}

    def one(self, package, name, texts):
        known = LICENCES.get(name.lower())
        if known:
            return known
        ref = "LicenseRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", f"{package}-{name}")
        self.extracted[ref] = {
            "licenseId": ref,
            "name": name,
            "extractedText": texts.get(name) or f"{name}: see /usr/share/doc/{package}/copyright",
        }
        return ref

    def declared(self, package, path):
        text = path.read_text(errors="replace") if path.exists() else ""
        if not text.startswith("Format:"):
            return "NOASSERTION"
        parts = list(stanzas(text))
        texts = {
            name: body
            for name, _, body in (p.get("License", "").partition("\n") for p in parts)
            if body
        }
        main = next(
            (
                p["License"]
                for p in parts
                if p.get("Files", "").split() == ["*"] and p.get("License")
            ),
            None,
        )
        if main is None:
            return "NOASSERTION"
        # "and" binds more than "or".
        either = [
            [self.one(package, name.strip(), texts) for name in re.split(r"\s+and\s+", words)]
            for words in re.split(r"\s+or\s+", main.partition("\n")[0])
        ]
        return " OR ".join(
            f"({' AND '.join(all_of)})"
            if len(either) > 1 and len(all_of) > 1
            else " AND ".join(all_of)
            for all_of in either
        )


def package(name, version, licence, **more):
    return {
        "SPDXID": f"SPDXRef-Package-{name.replace('+', '-')}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
        **more,
    }


def purl(of):
    return [
        {
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": f"pkg:deb/debian/{of['Package']}@{of['Version']}"
            f"?arch={of['Architecture']}&distro=bookworm",
        }
    ]


def main():
    root, revision, epoch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    static = "--static" in sys.argv[4:]
    digest = hashlib.sha256((root / "usr/bin/forebay").read_bytes()).hexdigest()
    own = package(
        "forebay",
        revision,
        "Apache-2.0",
        supplier="Organization: Forebay",
        checksums=[{"algorithm": "SHA256", "checksumValue": digest}],
    )
    others, licences = [], Licences()
    for path in sorted((root / "var/lib/dpkg/status.d").iterdir()):
        of = fields(path)
        licence = licences.declared(
            of["Package"], root / "usr/share/doc" / of["Package"] / "copyright"
        )
        others.append(
            package(
                of["Package"],
                of["Version"],
                licence,
                supplier="Organization: Debian",
                externalRefs=purl(of),
                **({} if licence == "NOASSERTION" else {"licenseComments": SOURCE}),
            )
        )
    related = [
        {
            "spdxElementId": "SPDXRef-DOCUMENT",
            "relationshipType": "DESCRIBES",
            "relatedSpdxElement": own["SPDXID"],
        }
    ]
    related += [
        {
            "spdxElementId": own["SPDXID"],
            "relationshipType": "STATIC_LINK"
            if static
            else "DYNAMIC_LINK"
            if p["name"].startswith("lib")
            else "DEPENDS_ON",
            "relatedSpdxElement": p["SPDXID"],
        }
        for p in others
    ]
    json.dump(
        {
            "spdxVersion": "SPDX-2.3",
            "dataLicense": "CC0-1.0",
            "SPDXID": "SPDXRef-DOCUMENT",
            "name": "forebay-static" if static else "forebay-image",
            "documentNamespace": f"https://forebay.invalid/spdx/{digest}",
            "creationInfo": {
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
                "creators": ["Tool: sbom.py"],
            },
            "packages": [own, *others],
            "relationships": related,
            "hasExtractedLicensingInfos": list(licences.extracted.values()),
        },
        sys.stdout,
        indent=1,
    )
    print()


main()
