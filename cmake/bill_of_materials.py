#!/usr/bin/env python3
"""bill_of_materials.py PREFIX SOURCE MACHINE SYSROOT FILE…: lists the components of an install tree, for
`cmake --install` (`make dist`).

PREFIX is the install tree, SOURCE is the root of the repository, MACHINE is what the tree runs on (x86_64, aarch64),
SYSROOT is the folder that has the Debian packages of that machine (/ for this one), and FILE… are the archives and
headers of Debian packages that were linked or compiled in. The results are written below PREFIX/share/doc/specdec:

  sbom.cdx.json   the components as CycloneDX 1.6: crates (from Cargo.lock), Debian packages (the owners of the FILEs
                  and of the shared libraries in PREFIX/lib/specdec), vendored code, and the wheels that the tree
                  needs at run time and does not contain
  licences/       the licence texts of everything that the tree contains

The same inputs give the same bytes. For a crate that carries no licence text, a file names its licence and its
repository."""

import glob
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import uuid

# Maps Debian's short names of licences (DEP-5) to the SPDX names.
SPDX = {
    "apache-2.0": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "expat": "MIT",
    "mit": "MIT",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bsl-1.0": "BSL-1.0",
    "boost-1.0": "BSL-1.0",
    "curl": "curl",
    "zlib": "Zlib",
    "isc": "ISC",
}
WHEELS = {"torch": "BSD-3-Clause"}
VENDORED = [{"name": "uPlot", "version": "1.6.32", "licence": "MIT", "purl": "pkg:npm/uplot@1.6.32"}]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def component(kind, name, version, purl, licence, sha256=None, contained=True):
    out = {
        "type": kind,
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "scope": "required",
        "licenses": [licence],
    }
    if sha256:
        out["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    if not contained:
        out["properties"] = [{"name": "specdec:contained", "value": "false"}]
    return out


def crates(source, machine, licences):
    """Returns the components of the linked crates, a map from each crate to the crates that it needs (bom-refs), and
    the crates that specdec itself needs. Copies the licence texts of the crates."""
    metadata = json.loads(
        run(
            "cargo",
            "metadata",
            "--locked",
            "--offline",
            "--format-version",
            "1",
            "--filter-platform",
            machine + "-unknown-linux-gnu",
            "--manifest-path",
            os.path.join(source, "rust", "Cargo.toml"),
        )
    )
    with open(os.path.join(source, "rust", "Cargo.lock")) as f:
        checksums = {
            (n, v): c
            for n, v, c in re.findall(
                r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = "[^"]+"\nchecksum = "([0-9a-f]{64})"', f.read()
            )
        }
    packages = {p["id"]: p for p in metadata["packages"]}
    needs = {
        n["id"]: [d["pkg"] for d in n["deps"] if any(k["kind"] is None for k in d["dep_kinds"])]
        for n in metadata["resolve"]["nodes"]
    }
    root = metadata["resolve"]["root"]
    linked, todo = set(), [root]
    while todo:
        for needed in needs[todo.pop()]:
            if needed not in linked:
                linked.add(needed)
                todo.append(needed)

    def purl(ident):
        return f"pkg:cargo/{packages[ident]['name']}@{packages[ident]['version']}"

    found = []
    for ident in sorted(linked, key=purl):
        p = packages[ident]
        folder = os.path.join(licences, "crates", f"{p['name']}-{p['version']}")
        texts = [
            t
            for t in glob.glob(os.path.join(os.path.dirname(p["manifest_path"]), "*"))
            if re.match(r"(?i)(licen[cs]e|copying|notice|unlicense)", os.path.basename(t)) and os.path.isfile(t)
        ]
        os.makedirs(folder)
        for text in texts:
            shutil.copyfile(text, os.path.join(folder, os.path.basename(text)))
        if not texts:  # the crate has no licence text of its own, so name the licence and the repository
            with open(os.path.join(folder, "LICENSE"), "w") as f:
                f.write(
                    f"{p['name']} {p['version']} is licensed under {p['license']}.\nIts crate carries no "
                    f"text of it; see {p['repository'] or 'https://crates.io/crates/' + p['name']}\n"
                )
        licence = {"expression": p["license"].replace("/", " OR ")}
        found.append(
            component("library", p["name"], p["version"], purl(ident), licence, checksums[p["name"], p["version"]])
        )
    return found, {purl(i): sorted(purl(n) for n in needs[i]) for i in linked}, sorted(purl(n) for n in needs[root])


