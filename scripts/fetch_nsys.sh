#!/usr/bin/env bash
# Fetch Nsight Systems as Debian packages it, without installing anything, and print the path of
# its nsys. Everything lands in .tools/nsys (or in the folder given); apt's own sources, lists and
# cache stay as they are, and no root is needed. A second call finds it done and only prints.
#
#   scripts/fetch_nsys.sh [FOLDER]
#   NSYS_SUITE=bookworm scripts/fetch_nsys.sh    a given Debian release: bookworm has 2022.4,
#                                                trixie 2023.4. Default: trixie, else this one's.
set -euo pipefail

fail() {
  echo "fetch_nsys: $*" >&2
  exit 3
}

# `nsys stats` looks for its modules on the host side, where Debian's package leaves some out.
add_modules() { # FOLDER
  local module lib=$1/host-linux-x64/python/lib
  for module in "$1"/target-linux-x64/python/lib/*.py; do
    [[ ! -e $module || -e $lib/${module##*/} ]] || cp "$module" "$lib/"
  done
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(realpath -m "${1:-$root/.tools/nsys}")
nsys=$folder/target-linux-x64/nsys
stamp=$folder/.complete

if [[ -f $stamp && -x $nsys && ${NSYS_SUITE:-$(<"$stamp")} == "$(<"$stamp")" ]]; then
  add_modules "$folder"
  echo "$nsys"
  exit 0
fi

for tool in apt-get apt-cache apt-config dpkg dpkg-query ldd; do
  command -v "$tool" >/dev/null ||
    fail "$tool is missing: this needs Debian. Elsewhere install Nsight Systems and set NSYS."
done
# shellcheck source=/dev/null
. /etc/os-release
[[ ${ID:-} == debian && -n ${VERSION_CODENAME:-} ]] ||
  fail "this is ${PRETTY_NAME:-no Debian release}: install Nsight Systems and set NSYS."
[[ $(dpkg --print-architecture) == amd64 ]] ||
  fail "Debian packages Nsight Systems for amd64 only."

mkdir -p "$(dirname "$folder")" || fail "cannot write $(dirname "$folder")."
work=$(mktemp -d "$folder.XXXXXX") || fail "cannot write $(dirname "$folder")."
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{sources,lists/partial,cache/archives/partial,packages,libraries}

