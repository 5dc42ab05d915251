"""Makes fresh Debian roots (root file systems), and command lines that run in them as in a container: in separate
namespaces, with the mounts, devices and capabilities of a container. Mounts only in the caller's own mount
namespace."""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

FREE_GB = 20
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASES = {"debian:12": False, "debian:12-slim": True}  # image: True if without documentation and translations
CERTIFICATES = Path("/usr/local/share/ca-certificates")
CLEANED = "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin"
# Files with the settings of apt and dpkg that Debian's images have.
CONFIGURED = {
    "etc/apt/apt.conf.d/docker-clean": f"""DPkg::Post-Invoke {{ "{CLEANED}"; }};
APT::Update::Post-Invoke {{ "{CLEANED}"; }};
Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";\n""",
    "etc/apt/apt.conf.d/docker-no-languages": 'Acquire::Languages "none";\n',
    "etc/apt/apt.conf.d/docker-gzip-indexes": 'Acquire::GzipIndexes "true";\n',
    "usr/sbin/policy-rc.d": "#!/bin/sh\nexit 101\n",
}
SLIM = [f"usr/share/{name}" for name in ("doc", "info", "lintian/overrides", "locale", "man")]
# The capabilities that a container has by default, for setpriv.
CAPABILITIES = (
    "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,"
    "+mknod,+audit_write,+setfcap"
)
# A script that makes a container's mounts and then runs a command. The caller starts it in a new mount namespace.
ENTER = """set -e
root=$1; shift
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t sysfs -o nosuid,nodev,noexec,ro sysfs "$root/sys"
mount -t tmpfs -o nosuid,mode=755,size=64k tmpfs "$root/dev"
for name in null zero full random urandom tty; do
  : > "$root/dev/$name"; mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o nosuid,noexec,newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
mount -t tmpfs -o nosuid,nodev,noexec,mode=1777,size=64m tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for n in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${n%:*}" "$root/dev/${n#*:}"; done
for name in hosts resolv.conf; do mount --bind "/etc/$name" "$root/etc/$name"; done
ip link set lo up
exec "$@"
"""


class Failure(Exception):
    """An error of the Dockerfile or of what it builds, described in one line."""


def missing(folder):
    """Returns what this machine lacks, or None if it lacks nothing."""
    if os.geteuid() != 0:
        return "it needs root"
    lacks = [p for p in ("mmdebstrap", "unshare", "nsenter", "setpriv", "ip", "git") if not shutil.which(p)]
    if lacks:
        return "it needs " + ", ".join(lacks)
    spaces = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, text=True)
    if spaces.returncode:
        return f"it needs namespaces of its own: {spaces.stderr.strip()}"
    for host in ("deb.debian.org", "pypi.org"):
        try:
            socket.create_connection((host, 443), 20).close()
        except OSError as error:
            return f"it needs {host}: {error}"
    free = shutil.disk_usage(folder).free / 1e9
    return f"it needs {FREE_GB} GB free in {folder}, found {free:.0f}" if free < FREE_GB else None


def size_of(root):
    """Returns the bytes of the files below a root."""
    done = subprocess.run(["du", "-sx", "--apparent-size", "--block-size=1", root], capture_output=True, text=True)
    return int(done.stdout.split()[0])


def make_base(root):
    """Makes a root with the contents of the image debian:12."""
    # Without the hook, apt would install usrmerge, which moves files below /usr, and perl, which usrmerge needs.
    hook = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    made = ["mmdebstrap", "--mode=root", "--variant=minbase", "--dpkgopt=force-unsafe-io", hook, "bookworm", root]
    done = subprocess.run(made, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise Failure(f"mmdebstrap ended with {done.returncode}: {done.stdout.decode(errors='replace')[-2000:]}")
    for path, text in CONFIGURED.items():
        (root / path).write_text(text)
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    for name in ("resolv.conf", "hosts", "hostname"):
        (root / "etc" / name).unlink(missing_ok=True)
        (root / "etc" / name).touch()
    trusted = root / CERTIFICATES.relative_to("/")
    trusted.mkdir(parents=True, exist_ok=True)
    for file in CERTIFICATES.glob("*.crt"):
        print(f"image: the base trusts {file}", flush=True)
        shutil.copyfile(file, trusted / file.name)


def make_root(root, base, slim):
    """Makes the root file system of a stage of the Dockerfile as a copy of `base`, which is made first if it does not
    exist."""
    if not base.exists():
        begun = base.with_suffix(".begun")
        shutil.rmtree(begun, ignore_errors=True)
        make_base(begun)
        begun.rename(base)
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "-a", "--reflink=auto", base, root], check=True)
    if not slim:
        return
    (root / "etc/dpkg/dpkg.cfg.d/docker").write_text(
        "".join(f"path-exclude /{path}/*\n" for path in SLIM) + "path-include /usr/share/doc/*/copyright\n"
    )
    folders = [root / path for path in SLIM if (root / path).exists()]
    kept = ["!", "-type", "d", "!", "-path", "*/usr/share/doc/*/copyright"]
    subprocess.run(["find", *folders, *kept, "-delete"], check=True)
    subprocess.run(["find", *folders, "-mindepth", "1", "-type", "d", "-empty", "-delete"], check=True)


class Stage:
    """One stage of the Dockerfile: its root folder and the settings of the instructions so far."""

    def __init__(self, root, arguments):
        self.root = root
        self.environment = {"PATH": PATH}
        self.arguments = arguments
        self.directory = "/"
        self.user = "0:0"
        self.entry, self.command, self.health = [], [], []

    def substitute(self, text):
        values = self.arguments | self.environment
        if odd := re.search(r"\$(?!\w|\{\w+\})\S*", text):
            raise Failure(f"{odd[0]}: expected $NAME or ${{NAME}}")
        return re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda m: values.get(m[1] or m[2], ""), text)

    def path(self, text):
        """Converts a path inside the image to the path on this machine."""
        found = self.root / os.path.normpath(os.path.join(self.directory, text)).lstrip("/")
        if not found.resolve().is_relative_to(self.root):
            raise Failure(f"{text}: a link leads out of the root")
        return found

    def home(self):
        users = (line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines())
        return next((fields[5] for fields in users if fields[2] == self.user.split(":")[0]), "/")

    def identity(self):
        user, group = self.user.split(":")
        return ["--setgid", group, "--setuid", user]

    def variables(self, extra):
        values = {"HOSTNAME": "image", "HOME": self.home()} | extra | self.environment
        return ["env", "-i", *(f"{name}={value}" for name, value in values.items())]

    def inside(self, command, extra, network):
        """Returns the command line that runs a command in the root file system, as process 1 of its own namespaces."""
        spaces = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        return [
            *(spaces if network else [*spaces, "--net"]),
            *("sh", "-c", ENTER, "enter", str(self.root)),
            *("setpriv", "--bounding-set", CAPABILITIES, *self.variables(extra), shutil.which("unshare")),
            *("--root", str(self.root), "--wd", self.directory, *self.identity(), "--", *command),
        ]

    def beside(self, process, command, extra):
        """Returns the command line that runs a command in the namespaces of the running `process`."""
        return [
            *self.variables(extra),
            *(shutil.which("nsenter"), "--target", str(process), "--mount", "--pid", "--ipc", "--uts", "--net"),
            *("--root", "--wd", *self.identity(), "--", *command),
        ]
