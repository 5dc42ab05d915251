"""Builds the Debian package from the build tree, unpacks it to a folder and runs the program from there. Also checks
that the package's files follow Debian's policy."""

import gzip
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from specdec_run import BUILD, SKIP, SOURCE, expect

cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M))
work = Path(tempfile.mkdtemp(prefix="specdec-deb-"))
version = (SOURCE / "VERSION").read_text().strip()
for tool in ("dpkg-deb", "dpkg-shlibdeps", "strip"):
    if not shutil.which(tool):
        print(f"SKIPPED: {tool} is not installed")
        sys.exit(SKIP)


def out_of(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        print(done.stdout[-2000:], done.stderr[-2000:])
    expect(done.returncode == 0, " ".join(str(c) for c in command[:3]))
    return done.stdout


def check_control(package):
    fields = dict(re.findall(r"^ ?([A-Z][\w-]+): (.*)$", out_of("dpkg-deb", "-I", package), re.M))
    expect(fields["Package"] == "specdec" and fields["Version"] == f"{version}-1", f"version {fields['Version']}")
    expect(fields["Architecture"] == out_of("dpkg", "--print-architecture").strip(), fields["Architecture"])
    depends = {re.split(r"[ (]", one.strip())[0] for one in fields["Depends"].split(",")}
    expect({"libc6", "libcurl4", "libssl3", "libstdc++6"} <= depends, f"depends on {sorted(depends)}")
    expect(not any("torch" in name or "cuda" in name for name in depends), "LibTorch is no package of Debian")
    expect(re.fullmatch(r"[^<]+ <\S+@\S+>", fields["Maintainer"]), f"maintainer {fields['Maintainer']}")
    expect(len(fields["Description"]) < 80 and not fields["Description"].endswith("."), fields["Description"])
    installed = {
        line.split()[0]
        for line in out_of("dpkg-query", "-W", "-f", "${Package} ${Status}\n").splitlines()
        if line.endswith(" installed")
    }
    expect(depends <= installed, "the packages exist under these names")


def check_files(package, root):
    rows = [line.split(maxsplit=5) for line in out_of("dpkg-deb", "-c", package).splitlines()]
    names = [row[5].split(" -> ")[0] for row in rows]
    outside = [name for name in names if name not in ("./",) and not name.startswith("./usr/")]
    expect(outside in ([], ["./usr/"]), f"{len(names)} files, none outside of /usr {outside}")
    expect({row[1] for row in rows} == {"root/root"}, "all are root's")
    modes = {row[0] for row in rows}
    expect(modes <= {"-rw-r--r--", "-rwxr-xr-x", "drwxr-xr-x", "lrwxrwxrwx"}, f"modes {modes}")
    stray = [
        name
        for name in names
        if re.search(
            r"__pycache__|\.pyc$|/lib/specdec/(?!$|libspecdec_rs\.so$)|site-functions|/usr/local|\.partial", name
        )
    ]
    expect(not stray, f"no bundled library and no left-over {stray}")
    for name in (
        "bin/specdec",
        "libexec/specdec-engine",
        "lib/specdec/libspecdec_rs.so",
        "share/man/man1/specdec-data-ingest.1.gz",
        "share/bash-completion/completions/specdec",
        "share/zsh/vendor-completions/_specdec",
        "share/fish/vendor_completions.d/specdec.fish",
        "lib/python3/dist-packages/specdec/py.typed",
        "share/doc/specdec/copyright",
        "share/doc/specdec/sbom.cdx.json",
        "share/doc/specdec/changelog.gz",
        "share/specdec/demo/target/config.json",
    ):
        expect((root / "usr" / name).is_file(), f"/usr/{name}")
    plain = list((root / "usr/share/man/man1").glob("*.1"))
    expect(not plain, f"manual pages are compressed {plain}")
    log = gzip.decompress((root / "usr/share/doc/specdec/changelog.Debian.gz").read_bytes()).decode()
    pattern = rf"specdec \({re.escape(version)}-1\) unstable; urgency=\w+\n\n  \* .+\n\n -- [^<]+<\S+>  \w+, .+\n"
    expect(re.fullmatch(pattern, log), f"changelog.Debian is Debian's {log!r}")
    control = work / "control"
    out_of("dpkg-deb", "-e", package, control)
    sums = (control / "md5sums").read_text().splitlines()
    files = [f for f in root.rglob("*") if f.is_file() and not f.is_symlink()]
    expect(len(sums) == len(files), f"md5sums of all {len(files)} files")
    for name in ("bin/specdec", "libexec/specdec-engine", "lib/specdec/libspecdec_rs.so"):
        file = root / "usr" / name
        sections = out_of("readelf", "-SW", file)
        expect(".symtab" not in sections and ".debug_info" not in sections, f"{name} is stripped")
        expect(name.endswith(".so") or os.stat(file).st_mode & stat.S_IXUSR, f"{name} can be run")
        expect(str(BUILD).encode() not in out_of("readelf", "-d", file).encode(), f"{name} has no path of the build")


def check_runs(root):
    environment = {"PATH": f"{root}/usr/bin:/usr/bin:/bin", "HOME": str(work)}
    said = out_of("specdec", "--version", env=environment)
    expect(said == f"specdec {version}\n", f"specdec --version: {said.strip()}")
    expect("specdec monitor check" in out_of("specdec", "monitor", "--help", env=environment), "specdec monitor --help")
    loaded = out_of("ldd", root / "usr/bin/specdec", env=environment)
    expect("torch" not in loaded and "not found" not in loaded, "it loads Debian's libraries and no LibTorch")
    ask = "import specdec; print(specdec.find_program())"
    packages = {
        **environment,
        "PYTHONPATH": str(root / "usr/lib/python3/dist-packages"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    found = out_of(sys.executable, "-c", ask, env=packages).strip()
    expect(found == str(root / "usr/bin/specdec"), f"the Python package finds {found}")
    torch = str(Path(cache["Torch_DIR"]).parents[2] / "lib")
    model = root / "usr/share/specdec/demo/target"
    command = ["specdec", "generate", "--target", model, "--prompt", "", "--max-tokens", "4", "--threads", "1"]
    out_of(*command, env={**environment, "SPECDEC_TORCH_LIB": torch})


try:
    cpack = Path(cache["CMAKE_COMMAND"]).with_name("cpack")
    out_of(cpack, "--config", BUILD / "CPackConfig.cmake", "-G", "DEB", "-B", work / "made")
    (package,) = (work / "made").glob("*.deb")
    expect(re.fullmatch(rf"specdec_{re.escape(version)}-1_\w+\.deb", package.name), package.name)
    root = work / "root"
    out_of("dpkg-deb", "-x", package, root)
    check_control(package)
    check_files(package, root)
    check_runs(root)
finally:
    shutil.rmtree(work, ignore_errors=True)