# The machine's own sources of this release, with the section non-free added; and the same
# sources once more for the wanted release, its non-free section alone, so that every other
# library still comes from this release.
write_sources() { # SUITE
  local suite=$1 list parts file
  eval "$(apt-config shell list Dir::Etc::sourcelist/f parts Dir::Etc::sourceparts/d)"
  : >"$work/sources/debian.sources"
  : >"$work/sources/debian.list"
  for file in "$list" "$parts"/*.sources "$parts"/*.list; do
    [[ -f $file && -r $file ]] || continue
    case $file in
      *.sources)
        awk -v own="$VERSION_CODENAME" -v suite="$suite" '
          BEGIN { RS = ""; FS = "\n" }
          /(^|\n)Enabled:[ \t]*(no|false)/ { next }
          {
            types = suites = components = ""
            for (i = 1; i <= NF; i++) {
              if ($i ~ /^Types:/) types = $i
              if ($i ~ /^Suites:/) suites = $i " "
              if ($i ~ /^Components:/) components = $i " "
            }
            if (types !~ /[ \t]deb([ \t]|$)/ || suites !~ ("[ \t]" own "[ \t]")) next
            if (components !~ /[ \t]main[ \t]/) next
            for (wanted = 0; wanted < (suite == own ? 1 : 2); wanted++) {
              for (i = 1; i <= NF; i++) {
                if ($i ~ /^Types:/) print "Types: deb"
                else if ($i ~ /^Suites:/ && wanted) print "Suites: " suite
                else if ($i ~ /^Components:/) print "Components: " (wanted ? "" : "main ") "non-free"
                else print $i
              }
              print ""
            }
          }' "$file" >>"$work/sources/debian.sources"
        ;;
      *)
        local source='^(deb[[:space:]]+(\[[^]]*\][[:space:]]+)?[^[:space:]]+)[[:space:]]+'
        source+="$VERSION_CODENAME"'[[:space:]]+([^#]*[[:space:]])?main([[:space:]].*)?$'
        sed -nE "s/$source/\\1 $VERSION_CODENAME main non-free/p" "$file" >>"$work/sources/debian.list"
        [[ $suite == "$VERSION_CODENAME" ]] ||
          sed -nE "s/$source/\\1 $suite non-free/p" "$file" >>"$work/sources/debian.list"
        ;;
    esac
  done
}

options=(
  -q
  -o "Dir::Etc::sourcelist=/dev/null"
  -o "Dir::Etc::sourceparts=$work/sources"
  -o "Dir::State::lists=$work/lists"
  -o "Dir::Cache=$work/cache"
  -o "APT::Sandbox::User=$(id -un)" # apt's own user may not write here
  -o "Acquire::Retries=3"
)

# Sources that lack the section make apt-get complain; what counts is whether the package is found.
version_in() { # SUITE
  write_sources "$1"
  apt-get "${options[@]}" update >"$work/log" 2>&1 || true
  apt-cache "${options[@]}" madison nsight-systems | awk -F' *[|] *' -v suite="$1" \
    '$3 ~ (" " suite "/") { print $2; exit }'
}

version=
for suite in ${NSYS_SUITE:-trixie "$VERSION_CODENAME"}; do
  version=$(version_in "$suite")
  [[ -z $version ]] || break
done
if [[ -z $version ]]; then
  tail -n 5 "$work/log" >&2
  fail "the machine's Debian sources have no package nsight-systems in the section non-free."
fi

download() {
  (cd "$work/packages" && apt-get "${options[@]}" download "$@") >"$work/log" 2>&1 || {
    tail -n 5 "$work/log" >&2
    fail "apt-get could not download $*."
  }
}

echo "fetch_nsys: nsight-systems $version from $suite" >&2
download "nsight-systems=$version" "nsight-systems-target=$version"
for package in "$work"/packages/*.deb; do
  dpkg -x "$package" "$work/unpacked" || fail "$package cannot be unpacked: is the disk full?"
  rm "$package"
done
new=$work/nsys
mkdir "$new"
mv "$work"/unpacked/usr/lib/*/nsight-systems/target-linux-x64 "$new/"
mv "$work/unpacked/usr/lib/nsight-systems/host-linux-x64" "$new/"

# Shared libraries of other packages that are not installed: unpacked beside the programs that
# load them. (libssh is also wanted under its plain name.)
libraries=(libssh-4 libpfm4)
for name in libelf1t64 libelf1; do
  if [[ -n $(apt-cache "${options[@]}" madison "$name") ]]; then
    libraries+=("$name")
    break
  fi
done
depends=(--recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances)
missing=()
while read -r name; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$name:amd64" 2>/dev/null ||
    dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$name")
done < <(apt-cache "${options[@]}" depends "${depends[@]}" "${libraries[@]}" |
  sed -nE 's/^(lib[a-z0-9.+-]+|zlib1g)$/\1/p' | sort -u)
if ((${#missing[@]})); then
  download "${missing[@]}"
  for package in "$work"/packages/*.deb; do
    dpkg -x "$package" "$work/libraries"
  done
  for target in host-linux-x64 target-linux-x64; do
    find "$work/libraries" -name '*.so*' -not -type d -exec cp -an {} "$new/$target/" \;
  done
fi
find "$new" -xtype l -name 'libssh.so*' -delete
find "$work/libraries" -name 'libssh.so.*' -exec cp -a {} "$new/host-linux-x64/" \;
if [[ ! -e $new/host-linux-x64/libssh.so ]]; then
  libssh=$new/host-linux-x64/libssh.so.4
  [[ -e $libssh ]] || libssh=$(ldconfig -p | sed -nE 's/^\s*libssh\.so\.4 .*=> //p' | head -n 1)
  [[ -n $libssh ]] || libssh=/usr/lib/x86_64-linux-gnu/libssh.so.4
  if [[ $libssh == "$new"/* ]]; then libssh=libssh.so.4; fi
  ln -s "$libssh" "$new/host-linux-x64/libssh.so"
fi

absent=$(for program in host-linux-x64/QdstrmImporter target-linux-x64/nsys; do
  ldd "$new/$program" | sed -nE 's/^\s*(\S+) => not found/\1/p'
done | sort -u | tr '\n' ' ')
[[ -z $absent ]] || fail "nsys $version cannot run here: these libraries are missing: $absent"
"$new/target-linux-x64/nsys" --version >&2 || fail "nsys $version does not run on this machine."

mkdir -p "$new/host-linux-x64/python/lib"
add_modules "$new"
rm -rf "$folder"
mv "$new" "$folder" || fail "cannot write $folder."
echo "$suite" >"$stamp"
echo "$nsys"
