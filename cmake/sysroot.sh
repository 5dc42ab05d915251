#!/usr/bin/env bash
# cmake/sysroot.sh DIR PACKAGE…: unpacks these packages of Debian 12 for arm64, and all that they depend on, into DIR, for
# the preset `aarch64` (cmake/setup.sh --aarch64). DIR is complete when DIR/.complete exists; else it is made anew.
# Neither root nor another architecture of this machine's dpkg is needed: apt and dpkg work on files of their own below DIR.
# DIR/var/lib/dpkg says which package owns which file, for cmake/bill_of_materials.py.
set -euo pipefail

dir=$1; shift
made=$dir.part
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$dir/.complete" ] && exit
[ -e "$keyring" ] || { echo "sysroot: $keyring is missing, which says who may sign packages: install debian-archive-keyring" >&2; exit 1; }
rm -rf "$dir" "$made"
database=$made/var/lib/dpkg
mkdir -p "$made/apt/lists/partial" "$made/apt/archives/partial" "$database/info"
: > "$database/status"
cat > "$made/apt/sources.list" <<END
deb [signed-by=$keyring] http://deb.debian.org/debian bookworm main
deb [signed-by=$keyring] http://deb.debian.org/debian bookworm-updates main
deb [signed-by=$keyring] http://deb.debian.org/debian-security bookworm-security main
END
# Without pkgCacheGen::Essential=none apt would add the packages that Debian requires on every machine, such as a shell.
options=(-qq -o Dir::Etc::sourcelist="$made/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null
  -o Dir::State::lists="$made/apt/lists" -o Dir::State::status="$database/status"
  -o Dir::Cache="$made/apt" -o Dir::Cache::archives="$made/apt/archives"
  -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User= -o APT::Install-Recommends=false -o pkgCacheGen::Essential=none)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --yes --download-only -o Debug::NoLocking=true "$@" >/dev/null

for package in "$made"/apt/archives/*.deb; do
  name=$(dpkg-deb --field "$package" Package)
  dpkg-deb --extract "$package" "$made"
  dpkg-deb --fsys-tarfile "$package" | tar --list | sed -e 's,^\.,,' -e 's,\(.\)/$,\1,' -e 's,^/$,/.,' > "$database/info/$name.list"
  { dpkg-deb --field "$package"; printf 'Status: install ok installed\n\n'; } >> "$database/status"
done
rm -rf "$made/apt"

# An absolute symbolic link would lead out of DIR.
find "$made" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
  ln -snf "$(realpath --no-symlinks --canonicalize-missing --relative-to="$(dirname "$link")" "$made$(readlink "$link")")" "$link"
done
touch "$made/.complete"
mv "$made" "$dir"