def debian_licence(copyright_file):
    with open(copyright_file, errors="replace") as f:
        text = f.read()
    main = re.search(r"^Files:\s*\*\s*$.*?^License:\s*(.+?)\s*$", text, re.M | re.S)
    name = main[1] if main else "see the text"
    return {"license": {"id": SPDX[name.lower()]} if name.lower() in SPDX else {"name": name}}


def debian(prefix, sysroot, files, licences):
    """Returns the components of the packages that own the files and the tree's shared libraries, and copies their
    licence texts. dpkg's database and the texts are those of the sysroot."""
    shared = [
        "*/" + os.path.basename(p)
        for p in glob.glob(os.path.join(prefix, "lib", "specdec", "*.so*"))
        if not os.path.islink(p) and os.path.basename(p) != "libspecdec_rs.so"  # built here from the crates
    ]
    root = os.path.realpath(sysroot)
    compiled_in = ["/" + os.path.relpath(os.path.realpath(path), root) for path in files]
    query = ["dpkg-query", "--admindir=" + os.path.join(root, "var", "lib", "dpkg")]
    owners = re.findall(r"^(\S+?): ", run(*query, "--search", *compiled_in, *shared), re.M)
    found = []
    for owner in sorted(set(owners)):  # a package name, with :ARCHITECTURE if several architectures may be installed
        package = owner.partition(":")[0]
        version, architecture = run(*query, "--show", "--showformat=${Version} ${Architecture}", owner).split()
        folder = os.path.join(licences, "debian")
        os.makedirs(folder, exist_ok=True)
        text = os.path.join(root, "usr", "share", "doc", package, "copyright")
        shutil.copyfile(text, os.path.join(folder, package))
        found.append(
            component(
                "library",
                package,
                version,
                f"pkg:deb/debian/{package}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={architecture}",
                debian_licence(text),
            )
        )
    return found


def wheels(source):
    with open(os.path.join(source, "cmake", "requirements.txt")) as f:
        versions = dict(re.findall(r"^(\w+)==(\S+)", f.read(), re.M))
    return [
        component(
            "library",
            name,
            versions[name],
            f"pkg:pypi/{name}@{versions[name]}",
            {"license": {"id": licence}},
            contained=False,
        )
        for name, licence in WHEELS.items()
    ]


def compress(folder):
    """Compresses the texts of 4 KiB or more, as Debian does, because one of them alone has 2 MB."""
    for path in [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]:
        if os.path.getsize(path) < 4096:
            continue
        with (
            open(path, "rb") as text,
            open(path + ".gz", "wb") as out,
            gzip.GzipFile("", "wb", 9, out, mtime=0) as packed,
        ):
            shutil.copyfileobj(text, packed)
        os.remove(path)


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    prefix, source, machine, sysroot, *files = sys.argv[1:]
    folder = os.path.join(prefix, "share", "doc", "specdec")
    licences = os.path.join(folder, "licences")
    shutil.rmtree(licences, ignore_errors=True)
    os.makedirs(licences)
    with open(os.path.join(source, "VERSION")) as f:
        version = f.read().strip()
    rust, needs, direct = crates(source, machine, licences)
    others = debian(prefix, sysroot, files, licences)
    if os.path.exists(os.path.join(prefix, "libexec", "specdec-engine")):  # the tree has the engine
        others += wheels(source)
    for v in VENDORED:
        others.append(component("library", v["name"], v["version"], v["purl"], {"license": {"id": v["licence"]}}))
        shutil.copyfile(os.path.join(source, "base", "page", "assets", "LICENSE"), os.path.join(licences, "uPlot"))
    compress(licences)
    me = f"specdec@{version}"
    body = {
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": me,
                "name": "specdec",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": rust + others,
        "dependencies": [{"ref": me, "dependsOn": direct + [c["bom-ref"] for c in others]}]
        + [{"ref": ref, "dependsOn": on} for ref, on in sorted(needs.items())],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    with open(os.path.join(folder, "sbom.cdx.json"), "w") as f:
        json.dump(
            {
                "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
                "bomFormat": "CycloneDX",
                "specVersion": "1.6",
                "serialNumber": f"urn:uuid:{serial}",
                "version": 1,
                **body,
            },
            f,
            indent=1,
        )
        f.write("\n")


main()
